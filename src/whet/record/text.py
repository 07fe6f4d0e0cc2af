"""Numbers and times as people read them, and the small drawings made of characters. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import pairwise
from typing import Any

from whet.record.metrics.intervals import IntervalEstimate

ABSENT = "-"
WIDTH = 80  # of a terminal; what is written for one folds its prose there
ACCURACY_NAMES = ("accuracy", "correct", "correctness", "exact", "exact_match")
RATES = frozenset(
    {*ACCURACY_NAMES, "truncated", "shared", "uniform_groups", "alike", "confidence", "calibration_error", "right_kept"}
    | {"errors_found", "step_calibration_error", "reweighted", "unscorable"}
)
NATS = frozenset({"kl", "kl_old", "kl_completion", "entropy", "drift", "sampler_gap", "sampler_gap_max"})
LOWER_IS_BETTER = frozenset({"loss", "calibration_error", "step_calibration_error", "squared_error", "truncated"})
COUNTS = frozenset({"prompts", "pairs", "rows"})
PHASES = ("start_up", "rollout", "reward", "reference", "teacher", "train", "evaluate", "save")
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.:-=+*#"


def number(value: float | None) -> str:
    """Three significant digits or so; a dash for what was not measured."""
    if value is None or not math.isfinite(value):
        return ABSENT
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.01 else f"{value:.2g}"


def percent(share: float | None) -> str:
    """A share in percent with one decimal."""
    return ABSENT if share is None or not math.isfinite(share) else f"{100 * share:.1f}%"


def count_of(count: int, noun: str) -> str:
    """A count with its noun: 1 pair, 2 pairs."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def quantity(count: float) -> str:
    """A count in thousands (k), millions (M) or billions (G) where it is large."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if count >= size:
            return f"{count / (1e3 if unit == ' k' else size):.3g}{unit}"
    return f"{count:,.0f}"


def memory_text(size: float) -> str:
    """Bytes in powers of 1000."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{number(size / unit)} {name}"
    return f"{size:.0f} bytes"


def duration(seconds: float | None) -> str:
    """Seconds as people read them."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return ABSENT
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def metric_text(name: str, value: float | None) -> str:
    """A metric in the unit its name implies, the same on the console, on the page and in an evaluation.

    Rates are percentages, log-probabilities and divergences nats, lengths tokens, the rest plain numbers.
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    last = name.rpartition("/")[2]
    if last in RATES or last.startswith(("accuracy_", "pass@")) or last.endswith(("accuracy", "_is_longer")):
        return percent(value)
    if last in NATS or last.endswith("logp"):
        return f"{number(value)} nats"
    if last.endswith("_length"):
        return f"{number(value)} tokens"
    if last in COUNTS:
        return f"{value:,.0f}"
    return number(value)


def estimate_text(estimate: IntervalEstimate | None, is_share: bool = True) -> str:
    """A value with its interval; a share in percent."""
    if estimate is None:
        return ABSENT
    if not is_share:
        if not math.isfinite(estimate.low):
            return number(estimate.value)
        return f"{number(estimate.value)} ({number(estimate.low)} to {number(estimate.high)})"
    return f"{percent(estimate.value)} ({100 * estimate.low:.1f}-{100 * estimate.high:.1f})"


def plain_metrics(result: Mapping[str, float]) -> dict[str, float]:
    """The metrics for a line of text; those with a slash in their name are too many for one."""
    return {name: value for name, value in result.items() if "/" not in name}


def words(name: str) -> str:
    """A metric's name as people read it."""
    return name.replace("_", " ")


def headline(values: Mapping[str, Any], preferred: Sequence[str] = ACCURACY_NAMES) -> str | None:
    """The name of the one metric to put in a headline: the first preferred one, an accuracy without a preference."""
    for name in (*preferred, *ACCURACY_NAMES):
        if name in values:
            return name
    return next(iter(values), None)


def saving_text(saving: Mapping[str, float]) -> str:
    """What saving came to, and what a kill would have cost: `saving` of a run's summary."""
    wall = max(saving["wall"], 1e-9)
    failed = f", {saving['failed']:.0f} failed" if saving["failed"] else ""
    return (
        f"{saving['saves']:.0f} saved{failed}; steps waited {duration(saving['held'])} for it "
        f"({percent(saving['held'] / wall)} of the time since start-up), "
        f"{duration(saving['behind'])} of writing behind them; "
        f"a kill would have lost at most {count_of(int(saving['most_lost']), 'step')}"
    )


def label(phase: str) -> str:
    """A phase's name as people read it."""
    return "start-up" if phase in ("start_up", "startup", "start") else phase.replace("_", " ")


def ordered(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    """Phases in the order a run goes through them, unknown ones last; empty ones left out."""
    position = {phase: index for index, phase in enumerate(PHASES)}
    spent = [(phase, took) for phase, took in seconds.items() if took and math.isfinite(took) and took > 0]
    return sorted(spent, key=lambda item: (position.get(item[0], len(position)), item[0]))


def sparkline(values: Sequence[float], width: int = 12, blocks: str = BLOCKS) -> str:
    """The values over time in at most `width` characters, each the mean of its stretch."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    cells = min(width, len(finite))
    edges = [len(finite) * cell // cells for cell in range(cells + 1)]
    means = [sum(finite[start:stop]) / (stop - start) for start, stop in pairwise(edges)]
    low, high = min(means), max(means)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1.0):
        return blocks[len(blocks) // 2] * cells
    return "".join(blocks[round((mean - low) / (high - low) * (len(blocks) - 1))] for mean in means)


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A table as lines of text: the first columns, which are words, to the left, and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust if column < left else str.rjust for column in range(len(widths))]
    return [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in rows
    ]


def listing(entries: Mapping[str, str]) -> str:
    """Names, and to the right of each what is said of it, folded to the width of a terminal."""
    left = max(map(len, entries)) + 2
    return "\n".join(folded(f"{name:{left}}{about}".rstrip(), left) for name, about in entries.items())


def folded(line: str, indent: int = 0) -> str:
    """A line folded to the width of a terminal at its spaces; what follows is indented."""
    head, rest = line[:indent], line[indent:]
    lines = textwrap.wrap(
        rest, WIDTH, initial_indent=head, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines or [head.rstrip()])


def json_values(value: Any) -> Any:
    """A value in JSON's own types. It has no infinity: what is not finite is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): json_values(inner) for key, inner in value.items()}
    return [json_values(inner) for inner in value] if isinstance(value, list | tuple) else value
