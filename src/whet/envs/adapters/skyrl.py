"""SkyRL-Gym's `BaseTextEnv`: `init(prompt)` gives the conversation, `step(text)` a dictionary, until `done`.

An environment may hand back a `postprocessed_action`, the completion as it would rather have had it. The policy is
trained on what it wrote, so that text is not put in its place: the wish is counted as `ignored_rewrites`. One that
goes on and says nothing is answered with an empty message of the user.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from whet.envs.adapters.shared import cannot_be_made, flag, messages, number, numbers, optional
from whet.registry import imported
from whet.types import Completion, InitialObservation, Prompt, StepResult, WhetError, did_you_mean

INSTALL = "pip install 'whet[skyrl]'"
SILENCE = ({"role": "user", "content": ""},)


class AttributeDict(dict[str, Any]):
    """Settings that are read as `settings["key"]` and as `settings.key`, as those of SkyRL are."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"env_config has no {key!r}; give env.settings.env_config.{key}") from None


class SkyRLEnvironment:
    """One episode. `make(env_config=..., extras=...)` makes the foreign environment for a prompt's row."""

    def __init__(self, make: Callable[..., Any], name: str, config: Mapping[str, Any], max_turns: int | None) -> None:
        self._make, self._name, self._config, self._max_turns = make, name, dict(config), max_turns
        self._env: Any = None

    def start(self, prompt: Prompt) -> InitialObservation:
        """Make the environment with the row's columns and let its `init` write the conversation."""
        self._env = self._make(env_config=AttributeDict(self._config), extras=self._extras(prompt))
        conversation = prompt.messages or ({"role": "user", "content": prompt.text or ""},)
        answer = self._env.init([dict(message) for message in conversation])
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"{self._name}.init gave a {type(answer).__name__}; expected (messages, info)")
        return InitialObservation(messages(answer[0], f"{self._name}.init"))

    def step(self, completion: Completion) -> StepResult:
        """Hand the completion to the environment; its `done` ends the episode."""
        where = f"{self._name}.step"
        answer = self._env.step(str(completion))
        if not isinstance(answer, Mapping):
            raise TypeError(f"{where} gave a {type(answer).__name__}; expected a dictionary with reward and done")
        for key in ("observations", "reward", "done"):
            if key not in answer:
                raise TypeError(f"{where} gave no {key!r}; it gave {', '.join(map(str, answer)) or 'nothing'}")
        done = flag(answer["done"], where)
        wanted = answer.get("postprocessed_action")
        return StepResult(
            messages(answer["observations"], where) or (() if done else SILENCE),
            reward=number(answer["reward"], where),
            done=done,
            counts={"ignored_rewrites": 1} if wanted is not None and wanted != str(completion) else {},
            metrics=numbers(self._env.get_metrics()) if done and hasattr(self._env, "get_metrics") else {},
        )

    def close(self) -> None:
        if self._env is not None and hasattr(self._env, "close"):
            self._env.close()

    def _extras(self, prompt: Prompt) -> dict[str, Any]:
        """The row's columns. SkyRL's datasets have the gold answer in either column; others get it from `answer`."""
        extras = dict(prompt.meta)
        if prompt.answer is not None:
            gold = {"method": "rule", "ground_truth": str(prompt.answer)}
            extras = {"reward_spec": gold, "reward_model": gold, **extras}
        if self._max_turns is not None:
            extras["max_turns"] = self._max_turns
        return extras


def skyrl_environment(
    id: str, *, env_config: Mapping[str, Any] | None = None, max_turns: int | None = None
) -> SkyRLEnvironment:
    """A registered environment of SkyRL-Gym, made for each prompt with `env_config` and the row's columns."""
    with optional("skyrl", INSTALL):
        import skyrl_gym
    if id not in skyrl_gym.registry:
        known = ", ".join(skyrl_gym.registry)
        raise WhetError(f"skyrl_gym has no environment {id!r}{did_you_mean(id, skyrl_gym.registry)}; it has {known}")

    def make(env_config: Mapping[str, Any], **keywords: Any) -> Any:
        try:
            with optional(f"skyrl {id}", INSTALL):
                config = _with_defaults(skyrl_gym.registry[id].entry_point, env_config)
                return skyrl_gym.make(id, env_config=config, **keywords)
        except WhetError:
            raise
        except Exception as error:
            raise cannot_be_made(f"skyrl_gym's {id!r}", error, "check the columns it needs and its settings") from error

    return SkyRLEnvironment(make, id, env_config or {}, max_turns)


def _with_defaults(entry_point: Any, config: Mapping[str, Any]) -> Any:
    """The settings as the data class that the environment's parameter `env_config` is hinted with, where it is one."""
    kind = imported(entry_point, "environment") if isinstance(entry_point, str) else entry_point
    hint = typing.get_type_hints(kind.__init__).get("env_config")
    for config_class in typing.get_args(hint) or (hint,):
        if inspect.isclass(config_class) and dataclasses.is_dataclass(config_class):
            known = [field.name for field in dataclasses.fields(config_class)]
            for key in config:
                if key not in known:
                    raise WhetError(
                        f"env.settings.env_config has {key!r}{did_you_mean(key, known)}, and {kind.__name__} takes: "
                        f"{', '.join(known)}"
                    )
            return config_class(**config)
    return config


def of_skyrl_class(kind: Callable[..., Any], **settings: Any) -> SkyRLEnvironment:
    """A class of the user's own with `init` and `step`; it gets those of `env_config` and `extras` that it takes."""
    parameters = inspect.signature(kind).parameters.values()
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    max_turns = settings.pop("max_turns", None)
    config = settings.pop("env_config", {})

    def make(**keywords: Any) -> Any:
        return kind(**{name: value for name, value in keywords.items() if takes_all or name in names}, **settings)

    return SkyRLEnvironment(make, getattr(kind, "__name__", "the environment"), config, max_turns)
