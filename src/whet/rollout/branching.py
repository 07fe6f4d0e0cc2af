"""Where an episode branches: how many turns the policy draws from a state, and how the environment gets a twin there.

How many is decided when a state is reached, from what led to it and a coin of its own, before any turn is drawn from
it; so the mean over the turns is that of one (`whet.objective.tree`). The leaves that an episode may have are shared
out among its branches at once, by numbers alone: a branch that ends early leaves its share to nobody, and nothing
depends on which branch is quicker.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whet.protocols import Environment
from whet.registry import error_text
from whet.rollout.answers import step_result_of
from whet.rollout.seed import request_seed
from whet.settings.hostile import shown
from whet.types import Completion, Prompt, StepResult, WhetError

HOW = (
    "give its class fork(self), which returns another one in the same state, or replays = True where equal turns are "
    "always answered alike"
)


@dataclass(frozen=True)
class Branching:
    """The turns after which an episode branches, and how far."""

    at: Literal["turns", "tool_calls", "entropy"]
    leaves: int = 4  # of an episode, at most
    width: int = 2  # turns drawn from a state that branches
    # by entropy: the chance is chance + weight (H - H_1) / log(vocabulary), H the mean -logp of the turn's tokens, H_1
    # of the episode's first; Dong 2025 (2507.19849), as in the authors' code, where H is that of the first 20 tokens
    chance: float = 0.5
    weight: float = 0.2

    def num_draws(self, leaves: int, num_calls: int, rise: float, coin: Sequence[int | str]) -> int:
        """Turns to draw from a state that may have so many leaves; `rise` is (H - H_1) / log(vocabulary)."""
        if leaves < 2 or (self.at == "tool_calls" and not num_calls):
            return 1
        if self.at == "entropy" and random.Random(request_seed(*coin)).random() >= self.chance + self.weight * rise:
            return 1
        return min(self.width, leaves)


def shared_out(leaves: int, count: int) -> list[int]:
    """Divide so many leaves among `count` branches as evenly as possible."""
    return [leaves // count + (number < leaves % count) for number in range(count)]


def why_not(environment: Environment) -> str:
    """Why episodes with this environment cannot branch; empty where they can."""
    if refusal := str(getattr(environment, "no_branches", "")):
        return refusal
    fork = getattr(environment, "fork", None)
    if inspect.iscoroutinefunction(fork):
        return "its fork is async; write it without async: it only copies what is there"
    if callable(fork) or getattr(environment, "replays", False):
        return ""
    try:
        copy.deepcopy(environment)
    except Exception as error:
        return f"it cannot be copied ({error_text(error)}); {HOW}"
    return ""


def twin_of(environment: Environment) -> Environment:
    """A second environment in the same state, by its own `fork` or a deep copy."""
    fork = getattr(environment, "fork", None)
    made: Environment = fork() if callable(fork) else copy.deepcopy(environment)
    if made is environment or not callable(getattr(made, "step", None)):
        name, what = type(environment).__name__, "itself" if made is environment else shown(made)
        raise WhetError(f"the environment {name}: its fork returned {what}; expected another {name} in the same state")
    return made


@dataclass(frozen=True)
class TurnReplay:
    """A new environment that is led to the state of another by the same turns."""

    environment: Environment
    prompt: Prompt
    turns: tuple[tuple[Completion, StepResult], ...]  # what the policy wrote, and what was answered

    def __call__(self) -> Any:
        """Play the turns again; an awaitable where the environment is async. Raises where an answer differs."""
        if inspect.iscoroutinefunction(self.environment.start) or inspect.iscoroutinefunction(self.environment.step):
            return self._play_async()
        self.environment.start(self.prompt)
        for completion, before in self.turns:
            self._check(self.environment.step(completion), before)
        return None

    async def _play_async(self) -> None:
        opened = self.environment.start(self.prompt)
        if inspect.isawaitable(opened):
            await opened
        for completion, before in self.turns:
            answer = self.environment.step(completion)
            self._check(await answer if inspect.isawaitable(answer) else answer, before)

    def _check(self, answer: Any, before: StepResult) -> None:
        again = step_result_of(answer)
        if (again.messages, again.reward, again.done) != (before.messages, before.reward, before.done):
            raise WhetError(
                f"the environment {type(self.environment).__name__} has replays = True and answered the same turns "
                f"otherwise to {self.prompt.id!r}: {_said(again)!r} after {_said(before)!r}; drop replays and give it "
                "fork(self), or set env.branching=none"
            )


def _said(result: StepResult) -> str:
    texts = [str(message.get("content")) for message in result.messages]
    return (" ".join(texts) or f"reward {result.reward}")[:80]
