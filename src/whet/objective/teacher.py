"""A teacher instead of a reward: what it would have given the policy's own tokens, and what it would have written.

d_t = log teacher(a_t) - log pi_old(a_t), both at sampling time and without gradient. Its expectation over a_t is
-KL(pi, teacher) at that state: policy gradient with d as the advantage follows the reverse KL, token by token, and
needs neither a reward nor a group. The axis `teacher` compares whole distributions instead, and its gradient runs
through all of the policy's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from whet.objective.advantage import Baseline, Memory
from whet.objective.component import Component, number
from whet.objective.lazy_torch import Tensor, torch
from whet.types import TokenBatch


def teacher_gap(batch: TokenBatch) -> Tensor:
    """d [N, T] on the actions, 0 elsewhere; against the policy before the first update, else against the sampler."""
    sampled = batch.old_logp if batch.old_logp is not None else batch.behavior_logp
    if batch.teacher_logp is None or sampled is None:
        raise ValueError("the gap to a teacher needs teacher_logp and the log-probabilities of the policy that sampled")
    gap = (batch.teacher_logp - sampled).masked_fill(~batch.action, 0.0)
    return gap.to(batch.reward.dtype)


class _OfTeacher(Baseline):
    per_token = True
    sees_reward = False
    needs = frozenset({"teacher_logp", "old_logp"})


class TeacherGap(_OfTeacher):
    """A_t = d_t. Lu and Thinking Machines Lab 2025, On-Policy Distillation.

    Each token answers for itself: what it does to the gaps of later tokens is left out, as in a discount of 0.
    """

    name = "teacher_gap"
    in_words = "compare each token's log-probability with the teacher's"
    in_symbols = "log teacher(a_t) - log pi_old(a_t)"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        return teacher_gap(batch)


@dataclass(frozen=True)
class EarlyTeacherGap(_OfTeacher):
    """A_t = (1 + gain (1 - SUM_{s<t} |d_s| / SUM_s |d_s|)) d_t. arXiv 2606.22600.

    Sums run over the actions of the completion. The first token counts 1 + gain times, what comes after all the
    disagreement counts once. A completion on which both agree has d = 0, whatever its weights.
    """

    gain: float = number(0.5, above=0, instead="objective.baseline=teacher_gap")
    name = "early_teacher_gap"
    in_symbols = "(1 + {0.gain:g} (1 - SUM_(s<t) |d_s| / SUM |d|)) d_t, d = log(teacher/pi_old)"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        gap = teacher_gap(batch)
        size = gap.abs()
        before, total = size.cumsum(-1) - size, size.sum(-1, keepdim=True)
        left = 1 - torch.where(total > 0, before / total, 0.0)
        return (1 + self.gain * left) * gap

    def words(self) -> str:
        return f"compare each token with the teacher, the first disagreements up to {1 + self.gain:g} times"


class NoAdvantage(Baseline):
    """A = 0: nothing is learned from what was sampled, only from the terms beside it."""

    per_token = True
    sees_reward = False
    name = "none"
    in_words = "learn from no reward"
    in_symbols = "0"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        return torch.zeros(batch.action.shape, dtype=batch.reward.dtype, device=batch.action.device)


class TeacherTerm(Component):
    """How far the policy is from a teacher's whole distribution at each action, and what that counts."""

    @property
    def weight(self) -> float:
        """The coefficient of the divergence in the loss; 0 without a teacher."""
        return 0.0

    def divergence(self, logp: Tensor, teacher_logp: Tensor) -> Tensor:
        """[A]: of two distributions at each action, both [A, V] and normalised; `logp` carries the gradient."""
        return logp.new_zeros(logp.shape[:-1])

    def factor(self, ratio: Tensor) -> Tensor:
        """What a token's divergence counts, by how far the policy has moved since the batch was written: [N, T]."""
        return torch.ones_like(ratio)

    def symbols(self) -> str:
        """The term with its sign; empty for none."""
        return super().symbols()


class NoTeacher(TeacherTerm):
    """No distribution is compared with a teacher's."""

    name = "none"
    in_symbols = ""


@dataclass(frozen=True)
class _Taught(TeacherTerm):
    strength: float = number(above=0, instead="objective.teacher=none")
    needs = frozenset({"teacher_divergence"})

    @property
    def weight(self) -> float:
        return self.strength


LEAST_LOGP = -1e4  # in the place of -inf, as masked logits give it: its probability is 0, and 0 times it is no NaN


def _kl(one: Tensor, other: Tensor) -> Tensor:
    """SUM_v one_v log(one_v / other_v), of log-probabilities."""
    one, other = one.clamp(min=LEAST_LOGP), other.clamp(min=LEAST_LOGP)
    return (one.exp() * (one - other)).sum(-1)


@dataclass(frozen=True)
class TeacherReverseKL(_Taught):
    """strength SUM_v pi_v log(pi_v / teacher_v) at each state the policy came to. Gu 2023 (2306.08543), per token.

    Looks for one of the teacher's ways: where the teacher gives nothing, the policy must not go.
    """

    strength: float = 1.0
    name = "reverse_kl"
    in_words = "pull towards the teacher with {0.strength:g} times KL(policy, teacher) at each token"
    in_symbols = " - {0.strength:g} SUM_v pi_v log(pi_v/teacher_v)"

    def divergence(self, logp: Tensor, teacher_logp: Tensor) -> Tensor:
        return _kl(logp, teacher_logp)


@dataclass(frozen=True)
class TeacherForwardKL(_Taught):
    """strength SUM_v teacher_v log(teacher_v / pi_v). Hinton 2015 (1503.02531), at the states the policy came to.

    Covers all of the teacher's ways, also those that the policy is too small for.
    """

    strength: float = 1.0
    name = "forward_kl"
    in_words = "pull towards the teacher with {0.strength:g} times KL(teacher, policy) at each token"
    in_symbols = " - {0.strength:g} SUM_v teacher_v log(teacher_v/pi_v)"

    def divergence(self, logp: Tensor, teacher_logp: Tensor) -> Tensor:
        return _kl(teacher_logp, logp)


@dataclass(frozen=True)
class JensenShannonToTeacher(_Taught):
    """strength (beta KL(teacher, m) + (1 - beta) KL(pi, m)), m = beta teacher + (1 - beta) pi. Agarwal 2023
    (2306.13649), eq. 1.

    Towards beta 0 and 1 it goes to 0; divided by beta, or by 1 - beta, it goes to the forward and the reverse KL, which
    the paper's code takes at 0 and 1. Here those have names of their own.
    """

    strength: float = 1.0
    beta: float = number(0.5, above=0, below=1)
    name = "jsd"
    in_words = "pull towards the teacher with {0.strength:g} times the Jensen-Shannon divergence, beta {0.beta:g}"
    in_symbols = " - {0.strength:g} JSD_{0.beta:g}(pi, teacher)"

    def divergence(self, logp: Tensor, teacher_logp: Tensor) -> Tensor:
        teacher_logp, logp = teacher_logp.clamp(min=LEAST_LOGP), logp.clamp(min=LEAST_LOGP)
        between = torch.logaddexp(teacher_logp + math.log(self.beta), logp + math.log1p(-self.beta))
        return self.beta * _kl(teacher_logp, between) + (1 - self.beta) * _kl(logp, between)


@dataclass(frozen=True)
class CappedJensenShannon(JensenShannonToTeacher):
    """The same times min(r, ceiling), r without gradient. Huebotter 2026 (2601.20802), as its code has it."""

    ceiling: float = number(2.0, above=0)
    name = "jsd_capped"
    needs = frozenset({"teacher_divergence", "old_logp"})
    in_symbols = " - {0.strength:g} min(r, {0.ceiling:g}) JSD_{0.beta:g}(pi, teacher)"

    def factor(self, ratio: Tensor) -> Tensor:
        return ratio.clamp(max=self.ceiling)

    def words(self) -> str:
        return super().words() + f", each token by its ratio, up to {self.ceiling:g}"
