"""Episodes that a thread plays ahead of the trainer: those of a run that waits, none too old or lost."""

import copy
import json
import threading
import time

import pytest

from tests.rollout.test_async_rollout import DATASET, HOW, PROMPTS, scored, versions_of
from tests.rollout.test_session import Letters, model_of
from whet.model.causal_lm import causal_lm
from whet.objective.keep import Everything
from whet.reward.combine import RewardPart
from whet.reward.score import Failures, Scorer, judged_ahead
from whet.rollout.async_rollout import AsyncCollector
from whet.rollout.collect import RewardContext, RolloutCollector, RolloutSpec
from whet.rollout.episode_runner import PlayNotes
from whet.rollout.episode_writer import EpisodeWriter
from whet.rollout.episodes import EnvironmentRunner, EpisodeLimits
from whet.rollout.prompt_order import PromptOrder
from whet.rollout.torch_engine import TorchEngine
from whet.rollout.window import GroupWindow
from whet.training.distributed.shared_rollout import WholeCopyEngine

SPEC = RolloutSpec(2, 3, HOW, False, Everything())


class Pays:
    """One turn, worth the number of letters."""

    def start(self, prompt):
        return None

    def step(self, completion):
        return float(len(completion) % 4)


def runner_on(engine, make=Pays):
    tokenizer = Letters()
    runner = EnvironmentRunner(engine, tokenizer, make, EpisodeLimits(max_turns=1), 64)
    runner.renderer = lambda prompt, tools, *_: object()  # one turn is never answered in words
    return runner


def engine_on(lm):
    return TorchEngine(lm, Letters(), (0, 48), context=64)


def ahead_of(model, reward_at, staleness=1, make=Pays):
    lm = causal_lm(model)
    engine = WholeCopyEngine(lm, engine_on)
    writer = EpisodeWriter(runner_on(engine, make), engine, DATASET, SPEC, 11, lm.device)
    window = GroupWindow(SPEC.num_prompts, staleness, 0.0)
    return AsyncCollector(writer, DATASET, reward_at, SPEC, PromptOrder(50, 11), window, model.state_dict)


def plain(progress):
    return RewardContext(scored)


def content(batch):
    return [
        (row, sample.tokens.tolist(), sample.behavior_logp.tolist(), sample.returned, sample.episode)
        for row, group in batch.groups
        for sample in group.samples
    ]


def test_with_weights_that_stay_episodes_are_those_of_a_run_that_waits():
    model = model_of("llama")
    waiting = RolloutCollector(
        engine_on(causal_lm(model)),
        DATASET,
        plain,
        SPEC,
        PromptOrder(50, 11),
        runner=runner_on(engine_on(causal_lm(model))),
    )
    expected = [content(waiting.collect(0)) for _ in range(3)]
    ahead = ahead_of(model, plain)
    found = []
    try:
        for version in range(3):
            found.append(content(ahead.collect(0)))
            ahead.load_weights(model.state_dict(), version + 1)
    finally:
        ahead.close()
    assert found == expected and len({returned for batch in expected for *_, returned, _ in batch}) > 1


def test_weights_arrive_between_batches_and_no_episode_is_too_old():
    model = model_of("llama")
    ahead, versions = ahead_of(model, plain), []
    try:
        for version in range(5):
            samples = [sample for _, group in ahead.collect(0).groups for sample in group.samples]
            assert all(0 <= version - int(versions_of(one).min()) <= 1 for one in samples)
            versions += [one.versions for one in samples]
            model = copy.deepcopy(model)
            for parameter in model.parameters():
                parameter.data += 0.01
            ahead.load_weights(model.state_dict(), version + 1)
        state, tensors = json.loads(json.dumps(ahead.state())), ahead.tensors()
    finally:
        ahead.close()
    assert {oldest for oldest, newest in versions} >= {0, 1, 2} and all(oldest == newest for oldest, newest in versions)
    resumed = ahead_of(model, plain)
    try:
        resumed.restore(state, tensors)
        resumed.load_weights(model.state_dict(), 5)
        batch = resumed.collect(0)
    finally:
        resumed.close()
    assert [row for row, _ in batch.groups] == PromptOrder(50, 11).take(12)[10:]


def test_what_goes_wrong_in_the_thread_is_raised_where_the_run_collects():
    class Broken(Pays):
        def __init__(self):
            raise ZeroDivisionError("in the making")

    class BrokenWriter(EnvironmentRunner):
        def play(self, *arguments, **more):
            raise ZeroDivisionError("in the thread")

    ahead = ahead_of(model_of("llama"), plain, make=Broken)
    try:
        batch = ahead.collect(0)  # an environment that cannot be made fails its episodes, and is told in words
        assert batch.played.counts["failed_episodes"] >= 6 and "in the making" in batch.played.failures[0]
    finally:
        ahead.close()
    lm = causal_lm(model_of("llama"))
    writer = EpisodeWriter(BrokenWriter(engine_on(lm)), engine_on(lm), DATASET, SPEC, 11, lm.device)
    writer.ask(0, 0)
    with pytest.raises(ZeroDivisionError, match="in the thread"):
        while True:
            writer.advance()
    writer.close()


def test_episodes_are_judged_while_a_step_is_trained():
    """A step's scores are there before it is collected: nothing asks for them but the thread that plays."""
    judged, all_judged = set(), threading.Event()

    def by_length(prompts, samples):
        judged.update((prompt.id, sample.completion) for prompt, sample in zip(prompts, samples, strict=True))
        if len({name for name, _ in judged}) == 4:
            all_judged.set()
        return [float(len(sample.completion)) for sample in samples]

    parts = [RewardPart(type("Own", (), {"name": "own", "ahead": True, "__call__": staticmethod(by_length)})())]
    scorer = Scorer(parts, 60.0, Failures("stop"), ahead=judged_ahead(parts, 60.0, "stop"))
    model = model_of("llama")
    ahead = ahead_of(model, lambda progress: RewardContext(scorer, ahead=scorer.ahead))
    try:
        batch = ahead.collect(0)
        assert all(one.reward == len(one.completion) for _, group in batch.groups for one in group.samples)
        assert all_judged.wait(10), "the groups of the next step"  # while a step would be trained
        assert {name for name, _ in judged} == {PROMPTS[row].id for row in PromptOrder(50, 11).take(4)}
        before = len(judged)
        ahead.load_weights(model.state_dict(), 1)
        batch = ahead.collect(0)
        assert {(group.prompt.id, one.completion) for _, group in batch.groups for one in group.samples} <= judged
        assert before and any(name == "reward_behind" for name, _, _ in batch.spans)
    finally:
        ahead.close()


def test_notes_of_several_players_are_one():
    notes = [
        PlayNotes({"agent": 2.0}, ("a",) * 15, {"failed": 1}),
        PlayNotes({"agent": 3.0}, ("b",) * 15, {"failed": 2}),
    ]
    joined = PlayNotes.joined(notes)
    assert joined.seconds == {"agent": 5.0} and joined.counts == {"failed": 3}
    assert joined.failures == ("a",) * 15 + ("b",) * 5  # as many in words as one player keeps
    assert PlayNotes.joined(notes, seconds=max).seconds == {"agent": 3.0} and PlayNotes.joined([]) == PlayNotes()


@pytest.mark.parametrize(
    ("waited", "batches"),
    [(60.0, [[0], [1, 2, 3, 4, 5]]), (0.0, [[0], [1], [2, 3], [4, 5]])],
    ids=["slow environments", "quick ones"],
)
def test_several_steps_wait_side_by_side_where_batches_mostly_wait(waited, batches):
    """After the first batch nothing more is played until the trainer waits for it, and then all that was asked for."""
    played, may_go = [], threading.Event()

    class Waiting:
        def play(self, plan, ended):
            played.append([(step - 1) * SPEC.num_prompts + position for step, position in plan.numbers])
            may_go.wait(10)
            for episode in range(len(plan.prompts) * plan.count):
                ended(episode, ())

        def take_notes(self):
            return PlayNotes({"environment": waited}, ("one",), {"failed_episodes": 1})

    lm = causal_lm(model_of("llama"))
    writer = EpisodeWriter(Waiting(), engine_on(lm), DATASET, SPEC, 11, lm.device)
    try:
        for number in range(6):
            writer.ask(number, number)
            while not number and not played:  # the first batch is on its way before more is asked for
                time.sleep(0.01)
        may_go.set()
        deadline, finished = time.monotonic() + 1, 0
        while len(played) < (1 if waited else 4) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert played == (batches[:1] if waited else batches)  # while a step is trained
        while finished < 6:
            finished += len(writer.advance())
    finally:
        writer.close()
    assert played == batches
    notes = writer.take_notes()
    assert notes.counts["failed_episodes"] == len(notes.failures) >= 6  # of every group, and of the batches' ends
