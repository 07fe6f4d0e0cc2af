"""Whether a reward can read a row at all, found out before the first step and without running anything costly."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from whet.protocols import Reward
from whet.reward.call import RewardFunction, require_columns
from whet.reward.code_tests import CodeTests, tests_of
from whet.reward.combine import ROW_KINDS, RewardPart
from whet.reward.failure import RewardFailure
from whet.reward.find import BUILTIN, ROOM
from whet.types import Prompt, Sample, StopReason, WhetError

NO_COMPLETION = Sample(
    torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.bool), torch.zeros(0), (0, 0), StopReason.END, ""
)


class Unscorable(WhetError):
    """A row that a reward cannot read. `reason` is the same for all such rows."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def require_scorable(parts: Sequence[RewardPart], prompt: Prompt) -> None:
    """Raise where a part would stop the run when it meets this prompt: no answer, no tests, no such column."""
    if not any(part.scores_row(prompt) for part in parts) and any(part.rows not in ROW_KINDS for part in parts):
        reason = f"no reward is for prompt {prompt.id!r}, whose data_source is {prompt.meta.get('data_source')!r}"
        raise Unscorable(f"{reason}; give one for its rows, as NAME@SOURCE, or for all", "no reward is for the row")
    for part in parts:
        if not part.scores_row(prompt):
            continue
        reward = part.resolved_reward
        try:
            _check(reward, prompt)
        except WhetError as error:
            raise Unscorable(str(error), f"reward {reward.name} cannot read the row") from error


def _check(reward: Reward, prompt: Prompt) -> None:
    if isinstance(reward, CodeTests):
        tests_of(prompt, reward.prelude, reward.tolerance)
    if not isinstance(reward, RewardFunction):
        return
    require_columns(reward, prompt)
    function = _unwrapped(reward.function)
    name = getattr(function, "__name__", "")
    if not str(getattr(function, "__module__", "")).startswith(f"{ROOM}.") or BUILTIN.get(name) is not function:
        return
    if prompt.answer in ([], {}, ()) and name.endswith("_answer"):
        raise WhetError(
            f"reward {reward.name!r} compares with a gold answer, and that of prompt {prompt.id!r} is "
            f"{prompt.answer!r}; give the row an `answer`, or leave the row out"
        )
    unread = getattr(function, "unscorable", None)
    if unread is not None:
        (why,) = unread([prompt])
        if why is not None:
            raise WhetError(
                f"prompt {prompt.id!r}: reward {reward.name!r}: {why}; "
                "write the answer in another way, or leave the row out"
            )
        return
    # a failure is about this completion, which nobody wrote
    with contextlib.suppress(RewardFailure):
        reward([prompt], [NO_COMPLETION])


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function
