"""Settings of the reward and of the sandbox: `[reward]` and `[sandbox]` of a config."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from whet.reward.combine import ALL, Normalise, Over
from whet.settings.bounds import MOST_STEPS, MOST_WEIGHT
from whet.settings.sections import Listed, Section, Table, Weight


class RewardPartSection(Section):
    """`whet.reward.combine.RewardPart` as a config file writes it: settings of gate and schedule stand beside them."""

    reward: str = Field(description="built-in name, module:function, file.py:function, or a reward model's folder")
    weight: Weight | tuple[tuple[Annotated[float, Field(ge=0, le=MOST_STEPS)], Weight], ...] = Field(
        1.0, description="weight in the sum, or points [position, weight] to interpolate over the training"
    )
    over: Over = Field("share", description="unit of the positions: shares of the training, or steps")
    settings: Table = Field({}, description="settings of the reward, by name")
    gate: str = Field("", description="name of the part that must pass for this one to count")
    gate_least: Weight = Field(1.0, description="lowest score that passes the gate")
    gate_otherwise: Weight = Field(0.0, description="score where the gate does not pass")
    cap: tuple[Weight, ...] = Field((), max_length=2, description="[lowest, highest] value of the score")
    normalise: Normalise = Field("off", description="standardise the score before weighting")
    penalty: bool = Field(False, description="allow a negative weight")
    rows: str = Field(
        ALL,
        description="rows that the part scores: all, with_answer, without_answer, or a source of a mixture by its "
        "name; 0 elsewhere",
    )


class RewardSection(Section):
    """`[reward]`: the parts that are summed, the defences around them, and what happens when one fails."""

    parts: tuple[RewardPartSection, ...] = Field(
        (), description="rewards and their weights; empty: the task's own reward"
    )
    template: str = Field("", description="a ready-made set of parts instead: math, code, retrieval or agent")
    format_first: float = Field(
        0.0, ge=0, le=1, description="with a template: the format counts more until this share of the training"
    )
    defences: Listed = Field((), description="defences against reward hacking; `whet reward list` names them")
    defence_weight: float = Field(0.5, ge=1e-6, le=MOST_WEIGHT, description="weight of each defence")
    defences_as_gates: bool = Field(
        False, description="defences cancel the first part of the reward instead of adding a penalty"
    )
    timeout: float = Field(10.0, ge=0.001, le=86400, description="time limit of one call, in seconds")
    on_error: Literal["tolerate", "stop", "exclude"] = Field(
        "tolerate",
        description="a failed reward drops the sample; the run stops after many failures, at the first, or never",
    )
    most_failures: float = Field(
        0.05, ge=1e-6, le=1, description="tolerated share of failures among the last 200 samples (checked from 50 on)"
    )
    held_out: str = Field(
        "", description="a stricter reward that never pays: it checks a sample of what the first part rewarded"
    )
    held_out_settings: Table = Field({}, description="settings of the held-out reward, by name")
    frame_check: bool = Field(
        False, description="score a sample of the rewarded completions again with other text around their answer"
    )
    check_share: float = Field(0.1, ge=1e-6, le=1, description="share of the rewarded completions that are checked")
    ledger: str = Field("", description="file that records reward changes; empty: rewards.jsonl next to the run folder")


class SandboxSection(Section):
    """`[sandbox]`: the least isolation under which code written by a model may run."""

    require: Literal["any", "namespaces", "landlock", "none"] = Field(
        "any",
        description="isolation without which no model-written code runs: namespaces, landlock, any (the strongest this "
        "machine gives, never none), or none, which lets code read, write and delete this user's files",
    )
