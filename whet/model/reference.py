"""The reference policy: what the trained one is held close to."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def frozen_copy(model: Model) -> Model:
    """A copy with memory of its own, in eval mode, that can neither learn nor be changed by training the original."""
    reference = copy.deepcopy(model)
    reference.eval()
    reference.requires_grad_(False)
    return reference
