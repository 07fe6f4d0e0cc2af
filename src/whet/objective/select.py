"""Which tokens carry gradient? Chosen once, at advantage time, over the whole collected batch.

A choice sets `learns` (tokens whose advantage counts), `tied` (tokens the KL acts on) or narrows `action` itself, which
takes completions out of the denominators too. Covariances use the log-probabilities of the policy that wrote the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.component import Component
from whet.objective.lazy_torch import torch
from whet.types import TokenBatch

if TYPE_CHECKING:
    from torch import Tensor


class Select(Protocol):
    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def __call__(self, batch: TokenBatch) -> TokenBatch: ...

    def words(self) -> str: ...


def _share(name: str, number: float) -> None:
    if not 0 < number <= 1:
        raise ValueError(f"select.{name} is {number}; give a share in (0, 1]")


class AllTokens(Component):
    name: ClassVar[str] = "all"

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        return batch


class Finished(Component):
    """Completions cut off by the budget give no gradient and leave the denominators. Yu 2025 (2503.14476), section 3.4.

    They stay in the statistics of their group.
    """

    name: ClassVar[str] = "finished"
    needs: ClassVar[frozenset[str]] = frozenset({"finished"})

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        if batch.finished is None:
            raise ValueError("this choice needs `finished` and the batch has none")
        return replace(batch, action=batch.action & batch.finished[:, None])

    def words(self) -> str:
        return "leave out completions that the token budget cut off"


class FinishedTurns(Component):
    """Turns cut off by their token budget give no gradient and leave the denominators; the others of the episode stay.

    They stay in all statistics. A single completion is one turn: there it is `finished`.
    """

    name: ClassVar[str] = "finished_turns"
    needs: ClassVar[frozenset[str]] = frozenset({"truncated"})

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        if batch.truncated is None:
            raise ValueError("this choice needs `truncated` and the batch has none")
        return replace(batch, action=batch.action & ~batch.truncated)

    def words(self) -> str:
        return "leave out turns that the token budget cut off"


@dataclass(frozen=True)
class TopEntropy(Component):
    """Only the `share` of tokens with the largest entropy learn. Wang 2025 (2506.01939); denominators keep all.

    Tokens at the threshold are in.
    """

    share: float = 0.2
    name: ClassVar[str] = "top_entropy"
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})

    def __post_init__(self) -> None:
        _share("share", self.share)

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        if batch.entropy is None:
            raise ValueError("top_entropy needs entropy and the batch has none")
        return replace(batch, learns=_top(batch.entropy, batch.action, self.share))

    def words(self) -> str:
        return f"learn from the {self.share:.0%} of tokens where the policy was least sure"


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
class ClipCovariance(Component):
    """A random `share` of all tokens, among those with low < cov < high, does not learn. Cui 2025 (2505.22617).

    The lottery is a hash of the completion's tokens and the position, so that no cutting, order or rank changes it.
    """

    share: float = 2e-4
    low: float = 1.0
    high: float = 5.0
    name: ClassVar[str] = "clip_covariance"
    needs: ClassVar[frozenset[str]] = frozenset({"behavior_logp"})

    def __post_init__(self) -> None:
        _share("share", self.share)
        if self.low >= self.high:
            raise ValueError(f"select.low is {self.low}; give less than select.high = {self.high}")

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        cov = covariance(batch)
        candidates = batch.action & (cov > self.low) & (cov < self.high)
        count = min(max(1, int(self.share * int(batch.action.sum()))), int(candidates.sum()))
        if not count:
            return replace(batch, learns=batch.action)
        lot = torch.where(candidates, lottery(batch), torch.iinfo(torch.int64).max)
        drawn = candidates & (lot <= lot[candidates].kthvalue(count).values)
        return replace(batch, learns=batch.action & ~drawn)

    def words(self) -> str:
        return f"a random {self.share:g} of the tokens, those that cost most entropy, do not learn"


def lottery(batch: TokenBatch) -> Tensor:
    """A pseudo-random number for each token [N, T], from its completion's tokens, its position and nothing else."""
    position = torch.arange(1, batch.tokens.shape[1] + 1, device=batch.tokens.device) * 0x14057B7EF767814F
    # scrambled before they are summed: a plain weighted sum of small numbers is often the same for two completions
    each = _scrambled((batch.tokens + 1) * 0x5851F42D4C957F2D + position)
    completion = torch.where(batch.action, each, 0).sum(-1, keepdim=True)
    return _scrambled(completion + position) & 0x7FFFFFFFFFFFFFFF


def _scrambled(numbers: Tensor) -> Tensor:
    # int64 arithmetic wraps: that is what mixes the bits
    for shift, factor in ((33, 0x2545F4914F6CDD1D), (29, 0x14057B7EF767814F)):
        numbers = (numbers ^ (numbers >> shift)) * factor
    return numbers ^ (numbers >> 32)


@dataclass(frozen=True)
class TieCovariance(Component):
    """The KL term acts on the `share` of tokens with the largest covariance only. Cui 2025 (2505.22617)."""

    share: float = 2e-3
    name: ClassVar[str] = "tie_covariance"
    needs: ClassVar[frozenset[str]] = frozenset({"behavior_logp"})

    def __post_init__(self) -> None:
        _share("share", self.share)

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        return replace(batch, tied=_top(covariance(batch), batch.action, self.share))

    def words(self) -> str:
        return f"hold back only the {self.share:g} of tokens that cost most entropy"
