"""A run in one frame of a terminal: how far, how good, how healthy, how fast, and what it writes. Pure.

Words from a run are stripped of what a terminal would obey. Lines are cut to the width, and the least important ones
are left out until the frame fits the height.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from whet.record.run import RunRecord
from whet.record.run_kinds import StepMetric
from whet.record.text import (
    ASCII_BLOCKS,
    BLOCKS,
    duration,
    label,
    metric_text,
    number,
    ordered,
    plain_metrics,
    sparkline,
    words,
)
from whet.types import StepReport

TRACE = 24  # characters of a curve
STEPS_FOR_PACE = 20
STYLES = {"running": "bold green", "finished": "bold", "failed": "bold red", "interrupted": "bold yellow"}


@dataclass(frozen=True)
class WatchFrame:
    """What is known when a frame is drawn."""

    run: RunRecord
    status: str  # as `Run.status` finds it: a run whose process is gone is not running
    since: float  # seconds since the log last grew
    above: str = ""  # the pipeline and its stage


def plain(text: Any, longest: int = 400) -> str:
    """One line without terminal codes, control characters, marks that turn the direction, or runs of blanks."""
    printable = "".join(
        " " if character in "\n\r\t" else character
        for character in str(text)[: 4 * longest]
        if character in "\n\r\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn")
    )
    return " ".join(printable.split())[:longest]


def frame_lines(frame: WatchFrame, width: int = 80, height: int = 24, unicode: bool = True) -> list[Text]:
    """The frame as lines, none wider than `width`, at most `height` of them."""
    # the larger, the sooner a section is left out
    sections: list[tuple[int, list[Text]]] = [
        (0, _head(frame)),
        (0, _progress(frame, width, unicode)),
        (2, _curves(frame.run, unicode)),
        (1, _evaluation(frame.run, width)),
        (1, _health(frame.run, width)),
        (3, _speed(frame.run, width)),
        (4, _samples(frame.run)),
    ]
    shown = [(rank, lines) for rank, lines in sections if lines]
    while sum(len(lines) for _, lines in shown) > max(1, height) and len(shown) > 1:
        worst = max(rank for rank, _ in shown)
        index = max(index for index, (rank, _) in enumerate(shown) if rank == worst)
        rank, lines = shown[index]
        if len(lines) > 1:
            shown[index] = (rank, lines[:-1])
        else:
            del shown[index]
    lines = [line for _, section in shown for line in section][: max(1, height)]
    for line in lines:
        line.no_wrap = True
        line.truncate(max(1, width), overflow="ellipsis" if unicode else "crop")
    return lines


def _head(frame: WatchFrame) -> list[Text]:
    run = frame.run
    status = Text(frame.status, style=STYLES.get(frame.status, ""))
    lines = [Text(frame.above, style="dim")] if frame.above else []
    return [*lines, Text.assemble((plain(run.title, 60), "bold"), "  ", status, "  ", (plain(run.folder), "dim"))]


def _progress(frame: WatchFrame, width: int, unicode: bool) -> list[Text]:
    run = frame.run
    total = int(run.summary.get("total_steps") or 0)
    if not run.steps:
        begun = "starting: no step yet" if frame.status == "running" else "no step was made"
        return [Text(begun, style="dim")]
    share = min(1.0, run.num_steps / total) if total else 0.0
    cells = max(4, min(30, width - 46))
    full = round(cells * share)
    bar = ("█" * full + "░" * (cells - full)) if unicode else ("#" * full + "." * (cells - full))
    parts = [f"step {run.num_steps}/{total or '?'} ", bar, f" {share:.0%}"]
    pace = _pace(run.steps)
    if frame.status == "running" and pace is not None and total > run.num_steps:
        parts.append(f"  {duration(max(0.0, pace * (total - run.num_steps) - frame.since))} left")
        if frame.since > max(30.0, 5 * pace):
            parts.append(f"  (no news for {duration(frame.since)})")
    return [Text("".join(parts))]


def _pace(steps: Sequence[StepReport]) -> float | None:
    """Seconds of a step, by the last ones."""
    took = [sum(step.seconds.values()) for step in steps[-STEPS_FOR_PACE:]]
    finite = [value for value in took if math.isfinite(value) and value > 0]
    return sum(finite) / len(finite) if finite else None


def _curves(run: RunRecord, unicode: bool) -> list[Text]:
    blocks = BLOCKS if unicode else ASCII_BLOCKS
    shown: list[StepMetric] = [*run.kind.main, *run.kind.line]
    names = max((len(metric.label) for metric in shown), default=0)
    lines = []
    for metric in shown:
        values = [value for step in run.steps if (value := metric.measure(step)) is not None and math.isfinite(value)]
        if values:
            curve, newest = sparkline(values, TRACE, blocks), metric_text(metric.name, values[-1])
            before = f"  from {metric_text(metric.name, values[0])}" if len(values) > 1 else ""
            lines.append(
                Text.assemble(
                    (f"{metric.label:<{names}}  ", "dim"),
                    (f"{curve:<{TRACE}}  ", "green"),
                    (newest, "bold"),
                    (before, "dim"),
                )
            )
    return lines


def _evaluation(run: RunRecord, width: int) -> list[Text]:
    if not run.evals:
        return []
    last = run.evals[-1]
    first = next((evaluation for evaluation in run.evals if evaluation.name == last.name), last)
    values = []
    evaluations = run.evaluations()
    newest, best = evaluations.last, evaluations.best
    for name, value in plain_metrics(last.result).items():
        before = first.result.get(name)
        change = f" (from {metric_text(name, before)})" if first is not last and before is not None else ""
        if newest is None or best is None or name != newest.metric or newest.step != last.step:
            values.append(f"{words(name)} {metric_text(name, value)}{change}")
            continue
        at = "" if best is newest else f", best {best.text} at step {best.step}"
        values.append(f"{words(name)} {newest.text}{change}{at}")
    return _named(f"eval at step {last.step}", values, width)


def _health(run: RunRecord, width: int) -> list[Text]:
    """The story of the run, folded: what happened, and what to change."""
    story = run.story()
    if not run.steps and story.state != "failed":
        return []
    if story.state not in ("failed", "problem"):
        # what is printed behind a run that has ended says the same
        said = f"health fine: {story.headline}" if run.status == "running" else "health fine"
        return [Text(line, style="dim") for line in _folded(plain(said), max(20, width))]
    lines: list[Text] = []
    sentences = [story.headline, *story.evidence[:2]] if story.state == "failed" else [story.headline]
    sentences += [f"change: {story.change}"] if story.change else []
    for text in sentences:
        folded = _folded(plain(text), max(20, width - 2))
        lines += [Text(f"{'! ' if index == 0 else '  '}{line}", style="yellow") for index, line in enumerate(folded)]
    return lines


def _named(name: str, values: Sequence[str], width: int) -> list[Text]:
    """A name in front of its values, in as many lines as they take."""
    lines = [""]
    for value in values:
        if lines[-1] and len(name) + 2 + len(lines[-1]) + 2 + len(value) > width:
            lines.append("")
        lines[-1] += f"  {value}"
    heads = [name, *(" " * len(name) for _ in lines[1:])]
    return [Text.assemble((head, "dim"), line) for head, line in zip(heads, lines, strict=True)]


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _speed(run: RunRecord, width: int) -> list[Text]:
    seconds = dict(ordered(run.seconds()))
    total = sum(seconds.values())
    if total <= 0:
        return []
    tokens = run.tokens()
    speed = [f"{number(tokens / total)} tokens/s"] if tokens else []
    split = [f"{label(phase)} {took / total:.0%}" for phase, took in seconds.items()]
    return _named("time", [duration(total), *speed, *split], width)


def _samples(run: RunRecord) -> list[Text]:
    """The best and the worst completion of the newest recorded step."""
    scored = [row for row in run.last_samples if isinstance(row.get("reward"), int | float)]
    if not scored:
        return []
    best, worst = max(scored, key=_reward), min(scored, key=_reward)
    chosen: list[tuple[str, Mapping[str, Any]]] = [("best", best)]
    if worst is not best and _reward(worst) < _reward(best):
        chosen.append(("worst", worst))
    lines = []
    for name, sample in chosen:
        head = f"{name:<5} {number(_reward(sample))}  "
        lines.append(Text.assemble((head, "dim"), (f"{plain(sample.get('question', ''), 60)}  ", "dim")))
        lines.append(Text(f"      {plain(sample.get('completion', '')) or '(nothing)'}"))
    return lines


def _reward(sample: Mapping[str, Any]) -> float:
    return float(sample["reward"])
