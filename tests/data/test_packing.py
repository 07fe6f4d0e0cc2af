"""Batches and passes: nothing is lost, nothing is doubled, and no pass is larger than asked."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.for_every import for_every
from whet.data.packing import (
    BlockSize,
    _tree_blocks,
    number_of,
    padded_rows,
    row_micro_batches,
    token_batch,
    token_micro_batches,
    trimmed,
)
from whet.data.prefix_tree import TreeOrder
from whet.types import Encoded, Group, Prompt, Sample, StopReason, Support, Turn


def sample(prompt, completion, reward=0.0, support=None):
    """A sample whose log-probability at a completion token is minus that token."""
    tokens = torch.tensor([*prompt, *completion])
    action = torch.tensor([False] * len(prompt) + [True] * len(completion))
    kept = None
    if support is not None:
        ids = torch.tensor([token for each in support for token in each], dtype=torch.int32)
        kept = Support(ids, torch.tensor([len(each) for each in support], dtype=torch.int32))
    return Sample(tokens, action, -(tokens * action).float(), (0, 0), StopReason.END, "", kept, {}, reward)


def group(name, *samples):
    return Group(Prompt(name, (), name), samples)


@pytest.fixture
def groups():
    one = group("one", sample((1, 2), (3, 4, 5), 1.0), sample((1, 2), (6,), None))
    return [one, group("two", sample((7,), (8, 9), 0.25))]


def ragged_batch(lengths):
    return token_batch([group("ragged", *(sample((1,), range(2, 2 + length)) for length in lengths))])


def encoded(*lengths):
    rows = []
    for number, length in enumerate(lengths):
        first = 100 * (number + 1)
        rows.append(Encoded(tuple(range(first, first + length)), (False,) + (True,) * (length - 1)))
    return rows


def test_a_batch_holds_every_sample_padded_on_the_right(groups):
    batch = token_batch(groups)
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5], [1, 2, 6, 0, 0], [7, 8, 9, 0, 0]]
    assert batch.action.int().tolist() == [[0, 0, 1, 1, 1], [0, 0, 1, 0, 0], [0, 1, 1, 0, 0]]
    assert batch.behavior_logp.tolist() == [[0, 0, -3, -4, -5], [0, 0, -6, 0, 0], [0, -8, -9, 0, 0]]
    assert batch.group.tolist() == [0, 0, 1]
    assert batch.lengths.tolist() == [3, 1, 2]
    assert batch.support is None
    assert (batch.tokens.dtype, batch.action.dtype) == (torch.int64, torch.bool)


def test_a_batch_holds_what_the_reference_earned_where_it_is_asked_for(groups):
    """Every row those of its prompt; shorter lists end in NaN."""
    kept = [
        replace(each, prompt=replace(each.prompt, meta={"reference_rewards": rewards}))
        for each, rewards in zip(groups, ([1, 0], [0.5]), strict=True)
    ]
    found = token_batch(kept, needs=frozenset({"reference_rewards"})).reference_rewards
    assert found[:, 0].tolist() == [1.0, 1.0, 0.5] and found[:2, 1].tolist() == [0.0, 0.0] and found[2, 1].isnan()
    assert token_batch(kept).reference_rewards is None


def test_an_unscored_sample_has_no_reward(groups):
    reward = token_batch(groups).reward
    assert reward[[0, 2]].tolist() == [1.0, 0.25]
    assert reward[1].isnan()


def test_the_support_lies_at_the_action_positions():
    samples = sample((1, 2), (3, 4), support=[(3, 9), (4,)]), sample((5,), (6, 7), support=[(6,), (0, 7, 8)])
    support = token_batch([group("cut", *samples)]).support
    assert support.dtype == torch.int32
    empty = [-1, -1, -1]
    assert support.tolist() == [
        [empty, empty, [3, 9, -1], [4, -1, -1]],
        [empty, [6, -1, -1], [0, 7, 8], empty],
    ]


def test_a_sample_without_a_support_could_draw_anything():
    mixed = token_batch([group("mixed", sample((1,), (2,), support=[(2, 3)]), sample((1,), (2,)))])
    assert mixed.support.tolist() == [[[-1, -1], [2, 3]], [[-1, -1], [-1, -1]]]


@for_every([1, 7, 12, 30, 10_000])
def test_passes_hold_every_row_once_within_the_budget(micro_batch_tokens):
    lengths = [5, 1, 9, 2, 2, 30, 4, 7]
    parts = token_micro_batches(ragged_batch(lengths), micro_batch_tokens)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        width = max(1 + lengths[row] for row in part)
        assert len(part) == 1 or width * len(part) <= micro_batch_tokens


def test_passes_are_few_and_of_similar_lengths():
    lengths = [5, 1, 9, 2, 2, 30, 4, 7]
    assert token_micro_batches(ragged_batch(lengths), 1) == [[1], [3], [4], [6], [0], [7], [2], [5]]
    assert token_micro_batches(ragged_batch(lengths), 12) == [[1, 3, 4], [6, 0], [7], [2], [5]]
    assert token_micro_batches(ragged_batch(lengths), 10_000) == [[1, 3, 4, 6, 0, 7, 2, 5]]


def test_passes_measure_up_to_the_last_action_only():
    """A tool's answer behind the last action costs nothing: it is trimmed away before the pass."""
    batch = ragged_batch([2, 8])
    action = batch.action.clone()
    action[1, 3:] = False
    assert token_micro_batches(replace(batch, action=action), 6) == [[0, 1]]
    assert token_micro_batches(batch, 6) == [[0], [1]]


def test_rows_without_an_action_still_appear():
    batch = ragged_batch([2, 3, 4])
    action = batch.action.clone()
    action[1] = False
    parts = token_micro_batches(replace(batch, action=action), 100)
    assert sorted(row for part in parts for row in part) == [0, 1, 2]


def computed(batch, part):
    """Tokens that must be computed: each prompt once, of the rest all but the last action."""
    prompts, completions = set(), 0
    for row in part:
        columns = batch.action[row].nonzero()[:, 0].tolist()
        if columns:
            prompts.add(tuple(batch.tokens[row, : columns[0]].tolist()))
            completions += columns[-1] - columns[0]
    return sum(map(len, prompts)) + completions


def families(*shapes):
    """A group for each (prompt length, completion lengths)."""
    groups = []
    for number, (prompt, completions) in enumerate(shapes):
        start = range(100 * number + 1, 100 * number + 1 + prompt)
        groups.append(group(f"g{number}", *(sample(start, range(7, 7 + length)) for length in completions)))
    return token_batch(groups)


@for_every([1, 9, 20, 33, 10_000])
def test_a_prompt_counts_once_a_pass(micro_batch_tokens):
    batch = families((6, [3, 1, 4]), (12, [2, 2, 9, 5]), (1, [8]), (3, [1, 1]))
    parts = token_micro_batches(batch, micro_batch_tokens, shared="prompts")
    assert sorted(row for part in parts for row in part) == list(range(10))
    assert all(len(part) == 1 or computed(batch, part) <= micro_batch_tokens for part in parts)
    assert len(parts) < len(token_micro_batches(batch, micro_batch_tokens)) or micro_batch_tokens in (1, 10_000)


def test_a_prompts_rows_stay_together_where_they_fit():
    batch = families((6, [3, 3]), (6, [4, 4]), (6, [5, 5]))
    assert token_micro_batches(batch, 12, shared="prompts") == [[0, 1], [2, 3], [4], [5]]
    assert token_micro_batches(batch, 22, shared="prompts") == [[0, 1, 2, 3], [4, 5]]
    assert token_micro_batches(batch, 10_000, shared="prompts") == [[0, 1, 2, 3, 4, 5]]
    assert token_micro_batches(batch, 1, shared="prompts") == [[0], [1], [2], [3], [4], [5]]


def test_shared_passes_do_not_ask_which_group_a_row_is_of():
    batch = families((6, [3, 3]), (6, [3, 3]))
    twins = replace(batch, tokens=batch.tokens[:2].repeat(2, 1))
    assert token_micro_batches(twins, 6 + 4 * 2, shared="prompts") == [[0, 1, 2, 3]]
    assert token_micro_batches(batch, 6 + 4 * 2, shared="prompts") == [[0, 1], [2, 3]]


def test_rows_without_an_action_cost_a_shared_pass_nothing():
    batch = families((6, [3, 3]), (2, [2]))
    action = batch.action.clone()
    action[1] = False
    parts = token_micro_batches(replace(batch, action=action), 8, shared="prompts")
    assert sorted(row for part in parts for row in part) == [0, 1, 2] and len(parts) == 2


def test_trimmed_cuts_every_field_and_keeps_what_is_left():
    samples = sample((1, 2), (3, 4), support=[(3, 9), (4,)]), sample((5,), (6, 7, 8, 9), support=[(6,)] * 4)
    batch = token_batch([group("cut", *samples)])
    shape = batch.tokens.shape
    batch = replace(batch, old_logp=torch.rand(shape), ref_logp=torch.rand(shape), advantage=torch.rand(shape))
    part = trimmed(batch.select([0]))
    assert part.tokens.tolist() == [[1, 2, 3, 4]]
    for name in ("tokens", "action", "behavior_logp", "old_logp", "ref_logp", "advantage", "support"):
        assert torch.equal(getattr(part, name), getattr(batch, name)[:1, :4]), name
    assert torch.equal(trimmed(batch).tokens, batch.tokens)


def test_trimmed_without_any_action_leaves_a_column():
    batch = ragged_batch([2])
    assert trimmed(replace(batch, action=torch.zeros_like(batch.action))).tokens.shape == (1, 1)


def test_padded_rows():
    rows = padded_rows([Encoded((5, 6, 7), (False, True, True)), Encoded((8, 9), (False, True))])
    assert rows.tokens.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert rows.action.tolist() == [[False, True, True], [False, True, False]]


@for_every([False, True], [1, 9, 13, 24, 10_000])
def test_row_passes_hold_every_row_once_within_the_budget(packed, micro_batch_tokens):
    rows = encoded(5, 2, 9, 3, 3, 20, 4, 7)
    parts = [[rows[number] for number in part] for part in row_micro_batches(rows, micro_batch_tokens, packed)]
    assert sorted(row.tokens for part in parts for row in part) == sorted(row.tokens for row in rows)
    for part in parts:
        size = sum(len(row.tokens) for row in part) if packed else len(part) * max(len(row.tokens) for row in part)
        assert len(part) == 1 or size <= micro_batch_tokens


def test_row_passes_fill_their_budget():
    rows = encoded(5, 2, 9, 3)

    def lengths(micro_batch_tokens, packed):
        cut = row_micro_batches(rows, micro_batch_tokens, packed)
        return [[len(rows[number].tokens) for number in part] for part in cut]

    assert lengths(10, packed=True) == [[2, 3, 5], [9]]
    assert lengths(10, packed=False) == [[2, 3], [5], [9]]
    assert lengths(19, packed=True) == [[2, 3, 5, 9]]
    assert lengths(36, packed=False) == [[2, 3, 5, 9]]
    assert lengths(1, packed=True) == [[2], [3], [5], [9]]


# episodes: a prompt of two tokens, then turns of the policy and what its environment wrote between them


def episode(*lengths, rewards=None, ended=None, role="", name="", parts=None, steps=(), stop=StopReason.END):
    """Turns of the policy and of its environment in turn, by their lengths; the first is the policy's."""
    rewards, ended = rewards or {}, ended or {}
    turns, action, at = [Turn("prompt", "", 0, 2)], [False] * 2, 2
    for number, length in enumerate(lengths):
        mine = number % 2 == 0
        turn = number // 2
        stands = {"reward": rewards.get(turn), "ended": ended.get(turn)} if mine else {}
        turns.append(Turn("assistant" if mine else "tool", "", at, at + length, **stands))
        action += [mine] * length
        at += length
    tokens = torch.arange(1, at + 1)
    paid = [(turn.stop - 1, turn.reward) for turn in turns if turn.reward is not None]
    return Sample(
        *(tokens, torch.tensor(action), torch.zeros(at), (0, 0), stop, ""),
        parts=parts or {},
        reward=sum((parts or {"x": 0.0}).values()),
        steps=(*paid, *steps),
        turns=tuple(turns),
        role=role,
        episode=name,
    )


def test_what_stands_between_the_turns_is_observed_and_prompt_and_padding_are_not():
    rows = [group("a", episode(2, 1, 1), episode(1)), group("b", episode(1, 3, 2))]
    batch = token_batch(rows, needs=frozenset({"observed"}))
    assert batch.observed.int().tolist() == [[0, 0, 0, 0, 1, 0, 0, 0], [0] * 8, [0, 0, 0, 1, 1, 1, 0, 0]]
    assert not (batch.observed & batch.action).any()
    assert token_batch(rows).observed is None


def test_the_reward_of_a_turn_is_earned_on_its_last_token_and_counts_what_its_part_counts():
    made = episode(2, 1, 1, rewards={0: 0.5, 1: -1.0}, parts={"environment": -0.5, "other": 3.0})
    weights = {"other": 1.0, "environment": 2.0}
    batch = token_batch([group("a", made, episode(1, rewards={}, parts={"environment": 0.0, "other": 1.0}))], weights)
    nan = float("nan")
    expected = torch.tensor([[nan, nan, nan, 1.0, nan, -2.0], [nan] * 6], dtype=torch.float64)
    torch.testing.assert_close(batch.step_reward, expected, equal_nan=True)
    assert batch.returned.tolist() == [-1.0, 0.0]
    # where the environment is no part of the reward, its rewards are nothing that a turn could earn
    other = token_batch([group("a", made)], {"other": 1.0})
    assert other.step_reward is None and other.returned is None
    asked = token_batch([group("a", made)], {"other": 1.0}, needs=frozenset({"step_reward"}))
    assert asked.step_reward.isnan().all() and asked.step_reward.shape == asked.action.shape


def test_process_rewards_stand_beside_the_rewards_of_turns():
    made = episode(2, 1, 1, rewards={0: 0.5}, steps=((3, 0.25), (5, 0.75)), parts={"environment": 0.5})
    batch = token_batch([group("a", made)], {"environment": 1.0})
    assert batch.step_reward[0, 3] == 0.75 and batch.step_reward[0, 5] == 0.75  # the turn's and the step's: both
    assert batch.returned.tolist() == [0.5]  # a step's score is paid on top of the reward


def test_only_the_turns_that_their_budget_cut_off_are_truncated():
    cut = {0: StopReason.LENGTH, 1: StopReason.END}
    rows = [episode(2, 1, 1, ended=cut), episode(1, 1, 2, ended={1: StopReason.LENGTH}, stop=StopReason.TURNS)]
    single = replace(sample((1, 2), (3, 4)), stop=StopReason.LENGTH)
    batch = token_batch([group("a", *rows, single, sample((1, 2), (3,)))], needs=frozenset({"truncated"}))
    expected = [[0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0], [0] * 6]
    assert batch.truncated.int().tolist() == expected
    assert batch.finished.tolist() == [True, False, False, True]
    assert token_batch([group("a", *rows)]).truncated is None


def test_branches_of_an_episode_share_a_number_and_nobody_else_does():
    named = [episode(1, name=name, role=role) for name, role in (("x", ""), ("y", ""), ("x", ""), ("x", "second"))]
    batch = token_batch([group("a", *named), group("b", *named[:2]), group("c", sample((1,), (2,)))])
    numbers = batch.episode.tolist()
    assert numbers[0] == numbers[2] and len(set(numbers)) == len(numbers) - 1
    assert token_batch([group("a", *named[:2])]).episode is None  # no branches: every row is its own
    unnamed = token_batch([group("a", episode(1), episode(1))])
    assert unnamed.episode is None


def test_roles_are_numbered_alike_in_every_batch_and_are_left_out_where_nobody_plays_one():
    rows = group("a", episode(1, role="first"), episode(1, role="second"), episode(1))
    assert token_batch([rows]).role.tolist() == [number_of("first"), number_of("second"), number_of("")]
    plain = group("a", episode(1))
    assert token_batch([plain]).role is None
    assert token_batch([plain], needs=frozenset({"role"})).role.tolist() == [number_of("")]


def branching(turn, depth):
    """Every path through a tree in which each state has two turns of so many tokens, in no order; a prompt of one."""
    rows = [[1]]
    for level in range(depth):
        rows = [
            [*row, *range(100 * (2 * level + arm), 100 * (2 * level + arm) + turn)] for row in rows for arm in (1, 2)
        ]
    order = sorted(range(len(rows)), key=lambda row: (5 * row) % len(rows))
    return token_batch([group("g", *(sample(rows[row][:1], rows[row][1:]) for row in order))])


def tree_size(batch, part):
    """Different prefixes, of which the whole rows predict nothing."""
    rows = [batch.tokens[row][batch.tokens[row] > 0].tolist() for row in part]
    return len({tuple(row[:end]) for row in rows for end in range(1, len(row))})


@for_every([20, 120, 200, 10_000])
def test_rows_with_common_prefixes_stay_together(micro_batch_tokens):
    batch = branching(20, 4)
    parts = token_micro_batches(batch, micro_batch_tokens, shared="prefixes")
    assert sorted(row for part in parts for row in part) == list(range(16))
    assert all(len(part) == 1 or tree_size(batch, part) <= micro_batch_tokens for part in parts)
    apart = token_micro_batches(batch, micro_batch_tokens, shared="prompts")
    assert (
        sum(tree_size(batch, part) for part in parts) < sum(computed(batch, part) for part in apart) or len(parts) == 16
    )


def test_a_row_costs_what_it_does_not_share_with_the_one_before():
    order = TreeOrder(*(np.array(values) for values in (range(4), [40] * 4, [0, 20, 20, 30])))
    assert _tree_blocks(order, [41] * 4, 90) == [([0, 1, 2, 3], BlockSize(4, 41, 90))]
    cut = [([0, 1, 2], BlockSize(3, 41, 80)), ([3], BlockSize(1, 41, 40))]
    assert _tree_blocks(order, [41] * 4, 89) == cut


def test_prompts_alone_are_cut_as_ever():
    batch = families((6, [3, 1, 4]), (12, [2, 2, 9, 5]), (1, [8]), (3, [1, 1]))
    for micro_batch_tokens in (9, 20, 33):
        apart = token_micro_batches(batch, micro_batch_tokens, shared="prompts")
        assert token_micro_batches(batch, micro_batch_tokens, shared="prefixes") == apart
