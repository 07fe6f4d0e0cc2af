"""What a run leaves on disk and shows: the record, the console, its health, report.html and the readers.

`RunRecorder` and `Console` are callbacks; `diagnosis` reads the steps so far; `write_report` draws a run folder as one
page, `run_card` and `run_figure` in small. The fields of the logs are described in docs/report.md.
"""

from whet.report.card import run_card, run_figure
from whet.report.console import Console
from whet.report.health import FindingSpan, HealthFinding, HealthRule, diagnosis, finding_spans, findings, notes
from whet.report.record import (
    EvalRecord,
    RunRecorder,
    eval_records,
    eval_rows,
    read_metrics,
    read_samples,
    read_summary,
    sample_rows,
    step_reports,
    step_rows,
)
from whet.report.run import RunRecord, read_run, verdict
from whet.report.run_page import html_report, write_report
from whet.report.text import metric_text

__all__ = [
    "Console",
    "EvalRecord",
    "HealthFinding",
    "HealthRule",
    "FindingSpan",
    "RunRecord",
    "RunRecorder",
    "diagnosis",
    "eval_records",
    "eval_rows",
    "finding_spans",
    "findings",
    "html_report",
    "metric_text",
    "notes",
    "read_metrics",
    "read_run",
    "read_samples",
    "read_summary",
    "run_card",
    "run_figure",
    "sample_rows",
    "step_reports",
    "step_rows",
    "verdict",
    "write_report",
]
