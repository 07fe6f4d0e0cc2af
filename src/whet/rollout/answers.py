"""What environments hand back, checked: whatever it is, it is an opening, a step result, or a failure in one line."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from whet.settings.hostile import shown
from whet.types import InitialObservation, Message, StepResult, WhetError


class BadAnswer(WhetError):
    """An environment answered something that is no answer. It costs the episode, not the run."""


def initial_observation_of(value: Any) -> InitialObservation | None:
    """How an episode begins; None: with the prompt as it is."""
    if value is None:
        return None
    if isinstance(value, InitialObservation):
        return InitialObservation(
            _messages(value.messages, "start"), tuple(value.tools), _state(value.state), str(value.role or "")
        )
    return InitialObservation(_messages(value, "start"))


def step_result_of(value: Any) -> StepResult:
    """The answer to a turn: a step result, messages alone, or a number that ends the episode."""
    if isinstance(value, StepResult):
        if not value.done and not value.messages:
            raise BadAnswer("its step went on without a message; expected messages, or done=True")
        reward = None if value.reward is None else _reward(value.reward)
        messages = _messages(value.messages, "step") if value.messages else ()
        counts = {str(name): int(count) for name, count in value.counts.items()}
        metrics = {str(name): float(number) for name, number in value.metrics.items()}
        errors = tuple(str(error) for error in value.errors)
        rewards = {str(role): _reward(number) for role, number in value.rewards.items()}
        role, state = str(value.role or ""), _state(value.state)
        return StepResult(messages, reward, bool(value.done), state, counts, errors, metrics, role, rewards)
    if isinstance(value, numbers.Real) or type(value).__module__ == "numpy":
        return StepResult(reward=_reward(value), done=True)
    return StepResult(_messages(value, "step"))


def reward_of(value: Any) -> float | None:
    """What an episode was worth; None: not scored."""
    return None if value is None else _reward(value)


def _messages(value: Any, method: str) -> tuple[Message, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence) or not value:
        came = type(value).__name__ if not isinstance(value, Sequence) or value else "nothing"
        raise BadAnswer(
            f"its {method} returned {came}; expected a list of messages like {{'role': 'user', 'content': '...'}}"
            + (", a number or a whet.StepResult" if method == "step" else ", None or a whet.InitialObservation")
        )
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise BadAnswer(
                f"its {method} returned a message {shown(message)}; expected {{'role': 'user', 'content': '...'}}"
            )
        if not isinstance(message["content"], str | list | None):
            raise BadAnswer(
                f"its {method} returned a message whose content is {shown(message['content'])}; expected text"
            )
    return tuple(dict(message) for message in value)


def _reward(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadAnswer(f"its reward is {shown(value)}; expected a number") from error
    if not math.isfinite(number):
        raise BadAnswer(f"its reward is {number}; expected a finite number")
    return number


def _state(value: Any) -> str | None:
    return None if value is None else str(value)
