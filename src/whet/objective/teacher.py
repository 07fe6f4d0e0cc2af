"""A teacher instead of a reward: what it would have given the policy's own tokens.

d_t = log teacher(a_t) - log pi_old(a_t), both at sampling time and without gradient. Its expectation over a_t is
-KL(pi, teacher) at that state: policy gradient with d as the advantage follows the reverse KL, token by token, and
needs neither a reward nor a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whet.objective.advantage import BaselineRule, Memory
from whet.types import TokenBatch


def teacher_gap(batch: TokenBatch) -> Tensor:
    """d [N, T] on the actions, 0 elsewhere; against the policy before the first update, else against the sampler."""
    sampled = batch.old_logp if batch.old_logp is not None else batch.behavior_logp
    if batch.teacher_logp is None or sampled is None:
        raise ValueError("the gap to a teacher needs teacher_logp and the log-probabilities of the policy that sampled")
    gap = (batch.teacher_logp - sampled).masked_fill(~batch.action, 0.0)
    return gap.to(batch.reward.dtype)


class _OfTeacher(BaselineRule):
    per_token: ClassVar[bool] = True
    sees_reward: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_logp", "old_logp"})


@dataclass(frozen=True)
class TeacherGap(_OfTeacher):
    """A_t = d_t. Lu and Thinking Machines Lab 2025, On-Policy Distillation.

    Each token answers for itself: what it does to the gaps of later tokens is left out, as in a discount of 0.
    """

    name: ClassVar[str] = "teacher_gap"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        return teacher_gap(batch)

    def words(self) -> str:
        return "compare each token's log-probability with the teacher's"

    def symbols(self) -> str:
        return "log teacher(a_t) - log pi_old(a_t)"


@dataclass(frozen=True)
class EarlyTeacherGap(_OfTeacher):
    """A_t = (1 + gain (1 - SUM_{s<t} |d_s| / SUM_s |d_s|)) d_t. arXiv 2606.22600.

    Sums run over the actions of the completion. The first token counts 1 + gain times, what comes after all the
    disagreement counts once. A completion on which both agree has d = 0, whatever its weights.
    """

    gain: float = 0.5
    name: ClassVar[str] = "early_teacher_gap"

    def __post_init__(self) -> None:
        if not self.gain > 0:
            raise ValueError(
                f"baseline.gain is {self.gain:g}: it would have no effect; give a number above 0, or "
                "objective.baseline=teacher_gap"
            )

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        gap = teacher_gap(batch)
        size = gap.abs()
        before, total = size.cumsum(-1) - size, size.sum(-1, keepdim=True)
        left = 1 - torch.where(total > 0, before / total, 0.0)
        return (1 + self.gain * left) * gap

    def words(self) -> str:
        return f"compare each token with the teacher, the first disagreements up to {1 + self.gain:g} times"

    def symbols(self) -> str:
        return f"(1 + {self.gain:g} (1 - SUM_(s<t) |d_s| / SUM |d|)) d_t, d = log(teacher/pi_old)"
