"""Types of the settings that `whet.train` takes by name, written by tests/docs/generated_tables.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class SamplingSettings(TypedDict, total=False):
    """`[sampling]`"""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    stop: Sequence[str] | str
    stop_tokens: Sequence[Any]
    engine: str
    engine_settings: Mapping[str, Any]


class SandboxSettings(TypedDict, total=False):
    """`[sandbox]`"""

    require: Literal["any", "namespaces", "landlock", "none"]


class OptimizerSettings(TypedDict, total=False):
    """`[optimizer]`"""

    learning_rate: float
    schedule: Literal["constant", "linear", "cosine"]
    warmup_steps: int
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    max_gradient_norm: float
    states: Literal["float32", "int8"]


class ScaleSettings(TypedDict, total=False):
    """`[scale]`"""

    workers: int
    engines: int
    reward_workers: int
    reward_memory: float
    address: str
    max_staleness: int
    window: float
    offload: bool
    timeout: float


class EvalSettings(TypedDict, total=False):
    """`[eval]`"""

    source: str
    every: int
    stop_after: int
    prompts: int
    by: str


class ReportSettings(TypedDict, total=False):
    """`[report]`"""

    save: Literal["state", "weights"]
    save_every: int
    keep_checkpoints: int
    weights_dtype: Literal["training", "fp32", "bf16", "fp16"]
    samples_per_step: int
    tokens: int
    review_every: int
    review_count: int
    trackers: Sequence[str] | str
    tracker_settings: Mapping[str, Any]


class HealthSettings(TypedDict, total=False):
    """`[health]`"""

    on_problem: Mapping[str, Any]
    after_steps: int
    rate_factor: float


class BatchSettings(TypedDict, total=False):
    """`[batch]`"""

    prompts_per_step: int
    group_size: int
    updates_per_step: int
    epochs_per_batch: int
    staleness: int
    micro_batch_tokens: int
    routing_replay: Literal["none", "sampler", "trainer"]
    rows_per_step: int
    packed: bool


class CriticSettings(TypedDict, total=False):
    """`[critic]`"""

    trunk: Literal["own", "shared"]
    start: str
    learning_rate: float


class TeacherSettings(TypedDict, total=False):
    """`[teacher]`"""

    name: str
    device: str
    base_url: str
    model: str
    key_variable: str
    timeout: float
    concurrency: int
    temperature: float
    top_k: int
    top_of: Literal["teacher", "policy"]
    context: Literal["none", "sibling", "demonstration", "feedback"]
    template: str


class PreferenceSettings(TypedDict, total=False):
    """`[preference]`"""

    reference_logp: Literal["live", "stored"]
    store: str
    online: int
    labels: bool


class RewardModelSettings(TypedDict, total=False):
    """`[reward_model]`"""

    cost: Literal["all_pairs", "plackett_luce"]
    centre: float
    separator: str
    labels: str
    even_completions: bool
    positive_weight: float
    heads: int
    bootstrap: bool
    outcome_at: Literal["last_token", "every_token"]


class RunSettings(TypedDict, total=False):
    """Top-level keys of a run."""

    seed: int
    imports: Sequence[str] | str
    steps: int
    epochs: float
    hours: float
    folder: str
    sampling: SamplingSettings
    sandbox: SandboxSettings
    optimizer: OptimizerSettings
    scale: ScaleSettings
    eval: EvalSettings
    report: ReportSettings
    health: HealthSettings
    batch: BatchSettings
    critic: CriticSettings
    teacher: TeacherSettings
    objective: Mapping[str, Any]
    preference: PreferenceSettings
    reward_model: RewardModelSettings
