"""Which interface a class of the user's own has, and the adapter for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from whet.envs.adapters.gym import StepEnvironment
from whet.envs.adapters.optional import cannot_be_made
from whet.envs.adapters.skyrl import of_skyrl_class
from whet.envs.adapters.trl import Calling, trl_environment
from whet.protocols import Environment
from whet.types import WhetError

INTERFACES = (
    "whet's own has start(prompt) and step(completion), a TRL one reset(**row) and tools, "
    "a Gymnasium one reset(seed=...) and step(action), a SkyRL-Gym one init(prompt) and step(text)"
)
GYM_SETTINGS = ("observation", "action", "actions", "shares_random", "names_states")


def as_environment(
    thing: Any, settings: Mapping[str, Any] | None = None, calling: Calling | None = None, name: str = ""
) -> Callable[[], Environment]:
    """A function that makes the environment of one episode from a class, or a function that makes an object.

    The methods say whose interface it is. A class with `reset` and `step` is Gymnasium-like, unless it has
    `get_reward` or a `reset` that takes a whole row: then it is TRL's, and `step` is one of its tools.
    """
    given = dict(settings or {})
    name = name or str(getattr(thing, "__name__", type(thing).__name__))
    if isinstance(thing, Mapping):
        _refuse(given, name)
        return trl_environment(thing, calling)
    if not callable(thing):
        raise WhetError(f"environment {name!r} is one object, and every episode needs its own; give its class")
    kind = thing if inspect.isclass(thing) else type(_made(thing, given, name))
    has = {method for method in ("start", "step", "init", "reset") if callable(getattr(kind, method, None))}
    if {"start", "step"} <= has:
        return lambda: thing(**given)
    if {"init", "step"} <= has:
        return lambda: of_skyrl_class(thing, **given)
    if {"reset", "step"} <= has and not _takes_rows(kind):
        around = {key: given.pop(key) for key in GYM_SETTINGS if key in given}

        def make_gym() -> Environment:
            return StepEnvironment(thing(**given), **around)

        return make_gym
    if "reset" in has:
        return trl_environment(lambda: thing(**given), calling)
    lacks = "reset" if "step" not in has else "start, init or reset"
    raise WhetError(f"environment {name!r} has no {lacks}: {INTERFACES}")


def _takes_rows(kind: type) -> bool:
    if callable(getattr(kind, "get_reward", None)):
        return True
    parameters = inspect.signature(kind.reset).parameters  # type: ignore[attr-defined]
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return takes_any and "seed" not in parameters


def _made(maker: Callable[..., Any], settings: Mapping[str, Any], name: str) -> Any:
    try:
        return maker(**settings)
    except WhetError:
        raise
    except Exception as error:
        raise cannot_be_made(f"environment {name!r}", error, "check env.settings") from error


def _refuse(settings: Mapping[str, Any], name: str) -> None:
    if settings:
        raise WhetError(f"environment {name!r} is a mapping of classes and takes no settings; drop env.settings")
