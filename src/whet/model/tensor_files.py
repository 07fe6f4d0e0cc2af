"""Files of tensors in the safetensors format, written beside a training that goes on.

The library's own writer holds the interpreter's lock from the first byte to the last, so a step would wait for the
disk. Here the bytes are the same, writing and hashing release the lock, and both run side by side.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 24  # bytes between two looks at whether to go on
# in the order in which the format lays tensors out: every offset is then a multiple of its tensor's item size
KINDS = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ORDER = {dtype: position for position, dtype in enumerate(KINDS)}
Written = tuple[int, str]  # bytes, sha256
Job = Callable[[], Any]


class Abandoned(Exception):
    """The file is no longer wanted."""


def always() -> bool:
    """Go on to the end."""
    return True


def tensor_bytes(values: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> list[memoryview]:
    """The bytes of a safetensors file as parts in memory: its header, then each tensor without a copy."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    parts: list[memoryview] = []
    end = 0
    for name, value in sorted(values.items(), key=lambda item: (ORDER[item[1].dtype], item[0])):
        plain = value.detach().contiguous()
        part: memoryview = plain.reshape(-1).view(torch.uint8).numpy().data
        header[name] = {
            "dtype": KINDS[plain.dtype],
            "shape": list(plain.shape),
            "data_offsets": [end, end + part.nbytes],
        }
        parts.append(part)
        end += part.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [memoryview(struct.pack("<Q", len(text)) + text), *parts]


def write_file(parts: Sequence[memoryview], file: Path, wanted: Callable[[], bool] = always) -> list[Job]:
    """Two jobs, for two threads: to write the parts onto the disk, which gives their size, and to hash them."""
    return [lambda: _write(parts, file, wanted), lambda: _digest(parts, wanted)]


def hash_file(file: Path, wanted: Callable[[], bool] = always) -> Written:
    """Hash a file that somebody else wrote, and force it onto the disk."""
    with file.open("rb") as stream:
        total = hashlib.sha256()
        while chunk := stream.read(CHUNK):
            _go_on(wanted)
            total.update(chunk)
        os.fsync(stream.fileno())
        return stream.tell(), total.hexdigest()


def _write(parts: Sequence[memoryview], file: Path, wanted: Callable[[], bool]) -> int:
    size = 0
    with file.open("wb", buffering=0) as stream:
        for chunk in _chunks(parts):
            _go_on(wanted)
            begun = 0
            while begun < len(chunk):
                begun += stream.write(chunk[begun:]) or 0
            size += len(chunk)
        os.fsync(stream.fileno())
    return size


def _digest(parts: Sequence[memoryview], wanted: Callable[[], bool]) -> str:
    total = hashlib.sha256()
    for chunk in _chunks(parts):
        _go_on(wanted)
        total.update(chunk)
    return total.hexdigest()


def _chunks(parts: Sequence[memoryview]) -> list[memoryview]:
    return [part[start : start + CHUNK] for part in parts for start in range(0, len(part), CHUNK)]


def _go_on(wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise Abandoned
