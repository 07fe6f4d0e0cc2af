"""whet from Python: the same runs as on the command line, as functions that return values."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whet.api.evaluation import EvalResult, evaluate, evaluation_config
    from whet.api.migration import from_trl
    from whet.api.run import Run, load, plot
    from whet.api.serve import serve
    from whet.api.training import resume, train

__all__ = ["EvalResult", "Run", "evaluate", "evaluation_config", "from_trl", "load", "plot", "resume", "serve", "train"]

_HOMES = {"EvalResult": "evaluation", "evaluate": "evaluation", "evaluation_config": "evaluation"}
_HOMES |= {
    "Run": "run",
    "load": "run",
    "plot": "run",
    "resume": "training",
    "from_trl": "migration",
    "serve": "serve",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    # reading a run folder needs none of what training one imports
    if name in _HOMES:
        return getattr(importlib.import_module(f"whet.api.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'whet.api' has no attribute {name!r}")
