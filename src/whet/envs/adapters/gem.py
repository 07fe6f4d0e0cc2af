"""The games of gem (`game:GuessTheNumber-v0-easy`, `game:Sudoku-v0-hard`, ...): Gymnasium's interface over texts."""

from __future__ import annotations

from typing import Any

from whet.envs.adapters.gym import StepEnvironment
from whet.envs.adapters.optional import cannot_be_made, optional, quiet
from whet.envs.adapters.randomness import OwnRandom
from whet.types import WhetError, did_you_mean

INSTALL = "pip install --no-deps gem-llm==0.1.0 and pip install nltk msgspec 'whet[tasks]'"


def gem_environment(id: str, *, names_states: bool = False, **settings: Any) -> StepEnvironment:
    """A registered environment of gem; `settings` are its own. All of them draw from the shared generators."""
    with optional("gem", INSTALL):
        import gem
        from gem.envs.registration import ENV_REGISTRY
    if id not in ENV_REGISTRY:
        raise WhetError(f"gem has no environment {id!r}{did_you_mean(id, ENV_REGISTRY)}; gem.print_envs() lists them")
    try:
        with OwnRandom(0)(), quiet():  # the games are reset once when they are made
            env = gem.make(id, **settings)
    except Exception as error:
        raise cannot_be_made(f"gem's {id!r}", error, "check its settings, or choose another") from error
    return StepEnvironment(env, shares_random=True, names_states=names_states, name=id)
