"""Environments by name: built in, registered, or `path/to/file.py:Class`.

Whose interface a class has, and the adapter for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from whet import registry
from whet.envs.adapters.attempts import Attempts
from whet.envs.adapters.bfcl import FunctionCalling
from whet.envs.adapters.gym import StepEnvironment, gem_environment, gym_environment
from whet.envs.adapters.shared import cannot_be_made
from whet.envs.adapters.skyrl import of_skyrl_class, skyrl_environment
from whet.envs.adapters.textarena import TextArenaGame
from whet.envs.adapters.trl import trl_environment
from whet.envs.tools.formats import Calling
from whet.protocols import Environment
from whet.registry import imported
from whet.types import WhetError, did_you_mean

INTERFACES = (
    "whet's own has start(prompt) and step(completion), a TRL one reset(**row) and tools, "
    "a Gymnasium one reset(seed=...) and step(action), a SkyRL-Gym one init(prompt) and step(text)"
)
GYM_SETTINGS = ("observation", "action", "actions", "shares_random", "names_states")


def interface(kind: type) -> str:
    """ "whet", "skyrl", "gym" or "trl"; "" where it is none of them.

    A class with `reset` and `step` is Gymnasium-like, unless it has `get_reward` or a `reset` that takes a whole row:
    then it is TRL's, and `step` is one of its tools, as are `start` and `init`.
    """
    has = {method for method in ("start", "step", "init", "reset") if callable(getattr(kind, method, None))}
    if "reset" in has and _takes_rows(kind) and not _takes_prompts(kind):
        return "trl"
    if {"start", "step"} <= has:
        return "whet"
    if {"init", "step"} <= has:
        return "skyrl"
    if "reset" in has:
        return "gym" if "step" in has else "trl"
    return ""


def refusal(thing: Any) -> str:
    """Why a thing cannot make environments, else empty. What a function makes is checked when it is called."""
    if isinstance(thing, Mapping):
        return next((why for member in thing.values() if (why := refusal(member))), "" if thing else "it is empty")
    if not callable(thing):
        return f"it is one object ({type(thing).__name__}), and every episode needs its own; give its class"
    if not inspect.isclass(thing) or interface(thing):
        return ""
    lacks = "start, init or reset" if callable(getattr(thing, "step", None)) else "reset"
    return f"{thing.__name__} has no {lacks}: {INTERFACES}"


def as_environment(
    thing: Any, settings: Mapping[str, Any] | None = None, calling: Calling | None = None, name: str = ""
) -> Callable[[], Environment]:
    """A function that makes the environment of one episode from a class, or from a function that makes an object.

    A mapping of names to classes is TRL's. `settings` go to the class, but for those of a Gymnasium-like one that say
    how it is read. `calling` is for environments with tools.
    """
    arguments = dict(settings or {})
    name = name or str(getattr(thing, "__name__", type(thing).__name__))
    if why := refusal(thing):
        raise WhetError(f"environment {name!r} cannot be used: {why}")
    if isinstance(thing, Mapping):
        if arguments:
            raise WhetError(f"environment {name!r} is a mapping of classes and takes no settings; drop env.settings")
        return trl_environment(thing, calling)
    if "calling" in inspect.signature(thing).parameters:
        arguments["calling"] = calling
    around = {key: arguments.pop(key) for key in GYM_SETTINGS if key in arguments} if _is_gym(thing) else {}
    kind = thing if inspect.isclass(thing) else type(_made(thing, arguments, name))
    if why := refusal(kind):
        raise WhetError(f"environment {name!r} cannot be used: {why}")
    whose = interface(kind)
    if calling is not None and calling.tools and whose != "trl":
        raise WhetError(
            f"environment {name!r} answers by itself and takes no tools; drop env.tools, or give a TRL class"
        )
    if whose == "trl":
        return trl_environment(lambda: thing(**arguments), calling)
    if whose == "skyrl":
        return lambda: of_skyrl_class(thing, **arguments)
    if whose == "gym":
        return lambda: StepEnvironment(thing(**arguments), **around, name=name)
    return lambda: thing(**arguments)


def _is_gym(thing: Any) -> bool:
    return inspect.isclass(thing) and interface(thing) == "gym"


def _takes_rows(kind: type) -> bool:
    if callable(getattr(kind, "get_reward", None)):
        return True
    parameters = inspect.signature(kind.reset).parameters  # type: ignore[attr-defined]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return takes_any and "seed" not in parameters


def _takes_prompts(kind: type) -> bool:
    """whet's own interface, by the name of what `start` is given."""
    start = getattr(kind, "start", None)
    return callable(start) and "prompt" in inspect.signature(start).parameters


def _made(maker: Callable[..., Any], settings: Mapping[str, Any], name: str) -> Any:
    try:
        return maker(**settings)
    except WhetError:
        raise
    except Exception as error:
        raise cannot_be_made(f"environment {name!r}", error, "check env.settings") from error


ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "bfcl": FunctionCalling,
    "gem": gem_environment,
    "gym": gym_environment,
    "reasoning_gym": Attempts,
    "skyrl": skyrl_environment,
    "textarena": TextArenaGame,
}
BUILT_IN = tuple(ENVIRONMENTS)
# a value of the setting that each of these needs, for the error that asks for it
EXAMPLES = {
    "gem": "game:GuessTheNumber-v0-easy",
    "gym": "FrozenLake-v1",
    "skyrl": "gsm8k",
    "textarena": "GuessTheNumber-v0",
}
GIVEN: dict[str, Any] = {}  # environments and tools that only the calling program has, by the name its config has


registry.register_builtins("environment", ENVIRONMENTS, refusal)


def find_environment(
    name: str, settings: Mapping[str, Any], calling: Calling | None = None
) -> Callable[[], Environment]:
    """A function that makes the environment of one episode. One is made here: settings that do not fit are told now.

    A class may have whet's interface or another package's (`whet.envs.adapters`); `calling` is for those with tools.
    """
    if name in GIVEN:
        maker = GIVEN[name]
    elif name.startswith("python:"):
        raise WhetError(f"the environment {name!r} was given from Python and is in no file; give it again with env=...")
    elif ":" in name:
        maker = imported(name, "environment")
    else:
        maker = registry.lookup("environment", name)
        if name in BUILT_IN:
            _check_settings(name, maker, settings)
    make = as_environment(maker, settings, calling, name)
    try:
        make()
    except WhetError:
        raise
    except TypeError as error:
        raise WhetError(
            f"environment {name!r} cannot be made with {dict(settings)}: {error}; set env.settings"
        ) from error
    return make


def _check_settings(name: str, maker: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse what a built-in one cannot be made with; where it passes settings on, its package looks at those."""
    parameters = inspect.signature(maker).parameters
    passes_on = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    own = [
        parameter
        for name, parameter in parameters.items()
        if name != "calling" and parameter.kind.name != "VAR_KEYWORD"
    ]
    for own_parameter in own:
        if own_parameter.default is inspect.Parameter.empty and own_parameter.name not in settings:
            setting = f"env.settings.{own_parameter.name}"
            raise WhetError(f"environment {name!r} needs {setting}; add {setting}={EXAMPLES[name]}")
    known = [parameter.name for parameter in own]
    for key in settings:
        if key not in known and not passes_on:
            raise WhetError(
                f"environment {name!r} has no setting {key!r}{did_you_mean(key, known)}; it has: {', '.join(known)}"
            )
