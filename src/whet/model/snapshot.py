"""Writing checkpoints and plain models from copies in host memory, while the training goes on.

`take_snapshot` is all that a step waits for. `write_snapshot` may run in another thread: it never reads the model's own
weights, writes and hashes files side by side, and moves each folder to its place when every byte of it is on the disk.

Copies of tensors in host memory: what a training waits for when it is saved, and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import mmap
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from whet.model.checkpoint import (
    STATE,
    empty_partial,
    files_written,
    in_pieces,
    partial_of,
    publish,
    tensors_file,
    write_manifest,
)
from whet.model.low_precision import saved_weights
from whet.model.pretrained import first_line, saved_texts, weight_files
from whet.model.run_models import ABOUT
from whet.model.tensor_files import (
    ADAPTER,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    Job,
    Written,
    adapter_config,
    adapter_tensors,
    always,
    hash_file,
    tensor_bytes,
    write_file,
)
from whet.threads import in_threads, side_by_side
from whet.types import WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


logger = logging.getLogger(__name__)
PORTABLE = 1  # cudaHostRegisterPortable
SLAB = 1 << 28  # bytes that are pinned in one go: the driver lets nobody else in meanwhile
ALIGNMENT = 64


class BufferLayout(NamedTuple):
    """Everything that the buffer for a tensor depends on."""

    shape: torch.Size
    dtype: torch.dtype
    is_cuda: bool


def layout_of(value: Tensor) -> BufferLayout:
    """The layout of a tensor."""
    return BufferLayout(value.shape, value.dtype, value.is_cuda)


class HostMemory:
    """Buffers that are filled again at every save. Those for tensors of a GPU are pinned: copies run at full speed.

    They are cut from slabs: to get, pin and give back a gigabyte in large pages takes a fraction of the time.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._pinned: list[int] = []  # addresses of slabs
        self._can_pin = True
        self._devices: set[torch.device] = set()
        self._reserving: Future[None] | None = None

    def reserve(self, layouts: dict[str, BufferLayout]) -> None:
        """Make buffers in a thread: to get gigabytes from the system takes longer than to fill them."""

        def work() -> None:
            waiting: dict[str, BufferLayout] = {}
            for name, layout in layouts.items():
                if waiting and sum(map(_room, waiting.values())) + _room(layout) > SLAB:
                    self._make(waiting)
                    waiting = {}
                waiting[name] = layout
            self._make(waiting)

        (self._reserving,) = in_threads([work], 1, "whet-reserve")

    @property
    def is_ready(self) -> bool:
        """Whether nothing is being reserved."""
        return self._reserving is None or self._reserving.done()

    @torch.no_grad()
    def copy(self, name: str, value: Tensor) -> Tensor:
        """The value in the buffer of that name; of a GPU's tensor only after `wait`."""
        self._join()
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            self._make({name: layout_of(value)})
            buffer = self._buffers[name]
        buffer.copy_(value.detach(), non_blocking=value.is_cuda)
        if value.is_cuda:
            self._devices.add(value.device)
        return buffer

    def wait(self) -> None:
        """Wait until every copy has arrived."""
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()
        self._devices.clear()

    def release(self) -> None:
        """Return the buffers' memory to the system."""
        self._join()
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned.clear()
        self._buffers.clear()

    def _join(self) -> None:
        if self._reserving is not None:
            wait([self._reserving])  # what it could not make is made when it is needed
            self._reserving = None

    def _make(self, layouts: Mapping[str, BufferLayout]) -> None:
        """Buffers of these layouts in a slab of their own."""
        size = sum(map(_room, layouts.values()))
        if not size:
            self._buffers |= {name: torch.empty(layout.shape, dtype=layout.dtype) for name, layout in layouts.items()}
            return
        slab = _slab(size)
        # the system hands out memory when it is touched first; left to the driver, the GPU could do nothing meanwhile
        slab.zero_()
        if self._can_pin and any(layout.is_cuda for layout in layouts.values()):
            # torch's own pinned memory rounds every tensor up to a power of two
            status = int(torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), size, PORTABLE))
            if status == 0:
                self._pinned.append(slab.data_ptr())
            else:
                self._can_pin = False
                logger.warning(
                    "host memory for checkpoints cannot be pinned (CUDA error %d): steps wait longer at a save; raise "
                    "the limit on locked memory (ulimit -l)",
                    status,
                )
        start = 0
        for name, layout in layouts.items():
            part = slab[start : start + layout.shape.numel() * layout.dtype.itemsize]
            self._buffers[name] = part.view(layout.dtype).reshape(layout.shape)
            start += _room(layout)


def _room(layout: BufferLayout) -> int:
    """Bytes of a buffer in its slab: the next one begins where every number type may."""
    return -(-layout.shape.numel() * layout.dtype.itemsize // ALIGNMENT) * ALIGNMENT


def _slab(size: int) -> Tensor:
    """Allocate memory for this process alone, in large pages where the system has them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


WRITERS = 8  # threads that write and hash: two for each of the large files, which are few
FORMAT = {"format": "pt"}  # transformers asks for it


class SaveFailed(WhetError):
    """A checkpoint could not be written; `reason` is what the system said."""

    def __init__(self, final: Path, reason: str) -> None:
        super().__init__(
            f"cannot write checkpoint {final} ({reason}); earlier checkpoints are untouched: "
            "free space or fix the folder, then resume the run"
        )
        self.reason = reason


@dataclass(frozen=True)
class Snapshot:
    """A model and its training at one moment, in host memory."""

    step: int
    model: PreTrainedModel  # how it is laid out: its weights may have moved on
    texts: Mapping[str, bytes]  # small files by name: configs, tokenizer
    weights: Mapping[str, Tensor]  # by their names in the model
    adapter: Mapping[str, Tensor]
    tensors: Mapping[str, Mapping[str, Tensor]]  # what only a resume reads: the optimizer's, ...


@dataclass(frozen=True)
class SnapshotNotes:
    """What may be known later than the tensors of a snapshot: how far the run is, and how good the model."""

    state: bytes = b""  # state.json
    models: Mapping[Path, Mapping[str, Any]] = field(default_factory=dict)  # plain models, and what is said of each


def take_snapshot(
    step: int,
    model: PreTrainedModel,
    tokenizer: Mapping[str, bytes],
    tensors: Mapping[str, Mapping[str, Tensor]],
    memory: HostMemory,
) -> Snapshot:
    """Copy what is saved into `memory`, over the last snapshot. `tokenizer` is its files."""
    weights, adapter, copies = _copied(model, tensors, memory.copy)
    texts = {**model_texts(model), **tokenizer}
    memory.wait()
    return Snapshot(step, model, texts, weights, adapter, copies)


def reserve_memory(model: PreTrainedModel, tensors: Mapping[str, Mapping[str, Tensor]], memory: HostMemory) -> None:
    """Begin to get the memory that snapshots of this model and these tensors will take."""
    layouts: dict[str, BufferLayout] = {}

    def note(name: str, value: Tensor) -> Tensor:
        layouts[name] = layout_of(value)
        return value

    _copied(model, tensors, note)
    memory.reserve(layouts)


def _copied(
    model: PreTrainedModel, tensors: Mapping[str, Mapping[str, Tensor]], copy: Callable[[str, Tensor], Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Weights, adapter and the other sets of tensors, each through `copy` under a name of its own."""
    weights = saved_weights(model, lambda name, value: copy(f"weights|{name}", value))
    adapter = {name: copy(f"adapter|{name}", value) for name, value in adapter_tensors(model).items()}
    return (
        weights,
        adapter,
        {
            group: {name: copy(f"{tensors_file(group)}|{name}", value) for name, value in values.items()}
            for group, values in tensors.items()
        },
    )


def model_texts(model: PreTrainedModel) -> dict[str, bytes]:
    """The small files that describe a model and its adapter, by name."""
    texts, config = saved_texts(lambda folder: model.save_pretrained(folder, state_dict={})), adapter_config(model)
    return texts if config is None else {**texts, f"{ADAPTER}/{ADAPTER_CONFIG}": config}


def tokenizer_texts(tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    """The files of a tokenizer, by name."""
    return saved_texts(lambda folder: tokenizer.save_pretrained(folder))


def state_text(step: int, state: Mapping[str, Any]) -> bytes:
    """state.json. Unsorted: a resumed run goes on with the order that it left off with."""
    return (json.dumps({"step": step, "state": dict(state)}, indent=1) + "\n").encode()


def write_snapshot(
    snapshot: Snapshot,
    checkpoint: Path | None,
    notes: Callable[[], SnapshotNotes],
    dtype: torch.dtype | None = None,
    same: Path | None = None,
    wanted: Callable[[], bool] = always,
) -> None:
    """Write a snapshot as a checkpoint, as plain models with what is said of each, or both.

    `notes` are asked for when the tensors of the checkpoint are written, and may come later. The checkpoint's partial
    folder is there already; what somebody else wrote into it becomes part of it. Plain models are in `dtype`, None: as
    trained. Equal files are on the disk once: linked, also to those of `same`, a checkpoint of this step. Raises
    `SaveFailed`, or `Abandoned` once `wanted` says no; then nothing is left behind.
    """
    partials = {} if checkpoint is None else {checkpoint: partial_of(checkpoint)}
    try:
        with naming(checkpoint or [*notes().models][-1]):
            texts, files = _model_files(snapshot)
            there = (same, files_written(same)) if same is not None else None
            if checkpoint is not None:
                sets = in_pieces(snapshot.tensors)
                training = {tensors_file(name): tensor_bytes(values) for name, values in sets.items()}
                folder, parts = partials[checkpoint], {**files, **training}
                written = _fill(folder, texts, parts, wanted)
                size, digest = side_by_side(write_file([memoryview(notes().state)], folder / STATE, wanted), 2)
                written[STATE] = (size, digest)
                write_manifest(folder, snapshot.step, sorted(sets), written)
                there = (folder, written)
            about = notes().models
            partials = {**{path: partial_of(path) for path in about}, **partials}
            if about and dtype is not None:
                texts, files, there = *_model_files(_in_dtype(snapshot, dtype)), None
            for path, facts in about.items():
                folder = empty_partial(path)
                text = (json.dumps({"step": snapshot.step, **facts}, indent=1) + "\n").encode()
                written = _fill(folder, {**texts, ABOUT: text}, files, wanted, there)
                write_manifest(folder, snapshot.step, [], written)
                there = (folder, written)
            for path, folder in partials.items():  # the checkpoint last: a run goes on from it, and has the rest
                publish(folder, path)
    except BaseException:
        for folder in partials.values():
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _model_files(snapshot: Snapshot) -> tuple[dict[str, bytes], dict[str, list[memoryview]]]:
    """The files of the model alone: small ones, and the bytes of those with tensors."""
    tensors, index = weight_files(snapshot.model, snapshot.weights)
    files = {name: tensor_bytes(values, FORMAT) for name, values in tensors.items()}
    if snapshot.adapter:
        files[f"{ADAPTER}/{ADAPTER_WEIGHTS}"] = tensor_bytes(snapshot.adapter)
    return {**snapshot.texts, **index}, files


def _in_dtype(snapshot: Snapshot, dtype: torch.dtype) -> Snapshot:
    """The same in another number type, which its config states."""
    converted: dict[int, Tensor] = {}  # by memory: tied weights stay tied
    weights = {}
    for name, value in snapshot.weights.items():
        if value.data_ptr() not in converted or not value.numel():
            converted[value.data_ptr()] = value.to(dtype) if value.is_floating_point() else value
        weights[name] = converted[value.data_ptr()]
    config = json.loads(snapshot.texts["config.json"])
    text = json.dumps({**config, "dtype": str(dtype).removeprefix("torch.")}, indent=2, sort_keys=True) + "\n"
    texts = {**snapshot.texts, "config.json": text.encode()}
    return Snapshot(snapshot.step, snapshot.model, texts, weights, snapshot.adapter, {})


def _fill(
    folder: Path,
    texts: Mapping[str, bytes],
    files: Mapping[str, Sequence[memoryview]],
    wanted: Callable[[], bool],
    there: tuple[Path, Mapping[str, Written]] | None = None,
) -> dict[str, Written]:
    """Write files into a folder and onto the disk, all at once; those with tensors are linked where they are `there`.

    Returns the size and sha256 of everything in the folder.
    """
    failed = threading.Event()

    def going() -> bool:
        return wanted() and not failed.is_set()

    others = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    for name in (*files, *texts):
        (folder / name).parent.mkdir(exist_ok=True)
    source, known = there or (folder, {})
    linked = {name: known[name] for name in files if name in known}
    for name in linked:
        _link(source / name, folder / name)
    own = {name: parts for name, parts in files.items() if name not in linked}
    own |= {name: [memoryview(text)] for name, text in texts.items()}
    jobs: list[Job] = [functools.partial(hash_file, path, going) for path in others.values()]
    for name, parts in own.items():
        jobs += write_file(parts, folder / name, going)
    done = side_by_side(jobs, WRITERS, failed.set)
    sizes_and_digests = done[len(others) :]
    written = zip(sizes_and_digests[::2], sizes_and_digests[1::2], strict=True)
    return {**linked, **dict(zip(others, done, strict=False)), **dict(zip(own, written, strict=True))}


def _link(source: Path, target: Path) -> None:
    """One file under two names; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        with target.open("rb") as stream:
            os.fsync(stream.fileno())


@contextmanager
def naming(final: Path) -> Iterator[None]:
    """What the system refuses to write as an error that names the checkpoint."""
    try:
        yield
    except OSError as error:
        raise SaveFailed(final, first_line(error)) from error
