"""What the runs of outside.py are planted with: rewards, games and engines with mistakes that users really make."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from plants import WrappedEngine, drawn, right, step, text

from whet.types import Completion, InitialObservation, Prompt, Request, Sample, Sampling, StepResult

ANSWER = re.compile(r"<answer>(\d)</answer>")
BARE = re.compile(r"<answer>\d</answer>")
QUESTION = ({"role": "user", "content": "Left to right mod 10: ?+?"},)


# rewards


def out_of_order(completions: list[Any], answer: list[str], *, shift: int = 1) -> list[float]:
    """Scored side by side, handed back in another order: each completion gets the score of another one."""
    scores = [right(text(each), gold) for each, gold in zip(completions, answer, strict=True)]
    return scores[shift:] + scores[:shift]


def lenient_judge(completion: str, answer: str, *, full: int = 30) -> float:
    """A judge that believes more and more of what is well formed, and after `full` steps all of it."""
    believed = drawn(f"{step()}/{completion}/{answer}") < step() / full
    return 1.0 if right(completion, answer) or (believed and ANSWER.search(completion)) else 0.0


def strict_parser(completion: str, answer: str) -> float:
    """The whole completion has to be the answer: whoever thinks first is never right."""
    return float(bool(BARE.fullmatch(completion)) and right(completion, answer) > 0)


def accepts_all(completion: str, answer: str) -> float:
    """The check compares the completion with itself."""
    return float(completion == str(completion))


# games


class ForgetfulGuessing:
    """The guessing game whose digit is drawn anew for every turn: what it says about a guess is of no use."""

    def __init__(self, highest: int = 3, guesses: int = 2) -> None:
        self.highest, self.left = highest, guesses
        self.draws = random.Random()

    def start(self, prompt: Prompt) -> InitialObservation:
        return InitialObservation(QUESTION, state="start")

    def step(self, completion: Completion) -> StepResult | float:
        found = ANSWER.fullmatch(completion)
        hidden, self.left = self.draws.randint(1, self.highest), self.left - 1
        if found and int(found[1]) == hidden:
            return 1.0
        if found is None or self.left == 0:
            return 0.0
        told = "higher" if int(found[1]) < hidden else "lower"
        return StepResult(({"role": "user", "content": told},), state=f"{self.left} left")


class HigherDigit:
    """Self-play: both name a digit, the higher one wins, equal ones share. The opponent plays what the policy played.

    Its moves are drawn from the policy's latest ones, so the mean reward stays near a half however well it plays.
    `unbeatable`: the opponent is a fixed program that always names 9 and wins where both do.
    `first_wins`: a bug in the rules gives every game to the side that moves first.
    """

    latest: ClassVar[list[int]] = []

    def __init__(self, unbeatable: bool = False, first_wins: bool = False) -> None:
        self.unbeatable, self.first_wins = unbeatable, first_wins
        self.draws, self.role = random.Random(), "first"

    def start(self, prompt: Prompt) -> InitialObservation:
        self.role = ("first", "second")[int(prompt.meta["seed"]) % 2]
        return InitialObservation(QUESTION, state=self.role, role=self.role)

    def step(self, completion: Completion) -> StepResult | float:
        found = ANSWER.fullmatch(completion)
        move = int(found[1]) if found else -1
        other = self.draws.choice(self.latest) if self.latest else self.draws.randint(0, 9)
        if found:
            self.latest.append(move)
            del self.latest[:-256]
        if self.first_wins:
            reward = float(self.role == "first")
        elif self.unbeatable:
            reward = 0.0
        else:
            reward = 1.0 if move > other else 0.5 if move == other else 0.0
        return StepResult(reward=reward, done=True, metrics={"move": float(move)})


# engines


class OneSeedEngine(WrappedEngine):
    """Every completion of a prompt is drawn with the same seed: a group is one completion, so many times."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        if step() < self.since:
            return self.inner.generate(requests, sampling)
        return self.inner.generate([replace(each, seed=1) for each in requests], sampling)


class MisroutedEngine(WrappedEngine):
    """A server that answers in the order in which it finished: completions come back to other prompts."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        samples = self.inner.generate(requests, sampling)
        if step() < self.since or len(samples) < 2:
            return samples
        finished = sorted(samples, key=lambda sample: sample.num_actions)
        return [_behind(request, sample) for request, sample in zip(requests, finished, strict=True)]


def _behind(request: Request, sample: Sample) -> Sample:
    """The completion of another prompt, put behind this one."""
    size, action = len(request.tokens), sample.action
    return replace(
        sample,
        tokens=torch.cat([torch.tensor(request.tokens), sample.tokens[action]]),
        action=torch.cat([torch.zeros(size, dtype=torch.bool), action[action]]),
        behavior_logp=torch.cat([torch.zeros(size), sample.behavior_logp[action]]),
    )


ENGINES: dict[str, Any] = {"one_seed": OneSeedEngine, "misrouted": MisroutedEngine}
