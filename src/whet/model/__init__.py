"""Models: found and loaded by name, saved in checkpoints that can prove themselves, copied as a reference.

Importing this room does not import transformers; the first load does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whet.model.checkpoint import (
        checkpoint_step,
        complete_checkpoints,
        load_checkpoint,
        prune_checkpoints,
        remove_leftovers,
        save_checkpoint,
        verify_checkpoint,
        weights_digest,
    )
    from whet.model.load import LoadedModel, builtin_models, device_choice, dtype_choice, load_model
    from whet.model.reference import frozen_copy

__all__ = [
    "LoadedModel",
    "builtin_models",
    "checkpoint_step",
    "complete_checkpoints",
    "device_choice",
    "dtype_choice",
    "frozen_copy",
    "load_checkpoint",
    "load_model",
    "prune_checkpoints",
    "remove_leftovers",
    "save_checkpoint",
    "verify_checkpoint",
    "weights_digest",
]

# Imported when a name of theirs is asked for: whoever reads one file of the hub needs no torch.
_MODULES = ("checkpoint", "load", "reference")


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        home = importlib.import_module(f"{__name__}.{module}")
        if hasattr(home, name):
            return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
