"""The sections of a config: every setting with its default, its bounds and one line that says what it is.

Every number has a least and a most, both finite: a test walks all sections. The bounds are wide; they are there for
slips of the hand, which would otherwise never end or end in an error that nobody understands.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from whet.data.source import DEFAULT_DIFFICULTY, DataSource, parse_source
from whet.reward.combine import Normalise, Over, Rows, part_description
from whet.settings.bounds import COLDEST, LEAST_NUMBER, MOST_NUMBER, MOST_ROWS, MOST_STEPS, MOST_TOKENS, MOST_WEIGHT
from whet.settings.hostile import leaves, shown

Weight = Annotated[float, Field(ge=-MOST_WEIGHT, le=MOST_WEIGHT)]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


def _warm(value: float) -> float:
    if 0 < value < COLDEST:
        raise ValueError(f"give {COLDEST} or more, or 0 for greedy completions")
    return value


Temperature = Annotated[float, Field(ge=0, le=1000), AfterValidator(_warm)]


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """A table of free keys can be written to config.toml, and its numbers are numbers."""
    for path, value in leaves(values):
        if not isinstance(value, bool | int | float | str | date | time):
            raise ValueError(f"{path} is {shown(value)}; give text, a number, true, false, a list or a table")
    return values


def _objective_numbers(values: dict[str, Any]) -> dict[str, Any]:
    for path, value in leaves(_plain(values)):
        if isinstance(value, int | float) and value and not LEAST_NUMBER <= abs(value) <= MOST_NUMBER:
            raise ValueError(f"{path} is {shown(value)}; give 0 or a number from {LEAST_NUMBER:g} to {MOST_NUMBER:g}")
    return values


Table = Annotated[dict[str, Any], AfterValidator(_plain)]  # keys that somebody else reads
ObjectiveChanges = Annotated[dict[str, Any], AfterValidator(_objective_numbers)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_truths(cls, values: Any) -> Any:
        """`batch.group_size=true` would be read as 1."""
        for name, value in values.items() if isinstance(values, Mapping) else ():
            field = cls.model_fields.get(str(name))
            if field is not None and _holds_truth(value) and is_number(field.annotation):
                raise ValueError(f"{name} is {str(value).lower()}; give a number")
        return values


def _holds_truth(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(_holds_truth, value)))


def is_number(annotation: Any) -> bool:
    """True for a type that is a number, or holds numbers, and nothing that may be true or false."""
    inner = [each for each in get_args(annotation) if each is not Ellipsis]
    if get_origin(annotation) is Annotated:
        return is_number(inner[0])
    return any(map(is_number, inner)) if inner else annotation in (int, float)


class LoraSection(Section):
    rank: int = Field(0, ge=0, le=65536, description="rank of the LoRA adapters; 0 trains every weight")
    alpha: float = Field(32.0, ge=1e-6, le=MOST_WEIGHT, description="an adapter is scaled by alpha / rank")
    target_modules: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
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
        return {**{key: each for key, each in value.items() if key != "kind"}, "rank": value["kind"]}
    if isinstance(value, bool):
        raise ValueError("give the rank of the adapters, such as 16; 0 is off")
    return value if isinstance(value, Mapping | LoraSection) else {"rank": value}


class ModelSection(Section):
    name: str = Field("whetstone", description="built-in name, local folder, .gguf file, smollm2 or hub id")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="precision of the matrix products; weights are kept as model.weights says"
    )
    weights: Literal["float32", "bfloat16"] = Field(
        "float32", description="how weights are kept and trained; bfloat16 is a sixth of the memory, rounded at random"
    )
    recompute: Literal["auto", "none", "wide", "layers"] = Field(
        "auto",
        description="what the backward pass recomputes to save memory: the MLP's wide activations, or whole layers",
    )
    threads: int = Field(0, ge=0, le=4096, description="CPU threads; 0: every usable core, or one for a tiny model")
    reference: Literal["memory", "reload"] = Field(
        "memory", description="keep the reference in memory, or read it from its source at every step"
    )
    lora: Annotated[LoraSection, BeforeValidator(_ranked)] = Field(
        LoraSection(), description="LoRA adapters instead of full training; model.lora=16 sets the rank"
    )


class DataSection(Section):
    source: str = Field(
        "task:arithmetic",
        description="task:NAME (or NAME+NAME), gym:NAME, seeds:COUNT, a file, or hub:owner/name",
    )
    difficulty: Annotated[tuple[Annotated[int, Field(ge=0, le=1000)], ...], BeforeValidator(_listed)] = Field(
        DEFAULT_DIFFICULTY, min_length=1, max_length=100, description="difficulty of a task; several are mixed evenly"
    )
    count: int = Field(4096, ge=1, le=MOST_ROWS, description="questions a task generates for training")
    settings: Table = Field({}, description="settings of a gym dataset, and its level")
    limit: int = Field(0, ge=0, le=10**12, description="use only the first rows of a file; 0: all")
    columns: dict[str, str] = Field({}, description="rename columns: your name = whet's name")
    as_chat: bool = Field(False, description="send a plain text prompt as a user message")
    unusable: Literal["stop", "drop"] = Field(
        "stop", description="rows that cannot be used: stop with an error, or drop and count them"
    )

    @property
    def parsed_source(self) -> DataSource:
        """What `source` says: a task, a gym dataset, a file or a hub dataset."""
        return parse_source(self.source)


class PromptSection(DataSection):
    order: Literal["shuffled", "by_difficulty"] = Field(
        "shuffled",
        description="order of the prompts; by_difficulty visits those whose completions all agree less often",
    )


class DemonstrationSection(DataSection):
    share_worked: float = Field(1.0, ge=0, le=1, description="share of a task's demonstrations that show their working")
    every_completion: bool = Field(False, description="also learn the earlier assistant turns of a conversation")


class SamplingSection(Section):
    max_new_tokens: int = Field(256, ge=1, le=MOST_TOKENS, description="longest completion, in tokens")
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


class RewardPartSection(Section):
    """`whet.reward.RewardPart` as a config file writes it: a gate's and a schedule's own settings stand beside them."""

    reward: str = Field(description=part_description("reward"))
    weight: Weight | tuple[tuple[Annotated[float, Field(ge=0, le=MOST_STEPS)], Weight], ...] = Field(
        1.0, description=part_description("weight")
    )
    over: Over = Field("share", description="unit of the positions: shares of the training, or steps")
    settings: Table = Field({}, description=part_description("settings"))
    gate: str = Field("", description=part_description("gate"))
    gate_least: Weight = Field(1.0, description="lowest score that passes the gate")
    gate_otherwise: Weight = Field(0.0, description="score where the gate does not pass")
    cap: tuple[Weight, ...] = Field((), max_length=2, description=part_description("cap"))
    normalise: Normalise = Field("off", description=part_description("normalise"))
    penalty: bool = Field(False, description=part_description("penalty"))
    rows: Rows = Field("all", description=part_description("rows"))


class RewardSection(Section):
    parts: tuple[RewardPartSection, ...] = Field(
        (), description="rewards and their weights; empty: the task's own reward"
    )
    template: str = Field("", description="a ready-made set of parts instead: math, code, retrieval or agent")
    format_first: float = Field(
        0.0, ge=0, le=1, description="with a template: the format counts more until this share of the training"
    )
    defences: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), description="defences against reward hacking; `whet reward list` names them"
    )
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
    require: Literal["any", "namespaces", "landlock", "none"] = Field(
        "any",
        description="isolation without which no model-written code runs: namespaces, landlock, any (the strongest this "
        "machine gives, never none), or none, which lets code read, write and delete this user's files",
    )


class EnvSection(Section):
    name: str = Field(
        "", description="environment of an episode: a registered name or file.py:Class; empty: one completion, or tools"
    )
    settings: Table = Field({}, description="settings of the environment, by name")
    tools: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (),
        max_length=1000,
        description="tools to call: calculator, python, search, file.py:function, mcp:COMMAND",
    )
    tool_settings: Table = Field({}, description="settings of tools, by tool and name")
    sandboxed: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), max_length=1000, description="names of tools that run in the sandbox instead of this process"
    )
    call_format: Literal["auto", "template", "json", "python"] = Field(
        "auto",
        description="how calls are written: as the chat template does, JSON in tags, name(argument=value) in tags",
    )
    instructions: bool = Field(
        True, description="tell the model of its tools in the system message, where its chat template does not"
    )
    agent: str = Field("", description="a program that plays the episodes itself and speaks to an OpenAI endpoint")
    at_once: int = Field(16, ge=1, le=1024, description="programs of an agent that run side by side")
    history: Literal["template", "sampled"] = Field(
        "template",
        description="earlier turns: a template that rewrites them is refused, or they stay as they were sampled",
    )
    max_turns: int = Field(8, ge=1, le=10000, description="most turns of the policy in an episode")
    max_tokens: int = Field(
        0,
        ge=0,
        le=MOST_TOKENS,
        description="most tokens of an episode behind its prompt; 0: twice its turns' budget",
    )
    tool_seconds: float = Field(10.0, ge=0.001, le=86400, description="time limit of one tool call, in seconds")
    step_seconds: float = Field(60.0, ge=0.001, le=86400, description="time limit of one answer, in seconds")
    seconds: float = Field(600.0, ge=0.001, le=864000, description="time limit of an episode, in seconds")

    @property
    def is_single(self) -> bool:
        """True where an episode is one completion."""
        return not (self.name or self.tools or self.agent)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.agent and (self.name or self.tools):
            raise ValueError("agent plays the episodes itself; drop name and tools, or agent")
        if self.is_single:
            plain = type(self).model_fields
            changed = [key for key in plain if getattr(self, key) != plain[key].default]
            if changed:
                raise ValueError(
                    f"{changed[0]} has no effect without an environment; give env.name, env.tools or env.agent"
                )
        if self.at_once != type(self).model_fields["at_once"].default and not self.agent:
            raise ValueError("at_once has no effect without agent; give the command of a program, or drop it")
        if self.settings and not self.name:
            raise ValueError("settings has no effect without name; for tools give tool_settings")
        for key in ("tool_settings", "sandboxed"):
            if getattr(self, key) and not self.tools:
                raise ValueError(f"{key} has no effect without tools; name some")
        return self


class BatchSection(Section):
    prompts_per_step: int = Field(8, ge=1, le=65536, description="prompts per step")
    group_size: int = Field(8, ge=1, le=65536, description="completions per prompt")
    updates_per_step: int = Field(
        1, ge=1, le=MOST_ROWS, description="optimizer updates per epoch over the step's batch"
    )
    epochs_per_batch: int = Field(1, ge=1, le=1000, description="epochs over the step's batch")
    staleness: int = Field(
        0, ge=0, le=1000, description="how many policy versions completions lie behind, as with an asynchronous sampler"
    )
    micro_batch_tokens: int = Field(
        16384, ge=1, le=2**40, description="tokens per forward and backward pass: affects memory, never the gradient"
    )
    routing_replay: Literal["none", "sampler", "trainer"] = Field(
        "none",
        description="mixtures of experts: training uses the experts that the sampler chose (R3), or that the trainer "
        "chose before the first update (R2)",
    )


class RowsSection(Section):
    rows_per_step: int = Field(
        32, ge=1, le=MOST_ROWS, description="demonstrations, pairs or completions per optimizer step"
    )
    micro_batch_tokens: int = Field(
        16384, ge=1, le=2**40, description="tokens per forward and backward pass: affects memory, never the gradient"
    )
    packed: bool = Field(True, description="pack rows one after another if the model can keep them apart; else pad")


class PreferenceSection(Section):
    reference_logp: Literal["live", "stored"] = Field(
        "live",
        description="evaluate the reference in every step, or once before the first step, which keeps no copy of it",
    )
    store: str = Field("", description="file for stored reference log-probabilities; empty: memory only")
    online: int = Field(
        0,
        ge=0,
        le=1024,
        description="completions per prompt drawn in every step; the best and the worst form a pair; 0: off",
    )
    labels: bool = Field(False, description="for a task: single completions with labels instead of pairs")


class RewardModelSection(Section):
    cost: Literal["all_pairs", "plackett_luce"] = Field("all_pairs", description="loss of a ranking")
    centre: float = Field(
        0.0, ge=0, le=MOST_WEIGHT, description="weight of a term that keeps scores around 0; 0.01 is usual"
    )
    separator: str = Field(
        "", description="text that ends a step of a solution; empty: the data's own (; in a task), else an empty line"
    )
    labels: str = Field(
        "labels", description="column with the labels of the steps; shares: the soft labels of `whet label steps`"
    )
    even_completions: bool = Field(False, description="every solution counts the same, whatever its number of steps")
    positive_weight: float = Field(
        1.0, ge=1e-6, le=MOST_WEIGHT, description="weight of positive labels; above 1 where they are rare"
    )
    heads: int = Field(1, ge=1, le=64, description="heads on one trunk, each a member of an ensemble")
    bootstrap: bool = Field(True, description="each head learns from its own bootstrap sample of the rows")
    outcome_at: Literal["last_token", "every_token"] = Field(
        "last_token", description="tokens that learn the outcome of a completion; it is always scored at the last"
    )


class OptimizerSection(Section):
    learning_rate: float = Field(
        1e-6,
        gt=0,
        le=1e30,
        description="peak learning rate; the default depends on the kind of training, the model and LoRA",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="learning rate after the warm-up")
    warmup_steps: int = Field(
        0, ge=0, le=MOST_STEPS, description="steps of linear warm-up; 10 by default in RL on a real model"
    )
    weight_decay: float = Field(0.0, ge=0, le=1000, description="applied to matrices only")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the gradient's running mean")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of the squared gradient's running mean")
    epsilon: float = Field(1e-8, ge=1e-30, le=1, description="AdamW's epsilon")
    max_gradient_norm: float = Field(1.0, ge=1e-12, le=1e12, description="gradients are clipped to this norm")
    states: Literal["float32", "int8"] = Field(
        "float32", description="how AdamW's two moments are kept; int8 is a quarter of their memory"
    )


class ScaleSection(Section):
    """More than one process. Without it a run is one process on one device."""

    workers: int = Field(
        1, ge=1, le=65536, description="trainer ranks that Ray starts, each with a shard of the model; 1: this process"
    )
    engines: int = Field(
        0, ge=0, le=65536, description="engines in processes of their own; 0: each trainer rank writes completions"
    )
    reward_workers: int = Field(
        0, ge=0, le=65536, description="processes that score completions; 0: the trainer ranks do"
    )
    reward_memory: float = Field(
        4.0, ge=0.25, le=65536, description="GiB that a reward worker may hold; one that holds more is started again"
    )
    address: str = Field("", description="Ray cluster: auto, or host:port; empty: one that the run starts and ends")
    max_staleness: int = Field(
        0,
        ge=0,
        le=1000,
        description="policy versions that completions may lie behind, with engines of their own; 0: each step waits",
    )
    window: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of the groups in flight that may be trained on before a slower, older one",
    )
    offload: bool = Field(False, description="keep the shards and the optimizer's state in CPU memory")
    timeout: float = Field(
        600.0, ge=1, le=86400, description="seconds without an answer after which a rank or an engine counts as lost"
    )

    @property
    def uses_ray(self) -> bool:
        """True where the run starts processes through Ray."""
        return self.workers > 1 or self.engines > 0 or self.reward_workers > 0


class CriticSection(Section):
    trunk: Literal["own", "shared"] = Field("own", description="its own trunk, or a head on the policy's")
    start: str = Field("", description="reward model (one label) to start from; empty: the policy")
    learning_rate: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="learning rate of the critic; the default depends on the model too; 0: the policy's",
    )


class TeacherSection(Section):
    """Whom the policy learns from, where the method learns from a teacher."""

    name: str = Field("", description="the teacher: a model as in model.name, a run folder, or self: the policy")
    device: str = Field("", description="where the teacher computes; empty: on the policy's device")
    base_url: str = Field(
        "",
        description="instead of name: a server that gives log-probabilities of given tokens, http://localhost:8000/v1",
    )
    model: str = Field("", description="what the server calls the teacher; empty: the only one it has")
    key_variable: str = Field("", description="environment variable with the server's key; empty: it wants none")
    timeout: float = Field(600.0, ge=0.001, le=86400, description="seconds of one call to the server")
    concurrency: int = Field(16, ge=1, le=1000, description="calls to the server at a time")
    temperature: float = Field(1.0, ge=COLDEST, le=1000, description="the teacher's logits are divided by this")
    top_k: int = Field(
        0, ge=0, le=65536, description="tokens that whole distributions are compared on, and the rest; 0: all of them"
    )
    top_of: Literal["teacher", "policy"] = Field("teacher", description="whose likeliest tokens those are")
    context: Literal["none", "sibling", "demonstration", "feedback"] = Field(
        "none",
        description="what the teacher reads besides the prompt: a right sibling, or a column of the row",
    )
    template: str = Field("", description="how it is written, with {prompt} and {text}; empty: as the papers do")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.name and self.base_url:
            raise ValueError("name and base_url are two teachers; give one of them")
        fields = type(self).model_fields
        if self.template and self.context == "none":
            raise ValueError("template has no effect without context; give sibling, demonstration or feedback")
        if self.template and ("{prompt}" not in self.template or "{text}" not in self.template):
            raise ValueError("template lacks {prompt} or {text}; write both where they belong")
        if self.name == "self" and self.device:
            raise ValueError("device has no effect on name=self: the teacher is the policy; drop it")
        if not self.base_url:
            for key in ("model", "key_variable", "timeout", "concurrency"):
                if getattr(self, key) != fields[key].default:
                    raise ValueError(f"{key} is of a server and has no effect without base_url; drop it")
        elif self.device:
            raise ValueError("device has no effect on a server, which computes where it is; drop it")
        elif self.top_of == "policy":
            raise ValueError("top_of=policy: a server names its own likeliest tokens only; drop it, or give name")
        elif self.temperature != 1:
            raise ValueError("temperature: a server gives log-probabilities at temperature 1; drop it, or give name")
        return self


class ScorerChoice(Section):
    reward: str = Field(description="run or checkpoint of a reward model, or a reward by name, as in reward.parts")
    settings: Table = Field({}, description="settings of the reward, by name")


class RerankSection(Section):
    scorers: tuple[ScorerChoice, ...] = Field(
        (), description="rewards that choose among the completions, as named by --rerank"
    )
    settings: Table = Field({}, description="settings of the scorer, if there is only one")
    search: Literal["none", "steps"] = Field(
        "none", description="search step by step, guided by the scores of the steps"
    )
    beams: int = Field(4, ge=1, le=4096, description="partial completions a search keeps after each step")
    branches: int = Field(4, ge=1, le=4096, description="continuations that a search draws for each")
    separator: str = Field("", description="text that ends a step in a search; empty: the scorer's own")


class EvalSection(Section):
    source: str = Field("", description="file or hub dataset to evaluate on; tasks and gym datasets have their own")
    every: int = Field(
        10, ge=0, le=MOST_STEPS, description="steps between evaluations; 0: only before and after training"
    )
    prompts: int = Field(200, ge=0, le=MOST_ROWS, description="prompts per evaluation; 0 switches evaluation off")
    by: str = Field("", description="column of the eval rows; each of its values gets a metric of its own")


class HealthSection(Section):
    on_problem: dict[str, Literal["stop", "checkpoint", "lower_rate"]] = Field(
        {},
        description="what to do about a problem, by the name of its rule (docs/doctor.md): KL_runaway = lower_rate",
    )
    after_steps: int = Field(
        3, ge=1, le=MOST_STEPS, description="consecutive steps in which the problem must hold before that is done"
    )
    rate_factor: float = Field(
        0.5, ge=0.001, le=0.999, description="lower_rate multiplies the learning rate with this, each time"
    )

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if not self.on_problem and (self.after_steps != 3 or self.rate_factor != 0.5):
            raise ValueError(
                "after_steps and rate_factor have no effect without health.on_problem; give it, or drop them"
            )
        if self.rate_factor != 0.5 and "lower_rate" not in self.on_problem.values():
            raise ValueError("rate_factor has no effect: no problem in health.on_problem lowers the rate; drop it")
        return self


class ReportSection(Section):
    save_every: int = Field(10, ge=1, le=MOST_STEPS, description="steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=1, le=MOST_STEPS, description="checkpoints to keep; older ones are deleted")
    samples_per_step: int = Field(1, ge=0, le=MOST_ROWS, description="groups per step written to samples.jsonl")
    tokens: int = Field(
        4096,
        ge=0,
        le=MOST_TOKENS,
        description="tokens per step of those samples whose advantage, weight and log-probs go to tokens.jsonl; 0: off",
    )
    review_every: int = Field(100, ge=0, le=MOST_STEPS, description="steps between two selections for review; 0: off")
    review_count: int = Field(20, ge=1, le=MOST_ROWS, description="best and worst completions to select, each")
    trackers: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), description="services that follow the run: trackio, tensorboard, wandb, mlflow, or registered ones"
    )
    tracker_settings: Table = Field(
        default_factory=dict, description="settings by tracker, e.g. report.tracker_settings.wandb.mode=online"
    )
