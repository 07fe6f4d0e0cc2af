"""Samples in, scored samples out: named parts, their weighted sum, and a time limit on every call.

What one reply can cause (an exception, a timeout, an unusable number) is a `RewardFailure`, which
`on_error="exclude"` turns into an unscorable sample. A mistake in the function or the data (a column the data
lacks, a list of the wrong length) always stops the run: it would exclude everything.
"""

from __future__ import annotations

import functools
import logging
import math
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from whet.protocols import Reward
from whet.reward.call import Batched, PerSample, scores_of
from whet.reward.failure import RewardFailure, call_name, one_line, place, positions, source_file
from whet.reward.limit import Overrun, limited, watchdog
from whet.types import Prompt, Sample, WhetError

logger = logging.getLogger(__name__)

OnError = Literal["stop", "exclude"]

LONGEST_SECONDS = 86_400.0
MEND = "mend the function, or leave such samples out of training with --set reward.on_error=exclude"
SLOWER = "raise it with --set reward.timeout=SECONDS, or leave such samples out with reward.on_error=exclude"


@dataclass(frozen=True)
class Part:
    """One named reward and its weight in the sum; weight 0 reports it without training on it."""

    reward: Reward
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise WhetError(f"reward {self.reward.name!r} has weight {self.weight}; give a finite number")


def score(
    prompts: Sequence[Prompt], samples: Sequence[Sample], parts: Sequence[Part], timeout: float, on_error: OnError
) -> list[Sample]:
    """The samples with `parts` and `reward` filled; `prompts[i]` is the prompt of `samples[i]`.

    `timeout` (seconds) limits one call: of one sample for a function of (prompt, reply), of the whole list for
    batched functions and rewards of your own. A part that is None or excluded makes the sample unscorable:
    reward None.
    """
    if len(prompts) != len(samples):
        raise ValueError(f"{len(prompts)} prompts for {len(samples)} samples")
    check_parts(parts)
    if on_error not in get_args(OnError):
        raise WhetError(f"reward.on_error is {on_error!r}; give one of {', '.join(get_args(OnError))}")
    if not 0 < timeout <= LONGEST_SECONDS:
        raise WhetError(f"reward.timeout is {timeout}; give seconds, more than 0 and at most a day")
    by_part = [_part_scores(part.reward, prompts, samples, timeout, on_error) for part in parts]
    return [_scored(sample, parts, [scores[i] for scores in by_part]) for i, sample in enumerate(samples)]


def num_unscorable(samples: Iterable[Sample]) -> int:
    """How many scored samples stay out of training because a part could not judge them."""
    return sum(sample.reward is None for sample in samples)


def check_parts(parts: Sequence[Part]) -> None:
    """Refuse a sum that cannot be told apart or that is always 0."""
    if not parts:
        raise WhetError("no reward is given; name at least one")
    counts = Counter(part.reward.name for part in parts)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise WhetError(f"two rewards are called {repeated[0]!r}; scores are reported by name, rename one")
    if all(part.weight == 0 for part in parts):
        names = ", ".join(counts)
        raise WhetError(f"every reward has weight 0 ({names}); nothing could be learned, give one a weight")


def _part_scores(
    reward: Reward, prompts: Sequence[Prompt], samples: Sequence[Sample], timeout: float, on_error: OnError
) -> list[float | None]:
    if not samples:
        return []
    if isinstance(reward, PerSample | Batched):
        reward.prepare()
    size = 1 if isinstance(reward, PerSample) else len(samples)
    scores: list[float | None] = []
    failures: list[RewardFailure] = []
    for start in range(0, len(samples), size):
        call = slice(start, start + size)
        try:
            scores += _call_scores(reward, prompts[call], samples[call], timeout)
        except RewardFailure as failure:
            if on_error == "stop":
                raise
            scores += [None] * size
            failures.append(failure)
    if failures:
        lost = len(failures) * size
        logger.warning(
            "reward %r failed on %d of %d samples, left out; first: %s",
            reward.name,
            lost,
            len(samples),
            failures[0],
        )
    return scores


def _call_scores(
    reward: Reward, prompts: Sequence[Prompt], samples: Sequence[Sample], timeout: float
) -> list[float | None]:
    where = call_name(prompts, samples)
    file = source_file(reward.function if isinstance(reward, PerSample | Batched) else reward)
    try:
        with watchdog(timeout):
            values = limited(functools.partial(reward, prompts, samples), timeout)
    except WhetError:
        raise
    except Overrun as overrun:
        raise RewardFailure(
            f"reward {reward.name!r} took longer than {timeout:g} s at {place(overrun.innermost_first, file)} "
            f"on {where}; {SLOWER}"
        ) from None
    except (Exception, SystemExit) as error:
        frames = positions(traceback.walk_tb(error.__traceback__))[::-1]
        raise RewardFailure(
            f"reward {reward.name!r} raised {type(error).__name__}: {one_line(str(error))} "
            f"at {place(frames, file)} on {where}; {MEND}"
        ) from error
    return scores_of(values, reward.name, prompts, samples)


def _scored(sample: Sample, parts: Sequence[Part], scores: Sequence[float | None]) -> Sample:
    known = {part.reward.name: one for part, one in zip(parts, scores, strict=True) if one is not None}
    if len(known) < len(parts):
        return sample.scored(known, None)
    total = sum(part.weight * known[part.reward.name] for part in parts)
    if not math.isfinite(total):
        raise WhetError(f"the weighted sum of {known} is not finite; give smaller scores or weights")
    return sample.scored(known, total)
