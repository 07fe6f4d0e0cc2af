"""Random streams by name: every request has its own seed, so that there is no generator state to save."""

from __future__ import annotations

import hashlib


def request_seed(*parts: int | str) -> int:
    """A 64-bit seed that belongs to these numbers alone: no state to save, nothing to replay."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
