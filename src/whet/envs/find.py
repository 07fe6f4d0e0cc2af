"""Environments by name: built in, registered, or `path/to/file.py:Class`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from whet import registry
from whet.envs.adapters.attempts import Attempts
from whet.envs.adapters.bfcl import FunctionCalling
from whet.envs.adapters.calling import Calling
from whet.envs.adapters.gem import gem_environment
from whet.envs.adapters.gym import gym_environment
from whet.envs.adapters.kinds import as_environment, refusal
from whet.envs.adapters.skyrl import skyrl_environment
from whet.envs.adapters.textarena import TextArenaGame
from whet.protocols import Environment
from whet.registry import imported
from whet.types import WhetError, did_you_mean

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
        made = make()
    except WhetError:
        raise
    except TypeError as error:
        raise WhetError(
            f"environment {name!r} cannot be made with {dict(settings)}: {error}; set env.settings"
        ) from error
    missing = [method for method in ("start", "step") if not callable(getattr(made, method, None))]
    if missing:
        raise WhetError(f"environment {name!r} has no method {missing[0]}; give it start(prompt) and step(completion)")
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
