"""The sections of a config: every setting with its default, its bounds and one line that says what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from whet.data.source import DEFAULT_DIFFICULTY, DataSource, parse_source
from whet.reward.combine import Normalise, Over, part_description


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LoraSection(Section):
    rank: int = Field(0, ge=0, description="of the adapters that learn in place of the weights; 0 trains every weight")
    alpha: float = Field(32.0, gt=0, description="an adapter counts alpha / rank")
    target_modules: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), description="names of the linear layers that get one, such as q_proj,v_proj; empty: all"
    )

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if not self.rank and (self.alpha != 32.0 or self.target_modules):
            raise ValueError("alpha and target_modules have no effect at rank 0; give model.lora.rank, such as 16")
        return self


def _ranked(value: Any) -> Any:
    """`model.lora=16` is a rank, and so is what a further setting beside it leaves of that."""
    if isinstance(value, Mapping) and "kind" in value:
        return {**{key: each for key, each in value.items() if key != "kind"}, "rank": value["kind"]}
    if isinstance(value, bool):
        raise ValueError("give the rank of the adapters, such as 16; 0 is off")
    return value if isinstance(value, Mapping | LoraSection) else {"rank": value}


class ModelSection(Section):
    name: str = Field("whetstone", description="built-in name, local folder, .gguf file, smollm2 or hub id")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="of the matrix products; weights are fp32")
    recompute: Literal["auto", "none", "wide", "layers"] = Field(
        "auto", description="computed again in the backward pass instead of kept: the MLP's wide rows, whole layers"
    )
    threads: int = Field(0, ge=0, description="of the CPU; 0 takes every usable core, or one for a tiny model")
    reference: Literal["memory", "reload"] = Field(
        "memory", description="a second copy, or read from its source at every step"
    )
    lora: Annotated[LoraSection, BeforeValidator(_ranked)] = Field(
        LoraSection(), description="adapters instead of full training: model.lora=16 is a rank"
    )


class DataSection(Section):
    source: str = Field("task:arithmetic", description="task:NAME (or NAME+NAME), gym:NAME, a file, or hub:owner/name")
    difficulty: Annotated[tuple[int, ...], BeforeValidator(_listed)] = Field(
        DEFAULT_DIFFICULTY, description="of a task"
    )
    count: int = Field(4096, ge=1, description="questions a task writes for training")
    settings: dict[str, Any] = Field({}, description="of a gym dataset: its own, and level")
    limit: int = Field(0, ge=0, description="use only the first rows of a file; 0 is all")
    columns: dict[str, str] = Field({}, description="rename columns: your name = ours")
    as_chat: bool = Field(False, description="send a plain text prompt as a user message")
    unusable: Literal["stop", "drop"] = Field(
        "stop", description="a file's row that cannot be used is an error, or left out and counted"
    )

    @property
    def parsed_source(self) -> DataSource:
        """What `source` says: a task, a gym dataset, a file or a hub dataset."""
        return parse_source(self.source)


class PromptSection(DataSection):
    order: Literal["shuffled", "by_difficulty"] = Field(
        "shuffled", description="by_difficulty visits prompts whose completions all agreed less often"
    )


class DemonstrationSection(DataSection):
    share_worked: float = Field(1.0, ge=0, le=1, description="of a task's demonstrations that show their working")
    every_completion: bool = Field(False, description="learn earlier assistant turns of a conversation too")


class SamplingSection(Section):
    max_new_tokens: int = Field(256, ge=1, description="the generation budget of a completion")
    temperature: float = Field(1.0, ge=0, description="0 is greedy: for evaluation only")
    top_p: float = Field(1.0, gt=0, le=1, description="1 is off")
    top_k: int = Field(0, ge=0, description="0 is off")
    min_p: float = Field(0.0, ge=0, lt=1, description="0 is off")
    stop: tuple[str, ...] = Field((), description="texts that end a completion")
    engine: str = Field("torch", description="what writes the completions: torch, or an engine that was registered")


class RewardPartSection(Section):
    """`whet.reward.RewardPart` as a config file writes it: a gate's and a schedule's own settings stand beside them."""

    reward: str = Field(description=part_description("reward"))
    weight: float | tuple[tuple[float, float], ...] = Field(1.0, description=part_description("weight"))
    over: Over = Field("share", description="positions: shares of the training, or steps")
    settings: dict[str, Any] = Field({}, description=part_description("settings"))
    gate: str = Field("", description=part_description("gate"))
    gate_least: float = Field(1.0, description="the score that passes the gate")
    gate_otherwise: float = Field(0.0, description="what counts where the gate is shut")
    cap: tuple[float, ...] = Field((), description=part_description("cap"))
    normalise: Normalise = Field("off", description=part_description("normalise"))
    penalty: bool = Field(False, description=part_description("penalty"))


class RewardSection(Section):
    parts: tuple[RewardPartSection, ...] = Field(
        (), description="named rewards and their weights; empty: the task's own"
    )
    template: str = Field("", description="ready parts instead: math, code, retrieval or agent")
    format_first: float = Field(
        0.0, ge=0, le=1, description="of a template: the format counts more until this share of the training"
    )
    defences: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), description="against hacking, by name: `whet reward list`"
    )
    defence_weight: float = Field(0.5, gt=0, description="of each defence, a penalty")
    defences_as_gates: bool = Field(False, description="a guilty completion's first part counts nothing, instead")
    timeout: float = Field(10.0, gt=0, description="seconds a call may take")
    on_error: Literal["tolerate", "stop", "exclude"] = Field(
        "tolerate",
        description="a failing reward drops the sample, and stops the run: where it fails often, always, never",
    )
    most_failures: float = Field(
        0.05, gt=0, le=1, description="tolerated share of failures among the last 200 samples, 50 at least"
    )
    ledger: str = Field("", description="file that remembers reward changes; empty: rewards.jsonl beside the run")


class BatchSection(Section):
    prompts_per_step: int = Field(8, ge=1, description="prompts per step")
    group_size: int = Field(8, ge=1, description="completions per prompt")
    updates_per_step: int = Field(1, ge=1, description="optimizer updates per pass over the collected batch")
    epochs_per_batch: int = Field(1, ge=1, description="passes over the collected batch")
    staleness: int = Field(
        0, ge=0, description="policy versions that completions are behind, as with an asynchronous sampler"
    )
    micro_batch_tokens: int = Field(16384, ge=1, description="memory only: never changes the gradient")


class RowsSection(Section):
    rows_per_step: int = Field(32, ge=1, description="demonstrations, pairs or completions per optimizer step")
    micro_batch_tokens: int = Field(16384, ge=1, description="memory only: never changes the gradient")
    packed: bool = Field(True, description="rows behind one another where the model can keep them apart, else padded")


class PreferenceSection(Section):
    reference_logp: Literal["live", "stored"] = Field(
        "live", description="the reference is asked in every step, or once before the first: no second copy is kept"
    )
    store: str = Field("", description="file for what the reference said; empty: in memory only")
    online: int = Field(
        0,
        ge=0,
        description="completions per prompt that the policy writes in every step: the best and the worst are a pair",
    )
    labels: bool = Field(False, description="of a task: single completions with labels instead of pairs")


class RewardModelSection(Section):
    cost: Literal["all_pairs", "plackett_luce"] = Field("all_pairs", description="of a ranking")
    centre: float = Field(0.0, ge=0, description="keeps scores around 0; 0.01 is usual")
    separator: str = Field(
        "", description="ends a step of a solution; empty: the data's own (; in a task), else an empty line"
    )
    labels: str = Field("labels", description="column of the steps' labels; shares: the soft ones of a labelled file")
    even_completions: bool = Field(False, description="a solution of many steps counts as much as one of few")
    positive_weight: float = Field(1.0, gt=0, description="of right labels: above 1 where they are rare")
    heads: int = Field(1, ge=1, le=64, description="members of an ensemble on one trunk")
    bootstrap: bool = Field(True, description="each head learns from its own draw of the rows, with replacement")
    outcome_at: Literal["last_token", "every_token"] = Field(
        "last_token", description="which tokens of a completion learn its outcome; it is scored at the last"
    )


class OptimizerSection(Section):
    learning_rate: float = Field(1e-6, gt=0, description="at the top of the schedule")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="after the warm-up")
    warmup_steps: int = Field(0, ge=0, description="steps of linear rise")
    weight_decay: float = Field(0.0, ge=0, description="on matrices only")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the mean gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of the mean squared gradient")
    epsilon: float = Field(1e-8, gt=0, description="floor of the divisor")
    max_gradient_norm: float = Field(1.0, gt=0, description="longer gradients are shortened to it")


class CriticSection(Section):
    trunk: Literal["own", "shared"] = Field("own", description="a trunk of its own, or a head on the policy's")
    start: str = Field("", description="folder of a reward model (one label) to start from; empty: the policy")
    learning_rate: float = Field(0.0, ge=0, description="0: the policy's")


class ScorerChoice(Section):
    reward: str = Field(description="run or checkpoint of a reward model, or a reward by name, as in reward.parts")
    settings: dict[str, Any] = Field({}, description="of the reward itself, by name")


class RerankSection(Section):
    scorers: tuple[ScorerChoice, ...] = Field((), description="who chooses among the completions; --rerank names them")
    settings: dict[str, Any] = Field({}, description="of the scorer, where there is one only")
    search: Literal["none", "steps"] = Field("none", description="search step by step, by the scores of the steps")
    beams: int = Field(4, ge=1, description="partial completions a search keeps after each step")
    branches: int = Field(4, ge=1, description="continuations of each that a search draws")
    separator: str = Field("", description="ends a step in a search; empty: as the scorer has it")


class EvalSection(Section):
    source: str = Field("", description="file or hub dataset to evaluate on; a task and a gym dataset bring their own")
    every: int = Field(10, ge=0, description="steps between evaluations; 0: only before and after training")
    prompts: int = Field(200, ge=0, description="eval prompts; 0 switches evaluation off")


class ReportSection(Section):
    save_every: int = Field(10, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=1, description="older ones are removed")
    samples_per_step: int = Field(1, ge=0, description="groups of each step written to samples.jsonl")
    review_every: int = Field(100, ge=0, description="steps between two samplings for review; 0 is off")
    review_count: int = Field(20, ge=1, description="of the best and of the worst completions, each time")
