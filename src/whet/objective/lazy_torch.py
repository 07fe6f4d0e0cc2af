"""torch, imported at its first use.

The presets say what every method is, and commands that only print text (`whet algorithms`, `explain`, `config`,
`advise`) read them without the seconds that importing torch takes. In the loss layer torch is needed inside functions
alone, so its modules take it from here; from the first use on an attribute is as near as in torch itself.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _ImportedAtFirstUse(ModuleType):
    """Stands for a module until an attribute of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)  # the next time it is found without this method
        return value


if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
    from torch.nn import functional as functional
else:
    Tensor = Any  # it stands in annotations alone, which nothing evaluates
    torch = _ImportedAtFirstUse("torch")
    functional = _ImportedAtFirstUse("torch.nn.functional")
