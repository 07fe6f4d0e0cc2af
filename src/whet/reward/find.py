"""Rewards by name: a built-in, `module:function`, `path/to/file.py:function`, or the folder of a reward model.

A reward made of a function and its settings.

A function of (prompt, completion, ...) keeps its settings as keyword-only parameters. A maker takes nothing but
settings and returns a reward; a class whose objects are rewards is one too.
"""

from __future__ import annotations

import functools
import inspect
import math
import reprlib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from whet import registry
from whet.limit import positions
from whet.protocols import Reward
from whet.registry import error_text, imported, module_file, place
from whet.reward.call import FROM_SAMPLES, OF_VERL, SEES_THE_COMPLETION, as_reward, parameters_of
from whet.reward.user_code import user_code
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
    "format": ("agent_format", "think_format"),
    "gym_answer": ("gym_answer",),
    "instructions": ("instructions",),
    "judge.reward": ("judge",),
    "language": ("language",),
    "learned.outcome": ("learned",),
    "learned.process": ("learned_steps",),
    "length": ("soft_overlong", "length_cost", "cosine_length"),
    "majority": ("majority_answer",),
    "mathematics.math_answer": ("math_answer",),
    "repetition": ("repetition",),
    "defences": (
        *("incoherent_reasoning", "padding", "redundant_calls", "unsupported_answer", "guessing", "hollow_answer"),
        *("mark_spam", "broken_tags", "answer_in_thinking", "hidden_text", "look_alikes"),
    ),
    "defences.suspicion": ("suspect_sentences",),
    "safety": ("refusal", "safety"),
    "mathematics.set_answer": ("set_answer",),
    "tool_calls": ("tool_calls",),
    "working_steps": ("working_steps",),
}

# names in older configs, and what has taken their place
RETIRED = {"judge_injection": "suspect_sentences", "self_grading": "suspect_sentences"}


BUILTIN = registry.LazyEntries({name: f"{ROOM}.{module}:{name}" for module, names in ROWS.items() for name in names})


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


FILLED = frozenset((*SEES_THE_COMPLETION, *FROM_SAMPLES, *OF_VERL, "prompt", "answer", "queries", "labels"))


def reward_with(function: Any, settings: Mapping[str, Any], name: str, strict: bool = False) -> Reward:
    """The reward of a function, maker or class with these settings, each checked against its parameter.

    `strict` is for rewards whose keyword-only parameters are all settings: a missing one is an error here.
    """
    if isinstance(function, Reward) and not inspect.isclass(function):
        _refuse(settings, {}, name)
        return as_reward(function)
    if not callable(function):
        return as_reward(function)
    parameters = {parameter.name: parameter for parameter in parameters_of(function, name)}
    if is_maker(function, parameters):
        return _made(function, parameters, settings, name)
    accepted = {key: parameter for key, parameter in parameters.items() if _is_settable(parameter)}
    _refuse(settings, accepted, name)
    if strict:
        _check_missing(
            {key: parameter for key, parameter in accepted.items() if parameter.kind is parameter.KEYWORD_ONLY},
            settings,
            name,
        )
    if not settings:
        return as_reward(function)
    bound = functools.partial(function, **_checked(settings, accepted, name))
    # `prepare`, `steps` and `deterministic` belong to the reward whatever its settings are
    vars(bound).update(getattr(function, "__dict__", {}))
    return as_reward(bound)


def is_maker(function: Any, parameters: Mapping[str, inspect.Parameter]) -> bool:
    """True for what returns a reward: a class, or a function of keyword-only parameters, none a completion."""
    if inspect.isclass(function):
        return "__call__" in {name for kind in function.__mro__[:-1] for name in vars(kind)}
    keyword_only = all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values())
    return bool(parameters) and keyword_only and not FILLED & set(parameters)


def _made(
    maker: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], settings: Mapping[str, Any], name: str
) -> Reward:
    _refuse(settings, parameters, name)
    _check_missing(parameters, settings, name)
    made = maker(**_checked(settings, parameters, name))
    if isinstance(made, Reward):
        return made
    if inspect.isclass(maker):
        return as_reward(made)
    raise WhetError(
        f"{name!r} takes settings only and so must return a reward, not {reprlib.repr(made)}; "
        "return an object with a name that is called with (prompts, samples), or take a parameter `completion`"
    )


def _is_settable(parameter: inspect.Parameter) -> bool:
    named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    if not named or parameter.name in FILLED:
        return False
    return parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty


def _refuse(settings: Mapping[str, Any], accepted: Mapping[str, Any], name: str) -> None:
    for key in settings:
        if key not in accepted:
            has = f"it has: {', '.join(accepted)}" if accepted else "it has none; drop it"
            raise WhetError(f"reward {name!r} has no setting {key!r}{did_you_mean(key, accepted)}; {has}")


def _check_missing(accepted: Mapping[str, inspect.Parameter], settings: Mapping[str, Any], name: str) -> None:
    for key, parameter in accepted.items():
        variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.default is parameter.empty and not variadic and key not in settings:
            kind = expected_text(parameter.annotation)
            raise WhetError(f"reward {name!r} needs the setting {key!r} ({kind}), and it is not given; give it")


def _checked(settings: Mapping[str, Any], accepted: Mapping[str, inspect.Parameter], name: str) -> dict[str, Any]:
    return {
        key: _value(value, accepted[key].annotation, f"setting {key!r} of reward {name!r}")
        for key, value in settings.items()
    }


def _value(value: Any, annotation: Any, what: str) -> Any:
    """The value as the annotation wants it (a list for a tuple, say); an error where it does not fit."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str) or annotation is Any:
        return value
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

    wrong = WhetError(f"{what} is {value!r} ({type(value).__name__}); give {expected_text(annotation)}")
    if (isinstance(value, bool) and annotation in (int, float)) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise wrong
    try:
        return TypeAdapter(annotation).validate_python(value)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return value  # a type that only its own code can check
    except ValidationError:
        raise wrong from None


def expected_text(annotation: Any) -> str:
    """What an annotation asks for, in words a user of a config file knows."""
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(annotation))
    words = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    if annotation in words:
        return words[annotation]
    if get_origin(annotation) in (tuple, list):
        members = [member for member in get_args(annotation) if member is not Ellipsis]
        kinds = ", ".join(dict.fromkeys(expected_text(member) for member in members))
        return f"a list ({kinds})" if kinds else "a list"
    return getattr(annotation, "__name__", None) or str(annotation)
