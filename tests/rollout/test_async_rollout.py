"""Rollouts ahead of the trainer: no group too old, no prompt twice or dropped, also over a checkpoint."""

import json
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rollout.test_session import Letters, model_of
from whet.model.causal_lm import causal_lm
from whet.model.token_logp import token_logp
from whet.objective.keep import Balanced, Everything, MixedOutcome
from whet.rollout.async_rollout import AsyncCollector, SessionWriter
from whet.rollout.collect import PromptDataset, RewardContext, RolloutCollector, RolloutSpec
from whet.rollout.prompt_order import PromptOrder
from whet.rollout.torch_engine import TorchEngine
from whet.rollout.window import GroupWindow
from whet.training.distributed.background import EngineLost, ThreadSession
from whet.types import Prompt, Sample, Sampling, SessionShape, StopReason, WhetError

PROMPTS = [Prompt(f"q{row}", (), "?") for row in range(50)]
DATASET = PromptDataset(PROMPTS, [(5, 9, row + 3) for row in range(50)])
HOW = Sampling(max_new_tokens=12)


class Scripted:
    """A session whose requests finish in an order of its own, each token by the version of its time."""

    idle_seconds = 0.0

    def __init__(self, seed, tail=0.1):
        self.random, self.tail = random.Random(seed), tail
        self.version, self.pending, self.done, self.asked = None, {}, [], Counter()

    def add(self, number, request):
        assert number not in self.pending
        left = self.random.randint(30, 120) if self.random.random() < self.tail else self.random.randint(1, 6)
        self.pending[number] = (request, [self.version], left)
        self.asked[request.tokens, request.seed] += 1

    def _write(self):
        for number, (request, versions, left) in list(self.pending.items()):
            versions.append(self.version)
            if left > 1:
                self.pending[number] = (request, versions, left - 1)
                continue
            del self.pending[number]
            tokens = torch.tensor([*request.tokens, *[7] * len(versions)])
            action = torch.arange(len(tokens)) >= len(request.tokens)
            wrote = torch.tensor([versions[0]] * len(request.tokens) + versions, dtype=torch.int32)
            self.done.append(
                (number, Sample(tokens, action, -action.float(), (versions[0], versions[-1]), StopReason.END,
                                str(request.seed), token_versions=wrote if len(set(versions)) > 1 else None))
            )  # fmt: skip

    def advance(self):
        self._write()
        return self.finished()

    def finished(self):
        done, self.done = self.done, []
        return done

    def load(self, weights, version):
        for _ in range(self.random.randint(0, 4)):  # a step was trained meanwhile
            self._write()
        self.version = version

    def release(self, number):
        assert number not in self.pending

    def close(self):
        pass


def scored(prompts, samples):
    return [each.scored({"right": float(sum(map(ord, each.completion)) % 2)}, 1.0) for each in samples]


def collector_of(session, per_step=3, staleness=2, share=0.5, keep=None, group_size=2, greedy=False):
    spec = RolloutSpec(per_step, group_size, HOW, greedy, keep or Everything())
    return AsyncCollector(
        SessionWriter(session, DATASET, spec, 11),
        DATASET,
        lambda progress: RewardContext(scored, {"right": 1.0}),
        spec,
        PromptOrder(len(PROMPTS), 11),
        GroupWindow(per_step, staleness, share),
        dict,
    )


def expected_rows(count):
    return PromptOrder(len(PROMPTS), 11).take(count)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 3), st.floats(0, 1), st.integers(0, 10**6), st.floats(0, 0.5),
    st.lists(st.integers(1, 11), max_size=3),
)  # fmt: skip
def test_nothing_is_too_old_repeated_or_dropped_even_over_checkpoints(per_step, staleness, share, seed, tail, kills):
    session = Scripted(seed, tail)
    collector, rows = collector_of(session, per_step, staleness, share), []
    saved = None
    for version in range(12):
        if version in kills and saved is not None:  # kill -9 and resume: everything since the checkpoint is lost
            state, tensors, at, kept = saved
            session, rows, version = Scripted(seed + version, tail), list(kept), at
            collector = collector_of(session, per_step, staleness, share)
            collector.restore(json.loads(json.dumps(state)), tensors)
            collector.load_weights({}, version)
        batch = collector.collect(version / 12)
        assert len(batch.groups) == per_step
        for row, group in batch.groups:
            oldest = min(int(versions_of(sample).min()) for sample in group.samples)
            assert 0 <= version - oldest <= staleness
            assert group.prompt is PROMPTS[row]
            assert group.samples[0].tokens[:3].tolist() == list(DATASET.prompt_tokens[row])
            assert all(sample.reward == 1.0 for sample in group.samples)
        assert batch.notes["versions_behind_max"] <= staleness
        tokens = sum(value for name, value in batch.notes.items() if name.startswith("tokens_"))
        assert tokens == sum(sample.num_actions for _, group in batch.groups for sample in group.samples)
        rows += [row for row, _ in batch.groups]
        collector.load_weights({}, version + 1)
        saved = (collector.state(), collector.tensors(), version + 1, tuple(rows))
        in_flight = [row for _, row in saved[0]["rows"]]
        assert Counter(rows + in_flight) == Counter(expected_rows(len(rows) + len(in_flight)))
        assert len(in_flight) <= (staleness + 1) * per_step
    if share == 0:
        assert rows == expected_rows(len(rows))


def versions_of(sample):
    return torch.tensor(sample.versions) if sample.token_versions is None else sample.token_versions


def test_what_is_finished_is_saved_and_only_the_rest_is_asked_for_again():
    session = Scripted(3, tail=0.4)
    collector, finished, unfinished, version = collector_of(session, per_step=3, staleness=3), [], [], 0
    while not (finished and unfinished):
        collector.collect(0.0)
        version += 1
        collector.load_weights({}, version)
        state, tensors = collector.state(), collector.tensors()
        finished = [number for number, is_done, _ in state["window"]["queue"] if is_done]
        unfinished = [number for number, is_done, _ in state["window"]["queue"] if not is_done]
    again = Scripted(4)
    resumed = collector_of(again, per_step=3, staleness=3)
    resumed.restore(json.loads(json.dumps(state)), tensors)
    resumed.load_weights({}, version)
    rows = dict(map(tuple, state["rows"]))
    asked = {tokens for tokens, _ in again.asked}
    room = resumed._window.capacity - len(state["rows"])
    new = expected_rows(len(rows) + 3 * version + room)[len(rows) + 3 * version :]
    assert asked == {DATASET.prompt_tokens[row] for row in [*(rows[number] for number in unfinished), *new]}
    for (tokens, seed), times in again.asked.items():  # with the seeds that they had
        assert times == 1
        if tokens in {DATASET.prompt_tokens[rows[number]] for number in unfinished}:
            assert session.asked[tokens, seed] == 1


def test_groups_that_teach_nothing_are_replaced():
    session = Scripted(5)
    collector = collector_of(session, per_step=2, staleness=2, keep=MixedOutcome(rounds=8))
    rows = []
    for version in range(8):
        batch = collector.collect(0.0)
        assert len(batch.groups) == 2
        for _, group in batch.groups:
            assert len({sample.outcome for sample in group.samples}) == 2
            assert version - min(sample.versions[0] for sample in group.samples) <= 2
        assert len(batch.outcomes) >= 2 and batch.num_samples == 2 * len(batch.outcomes)
        rows += [row for row, _ in batch.outcomes]
        collector.load_weights({}, version + 1)
    assert len(rows) > 16, "no group was left out"
    in_flight = [row for _, row in collector.state()["rows"]]
    assert Counter(rows + in_flight) == Counter(expected_rows(len(rows) + len(in_flight)))


def test_what_cannot_be_drawn_ahead_is_refused():
    with pytest.raises(WhetError, match="greedy baseline"):
        collector_of(Scripted(0), greedy=True)
    with pytest.raises(WhetError, match=r"objective\.keep"):
        collector_of(Scripted(0), keep=Balanced(rounds=3))
    synchronous = RolloutCollector(None, DATASET, None, None, PromptOrder(50, 11))
    with pytest.raises(WhetError, match=r"scale\.max_staleness=0"):
        collector_of(Scripted(0)).restore(synchronous.state(), {})


def engine_of(model, **changes):
    return TorchEngine(causal_lm(model), Letters(), (0, 48), context=64, **changes)


def test_with_weights_that_stay_the_samples_are_those_of_a_run_that_waits():
    """In a thread; two models, so that the trainer's and the writer's are not the same objects."""
    spec = RolloutSpec(3, 2, HOW, False, Everything())
    reward_at = lambda progress: RewardContext(scored)  # noqa: E731
    waiting = RolloutCollector(engine_of(model_of("llama")), DATASET, reward_at, spec, PromptOrder(50, 11))
    plain = [
        sample.tokens.tolist() for _ in range(4) for _, group in waiting.collect(0).groups for sample in group.samples
    ]

    shape = SessionShape(18, 3, HOW.max_new_tokens)
    trained = model_of("llama")
    session = ThreadSession(engine_of(model_of("llama"), owns_weights=True).session(HOW, shape))
    window = GroupWindow(3, 2, 0.0)
    writer = SessionWriter(session, DATASET, spec, 11)
    ahead = AsyncCollector(writer, DATASET, reward_at, spec, PromptOrder(50, 11), window, trained.state_dict)
    found = []
    try:
        for version in range(4):
            batch = ahead.collect(0)
            for sample in (sample for _, group in batch.groups for sample in group.samples):
                found.append(sample.tokens.tolist())
                logp = token_logp(causal_lm(trained), sample.tokens[None], sample.action[None]).logp[0]
                assert (logp - sample.behavior_logp)[sample.action].abs().max() < 2e-4
            ahead.load_weights(trained.state_dict(), version + 1)
    finally:
        ahead.close()
    assert found == plain


def test_a_session_that_fails_ends_the_run_with_its_reason():
    class Failing(Scripted):
        is_idle = False

        def advance(self):
            raise RuntimeError("the device is gone")

    session = ThreadSession(Failing(0))
    collector = collector_of(session)
    with pytest.raises(EngineLost, match="the device is gone"):
        collector.collect(0.0)
    session.close()
