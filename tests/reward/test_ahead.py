"""Completions that are judged while others are written: the same scores in any order, and really meanwhile."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from whet.reward import ahead as ahead_module
from whet.reward.ahead import may_go_ahead
from whet.reward.call import as_reward
from whet.reward.combine import RewardPart
from whet.reward.failure import RewardFailure
from whet.reward.score import Failures, Scorer, judged_ahead, score
from whet.types import Prompt, Sample, StopReason, WhetError

PROMPTS = [Prompt(f"p{i // 4}", (), text="q", answer=str(i // 4) if i % 8 < 4 else None) for i in range(24)]
SECONDS = 10.0  # that a test waits for what must happen


def sample(completion: str, stop: StopReason = StopReason.END) -> Sample:
    return Sample(torch.tensor([1]), torch.tensor([True]), torch.zeros(1), (0, 0), stop, completion)


def samples() -> list[Sample]:
    """An episode that failed among them, and completions that are equal."""
    ends = {5: StopReason.FAILED, 9: StopReason.LENGTH}
    return [sample("x" * (i % 7), ends.get(i, StopReason.END)) for i in range(len(PROMPTS))]


def early(function: Any, is_early: bool = True) -> Any:
    function.ahead = is_early
    return function


def parts_of(calls: Counter[str]) -> list[RewardPart]:
    """By sample, in parts of a batch, whole batches, failures, rows without an answer, norms by group and batch."""

    def length(completion: str) -> float:
        calls["length"] += 1
        return len(completion)

    def fragile(completion: str) -> float:
        if completion == "xxx":
            raise ValueError("three")
        return 1.0

    def several(completions: Sequence[str]) -> list[float]:
        calls["several"] += len(completions)
        return [float(len(one) % 3) for one in completions]

    def rank(completions: Sequence[str]) -> list[float]:
        return [float(sorted(completions).index(one)) for one in completions]

    return [
        RewardPart(as_reward(early(length)), rows="with_answer"),
        RewardPart(as_reward(early(fragile)), normalise="batch"),
        RewardPart(as_reward(early(several)), 0.5, normalise="group"),
        RewardPart(as_reward(rank), 0.1),
    ]


def test_scores_are_the_same_in_whatever_order_completions_end() -> None:
    written, calls = samples(), Counter()
    plain = Failures("tolerate", 0.9)
    expected = score(PROMPTS, written, parts_of(calls), 5.0, plain)
    once = dict(calls)
    assert len({one.reward for one in expected}) > 6 and once == {"length": 12, "several": 23}
    for seed in range(4):
        calls.clear()
        failures = Failures("tolerate", 0.9)
        parts = parts_of(calls)
        scorer = Scorer(parts, 5.0, failures, ahead=judged_ahead(parts, 5.0, failures.on_error))
        order = list(range(len(written)))
        random.Random(seed).shuffle(order)
        hear = scorer.ahead.begin(PROMPTS)
        for number in order[: len(order) - seed]:  # some are never told of: they are judged with the batch
            hear(number, [written[number]])
        assert scorer(PROMPTS, written) == expected
        assert failures.state() == plain.state() and dict(calls) == once
        assert scorer(PROMPTS, written) == expected and calls["several"] == 2 * once["several"]  # nothing is left over


def test_a_completion_is_judged_before_the_batch_is_scored() -> None:
    judged = threading.Event()

    def slow(completion: str) -> float:
        judged.set()
        return 2.0

    written = samples()
    parts = [RewardPart(as_reward(early(slow)))]
    hear = (ahead := judged_ahead(parts, 5.0, "stop")).begin(PROMPTS)
    hear(7, [written[7]])
    assert judged.wait(SECONDS)
    assert score(PROMPTS[7:8], written[7:8], parts, 5.0, "stop", ahead=ahead)[0].reward == 2.0
    ((start, end),) = ahead.take_spans()
    assert end > start and ahead.take_spans() == []


def test_who_goes_ahead() -> None:
    def alone(completion: str) -> float: ...
    def at_once(completions: Sequence[str]) -> list[float]: ...

    class Own:
        name = "own"

        def __call__(self, prompts: Any, samples: Any) -> list[float]: ...

    assert may_go_ahead(as_reward(alone)) and not may_go_ahead(as_reward(at_once)) and not may_go_ahead(Own())
    assert may_go_ahead(as_reward(early(at_once))) and not may_go_ahead(as_reward(early(alone, False)))
    from whet.reward.code_tests import code_tests
    from whet.reward.find import find_reward

    assert may_go_ahead(code_tests()) and may_go_ahead(find_reward("math_answer", {}))
    server = {"base_url": "http://127.0.0.1:1", "model": "m", "alone": True}
    assert may_go_ahead(find_reward("judge", server))
    assert not may_go_ahead(find_reward("judge", {"alone": True}).asking(lambda questions: []))


def test_a_function_goes_ahead_once_it_was_seen_to_wait() -> None:
    threads: list[str] = []

    def waits(completion: str) -> float:
        threads.append(threading.current_thread().name)
        time.sleep(0.005)
        return 1.0

    def computes(completion: str) -> float:
        threads.append(threading.current_thread().name)
        until = time.thread_time() + 0.005
        while time.thread_time() < until:
            pass
        return 1.0

    for function, goes_ahead in ((waits, True), (computes, False)):
        parts = [RewardPart(as_reward(function))]
        ahead = judged_ahead(parts, 5.0, "stop")
        for is_late in (False, True):
            threads.clear()
            written = [sample(text) for text in "abc"]
            hear = ahead.begin(PROMPTS[:3])
            for number, one in enumerate(written):
                hear(number, [one])
            score(PROMPTS[:3], written, parts, 5.0, "stop", ahead=ahead)
            assert ("MainThread" in threads) == (not (goes_ahead and is_late)), (function.__name__, is_late)


def test_what_is_raised_early_is_raised_where_the_batch_is_scored() -> None:
    def broken(completion: str) -> float:
        raise ValueError("no")

    def missing(completion: str, column: str) -> float:
        return 0.0

    written = samples()[:2]
    for function, error, words in ((broken, RewardFailure, "'broken' raised.*'p0'"), (missing, WhetError, "'column'")):
        parts = [RewardPart(as_reward(early(function)))]
        hear = (ahead := judged_ahead(parts, 5.0, "stop")).begin(PROMPTS[:2])
        hear(1, [written[1]])
        hear(0, [written[0]])
        with pytest.raises(error, match=words):
            score(PROMPTS[:2], written, parts, 5.0, "stop", ahead=ahead)


def test_a_reward_that_does_not_return_is_named_with_its_row(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead_module, "PATIENCE", 0.01)
    goes_on = threading.Event()

    class Waits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            goes_on.set()

    class Own:
        name, limits_itself, ahead = "own", True, True

        def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float]:
            assert goes_on.wait(SECONDS)
            return [1.0] * len(samples)

    parts, written = [RewardPart(Own())], [sample("abc")]
    hear = (ahead := judged_ahead(parts, 5.0, "stop")).begin(PROMPTS[20:21])
    hear(0, written)
    ahead_module.logger.addHandler(handler := Waits())
    try:
        assert score(PROMPTS[20:21], written, parts, 5.0, "stop", ahead=ahead)[0].reward == 1.0
    finally:
        ahead_module.logger.removeHandler(handler)
    assert "waiting for reward 'own'" in caplog.text and "prompt 'p5', completion 'abc'" in caplog.text


def test_with_calls_at_once_a_straggler_holds_up_nobody() -> None:
    """The first completion is judged only when the last one was."""
    last = threading.Event()

    def waits(completion: str) -> float:
        if completion == "first":
            assert last.wait(SECONDS)
        elif completion == "last":
            last.set()
        return float(len(completion))

    waits.ahead = 2  # type: ignore[attr-defined]
    parts, written = [RewardPart(as_reward(waits))], [sample(text) for text in ("first", "second", "last")]
    hear = (ahead := judged_ahead(parts, 60.0, "stop")).begin(PROMPTS[:3])
    for number, one in enumerate(written):
        hear(number, [one])
    scored = score(PROMPTS[:3], written, parts, 60.0, "stop", ahead=ahead)
    assert [one.reward for one in scored] == [5.0, 6.0, 4.0]
