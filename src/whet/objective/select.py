"""Which tokens carry gradient? Chosen once, at advantage time, over the whole collected batch.

A choice sets `learns` (tokens whose advantage counts), `tied` (tokens the KL acts on) or narrows `action` itself, which
takes completions out of the denominators too. Covariances use the log-probabilities of the policy that wrote the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from whet.objective.component import Component, given, number
from whet.objective.lazy_torch import Tensor, torch
from whet.types import TokenBatch


class Select(Component):
    """Which tokens of the collected batch carry gradient, or are tied."""

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        return batch


class AllTokens(Select):
    """Train on every action."""

    name = "all"


class Finished(Select):
    """Completions cut off by the budget give no gradient and leave the denominators. Yu 2025 (2503.14476), section 3.4.

    They stay in the statistics of their group.
    """

    name = "finished"
    needs = frozenset({"finished"})
    in_words = "leave out completions that the token budget cut off"

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        finished = given(batch.finished, "this choice needs `finished`")
        return replace(batch, action=batch.action & finished[:, None])


class FinishedTurns(Select):
    """Turns cut off by their token budget give no gradient and leave the denominators; the others of the episode stay.

    They stay in all statistics. A single completion is one turn: there it is `finished`.
    """

    name = "finished_turns"
    needs = frozenset({"truncated"})
    in_words = "leave out turns that the token budget cut off"

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        return replace(batch, action=batch.action & ~given(batch.truncated, "this choice needs `truncated`"))


class NonzeroAdvantage(Select):
    """Completions whose advantage is 0 are not pulled by the KL either, and leave the denominators.

    They stay in the statistics of their group, and no others are drawn in their place: `objective.keep=mixed_outcome`
    does that, group by group.
    """

    name = "nonzero_advantage"
    in_words = "leave out completions whose advantage is 0"

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        advantage = given(batch.advantage, "this choice needs `advantage`")
        counts = ((advantage != 0) & batch.action).any(-1, keepdim=True)
        return replace(batch, action=batch.action & counts)


@dataclass(frozen=True)
class TopEntropy(Select):
    """Only the `share` of tokens with the largest entropy learn. Wang 2025 (2506.01939); denominators keep all.

    Tokens at the threshold are in.
    """

    share: float = number(0.2, above=0, most=1)
    name = "top_entropy"
    needs = frozenset({"entropy"})
    in_words = "learn from the {0.share:.0%} of tokens where the policy was least sure"

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        entropy = given(batch.entropy, "top_entropy needs entropy")
        return replace(batch, learns=_top(entropy, batch.action, self.share))


def _top(values: Tensor, action: Tensor, share: float) -> Tensor:
    """True on the largest `share` of the action tokens, at least one; ties at the edge are in."""
    inside = values[action]
    if not inside.numel():
        return action
    count = max(1, int(share * inside.numel()))
    return action & (values >= inside.topk(count).values[-1])


def covariance(batch: TokenBatch) -> Tensor:
    """(A - mean A)(logp - mean logp), means over all scored actions: [N, T]. Cui 2025 (2505.22617), section 4."""
    logp = batch.old_logp if batch.old_logp is not None else batch.behavior_logp
    if logp is None or batch.advantage is None:
        raise ValueError("the covariance needs old_logp or behavior_logp, of the policy that wrote the batch")
    inside = batch.action & ~batch.reward.isnan()[:, None]
    if not inside.any():
        return torch.zeros_like(batch.advantage)
    logp = logp.to(batch.advantage.dtype).masked_fill(~inside, 0.0)
    centred = (batch.advantage - batch.advantage[inside].mean()) * (logp - logp[inside].mean())
    return centred.masked_fill(~inside, 0.0)


@dataclass(frozen=True)
class ClipCovariance(Select):
    """A random `share` of all tokens, among those with low < cov < high, does not learn. Cui 2025 (2505.22617).

    The lottery is a hash of the completion's tokens and the position, so that no cutting, order or rank changes it.
    """

    share: float = number(2e-4, above=0, most=1)
    low: float = 1.0
    high: float = 5.0
    name = "clip_covariance"
    needs = frozenset({"behavior_logp"})
    in_words = "a random {0.share:g} of the tokens, those that cost most entropy, do not learn"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g}; give less than high = {self.high:g}")

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        cov = covariance(batch)
        candidates = batch.action & (cov > self.low) & (cov < self.high)
        count = min(max(1, int(self.share * int(batch.action.sum()))), int(candidates.sum()))
        if not count:
            return replace(batch, learns=batch.action)
        lot = torch.where(candidates, lottery(batch), torch.iinfo(torch.int64).max)
        drawn = candidates & (lot <= lot[candidates].kthvalue(count).values)
        return replace(batch, learns=batch.action & ~drawn)


def lottery(batch: TokenBatch) -> Tensor:
    """A pseudo-random number for each token [N, T], from its completion's tokens, its position and nothing else."""
    position = torch.arange(1, batch.tokens.shape[1] + 1, device=batch.tokens.device) * 0x14057B7EF767814F
    # scrambled before they are summed: a plain weighted sum of small numbers is often the same for two completions
    mixed = _scrambled((batch.tokens + 1) * 0x5851F42D4C957F2D + position)
    completion = torch.where(batch.action, mixed, 0).sum(-1, keepdim=True)
    return _scrambled(completion + position) & 0x7FFFFFFFFFFFFFFF


def _scrambled(numbers: Tensor) -> Tensor:
    # int64 arithmetic wraps: that is what mixes the bits
    for shift, factor in ((33, 0x2545F4914F6CDD1D), (29, 0x14057B7EF767814F)):
        numbers = (numbers ^ (numbers >> shift)) * factor
    return numbers ^ (numbers >> 32)


@dataclass(frozen=True)
class TieCovariance(Select):
    """The KL term acts on the `share` of tokens with the largest covariance only. Cui 2025 (2505.22617)."""

    share: float = number(2e-3, above=0, most=1)
    name = "tie_covariance"
    needs = frozenset({"behavior_logp"})
    in_words = "hold back only the {0.share:g} of tokens that cost most entropy"

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        return replace(batch, tied=_top(covariance(batch), batch.action, self.share))
