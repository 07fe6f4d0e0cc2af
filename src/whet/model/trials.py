"""What was tried out on a checkpoint holds for every copy of it: one that is read again is not tried again.

The stages of a pipeline, the runs of a comparison and the policies of an evaluation read the same files many times.
Where a trial takes long and finds nothing wrong, that is noted in the cache folder, for this code, these packages and
this device: a large model need not be tried out at every start.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import platform
import sys
import time
from collections.abc import Callable, Hashable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from whet.model.local_copies import cache_folder

LONG = 0.5  # seconds of a trial, from which on it is worth a note
SAMPLED = 8  # numbers from either end of every tensor: other weights are another checkpoint
_VERDICTS: dict[Hashable, str] = {}


class TriedModel(Protocol):
    """What tells the trial of one `whet.model.causal_lm.CausalLM` from that of another."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def whole(self) -> bool: ...
    @property
    def takes_positions(self) -> bool: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def recompute(self) -> str: ...
    @property
    def gathering(self) -> object | None: ...


def verdict(name: str, lm: TriedModel, trial: Callable[[], str]) -> str:
    """What this trial says of a model, or said of an earlier copy of its checkpoint in this process."""
    signature = _signature(lm)
    if signature is None:
        return trial()
    if (name, signature) not in _VERDICTS:
        _VERDICTS[name, signature] = _noted_verdict(_note(name, signature, lm.model), trial)
    return _VERDICTS[name, signature]


def _noted_verdict(note: Path, trial: Callable[[], str]) -> str:
    """What the trial says; an earlier process may have noted that it found nothing wrong."""
    if note.is_file():
        return ""
    begun = time.perf_counter()
    verdict = trial()
    if not verdict and time.perf_counter() - begun > LONG:
        with contextlib.suppress(OSError):  # a cache is no reason to fail
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
    return verdict


def _note(name: str, signature: Hashable, model: nn.Module) -> Path:
    """The file that stands for a trial without a finding."""
    device = next(model.parameters()).device
    card = str(torch.cuda.get_device_properties(device)) if device.type == "cuda" else ""
    key = repr((name, signature, card, _software()))
    return cache_folder() / "trials" / hashlib.sha256(key.encode()).hexdigest()[:32]


@functools.cache
def _software() -> tuple[str, ...]:
    """What decides about a trial besides the model: the code that is tried out, and what it stands on."""
    total, package = hashlib.sha256(), Path(__file__).parents[1]
    for file in sorted(path for room in ("model", "rollout") for path in (package / room).rglob("*.py")):
        total.update(file.read_bytes())
    names = ("torch", "transformers", "triton")
    versions = [version(name) for name in names if importlib.util.find_spec(name) is not None]
    return (total.hexdigest(), *versions, platform.machine(), sys.version)


def _signature(lm: TriedModel) -> Hashable | None:
    """What two copies of one checkpoint have in common; None for a model that was not read from one, or was changed."""
    config: Any = getattr(lm.model, "config", None)
    source = getattr(config, "_name_or_path", "")
    modules: list[tuple[str, nn.Module]] = list(lm.model.named_modules())
    if not source or lm.gathering is not None or any(_is_changed(module) for _, module in modules):
        return None
    tensors = dict(lm.model.named_parameters())
    if any(tensor.is_meta for tensor in tensors.values()):
        return None
    shapes = tuple((name, tuple(tensor.shape), tensor.dtype, tensor.device) for name, tensor in tensors.items())
    kinds = tuple((name, type(module)) for name, module in modules)
    how = (lm.dtype, lm.whole, lm.recompute, lm.takes_positions, getattr(config, "_attn_implementation", None))
    return source, config.to_json_string(use_diff=False), kinds, shapes, how, _sampled([*tensors.values()])


def _is_changed(module: nn.Module) -> bool:
    return "forward" in vars(module) or bool(module._forward_hooks or module._forward_pre_hooks)


def _sampled(tensors: list[Tensor]) -> bytes:
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    ends = [end for values in flat for end in (values[:SAMPLED], values[-SAMPLED:])]
    if len({(end.dtype, end.device) for end in ends}) > 1:
        ends = [end.double().cpu() for end in ends]
    return torch.cat(ends).double().cpu().numpy().tobytes() if ends else b""
