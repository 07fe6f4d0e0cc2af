"""What other people's environments answer, checked: a wrong type is an error that names it, never a silent `str()`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from whet.types import Message, Prompt


def number(value: Any, where: str) -> float:
    """A reward, or an error that says what stood in its place."""
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
    """Those of the values that are finite numbers: what a package measured, texts left out."""
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
