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
    from whet.api.run import Run, load
    from whet.api.training import resume, train
    from whet.protocols import Callback
    from whet.types import WhetError

__all__ = [
    "Callback",
    "EvalResult",
    "Run",
    "WhetError",
    "__version__",
    "evaluate",
    "load",
    "resume",
    "train",
]

# Where each name is defined. torch and transformers take seconds to import; `import whet` must not.
_HOMES = {"Callback": "whet.protocols", "WhetError": "whet.types"}

# Loading a subpackage puts it under its name here. Loaded now and taken away again, a room called like a function
# (`train`, `evaluate`) never stands in front of it: a second `whet.train(...)` would find a module.
for _room in ("evaluate", "train"):
    importlib.import_module(f"whet.{_room}")
    del globals()[_room]
del _room


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "whet.api")), name)
    raise AttributeError(f"module 'whet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
