"""Failures while scoring, each in one line that names the reward and the sample."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from whet.types import Prompt, Sample, WhetError

EXCERPT = 200  # characters of a completion or message that an error repeats


class RewardFailure(WhetError):
    """A reward could not judge a sample. `reward.on_error=exclude` leaves such samples out of training."""


class PartialFailure(RewardFailure):
    """A reward that judges many samples at once could not judge some of them; `scores` has what it could."""

    def __init__(self, message: str, scores: Sequence[float | None], failed: Sequence[bool]) -> None:
        super().__init__(message)
        self.scores, self.failed = list(scores), list(failed)


def one_line(text: str, length: int = EXCERPT) -> str:
    """The beginning of a text, on one line."""
    return " ".join(text[: 4 * length].split())[:length]


def sample_name(prompt: Prompt, sample: Sample) -> str:
    """How errors refer to a sample: the prompt's id and the beginning of the completion."""
    return f"prompt {prompt.id!r}, completion {sample.completion[:EXCERPT]!r}"


def call_name(prompts: Sequence[Prompt], samples: Sequence[Sample]) -> str:
    """How errors refer to one call of a reward, which may have been about many samples."""
    first = sample_name(prompts[0], samples[0])
    return first if len(samples) == 1 else f"one call on {len(samples)} samples, the first: {first}"


def source_file(function: Any) -> str | None:
    """The file the user wrote the function in, seen through partials, decorators and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    return None if code is None else code.co_filename
