"""In which unit is the difference measured? Scales: `(centred, batch) -> [N, T]`, over all scored samples of the step.

`centred` is [N, T], 0 where not an action. Statistics are taken once, over the whole collected batch.
"""

from __future__ import annotations

from abc import abstractmethod

from whet.objective.component import Component, given
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.statistics import STD_FLOOR, episode_weight, group_moments, spread
from whet.types import TokenBatch, WhetError


class AdvantageScale(Component):
    """The unit of A: what the centred rewards are divided by."""

    @abstractmethod
    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor: ...

    def symbols(self, centred: str) -> str:
        """A as an expression around `centred`, the expression of the difference."""
        return super().symbols(centred)


def _divided(centred: Tensor, std: Tensor) -> Tensor:
    # without a spread there is nothing to measure by: the floor alone would blow a difference up a million times
    return torch.where(std > 0, centred / (std + STD_FLOOR), 0.0)


class NoScale(AdvantageScale):
    """A = R - b."""

    name = "none"
    in_words = "keep the difference as it is"
    in_symbols = "{1}"

    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor:
        return centred


class GroupStd(AdvantageScale):
    """A = (R - b) / (std_g(R) + 1e-6), Bessel's std. Shao 2024 (2402.03300), section 4.1.1 (ddof, floor unstated)."""

    name = "group_std"
    in_words = "divide the difference by the spread of the group"

    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor:
        return _divided(centred, group_moments(batch.reward, batch.group, episode_weight(batch)).std[:, None])

    def symbols(self, centred: str) -> str:
        return f"({centred}) / (std_g(R) + {STD_FLOOR:g})"


class DrawnStd(AdvantageScale):
    """A = (R - b) / (std + 1e-6), over every reward drawn for the prompt, trained on or not. Goes with drawn_mean."""

    name = "drawn_std"
    needs = frozenset({"drawn"})
    in_words = "divide the difference by the spread of all completions drawn for the prompt"

    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor:
        return _divided(centred, given(batch.drawn, "drawn_std needs the moments of all rewards drawn")[:, 2:])

    def symbols(self, centred: str) -> str:
        return f"({centred}) / (std_drawn(R) + {STD_FLOOR:g})"


class GroupMeanScale(AdvantageScale):
    """A = (R - b) / mean_g(R); 0 for a group without success. arXiv 2602.02710 (2026). Rewards must be 0 or 1."""

    name = "group_mean"
    in_words = "divide the difference by the share of right completions: rare successes count most"
    in_symbols = "({1}) / mean_g(R)"

    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor:
        scored = batch.reward[~batch.reward.isnan()]
        if not ((scored == 0) | (scored == 1)).all():
            raise WhetError("objective.scale=group_mean is defined for rewards of 0 or 1 only; use an accuracy reward")
        mean = group_moments(batch.reward, batch.group, episode_weight(batch)).mean[:, None]
        return torch.where(mean > 0, centred / mean.clamp(min=1e-12), 0.0)


def _tokens(batch: TokenBatch) -> Tensor:
    return batch.action & ~batch.reward.isnan()[:, None]


def _token_spread(centred: Tensor, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    tokens, weight = _tokens(batch), episode_weight(batch)
    token_weight = None if weight is None else weight[:, None].expand_as(centred)[tokens]
    return spread(centred[tokens], token_weight)


class TokenStd(AdvantageScale):
    """A = (R - b) / (std over all action tokens of the batch + 1e-6). Hu 2025 (2501.03262), the baseline form.

    One scale for easy and hard prompts; a long completion weighs with its length.
    """

    name = "token_std"
    in_words = "divide the difference by its spread over all tokens of the batch"

    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor:
        return _divided(centred, _token_spread(centred, batch)[1])

    def symbols(self, centred: str) -> str:
        return f"({centred}) / (std_tokens + {STD_FLOOR:g})"


class WhitenTokens(AdvantageScale):
    """A = (x - mean) / (std + 1e-6), both over all action tokens of the batch. Hu 2025 (2501.03262).

    Small advantages may change their sign, and a KL in the reward loses its scale. Bessel's std: the difference to
    the population std of some code bases is 1 / (2 M).
    """

    name = "whiten_tokens"
    in_words = "move and scale the differences to mean 0 and spread 1 over all tokens of the batch"
    in_symbols = "whiten_tokens({1})"

    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor:
        mean, std = _token_spread(centred, batch)
        return torch.where(_tokens(batch) & (std > 0), (centred - mean) / (std + STD_FLOOR), 0.0)


class WhitenCompletions(AdvantageScale):
    """A = (x - mean) / (std + 1e-6), both over the completions of the batch, each counted once. Liu 2026 (2601.05242).

    Defined where every token of a completion has the same difference.
    """

    name = "whiten_completions"
    in_words = "move and scale the differences to mean 0 and spread 1 over the completions of the batch"
    in_symbols = "whiten_completions({1})"

    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor:
        completion_mean = torch.where(batch.action, centred, 0.0).sum(-1) / batch.lengths.clamp(min=1)
        counted = ~batch.reward.isnan() & (batch.lengths > 0)
        weight = episode_weight(batch, counted)
        mean, std = spread(completion_mean[counted], None if weight is None else weight[counted])
        return torch.where(_tokens(batch) & (std > 0), (centred - mean) / (std + STD_FLOOR), 0.0)
