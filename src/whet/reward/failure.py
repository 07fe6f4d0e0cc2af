"""Failures while scoring, each in one line that names the reward and the sample.

Why a sample cannot be judged. The score of such a sample is None; the reason is said once, in the log.

return unscorable("the gold answer is not read in full", prompt)
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from whet.types import Prompt, Sample, WhetError

logger = logging.getLogger(__name__)

SAID = 5  # prompts named in the log; after that, every tenfold is counted

_lock = threading.Lock()
_prompts: set[tuple[str, str]] = set()
_collected: list[list[tuple[str | None, str]]] = []


def unscorable(reason: str, prompt: Prompt | None = None) -> float | None:
    """None, the score of a sample that cannot be judged. The log names the first prompts and their reasons."""
    name = None if prompt is None else prompt.id
    with _lock:
        for collection in _collected:
            collection.append((name, reason))
        is_new = (str(name), reason) not in _prompts
        _prompts.add((str(name), reason))
        count = len(_prompts)
    if is_new and (count <= SAID or count in (10, 100, 1000, 10_000, 100_000)):
        of = "a sample" if name is None else f"prompt {name!r}"
        more = f" ({count} prompts so far)" if count > SAID else ""
        logger.warning("%s cannot be judged%s: %s", of, more, reason)
    return None


@contextlib.contextmanager
def collected_reasons() -> Iterator[list[tuple[str | None, str]]]:
    """(prompt id or None, reason) of everything that could not be judged meanwhile."""
    collection: list[tuple[str | None, str]] = []
    with _lock:
        _collected.append(collection)
    try:
        yield collection
    finally:
        with _lock:
            _collected[:] = [other for other in _collected if other is not collection]


EXCERPT = 200  # characters of a completion or message that an error repeats


class RewardFailure(WhetError):
    """A reward could not judge a sample. `reward.on_error=exclude` leaves such samples out of training."""


class PartialFailure(RewardFailure):
    """A reward that judges many samples at once could not judge some of them; `scores` has what it could."""

    def __init__(self, message: str, scores: Sequence[float | None], failed: Sequence[bool]) -> None:
        super().__init__(message)
        self.scores, self.failed = list(scores), list(failed)


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
