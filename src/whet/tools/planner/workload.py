"""What a run asks of its devices, in plain numbers: the input of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.record.speed import RolloutShape
from whet.tools.planner.shapes import ModelShape
from whet.types import WhetError

Recompute = Literal["none", "wide", "layers"]
REFERENCES = frozenset(("ref_logp", "divergence"))  # needs of an objective that a reference answers


@dataclass(frozen=True)
class Workload:
    """One run. Rows without completions of their own (demonstrations) count as prompts of a group of one."""

    shape: ModelShape
    method: str = ""
    needs: frozenset[str] = frozenset()  # of the method's objective
    prompt_tokens: int = 512
    completion_tokens: int = 512  # the longest
    prompts_per_step: int = 8
    group_size: int = 8  # rows that share a prompt: completions, or chosen and rejected
    micro_batch_tokens: int = 16384
    updates: int = 1  # optimizer updates per step
    epochs: int = 1  # passes over the rows of a step
    samples: bool = True  # completions are written, in training or in evaluation
    draws: bool = True  # in every step
    eval_prompts: int = 0
    full_rows: bool = False  # every completion takes its whole budget; else passes fill up to micro_batch_tokens
    has_head: bool = True  # log-probabilities are trained on; a reward model has a head of one number
    compute: Literal["bf16", "fp32"] = "bf16"  # of the products
    recompute: Recompute = "wide"
    weights: Literal["float32", "bfloat16"] = "float32"  # as they are kept and learn
    moments: Literal["float32", "int8"] = "float32"  # of AdamW
    lora_rank: int = 0
    base: Literal["float32", "bfloat16", "4bit"] = "bfloat16"  # that adapters stand on
    reference: Literal["memory", "reload", "stored"] = "memory"
    critic: Literal["own", "shared"] = "own"
    critic_recompute: Recompute | None = None  # of a trunk of its own; None: as the policy's
    reward_model: ModelShape | None = None
    teacher: ModelShape | None = None  # on the policy's device
    own_teacher: bool = False  # the reference teaches
    ranks: int = 1  # that each hold a shard and write their share of the completions
    engines: int = 0  # devices that only write; 0: the ranks do
    offload: bool = False  # shards and moments in CPU memory
    on_cpu: bool = False

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "completion_tokens", "prompts_per_step", "group_size", "micro_batch_tokens"):
            if getattr(self, name) < 1:
                raise WhetError(f"{name} is {getattr(self, name)}; give 1 or more")
        longest, context = self.prompt_tokens + self.completion_tokens, self.shape.context
        if context and longest > context:
            raise WhetError(
                f"{self.prompt_tokens} prompt tokens and {self.completion_tokens} of a completion exceed the context "
                f"of {context} that {self.shape.name} has; give fewer"
            )

    @property
    def rollout(self) -> RolloutShape:
        """The rollout of a step as `whet bench` times it."""
        return RolloutShape(self.prompts_per_step, self.group_size, self.prompt_tokens, self.completion_tokens)

    @property
    def needs_reference(self) -> bool:
        """Whether log-probs of a frozen policy are needed."""
        return self.own_teacher or bool(REFERENCES & self.needs)

    @property
    def has_critic(self) -> bool:
        """Whether the method learns values."""
        return "value" in self.needs

    @property
    def prompts_per_rank(self) -> int:
        """Prompts of a step on the fullest rank."""
        return -(-self.prompts_per_step // self.ranks)

    @property
    def update_rows(self) -> tuple[int, int]:
        """Prompts and completions of a rank's part of an update. Several updates share a shuffle of the step's rows, in
        which few rows of an update have the same prompt."""
        per_epoch = max(1, self.updates // self.epochs)
        if per_epoch == 1:
            return self.prompts_per_rank, self.prompts_per_rank * self.group_size
        rows = -(-self.prompts_per_step * self.group_size // per_epoch)
        return -(-min(self.prompts_per_step, rows) // self.ranks), -(-rows // self.ranks)

    @property
    def passes(self) -> tuple[int, int]:
        """Tokens of the largest pass of an update, and of the largest that comes after another one, when gradients are
        there already; 0: none does."""
        return self._cut(*self.update_rows)

    @property
    def pass_tokens(self) -> int:
        """Tokens of the largest pass with a gradient."""
        return self.passes[0]

    @property
    def score_tokens(self) -> int:
        """Tokens of the largest pass without a gradient, over the rows of a step as they came."""
        return self._cut(self.prompts_per_rank, self.prompts_per_rank * self.group_size)[0]

    def actions(self, tokens: int, prompts: int, rows: int) -> int:
        """How many of a pass's tokens reach the vocabulary head."""
        own = rows * self.completion_tokens
        return max(1, round(tokens * own / (prompts * self.prompt_tokens + own)))

    def _cut(self, prompts: int, rows: int) -> tuple[int, int]:
        """As `passes`, of so many completions; those that share a prompt stay together where they fit."""
        own = max(self.completion_tokens - 1, 0)  # nothing is predicted from a row's last token
        most, prompt = self.micro_batch_tokens, self.prompt_tokens
        every = prompts * prompt + rows * own
        if not self.full_rows:
            first = min(every, max(most, prompt + own))
            return first, min(first, every - first)
        family = -(-rows // prompts)
        fitting = family if prompt + family * own <= most else min(family, max(1, (most - prompt) // max(own, 1)))
        block, blocks = prompt + fitting * own, prompts * -(-family // fitting)
        at_once = max(1, min(blocks, most // block))
        return min(every, block * at_once), min(every, block * min(at_once, blocks - at_once))

    @property
    def matrix_type(self) -> Literal["float32", "bfloat16", "4bit"]:
        """How matrices are kept: as the base of adapters, or as they learn."""
        return self.base if self.lora_rank else self.weights

    @property
    def trained_weights(self) -> int:
        """That learn, of the policy."""
        if self.lora_rank:
            return self.shape.adapter_weights(self.lora_rank)
        unused = 0 if self.has_head or self.shape.tied else self.shape.vocabulary_weights
        return self.shape.weights - unused
