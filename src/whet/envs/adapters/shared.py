"""What the adapters share: optional packages, seeds and random numbers of an episode, and the form of an answer.

Random numbers of one episode are for packages that draw from the generators which a whole process shares. Many games
call `random.seed` when they are reset and `random.choice` while they are played. Played side by side, each would change
the others' numbers, and the trainer's own. So the calls into such a game run one after the other, each with the game's
own state of the shared generators, and leave them as they were found.

Every sample of a prompt plays the same task. What other people's environments answer is checked: a wrong type is an
error that names it, never a silent `str()`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import random
import re
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from whet.data.seeds import SEED
from whet.registry import error_text, imported
from whet.types import Message, Prompt, WhetError

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
        """Install this episode's generators in place of the shared ones while the block runs."""
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


def seed_of(prompt: Prompt) -> int:
    """The prompt's column `seed`, or a number made from its id: the same in every run."""
    seed = prompt.meta.get(SEED)
    if seed is None:
        return zlib.crc32(prompt.id.encode())
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"prompt {prompt.id!r} has the seed {seed!r}; expected a whole number from 0 on")
    return seed


def number(value: Any, where: str) -> float:
    """The reward as a finite number; the error quotes what was given in its place."""
    if isinstance(value, str | bytes) or value is None:
        raise TypeError(f"{where} gave a reward of {value!r}; expected a number")
    try:
        reward = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{where} gave a reward of type {type(value).__name__}; expected a number") from None
    if not math.isfinite(reward):
        raise ValueError(f"{where} gave a reward of {reward}; expected a finite number")
    return reward


def text(value: Any, where: str, fix: str = "return text") -> str:
    """The value itself, if it is a string; raises `TypeError` for anything else rather than convert it."""
    if not isinstance(value, str):
        raise TypeError(f"{where} gave {_kind(value)}; expected text: {fix}")
    return value


def flag(value: Any, where: str) -> bool:
    """True or False, numpy's included; anything else is an error: a text "False" would be true."""
    if isinstance(value, bool | int) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise TypeError(f"{where} gave {_kind(value)}; expected True or False")


def messages(value: Any, where: str) -> tuple[Message, ...]:
    """A conversation in OpenAI's shape."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise TypeError(f"{where} gave {_kind(value)}; expected a list of messages")
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise TypeError(f"{where} gave the message {str(message)[:80]!r}; expected a role and a content")
    return tuple(dict(checked) for checked in value)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are finite numbers: what a package measured, without its texts."""
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def opened(prompt: Prompt, observation: str) -> tuple[Message, ...]:
    """The prompt's conversation with the first observation under its last user message, or as one of its own."""
    opening = prompt.messages or (() if prompt.text is None else ({"role": "user", "content": prompt.text},))
    if not observation:
        return tuple(opening)
    if opening and opening[-1]["role"] == "user":
        before = str(opening[-1]["content"])
        joined = f"{before}\n\n{observation}" if before else observation
        return (*opening[:-1], {**opening[-1], "content": joined})
    return (*opening, {"role": "user", "content": observation})


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


NLTK_DATA = re.compile(r"Resource '?(\w+)'? not found")


@contextlib.contextmanager
def optional(environment: str, install: str) -> Iterator[None]:
    """Import a package in the block: a missing one is an error with the line that installs it.

    The log's root is left as it was: some packages set it up for the whole process when they are imported.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    except ImportError as error:
        missing = f"the package {error.name!r}" if error.name else "a package that is missing"
        raise WhetError(f"the environment {environment!r} needs {missing}; run {install}") from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def cannot_be_made(what: str, error: Exception, fix: str) -> WhetError:
    """The one line for an environment that its own package refuses."""
    if data := NLTK_DATA.search(str(error)):
        fetch = f"run python -m nltk.downloader {data[1]} (it needs the network), or choose another"
        return WhetError(f"{what} needs nltk's data {data[1]!r}; {fetch}")
    return WhetError(f"{what} cannot be made: {error_text(error)}; {fix}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what is printed in the block: some packages announce word-list downloads when a game is made."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def function_of(value: Any, setting: str) -> Callable[..., Any]:
    """A setting that is a function: itself, or `file.py:function` as a config has it."""
    function = imported(value, setting) if isinstance(value, str) else value
    if not callable(function):
        raise WhetError(f"{setting} is {function!r}; give a function, or file.py:function")
    return function
