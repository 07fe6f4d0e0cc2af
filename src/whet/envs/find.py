"""Environments by name: built in, registered, or `path/to/file.py:Class`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from whet import registry
from whet.envs.adapters.attempts import Attempts
from whet.envs.adapters.bfcl import FunctionCalling
from whet.envs.adapters.gem import gem_environment
from whet.envs.adapters.gym import gym_environment
from whet.envs.adapters.skyrl import skyrl_environment
from whet.envs.adapters.textarena import TextArenaGame
from whet.importing import imported
from whet.protocols import Environment
from whet.types import WhetError

ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "bfcl": FunctionCalling,
    "gem": gem_environment,
    "gym": gym_environment,
    "reasoning_gym": Attempts,
    "skyrl": skyrl_environment,
    "textarena": TextArenaGame,
}
GIVEN: dict[str, Any] = {}  # environments and tools that only the calling program has, by the name its config has


def _refusal(maker: Any) -> str:
    if not callable(maker):
        return f"it is {maker!r}; give a class, or a function that makes an environment"
    missing = [name for name in ("start", "step") if isinstance(maker, type) and not hasattr(maker, name)]
    if missing:
        return f"{maker.__name__} has no {' and no '.join(missing)}; give it both methods of whet.Environment"
    return ""


registry.open_shelf("environment", ENVIRONMENTS, _refusal)


def find_environment(name: str, settings: Mapping[str, Any]) -> Callable[[], Environment]:
    """A function that makes the environment of one episode. One is made here: settings that do not fit are told now."""
    if name in GIVEN:
        maker = GIVEN[name]
    elif name.startswith("python:"):
        raise WhetError(f"the environment {name!r} was given from Python and is in no file; give it again with env=...")
    elif ":" in name:
        maker = imported(name, "environment")
    else:
        maker = registry.lookup("environment", name)
    if refusal := _refusal(maker):
        raise WhetError(f"environment {name!r} cannot be used: {refusal}")
    make = partial(maker, **settings)
    try:
        made = make()
    except WhetError:
        raise
    except TypeError as error:
        raise WhetError(
            f"environment {name!r} cannot be made with {dict(settings)}: {error}; set env.settings"
        ) from error
    missing = [each for each in ("start", "step") if not callable(getattr(made, each, None))]
    if missing:
        raise WhetError(f"environment {name!r} has no method {missing[0]}; give it start(prompt) and step(completion)")
    return make
