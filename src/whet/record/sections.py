"""Settings of what a run writes and watches: `[report]` and `[health]` of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from whet.settings.bounds import MOST_ROWS, MOST_STEPS, MOST_TOKENS
from whet.settings.sections import Listed, Section, Table


class ReportSection(Section):
    """`[report]`: checkpoints, what is recorded of each step, and the trackers."""

    save: Literal["state", "weights"] = Field(
        "state", description="state: checkpoints that the run can be resumed from; weights: the model alone"
    )
    save_every: int = Field(
        0, ge=0, le=MOST_STEPS, description="steps between checkpoints; 0: as often as 1% of the wall time pays for"
    )
    keep_checkpoints: int = Field(
        2, ge=1, le=MOST_STEPS, description="checkpoints to keep; older ones are deleted, the best and final models not"
    )
    weights_dtype: Literal["training", "fp32", "bf16", "fp16"] = Field(
        "training", description="number type of the best and the final model; training: as they are trained"
    )
    samples_per_step: int = Field(1, ge=0, le=MOST_ROWS, description="groups per step written to samples.jsonl")
    tokens: int = Field(
        4096,
        ge=0,
        le=MOST_TOKENS,
        description="tokens per step of those samples whose advantage, weight and log-probs go to tokens.jsonl; 0: off",
    )
    review_every: int = Field(100, ge=0, le=MOST_STEPS, description="steps between two selections for review; 0: off")
    review_count: int = Field(20, ge=1, le=MOST_ROWS, description="best and worst completions to select, each")
    trackers: Listed = Field(
        (), description="services that follow the run: trackio, tensorboard, wandb, mlflow, or registered ones"
    )
    tracker_settings: Table = Field(
        default_factory=dict, description="settings by tracker, e.g. report.tracker_settings.wandb.mode=online"
    )

    @model_validator(mode="after")
    def _keeps_checkpoints(self) -> Self:
        if self.save == "weights" and self.keep_checkpoints != 2:
            raise ValueError("keep_checkpoints has no effect with save=weights, which keeps no checkpoints; drop it")
        return self


EVALUATION_FALLS = "evaluation_falls"


class HealthSection(Section):
    """`[health]`: what the run does on its own about a problem that lasts."""

    on_problem: dict[str, Literal["stop", "checkpoint", "lower_rate", "report"]] = Field(
        {EVALUATION_FALLS: "lower_rate"},
        description="what to do about a problem, by the name of its rule (docs/doctor.md): KL_runaway = lower_rate; "
        "report: only say it. That of evaluation_falls was measured: docs/defaults.md",
    )
    after_steps: int = Field(
        3, ge=1, le=MOST_STEPS, description="consecutive steps in which the problem must hold before that is done"
    )
    rate_factor: float = Field(
        0.5, ge=0.001, le=0.999, description="lower_rate multiplies the learning rate by this, each time"
    )

    @field_validator("on_problem", mode="before")
    @classmethod
    def _beside_the_default(cls, given: Any) -> Any:
        """A user who names another rule leaves the default action of this one as it is."""
        if not isinstance(given, Mapping):
            return given
        is_named = any(_plain(name) == EVALUATION_FALLS for name in given)
        return given if is_named else {**cls.model_fields["on_problem"].default, **given}

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        in_steps = {_plain(name) for name, action in self.on_problem.items() if action != "report"} - {EVALUATION_FALLS}
        if not in_steps and self.after_steps != 3:
            raise ValueError(
                "after_steps has no effect: health.on_problem acts on no problem that is found in steps; drop it"
            )
        if self.rate_factor != 0.5 and "lower_rate" not in self.on_problem.values():
            raise ValueError("rate_factor has no effect: no problem in health.on_problem lowers the rate; drop it")
        return self


def _plain(rule: object) -> str:
    """A rule's name as settings spell it by default."""
    return str(rule).lower().replace(" ", "_")
