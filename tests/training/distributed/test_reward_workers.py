"""Rewards in processes of their own: the same scores, failures as they are, and workers that break."""

from __future__ import annotations

import pytest
import torch

from tests.support.local_pool import LocalPool
from whet.reward.call import as_reward
from whet.reward.combine import RewardPart
from whet.reward.score import Failures, score
from whet.training.distributed.reward_workers import (
    MOST_ATTEMPTS,
    RemoteReward,
    RewardHost,
    RewardWorkers,
    stays_here,
    wants_all,
)
from whet.training.distributed.workers import WorkerLost
from whet.types import Prompt, Sample, StopReason, WhetError

PROMPTS = [Prompt(f"p{row // 3}", (), text="q", answer=row) for row in range(12)]
SAMPLES = [
    Sample(torch.tensor([1, 2]), torch.tensor([False, True]), torch.zeros(2), (0, 0), StopReason.END, f"text {row}")
    for row in range(12)
]


def length(completion: str, answer: int) -> float:
    if answer == 7:
        raise ValueError("seven")
    return len(completion) + answer / 100


def together(prompts, completions):
    return [float(len(completions))] * len(completions)


def workers(count, rewards, breaks=None, hangs=lambda name, method: False, **options):
    pool = LocalPool(hangs)

    class Breaking(RewardHost):
        def score(self, name, prompts, samples, timeout):
            if breaks is not None:
                breaks(prompts)
            return super().score(name, prompts, samples, timeout)

    def start(number):
        return pool.start(f"reward worker {number}", lambda: Breaking(rewards))

    return RewardWorkers(pool, start, count, memory=2**30, timeout=options.get("timeout", 60.0)), pool


def parts_on(found, reward):
    return [RewardPart(RemoteReward(reward.name, found, 5.0, wants_all(reward)), weight=2.0)]


def test_scores_and_failures_are_those_of_one_process():
    reward = as_reward(length)
    alone, elsewhere = Failures("exclude"), Failures("exclude")
    expected = score(PROMPTS, SAMPLES, [RewardPart(reward, weight=2.0)], 5.0, alone)
    found, pool = workers(2, {"length": reward})
    scored = score(PROMPTS, SAMPLES, parts_on(found, reward), 5.0, elsewhere)
    assert [(each.reward, each.parts) for each in scored] == [(each.reward, each.parts) for each in expected]
    assert scored[7].reward is None and scored[6].reward is not None
    assert elsewhere.counts == alone.counts == {"length": (1, 12)}
    assert "seven" in elsewhere.latest("length")
    assert {name for name, method, _ in pool.calls} == {"reward worker 0", "reward worker 1"}


def test_a_reward_of_all_completions_sees_them_in_one_call():
    reward = as_reward(together)
    found, _ = workers(3, {"together": reward})
    scored = score(PROMPTS, SAMPLES, parts_on(found, reward), 5.0)
    assert [each.parts["together"] for each in scored] == [12.0] * 12


@pytest.mark.parametrize("how", ["lost", "hangs"])
def test_the_batch_of_a_worker_that_breaks_is_scored_by_another(how, caplog):
    broken = []

    def breaks(prompts):
        if how == "lost" and not broken:
            broken.append(prompts)
            raise WorkerLost("its process ended")

    def hangs(name, method):
        if how != "hangs" or method != "score" or broken:
            return False
        broken.append(name)
        return True

    reward = as_reward(lambda completion: float(len(completion)), "size")
    found, _ = workers(2, {"size": reward}, breaks, hangs, timeout=0.2)
    scored = score(PROMPTS, SAMPLES, parts_on(found, reward), 5.0)
    assert [each.parts["size"] for each in scored] == [float(len(each.completion)) for each in SAMPLES]
    assert broken and sum(counts.restarts for _, counts in found.counts.values()) == 1
    assert sum(counts.samples for _, counts in found.counts.values()) == 12
    assert ("its process ended" if how == "lost" else "no answer for 0.2 seconds") in caplog.text


def test_a_batch_that_ends_every_worker_cannot_be_scored():
    def breaks(prompts):
        if any(prompt.id == "p2" for prompt in prompts):
            raise WorkerLost("its process ended")

    reward = as_reward(lambda completion: 1.0, "one")
    found, _ = workers(2, {"one": reward}, breaks)
    failures = Failures("exclude")
    scored = score(PROMPTS, SAMPLES, parts_on(found, reward), 5.0, failures)
    assert [each.reward is None for each in scored] == [6 <= row < 9 for row in range(12)]
    assert f"ended {MOST_ATTEMPTS} workers, the last because its process ended" in failures.latest("one")
    assert "more than 1 GiB" in failures.latest("one")


def test_workers_that_never_start_are_a_mistake_to_fix():
    def make():
        raise WorkerLost("no module named mine")

    pool = LocalPool()
    found = RewardWorkers(pool, lambda number: pool.start("worker", make), 1, memory=0, timeout=60.0)
    with pytest.raises(WhetError, match="reward worker 0 does not start: no module named mine"):
        score(PROMPTS, SAMPLES, parts_on(found, as_reward(length)), 5.0)


def test_who_can_score_elsewhere():
    class Remembers:
        name = "notes"

        def take_notes(self):
            return {}

    class Counts(Remembers):
        notes_add_up = True

    assert stays_here(Remembers()) and not stays_here(as_reward(length)) and not stays_here(Counts())
    assert wants_all(Remembers()) and not wants_all(as_reward(length))


def test_notes_that_add_up_come_back_from_all_workers():
    class Counts(type(as_reward(length))):
        notes_add_up = True

        def take_notes(self):
            return {"code_timeouts": 1.0}

    plain = as_reward(length)
    reward = Counts(plain.name, plain.function, plain.parameters)
    found, pool = workers(2, {"length": reward})
    (part,) = parts_on(found, reward)
    score(PROMPTS, SAMPLES, [part], 5.0, "exclude")
    pieces = sum(method == "score" for _, method, _ in pool.calls)
    assert pieces > 1 and part.reward.take_notes() == {"code_timeouts": pieces} and part.reward.take_notes() == {}
