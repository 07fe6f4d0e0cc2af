"""whet: sharpen language models with reinforcement learning.

import whet
run = whet.train("grpo")          # the built-in model on the built-in task
print(run.before, run.after, run.report)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from whet.api import Run, evaluate, resume, train
    from whet.registry import register

__all__ = ["Run", "__version__", "evaluate", "register", "resume", "train"]


# Loading a subpackage puts it under its name here. Loaded now and taken away again, the room called `train` never
# stands in front of the function: a second `whet.train(...)` would find a module.
import whet.train as _room

globals().pop("train")
del _room


def __getattr__(name: str) -> Any:
    # torch and transformers take seconds to import; `import whet` must not
    if name in ("Run", "evaluate", "resume", "train"):
        from whet import api

        return getattr(api, name)
    if name == "register":
        from whet.registry import register

        return register
    raise AttributeError(f"module 'whet' has no attribute {name!r}")
