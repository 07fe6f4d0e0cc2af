"""Settings of the model: `[model]` and `[model.lora]` of a config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from whet.settings.bounds import MOST_WEIGHT
from whet.settings.sections import Listed, Section


class LoraSection(Section):
    """`[model.lora]`: adapters, and how the frozen base beneath them is stored."""

    rank: int = Field(0, ge=0, le=65536, description="rank of the LoRA adapters; 0 trains every weight")
    alpha: float = Field(32.0, ge=1e-6, le=MOST_WEIGHT, description="an adapter is scaled by alpha / rank")
    target_modules: Listed = Field(
        (), description="linear layers that get an adapter, such as q_proj,v_proj; empty: all"
    )
    base: Literal["auto", "float32", "bfloat16", "4bit"] = Field(
        "auto", description="how the frozen base is kept; auto: bfloat16 where products run in bf16 on a GPU"
    )

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if not self.rank and (self.alpha != 32.0 or self.target_modules or self.base != "auto"):
            raise ValueError(
                "alpha, target_modules and base have no effect at rank 0; give model.lora.rank, such as 16"
            )
        return self


def _ranked(value: Any) -> Any:
    """`model.lora=16` is a rank, and so is what a further setting beside it leaves of that."""
    if isinstance(value, Mapping) and "kind" in value:
        return {**{key: part for key, part in value.items() if key != "kind"}, "rank": value["kind"]}
    if isinstance(value, bool):
        raise ValueError("give the rank of the adapters, such as 16; 0 is off")
    return value if isinstance(value, Mapping | LoraSection) else {"rank": value}


def _template_text(value: str) -> str:
    """What the file says, where a file is named: a resumed run needs it no more."""
    if not value or "{" in value or "\n" in value:
        return value
    try:
        file = Path(value).expanduser()
        if file.is_file():  # a device or a pipe may never end
            return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        pass
    raise ValueError(f"{value!r} cannot be read; give a Jinja file, or the template itself")


class ModelSection(Section):
    """`[model]`: which model is trained, where it runs, and how its weights are stored."""

    name: str = Field("whetstone", description="built-in name, local folder, .gguf file, smollm2 or hub id")
    chat_template: Annotated[str, AfterValidator(_template_text)] = Field(
        "", description="chat template used instead of the model's own: a Jinja file, or its text"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="precision of the matrix products; weights are kept as model.weights says"
    )
    weights: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="how weights are kept and trained; bfloat16, rounded at random: 12 bytes per weight instead of 18",
    )
    recompute: Literal["auto", "none", "wide", "layers"] = Field(
        "auto",
        description="what the backward pass recomputes to save memory: the MLP's wide activations, or whole layers",
    )
    threads: int = Field(
        0, ge=0, le=4096, description="CPU threads; 0: every usable core, four beside a GPU, one for a tiny model"
    )
    reference: Literal["memory", "reload"] = Field(
        "memory", description="keep the reference in memory, or read it from its source at every step"
    )
    reference_model: str = Field(
        "", description="model or run folder that the policy is held close to; empty: the model it starts from"
    )
    lora: Annotated[LoraSection, BeforeValidator(_ranked)] = Field(
        LoraSection(), description="LoRA adapters instead of full training; model.lora=16 sets the rank"
    )
