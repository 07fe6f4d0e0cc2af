"""Named parts into one number: weights that may change over training, gates, caps, and parts normalised on their own.

`combined` is pure. For one sample the total is SUM_k weight_k(progress) * counted_k, where counted_k is made of the
raw score of part k in this order:

1. cap: the score moved into [least, most];
2. gate: `otherwise` in its place where the part the gate names did not pass, or is itself shut out by a gate;
3. normalise: (x - mean) / (std + 1e-6) over what the part counted in the group (the samples of one prompt) or in
   the batch (the samples of one call), Bessel's std, unscorable samples left out; exactly 0 where the spread is
   float noise, and for a sample without company.

A part that does not apply to a sample (`NOT_APPLICABLE`: a function of the user's that returned None) is left out of
its sum, out of the part's statistics, and shuts the gates that look at it. A sample to which no part with a weight
applies has no total. Nor has one with a part that could not be judged (None), whatever the gates say: were it scored
where a gate is shut, only the failing completions of such a prompt would be left to learn from.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, TypeGuard, get_args

from whet.protocols import Reward
from whet.record.metrics.distribution import TOTAL
from whet.types import Prompt, WhetError, did_you_mean

Normalise = Literal["off", "group", "batch"]
Over = Literal["share", "steps"]
ALL, WITH_ANSWER, WITHOUT_ANSWER = ROW_KINDS = ("all", "with_answer", "without_answer")  # or a source of a mixture

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
NOT_APPLICABLE = math.nan  # no reward's own score: those are finite
STD_FLOOR = 1e-6
EVALUATED = ("accuracy", "reward", "completion_tokens", "truncated")  # what evaluations report beside several parts
SPREAD_FLOOR = 1e-6  # of the mean's size, at least 1: a smaller spread is float noise


@dataclass(frozen=True)
class Schedule:
    """A weight that changes over training: straight lines between the points, flat before the first and after the last.

    A point is (position, weight). Positions are shares of the training done, 0 to 1, or steps done; `in_shares`
    turns the second kind into the first once the number of steps is known.
    """

    points: tuple[tuple[float, float], ...]
    over: Over = "share"

    def __post_init__(self) -> None:
        if self.over not in get_args(Over):
            raise WhetError(f"a schedule runs over {self.over!r}; give one of {', '.join(get_args(Over))}")
        if not self.points or not all(_is_pair(point) for point in self.points):
            raise WhetError(
                f"the schedule {self.points!r} is no list of points; give pairs of numbers (position, weight), "
                "as in ((0.0, 1.0), (0.3, 0.2))"
            )
        positions = [position for position, _ in self.points]
        if positions != sorted(set(positions)):
            raise WhetError(f"the schedule's positions {_listed(positions)} do not rise; sort them, each once")
        most = 1.0 if self.over == "share" else math.inf
        if not 0 <= positions[0] <= positions[-1] <= most:
            expected = "shares of the training in [0, 1] (or over='steps')" if self.over == "share" else "steps from 0"
            raise WhetError(f"the schedule's positions are {_listed(positions)}; give {expected}")

    def at(self, position: float) -> float:
        """The weight at a position."""
        positions = [point[0] for point in self.points]
        right = bisect.bisect_right(positions, position)
        if right == 0 or right == len(self.points):
            return self.points[min(right, len(self.points) - 1)][1]
        (start, low), (end, high) = self.points[right - 1], self.points[right]
        share = (position - start) / (end - start)
        return low * (1 - share) + high * share

    def shared(self, num_steps: int) -> Schedule:
        """The same schedule over shares of a run of so many steps; what comes after its end is cut off."""
        if self.over == "share":
            return self
        inside = [(step / num_steps, weight) for step, weight in self.points if step < num_steps]
        return Schedule((*inside, (1.0, self.at(num_steps))))


@dataclass(frozen=True)
class Gate:
    """A part counts only where part `part` scores at least `least`; elsewhere it counts `otherwise`."""

    part: str
    least: float = 1.0
    otherwise: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("least", self.least), ("otherwise", self.otherwise)):
            if not math.isfinite(value):
                raise WhetError(f"the gate on {self.part!r} has {name} {value}; give a finite number")


@dataclass(frozen=True)
class RewardPart:
    """One named reward and how it enters the sum; weight 0 reports it (and lets gates look at it) without a say.

    `reward` is the reward, or the name it is found under (`find_reward(reward, settings)`); `resolved` finds it.
    A reward that is itself at most 0 needs no `penalty`: its weight is positive. `RewardPartSection` says what each
    field is.
    """

    reward: Reward | str
    weight: float | Schedule | Sequence[tuple[float, float]] = 1.0
    gate: Gate | None = None
    cap: tuple[float, float] | None = None
    normalise: Normalise = "off"
    penalty: bool = False
    settings: Mapping[str, Any] = field(default_factory=lambda: NO_SETTINGS)
    rows: str = ALL

    def __post_init__(self) -> None:
        if not isinstance(self.weight, int | float | Schedule):
            try:
                points = tuple((float(position), float(weight)) for position, weight in self.weight)
            except (TypeError, ValueError):
                raise WhetError(
                    f"reward {self.name!r} has weight {self.weight!r}; give a number, or points (position, weight)"
                ) from None
            object.__setattr__(self, "weight", Schedule(points))
        for weight in self.weights:
            # a part that only names its reward is looked at again when the reward is there
            negative = self.penalty or isinstance(self.reward, str) or "penalty" in self.name.lower()
            _check_weight(self.name, weight, negative)
        if self.cap is not None:
            _check_cap(self.name, self.cap)
        if self.normalise not in get_args(Normalise):
            raise WhetError(
                f"reward {self.name!r} is normalised by {self.normalise!r}; "
                f"give one of {', '.join(get_args(Normalise))}"
            )

    @property
    def name(self) -> str:
        """What the scores of the part are reported under."""
        return self.reward if isinstance(self.reward, str) else self.reward.name

    @property
    def resolved_reward(self) -> Reward:
        """The reward itself; an error for a part that only names it."""
        if isinstance(self.reward, str):
            raise ValueError(f"the part {self.reward!r} only names its reward; find it first")
        return self.reward

    def resolved(self, find: Callable[[str, Mapping[str, Any]], Reward]) -> RewardPart:
        """The part with its reward; one that has it already as it is."""
        if not isinstance(self.reward, str):
            return self
        return replace(self, reward=find(self.reward, self.settings), settings=NO_SETTINGS)

    @property
    def weights(self) -> tuple[float, ...]:
        """Every corner of the schedule; the weight itself without one."""
        if isinstance(self.weight, int | float):
            return (self.weight,)
        return tuple(weight for _, weight in self.schedule.points)

    @property
    def schedule(self) -> Schedule:
        """The weight as a schedule; a constant one where it is a number."""
        if isinstance(self.weight, Schedule):
            return self.weight
        assert isinstance(self.weight, int | float)
        return Schedule(((0.0, float(self.weight)),))

    def scores_row(self, prompt: Prompt) -> bool:
        """Whether the part is for such a row; on others it counts 0."""
        if self.rows in ROW_KINDS:
            return self.rows == ALL or (prompt.answer is not None) == (self.rows == WITH_ANSWER)
        return prompt.meta.get("data_source") == self.rows

    @property
    def is_plain(self) -> bool:
        """True when the part enters the sum as weight times raw score, always."""
        return not isinstance(self.weight, Schedule) and (self.gate, self.cap, self.normalise) == (None, None, "off")

    def weight_at(self, progress: float) -> float:
        """The weight when this share of the training is done."""
        if self.schedule.over == "steps":
            raise WhetError(
                f"the weight of reward {self.name!r} runs over steps, and the number of steps is not known here; "
                "give its positions as shares of the training"
            )
        return self.schedule.at(progress)


def combined(
    scores: Mapping[str, Sequence[float | None]],
    parts: Sequence[RewardPart],
    progress: float = 1.0,
    groups: Sequence[Hashable] | None = None,
) -> list[float | None]:
    """One total a sample, None where a part is None, or none applies. `scores` has the raw scores of each part, [N].

    `groups[i]` is equal for the samples of one prompt; without it, all samples are one group.
    """
    if not 0 <= progress <= 1:
        raise ValueError(f"progress is {progress}; give the share of the training done, 0 to 1")
    columns = [scores[part.name] for part in parts]
    num_samples = len(columns[0]) if columns else 0
    rows = [{part.name: column[i] for part, column in zip(parts, columns, strict=True)} for i in range(num_samples)]
    heard = [part.name for part in parts if any(part.weights)]
    scored = {
        i: row for i, row in enumerate(rows) if _is_known(row) and not all(math.isnan(row[name]) for name in heard)
    }
    totals: list[float | None] = [None] * num_samples
    for i in scored:
        totals[i] = 0.0
    for part in parts:
        counted = _counted(part, parts, scored, groups)
        weight = part.weight_at(progress)
        for i, value in counted.items():
            totals[i] = (totals[i] or 0.0) + weight * value
    for i, row in scored.items():
        if not math.isfinite(totals[i] or 0.0):
            raise WhetError(f"the weighted sum of {row} is not finite; give smaller scores or weights")
    return totals


def weights_at(parts: Sequence[RewardPart], progress: float) -> dict[str, float]:
    """What each part counts when this share of the training is done."""
    return {part.name: part.weight_at(progress) for part in parts}


def in_shares(parts: Sequence[RewardPart], num_steps: int) -> list[RewardPart]:
    """The parts with every schedule over shares of a run of `num_steps` steps."""
    return [
        replace(part, weight=part.weight.shared(num_steps)) if isinstance(part.weight, Schedule) else part
        for part in parts
    ]


def check_company(rewards: Sequence[Reward]) -> None:
    """Refuse a judge as the only reward, unless the user allows it with alone=true. Leave out those of weight 0."""
    if rewards and all(getattr(reward, "wants_company", False) for reward in rewards):
        raise WhetError(
            f"reward {rewards[0].name!r} is a judge, and the only reward: a judge can be talked into good marks; add a "
            "reward that checks something (an answer, a format, tests), or set alone=true if you mean it"
        )


def named_weight(reward: str) -> tuple[float, str]:
    """`exact_answer=0.5` is a name with its weight."""
    name, equals, weight = reward.rpartition("=")
    try:
        return (float(weight), name) if equals else (1.0, reward)
    except ValueError:
        raise WhetError(
            f"reward {reward!r}: {weight!r} is no weight; write NAME=WEIGHT, as in think_format=0.2"
        ) from None


def check_parts(parts: Sequence[RewardPart]) -> None:
    """Refuse a sum that cannot be told apart, that is always 0, or whose gates lead nowhere."""
    if not parts:
        raise WhetError("no reward is given; name at least one")
    counts = Counter(part.name for part in parts)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise WhetError(f"two rewards are called {repeated[0]!r}; scores are reported by name, rename one")
    taken = [name for name in counts if name == TOTAL or (name in EVALUATED and len(parts) > 1)]
    if taken:
        raise WhetError(f"a reward is called {taken[0]!r}, under which reports show something else; rename it")
    _check_silence(parts)
    _check_gates(parts)


def _counted(
    part: RewardPart,
    parts: Sequence[RewardPart],
    known: Mapping[int, Mapping[str, float]],
    groups: Sequence[Hashable] | None,
) -> dict[int, float]:
    """What the part counts for each scorable sample, before its weight."""
    by_name = {other.name: other for other in parts}
    values: dict[int, float] = {}
    for i, row in known.items():
        value = row[part.name]
        if math.isnan(value):
            continue
        if part.cap is not None:
            value = min(max(value, part.cap[0]), part.cap[1])
        values[i] = value if _is_open(part, by_name, row) else _otherwise(part)
    if part.normalise == "off":
        return values
    members: dict[Hashable, list[int]] = {}
    for i in values:
        members.setdefault(groups[i] if groups is not None and part.normalise == "group" else None, []).append(i)
    for together in members.values():
        values |= zip(together, _normalised([values[i] for i in together]), strict=True)
    return values


def _is_open(part: RewardPart, by_name: Mapping[str, RewardPart], row: Mapping[str, float]) -> bool:
    if part.gate is None:
        return True
    return row[part.gate.part] >= part.gate.least and _is_open(by_name[part.gate.part], by_name, row)


def _otherwise(part: RewardPart) -> float:
    return part.gate.otherwise if part.gate is not None else 0.0


def _normalised(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    if max(values) - min(values) <= SPREAD_FLOOR * max(abs(mean), 1.0):
        return [0.0] * len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return [(value - mean) / (std + STD_FLOOR) for value in values]


def _is_known(row: Mapping[str, float | None]) -> TypeGuard[Mapping[str, float]]:
    return all(value is not None for value in row.values())


def _check_weight(name: str, weight: float, negative: bool) -> None:
    if not math.isfinite(weight):
        raise WhetError(f"reward {name!r} has weight {weight}; give a finite number")
    if weight < 0 and not negative:
        raise WhetError(
            f"reward {name!r} has weight {weight:g}, which pays for doing badly; give a positive weight (also where "
            "its scores are at most 0), or penalty = true where a high score is to be punished"
        )


def _check_cap(name: str, cap: tuple[float, float]) -> None:
    if not (len(cap) == 2 and all(math.isfinite(end) for end in cap) and cap[0] < cap[1]):
        raise WhetError(f"reward {name!r} has cap {cap!r}; give (least, most), two finite numbers that rise")


def _check_silence(parts: Sequence[RewardPart]) -> None:
    """Refuse a schedule with a corner at which every weight is 0; between corners sums of sizes are linear."""
    corners = sorted({position for part in parts for position, _ in part.schedule.points} | {0.0})
    overs = {part.schedule.over for part in parts if isinstance(part.weight, Schedule)}
    if len(overs) > 1:
        raise WhetError("one schedule runs over shares and another over steps; give all of them the same way")
    names = ", ".join(part.name for part in parts)
    for corner in corners:
        if all(part.schedule.at(corner) == 0 for part in parts):
            when = "" if not overs else f" at {corner:g} {'steps' if overs == {'steps'} else 'of the training'}"
            raise WhetError(f"every reward has weight 0{when} ({names}); nothing could be learned, give one a weight")


def _check_gates(parts: Sequence[RewardPart]) -> None:
    gates = {part.name: part.gate.part for part in parts if part.gate is not None}
    names = [part.name for part in parts]
    for name, target in gates.items():
        if target not in names:
            raise WhetError(
                f"the gate of reward {name!r} looks at {target!r}, which is no part{did_you_mean(target, names)}; "
                f"name one of {', '.join(other for other in names if other != name) or 'its neighbours (it has none)'}"
            )
    for name in gates:
        path = [name]
        while path[-1] in gates and gates[path[-1]] not in path:
            path.append(gates[path[-1]])
        if path[-1] in gates:
            circle = [*path[path.index(gates[path[-1]]) :], gates[path[-1]]]
            raise WhetError(f"the gates form a circle ({' -> '.join(circle)}); take one of them away")


def _is_pair(point: object) -> bool:
    return (
        isinstance(point, tuple | list)
        and len(point) == 2
        and all(isinstance(number, int | float) and math.isfinite(number) for number in point)
    )


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
