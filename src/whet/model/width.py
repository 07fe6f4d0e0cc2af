"""How wide a model is, read without loading it: the learning rate depends on it before a weight is read."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from whet.model.hub import hub_file

# the hidden size, by the names that architectures have for it
NAMES = ("hidden_size", "n_embd", "d_model", "dim", "hidden_dim")
KNOWN = {"smollm2": 576}
# sizes in bytes of GGUF's value types by number; 8 is text, 9 is an array
GGUF_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
GGUF_TEXT, GGUF_ARRAY, GGUF_UINT32 = 8, 9, 4


def model_width(name: str) -> int | None:
    """The hidden size of a folder, a .gguf file, smollm2 or a hub model; None where it cannot be read."""
    if name in KNOWN:
        return KNOWN[name]
    path = Path(os.path.expanduser(name))
    if path.suffix == ".gguf" and os.path.isfile(path):  # False for a name that is too long, too
        return gguf_width(path)
    on_hub = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    config = path / "config.json" if os.path.isdir(path) else hub_file(name, "config.json") if on_hub else None
    try:
        return stated_width(json.loads(config.read_text(encoding="utf-8"))) if config is not None else None
    except (OSError, ValueError, TypeError, RecursionError):  # what is wrong with the model is told when it is loaded
        return None


def stated_width(config: Any) -> int | None:
    """The hidden size in a transformers config, as an object or as parsed JSON."""
    values = config if isinstance(config, Mapping) else vars(config)
    for name in NAMES:
        if isinstance(values.get(name), int) and values[name] > 0:
            return int(values[name])
    inner = values.get("text_config")  # models that also see
    return stated_width(inner) if inner is not None else None


def gguf_width(file: Path) -> int | None:
    """`ARCHITECTURE.embedding_length` of a GGUF header, which stands before the long lists of the tokenizer."""
    for key, kind, value in gguf_fields(file):
        if key.endswith(".embedding_length") and kind == GGUF_UINT32:
            return int.from_bytes(value, "little")
    return None


def gguf_fields(file: Path) -> Iterator[tuple[str, int, bytes]]:
    """Key, type and bytes of each field of a GGUF header, lists without their bytes; ends where the file is damaged."""
    damage = (OSError, struct.error, KeyError, OverflowError, MemoryError, RecursionError)
    try:  # a damaged file is told when it is loaded
        with file.open("rb") as stream:
            magic, _, _, count = struct.unpack("<4sIQQ", stream.read(24))
            for _ in range(count if magic == b"GGUF" else 0):
                key = stream.read(_number(stream, "<Q")).decode("utf-8", "replace")
                kind = _number(stream, "<I")
                if kind == GGUF_ARRAY:
                    _skip(stream, kind)
                    yield key, kind, b""
                else:
                    yield key, kind, stream.read(_number(stream, "<Q") if kind == GGUF_TEXT else GGUF_BYTES[kind])
    except damage:
        return


def _number(stream: BinaryIO, layout: str) -> int:
    return int(struct.unpack(layout, stream.read(struct.calcsize(layout)))[0])


def _skip(stream: BinaryIO, kind: int) -> None:
    if kind == GGUF_TEXT:
        stream.seek(_number(stream, "<Q"), 1)
    elif kind == GGUF_ARRAY:
        inner, count = _number(stream, "<I"), _number(stream, "<Q")
        if inner in GGUF_BYTES:
            stream.seek(count * GGUF_BYTES[inner], 1)
        else:
            for _ in range(count):
                _skip(stream, inner)
    else:
        stream.seek(GGUF_BYTES[kind], 1)
