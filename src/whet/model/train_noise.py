"""Train mode without noise: the policy that learns must be the policy that wrote the samples.

Dropout is off from the moment a model is loaded (`whet.model.load`). Some models draw more in train mode: routers that
jitter or sample their experts, layers that are skipped at random. Which modules do is found by trying: with one kind of
module in train mode and all others in eval mode, several passes over one row. These kinds stay in eval mode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from whet.model.causal_lm import CausalLM
from whet.model.trials import verdict
from whet.types import WhetError

PASSES = 3  # a layer that is skipped now and then may be there in one of them
TOLERANCE = 1e-3  # of the largest state; train mode may take other kernels, which round differently


@torch.no_grad()
def switch_off_noise(lm: CausalLM) -> str:
    """Make train mode compute what eval mode does; what was switched off, for the run's facts, or empty.

    Done once, before training. `WhetError` where the two modes still differ.
    """
    single = replace(lm, dtype=lm.finest)
    modules = [(module, module.training) for module in lm.model.modules()]
    try:
        if not verdict("train mode", single, lambda: _differs_in_train_mode(single)):
            return ""
        lm.model.eval()
        expected = _states(single)
        noisy = [
            kind for kind in dict.fromkeys(type(module) for module, _ in modules) if _is_noisy(single, kind, expected)
        ]
        names = [kind.__name__ for kind in noisy]
        for module, _ in modules:
            if type(module) in noisy:
                _keep_quiet(module)
        if left := _noise(single, expected):
            raise WhetError(
                f"{type(lm.model).__name__} computes something else in train mode than in eval mode (states differ by "
                f"{left:.1e}), so it cannot learn from its own samples; switch its training noise off in config.json"
            )
        return f"{', '.join(names)}: off (eval mode is what samples were written in)"
    finally:
        for module, training in modules:
            module.training = training and not isinstance(module, _Quiet)


def _differs_in_train_mode(lm: CausalLM) -> str:
    lm.model.eval()
    return "differs" if _noise(lm, _states(lm)) else ""


def _states(lm: CausalLM) -> Tensor:
    tokens = (torch.arange(2, 10, device=lm.device) * 7 % lm.vocabulary)[None]
    return lm.hidden(tokens)


def _noise(lm: CausalLM, expected: Tensor) -> float:
    """How far train mode is from what eval mode gives, where that is more than rounding; else 0."""
    lm.model.train()
    return _gap(lm, expected)


def _is_noisy(lm: CausalLM, kind: type, expected: Tensor) -> bool:
    lm.model.eval()
    for module in lm.model.modules():
        if type(module) is kind:
            module.training = True
    return _gap(lm, expected) > 0


def _gap(lm: CausalLM, expected: Tensor) -> float:
    devices = [lm.device] if lm.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # the run's own random numbers stay as they are
        worst = max(float((_states(lm) - expected).abs().max() / expected.abs().max()) for _ in range(PASSES))
    lm.model.eval()
    return 0.0 if worst <= TOLERANCE else worst


class _Quiet:
    """Marks the classes that `_keep_quiet` makes."""


def _keep_quiet(module: nn.Module) -> None:
    """The module stays in eval mode whatever is asked for; its children follow."""
    kind = type(module)

    def train(self: Any, mode: bool = True) -> Any:
        nn.Module.train(self, mode)
        self.training = False
        return self

    # the same name, since a checkpoint's config.json names the class of its model
    module.__class__ = type(kind.__name__, (_Quiet, kind), {"train": train, "__module__": kind.__module__})
