"""whet: sharpen language models with reinforcement learning.

import whet
run = whet.train("grpo")          # the built-in model on the built-in task
print(run.before, run.after, run.report)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from whet.api.evaluation import EvalResult, evaluate
    from whet.api.migration import from_trl
    from whet.api.run import Run, load, plot
    from whet.api.training import resume, train
    from whet.protocols import Callback
    from whet.registry import register
    from whet.tools.studies.run_comparison import RunComparison, compare
    from whet.types import Completion, InitialObservation, Opening, Prompt, RunFailed, StepResult, WhetError

__all__ = [
    "Callback",
    "Completion",
    "EvalResult",
    "InitialObservation",
    "Opening",
    "Prompt",
    "Run",
    "RunComparison",
    "RunFailed",
    "StepResult",
    "WhetError",
    "__version__",
    "compare",
    "evaluate",
    "from_trl",
    "load",
    "plot",
    "register",
    "resume",
    "train",
]

# Where each name is defined. torch and transformers take seconds to import; `import whet` must not.
_HOMES = {
    "Callback": "whet.protocols",
    "Completion": "whet.types",
    "InitialObservation": "whet.types",
    "Opening": "whet.types",
    "Prompt": "whet.types",
    "RunComparison": "whet.tools.studies.run_comparison",
    "RunFailed": "whet.types",
    "StepResult": "whet.types",
    "WhetError": "whet.types",
    "compare": "whet.tools.studies.run_comparison",
    "register": "whet.registry",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "whet.api")), name)
    raise AttributeError(f"module 'whet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
