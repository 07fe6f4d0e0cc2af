"""Which way a model takes, and why not a faster one: a value to print, so that nothing falls back in silence."""

from __future__ import annotations

from dataclasses import dataclass

from whet.model.causal_lm import CausalLM
from whet.model.fused_trunk import fused_refusal
from whet.model.shared_prefix_attention import shared_prefix_refusal


@dataclass(frozen=True)
class FastPath:
    """`kind` is the way taken; `reason` says why it is not the fastest one, and is empty where it is."""

    kind: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kind} ({self.reason})" if self.reason else self.kind


def fast_path(lm: CausalLM) -> FastPath:
    """How training runs the trunk: written-out layers, the model's own modules without padding, or padded rows."""
    refusal = fused_refusal(lm)
    if not refusal:
        return FastPath("fused layers")
    if not (unpacked := shared_prefix_refusal(lm)):
        return FastPath("the model's own layers, shared prompts computed once", refusal)
    return FastPath("the model's own layers on padded rows", f"{refusal}; not packed: {unpacked}")
