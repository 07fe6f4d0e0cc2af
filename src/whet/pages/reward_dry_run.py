"""The result of a dry run of a reward on saved or given answers, as text and JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from whet.record.metrics.correlation import correlations
from whet.record.metrics.distribution import TOTAL, distribution, histogram, is_flat
from whet.record.text import duration, number, percent

GOLD = ("gold answer", "gold solution")
BAR = 28  # characters of a text histogram's longest bar
SHOWN = 5  # slowest samples, failures, ...
STRONG = 0.5  # a correlation from here on is worth a word


@dataclass(frozen=True)
class ScoredAnswer:
    """One answer and what the reward gave it."""

    where: str  # file and line, or the run and step
    kind: str  # "gold answer", "gold solution", "chosen", "rejected", "completion"
    prompt_id: str
    question: str
    answer: str  # the gold one; empty without
    completion: str
    tokens: int
    parts: Mapping[str, float | None]  # None: unscorable, or failed
    total: float | None
    seconds: float = 0.0
    failures: Mapping[str, str] = field(default_factory=dict)  # part -> what went wrong
    reason: str = ""  # why it could not be judged
    step: int = 0  # of the run it comes from


@dataclass(frozen=True)
class PartFacts:
    """What is known of a part besides its scores."""

    name: str
    weight: str
    hash: str
    deterministic: bool = True  # what it says of itself
    says_right: bool = True  # 1 means right; the scores of a reward model have no such value


@dataclass(frozen=True)
class RepeatDifference:
    """A sample that was scored differently the second time."""

    where: str
    part: str
    first: float | None
    second: float | None


@dataclass(frozen=True)
class Trial:
    """A dry run."""

    title: str
    hash: str
    source: str  # what was scored
    notes: tuple[str, ...]  # assumptions made on the way
    parts: tuple[PartFacts, ...]
    scored: tuple[ScoredAnswer, ...]
    differences: tuple[RepeatDifference, ...] | None  # None: scored once only
    seconds: float
    pieces: Mapping[str, str] = field(default_factory=dict)
    controls: tuple[ScoredAnswer, ...] = ()  # wrong completions, scored by the first part alone

    @property
    def columns(self) -> dict[str, list[float | None]]:
        """Scores of the total and of each part, in the order of the samples."""
        columns: dict[str, list[float | None]] = {TOTAL: [each.total for each in self.scored]}
        return columns | {part.name: [each.parts.get(part.name) for each in self.scored] for part in self.parts}

    @property
    def gold(self) -> list[ScoredAnswer]:
        """Answers that the first part must give 1; none where its scores do not say what is right."""
        if not self.parts[0].says_right:
            return []
        return [each for each in self.scored if each.kind in GOLD]

    @property
    def gold_misses(self) -> list[ScoredAnswer]:
        """Gold answers that the first part, the one that says whether a completion is right, does not give 1."""
        first = self.parts[0].name
        return [each for each in self.gold if each.parts.get(first) is not None and each.parts[first] != 1]

    @property
    def pairs(self) -> list[tuple[ScoredAnswer, ScoredAnswer]]:
        """Chosen and rejected completions to one prompt, where both have a score."""
        return [
            (chosen, rejected)
            for chosen, rejected in pairwise(self.scored)
            if (chosen.kind, rejected.kind) == ("chosen", "rejected")
            and chosen.total is not None
            and rejected.total is not None
        ]

    def pairs_in_order(self) -> int:
        """Pairs whose chosen completion scores higher."""
        return sum((chosen.total or 0.0) > (rejected.total or 0.0) for chosen, rejected in self.pairs)

    @property
    def unscorable(self) -> list[ScoredAnswer]:
        return [each for each in self.scored if each.total is None and not each.failures]

    @property
    def failed(self) -> list[ScoredAnswer]:
        return [each for each in self.scored if each.failures]

    @property
    def slowest(self) -> list[ScoredAnswer]:
        return sorted(self.scored, key=lambda each: -each.seconds)[:SHOWN]

    def never_vary(self) -> list[str]:
        """Parts with one score for everything: they cannot teach anything here."""
        columns = self.shown_columns()
        return [name for name, scores in columns.items() if len(_finite(scores)) > 1 and is_flat(_finite(scores))]

    def shown_columns(self) -> dict[str, list[float | None]]:
        """The columns, without the total where it only repeats the one part."""
        columns = self.columns
        return {name: columns[name] for name in columns if name != TOTAL or len(self.parts) > 1}

    def with_length(self) -> list[tuple[str, float | None, float | None]]:
        """(part, Pearson, Spearman) of each part's scores with the length of the completions."""
        lengths: list[float | None] = [float(each.tokens) for each in self.scored]
        return [
            (name, *correlations({"tokens of it": lengths, name: scores})[0][2:])  # no reward can be called that
            for name, scores in self.shown_columns().items()
        ]

    def with_each_other(self) -> list[tuple[str, str, float | None, float | None]]:
        return correlations({name: scores for name, scores in self.columns.items() if name != TOTAL})

    def gold_rate(self) -> float | None:
        first = self.parts[0].name
        scored = [each for each in self.gold if each.parts.get(first) is not None]
        return 1 - len(self.gold_misses) / len(scored) if scored else None

    @property
    def controls_passed(self) -> list[ScoredAnswer]:
        """Wrong controls that the first part gives full marks."""
        return [each for each in self.controls if (each.parts.get(self.parts[0].name) or 0.0) >= 1]

    def control_kinds(self) -> dict[str, tuple[int, int]]:
        """kind -> (passed, judged) of the wrong controls."""
        first, passed = self.parts[0].name, self.controls_passed
        judged = [each for each in self.controls if each.parts.get(first) is not None]
        return {
            kind: (sum(each.kind == kind for each in passed), sum(each.kind == kind for each in judged))
            for kind in dict.fromkeys(each.kind for each in self.controls)
        }

    def troubles(self) -> list[str]:
        """What makes the reward unfit as it is, in words; [] for a sound one."""
        unsteady = {part.name for part in self.parts if not part.deterministic}
        broken = [each for each in self.differences or () if each.part not in unsteady]
        troubles = []
        if self.scored and len(self.unscorable) == len(self.scored):
            reasons = list(dict.fromkeys(each.reason for each in self.unscorable if each.reason))
            troubles.append(f"every sample is unscorable{': ' if reasons else ''}{'; '.join(reasons[:2])}")
        blind = [
            (kind, judged) for kind, (passed, judged) in self.control_kinds().items() if judged and passed == judged
        ]
        if blind:
            kinds = ", ".join(f"{kind} {judged} of {judged}" for kind, judged in blind)
            troubles.append(
                f"wrong completions score 1 on every prompt ({kinds}): it cannot tell right from wrong; "
                "where it is not meant to, give --no-controls"
            )
        failed = [*self.failed, *(each for each in self.controls if each.failures)]
        if failed:
            troubles.append(f"it fails on {len(failed)} samples")
        if self.gold_misses:
            troubles.append(f"{len(self.gold_misses)} gold answers do not score 1")
        if broken:
            troubles.append(f"{len(broken)} scores differ the second time")
        return troubles

    def is_sound(self) -> bool:
        """True when nothing failed, gold answers score 1 and wrong ones less, and scores stay as they are."""
        return not self.troubles()


def trial_record(trial: Trial) -> dict[str, Any]:
    """The trial as JSON."""
    return {
        "title": trial.title,
        "hash": trial.hash,
        "source": trial.source,
        "notes": list(trial.notes),
        "samples": len(trial.scored),
        "seconds": trial.seconds,
        "parts": {
            part.name: {
                "weight": part.weight,
                "hash": part.hash,
                "deterministic": part.deterministic,
                "distribution": distribution(_finite(trial.columns[part.name])),
                "histogram": [list(each) for each in histogram(_finite(trial.columns[part.name]))],
            }
            for part in trial.parts
        },
        "total": distribution(_finite(trial.columns[TOTAL])),
        "gold": {
            "samples": len(trial.gold),
            "rate": trial.gold_rate(),
            "misses": [_brief(each) for each in trial.gold_misses],
        },
        "pairs": {"count": len(trial.pairs), "in_order": trial.pairs_in_order()},
        "controls": {
            "kinds": {kind: list(counts) for kind, counts in trial.control_kinds().items()},
            "passed": [_brief(each) for each in trial.controls_passed],
        },
        "unscorable": [_brief(each) | {"reason": each.reason} for each in trial.unscorable],
        "failures": [_brief(each) | {"failures": dict(each.failures)} for each in trial.failed],
        "slowest": [_brief(each) | {"seconds": each.seconds} for each in trial.slowest],
        "never_vary": trial.never_vary(),
        "with_length": [list(each) for each in trial.with_length()],
        "with_each_other": [list(each) for each in trial.with_each_other()],
        "deterministic": None if trial.differences is None else not trial.differences,
        "differences": [[each.where, each.part, each.first, each.second] for each in trial.differences or ()],
        "sound": trial.is_sound(),
        "troubles": trial.troubles(),
        "pieces": dict(trial.pieces),
    }


def trial_text(trial: Trial, most: int = SHOWN) -> str:
    """The trial for a terminal."""
    lines = [
        f"{trial.title}    version {trial.hash}",
        f"{trial.source}: {len(trial.scored)} samples in {duration(trial.seconds)}",
        *(f"  {note}" for note in trial.notes),
    ]
    for name, scores in trial.shown_columns().items():
        lines += ["", *_histogram_lines(name, scores, trial)]
    lines += ["", *_gold_lines(trial, most), *_control_lines(trial, most), *_pair_lines(trial)]
    for title, answers in (("unscorable", trial.unscorable), ("failed", trial.failed)):
        lines.append(f"{title:14} {len(answers)} of {len(trial.scored)}")
        lines += [f"  {each.where}: {_why(each)}" for each in answers[:most]]
        lines += [f"  and {len(answers) - most} more"] if len(answers) > most else []
    lines.append(f"{'never vary':14} {', '.join(trial.never_vary()) or 'none'}")
    lines += _steady_lines(trial, most)
    lines += ["", *_correlation_lines(trial), "", "slowest"]
    lines += [
        f"  {duration(each.seconds):>8}  {each.where}  {shortened(each.completion, 60)}" for each in trial.slowest
    ]
    troubles = trial.troubles()
    lines += ["", f"{'sound':14} {'no' if troubles else 'yes'}", *(f"  {each}" for each in troubles)]
    return "\n".join(lines)


def _histogram_lines(name: str, scores: Sequence[float | None], trial: Trial) -> list[str]:
    finite = _finite(scores)
    facts = next((part for part in trial.parts if part.name == name), None)
    about = f"  weight {facts.weight}  {facts.hash}" if facts is not None else ""
    if not finite:
        return [f"{name}{about}: no scores"]
    spread = distribution(finite)
    quartiles = ", ".join(f"{label} {number(spread[label])}" for label in ("min", "q1", "median", "q3", "max", "mean"))
    bins = histogram(finite)
    highest = max(count for *_, count in bins)
    labels = [number(low) if low == high else f"{number(low)} to {number(high)}" for low, high, _ in bins]
    width = max(map(len, labels))
    return [
        f"{name}{about}",
        f"  {quartiles}",
        *(
            f"  {label:>{width}}  {_bar(count / highest)}  {count} ({percent(count / len(finite))})"
            for label, (*_, count) in zip(labels, bins, strict=True)
        ),
    ]


def _bar(share: float) -> str:
    return ("#" * math.ceil(BAR * share)).ljust(BAR)


def _gold_lines(trial: Trial, most: int) -> list[str]:
    if not trial.gold:
        return []
    first, misses = trial.parts[0].name, trial.gold_misses
    scored = sum(each.parts.get(first) is not None for each in trial.gold)
    lines = [f"{'gold = 1':14} {percent(trial.gold_rate())}: {scored - len(misses)} of {scored} by {first}"]
    lines += [
        f"  {each.where} ({each.kind}): {number(each.parts[first])} for {shortened(each.answer, 40)}"
        for each in misses[:most]
    ]
    return lines + ([f"  and {len(misses) - most} more"] if len(misses) > most else [])


def _control_lines(trial: Trial, most: int) -> list[str]:
    if not trial.controls:
        return []
    kinds, passed = trial.control_kinds(), trial.controls_passed
    judged = sum(count for _, count in kinds.values())
    counts = ", ".join(f"{kind} {judged - passed} of {judged}" for kind, (passed, judged) in kinds.items())
    if not judged:
        return [f"{'wrong < 1':14} unknown: no wrong control could be judged ({', '.join(kinds)})"]
    lines = [f"{'wrong < 1':14} {percent(1 - len(passed) / judged)}: {counts}"]
    lines += [f"  {each.where} ({each.kind}): 1 for {shortened(each.completion, 60)!r}" for each in passed[:most]]
    return lines + ([f"  and {len(passed) - most} more"] if len(passed) > most else [])


def _pair_lines(trial: Trial) -> list[str]:
    if not trial.pairs:
        return []
    right, count = trial.pairs_in_order(), len(trial.pairs)
    return [f"{'pairs':14} {percent(right / count)}: the chosen completion scores higher in {right} of {count}"]


def _steady_lines(trial: Trial, most: int) -> list[str]:
    stated = [part.name for part in trial.parts if not part.deterministic]
    stated_text = f"; {', '.join(stated)} says it is not" if stated else ""
    if trial.differences is None:
        return [f"{'deterministic':14} not checked{stated_text}"]
    if not trial.differences:
        return [f"{'deterministic':14} yes, scored twice{stated_text}"]
    lines = [f"{'deterministic':14} no: {len(trial.differences)} scores differ the second time{stated_text}"]
    return lines + [
        f"  {each.where}: {each.part} {_score(each.first)}, then {_score(each.second)}"
        for each in trial.differences[:most]
    ]


def _correlation_lines(trial: Trial) -> list[str]:
    pairs = [(name, "length", linear, ranked) for name, linear, ranked in trial.with_length()]
    pairs += trial.with_each_other()
    width = max(len(f"{one}, {two}") for one, two, *_ in pairs)
    lines = [f"{'correlation':{width + 2}}   Pearson  Spearman"]
    for one, two, linear, ranked in pairs:
        cells = "".join(f"{'-':>10}" if value is None else f"{value:>+10.2f}" for value in (linear, ranked))
        strong = max(abs(linear or 0.0), abs(ranked or 0.0)) >= STRONG
        lines.append(f"  {f'{one}, {two}':{width}}{cells}{'  strong' if strong else ''}")
    return lines


def _why(answer: ScoredAnswer) -> str:
    if answer.failures:
        return next(iter(answer.failures.values()))
    if answer.reason:
        return answer.reason
    parts = ", ".join(name for name, value in answer.parts.items() if value is None)
    return f"{parts} cannot judge it, gold {shortened(answer.answer, 40)}"


def _brief(answer: ScoredAnswer) -> dict[str, Any]:
    return {
        "where": answer.where,
        "kind": answer.kind,
        "prompt_id": answer.prompt_id,
        "answer": answer.answer,
        "completion": shortened(answer.completion, 200),
        "parts": dict(answer.parts),
        "total": answer.total,
    }


def _score(value: float | None) -> str:
    return "unscorable" if value is None else number(value)


def _finite(scores: Sequence[float | None]) -> list[float]:
    return [score for score in scores if score is not None and math.isfinite(score)]


def shortened(text: str, most: int) -> str:
    """One line of at most `most` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 3]}..."
