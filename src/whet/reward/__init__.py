"""Rewards: plain functions turned into parts of a score, and a few built in.

`find_reward` and `as_reward` make a `Reward` of a name or a function; `score` applies weighted parts to samples,
each call under a time limit, and says which sample, file and line broke when one does.
"""

from whet.reward.answer import exact_answer, final_answer
from whet.reward.call import as_reward
from whet.reward.combine import Gate, RewardPart, Schedule, check_parts, combined, in_shares, weights_at
from whet.reward.countdown import countdown
from whet.reward.failure import RewardFailure
from whet.reward.find import BUILTIN, find_reward
from whet.reward.mathematics.math_answer import math_answer
from whet.reward.score import Failures, OnError, TooManyFailures, num_unscorable, score
from whet.reward.steps import step_scorer, with_steps
from whet.reward.templates import defended, format_first, template
from whet.reward.think_format import think_format
from whet.reward.working_steps import working_steps

__all__ = [
    "BUILTIN",
    "Failures",
    "Gate",
    "OnError",
    "RewardPart",
    "RewardFailure",
    "Schedule",
    "TooManyFailures",
    "as_reward",
    "check_parts",
    "combined",
    "countdown",
    "defended",
    "exact_answer",
    "final_answer",
    "find_reward",
    "format_first",
    "in_shares",
    "math_answer",
    "num_unscorable",
    "score",
    "step_scorer",
    "template",
    "think_format",
    "weights_at",
    "with_steps",
    "working_steps",
]
