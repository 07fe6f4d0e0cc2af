"""Settings of sampling: `[sampling]` of a config."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whet.settings.bounds import MOST_TOKENS
from whet.settings.sections import Section, Table, Temperature


class SamplingSection(Section):
    """`[sampling]`: how tokens are drawn and what ends a completion, and the engine that writes it."""

    max_new_tokens: int = Field(
        512, ge=1, le=MOST_TOKENS, description="longest completion, in tokens; measured at 0.5B: docs/defaults.md"
    )
    temperature: Temperature = Field(1.0, description="0 is greedy, for evaluation only")
    top_p: float = Field(1.0, ge=1e-6, le=1, description="1 is off")
    top_k: int = Field(0, ge=0, le=2**31 - 1, description="0 is off")
    min_p: float = Field(0.0, ge=0, lt=1, description="0 is off")
    stop: tuple[str, ...] = Field((), max_length=1000, description="strings that end a completion")
    stop_tokens: tuple[tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...], ...] = Field(
        (), max_length=1000, description="sequences of token ids that end a completion"
    )
    engine: str = Field(
        "torch", description="what writes the completions: torch, vllm, openai, or an engine that was registered"
    )
    engine_settings: Table = Field({}, description="settings of the engine, by name; docs/engines.md has them")
