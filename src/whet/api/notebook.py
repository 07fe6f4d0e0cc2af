"""A run in a notebook: one output that shows how far it is, and figures that show themselves."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from whet.types import StepReport, WhetError


def in_notebook() -> bool:
    """Whether the program runs in a Jupyter kernel; nothing is imported to find out."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


PAUSE = 0.25  # seconds between two updates at least: fast steps must not flood the page that shows them
DRAWING_SHARE = 0.02  # at most this share of the time goes into drawing the curve


class NotebookDisplay:
    """A callback that keeps one output of a cell up to date: progress, the newest numbers, and the curve so far."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._title, self._total, self._step = "", 0, 0
        self._lines: dict[str, str] = {}  # by what they are about, so that the newest stands for the older ones
        self._ended = ""
        self._folder, self._figure, self._draw_at, self._show_at = "", "", 0.0, 0.0

    def started(self, summary: Mapping[str, Any]) -> None:
        self._folder = str((summary.get("facts") or {}).get("folder") or "")
        self._title, self._total = str(summary.get("title") or "run"), int(summary.get("total_steps") or 0)
        self._show()

    def stepped(self, report: StepReport, samples: Sequence[Any]) -> None:
        from whet.record.console import step_text

        self._step = report.step
        self._lines["step"] = step_text(report, self._total, None)
        for finding in report.health[:3]:
            self._lines[f"health: {finding.partition(':')[0]}"] = f"health: {finding}"
        if time.monotonic() >= self._draw_at:
            self._draw()
        if time.monotonic() >= self._show_at:
            self._show()

    def evaluated(self, step: int, name: str, result: Mapping[str, float], seconds: float) -> None:
        from whet.record.text import metric_text, words

        values = "  ".join(f"{words(key)} {metric_text(key, value)}" for key, value in result.items())
        self._lines["eval, first" if step == 0 else "eval"] = f"eval at step {step}: {values}"
        self._show()

    def finished(self, summary: Mapping[str, Any]) -> None:
        self._ended = f"{summary.get('status') or 'finished'}: {summary.get('report') or ''}"
        self._tell(summary)
        self._draw()
        self._show()

    def _tell(self, summary: Mapping[str, Any]) -> None:
        """The story of the run, the last evaluation included, in place of the alarms on the way."""
        from whet.record.run import read_run

        try:
            story = read_run(self._folder, summary).story()
        except (OSError, WhetError):  # a run that ended badly may have no record to read
            return
        self._lines = {name: line for name, line in self._lines.items() if not name.startswith("health")}
        self._lines["health"] = story.headline + (f"; {story.change}" if story.change else "")

    def close(self) -> None:
        """End early; what was last shown stays."""
        self._ended = self._ended or "stopped"
        self._show()

    def html(self) -> str:
        """The display as it stands: a progress bar, the latest lines and the figure."""
        bar = f'<progress value="{self._step}" max="{max(1, self._total)}" style="width:20em"></progress>'
        lines = "".join(f"<div>{escape(line)}</div>" for line in [*self._lines.values(), self._ended] if line)
        title = f"<b>whet {escape(self._title)}</b> step {self._step}/{self._total}"
        return f'<div style="font-family:monospace">{title}<br>{bar}{lines}</div>{self._figure}'

    def _draw(self) -> None:
        """Draw the curve from the run's log, which has every step by now; a long log is drawn less often."""
        from whet.pages.card import run_figure

        began = time.monotonic()
        self._figure = run_figure(self._folder) if self._folder else ""
        self._draw_at = time.monotonic() + (time.monotonic() - began) / DRAWING_SHARE

    def _show(self) -> None:
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(self.html()), display_id=True)
        else:
            self._handle.update(HTML(self.html()))
        self._show_at = time.monotonic() + PAUSE
