"""The dry run of a reward on saved or given answers: what it shows, as text, JSON and a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from whet.pages.chart_specs import NUM_TONES, scatter
from whet.pages.render import Figure, PageTable, Tile, render
from whet.record.metrics.distribution import TOTAL, correlations, distribution, histogram, is_flat
from whet.record.text import duration, number, percent

GOLD = ("gold answer", "gold solution")
BAR = 28  # characters of a text histogram's longest bar
SHOWN = 5  # slowest samples, failures, ...
MOST_ROWS = 30  # of a table of the page
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
class DryRun:
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
        columns: dict[str, list[float | None]] = {TOTAL: [answer.total for answer in self.scored]}
        return columns | {part.name: [answer.parts.get(part.name) for answer in self.scored] for part in self.parts}

    @property
    def gold(self) -> list[ScoredAnswer]:
        """Answers that the first part must give 1; none where its scores do not say what is right."""
        if not self.parts[0].says_right:
            return []
        return [answer for answer in self.scored if answer.kind in GOLD]

    @property
    def gold_misses(self) -> list[ScoredAnswer]:
        """Gold answers that the first part, the one that says whether a completion is right, does not give 1."""
        first = self.parts[0].name
        return [answer for answer in self.gold if answer.parts.get(first) is not None and answer.parts[first] != 1]

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
        """Answers that no part failed on and that have no score."""
        return [answer for answer in self.scored if answer.total is None and not answer.failures]

    @property
    def failed(self) -> list[ScoredAnswer]:
        """Answers that a part failed on."""
        return [answer for answer in self.scored if answer.failures]

    @property
    def slowest(self) -> list[ScoredAnswer]:
        """The answers that took longest."""
        return sorted(self.scored, key=lambda sample: -sample.seconds)[:SHOWN]

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
        lengths: list[float | None] = [float(answer.tokens) for answer in self.scored]
        return [
            (name, *correlations({"tokens of it": lengths, name: scores})[0][2:])  # no reward can be called that
            for name, scores in self.shown_columns().items()
        ]

    def with_each_other(self) -> list[tuple[str, str, float | None, float | None]]:
        """(part, part, Pearson, Spearman) of every pair of parts."""
        return correlations({name: scores for name, scores in self.columns.items() if name != TOTAL})

    def gold_rate(self) -> float | None:
        """The share of gold answers that score 1; None where none could be judged."""
        first = self.parts[0].name
        scored = [answer for answer in self.gold if answer.parts.get(first) is not None]
        return 1 - len(self.gold_misses) / len(scored) if scored else None

    @property
    def controls_passed(self) -> list[ScoredAnswer]:
        """Wrong controls that the first part gives full marks."""
        return [answer for answer in self.controls if (answer.parts.get(self.parts[0].name) or 0.0) >= 1]

    def control_kinds(self) -> dict[str, tuple[int, int]]:
        """kind -> (passed, judged) of the wrong controls."""
        first, passed = self.parts[0].name, self.controls_passed
        judged = [answer for answer in self.controls if answer.parts.get(first) is not None]
        return {
            kind: (sum(answer.kind == kind for answer in passed), sum(answer.kind == kind for answer in judged))
            for kind in dict.fromkeys(answer.kind for answer in self.controls)
        }

    def troubles(self) -> list[str]:
        """What makes the reward unfit as it is, in words; [] for a sound one."""
        unsteady = {part.name for part in self.parts if not part.deterministic}
        broken = [difference for difference in self.differences or () if difference.part not in unsteady]
        troubles = []
        if self.scored and len(self.unscorable) == len(self.scored):
            reasons = list(dict.fromkeys(answer.reason for answer in self.unscorable if answer.reason))
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
        failed = [*self.failed, *(answer for answer in self.controls if answer.failures)]
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


def dry_run_record(test: DryRun) -> dict[str, Any]:
    """The dry run as JSON."""
    return {
        "title": test.title,
        "hash": test.hash,
        "source": test.source,
        "notes": list(test.notes),
        "samples": len(test.scored),
        "seconds": test.seconds,
        "parts": {
            part.name: {
                "weight": part.weight,
                "hash": part.hash,
                "deterministic": part.deterministic,
                "distribution": distribution(_finite(test.columns[part.name])),
                "histogram": [list(column) for column in histogram(_finite(test.columns[part.name]))],
            }
            for part in test.parts
        },
        "total": distribution(_finite(test.columns[TOTAL])),
        "gold": {
            "samples": len(test.gold),
            "rate": test.gold_rate(),
            "misses": [_brief(answer) for answer in test.gold_misses],
        },
        "pairs": {"count": len(test.pairs), "in_order": test.pairs_in_order()},
        "controls": {
            "kinds": {kind: list(counts) for kind, counts in test.control_kinds().items()},
            "passed": [_brief(answer) for answer in test.controls_passed],
        },
        "unscorable": [_brief(answer) | {"reason": answer.reason} for answer in test.unscorable],
        "failures": [_brief(answer) | {"failures": dict(answer.failures)} for answer in test.failed],
        "slowest": [_brief(answer) | {"seconds": answer.seconds} for answer in test.slowest],
        "never_vary": test.never_vary(),
        "with_length": [list(row) for row in test.with_length()],
        "with_each_other": [list(row) for row in test.with_each_other()],
        "deterministic": None if test.differences is None else not test.differences,
        "differences": [
            [difference.where, difference.part, difference.first, difference.second]
            for difference in test.differences or ()
        ],
        "sound": test.is_sound(),
        "troubles": test.troubles(),
        "pieces": dict(test.pieces),
    }


def dry_run_text(test: DryRun) -> str:
    """The dry run for a terminal."""
    lines = [
        f"{test.title}    version {test.hash}",
        f"{test.source}: {len(test.scored)} samples in {duration(test.seconds)}",
        *(f"  {note}" for note in test.notes),
    ]
    for name, scores in test.shown_columns().items():
        lines += ["", *_histogram_lines(name, scores, test)]
    lines += ["", *_gold_lines(test), *_control_lines(test), *_pair_lines(test)]
    for title, answers in (("unscorable", test.unscorable), ("failed", test.failed)):
        lines.append(f"{title:14} {len(answers)} of {len(test.scored)}")
        lines += _first([f"  {answer.where}: {_why(answer)}" for answer in answers])
    lines.append(f"{'never vary':14} {', '.join(test.never_vary()) or 'none'}")
    lines += _steady_lines(test)
    lines += ["", *_correlation_lines(test), "", "slowest"]
    lines += [
        f"  {duration(answer.seconds):>8}  {answer.where}  {shortened(answer.completion, 60)}"
        for answer in test.slowest
    ]
    troubles = test.troubles()
    lines += ["", f"{'sound':14} {'no' if troubles else 'yes'}", *(f"  {text}" for text in troubles)]
    return "\n".join(lines)


def _histogram_lines(name: str, scores: Sequence[float | None], test: DryRun) -> list[str]:
    finite = _finite(scores)
    facts = next((part for part in test.parts if part.name == name), None)
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


def _gold_lines(test: DryRun) -> list[str]:
    if not test.gold:
        return []
    first, misses = test.parts[0].name, test.gold_misses
    scored = sum(answer.parts.get(first) is not None for answer in test.gold)
    lines = [f"{'gold = 1':14} {percent(test.gold_rate())}: {scored - len(misses)} of {scored} by {first}"]
    missed = [f"{miss.where} ({miss.kind}): {number(miss.parts[first])}" for miss in misses]
    listed = [f"  {text} for {shortened(miss.answer, 40)}" for text, miss in zip(missed, misses, strict=True)]
    return lines + _first(listed)


def _control_lines(test: DryRun) -> list[str]:
    if not test.controls:
        return []
    kinds, passed = test.control_kinds(), test.controls_passed
    judged = sum(count for _, count in kinds.values())
    counts = ", ".join(f"{kind} {judged - passed} of {judged}" for kind, (passed, judged) in kinds.items())
    if not judged:
        return [f"{'wrong < 1':14} unknown: no wrong control could be judged ({', '.join(kinds)})"]
    lines = [f"{'wrong < 1':14} {percent(1 - len(passed) / judged)}: {counts}"]
    listed = [f"  {answer.where} ({answer.kind}): 1 for {shortened(answer.completion, 60)!r}" for answer in passed]
    return lines + _first(listed)


def _first(lines: list[str]) -> list[str]:
    return [*lines[:SHOWN], *([f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])]


def _pair_lines(test: DryRun) -> list[str]:
    if not test.pairs:
        return []
    right, count = test.pairs_in_order(), len(test.pairs)
    return [f"{'pairs':14} {percent(right / count)}: the chosen completion scores higher in {right} of {count}"]


def _steady_lines(test: DryRun) -> list[str]:
    stated = [part.name for part in test.parts if not part.deterministic]
    stated_text = f"; {', '.join(stated)} says it is not" if stated else ""
    if test.differences is None:
        return [f"{'deterministic':14} not checked{stated_text}"]
    if not test.differences:
        return [f"{'deterministic':14} yes, scored twice{stated_text}"]
    lines = [f"{'deterministic':14} no: {len(test.differences)} scores differ the second time{stated_text}"]
    return lines + [
        f"  {difference.where}: {difference.part} {_score(difference.first)}, then {_score(difference.second)}"
        for difference in test.differences[:SHOWN]
    ]


def _correlation_lines(test: DryRun) -> list[str]:
    pairs = [(name, "length", linear, ranked) for name, linear, ranked in test.with_length()]
    pairs += test.with_each_other()
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


def dry_run_page(test: DryRun) -> str:
    """A dry run on one page."""
    lists = (
        ("Gold answers that do not score 1", test.gold_misses),
        ("Wrong controls that score 1", test.controls_passed),
        ("Failures", test.failed),
        ("Unscorable", test.unscorable),
        ("Slowest", test.slowest),
    )
    differences = None
    if test.differences:
        rows = [
            (difference.where, difference.part, number(difference.first), number(difference.second))
            for difference in test.differences
        ]
        differences = PageTable(("", "part", "first", "second"), tuple(rows[:MOST_ROWS]))
    return render(
        "reward_dry_run.html",
        title=test.title,
        eyebrow="whet reward test",
        about=(f"version {test.hash}",),
        status="finished" if test.is_sound() else "failed",
        status_text="sound" if test.is_sound() else "look closer",
        verdict=dry_run_verdict(test),
        tiles=dry_run_tiles(test),
        notes=(test.source, *test.notes),
        figures=distribution_figures(test),
        parts=[part.name for part in test.parts],
        tables=[(title, answer_table(rows, test)) for title, rows in lists if rows],
        differences=differences,
        num_differences=len(test.differences or ()),
        correlations=[
            (f"{one}, {two}", [(correlation_text(value), abs(value or 0.0) >= STRONG) for value in values])
            for one, two, *values in test.with_each_other()
        ],
        version=dict(test.pieces),
        source=test.source,
    )


def dry_run_verdict(test: DryRun) -> str:
    """The dry run in a few sentences."""
    sentences = [f"{trouble[0].upper()}{trouble[1:]}." for trouble in test.troubles()[:2]]
    rate = test.gold_rate()
    if rate is not None:
        sentences.append(f"{percent(rate)} of the gold answers score 1.")
    if test.failed:
        sentences.append(f"It failed on {len(test.failed)} of {len(test.scored)} samples.")
    if test.unscorable:
        sentences.append(f"{len(test.unscorable)} samples are unscorable.")
    flat = test.never_vary()
    if flat:
        sentences.append(f"{', '.join(flat)} never var{'ies' if len(flat) == 1 else 'y'} here.")
    if test.differences:
        sentences.append(f"{len(test.differences)} scores differed the second time.")
    leans = [
        name for name, *pair in test.with_length() if max(abs(correlation or 0.0) for correlation in pair) >= STRONG
    ]
    if leans:
        sentences.append(f"{', '.join(leans)} go{'es' if len(leans) == 1 else ''} with the length of the completion.")
    return " ".join(sentences) or f"{len(test.scored)} samples were scored, and nothing stood out."


def dry_run_tiles(test: DryRun) -> list[Tile]:
    """The headline numbers of the dry run."""
    totals = [answer.total for answer in test.scored if answer.total is not None]
    steady = "not checked" if test.differences is None else "no" if test.differences else "yes"
    return [
        Tile("samples", f"{len(test.scored):,}"),
        Tile("gold = 1", percent(test.gold_rate())),
        Tile("mean total", number(distribution(totals).get("mean") if totals else None)),
        Tile("unscorable", str(len(test.unscorable))),
        Tile("failures", str(len(test.failed))),
        Tile("deterministic", steady),
        Tile("time", duration(test.seconds)),
    ]


def distribution_figures(test: DryRun) -> list[Figure]:
    """A histogram of each part, and its scores against the length of the completions."""
    figures = []
    together = {name: values for name, *values in test.with_length()}
    for tone, (name, scores) in enumerate(test.shown_columns().items()):
        finite = _finite(scores)
        if not finite:
            continue
        spread = distribution(finite)
        weight = next((f"weight {part.weight}" for part in test.parts if part.name == name), "weighted sum")
        note = (
            f"min {number(spread['min'])} · quartiles {number(spread['q1'])}, {number(spread['median'])}, "
            f"{number(spread['q3'])} · max {number(spread['max'])} · {percent(spread['at_max'])} at the top"
        )
        columns = {"columns": histogram(finite), "tone": tone % NUM_TONES}
        figures.append(Figure(name, weight, columns, last=f"mean {number(spread['mean'])}", note=note))
        note = ", ".join(
            f"{kind} {correlation_text(value)}"
            for kind, value in zip(("Pearson", "Spearman"), together[name], strict=True)
        )
        pairs = zip(test.scored, scores, strict=True)
        points = [(float(answer.tokens), score) for answer, score in pairs if score is not None]
        figures.append(Figure(f"{name} by length", "tokens of the completion", scatter(points, tone), note=note))
    return figures


def correlation_text(value: float | None) -> str:
    """A correlation with its sign."""
    return "-" if value is None else f"{value:+.2f}"


def answer_table(rows: Sequence[ScoredAnswer], test: DryRun) -> dict[str, Any]:
    """The first of some answers, with what each part gave them."""
    return {
        "count": len(rows),
        "more": max(0, len(rows) - MOST_ROWS),
        "rows": [
            {
                "where": row.where,
                "kind": row.kind,
                "scores": [number(row.parts.get(part.name)) for part in test.parts],
                "time": duration(row.seconds),
                "gold": shortened(row.answer, 120),
                "completion": shortened(row.completion, 300),
                "failures": list(row.failures.values()),
            }
            for row in rows[:MOST_ROWS]
        ],
    }
