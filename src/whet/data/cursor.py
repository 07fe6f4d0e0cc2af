"""Which rows come next: a seeded shuffle whose whole state is one integer, so that resuming is exact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from whet.types import WhetError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Cursor:
    """Walks over the rows epoch after epoch; the order of each epoch is drawn from (seed, epoch)."""

    num_rows: int
    seed: int
    position: int = 0  # rows taken since the very first; all there is to save

    def __post_init__(self) -> None:
        checks = (
            (self.num_rows >= 1, f"num_rows is {self.num_rows}; give at least one row"),
            (0 <= self.seed < 2**64, f"seed is {self.seed}; give a whole number from 0 to 2**64 - 1"),
            (self.position >= 0, f"position is {self.position}; give 0 (the start) or a saved position"),
        )
        for fine, complaint in checks:
            if not fine:
                raise WhetError(f"cursor: {complaint}")

    @property
    def epoch(self) -> int:
        """The epoch of the next row; 0 is the first."""
        return self.position // self.num_rows

    def take(self, count: int) -> tuple[list[int], Cursor]:
        """The indices of the next `count` rows, across epochs where needed, and the cursor after them."""
        if count < 0:
            raise WhetError(f"cursor: count is {count}; give 0 or more rows to take")
        indices: list[int] = []
        position, stop = self.position, self.position + count
        while position < stop:
            epoch, start = divmod(position, self.num_rows)
            chunk = _order(self.num_rows, self.seed, epoch)[start : start + stop - position].tolist()
            indices.extend(chunk)
            position += len(chunk)
        return indices, replace(self, position=stop)


@lru_cache(maxsize=4)
def _order(num_rows: int, seed: int, epoch: int) -> NDArray[np.intp]:
    """A permutation of the rows: [num_rows], read-only."""
    import numpy as np

    # numpy promises the raw stream of a bit generator across versions, but not what Generator makes of it
    raw = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(num_rows)
    order = np.argsort(raw, kind="stable")
    order.setflags(write=False)
    return order
