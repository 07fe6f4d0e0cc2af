"""Samples in, scored samples out: named parts, their sum, a time limit on every call, and what happens on failure.

What one completion can cause (an exception, a timeout, an unusable number) is a `RewardFailure`. `Failures` says
whether that stops the run or makes the sample unscorable. A mistake in the data (a column it lacks) always stops the
run: it would exclude everything.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal, get_args

from whet.limit import LONGEST_SECONDS, Overrun, limited, positions, watchdog
from whet.protocols import Reward
from whet.registry import error_text, place
from whet.reward.ahead import ScoreAhead
from whet.reward.call import PerSample, RewardCall, RewardFunction, TrainerState, scores_of
from whet.reward.combine import NOT_APPLICABLE, RewardPart, check_parts, combined
from whet.reward.failure import PartialFailure, RewardFailure, call_name, source_file
from whet.reward.journal import calls_noted, note_call
from whet.reward.user_code import user_code
from whet.types import Prompt, Sample, StopReason, WhetError

logger = logging.getLogger(__name__)

OnError = Literal["tolerate", "stop", "exclude"]

FIX = "fix the function, or leave such samples out of training with reward.on_error=exclude"
SLOWER = "raise it with reward.timeout=SECONDS, or leave such samples out with reward.on_error=exclude"


class TooManyFailures(RewardFailure):
    """More samples failed than the run tolerates. `samples` has everything that was scored, nothing is lost."""

    def __init__(self, message: str, samples: Sequence[Sample] = ()) -> None:
        super().__init__(message)
        self.samples = tuple(samples)


class Failures:
    """What a run does about failing rewards, and how many there were. One object a run, given to every `score`.

    "stop" raises the first failure at once. "exclude" makes the sample unscorable and never stops. "tolerate" does
    the same, but raises `TooManyFailures` at the end of the call in which more than `most_share` of the last
    `window` samples of one reward failed, once at least `least_samples` were judged; at once where all failed.
    """

    def __init__(
        self, on_error: OnError = "tolerate", most_share: float = 0.05, least_samples: int = 50, window: int = 200
    ) -> None:
        if on_error not in get_args(OnError):
            raise WhetError(f"reward.on_error is {on_error!r}; give one of {', '.join(get_args(OnError))}")
        if not 0 <= most_share <= 1:
            raise WhetError(f"the tolerated share of failures is {most_share}; give a share in [0, 1]")
        if not 1 <= least_samples <= window:
            raise WhetError(
                f"failures are counted over the last {window} samples, from {least_samples} on; "
                "give at least 1, and a window that is no smaller"
            )
        self.on_error = on_error
        self.most_share = most_share
        self.least_samples = least_samples
        self._window = window
        self._recent: dict[str, deque[bool]] = {}
        self._latest: dict[str, str] = {}
        self._judged: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._noted: tuple[int, int] = (0, 0)
        self._logged: dict[str, list[float]] = {}

    def take_notes(self) -> dict[str, float]:
        """Since it was last asked: the share of judged samples that failed, where some did, and the means of what
        rewards logged, as `logged/NAME`."""
        before, self._noted = self._noted, (self._failed.total(), self._judged.total())
        failed, judged = (now - then for now, then in zip(self._noted, before, strict=True))
        logged, self._logged = self._logged, {}
        shares = {"failed_rewards": failed / judged} if failed > 0 and judged > 0 else {}
        return shares | {f"logged/{name}": fmean(values) for name, values in sorted(logged.items())}

    def log(self, metrics: Iterable[tuple[str, float]]) -> None:
        """Metrics that rewards logged about a call."""
        for name, value in metrics:
            self._logged.setdefault(name, []).append(value)

    @property
    def counts(self) -> Mapping[str, tuple[int, int]]:
        """(failed, judged) samples of each reward since the start."""
        return {name: (self._failed[name], scored) for name, scored in self._judged.items()}

    @property
    def recent(self) -> Mapping[str, Sequence[bool]]:
        """Which of the last samples of each reward failed, the newest last."""
        return {name: tuple(recent) for name, recent in self._recent.items()}

    def latest(self, reward: str) -> str:
        """The latest failure of a reward, in words."""
        return self._latest.get(reward, "unknown")

    def note(self, reward: str, failed: Sequence[bool], latest: str | None = None) -> None:
        """Remember which samples of one call failed, and one failure in words."""
        self._recent.setdefault(reward, deque(maxlen=self._window)).extend(failed)
        self._judged[reward] += len(failed)
        self._failed[reward] += sum(failed)
        if latest is not None:
            self._latest[reward] = latest

    def state(self) -> dict[str, dict[str, Any]]:
        """What decides whether the run must stop, by reward, as JSON."""
        return {
            name: {
                "recent": "".join("x" if failed else "." for failed in recent),
                "judged": self._judged[name],
                "failed": self._failed[name],
                "latest": self._latest.get(name),
            }
            for name, recent in self._recent.items()
        }

    def restore(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from a saved `state`."""
        for name, saved in state.items():
            self._recent[name] = deque((mark == "x" for mark in saved["recent"]), maxlen=self._window)
            self._judged[name], self._failed[name] = saved["judged"], saved["failed"]
            if saved["latest"] is not None:
                self._latest[name] = saved["latest"]
        self._noted = (self._failed.total(), self._judged.total())

    def excess(self) -> str | None:
        """Why the run must stop; None while it need not."""
        if self.on_error != "tolerate":
            return None
        for name, recent in self._recent.items():
            enough = len(recent) >= self.least_samples or (recent and all(recent))
            if enough and sum(recent) > self.most_share * len(recent):
                return (
                    f"reward {name!r} failed on {sum(recent)} of the last {len(recent)} samples, more than "
                    f"{self.most_share:.0%}; the latest: {self.latest(name)}"
                )
        return None


def score(
    prompts: Sequence[Prompt],
    samples: Sequence[Sample],
    parts: Sequence[RewardPart],
    timeout: float,
    on_error: OnError | Failures = "tolerate",
    *,
    progress: float = 1.0,
    steps: int = 0,
    ahead: ScoreAhead[_Judged] | None = None,
) -> list[Sample]:
    """One call of a `Scorer`. A `Failures` remembers from call to call; a bare policy counts this call alone."""
    failures = on_error if isinstance(on_error, Failures) else Failures(on_error)
    return Scorer(parts, timeout, failures, progress, steps, ahead=ahead)(prompts, samples)


@dataclass(frozen=True)
class Scorer:
    """The samples with `parts` (raw scores) and `reward` filled; `prompts[i]` is the prompt of `samples[i]`.

    `timeout` (seconds) limits one call: of one sample for a function of (prompt, completion), of the whole list for
    batched functions and rewards of your own. A part that fails, or a built-in one that is None, makes the sample
    unscorable: reward None. None from a function of the user's leaves that part out of the sample's sum. A reward
    with `limits_itself = True` (a sandbox, a judge) keeps its own time. `progress` is the share of the training done,
    of `steps` in all: for weights that change, and rewards that ask. `share` may have some of the work done elsewhere,
    and `ahead` (`judged_ahead`) may have done it already.
    """

    parts: Sequence[RewardPart]
    timeout: float
    failures: Failures
    progress: float = 1.0
    steps: int = 0  # of the whole training; 0: unknown
    share: Share | None = None
    ahead: ScoreAhead[_Judged] | None = None  # judges completions while others are written

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[Sample]:
        if len(prompts) != len(samples):
            raise ValueError(f"{len(prompts)} prompts for {len(samples)} samples")
        check_parts(self.parts)
        if not 0 < self.timeout <= LONGEST_SECONDS:
            raise WhetError(f"reward.timeout is {self.timeout}; give seconds, more than 0 and at most a day")
        # an episode whose environment failed has nothing to be judged by
        judged = [number for number, sample in enumerate(samples) if sample.stop is not StopReason.FAILED]
        scored = [sample.scored({}, None) for sample in samples]
        chosen = self._scored([prompts[number] for number in judged], [samples[number] for number in judged])
        for number, sample in zip(judged, chosen, strict=True):
            scored[number] = sample
        return scored

    def _scored(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[Sample]:
        by_part = {part.name: self._verdicts(part, prompts, samples) for part in self.parts}
        totals = combined(
            {name: [verdict.score for verdict in verdicts] for name, verdicts in by_part.items()},
            self.parts,
            self.progress,
            [prompt.id for prompt in prompts],
        )
        scored = [
            sample.scored(
                {
                    name: verdict.score
                    for name, verdict in verdicts.items()
                    if verdict.score is not None and verdict.applies
                },
                totals[i],
                {column: value for verdict in verdicts.values() for column, value in verdict.columns.items()},
            )
            for i, sample in enumerate(samples)
            if (verdicts := {name: of_part[i] for name, of_part in by_part.items()})
        ]
        excess = self.failures.excess() or _nothing_scored(prompts, scored, self.failures)
        if excess is not None:
            raise TooManyFailures(excess, scored)
        return scored

    def _verdicts(self, part: RewardPart, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[_Judged]:
        """The verdicts of a part on the rows it is for; 0 on the others."""
        chosen = [row for row, prompt in enumerate(prompts) if part.scores_row(prompt)]
        theirs, written = [prompts[row] for row in chosen], [samples[row] for row in chosen]
        verdicts = [_Judged(0.0)] * len(samples)
        for row, verdict in zip(chosen, self._judged(part.resolved_reward, theirs, written), strict=True):
            verdicts[row] = verdict
        return verdicts

    def _judged(self, reward: Reward, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[_Judged]:
        if not samples:
            return []
        failures, state = self.failures, TrainerState(round(self.progress * self.steps), self.steps)

        def work(rows: list[int]) -> list[_Judged]:
            chosen, theirs = [samples[row] for row in rows], [prompts[row] for row in rows]
            return _judged(reward, theirs, chosen, self.timeout, failures.on_error, state)

        if self.share is not None:
            # a reward that sees several samples at once may compare them, or remember them: its calls stay as they are
            families = [prompt.id for prompt in prompts] if isinstance(reward, PerSample) else None
            judged = self.share(families, len(samples), work)
        elif self.ahead is not None:
            judged = self.ahead.verdicts(reward.name, prompts, samples, work)
        else:
            judged = work(list(range(len(samples))))
        caught = [verdict.failure for verdict in judged if verdict.failure]
        failures.note(reward.name, [verdict.failed for verdict in judged], caught[-1] if caught else None)
        failures.log([pair for verdict in judged for pair in verdict.logged])
        if caught:
            failed = sum(verdict.failed for verdict in judged)
            logger.warning(
                "reward %r failed on %d of %d samples, left out; first: %s",
                reward.name,
                failed,
                len(samples),
                caught[0],
            )
        return judged


def _nothing_scored(prompts: Sequence[Prompt], scored: Sequence[Sample], failures: Failures) -> str | None:
    """Several prompts and not one score, because a reward failed: no rate is needed to see that it is broken."""
    several = len({prompt.id for prompt in prompts}) > 1
    if failures.on_error != "tolerate" or not several or any(sample.reward is not None for sample in scored):
        return None
    for name, recent in failures.recent.items():
        if all(recent[-len(scored) :]):
            return f"reward {name!r} failed on all {len(scored)} samples; the latest: {failures.latest(name)}"
    return None


def num_unscorable(samples: Iterable[Sample]) -> int:
    """How many scored samples stay out of training because a part could not judge them."""
    return sum(sample.reward is None for sample in samples)


@dataclass(frozen=True)
class _Judged:
    """What a reward said of one sample."""

    score: float | None  # None: it could not be judged; NOT_APPLICABLE: the reward is not for this sample
    failed: bool = False
    failure: str = ""  # in words, on the first sample of the call that failed
    columns: Mapping[str, Any] = field(default_factory=dict)  # what it logged about the sample
    logged: tuple[tuple[str, float], ...] = ()  # metrics that the call logged, on its first sample

    @property
    def applies(self) -> bool:
        """False where the reward is not for this sample."""
        return self.score is None or not math.isnan(self.score)


Share = Callable[[Sequence[Hashable] | None, int, Callable[[list[int]], list[_Judged]]], list[_Judged]]
"""(the family of each sample; None: all belong together, how many, what to do with some of them) -> of all samples."""


def judged_ahead(parts: Sequence[RewardPart], timeout: float, on_error: OnError) -> ScoreAhead[_Judged]:
    """What judges completions of these parts while others are written, for `score`."""

    def judge(reward: Reward, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[_Judged]:
        return _judged(reward, prompts, samples, timeout, on_error)

    return ScoreAhead(parts, judge)


def _judged(
    reward: Reward,
    prompts: Sequence[Prompt],
    samples: Sequence[Sample],
    timeout: float,
    on_error: OnError,
    state: TrainerState | None = None,
) -> list[_Judged]:
    limits_itself = bool(getattr(reward, "limits_itself", False))
    if limits_itself:
        timeout = LONGEST_SECONDS
    size = (
        1 if isinstance(reward, PerSample) and not reward.is_async else len(samples)
    )  # async: all are awaited at once
    judged: list[_Judged] = []
    with _beside(reward), calls_noted():
        _prepare(reward)
        with nullcontext(_nothing) if limits_itself else watchdog(timeout) as renew_watchdog:
            for start in range(0, len(samples), size):
                call = slice(start, start + size)
                renew_watchdog()
                try:
                    judged += _call_verdicts(reward, prompts[call], samples[call], timeout, state)
                except RewardFailure as failure:
                    if on_error == "stop":
                        raise
                    scores = failure.scores if isinstance(failure, PartialFailure) else [None] * size
                    failed = failure.failed if isinstance(failure, PartialFailure) else [True] * size
                    scores = _skipped(reward, scores, failed)
                    judged += map(_Judged, scores, failed, [str(failure), *[""] * (size - 1)])
    return judged


def _beside(reward: Reward) -> AbstractContextManager[None]:
    """The process as the reward may find it. Beside the thread that trains, the package's own leave it as it is."""
    built_in = _is_built_in(reward)
    if built_in and threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return user_code(f"reward {reward.name!r}", tell=not built_in)


def _nothing() -> None:
    """Do nothing, for a reward that keeps its own time."""


def _is_built_in(reward: Reward) -> bool:
    function = reward.function if isinstance(reward, RewardFunction) else reward
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__module__", None) or type(function).__module__).startswith("whet.")


def _prepare(reward: Reward) -> None:
    prepare = getattr(reward, "prepare", None)
    if not callable(prepare):
        return
    note_call(reward.name, "nothing yet: its `prepare` was running")
    try:
        prepare()
    except (WhetError, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = positions(traceback.walk_tb(error.__traceback__))[::-1]
        where = place(frames, source_file(getattr(reward, "function", reward)))
        raise WhetError(
            f"reward {reward.name!r}: its `prepare` raised {error_text(error)} at {where}; fix that line"
        ) from error


def skips_none(reward: Reward) -> bool:
    """Whether None means that the reward is not for the sample, as in TRL: of all that users write.

    The package's own say None of a sample that they should judge and cannot, which then has no reward at all.
    """
    return bool(getattr(reward, "skips_none", not _is_built_in(reward)))


def _skipped(reward: Reward, scores: Sequence[float | None], failed: Sequence[bool]) -> list[float | None]:
    """The scores, those that the reward does not give told from those that it could not."""
    if not skips_none(reward):
        return list(scores)
    judged = zip(scores, failed, strict=True)
    return [NOT_APPLICABLE if score is None and not is_failure else score for score, is_failure in judged]


def _call_verdicts(
    reward: Reward, prompts: Sequence[Prompt], samples: Sequence[Sample], timeout: float, state: TrainerState | None
) -> list[_Judged]:
    where = call_name(prompts, samples)
    note_call(reward.name, where)
    file = source_file(reward.function if isinstance(reward, RewardFunction) else reward)
    call = RewardCall(state or TrainerState())
    ask = functools.partial(reward.called, call) if isinstance(reward, RewardFunction) else reward
    try:
        values = limited(functools.partial(ask, prompts, samples), timeout)
    except WhetError:
        raise
    except Overrun as overrun:
        raise RewardFailure(
            f"reward {reward.name!r} took longer than {timeout:g} s at {place(overrun.innermost_first, file)} "
            f"on {where}; {SLOWER}"
        ) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # classes of its own, SystemExit and os._exit too: one sample must not end the run
        frames = positions(traceback.walk_tb(error.__traceback__))[::-1]
        raise RewardFailure(
            f"reward {reward.name!r} raised {error_text(error)} at {place(frames, file)} on {where}; {FIX}"
        ) from error
    scores = scores_of(values, reward.name, prompts, samples)
    scores = _skipped(reward, scores, [False] * len(scores))
    columns = call.columns_of(reward.name, len(samples))
    verdicts = [_Judged(score, columns=of_sample) for score, of_sample in zip(scores, columns, strict=True)]
    return [replace(verdicts[0], logged=tuple(call.metrics)), *verdicts[1:]] if call.metrics else verdicts
