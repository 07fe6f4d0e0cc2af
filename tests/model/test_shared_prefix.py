"""The layout of a tree: every prompt once, every action predicted from the right token, nothing computed in vain."""

from bisect import bisect_right
from itertools import accumulate, pairwise

import pytest
import torch

from tests.support.for_every import for_every
from whet.model.shared_prefix import PADDING, PATH, shared_prefix_batch


def rows_of(*rows):
    """(prompt, rest, action of the rest as 0 and 1) -> tokens, action; padding is 99."""
    width = max(len(prompt) + len(rest) for prompt, rest, _ in rows)
    tokens = torch.full((len(rows), width), 99)
    action = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, (prompt, rest, flags) in enumerate(rows):
        tokens[number, : len(prompt) + len(rest)] = torch.tensor([*prompt, *rest])
        action[number, len(prompt) : len(prompt) + len(rest)] = torch.tensor([flag == "1" for flag in flags])
    return tokens, action


TWO_GROUPS = rows_of(
    ((1, 2, 3), (10, 11, 12), "111"),
    ((5, 6), (20, 21, 22, 23), "1001"),  # 21 and 22 are a tool's words
    ((1, 2, 3), (13,), "1"),
    ((1, 2, 3), (14, 15, 16), "110"),  # nothing follows from 16
    ((5, 6), (24, 25), "11"),
)


def random_rows(seed):
    """Prompts of which some are shared, completions with gaps, a row without an action."""
    stream = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (), generator=stream))

    prompts = [tuple(number(0, 50) for _ in range(number(1, 9))) for _ in range(4)]
    rows = []
    for _ in range(12):
        rest = tuple(number(0, 50) for _ in range(number(1, 8)))
        rows.append((prompts[number(0, 4)], rest, "1" + "".join(str(number(0, 2)) for _ in rest[1:])))
    tokens, action = rows_of(*rows)
    action[3] = False
    return tokens, action


def test_a_prompt_is_there_once_and_the_completions_go_on_behind_it():
    tree = shared_prefix_batch(*TWO_GROUPS)
    assert tree.tokens.tolist() == [[1, 2, 3, 5, 6, 10, 11, 14, 20, 21, 22, 24]]
    assert tree.position_ids.tolist() == [[0, 1, 2, 0, 1, 3, 4, 3, 2, 3, 4, 2]]
    assert tree.size == 12


def test_every_action_is_predicted_from_the_token_before_it():
    """The first of each completion from the last of the prompt, which all completions share."""
    assert shared_prefix_batch(*TWO_GROUPS).states.tolist() == [2, 5, 6, 4, 10, 2, 2, 7, 4, 11]


def test_rows_that_share_nothing_are_prompts_as_a_whole():
    tokens, action = rows_of(((1, 2), (3, 4, 5), "111"), ((2, 2), (6,), "1"))
    tree = shared_prefix_batch(tokens, action)
    assert tree.tokens.tolist() == [[1, 2, 3, 4, 2, 2]]
    assert tree.layout.prompt_index[0].tolist() == [0, 1, 2, 3] and tree.layout.prompt_index[1, :2].tolist() == [4, 5]
    assert tree.layout.bundles == ()


def test_a_prompt_of_another_length_is_another_prompt():
    """The same first tokens, but the second row's policy began one token later."""
    tree = shared_prefix_batch(*rows_of(((1, 2), (3, 4), "11"), ((1, 2, 3), (4, 5), "11")))
    assert tree.tokens.tolist() == [[1, 2, 3, 1, 2, 3, 4]]
    assert tree.states.tolist() == [1, 2, 5, 6]


def test_rows_without_an_action_are_not_computed():
    tokens, action = rows_of(((1, 2), (3, 4), "00"), ((1, 2), (5, 6), "11"))
    assert shared_prefix_batch(tokens, action).tokens.tolist() == [[1, 2, 5]]
    assert shared_prefix_batch(tokens, torch.zeros_like(action)) is None


def visible(tree):
    """For each packed token, the sorted packed positions that attention lets it see."""
    seen = {}
    tables = tree.layout.rows or (tree.layout.prompt_index,)
    lines = [line for table in tables for line in table]
    starts = list(accumulate((len(line) for line in lines), initial=0))
    for token, place in enumerate(tree.layout.output_index.tolist()):
        if place < starts[-1]:
            row = bisect_right(starts, place) - 1
            column = place - starts[row]
            assert lines[row][column] == token
            seen[token] = lines[row][: column + 1].tolist()
        else:
            place -= tree.layout.prompt_index.numel()
            for bundles in tree.layout.bundles:
                if place < bundles.query_index.numel():
                    break
                place -= bundles.query_index.numel()
            row, column = divmod(place, bundles.query_index.shape[1])
            assert bundles.query_index[row, column] == token
            who, when = bundles.query_node[row, column], bundles.query_position[row, column]
            allowed = (bundles.key_node[row] == PATH) | (bundles.key_node[row] == who)
            allowed &= bundles.key_position[row] <= when
            assert not allowed[bundles.key_node[row] == PADDING].any()
            seen[token] = bundles.key_index[row][allowed].tolist()
    return seen


@for_every(range(20))
def test_every_token_sees_its_own_prefix_and_nothing_else(seed):
    tokens, action = random_rows(seed)
    tree = shared_prefix_batch(tokens, action)
    seen = visible(tree)
    assert len(seen) == tree.size
    packed, positions = tree.tokens[0], tree.position_ids[0]
    for state, (row, column) in zip(tree.states.tolist(), action.nonzero().tolist(), strict=True):
        prefix = seen[state]
        assert packed[prefix].tolist() == tokens[row, :column].tolist()
        assert positions[prefix].tolist() == list(range(column))


@for_every(range(20))
def test_segments_say_the_same_as_the_indices(seed):
    tree = shared_prefix_batch(*random_rows(seed))
    seen, segments = visible(tree), tree.segments
    own, prompts, completions = segments.own.tolist(), segments.prompts.tolist(), segments.completions.tolist()
    assert own[-1] == tree.size and prompts[-1] == segments.end_of_prompts
    assert max(end - start for start, end in pairwise(own)) == segments.longest
    for start, end in pairwise(own):
        for token in range(start, end):
            before = []
            if start >= segments.first_completion:
                root = sum(bound <= token - segments.first_completion for bound in completions) - 1
                before = list(range(prompts[root], prompts[root + 1]))
                assert len(before) <= segments.longest_prompt
            assert seen[token] == [*before, *range(start, token + 1)]
            assert len(seen[token]) <= tree.longest_row
    assert max((end - start for start, end in pairwise(completions)), default=0) == segments.longest_completions
    assert tree.size == segments.first_completion + completions[-1]


@for_every(range(20))
def test_nothing_is_computed_twice_or_in_vain(seed):
    tokens, action = random_rows(seed)
    tree = shared_prefix_batch(tokens, action)
    prompts, completions = set(), 0
    for row in range(len(tokens)):
        columns = action[row].nonzero()[:, 0].tolist()
        if columns:
            prompts.add(tuple(tokens[row, : columns[0]].tolist()))
            completions += columns[-1] - columns[0]
    assert tree.size == sum(map(len, prompts)) + completions
    # padded queries look somewhere, or their softmax would not be a number
    for bundles in tree.layout.bundles:
        who, when = bundles.query_node[:, :, None], bundles.query_position[:, :, None]
        keys, positions = bundles.key_node[:, None], bundles.key_position[:, None]
        assert bool((((keys == PATH) | (keys == who)) & (positions <= when)).any(-1).all())


def rows_like(prompt, completions):
    """One prompt and random completions of these lengths."""
    tokens = torch.zeros(len(completions), prompt + max(completions), dtype=torch.long)
    action = torch.zeros_like(tokens, dtype=torch.bool)
    for row, length in enumerate(completions):
        tokens[row, prompt : prompt + length] = torch.randint(1, 1000, (length,))
        action[row, prompt : prompt + length] = True
    return tokens, action


@pytest.mark.parametrize(("prompt", "completions"), [(40, [300, 310]), (64, [512] * 8), (4, [2000] * 3)])
def test_long_completions_are_attended_to_as_whole_rows(prompt, completions):
    """Half of a square of the row is less than the rectangle of the completion."""
    tree = shared_prefix_batch(*rows_like(prompt, completions))
    assert tree.layout.bundles == () and len(tree.layout.rows) == 1
    assert tree.layout.rows[0].shape == (len(completions), prompt + max(completions) - 1)
    assert tree.size == prompt + sum(completions) - len(completions)
    assert len(set(tree.layout.output_index.tolist())) == tree.size


def test_short_completions_share_the_keys_of_a_long_prompt():
    tree = shared_prefix_batch(*rows_like(512, [30, 32]))
    assert tree.layout.rows == () and len(tree.layout.bundles) == 1


def test_rows_of_unlike_length_are_attended_to_apart():
    tree = shared_prefix_batch(*rows_like(20, [100, 110, 900, 910]))
    assert [table.shape for table in tree.layout.rows] == [(2, 129), (2, 929)]
    seen = visible(tree)
    assert len(seen) == tree.size and max(map(len, seen.values())) == 929


@pytest.mark.parametrize(("prompt", "completion", "count"), [(2048, 64, 16), (512, 32, 16), (1024, 256, 8)])
def test_attention_copies_and_wastes_no_more_than_a_few_times_the_tokens(prompt, completion, count):
    tokens = torch.cat([torch.zeros(count, prompt), torch.rand(count, completion) * 1000], 1).long()
    action = torch.zeros_like(tokens, dtype=torch.bool)
    action[:, prompt:] = True
    tree = shared_prefix_batch(tokens, action)
    (bundles,) = tree.layout.bundles
    assert bundles.key_index.numel() <= 3 * tree.size
    pairs = bundles.query_index.numel() * bundles.key_index.shape[1]
    assert pairs <= 2 * count * completion * (prompt + completion)
