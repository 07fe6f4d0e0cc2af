"""Settings of training: batches, the optimizer, what is trained beside the policy, several processes, evaluation."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from whet.settings.bounds import COLDEST, MOST_ROWS, MOST_STEPS, MOST_WEIGHT
from whet.settings.sections import Section, Table

LEAST_PASS, MOST_PASS = 16384, 65536  # tokens
PASS_SHARE = 0.25  # of a GPU's memory, for what a pass keeps for its backward pass
KEPT = 8  # numbers that a written-out layer keeps of a token per unit of its width, its wide rows computed again
PASS_WORDS = (
    "tokens per forward and backward pass: affects memory, never the gradient; 0: 16384, and up to 65536 where a "
    "quarter of the GPU's memory holds them"
)


def pass_tokens(asked: int, width: int, layers: int, memory: float, number_bytes: int = 2) -> int:
    """Tokens per pass: as asked for, or the power of two that a GPU with so many bytes has room for; 0 for no GPU."""
    bytes_per_token = KEPT * number_bytes * width * layers
    roomy = [size for size in (LEAST_PASS << 1, MOST_PASS) if memory and size * bytes_per_token <= PASS_SHARE * memory]
    return asked or max(roomy, default=LEAST_PASS)


class BatchSection(Section):
    """How many completions a step draws, and how they are divided into updates."""

    prompts_per_step: int = Field(8, ge=1, le=65536, description="prompts per step")
    group_size: int = Field(8, ge=1, le=65536, description="completions per prompt")
    updates_per_step: int = Field(
        1, ge=1, le=MOST_ROWS, description="optimizer updates per epoch over the step's batch"
    )
    epochs_per_batch: int = Field(1, ge=1, le=1000, description="epochs over the step's batch")
    staleness: int = Field(
        0, ge=0, le=1000, description="how many policy versions completions lie behind, as with an asynchronous sampler"
    )
    micro_batch_tokens: int = Field(0, ge=0, le=2**40, description=PASS_WORDS)
    routing_replay: Literal["none", "sampler", "trainer"] = Field(
        "none",
        description="mixtures of experts: training uses the experts that the sampler chose (R3), or that the trainer "
        "chose before the first update (R2)",
    )


class RowsSection(Section):
    """How many rows a step trains on."""

    rows_per_step: int = Field(
        32, ge=1, le=MOST_ROWS, description="demonstrations, pairs or completions per optimizer step"
    )
    micro_batch_tokens: int = Field(0, ge=0, le=2**40, description=PASS_WORDS)
    packed: bool = Field(True, description="pack rows one after another if the model can keep them apart; else pad")


class OptimizerSection(Section):
    """The optimizer and the schedule of its learning rate."""

    learning_rate: float = Field(
        1e-6,
        gt=0,
        le=1e30,
        description="peak learning rate; the default depends on the method, the model's width and LoRA",
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


class PreferenceSection(Section):
    """Settings of methods that train on preference pairs."""

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
    """Settings of a reward model's training."""

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


class CriticSection(Section):
    """The critic of methods that learn a value function."""

    trunk: Literal["own", "shared"] = Field("own", description="its own trunk, or a head on the policy's")
    start: str = Field(
        "", description="reward model to start from: its run, or a folder with a model of one label; empty: the policy"
    )
    learning_rate: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="learning rate of the critic; the default depends on the model too; 0: the policy's",
    )


class TeacherSection(Section):
    """The teacher the policy learns from, in methods that have one."""

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
        description="policy versions that completions may lie behind; above 0 they are written ahead",
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


class EvalSection(Section):
    """What the model is evaluated on, and how often."""

    source: str = Field("", description="file or hub dataset to evaluate on; tasks and gym datasets have their own")
    every: int = Field(
        10,
        ge=0,
        le=MOST_STEPS,
        description="steps between evaluations; 0: only before and after training; by default 10, or more where a run "
        "is long: so many that evaluated completions are a twentieth of those trained on, or a quarter of the steps",
    )
    stop_after: int = Field(
        0,
        ge=0,
        le=MOST_STEPS,
        description="evaluations in a row without a new best beyond noise after which the run ends, finished; 0: off",
    )
    prompts: int = Field(
        200,
        ge=0,
        le=MOST_ROWS,
        description="prompts or rows per evaluation, evenly spread over a file; 0 switches evaluation off",
    )
    by: str = Field("", description="column of the eval rows; each of its values gets a metric of its own")


class ScorerChoice(Section):
    """One reward that chooses among completions."""

    reward: str = Field(description="run or checkpoint of a reward model, or a reward by name, as in reward.parts")
    settings: Table = Field({}, description="settings of the reward, by name")


class RerankSection(Section):
    """How an evaluation chooses among several completions of a prompt."""

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
