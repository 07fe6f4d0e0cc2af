"""Draws with replacement: how often each member of an ensemble sees each row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whet.types import WhetError


def bootstrap_counts(num_rows: int, num_members: int, seed: int) -> NDArray[np.int64]:
    """[num_rows, num_members]: each column counts `num_rows` draws of that member alone. Efron 1979.

    A pass over all rows, each weighed by its count, is a pass over the member's own sample of them.
    """
    if num_rows < 1 or num_members < 1:
        raise WhetError(f"a bootstrap of {num_rows} rows for {num_members} members; give at least one of each")
    # the raw stream is the same in every version of numpy; the bias of the remainder is below 2**-30 here
    raw = np.random.Philox(key=np.array([seed, 0x626F6F74], dtype=np.uint64)).random_raw(num_rows * num_members)
    drawn = (raw.reshape(num_members, num_rows) % np.uint64(num_rows)).astype(np.int64)
    return np.stack([np.bincount(row, minlength=num_rows) for row in drawn], axis=1)
