"""Rewards: plain functions turned into parts of a score, and a few built in.

`find_reward` and `as_reward` make a `Reward` of a name or a function; `score` applies weighted parts to samples,
each call under a time limit, and says which sample, file and line broke when one does.
"""

from whet.reward.answer import exact_answer, final_answer
from whet.reward.call import as_reward
from whet.reward.countdown import countdown
from whet.reward.failure import RewardFailure
from whet.reward.find import BUILTIN, find_reward
from whet.reward.math_answer import math_answer
from whet.reward.score import OnError, Part, check_parts, num_unscorable, score
from whet.reward.steps import step_scorer, with_steps
from whet.reward.think_format import think_format
from whet.reward.working_steps import working_steps

__all__ = [
    "BUILTIN",
    "OnError",
    "Part",
    "RewardFailure",
    "as_reward",
    "check_parts",
    "countdown",
    "exact_answer",
    "final_answer",
    "find_reward",
    "math_answer",
    "num_unscorable",
    "score",
    "step_scorer",
    "think_format",
    "with_steps",
    "working_steps",
]
