"""Groups worth training on: refilling, growing, the greedy completion, the queue, the order of prompts."""

import json
import threading
from collections import Counter
from dataclasses import replace

import pytest
import torch

from whet.objective.keep import Balanced, Everything, Fresh, MixedOutcome
from whet.reward.combine import RewardPart
from whet.reward.score import Failures, Scorer, judged_ahead
from whet.rollout.collect import (
    PromptDataset,
    RewardContext,
    RolloutCollector,
    RolloutSpec,
    balanced,
    draw_and_score,
    draw_batch,
)
from whet.rollout.episode_runner import EpisodePlan, PlayNotes
from whet.rollout.prompt_order import SELDOM, PromptOrder, visit_share
from whet.training.step_metrics import group_staleness
from whet.types import Group, Prompt, Sample, Sampling, StopReason, Support, by_episode

PROMPTS = [Prompt(f"q{row}", (), "?") for row in range(40)]
HOW = Sampling(max_new_tokens=4)


def sample(outcome, mark=0, version=0, support=None):
    tokens = torch.tensor([1, 2, 3 + mark])
    return Sample(
        tokens,
        tokens > 1,
        torch.tensor([0.0, -0.5, -1.5 - mark]),
        (version, version),
        StopReason.END,
        f"completion {mark}",
        support,
        {} if outcome is None else {"right": outcome, "style": 0.25},
        outcome,
    )


class Oracle:
    """Answers by the row: which outcomes each call gives, and what it was asked."""

    def __init__(self, outcomes):
        self.outcomes, self.calls = outcomes, []

    def __call__(self, rows, count, sampling, seed):
        self.calls.append((list(rows), count, sampling.temperature, seed))
        return [
            Group(PROMPTS[row], tuple(sample(each, mark) for mark, each in enumerate(self.outcomes(row, count, seed))))
            for row in rows
        ]


def counter():
    rows = iter(range(100))
    return lambda count: [next(rows) for _ in range(count)]


def by_row(row, count, seed):
    """Even rows agree, odd ones do not."""
    return [1.0] * count if row % 2 == 0 else [0.0] + [1.0] * (count - 1)


def test_everything_is_one_round():
    oracle = Oracle(by_row)
    found = draw_batch(oracle, counter(), RolloutSpec(4, 3, HOW, False, Everything()), (7, 1))
    assert [row for row, _ in found.groups] == [0, 1, 2, 3]
    assert oracle.calls == [([0, 1, 2, 3], 3, 1.0, (7, 1))]
    assert (found.num_samples, found.rounds) == (12, 1)


def test_groups_that_agree_are_replaced_by_new_prompts():
    oracle = Oracle(by_row)
    found = draw_batch(oracle, counter(), RolloutSpec(4, 3, HOW, False, MixedOutcome(10)), (7, 1))
    assert [row for row, _ in found.groups] == [1, 3, 5, 7]
    assert [call[0] for call in oracle.calls] == [[0, 1, 2, 3], [4, 5, 6, 7]]  # half were kept: twice what is missing
    assert len({call[3] for call in oracle.calls}) == 2  # another random stream each round
    assert (found.num_samples, found.rounds, len(found.outcomes)) == (24, 2, 8)


def test_a_round_is_never_larger_than_a_step_and_what_is_too_much_is_left_out():
    def by_place(row, count, seed):
        return by_row(0 if row < 3 else 1, count, seed)

    oracle = Oracle(by_place)
    found = draw_batch(oracle, counter(), RolloutSpec(4, 3, HOW, False, MixedOutcome(10)), (7, 1))
    assert [call[0] for call in oracle.calls] == [[0, 1, 2, 3], [4, 5, 6, 7]]  # a quarter was kept: not 12 more
    assert [row for row, _ in found.groups] == [3, 4, 5, 6]
    assert (found.num_samples, len(found.outcomes)) == (24, 8)  # the surplus was paid for, and counts as visited


def test_refilling_is_bounded_and_may_come_back_with_less():
    found = draw_batch(Oracle(by_row), counter(), RolloutSpec(4, 3, HOW, False, MixedOutcome(1)), (7, 1))
    assert [row for row, _ in found.groups] == [1, 3] and found.rounds == 1
    never = draw_batch(
        Oracle(lambda row, count, seed: [0.0] * count), counter(), RolloutSpec(4, 3, HOW, False, MixedOutcome(3)), (7,)
    )
    assert never.groups == () and never.rounds == 3 and len(never.outcomes) == 12


def test_what_counts_is_the_first_part_not_the_shaped_sum():
    """A length penalty would make a group of equal outcomes look mixed."""
    pool = [sample(1.0), sample(1.0)]
    pool[1] = pool[1].scored({"right": 1.0, "style": 0.0}, 0.5)
    found = draw_batch(
        lambda rows, count, sampling, seed: [Group(PROMPTS[0], tuple(pool)) for _ in rows],
        counter(),
        RolloutSpec(1, 2, HOW, False, MixedOutcome(2)),
        (7,),
    )
    assert found.groups == ()


def test_a_group_whose_roles_agree_each_for_itself_is_replaced_too():
    """Who moves first always wins: the outcomes differ and teach nothing."""

    def seats(rows, count, sampling, seed):
        def played(row, number):
            first = number % 2 == 0
            return replace(sample(float(first or (row == 5 and number == 1))), role="first" if first else "second")

        return [Group(Prompt(str(row), ()), tuple(played(row, number) for number in range(count))) for row in rows]

    found = draw_batch(seats, counter(), RolloutSpec(1, 4, HOW, False, MixedOutcome(9)), (7, 1))
    assert [row for row, _ in found.groups] == [5]


def test_a_greedy_completion_is_asked_for_the_groups_that_stay():
    oracle = Oracle(by_row)
    found = draw_batch(oracle, counter(), RolloutSpec(2, 3, HOW, True, MixedOutcome(10)), (7, 1))
    assert oracle.calls[-1] == ([1, 3], 1, 0.0, (7, 1, -1))
    assert all(group.greedy is not None and len(group.samples) == 3 for _, group in found.groups)
    assert found.num_samples == 12 + 2


def test_more_completions_are_drawn_until_both_outcomes_are_there():
    def outcomes(row, count, seed):
        return [1.0] * count if row == 1 else [0.0] * (count - 1) + [float(len(seed) == 3 and seed[2] == 2)]

    oracle = Oracle(outcomes)
    found = draw_batch(oracle, counter(), RolloutSpec(2, 4, HOW, False, Balanced(4)), (7, 1))
    assert [call[0] for call in oracle.calls] == [[0, 1], [0, 1], [0, 1], [1]]
    first, second = (group for _, group in found.groups)
    assert len(first.drawn) == 12 and sum(first.drawn) == 1 and len(second.drawn) == 16
    assert [each.outcome for each in first.samples].count(1.0) == 1 and len(first.samples) == 4
    assert found.num_samples == 28


def test_episodes_of_later_rounds_are_no_branches_of_the_first():
    def named(rows, count, sampling, seed):
        outcome = float(len(seed) == 3)
        made = [replace(sample(outcome), episode=f"p#{number}") for number in range(count)]
        return [Group(PROMPTS[0], tuple(made)) for _ in rows]

    found = draw_batch(named, counter(), RolloutSpec(1, 4, HOW, False, Balanced(4)), (7, 1))
    ((_, group),) = found.groups
    assert len(group.samples) == len(by_episode(group.samples)) == 4


@pytest.mark.parametrize(("right", "wrong", "taken"), [(6, 6, 2), (1, 9, 1), (9, 1, 3), (0, 8, 0), (8, 0, 0)])
def test_a_balanced_group_is_half_right_where_it_can_be(right, wrong, taken):
    pool = [sample(1.0, mark) for mark in range(right)] + [sample(0.0, 50 + mark) for mark in range(wrong)]
    chosen = balanced(pool, 4)
    assert len(chosen) == 4
    if right and wrong:
        assert sum(each.outcome for each in chosen) == taken


class FakeEngine:
    """Writes completions that say which row, seed and weights they come from."""

    def __init__(self, support=None):
        self.version, self.requests, self.support = 0, [], support

    def generate(self, requests, sampling):
        self.requests.append((len(requests), sampling.temperature))
        return [
            Sample(
                torch.tensor([*request.tokens, request.seed % 50]),
                torch.tensor([False] * len(request.tokens) + [True]),
                torch.tensor([0.0] * len(request.tokens) + [-0.5]),
                (self.version, self.version),
                StopReason.END,
                f"row {request.tokens[0]} seed {request.seed}",
                self.support,
            )
            for request in requests
        ]

    def load(self, weights, version):
        self.version = version


def even_rows_agree(prompts, samples):
    """Both completions to an even row are right; of those to an odd row only the second."""
    seen = Counter()
    scored = []
    for prompt, each in zip(prompts, samples, strict=True):
        seen[prompt.id] += 1
        right = float(int(prompt.id[1:]) % 2 == 0 or seen[prompt.id] % 2 == 0)
        scored.append(each.scored({"right": right, "style": 0.25}, right))
    return scored


class Notes:
    """A reward that counts the samples it scored since its notes were last taken."""

    def __init__(self):
        self.scored = 0

    def score(self, prompts, samples):
        self.scored += len(samples)
        return even_rows_agree(prompts, samples)

    def take(self):
        taken, self.scored = {"scored": float(self.scored)}, 0
        return taken


def collector_of(engine=None, reward_at=None, spec=None, staleness=0, by_difficulty=False):
    return RolloutCollector(
        engine or FakeEngine(),
        PromptDataset(PROMPTS, [(row,) for row in range(40)]),
        reward_at or (lambda progress: RewardContext(even_rows_agree)),
        spec or RolloutSpec(2, 2, HOW, False, Everything()),
        PromptOrder(len(PROMPTS), 5, by_difficulty),
        staleness,
    )


def test_a_collector_visits_every_prompt_once_per_epoch():
    collector = collector_of()
    rows = [row for _ in range(20) for row, _ in collector.collect(0.0).groups]
    assert sorted(rows) == list(range(40)) and rows != list(range(40))


def test_every_completion_of_a_run_has_a_random_stream_of_its_own():
    collector = collector_of()
    texts = [each.completion for _ in range(30) for _, group in collector.collect(0.0).groups for each in group.samples]
    assert len({text.split("seed ")[1] for text in texts}) == 120


def test_the_prompt_of_a_group_is_the_one_that_was_completed():
    for row, group in collector_of().collect(0.0).groups:
        assert group.prompt is PROMPTS[row]
        assert all(each.tokens[0] == row and each.completion.startswith(f"row {row} ") for each in group.samples)
        assert len({each.completion for each in group.samples}) == 2  # a random stream each


def test_the_reward_is_that_of_the_progress_and_its_weights_travel_with_the_batch():
    def reward_at(progress):
        def score(prompts, samples):
            return [each.scored({"right": progress}, progress) for each in samples]

        return RewardContext(score, {"right": 1.0 + progress})

    collector = collector_of(reward_at=reward_at, staleness=1)
    first, second, third = (collector.collect(progress) for progress in (0.0, 0.25, 0.5))
    rewards = [batch.groups[0][1].samples[0].reward for batch in (first, second, third)]
    assert rewards == [0.0, 0.0, 0.25]  # the first call fills the queue
    assert [batch.part_weights["right"] for batch in (first, second, third)] == [1.0, 1.0, 1.25]


def test_a_collection_is_timed_and_takes_the_notes_of_its_own_samples_only():
    notes = Notes()
    notes.scored = 100  # of an evaluation before
    collector = collector_of(reward_at=lambda progress: RewardContext(notes.score, {}, notes.take), staleness=2)
    first, second = collector.collect(0.0), collector.collect(0.1)
    assert first.notes == {"scored": 12.0} and second.notes == {"scored": 4.0}
    assert first.seconds.keys() == {"rollout", "reward"} and all(value > 0 for value in first.seconds.values())


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_stale_collector_hands_out_what_was_drawn_before(staleness):
    engine = FakeEngine()
    collector, behind = collector_of(engine, staleness=staleness), []
    for step in range(8):
        group = collector.collect(0.0).groups[0][1]
        behind.append(group_staleness(group, step))
        collector.load_weights({}, step + 1)
    assert behind == [min(step, staleness) for step in range(8)]


def test_the_staleness_of_a_group_is_that_of_its_oldest_token():
    group = Group(PROMPTS[0], (sample(1.0, version=5), replace(sample(1.0), versions=(2, 6)), sample(0.0, version=4)))
    assert group_staleness(group, 7) == 5


def test_a_collector_is_restored_with_the_groups_that_wait():
    support = Support(torch.tensor([2, 3, 4], dtype=torch.int32), torch.tensor([3], dtype=torch.int32))
    spec = RolloutSpec(2, 2, HOW, True, Balanced(3))

    def reward_at(progress):
        return RewardContext(even_rows_agree, {"style": 0.5, "right": 1.0})

    def collector():
        return collector_of(FakeEngine(support), reward_at, spec, staleness=2, by_difficulty=True)

    def shown(batch):
        return [
            (row, group.prompt.id, group.drawn, [str(each) for each in (*group.samples, group.greedy)])
            for row, group in batch.groups
        ]

    first = collector()
    for _ in range(3):
        first.collect(0.0)
    second = collector()
    second.restore(json.loads(json.dumps(first.state(), sort_keys=True)), first.tensors())
    for _ in range(5):
        one, two = first.collect(0.5), second.collect(0.5)
        assert shown(one) == shown(two) and one.outcomes == two.outcomes
        assert (one.num_samples, one.rounds) == (two.num_samples, two.rounds)
        assert list(one.part_weights.items()) == list(two.part_weights.items()) == [("style", 0.5), ("right", 1.0)]
        assert [list(each.parts) for _, group in two.groups for each in group.samples] == [["right", "style"]] * 4
    assert first.state() == second.state()


def test_prompts_whose_completions_agree_are_visited_less_often_but_never_forgotten():
    collector = collector_of(by_difficulty=True)
    visits = Counter(row for _ in range(800) for row, _ in collector.collect(0.0).groups)
    easy = [visits[row] for row in range(0, 40, 2)]
    mixed = [visits[row] for row in range(1, 40, 2)]
    assert min(easy) >= 2  # never forgotten
    assert sum(easy) / sum(mixed) == pytest.approx(SELDOM, abs=0.03)


def test_visit_shares():
    assert visit_share(None) == 1.0 and visit_share(0.5) == 1.0
    assert visit_share(0.0) == visit_share(1.0) == SELDOM
    assert visit_share(0.25) == pytest.approx(SELDOM + 0.9 * 0.75)
    assert visit_share(-3.0) == 1.0  # not a rate: nothing is known


def test_fresh_groups_are_those_of_a_recent_policy():
    assert Fresh(1)([1.0, 1.0], 1) and not Fresh(1)([0.0, 1.0], 2)
    assert not Fresh(0).refills and MixedOutcome(3).most_rounds == 3


class Streaming:
    """An engine whose last completion ends only when `may_end` is set, and which tells the others at once."""

    def __init__(self, may_end):
        self.may_end, self.told = may_end, []

    def load(self, weights, version):
        pass

    def stream(self, requests, sampling, ended):
        samples = [sample(None, mark) for mark in range(len(requests))]
        for number in reversed(range(len(requests))):
            if number == 0:
                assert self.may_end.wait(10)
            self.told.append(number)
            ended(number, samples[number])
        return samples


def test_completions_are_judged_while_others_are_written_and_work_goes_on_until_they_are():
    """The engine cannot end before a completion is judged, and the last one is judged only during `meanwhile`."""
    judged, goes_on, marks = threading.Event(), threading.Event(), []

    def slow(prompts, samples):
        marks.extend(int(one.completion[-1]) for one in samples)
        judged.set()
        assert 0 not in marks or goes_on.wait(10)
        return [float(one.completion[-1]) for one in samples]

    parts = [RewardPart(type("Slow", (), {"name": "slow", "ahead": True, "__call__": staticmethod(slow)})())]
    scorer = Scorer(parts, 60.0, Failures("stop"), ahead=judged_ahead(parts, 60.0, "stop"))
    context = RewardContext(scorer, ahead=scorer.ahead)
    shown = []

    def meanwhile(groups):
        shown.append(groups)
        assert all(one.reward is None for group in groups for one in group.samples)
        goes_on.set()

    batch = collector_of(Streaming(judged), lambda progress: context).collect(0.0, meanwhile)
    assert [one.reward for _, group in batch.groups for one in group.samples] == [0.0, 1.0, 2.0, 3.0]
    assert [group.prompt for group in shown[0]] == [group.prompt for _, group in batch.groups] and len(shown) == 1
    assert sorted(marks) == [0, 1, 2, 3]
    phases = Counter(name for name, _, _ in batch.spans)
    assert phases["reward_behind"] >= 2 and phases["rollout"] == phases["reward"] == 1
    refill = RolloutSpec(2, 2, HOW, False, MixedOutcome())  # groups are not settled before their scores are
    marks.clear()
    collector_of(Streaming(judged), lambda progress: context, refill).collect(0.0, meanwhile)
    assert len(shown) == 1


def test_waiting_for_environments_is_not_counted_as_writing_too(monkeypatch):
    collector = collector_of()
    notes = collector._runner.take_notes()
    monkeypatch.setattr(collector._runner, "take_notes", lambda: replace(notes, seconds={"environment": 100.0}))
    seconds = collector.collect(0.0).seconds
    assert seconds["environment"] == 100.0 and -100.0 < seconds["rollout"] < -50.0


def test_what_is_drawn_outside_of_training_is_judged_as_it_ends():
    heard = []

    class Writes:
        def play(self, plan, ended=None):
            samples = [[object() for _ in range(plan.count)] for _ in plan.prompts]
            for number, sample in enumerate(sample for group in samples for sample in group):
                ended(number, (sample,))
            return samples

        def take_notes(self):
            return PlayNotes()

    class Judge:
        class ahead:
            @staticmethod
            def begin(prompts):
                return lambda number, samples: heard.append((prompts[number].id, *samples))

        def __call__(self, prompts, samples):
            assert heard == [(prompt.id, sample) for prompt, sample in zip(prompts, samples, strict=True)]
            return samples

    asked = [Prompt(name, ()) for name in "ab"]
    groups = draw_and_score(Writes(), EpisodePlan(asked, [(1,), (2,)], 2, Sampling(4), (0,)), Judge())
    assert [group.prompt.id for group in groups] == ["a", "b"] and [len(group.samples) for group in groups] == [2, 2]
    assert [name for name, _ in heard] == ["a", "a", "b", "b"]
