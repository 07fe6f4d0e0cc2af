"""Checkpoints of a model that lies in shards: what every rank holds, and beside it one folder that anybody can load.

The folder is the one that a single process writes (`whet.model.checkpoint`), with the weights gathered on the first
rank. Weights, optimizer state and everything else that the next step depends on lie in `shards/`, written by torch's
distributed checkpoint: each rank its own part, readable on any other number of ranks. The rules are those of one
process: written under a hidden name, moved when all ranks are done, every file in the manifest.
"""

from __future__ import annotations

import io
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from whet.model.checkpoint import (
    checkpoint_state,
    empty_partial,
    load_tensors,
    partial_of,
    stored_weights,
    verify_checkpoint,
)
from whet.model.placement import fill
from whet.model.pretrained import first_line
from whet.model.run_models import CHECKPOINTS, checkpoint_step, complete_checkpoints
from whet.model.snapshot import Snapshot, SnapshotNotes, model_texts, state_text, write_snapshot
from whet.model.tensor_files import adapter_tensors, stored_factors
from whet.training.distributed.ranks import Ranks
from whet.types import WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARDS = "shards"
WEIGHTS = "model"  # the set of tensors that are the weights themselves
BETWEEN = "|"  # of the name of a set and that of a tensor in it


def is_sharded(path: Path) -> bool:
    """Whether a checkpoint holds its weights in shards."""
    return (path / SHARDS).is_dir()


def save_sharded(
    ranks: Ranks,
    checkpoint: Path | None,
    step: int,
    model: PreTrainedModel,
    tokenizer: Mapping[str, bytes],
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    models: Mapping[Path, Mapping[str, Any]] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write `checkpoint`, all ranks together, and plain `models`; the first rank's `state` is the one that is kept.

    `tokenizer` is its files; for the models and their `dtype` see `write_snapshot`.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    def prepare() -> None:
        if checkpoint is not None:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            empty_partial(checkpoint)

    def finish() -> None:
        texts = {**model_texts(model), **tokenizer}
        snapshot = Snapshot(step, model, texts, weights, factors, {})
        notes = SnapshotNotes(state_text(step, state), models or {})
        named = complete_checkpoints(folder) if checkpoint is None else []
        same = next((path for path in named if checkpoint_step(path) == step), None)
        write_snapshot(snapshot, checkpoint, lambda: notes, dtype, same)

    final = checkpoint or next(iter(models or {}))
    partial, folder = partial_of(final), final.parent / CHECKPOINTS
    with _in_words(ranks, partial, final):
        _first_does(ranks, prepare)
        weights = gathered(model.state_dict(), keep=ranks.is_first)
        factors = gathered(adapter_tensors(model), keep=ranks.is_first)
        if checkpoint is not None:
            flat = {f"{WEIGHTS}{BETWEEN}{key}": value.detach() for key, value in model.named_parameters()}
            for name, values in tensors.items():
                flat |= {f"{name}{BETWEEN}{key}": value.detach().cpu().contiguous() for key, value in values.items()}
            save(flat, storage_writer=FileSystemWriter(partial / SHARDS))
        _first_does(ranks, finish)


def _first_does(ranks: Ranks, work: Callable[[], None]) -> None:
    """Something for the first rank alone; an error there is an error everywhere."""
    ranks.all_of(lambda: work() if ranks.is_first else None)


@contextmanager
def _in_words(ranks: Ranks, partial: Path, final: Path) -> Iterator[None]:
    """A full disk in one line, on whichever rank it was found."""
    from safetensors import SafetensorError
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except (OSError, SafetensorError, CheckpointException) as error:
        cause: BaseException = error
        if isinstance(error, CheckpointException):  # which rank could not write, and why
            rank, (cause, _) = next(iter(error.failures.items()))
            where = f"rank {rank}: "
        else:
            where = ""
        if ranks.is_first:
            shutil.rmtree(partial, ignore_errors=True)
        raise WhetError(
            f"cannot write checkpoint {final} ({where}{first_line(cause)}); earlier checkpoints are untouched: "
            "free space or fix the folder, then resume the run"
        ) from error


def gathered(values: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """The values whole, in CPU memory, on the ranks that `keep` them. One at a time: no rank holds more than it must.

    What shares memory still does: a tied weight is written once.
    """
    wholes: dict[str, Tensor] = {}
    known: dict[tuple[int, torch.Size], Tensor] = {}
    for name, value in values.items():
        local = value.to_local() if isinstance(value, DTensor) else value
        storage = (local.data_ptr(), value.shape)
        if local.numel() and storage in known:
            whole = known[storage]
        else:
            whole = (value.full_tensor() if isinstance(value, DTensor) else value).detach()
            whole = whole.cpu() if keep else whole[:0]
            if local.numel():
                known[storage] = whole
        if keep:
            wholes[name] = whole
    return wholes


def load_sharded(
    ranks: Ranks, path: Path, model: PreTrainedModel
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Put a checkpoint's weights into the model, whole or in shards; its tensors and state.

    The checkpoint may be of one process or of any number of ranks. Tensors come in shards over all ranks where they are
    read from shards; `whet.model.placement` lays them out as they are needed.
    """
    _first_does(ranks, lambda: verify_checkpoint(path))
    if not is_sharded(path):
        _fill_from_files(model, path)
        return load_tensors(path), checkpoint_state(path)
    return _fill_from_shards(ranks, model, path), checkpoint_state(path)


@torch.no_grad()
def _fill_from_files(model: PreTrainedModel, path: Path) -> None:
    """A checkpoint of one process into a model in shards: every rank takes its part of each weight."""
    stored = stored_weights(path, model)
    names: dict[int, list[str]] = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    factors = stored_factors(model, path)
    for same in names.values():
        value = next((tensors[name] for tensors in (stored, factors) for name in same if name in tensors), None)
        target = parameters[same[0]]
        if value is None or value.shape != target.shape:
            shape = "nothing" if value is None else list(value.shape)
            raise WhetError(
                f"checkpoint {path} has {shape} for {same[0]}, the model {list(target.shape)}; load its own model"
            )
        fill(target, value)


@torch.no_grad()
def _fill_from_shards(ranks: Ranks, model: nn.Module, path: Path) -> dict[str, dict[str, Tensor]]:
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = _reader(path / SHARDS)
    try:
        stored = reader.read_metadata().state_dict_metadata
    except (OSError, pickle.UnpicklingError) as error:
        raise WhetError(f"checkpoint {path}: its shards cannot be read ({first_line(error)}); start anew") from error
    parameters = dict(model.named_parameters())
    mesh = _mesh_of(parameters.values())
    targets: dict[str, Tensor] = {}
    for name, kind in stored.items():
        group, _, key = name.partition(BETWEEN)
        if group == WEIGHTS:
            if key not in parameters or parameters[key].shape != kind.size:
                raise WhetError(
                    f"checkpoint {path} holds {key} {list(kind.size)}; it is of another model: load its own"
                )
            targets[name] = parameters[key].detach()
        else:
            # in one piece: it was whole on every rank, such as completions that wait to be trained on
            targets[name] = _empty(kind.size, kind.properties.dtype, mesh if len(kind.chunks) > 1 else None)
    absent = [key for key in parameters if f"{WEIGHTS}{BETWEEN}{key}" not in stored]
    if absent:
        raise WhetError(f"checkpoint {path} lacks {absent[0]}; it was saved from another model: load its own")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that one process reads alone is what was asked for
        load(targets, storage_reader=reader, no_dist=ranks.size == 1)
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, value in targets.items():
        group, _, key = name.partition(BETWEEN)
        if group != WEIGHTS:
            tensors.setdefault(group, {})[key] = value
    return tensors


def _mesh_of(parameters: Any) -> Any:
    """The devices that the model lies on in shards; None where it is whole."""
    return next((parameter.device_mesh for parameter in parameters if isinstance(parameter, DTensor)), None)


def _empty(size: torch.Size, dtype: torch.dtype, mesh: Any) -> Tensor:
    """A place to read a tensor into: this rank's part of it, in CPU memory, where there is a mesh."""
    if mesh is None or not len(size):
        return torch.zeros(size, dtype=dtype)
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, _ = compute_local_shape_and_global_offset(size, mesh, [Shard(0)])
    local = torch.zeros(shape, dtype=dtype)
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=size, stride=_stride(size))


def _stride(size: torch.Size) -> tuple[int, ...]:
    return torch.empty(size, device="meta").stride()


# all that torch's metadata of plain tensors is made of; a pickle may name anything else that Python can run
KNOWN = {
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
    "pathlib",
}
KNOWN_NAMES = {("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict")}


class _PlainUnpickler(pickle.Unpickler):
    """Reads metadata of tensors and refuses everything else: a checkpoint may come from somebody else."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in KNOWN_NAMES or (module in KNOWN and "." not in name):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"its metadata names {module}.{name}, which no checkpoint needs")


def _reader(folder: Path) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    class ShardReader(FileSystemReader):
        """Torch's own reader, with metadata read without running anything."""

        def read_metadata(self, *arguments: Any, **named: Any) -> Any:
            metadata = _PlainUnpickler(io.BytesIO((folder / ".metadata").read_bytes())).load()
            if getattr(metadata, "storage_meta", None) is not None:
                metadata.storage_meta.load_id = self.load_id
            return metadata

    return ShardReader(folder)
