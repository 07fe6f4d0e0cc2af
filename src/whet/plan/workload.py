"""What a run asks of its devices, in plain numbers: the input of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.plan.shapes import ModelShape
from whet.report.speed import RolloutShape
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
    reward_model: ModelShape | None = None
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
        return RolloutShape(self.prompts_per_step, self.group_size, self.prompt_tokens, self.completion_tokens)

    @property
    def needs_reference(self) -> bool:
        return bool(REFERENCES & self.needs)

    @property
    def has_critic(self) -> bool:
        return "value" in self.needs

    @property
    def prompts_per_rank(self) -> int:
        return -(-self.prompts_per_step // self.ranks)

    @property
    def pass_tokens(self) -> int:
        """Tokens that the largest training pass computes; rows that share a prompt stay together where they fit."""
        own = max(self.completion_tokens - 1, 0)  # nothing is predicted from a row's last token
        most, prompt = self.micro_batch_tokens, self.prompt_tokens
        step = self.prompts_per_rank * (prompt + self.group_size * own)
        if not self.full_rows:
            return min(step, max(most, prompt + own))
        rows = self.group_size if prompt + self.group_size * own <= most else max(1, (most - prompt) // max(own, 1))
        block = prompt + min(rows, self.group_size) * own
        blocks = self.prompts_per_rank * -(-self.group_size // max(1, min(rows, self.group_size)))
        return min(step, block * max(1, min(blocks, most // block)))

    @property
    def pass_actions(self) -> int:
        """Of them, those that reach the vocabulary head."""
        row = self.prompt_tokens + self.group_size * self.completion_tokens
        return max(1, round(self.pass_tokens * self.group_size * self.completion_tokens / row))

    @property
    def kept(self) -> Literal["float32", "bfloat16", "4bit"]:
        """How matrices are kept: as the base of adapters, or as they learn."""
        return self.base if self.lora_rank else self.weights

    @property
    def trained_weights(self) -> int:
        """That learn, of the policy."""
        if self.lora_rank:
            return self.shape.adapter_weights(self.lora_rank)
        unused = 0 if self.has_head or self.shape.tied else self.shape.vocabulary_weights
        return self.shape.weights - unused
