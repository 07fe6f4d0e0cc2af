"""What a pipeline, a study or a comparison prints while it runs, and how its stages are worked off."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from whet.record.text import duration, number
from whet.tools.pipelines.stages import FinishedStage, Interrupted, Stage, run_stages
from whet.types import Prompt, RunFailed, Sample, StepReport, WhetError


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Print at once; what the terminal's encoding does not have is replaced, never an error."""
    output = sys.stdout if stream is None else stream
    encoding = getattr(output, "encoding", None) or "utf-8"
    try:
        "\u00b1".encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("\u00b1", "+-")
    print(text.encode(encoding, "replace").decode(encoding), file=output, flush=True)


class ProgressLine:
    """A callback that keeps one line of a terminal up to date; elsewhere it is silent."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name, self._stream = name, stream
        self._is_live = stream.isatty()
        self._total, self._steps, self._began = 0, 0, time.monotonic()

    def started(self, summary: Mapping[str, Any]) -> None:
        self._total, self._began = int(summary.get("total_steps") or 0), time.monotonic()
        self._show("starting")

    def stepped(self, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> None:
        self._steps += 1
        left = (time.monotonic() - self._began) / self._steps * (self._total - report.step)
        reward = number(report.reward.get("total"))
        self._show(f"step {report.step}/{self._total}  reward {reward}  {duration(left)} left")

    def evaluated(self, step: int, name: str, result: Mapping[str, float], seconds: float) -> None:
        pass

    def finished(self, summary: Mapping[str, Any]) -> None:
        pass

    def clear(self) -> None:
        """Erase the line, if the stream is a terminal."""
        if self._is_live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _show(self, text: str) -> None:
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{f'{self.name}  {text}'[:width]}")
            self._stream.flush()


class ProgressPrinter:
    """Prints what each stage does and what came out, and draws the page again after each."""

    def __init__(self, title: str, draw: Callable[[Mapping[str, FinishedStage]], object]) -> None:
        self._draw = draw
        self.finished: dict[str, FinishedStage] = {}
        self.current = ""
        print_line(f"{title}\n")

    def stage_started(self, number: int, total: int, stage: Stage) -> None:
        self.current = stage.name
        print_line(f"[{number}/{total}] {stage.name}: {stage.about}")

    def stage_replaced(self, stage: Stage, kept: Path) -> None:
        print_line(f"      {stage.name} was made of other inputs and runs again; what it had left is in {kept}")

    def stage_finished(self, number: int, total: int, stage: Stage, done: FinishedStage, is_old: bool) -> None:
        self.finished[stage.name] = done
        if is_old:
            print_line(f"[{number}/{total}] {stage.name}: {stage.about}")
        took = "done before" if is_old else duration(done.seconds)
        print_line(f"      {done.result.get('summary', 'done')}  ({took})")
        if done.result.get("stop_reason"):
            print_line(f"      stopping here: {done.result['stop_reason']}")
        if not is_old:
            self._draw(self.finished)


def run_with_progress(stages: Sequence[Stage], folder: Path, printer: ProgressPrinter) -> str:
    """Run the stages in a folder that the caller has locked; finished or interrupted. An error names its stage."""
    try:
        run_stages(stages, folder, printer)
    except (Interrupted, KeyboardInterrupt):
        return "interrupted"
    except WhetError as error:
        kind = RunFailed if isinstance(error, RunFailed) else WhetError
        raise kind(f"{printer.current}: {error}" if printer.current else str(error)) from error
    return "finished"
