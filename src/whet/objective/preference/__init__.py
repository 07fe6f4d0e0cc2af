"""Losses on preferences: pairs, labelled completions, ranked answers and step labels. Pure functions on tensors.

`PairObjective` is the contract; the methods are in `whet.objective.presets.preference`, their axes and components in
`whet.objective.axes`.
"""

from whet.objective.preference.batch import (
    PairBatch,
    PairExtras,
    PairTotals,
    mismatched_rows,
    pair_totals,
)
from whet.objective.preference.objective import PairObjective
from whet.objective.preference.reward_model import (
    AllPairs,
    LabelBatch,
    LabelLoss,
    PlackettLuce,
    RankBatch,
    RankLoss,
    RewardTotals,
    pair_ranks,
    reward_totals,
    until_first_wrong,
)

__all__ = [
    "AllPairs",
    "LabelBatch",
    "LabelLoss",
    "PairBatch",
    "PairExtras",
    "PairObjective",
    "PairTotals",
    "PlackettLuce",
    "RankBatch",
    "RankLoss",
    "RewardTotals",
    "mismatched_rows",
    "pair_ranks",
    "pair_totals",
    "reward_totals",
    "until_first_wrong",
]
