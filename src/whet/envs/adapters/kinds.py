"""Whose interface a class has, and the adapter for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from whet.envs.adapters.calling import Calling
from whet.envs.adapters.gym import StepEnvironment
from whet.envs.adapters.optional import cannot_be_made
from whet.envs.adapters.skyrl import of_skyrl_class
from whet.envs.adapters.trl import trl_environment
from whet.protocols import Environment
from whet.types import WhetError

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
    """Why no environment can be made of a thing, or nothing. What a function makes is seen when it is called."""
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
