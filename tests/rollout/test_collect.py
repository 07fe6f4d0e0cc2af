"""Enough groups worth training on: refilling, growing, the greedy completion, the queue, and the way over the prompts."""

from collections import Counter

import pytest
import torch

from whet.objective.keep import Balanced, Everything, Fresh, MixedOutcome
from whet.rollout.buffer import SELDOM, PromptOrder, RolloutBuffer, visit_share
from whet.rollout.collect import RolloutSpec, balanced, harvest
from whet.types import Group, Prompt, Sample, Sampling, StopReason, Support

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
    found = harvest(oracle, counter(), RolloutSpec(4, 3, HOW, False, Everything()), (7, 1))
    assert [row for row, _ in found.groups] == [0, 1, 2, 3]
    assert oracle.calls == [([0, 1, 2, 3], 3, 1.0, (7, 1))]
    assert (found.num_samples, found.rounds) == (12, 1)


def test_groups_that_agree_are_replaced_by_new_prompts():
    oracle = Oracle(by_row)
    found = harvest(oracle, counter(), RolloutSpec(4, 3, HOW, False, MixedOutcome(10)), (7, 1))
    assert [row for row, _ in found.groups] == [1, 3, 5, 7]
    assert [call[0] for call in oracle.calls] == [[0, 1, 2, 3], [4, 5], [6], [7]]
    assert len({call[3] for call in oracle.calls}) == 4  # another random stream each round
    assert (found.num_samples, found.rounds, len(found.outcomes)) == (24, 4, 8)


def test_refilling_is_bounded_and_may_come_back_with_less():
    found = harvest(Oracle(by_row), counter(), RolloutSpec(4, 3, HOW, False, MixedOutcome(2)), (7, 1))
    assert [row for row, _ in found.groups] == [1, 3, 5] and found.rounds == 2
    never = harvest(
        Oracle(lambda row, count, seed: [0.0] * count), counter(), RolloutSpec(4, 3, HOW, False, MixedOutcome(3)), (7,)
    )
    assert never.groups == () and never.rounds == 3 and len(never.outcomes) == 12


def test_what_counts_is_the_first_part_not_the_shaped_sum():
    """A length penalty would make a group of equal outcomes look mixed."""
    pool = [sample(1.0), sample(1.0)]
    pool[1] = pool[1].scored({"right": 1.0, "style": 0.0}, 0.5)
    found = harvest(
        lambda rows, count, sampling, seed: [Group(PROMPTS[0], tuple(pool)) for _ in rows],
        counter(),
        RolloutSpec(1, 2, HOW, False, MixedOutcome(2)),
        (7,),
    )
    assert found.groups == ()


def test_a_greedy_completion_is_asked_for_the_groups_that_stay():
    oracle = Oracle(by_row)
    found = harvest(oracle, counter(), RolloutSpec(2, 3, HOW, True, MixedOutcome(10)), (7, 1))
    assert oracle.calls[-1] == ([1, 3], 1, 0.0, (7, 1, -1))
    assert all(group.greedy is not None and len(group.samples) == 3 for _, group in found.groups)
    assert found.num_samples == 12 + 2


def test_more_completions_are_drawn_until_both_outcomes_are_there():
    def outcomes(row, count, seed):
        return [1.0] * count if row == 1 else [0.0] * (count - 1) + [float(len(seed) == 3 and seed[2] == 2)]

    oracle = Oracle(outcomes)
    found = harvest(oracle, counter(), RolloutSpec(2, 4, HOW, False, Balanced(4)), (7, 1))
    assert [call[0] for call in oracle.calls] == [[0, 1], [0, 1], [0, 1], [1]]
    first, second = (group for _, group in found.groups)
    assert len(first.drawn) == 12 and sum(first.drawn) == 1 and len(second.drawn) == 16
    assert [each.outcome for each in first.samples].count(1.0) == 1 and len(first.samples) == 4
    assert found.num_samples == 28


@pytest.mark.parametrize(("right", "wrong", "taken"), [(6, 6, 2), (1, 9, 1), (9, 1, 3), (0, 8, 0), (8, 0, 0)])
def test_a_balanced_group_is_half_right_where_it_can_be(right, wrong, taken):
    pool = [sample(1.0, mark) for mark in range(right)] + [sample(0.0, 50 + mark) for mark in range(wrong)]
    chosen = balanced(pool, 4)
    assert len(chosen) == 4
    if right and wrong:
        assert sum(each.outcome for each in chosen) == taken


def supply_of(oracle, **route):
    return RolloutBuffer(PROMPTS, oracle, RolloutSpec(2, 2, HOW, False, Everything()), PromptOrder(5, **route))


def test_a_supply_walks_over_every_prompt_once_an_epoch():
    supply = supply_of(Oracle(by_row))
    rows = [row for _ in range(20) for row, _ in supply.next_harvest().groups]
    assert sorted(rows) == list(range(40)) and rows != list(range(40))


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_lagging_supply_hands_out_what_was_drawn_before(staleness):
    version = 0

    def ask(rows, count, sampling, seed):
        return [Group(PROMPTS[row], (sample(1.0, 0, version), sample(0.0, 1, version))) for row in rows]

    supply, behind = supply_of(ask, staleness=staleness), []
    for _ in range(8):
        found = supply.next_harvest()
        behind.append(version - found.groups[0][1].samples[0].versions[0])
        version += 1
    assert behind == [min(step, staleness) for step in range(8)]


def test_a_supply_is_restored_with_the_groups_that_wait():
    support = Support(torch.tensor([2, 3, 4], dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32))

    def ask(rows, count, sampling, seed):
        marks = [(row + seed[1]) % 5 for row in rows]
        return [
            Group(
                PROMPTS[row],
                (sample(1.0, mark, mark, support), sample(None, mark)),
                sample(0.5, mark + 1),
                (1.0, 0.0, float(mark)),
            )
            for row, mark in zip(rows, marks, strict=True)
        ]

    def shown(found):
        return [
            (row, group.prompt.id, group.drawn, [str(each) for each in (*group.samples, group.greedy)])
            for row, group in found.groups
        ]

    first = supply_of(ask, staleness=2, by_difficulty=True)
    for _ in range(3):
        first.next_harvest()
    second = supply_of(ask, staleness=2, by_difficulty=True)
    second.restore(first.state(), first.tensors())
    for _ in range(5):
        one, two = first.next_harvest(), second.next_harvest()
        assert shown(one) == shown(two) and one.outcomes == two.outcomes
    assert first.state() == second.state()


def test_prompts_whose_completions_agree_are_visited_less_often_but_never_forgotten():
    supply = supply_of(Oracle(by_row), by_difficulty=True)
    visits = Counter(row for _ in range(800) for row, _ in supply.next_harvest().groups)
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
