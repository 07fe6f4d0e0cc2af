"""Random numbers of one episode, for packages that draw from the generators which a whole process shares.

Many games call `random.seed` when they are reset and `random.choice` while they are played. Played side by side, each
would change the others' numbers, and the trainer's own. So the calls into such a game run one after the other, each
with the game's own state of the shared generators, and leave them as they were found.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

_ONE_AT_A_TIME = threading.RLock()


class OwnRandom:
    """The state of Python's and numpy's shared generators as one episode has left them."""

    def __init__(self, seed: int) -> None:
        import numpy  # a command that only names an environment does without

        self._state: tuple[Any, Any] = (
            random.Random(seed).getstate(),
            numpy.random.RandomState(seed % 2**32).get_state(),
        )

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """While the block runs, the shared generators are this episode's."""
        import numpy

        with _ONE_AT_A_TIME:
            others = random.getstate(), numpy.random.get_state()
            _set(self._state)
            try:
                yield
            finally:
                self._state = random.getstate(), numpy.random.get_state()
                _set(others)


def _set(state: tuple[Any, Any]) -> None:
    import numpy

    random.setstate(state[0])
    numpy.random.set_state(state[1])
