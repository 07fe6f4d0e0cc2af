"""Completions under a token budget."""

from __future__ import annotations

import torch

from whet.tools.evaluation.measure import cut_at
from whet.types import Sample, StopReason

END = 1
PROMPT = (90, 91)
WORDS = ["", "", "a ", "b ", "c ", "</thi", "nk>", "7"]


def decode(tokens: list[int]) -> str:
    return "".join(WORDS[token] for token in tokens if token != END)


def test_a_cut_completion_is_its_opening_without_its_score():
    written = [2, 3, 4, 7, END]
    tokens = torch.tensor([*PROMPT, *written])
    action = torch.arange(len(tokens)) >= len(PROMPT)
    logp = torch.where(action, -0.5, 0.0)
    whole = Sample(tokens, action, logp, (0, 0), StopReason.END, decode(written), parts={"right": 1.0}, reward=1.0)
    short = cut_at(whole, 2, decode)
    assert short.tokens.tolist() == [*PROMPT, 2, 3] and short.completion == "a b " and short.stop is StopReason.LENGTH
    assert short.reward is None and not short.parts and short.num_actions == 2
    assert cut_at(whole, 5, decode) is whole  # its score stays
    assert cut_at(whole, 4, decode).stop is StopReason.LENGTH  # the end itself did not fit
