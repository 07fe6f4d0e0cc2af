"""The four things a user replaces. Anything with these methods will do; nothing needs to be inherited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from whet.types import Message, Prompt, Request, Sample, Sampling, StepReport


@runtime_checkable
class Engine(Protocol):
    """Writes completions. The one in `whet.rollout.torch_engine` shares the trainer's weights.

    `whet.register("engine", maker, name="mine")` and `sampling.engine=mine` choose another. `maker` is a class or a
    function, called once per run as `maker(policy, tokenizer, end_tokens, context=context)`: the `CausalLM` that is
    trained (`policy.model` is its torch module, and `policy.logits(policy.hidden(tokens))` its output), the model's
    tokenizer, the ids that end a completion, and the most tokens that prompt and completion may have together. The
    policy has its first weights by then; an engine that copies them gets the later ones by `load`.
    """

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        """One sample per request, in order. Requests with equal tokens next to each other share one prefill."""
        ...

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Take over the policy's weights. An engine that shares them only notes the version.

        Called after each step that completions follow, before an evaluation, and when a run is resumed.
        """
        ...


@runtime_checkable
class Environment(Protocol):
    """A conversation partner for multi-turn work: tools, games, simulators. One object per episode."""

    def start(self, prompt: Prompt) -> Sequence[Message]: ...

    def step(self, completion: str) -> Sequence[Message] | float:
        """The messages that answer the completion, or the final reward when the episode is over."""
        ...


@runtime_checkable
class Reward(Protocol):
    """Scores samples, part by part. Plain functions are turned into one by `whet.reward.as_reward`."""

    @property
    def name(self) -> str: ...

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        """One score per sample, in order; None where a sample cannot be judged."""
        ...


@runtime_checkable
class Callback(Protocol):
    """Follows a run. The console, the record on disk and trackers are callbacks.

    A callback is any object with any subset of these methods. Inherit from this class to get methods that do nothing.
    """

    def started(self, summary: Mapping[str, Any]) -> None:
        """Before the first step, with the run's title, objective and facts."""
        return

    def stepped(self, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> None:
        """After each step; `samples` are empty where nothing is generated."""
        return

    def evaluated(self, step: int, name: str, result: Mapping[str, float], seconds: float) -> None:
        """After each evaluation; step 0 is before the first step, and `name` is "eval"."""
        return

    def saved(self, step: int, checkpoint: Path) -> None:
        """After each checkpoint, when it is complete."""
        return

    def finished(self, summary: Mapping[str, Any]) -> None:
        """After the last step, with the status, the report and what to do next."""
        return
