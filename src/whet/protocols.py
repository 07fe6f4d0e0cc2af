"""The four things a user replaces. Anything with these methods will do; nothing needs to be inherited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from whet.types import Completion, Prompt, Request, Sample, Sampling, StepReport


@runtime_checkable
class Engine(Protocol):
    """Writes completions. The one in `whet.rollout.torch_engine` shares the trainer's weights.

    `whet.register("engine", maker, name="mine")` and `sampling.engine=mine` choose another. `maker` is a class or a
    function, called once per run as `maker(policy, tokenizer, end_tokens, context=context)`: the `CausalLM` that is
    trained (`policy.model` is its torch module, and `policy.logits(policy.hidden(tokens))` its output), the model's
    tokenizer, the ids that end a completion, and the most tokens that prompt and completion may have together. The
    policy has its first weights by then; an engine that copies them gets the later ones by `load`. What
    `sampling.engine_settings` has is given to `maker` too, by name.

    An engine may say more about itself: `shares_weights = True` where it computes with the policy's own tensors;
    else its completions are checked (`whet.rollout.weight_sync_check`) by the `dtype` it computes in, and by
    `arrived`, the `whet.rollout.weight_sync_check.fingerprint` of what it received last. `updates = False` where it
    takes no weights at all. `stream(requests, sampling, ended)` is `generate`, and calls `ended(number, sample)` as
    each completion ends: rewards need not wait for the last.
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
class Session(Protocol):
    """Completions that are asked for one by one, each handed out when it is finished.

    `engine.session(sampling, shape)` (a `Sampling`, a `SessionShape`) opens one where an engine has that method;
    `whet.rollout.session` has one for all others. It is used from one thread, and closed at the end.
    """

    def add(self, number: int, request: Request) -> None:
        """Ask for a completion; numbers are the caller's own, each used once.

        A request that `continues` an earlier one takes over its keys and values: only what follows is computed.
        """
        ...

    def advance(self) -> list[tuple[int, Sample]]:
        """Write on for a moment; the requests that were finished by it, with their samples (prompt included)."""
        ...

    @property
    def is_idle(self) -> bool:
        """True when nothing is left to write: every request that was added has been handed out."""
        ...

    def release(self, number: int) -> None:
        """Forget the keys and values of a request that was handed out: no other will continue it."""
        ...

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Take over newer weights, in the middle of writing.

        What is being written goes on under them, its keys and values computed anew from the prompt and what it has
        written; its random stream goes on too, and log-probabilities stay those that each token was drawn with. A
        sample that several versions wrote says which in `token_versions`. A request that is added after this is
        written by these weights or newer ones. What is kept to be continued is read again.
        """
        ...

    def close(self) -> None:
        """Free what the session holds; nothing is called on it afterwards."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A conversation partner for multi-turn work: tools, games, simulators. One object per episode.

    All methods may be `async def`. `close()` is called at the end of the episode where there is one. So is
    `cut_off(reason)` when a limit ends the episode (a `StopReason`): it may return a last reward, or None. An
    attribute `stops`, a tuple of texts, ends the policy's turns after any of them, beside `sampling.stop`.

    Where episodes branch (`env.branching`), another object in the same state is needed: what `fork()` returns, or with
    `replays = True` a new one that is given the same turns again, else a deep copy of the object.
    """

    def start(self, prompt: Prompt) -> Any:
        """What the policy sees first: messages, an `InitialObservation`, or None for the prompt as it is."""
        ...

    def step(self, completion: Completion) -> Any:
        """The answer to a turn: a `StepResult`, messages alone, or a number: the last reward of an episode now over."""
        ...


@runtime_checkable
class Reward(Protocol):
    """Scores samples, part by part. Plain functions are turned into one by `whet.reward.as_reward`."""

    @property
    def name(self) -> str:
        """The name under which scores are reported."""
        ...

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        """One score per sample, in order; None where a sample cannot be judged."""
        ...


@runtime_checkable
class Callback(Protocol):
    """Follows a run. The console, the record on disk and trackers are callbacks.

    A callback is any object with any subset of these methods. Inherit from this class to get methods that do nothing.
    One that returns "stop" from `stepped` or `evaluated` ends the run: it is evaluated, saved and finished.
    """

    def started(self, summary: Mapping[str, Any]) -> None:
        """Called before the first step, with the run's title, objective and facts."""
        return

    def stepped(self, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> Literal["stop"] | None:
        """Called after each step; `samples` are empty where nothing is generated."""
        return None

    def evaluated(self, step: int, name: str, result: Mapping[str, float], seconds: float) -> Literal["stop"] | None:
        """Called after each evaluation; step 0 is before the first step, and `name` is "eval"."""
        return None

    def saved(self, step: int, checkpoint: Path) -> None:
        """Called after each checkpoint, when it is complete."""
        return

    def save_failed(self, step: int, reason: str) -> None:
        """Called when the disk refused a save: the run goes on, and `reason` names the last whole checkpoint."""
        return

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Called after the last step, with the status, the report and what to do next."""
        return
