"""Copies of tensors in host memory: what a training waits for when it is saved, and nothing else."""

from __future__ import annotations

import logging
import time

import torch
from torch import Tensor

logger = logging.getLogger(__name__)
PORTABLE = 1  # cudaHostRegisterPortable


class HostMemory:
    """Buffers that are filled again at every save. Those for tensors of a GPU are pinned: copies run at full speed."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._pinned: dict[str, int] = {}  # addresses
        self._can_pin = True
        self._devices: set[torch.device] = set()
        self.allocating = 0.0  # seconds that went into making buffers, which only a first copy takes

    @torch.no_grad()
    def copy(self, name: str, value: Tensor) -> Tensor:
        """The value in the buffer of that name; of a GPU's tensor only after `wait`."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            start = time.perf_counter()
            self._unpin(name)
            buffer = self._buffers[name] = self._made_for(name, value)
            self.allocating += time.perf_counter() - start
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
        for name in tuple(self._pinned):
            self._unpin(name)
        self._buffers.clear()

    def _unpin(self, name: str) -> None:
        if name in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._pinned.pop(name))

    def _made_for(self, name: str, value: Tensor) -> Tensor:
        buffer = torch.empty(value.shape, dtype=value.dtype, device="cpu")
        if value.is_cuda and self._can_pin and buffer.nbytes:
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
