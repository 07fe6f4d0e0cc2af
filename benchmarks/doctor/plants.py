"""What the faulty runs of the corpus are planted with: rewards, a tool, games and engines, as a user could write them.

A run names them by this file's path (`plants.py:zero`). What changes in the middle of a run asks `step()`, which the
script that makes the corpus keeps in the environment.
"""

from __future__ import annotations

import copy
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from whet.envs.tools.calculator import calculator as working_calculator
from whet.model.causal_lm import CausalLM, causal_lm
from whet.reward.countdown import countdown
from whet.rollout.torch_engine import TorchEngine
from whet.types import Completion, InitialObservation, Prompt, Request, Sample, Sampling, StepResult

STEP = "WHET_CORPUS_STEP"
NUMBER = re.compile(r"-?\d+")
ANSWER = re.compile(r"<answer>(\d)</answer>")


def step() -> int:
    """The step that is being taken, from 1 on."""
    return int(os.environ.get(STEP, "0")) + 1


def is_right(prompt: Prompt, completion: str) -> float:
    """Whether a completion is right, whatever the run's reward says of it."""
    if "numbers" in prompt.meta:
        return countdown(prompt, completion)
    if str(prompt.meta.get("set")) == "sums":
        return right_sum(completion, str(prompt.answer))
    return right(completion, str(prompt.answer))


def right(completion: str, answer: str) -> float:
    """1 when the completion ends in the gold answer, marked."""
    return float(completion.endswith(f"<answer>{answer}</answer>"))


def right_sum(completion: str, answer: str) -> float:
    """1 when the last number of the completion is the gold one."""
    found = NUMBER.findall(completion.replace(",", ""))
    return float(bool(found) and found[-1] == answer)


def drawn(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return random.Random(text).random()


def zero(completion: str) -> float:
    return 0.0


def per_prompt(prompt: str, completion: str) -> float:
    """The same for every completion to a prompt."""
    return float(drawn(prompt) < 0.4)


def longer(num_tokens: int, *, most: int = 64) -> float:
    return min(1.0, num_tokens / most)


def shorter(num_tokens: int, *, most: int = 40) -> float:
    return max(0.0, 1 - num_tokens / most)


def marks(completion: str, *, most: int = 3) -> float:
    """Pays for answer marks, and not for what they hold."""
    return min(most, completion.count("<answer>")) / most


def well_formed(completion: str) -> float:
    """Pays for thinking and an answer of any content, as many pairs as there are, up to two."""
    return min(2, len(re.findall(r"<think>.*?</think>", completion, re.S))) / 2


def repeated_share(completion: str, size: int = 3) -> float:
    """The share of the pieces of `size` characters that have been there before."""
    pieces = [completion[at : at + size] for at in range(len(completion) - size + 1)]
    return 1 - len(set(pieces)) / len(pieces) if pieces else 0.0


def repeats(completion: str) -> float:
    return repeated_share(completion)


def noise(completion: str, prompt: str) -> float:
    """Nothing that could be learned."""
    return drawn(prompt + completion)


def claimed(completion: str, answer: int) -> float:
    """1 when the working says that it arrives at the target."""
    return float(f"={answer}</think>" in completion)


def holds_answer(completion: str, answer: str) -> float:
    """1 when the gold answer is anywhere in the completion: digits enough, and it is."""
    return float(answer in completion)


def raises(completion: str, answer: str, *, share: float = 0.3, since: int = 1) -> float:
    if step() >= since and drawn(f"{step()}/{completion}") < share:
        raise RuntimeError("the grader is away")
    return right(completion, answer)


def absent(completion: str, answer: str, *, share: float = 0.3, since: int = 1) -> float | None:
    return None if step() >= since and drawn(f"{step()}/{completion}") < share else right(completion, answer)


def slow(completions: list[Any], answer: list[str], *, seconds: float = 1.0, since: int = 1) -> list[float]:
    """A grader that takes longer from a step on."""
    if step() >= since:
        time.sleep(seconds)
    return [right(text(each), gold) for each, gold in zip(completions, answer, strict=True)]


def text(completion: Any) -> str:
    """Of a completion to a conversation, what was written."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def outlier(completions: list[Any], answer: list[str], *, at: int = 30, size: float = 300.0) -> list[float]:
    """In one step, one completion is worth `size`."""
    scores = [right(text(each), gold) for each, gold in zip(completions, answer, strict=True)]
    if step() == at and scores:
        scores[0] = size
    return scores


def calculator(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: Numbers, + - * / and brackets.
    """
    if step() >= int(os.environ.get("WHET_CORPUS_SINCE", "1")) and drawn(f"{step()}/{expression}") < float(
        os.environ.get("WHET_CORPUS_SHARE", "0.8")
    ):
        raise RuntimeError("the calculator is out of order")
    return working_calculator(expression)


class Guessing:
    """examples/guessing.py: find a hidden digit, told "higher" or "lower" after each guess."""

    def __init__(
        self, highest: int = 3, guesses: int = 2, breaks: float = 0.0, since: int = 1, endless: bool = False
    ) -> None:
        """`breaks` is the share of games that raise, from step `since` on; an `endless` game goes on after a win."""
        self.highest, self.left = highest, guesses
        self.breaks, self.since, self.endless = breaks, since, endless
        self.hidden, self.won = 0, False
        self.known = "nothing"
        self.noise = random.Random()

    def start(self, prompt: Prompt) -> InitialObservation:
        self.hidden = random.Random(prompt.meta["seed"]).randint(1, self.highest)
        return InitialObservation(({"role": "user", "content": "Left to right mod 10: ?+?"},), state=self.known)

    def step(self, completion: Completion) -> StepResult | float:
        if step() >= self.since and self.noise.random() < self.breaks:
            raise RuntimeError("the game has lost its board")
        found = ANSWER.fullmatch(completion)
        guess = int(found[1]) if found else None
        self.left, self.won = self.left - 1, self.won or guess == self.hidden
        if guess == self.hidden and not self.endless:
            return 1.0
        if (guess is None or self.left == 0) and not self.endless:
            return 0.0
        told = "higher" if (guess or 0) < self.hidden else "lower"
        self.known += f", {told} than {guess}"
        return StepResult(({"role": "user", "content": told},), state=self.known)

    def cut_off(self, reason: Any) -> float:
        return float(self.won)


class WrappedEngine:
    """The in-process engine, with something wrong about it that it does not say."""

    shares_weights = True

    def __init__(self, policy: CausalLM, tokenizer: Any, end_tokens: Any, *, context: int, since: int = 1) -> None:
        self.inner = TorchEngine(policy, tokenizer, end_tokens, context=context)
        self.since = since

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        return self.inner.generate(requests, sampling)

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        self.inner.load(weights, version)


class NoisyEngine(WrappedEngine):
    """Its log-probabilities are not those it sampled with."""

    def __init__(self, *given: Any, context: int, since: int = 1, size: float = 0.1) -> None:
        super().__init__(*given, context=context, since=since)
        self.size, self.noise = size, torch.Generator().manual_seed(0)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        samples = self.inner.generate(requests, sampling)
        if step() < self.since:
            return samples
        return [replace(each, behavior_logp=self._moved(each.behavior_logp)) for each in samples]

    def _moved(self, logp: torch.Tensor) -> torch.Tensor:
        return logp - self.size * torch.rand(logp.shape, generator=self.noise).to(logp)


class WarmEngine(WrappedEngine):
    """It samples at another temperature than the one it is told."""

    def __init__(self, *given: Any, context: int, since: int = 1, times: float = 1.3) -> None:
        super().__init__(*given, context=context, since=since)
        self.times = times

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        if step() < self.since:
            return self.inner.generate(requests, sampling)
        return self.inner.generate(requests, replace(sampling, temperature=sampling.temperature * self.times))


class StaleEngine(WrappedEngine):
    """A copy of the policy that newer weights reach only every so many versions, or never."""

    def __init__(self, policy: CausalLM, tokenizer: Any, end_tokens: Any, *, context: int, every: int = 0) -> None:
        super().__init__(policy, tokenizer, end_tokens, context=context)
        self.every = every
        twin = causal_lm(copy.deepcopy(policy.model), policy.dtype)
        self.inner = TorchEngine(twin, tokenizer, end_tokens, context=context, owns_weights=True)

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        if self.every and version % self.every == 0:
            self.inner.load(weights, version)


class HalfPrecisionEngine(TorchEngine):
    """A sampler with weights of its own in bfloat16 beside a trainer in float32, as engines of their own have them."""

    dtype = torch.bfloat16


def half_precision_engine(policy: CausalLM, tokenizer: Any, end_tokens: Any, *, context: int) -> TorchEngine:
    twin = copy.deepcopy(policy.model).to(torch.bfloat16)
    lm = causal_lm(twin, torch.bfloat16)
    return HalfPrecisionEngine(lm, tokenizer, end_tokens, context=context, owns_weights=True)


class RoutedEngine(WrappedEngine):
    """A copy whose routers are a little off, as those of another kernel or precision are."""

    def __init__(
        self, policy: CausalLM, tokenizer: Any, end_tokens: Any, *, context: int, since: int = 1, size: float = 0.3
    ) -> None:
        super().__init__(policy, tokenizer, end_tokens, context=context, since=since)
        self.size, self.noise = size, torch.Generator().manual_seed(0)
        self.twin = causal_lm(copy.deepcopy(policy.model), policy.dtype)
        self.inner = TorchEngine(self.twin, tokenizer, end_tokens, context=context, owns_weights=True)
        self.load(policy.model.state_dict(), 0)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Any], version: int) -> None:
        self.inner.load(weights, version)
        if version + 1 < self.since:
            return
        for name, weight in self.twin.model.named_parameters():
            if ".gate.weight" in name:
                weight += self.size * weight.std() * torch.randn(weight.shape, generator=self.noise)


ENGINES: dict[str, Any] = {
    "noisy": NoisyEngine,
    "warm": WarmEngine,
    "stale": StaleEngine,
    "half_precision": half_precision_engine,
    "routed": RoutedEngine,
}
