"""Rewards by name: a built-in, `module:function`, `path/to/file.py:function`, or the folder of a reward model."""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from whet import registry
from whet.limit import positions
from whet.protocols import Reward
from whet.registry import error_text, imported, module_file, place
from whet.reward.user_code import user_code
from whet.reward.with_settings import reward_with
from whet.types import WhetError, did_you_mean

ROOM = "whet.reward"
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})

# module of this room -> the rewards it holds: functions of (prompt, completion), and makers
ROWS: Mapping[str, tuple[str, ...]] = {
    "answer": ("exact_answer",),
    "choice_answer": ("choice_answer",),
    "citations": ("citations",),
    "code_tests": ("code_tests",),
    "coherence": ("coherence",),
    "countdown": ("countdown",),
    "efficiency": ("efficiency",),
    "environment": ("environment",),
    "format": ("agent_format",),
    "gym": ("gym_answer",),
    "instructions": ("instructions",),
    "judge": ("judge",),
    "language": ("language",),
    "learned": ("learned", "learned_steps"),
    "length": ("soft_overlong", "length_cost", "cosine_length"),
    "majority": ("majority_answer",),
    "mathematics.math_answer": ("math_answer",),
    "repetition": ("repetition",),
    "defences": (
        *("incoherent_reasoning", "padding", "redundant_calls", "unsupported_answer", "guessing", "hollow_answer"),
        *("mark_spam", "broken_tags", "answer_in_thinking", "hidden_text", "look_alikes"),
    ),
    "defences.suspicion": ("suspect_sentences",),
    "refusal": ("refusal",),
    "safety": ("safety",),
    "mathematics.set_answer": ("set_answer",),
    "think_format": ("think_format",),
    "tool_calls": ("tool_calls",),
    "working_steps": ("working_steps",),
}

# names in older configs, and what has taken their place
RETIRED = {"judge_injection": "suspect_sentences", "self_grading": "suspect_sentences"}


class Builtin(MutableMapping[str, Callable[..., Any]]):
    """The rewards that have a name. A built-in's file is imported when it is asked for; a user's own are registered."""

    def __init__(self, rows: Mapping[str, tuple[str, ...]]) -> None:
        self._modules = {name: module for module, names in rows.items() for name in names}
        self._registered: dict[str, Callable[..., Any]] = {}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name in self._registered:
            return self._registered[name]
        function: Callable[..., Any] = getattr(importlib.import_module(f"{ROOM}.{self._modules[name]}"), name)
        return function

    def __contains__(self, name: object) -> bool:
        return name in self._modules or name in self._registered

    def __setitem__(self, name: str, reward: Callable[..., Any]) -> None:
        self._registered[name] = reward

    def __delitem__(self, name: str) -> None:
        del self._registered[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._modules, *self._registered))

    def __len__(self) -> int:
        return len(self._modules) + len(self._registered)


BUILTIN = Builtin(ROWS)


def _refusal(reward: Any) -> str:
    return "" if callable(reward) else f"it is {reward!r}; give a function of (prompt, completion)"


registry.register_builtins("reward", BUILTIN, _refusal)


def find_reward(name_or_path: str, settings: Mapping[str, Any] = NO_SETTINGS) -> Reward:
    """The reward of that name with these settings; a file's or module's reward is imported, so its code runs.

    A run or checkpoint folder of a reward model is a reward: `learned` for an outcome model, `learned_steps` for a
    process model, reported under the run's name.
    """
    name_or_path = RETIRED.get(name_or_path, name_or_path)
    if name_or_path not in BUILTIN and ":" not in name_or_path:
        registry.load_plugins()
    if name_or_path in BUILTIN:
        return reward_with(BUILTIN[name_or_path], settings, name_or_path, strict=True)
    if Path(name_or_path).is_dir():
        from whet.reward.learned.members import reward_model_kind, run_name

        kind = reward_model_kind(name_or_path)
        all_settings = {"folder": name_or_path, "name": run_name(name_or_path), **settings}
        return reward_with(BUILTIN[kind], all_settings, kind, strict=True)
    source, _, attribute = name_or_path.rpartition(":")
    if not source or not attribute:
        raise WhetError(_unknown(name_or_path))
    function = imported(name_or_path, "reward", user_code)
    try:
        with user_code(name_or_path):
            return reward_with(function, settings, attribute)
    except (WhetError, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = positions(traceback.walk_tb(error.__traceback__))[::-1]
        raise WhetError(
            f"reward {name_or_path!r} cannot be made: {error_text(error)} "
            f"at {place(frames, module_file(function))}; fix that line"
        ) from error


def _unknown(name: str) -> str:
    if name.rstrip(":").endswith(".py"):
        return f"reward {name!r} names a file but no function; add it, as in {name.rstrip(':')}:my_reward"
    if "/" in name:
        return f"reward {name!r}: there is no such folder; give the run of a reward model, or a reward by name"
    return (
        f"no reward is called {name!r}{did_you_mean(name, BUILTIN)}; built in: {', '.join(sorted(BUILTIN))}; "
        "your own: path/to/file.py:function or module:function; a reward model's: its folder"
    )
