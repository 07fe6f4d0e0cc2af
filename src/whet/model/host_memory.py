"""Copies of tensors in host memory: what a training waits for when it is saved, and nothing else."""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

import torch
from torch import Tensor

from whet.threads import Thread

logger = logging.getLogger(__name__)
PORTABLE = 1  # cudaHostRegisterPortable


class BufferLayout(NamedTuple):
    """All that a buffer for a tensor depends on."""

    shape: torch.Size
    dtype: torch.dtype
    is_cuda: bool


def layout_of(value: Tensor) -> BufferLayout:
    """The layout of a tensor."""
    return BufferLayout(value.shape, value.dtype, value.is_cuda)


class HostMemory:
    """Buffers that are filled again at every save. Those for tensors of a GPU are pinned: copies run at full speed."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._pinned: dict[str, int] = {}  # addresses
        self._can_pin = True
        self._devices: set[torch.device] = set()
        self._reserving: threading.Thread | None = None

    def reserve(self, layouts: dict[str, BufferLayout]) -> None:
        """Make buffers in a thread: to get gigabytes from the system takes longer than to fill them."""

        def work() -> None:
            for name, layout in layouts.items():
                self._make(name, layout)

        self._reserving = Thread(target=work, name="whet-reserve", daemon=True)
        self._reserving.start()

    @property
    def is_ready(self) -> bool:
        """Whether nothing is being reserved."""
        return self._reserving is None or not self._reserving.is_alive()

    @torch.no_grad()
    def copy(self, name: str, value: Tensor) -> Tensor:
        """The value in the buffer of that name; of a GPU's tensor only after `wait`."""
        self._join()
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = self._make(name, layout_of(value))
        buffer.copy_(value.detach(), non_blocking=value.is_cuda)
        if value.is_cuda:
            self._devices.add(value.device)
        return buffer

    def wait(self) -> None:
        """Until every copy has arrived."""
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()
        self._devices.clear()

    def release(self) -> None:
        """Give the memory back."""
        self._join()
        for name in tuple(self._pinned):
            self._unpin(name)
        self._buffers.clear()

    def _join(self) -> None:
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None

    def _unpin(self, name: str) -> None:
        if name in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._pinned.pop(name))

    def _make(self, name: str, layout: BufferLayout) -> Tensor:
        self._unpin(name)
        buffer = self._buffers[name] = torch.empty(layout.shape, dtype=layout.dtype, device="cpu")
        # the system hands out memory when it is touched first; left to the driver, the GPU could do nothing meanwhile
        buffer.zero_()
        if layout.is_cuda and self._can_pin and buffer.nbytes:
            # torch's own pinned memory rounds every tensor up to a power of two
            status = int(torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, PORTABLE))
            if status == 0:
                self._pinned[name] = buffer.data_ptr()
            else:
                self._can_pin = False
                logger.warning(
                    "host memory for checkpoints cannot be pinned (CUDA error %d): steps wait longer at a save; raise "
                    "the limit on locked memory (ulimit -l)",
                    status,
                )
        return buffer
