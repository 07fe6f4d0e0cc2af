"""What a run leaves on disk: the log, its readers, statistics over it, and its health.

`RunRecorder` and `Console` are callbacks; `diagnosis` reads the steps so far. The fields of the logs are described in
docs/report.md; `whet.pages` draws them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whet.record.console import Console
    from whet.record.health import FindingSpan, HealthFinding, HealthRule, diagnosis, finding_spans, findings, notes
    from whet.record.log import (
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
    from whet.record.run import RunRecord, read_run, verdict
    from whet.record.text import metric_text

__all__ = [
    "Console",
    "EvalRecord",
    "FindingSpan",
    "HealthFinding",
    "HealthRule",
    "RunRecord",
    "RunRecorder",
    "diagnosis",
    "eval_records",
    "eval_rows",
    "finding_spans",
    "findings",
    "metric_text",
    "notes",
    "read_metrics",
    "read_run",
    "read_samples",
    "read_summary",
    "sample_rows",
    "step_reports",
    "step_rows",
    "verdict",
]

# Imported in this order when a name of theirs is asked for: whoever reads a log needs neither rules nor console.
_MODULES = ("log", "text", "run", "health", "console")


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        home = importlib.import_module(f"{__name__}.{module}")
        if hasattr(home, name):
            return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
