"""Accuracy against a token budget: completions cut at a budget, and budget forcing. s1, Muennighoff 2025 (2501.19393).

A completion under a smaller budget is the opening of the one under a larger: each has its own random stream, so one
long completion gives the whole curve. Forcing ends a thought at the budget by writing the words that open an answer;
with `wait`, a thought that ends early goes on after those words instead. What was sampled is never tokenised again:
words that were put in are appended as tokens, and are no actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from whet.data.chat import THOUGHT_ENDS
from whet.protocols import Engine
from whet.rollout.seed import request_seed
from whet.types import Request, Sample, Sampling, StopReason

Decode = Callable[[list[int]], str]
Encode = Callable[[str], tuple[int, ...]]
FINAL = "\nFinal answer:"


@dataclass(frozen=True)
class BudgetForcing:
    """The words that are put in, and the room for an answer behind them."""

    answer: str = ""  # that open an answer where a thought is cut; empty: the end of the thought and "Final answer:"
    wait: str = ""  # in place of the end of a thought that is shorter than the budget; empty: it may end
    answer_tokens: int = 32


@dataclass(frozen=True)
class Codec:
    """Between tokens and text, for one model."""

    decode: Decode
    encode: Encode
    end_tokens: frozenset[int]


def cut_at(sample: Sample, budget: int, decode: Decode) -> Sample:
    """The completion as it would have been under a smaller budget; unscored where it changes."""
    start = _start(sample)
    if len(sample.tokens) - start <= budget:
        return sample
    return _part(sample, start, start + budget, decode)


def thought_length(sample: Sample, codec: Codec) -> int | None:
    """Tokens before the end of the thought: before `</think>`, else before the token that ends the completion.

    None where it had not ended when its budget was spent. A token that holds the end and something before it is left
    out as a whole.
    """
    start = _start(sample)
    written = sample.tokens[start:].tolist()
    if any(end in sample.completion for end in THOUGHT_ENDS):
        return _tokens_before(written, codec.decode)
    if sample.stop.is_limit:
        return None
    ended = sum(1 for _ in _trailing(written, codec.end_tokens))
    return len(written) - ended


def _trailing(written: Sequence[int], ends: frozenset[int]) -> list[int]:
    end_tokens = []
    for token in reversed(written):
        if token not in ends:
            break
        end_tokens.append(token)
    return end_tokens


def _tokens_before(written: Sequence[int], decode: Decode) -> int:
    """The most tokens whose text holds no end of a thought, by bisection: text only grows."""
    low, high = 0, len(written)
    while low < high:
        middle = (low + high + 1) // 2
        text = decode(list(written[:middle]))
        low, high = (low, middle - 1) if any(end in text for end in THOUGHT_ENDS) else (middle, high)
    text = decode(list(written[: low + 1]))
    thought_end = min(text.find(end) for end in THOUGHT_ENDS if end in text)
    # a marker of several tokens begins before the token that completes it
    while low and len(decode(list(written[:low]))) > thought_end:
        low -= 1
    return low


def extended_thoughts(
    engine: Engine,
    samples: Sequence[Sample],
    seeds: Sequence[tuple[int | str, ...]],
    longest: int,
    forcing: BudgetForcing,
    sampling: Sampling,
    codec: Codec,
) -> list[Sample]:
    """Thoughts of `longest` tokens: one that ends before is cut there, given the words of `wait`, and goes on."""
    words = codec.encode(forcing.wait)
    thoughts = list(samples)
    rounds = 0
    while rounds * max(1, len(words)) <= longest:  # every round adds these words at least
        short: list[tuple[int, Sample]] = []
        for index, sample in enumerate(thoughts):
            length = thought_length(sample, codec)
            if length is not None and length + len(words) < longest:
                short.append((index, _appended(_head(sample, length, codec.decode), words, codec.decode)))
        if not short:
            break
        named = [(*seeds[index], "wait", rounds) for index, _ in short]
        rooms = [longest - (len(opening.tokens) - _start(opening)) for _, opening in short]
        drawn = _continued(engine, [opening for _, opening in short], named, rooms, sampling, codec)
        for (index, _), sample in zip(short, drawn, strict=True):
            thoughts[index] = sample
        rounds += 1
    return thoughts


def forced_answers(
    engine: Engine,
    thoughts: Sequence[Sample],
    seeds: Sequence[tuple[int | str, ...]],
    budget: int,
    forcing: BudgetForcing,
    sampling: Sampling,
    codec: Codec,
) -> list[Sample]:
    """Each thought with an answer: its own where it ended within the budget, else one that is asked for there."""
    finished = list(thoughts)
    cut: list[tuple[int, Sample]] = []
    for index, sample in enumerate(thoughts):
        length = thought_length(sample, codec)
        if length is not None and length <= budget and not forcing.wait:
            finished[index] = cut_at(sample, budget + forcing.answer_tokens, codec.decode)
            continue
        head = _head(sample, budget if length is None else min(budget, length), codec.decode)
        cut.append((index, _appended(head, codec.encode(_answer_words(head, forcing)), codec.decode)))
    if cut:
        rooms = [forcing.answer_tokens] * len(cut)
        named = [(*seeds[at], "answer", budget) for at, _ in cut]
        for (index, _), sample in zip(
            cut, _continued(engine, [opening for _, opening in cut], named, rooms, sampling, codec), strict=True
        ):
            finished[index] = sample
    return finished


def _answer_words(head: Sample, forcing: BudgetForcing) -> str:
    if forcing.answer:
        return forcing.answer
    is_open = "<think>" in head.completion and THOUGHT_ENDS[0] not in head.completion
    return f"{THOUGHT_ENDS[0] if is_open else ''}{FINAL}"


def _continued(
    engine: Engine,
    opened: Sequence[Sample],
    seeds: Sequence[tuple[int | str, ...]],
    rooms: Sequence[int],
    sampling: Sampling,
    codec: Codec,
) -> list[Sample]:
    """Each goes on for as many tokens as it has room for."""
    requests = [
        Request(tuple(opening.tokens.tolist()), request_seed(*seed), max_new_tokens=room)
        for opening, seed, room in zip(opened, seeds, rooms, strict=True)
    ]
    drawn = engine.generate(requests, replace(sampling, max_new_tokens=max(rooms)))
    whole = []
    for before, sample in zip(opened, drawn, strict=True):
        added = len(sample.tokens) - len(before.tokens)
        action = torch.cat([before.action, torch.ones(added, dtype=torch.bool)])
        logp = torch.cat([before.behavior_logp, sample.behavior_logp[len(before.tokens) :]])
        text = codec.decode(sample.tokens[_start(before) :].tolist())
        whole.append(
            replace(before, tokens=sample.tokens, action=action, behavior_logp=logp, stop=sample.stop, completion=text)
        )
    return whole


def _start(sample: Sample) -> int:
    """Where the completion begins."""
    return int(sample.action.int().argmax())


def _head(sample: Sample, length: int, decode: Decode) -> Sample:
    """The first `length` tokens of the completion; at least one: a sample has an action."""
    start = _start(sample)
    if len(sample.tokens) - start <= length:
        return sample
    return _part(sample, start, start + max(1, length), decode)


def _part(sample: Sample, start: int, stop: int, decode: Decode) -> Sample:
    return replace(
        sample,
        tokens=sample.tokens[:stop],
        action=sample.action[:stop],
        behavior_logp=sample.behavior_logp[:stop],
        stop=StopReason.LENGTH,
        completion=decode(sample.tokens[start:stop].tolist()),
        support=None,
        parts={},
        reward=None,
        routed_experts=None,
        token_versions=None,
    )


def _appended(sample: Sample, words: Sequence[int], decode: Decode) -> Sample:
    """With words that the policy did not choose."""
    added = torch.tensor(list(words), dtype=sample.tokens.dtype)
    tokens = torch.cat([sample.tokens, added])
    return replace(
        sample,
        tokens=tokens,
        action=torch.cat([sample.action, torch.zeros(len(words), dtype=torch.bool)]),
        behavior_logp=torch.cat([sample.behavior_logp, torch.zeros(len(words))]),
        completion=decode(tokens[_start(sample) :].tolist()),
        support=None,
        parts={},
        reward=None,
        routed_experts=None,
        token_versions=None,
    )
