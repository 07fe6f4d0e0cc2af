"""Layers that the backward pass computes again (gradient checkpointing), under the same hooks as the first time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

FUNCTION = "_gradient_checkpointing_func"  # of transformers: how a layer's forward pass is called


@contextmanager
def recomputed_within(trunk: nn.Module, hooks: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Layers that were called inside are computed again within `hooks()`: by then the hooks of the pass are gone."""
    modules = [module for module in trunk.modules() if FUNCTION in vars(module)]
    functions = [getattr(module, FUNCTION) for module in modules]

    def again(checkpointed: Callable[..., Any]) -> Callable[..., Any]:
        def function(layer: Callable[..., Any], *inputs: Any) -> Any:
            def within(*values: Any) -> Any:
                with hooks():
                    return layer(*values)

            return checkpointed(within, *inputs)

        return function

    try:
        for module, function in zip(modules, functions, strict=True):
            setattr(module, FUNCTION, again(function))
        yield
    finally:
        for module, function in zip(modules, functions, strict=True):
            setattr(module, FUNCTION, function)
