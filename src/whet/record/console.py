"""The run as it is watched: a live display on a terminal, plain lines everywhere else.

The display never hides the cursor nor takes over the screen, so a process that is killed leaves a usable terminal.
Words from outside (titles, facts, findings) are shown as they are, never read as markup.
"""

from __future__ import annotations

import atexit
import io
import math
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console as Terminal
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from whet.record.evaluations import Evaluations, Measurement, best_measurement
from whet.record.health.finding import recorded_finding
from whet.record.run_kinds import RunKind, StepMetric, kind_of
from whet.record.text import (
    ASCII_BLOCKS,
    BLOCKS,
    WIDTH,
    duration,
    headline,
    label,
    memory_text,
    metric_text,
    number,
    ordered,
    plain_metrics,
    quantity,
    sparkline,
    words,
)
from whet.types import Prompt, Sample, StepReport

STEPS_FOR_ETA = 20
BAR_WIDTH = 28  # of the longest phase, in characters
NOT_EVALUATED = "not evaluated: no held-out rows; give eval.source (`whet data split` makes them)"
SWITCHED_OFF = "not evaluated: eval.prompts is 0"
NamedCell = tuple[str, RenderableType]


class Console:
    """A callback for people. Use it as a context manager, or call `close`, to end the display early."""

    def __init__(self, stream: TextIO | None = None, seconds_between_lines: float = 2.0) -> None:
        """`seconds_between_lines` thins the plain lines of very fast steps; it has no effect on a terminal."""
        self._stream = stream or sys.stdout or io.StringIO()  # a process may have been started without stdout
        self._terminal = Terminal(file=self._stream, highlight=False, markup=False, emoji=False)
        # asked of the stream itself: colour forced through the environment does not make a pipe a terminal
        self._is_live = self._stream.isatty() and not self._terminal.is_dumb_terminal
        self._unicode = "utf" in self._terminal.encoding.lower()
        self._pause = seconds_between_lines
        self._live: Live | None = None
        self._total = 0
        self._report: StepReport | None = None
        self._kind: RunKind | None = None
        self._main: list[float] = []
        self._evals: dict[str, Evaluations] = {}  # by metric
        self._headline = ""  # the metric that leads
        self._eval_size = 0
        self._intervals: deque[float] = deque(maxlen=STEPS_FOR_ETA)
        self._stepped_at = time.monotonic()
        self._ends_at = math.inf  # by the budget of the run
        self._printed_at = -math.inf
        self._reported: set[str] = set()

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def started(self, summary: Mapping[str, Any]) -> None:
        """Print what is about to run, and begin the display on a terminal."""
        self._total = int(summary.get("total_steps") or 0)
        self._eval_size = int(summary.get("eval_size") or 0)
        earlier = best_measurement(summary)
        if earlier is not None:  # of a run that is resumed
            self._evals[earlier.metric], self._headline = Evaluations((earlier,)), earlier.metric
        self._stepped_at = time.monotonic()
        self._ends_at = self._stepped_at + 3600 * float(summary.get("hours") or math.inf)
        self._print(header(summary))
        if self._is_live:
            self._live = Live(get_renderable=self._display, console=self._terminal, refresh_per_second=4)
            self._live.start()
            self._terminal.show_cursor(True)
            atexit.register(self.close)

    def stepped(self, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> None:
        """Show a step."""
        now = time.monotonic()
        self._intervals.append(now - self._stepped_at)
        self._stepped_at, self._report = now, report
        self._kind = kind_of([report])
        value = self._kind.main[0].measure(report)
        self._main.append(math.nan if value is None else value)
        if self._live is not None:
            return
        if report.step >= self._total or now - self._printed_at >= self._pause:
            self._printed_at = now
            self._write(step_text(report, self._total, self._eta()))
        for text in report.health:
            finding = recorded_finding(text)
            # the same finding with the numbers of a later step is no news; what the run does about it is
            if finding.name not in self._reported or not finding.is_problem:
                self._reported.add(finding.name)
                self._write(f"  health: {text}")

    def evaluated(self, step: int, name: str, result: Mapping[str, float], seconds: float) -> None:
        """Show an evaluation."""
        metrics = plain_metrics(result)
        main = headline(metrics, self._kind.evals if self._kind is not None else ())
        if main is None:
            return
        for key, value in metrics.items():  # the kind of run, and so the headline, is not known before the first step
            if math.isfinite(value):
                newest = Measurement(step, key, float(value), self._eval_size)
                self._evals[key] = Evaluations((*self._evals.get(key, Evaluations()).measured, newest))
        self._headline = main
        if self._live is None:
            texts = {key: metric_text(key, value) for key, value in metrics.items()}
            if math.isfinite(metrics[main]):
                texts[main] = eval_text(self._evals[main])
            values = "  ".join(f"{words(key)} {text}" for key, text in texts.items())
            which = "eval" if name == "eval" else f"eval {name}"
            self._write(f"{which} at step {step}  {values}  ({duration(seconds)})")

    def save_failed(self, step: int, reason: str) -> None:
        """Tell of a save that the disk refused, at once: the next may be as unlucky."""
        line = f"checkpoint of step {step} {reason}"
        if self._live is None:
            self._write(line)
        else:
            self._terminal.print(Text(line, style="yellow"))

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Print what the run came to."""
        self.close()
        self._print(closing(summary, self._unicode))

    def close(self) -> None:
        """End the live display; what it last showed stays on the screen."""
        live, self._live = self._live, None
        if live is not None:
            atexit.unregister(self.close)
            live.stop()

    def _eta(self) -> float | None:
        if not self._intervals or self._report is None:
            return None
        pace = sum(self._intervals) / len(self._intervals)
        left = pace * (self._total - self._report.step) - (time.monotonic() - self._stepped_at)
        return max(0.0, min(left, self._ends_at - time.monotonic()))

    def _display(self) -> RenderableType:
        return display(self._report, self._total, self._eta(), self._sparklines())

    def _sparklines(self) -> list[tuple[str, str, str]]:
        """Name, value and trace of the quantity that is trained and of each headline evaluation."""
        blocks = BLOCKS if self._unicode else ASCII_BLOCKS
        lines: list[tuple[str, str, list[float]]] = []
        if self._main and self._kind is not None:
            main = self._kind.main[0]
            lines.append((main.label, metric_text(main.name, self._main[-1]), self._main))
        if (evaluations := self._evals.get(self._headline)) is not None:
            values = [measured.value for measured in evaluations.measured]
            lines.append((f"eval {words(self._headline)}", eval_text(evaluations), values))
        return [(name, value, sparkline(values, 16, blocks)) for name, value, values in lines]

    def _print(self, rows: RenderableType) -> None:
        if self._is_live:
            self._terminal.print(rows, width=min(WIDTH, self._terminal.width))
        else:
            # a log file has no width: lines are not folded, so that they can be searched
            page = io.StringIO()
            Terminal(file=page, width=400, color_system=None, highlight=False, markup=False, emoji=False).print(rows)
            self._write("\n".join(line.rstrip() for line in page.getvalue().splitlines()))

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            print(text.encode(encoding, "replace").decode(encoding), file=self._stream, flush=True)
        except (OSError, ValueError):  # the terminal is gone, the pipe or the stream closed: training goes on unwatched
            self._stream = io.StringIO()


def eval_text(evaluations: Evaluations) -> str:
    """The last evaluation and, where that is another, the best, each with its interval."""
    best, last = evaluations.best, evaluations.last
    if best is None or last is None:
        return ""
    return last.text if best is last else f"{last.text}, best {best.text} at step {best.step}"


def step_text(report: StepReport, total_steps: int, eta: float | None) -> str:
    """One step in one line of plain text."""
    texts = [f"step {report.step}/{total_steps}" if total_steps else f"step {report.step}"]
    texts += [f"{name} {value}" for name, value in step_values(report, with_main=True)]
    if eta is not None and total_steps > report.step:
        texts.append(f"{duration(eta)} left")
    return "  ".join(texts)


def step_values(report: StepReport, with_main: bool = False) -> list[tuple[str, str]]:
    """The few numbers of a step worth watching in this kind of run; those that were not measured are left out."""
    kind = kind_of([report])
    cells: tuple[StepMetric, ...] = (*(kind.main if with_main else ()), *kind.line)
    values = ((metric, metric.measure(report)) for metric in cells)
    return [(metric.label, metric_text(metric.name, value)) for metric, value in values if value is not None]


def display(
    report: StepReport | None, total_steps: int, eta: float | None, traces: Sequence[tuple[str, str, str]]
) -> RenderableType:
    """The live display: progress, traces, numbers and health, within 80 columns."""
    if report is None:
        return Padding(Text("starting: the first step is on its way", style="dim"), (1, 0, 0, 2))
    progress = Table.grid(padding=(0, 1))
    done = f"{report.step / total_steps:.0%}" if total_steps else ""
    left = f"{duration(eta)} left" if eta is not None and report.step < total_steps else ""
    progress.add_row(
        Text(f"step {report.step}/{total_steps}", style="bold"),
        ProgressBar(total=max(1, total_steps), completed=report.step, width=34, complete_style="green"),
        Text(f"{done}  {left}", style="dim"),
    )
    curves = Text("  ").join(
        Text.assemble((f"{name} ", "dim"), (value, "bold"), (f" {line} ", "green")) for name, value, line in traces
    )
    values = Text("   ").join(Text.assemble((f"{name} ", "dim"), value) for name, value in step_values(report))
    health = [Text(finding, style="yellow") for finding in report.health[:3]] or [Text("health fine", style="dim")]
    texts = [text for text in (curves, values) if text]
    return Padding(Stack(progress, *texts, *health), (1, 2, 0, 2))


def header(summary: Mapping[str, Any]) -> RenderableType:
    """What is about to run: title, effective objective, facts."""
    lines = [str(line) for line in summary.get("objective") or ()]
    rows: list[NamedCell] = [("objective" if index == 0 else "", Text(line)) for index, line in enumerate(lines)]
    rows += [(str(name), Text(str(value))) for name, value in (summary.get("facts") or {}).items()]
    return Stack(Text(f"\nwhet  {summary.get('title') or 'run'}", style="bold"), Text(), _table(rows), Text())


def closing(summary: Mapping[str, Any], unicode: bool = True) -> RenderableType:
    """What a run came to: the gain, where the time went, and what to do next."""
    rows: list[NamedCell] = []
    before, after = (plain_metrics(summary.get(name) or {}) for name in ("before", "after"))
    arrow = "→" if unicode else "->"
    for name, value in after.items():
        change = f"{metric_text(name, before.get(name))} {arrow} {metric_text(name, value)}"
        rows.append((words(name), Text(change, style="bold")))
    rows += [(words(name), Text(metric_text(name, value))) for name, value in before.items() if name not in after]
    best = str((summary.get("evaluations") or {}).get("text") or "")
    if best:
        rows.append(("evaluation", Text(best, style="bold")))
    elif not before and not after and summary.get("total_steps"):
        is_off = (summary.get("settings") or {}).get("eval.prompts") == 0
        rows.append(("evaluation", Text(SWITCHED_OFF if is_off else NOT_EVALUATED)))
    seconds = dict(ordered(summary.get("seconds") or {}))
    total = sum(seconds.values())
    if total > 0:
        rows.append(("time", _time_table(seconds, "█" if unicode else "#")))
    tokens = summary.get("tokens") or 0
    if tokens and total > 0:
        writing = seconds.get("rollout", 0)
        burst = f", {number(tokens / writing)} while generating" if writing > 0 else ""
        rows.append(("tokens", Text(f"{quantity(tokens)}, {number(tokens / total)} per second{burst}")))
    if summary.get("memory"):
        rows.append(("peak memory", Text(memory_text(summary["memory"]))))
    endings = [name for name in ("ended", "checkpoints", "models", "trackers", "report", "next") if summary.get(name)]
    rows += [(name, Text(str(summary[name]), style="bold")) for name in endings]
    status = str(summary.get("status") or "finished")
    style = "bold" if status == "finished" else "bold yellow"
    return Stack(Text(f"\n{status}  {duration(total)}", style=style), Text(), _table(rows), Text())


def _time_table(seconds: Mapping[str, float], block: str) -> Table:
    total, longest = sum(seconds.values()), max(seconds.values())
    table = Table.grid(padding=(0, 2, 0, 0))
    for column, style in enumerate(("", "green", "", "dim")):
        table.add_column(justify="right" if column >= 2 else "left", style=style, no_wrap=True)
    for phase, took in seconds.items():
        bar = block * max(1, round(BAR_WIDTH * took / longest))
        table.add_row(Text(label(phase)), Text(bar), Text(duration(took)), Text(f"{took / total:.0%}"))
    return table


def _table(rows: Sequence[NamedCell]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, min_width=9)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), value)
    return Padding(table, (0, 0, 0, 2), expand=False)
