"""Gymnasium-like environments: `reset(seed=...)`, then `step(action)` until it says that the episode is over.

The interface is Gymnasium's, with or without the package: `step` answers (observation, reward, terminated, truncated,
info), or (observation, reward, done, info) as it was before. A completion is the action. Where the action space is
`Discrete`, it is the last number or name of an action in the completion; for other spaces give a function `action`.
Observations must be texts: give a function `observation` for others, `observation="render"` for an environment that
renders itself as text, or `observation="json"`.

The games of gem (`game:GuessTheNumber-v0-easy`, `game:Sudoku-v0-hard`, ...): Gymnasium's interface over texts.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whet.envs.adapters.shared import (
    OwnRandom,
    cannot_be_made,
    flag,
    function_of,
    number,
    opened,
    optional,
    quiet,
    seed_of,
    text,
)
from whet.registry import error_text
from whet.settings import hostile
from whet.types import Completion, InitialObservation, Prompt, StepResult, WhetError, did_you_mean

RENDER, JSON = "render", "json"
AS_TEXT = f"env.settings.observation={RENDER}, ={JSON}, or =file.py:function that writes one as text"
COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)


class NoAction(ValueError):
    """A completion that names no action; its text is the answer that the policy gets."""


class StepEnvironment:
    """One episode of a Gymnasium-like environment.

    `shares_random` says that it draws from the generators of the whole process (see `randomness`); None: it does
    when `reset` takes no seed. `names_states` gives every observation as the name of its state, for credit that
    compares turns which start from the same state: right only where the observation shows all there is to know.
    """

    answers_as = "user"
    replays = True  # from the seed of its row; many such environments cannot be copied

    def __init__(
        self,
        env: Any,
        *,
        observation: Callable[[Any], str] | str | None = None,
        action: Callable[[str], Any] | str | None = None,
        actions: Sequence[str] = (),
        shares_random: bool | None = None,
        names_states: bool = False,
        name: str = "",
    ) -> None:
        self._env = env
        self._name = name or type(env).__name__
        self._takes_seed = _takes(env.reset, "seed")
        self._shares_random = not self._takes_seed if shares_random is None else shares_random
        self._names_states = names_states
        self._observation = _observation_of(env, observation, self._name)
        self._action = (
            function_of(action, "action")
            if action
            else _action_of(getattr(env, "action_space", None), actions, self._name)
        )
        space = getattr(env, "action_space", None)
        # what another space contains is a matter of types too, and its environment may take more
        self._numbers = space if type(space).__name__ == "Discrete" and hasattr(space, "contains") else None
        self._random: OwnRandom | None = None

    def start(self, prompt: Prompt) -> InitialObservation:
        """Reset the environment with the row's seed; the observation follows the prompt."""
        seed = seed_of(prompt)
        if self._shares_random:
            self._random = OwnRandom(seed)
        with self._own_random():
            answer = self._env.reset(seed=seed) if self._takes_seed else self._env.reset()
            shown, info = answer if _is_pair(answer) else (answer, {})
            seen = self._seen(shown, info, "reset")
        return InitialObservation(opened(prompt, seen), state=self._state(seen))

    def step(self, completion: Completion) -> StepResult:
        """Play the action that the completion names; an unreadable one is answered with why, and earns 0."""
        try:
            chosen = self._action(str(completion))
            if self._numbers is not None and not self._numbers.contains(chosen):
                raise NoAction(f"No action was read: {hostile.shown(chosen)} is not in {self._numbers}.")
        except Exception as error:  # a function of the user's may fail on what the policy wrote: that is no action
            message = str(error) if isinstance(error, NoAction) else f"No action could be read ({error_text(error)})."
            return StepResult(_user(message), reward=0.0, counts={"malformed_calls": 1}, errors=(message,))
        with self._own_random():
            shown, reward, done, info = self._answer(self._env.step(chosen))
            seen = self._seen(shown, info, "step")
        reward = number(reward, f"{self._name}.step")
        return StepResult(_user(seen) if seen or not done else (), reward, done, self._state(seen))

    def close(self) -> None:
        """Close the environment, where it has a `close`."""
        close = getattr(self._env, "close", None)
        if callable(close):
            close()

    def _answer(self, answer: Any) -> tuple[Any, Any, bool, Any]:
        if not isinstance(answer, tuple) or len(answer) not in (4, 5):
            length = f" of {len(answer)}" if isinstance(answer, tuple) else ""
            raise TypeError(
                f"{self._name}.step gave a {type(answer).__name__}{length}; expected "
                "(observation, reward, terminated, truncated, info)"
            )
        shown, reward, *ends, info = answer
        ended = [flag(end, f"{self._name}.step") for end in ends]
        return shown, reward, any(ended), info

    def _seen(self, shown: Any, info: Any, method: str) -> str:
        where = f"{self._name}.{method}"
        seen = text(self._observation(shown), where, f"give {AS_TEXT}")
        suffix = info.get("suffix") if isinstance(info, Mapping) else None  # gem's: what is asked of every turn
        return f"{seen}\n{suffix}" if isinstance(suffix, str) and suffix and method == "step" else seen

    def _state(self, seen: str) -> str | None:
        return seen if self._names_states else None

    def _own_random(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._random is None else self._random()


def gym_environment(
    id: str,
    *,
    observation: Callable[[Any], str] | str | None = None,
    action: Callable[[str], Any] | str | None = None,
    actions: Sequence[str] = (),
    names_states: bool = False,
    **settings: Any,
) -> StepEnvironment:
    """A registered environment of Gymnasium; `settings` are its own."""
    with optional("gym", "pip install 'whet[gym]'"):
        import gymnasium
    if observation == RENDER:
        settings.setdefault("render_mode", "ansi")
    try:
        env = gymnasium.make(id, **settings)
    except Exception as error:
        raise cannot_be_made(f"the gym environment {id!r}", error, "check its id and its settings") from error
    return StepEnvironment(
        env,
        observation=observation,
        action=action,
        actions=actions,
        shares_random=False,
        names_states=names_states,
        name=id,
    )


def _observation_of(env: Any, setting: Callable[[Any], str] | str | None, name: str) -> Callable[[Any], Any]:
    if callable(setting):
        return setting
    if setting == RENDER:
        return lambda _: _plain(env.render())
    if setting == JSON:
        return lambda shown: json.dumps(_jsonable(shown), ensure_ascii=False)
    if isinstance(setting, str) and ":" in setting:
        return function_of(setting, "observation")
    if setting is not None:
        raise WhetError(f"{name}: observation is {setting!r}; give {AS_TEXT}")
    space = type(getattr(env, "observation_space", None)).__name__
    if space not in ("NoneType", "Text"):
        raise WhetError(f"{name}: its observations are of the space {space}, and a policy reads text; give {AS_TEXT}")
    return lambda shown: shown


def _action_of(space: Any, names: Sequence[str], name: str) -> Callable[[str], Any]:
    if isinstance(names, str):  # its letters would be taken for names
        raise WhetError(f"{name}: actions is the text {names!r}; expected a list of names, as in ['up', 'down']")
    kind = type(space).__name__ if hasattr(space, "contains") else "NoneType"  # gem calls a list of texts so too
    if names and kind != "Discrete":
        raise WhetError(f"{name}: actions names the numbers of a Discrete space, and its space is {kind}; drop it")
    if kind in ("NoneType", "Text"):
        return lambda written: written
    if kind != "Discrete":
        raise WhetError(
            f"{name}: its actions are of the space {kind}; give env.settings.action=file.py:function, which reads one "
            "from text"
        )
    first, count = int(space.start), int(space.n)
    if names and len(names) != count:
        raise WhetError(f"{name}: actions has {len(names)} names, and its space {count} numbers; name all of them")
    choices = {str(first + offset): first + offset for offset in range(count)}
    choices |= {action_name.lower(): first + offset for offset, action_name in enumerate(names)}
    written_as = ", ".join(names) or f"a number from {first} to {first + count - 1}"
    pattern = re.compile(
        "|".join(rf"(?<!\w){re.escape(choice)}(?!\w)" for choice in sorted(choices, key=len, reverse=True))
    )

    def read(written: str) -> int:
        matches = pattern.findall(written.lower())
        if not matches:
            raise NoAction(f"No action was found. Write one of: {written_as}.")
        return choices[matches[-1]]

    return read


def _jsonable(shown: Any) -> Any:
    """An observation of any space as JSON has it: arrays as lists, numbers of numpy as Python's."""
    if isinstance(shown, Mapping):
        return {str(key): _jsonable(part) for key, part in shown.items()}
    if isinstance(shown, list | tuple):
        return [_jsonable(part) for part in shown]
    return shown.tolist() if hasattr(shown, "tolist") else shown


def _plain(rendered: Any) -> Any:
    """A rendering for terminals as plain text: what stands out in colour stands in brackets."""
    return COLOURED.sub(r"[\1]", rendered) if isinstance(rendered, str) else rendered


def _is_pair(answer: Any) -> bool:
    return isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)


def _takes(method: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(parameter.name == name or parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def _user(content: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": content},)


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
