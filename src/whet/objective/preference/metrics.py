"""What is watched in every preference run, the same for every method. Sums: added over passes and ranks they are means.

Chosen and rejected completions are told apart throughout: a growing margin says nothing about the chosen completion
itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.objective.lazy_torch import torch
from whet.objective.preference.batch import PairCompletions, PairTotals

if TYPE_CHECKING:
    from torch import Tensor

# one token per completion, and hundredths of a nat per token: closer than this two completions say the same
SAME_LENGTH, SAME_LOGP = 1, 0.01


def pair_sums(completions: PairCompletions, reward: Tensor, totals: PairTotals) -> dict[str, Tensor]:
    """`reward` [B, S] is the implicit one: beta times the score, less what it is compared with.

    chosen_* and rejected_* are means over good and bad completions, the rest means over pairs. `drift` is the mean of
    |log pi / ref|; *_ratio the mean of log pi / ref, where there is a reference.
    """
    batch = completions.batch
    watched = {"logp": completions.logp.detach(), "mean_logp": completions.mean_logp.detach(), "reward": reward}
    watched["length"] = completions.lengths
    if batch.ref_logp is not None:
        watched["ratio"] = completions.log_ratio.detach()
    sides = {"chosen": (batch.good, totals.desirable), "rejected": (~batch.good, totals.undesirable)}
    found = {
        f"{side}_{name}": _total(values, batch.counted[:, None] & chosen, count)
        for name, values in watched.items()
        for side, (chosen, count) in sides.items()
    }
    if batch.ref_logp is not None:
        drift = watched["ratio"].abs()
        found["drift"] = _total(drift, batch.counted[:, None], totals.desirable + totals.undesirable)
    return found if not batch.paired else {**found, **_paired(completions, reward, totals)}


def _paired(completions: PairCompletions, reward: Tensor, totals: PairTotals) -> dict[str, Tensor]:
    gap, longer = (values[:, 0] - values[:, 1] for values in (reward, completions.lengths))
    likelier = (completions.mean_logp[:, 0] - completions.mean_logp[:, 1]).detach()
    each = {
        "margin": gap,
        "margin_square": gap.square(),
        # equal rewards are a coin's throw, so that a model that knows nothing is right half of the time
        "accuracy": (gap > 0).to(gap.dtype) + 0.5 * (gap == 0).to(gap.dtype),
        "longer": longer,
        "longer_square": longer.square(),
        "longer_margin": longer * gap,
        "chosen_is_longer": (longer > 0).to(gap.dtype),
        "alike": ((longer.abs() <= SAME_LENGTH) & (likelier.abs() < SAME_LOGP)).to(gap.dtype),
    }
    return {name: _total(values, completions.batch.counted, totals.pairs) for name, values in each.items()}


def _total(values: Tensor, chosen: Tensor, count: int) -> Tensor:
    return torch.where(chosen, values, 0.0).sum() / max(count, 1)
