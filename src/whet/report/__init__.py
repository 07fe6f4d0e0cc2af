"""What a run leaves on disk and shows: the record, the console, its health and report.html.

`Record` and `Console` are callbacks; `diagnosis` reads the steps so far; `write_report` draws a run folder as one
page. This room sees only `whet.types` and `whet.protocols`. The fields of the logs are described in docs/report.md.
"""

from whet.report.console import Console
from whet.report.health import Episode, Finding, diagnosis, episodes, findings, notes
from whet.report.html import html_report, write_report
from whet.report.record import (
    Evaluation,
    Record,
    evaluations,
    read_metrics,
    read_samples,
    read_summary,
    step_reports,
)
from whet.report.run import Run, read_run, verdict

__all__ = [
    "Console",
    "Episode",
    "Evaluation",
    "Finding",
    "Record",
    "Run",
    "diagnosis",
    "episodes",
    "evaluations",
    "findings",
    "html_report",
    "notes",
    "read_metrics",
    "read_run",
    "read_samples",
    "read_summary",
    "step_reports",
    "verdict",
    "write_report",
]
