"""Completions under a token budget, and budget forcing, on an engine that writes what it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from whet.tools.evaluation.measure import (
    BudgetForcing,
    Codec,
    cut_at,
    extended_thoughts,
    forced_answers,
    thought_length,
)
from whet.types import Request, Sample, Sampling, StopReason

END = 1
PROMPT = (90, 91)
WORDS = ["", "", "a ", "b ", "c ", "</thi", "nk>", "7", "x</think>", "Wait ", "Final:", "<think>"]
CODES = {word: number for number, word in enumerate(WORDS) if word}


def decode(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in tokens if token != END)


def encode(text: str) -> tuple[int, ...]:
    return (CODES[text],)


CODEC = Codec(decode, encode, frozenset({END}))
GREEDY = Sampling(max_new_tokens=8, temperature=0.0)


def sample(*written: int, stop: StopReason = StopReason.END) -> Sample:
    tokens = torch.tensor([*PROMPT, *written])
    action = torch.arange(len(tokens)) >= len(PROMPT)
    logp = torch.where(action, -0.5, 0.0)
    return Sample(tokens, action, logp, (0, 0), stop, decode(written), parts={"right": 1.0}, reward=1.0)


class Scripted:
    """Writes `script` behind any prompt, as far as the budget goes."""

    def __init__(self, *script: int) -> None:
        self.script = script
        self.requests: list[Request] = []

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        self.requests += requests
        return [self._written(request, sampling) for request in requests]

    def _written(self, request: Request, sampling: Sampling) -> Sample:
        room = request.max_new_tokens or sampling.max_new_tokens
        added = self.script[:room]
        tokens = torch.tensor([*request.tokens, *added])
        action = torch.arange(len(tokens)) >= len(request.tokens)
        stop = StopReason.END if END in added else StopReason.LENGTH
        return Sample(tokens, action, torch.where(action, -0.1, 0.0), (0, 0), stop, decode(added))

    def load(self, weights: object, version: int) -> None:
        raise AssertionError


def test_a_cut_completion_is_its_opening_without_its_score():
    whole = sample(2, 3, 4, 7, END)
    short = cut_at(whole, 2, decode)
    assert short.tokens.tolist() == [*PROMPT, 2, 3] and short.completion == "a b " and short.stop is StopReason.LENGTH
    assert short.reward is None and not short.parts and short.num_actions == 2
    assert cut_at(whole, 5, decode) is whole  # its score stays
    assert cut_at(whole, 4, decode).stop is StopReason.LENGTH  # the end itself did not fit


def test_where_a_thought_ends():
    assert thought_length(sample(2, 3, 5, 6, 7, END), CODEC) == 2  # a marker of two tokens
    assert thought_length(sample(2, 8, 7, END), CODEC) == 1  # the token holds something before the marker
    assert thought_length(sample(2, 3, 7, END), CODEC) == 3  # no marker: the end token
    assert thought_length(sample(2, 3, 7, stop=StopReason.LENGTH), CODEC) is None


def test_forcing_asks_for_the_answer_where_the_budget_ends_and_keeps_the_sampled_tokens():
    engine = Scripted(7, END)
    long, short = sample(2, 3, 4, 2, 3, stop=StopReason.LENGTH), sample(2, 5, 6, 7, END)
    forcing = BudgetForcing(answer="Final:", answer_tokens=4)
    forced, natural = forced_answers(engine, [long, short], [(0, 0), (0, 1)], 3, forcing, GREEDY, CODEC)
    assert forced.tokens.tolist() == [*PROMPT, 2, 3, 4, CODES["Final:"], 7, END]
    assert forced.action.tolist() == [False, False, True, True, True, False, True, True]  # the words are no actions
    assert forced.completion == "a b c Final:7" and forced.stop is StopReason.END and forced.reward is None
    assert natural is short  # it answered by itself within the budget
    assert [request.max_new_tokens for request in engine.requests] == [4]
    # a thought of one token, at a budget of one
    assert forced_answers(Scripted(7, END), [short], [(0, 1)], 1, forcing, GREEDY, CODEC) == [short]


def test_without_words_an_open_thought_is_closed_first():
    engine = Scripted(7, END)
    opened = sample(CODES["<think>"], 2, 3, stop=StopReason.LENGTH)
    asked: list[str] = []

    def noted(text: str) -> tuple[int, ...]:
        asked.append(text)
        return (CODES["Final:"],)

    forced_answers(engine, [opened, sample(2, 3, 4, stop=StopReason.LENGTH)], [(0, 0), (0, 1)], 2, BudgetForcing(),
                   GREEDY, replace(CODEC, encode=noted))  # fmt: skip
    assert asked == ["</think>\nFinal answer:", "\nFinal answer:"]


def test_waiting_replaces_the_end_of_a_thought_until_the_budget_is_spent():
    engine = Scripted(2, END)  # it thinks one token and ends, again and again
    forcing = BudgetForcing(answer="Final:", wait="Wait ", answer_tokens=2)
    (thought,) = extended_thoughts(engine, [sample(2, 3, 5, 6, 7, END)], [(0, 0)], 7, forcing, GREEDY, CODEC)
    assert decode(thought.tokens.tolist()[len(PROMPT) :]) == "a b Wait a Wait a Wait "[: len("a b Wait a Wait a ")]
    assert "</think>" not in thought.completion
    assert thought.action.tolist()[len(PROMPT) :][:3] == [True, True, False]
    assert len({request.seed for request in engine.requests}) == len(engine.requests)
    (answered,) = forced_answers(engine, [thought], [(0, 0)], 4, forcing, GREEDY, CODEC)
    assert answered.completion == "a b Wait a Final:a "  # cut at the budget, although the thought went on


@pytest.mark.parametrize("written", [(END,), (5, 6, 7, END)])
def test_a_thought_that_ends_at_once_is_still_a_sample(written):
    forcing = BudgetForcing(answer="Final:", wait="Wait ", answer_tokens=1)
    (thought,) = extended_thoughts(Scripted(2, 2, 2), [sample(*written)], [(0, 0)], 3, forcing, GREEDY, CODEC)
    (answered,) = forced_answers(Scripted(7), [thought], [(0, 0)], 3, forcing, GREEDY, CODEC)
    assert answered.completion.endswith("Final:7") and answered.action.any()
