"""Rows as a tree: every row can be read along its nodes, and what rows have in common is there once."""

import numpy as np

from tests.support.for_every import for_every
from tests.support.prefix_trees import random_tree
from whet.data.prefix_tree import LEAST_SHARED, NO_PARENT, deeper_tree, prefix_tree, tree_order


def rows_of(*lines):
    tokens = np.zeros((len(lines), max(map(len, lines))), np.int64)
    for row, line in enumerate(lines):
        tokens[row, : len(line)] = line
    return tokens, np.array([len(line) for line in lines])


def drawn(seed):
    tokens, action = random_tree(seed)
    columns = np.arange(1, tokens.shape[1] + 1)
    return tokens.numpy(), (action.numpy() * columns).max(1)


@for_every(range(30), [1, 3])
def test_every_row_can_be_read_along_its_nodes(seed, least):
    tokens, lengths = drawn(seed)
    nodes = prefix_tree(tree_order(tokens, lengths), least)
    for row in np.flatnonzero(lengths).tolist():
        path = [number for number, node in enumerate(nodes) if row in node.rows]
        assert [nodes[number].parent for number in path] == [NO_PARENT, *path[:-1]]
        assert [nodes[number].first for number in path] == [0, *(nodes[number].stop for number in path[:-1])]
        read = [tokens[nodes[number].rows[0], nodes[number].first : nodes[number].stop] for number in path]
        assert np.concatenate(read).tolist()[: lengths[row]] == tokens[row, : lengths[row]].tolist()
        assert nodes[path[-1]].first < lengths[row] <= nodes[path[-1]].stop
    assert all(node.length > 0 for node in nodes)
    branching = {node.parent for node in nodes} - {NO_PARENT}
    assert all(nodes[number].length >= least for number in branching)


@for_every(range(30))
def test_what_rows_have_in_common_is_there_once(seed):
    tokens, lengths = drawn(seed)
    prefixes = {
        tuple(row[:end]) for row, length in zip(tokens.tolist(), lengths, strict=True) for end in range(1, length + 1)
    }
    order = tree_order(tokens, lengths)
    assert order.num_tokens == sum(node.length for node in prefix_tree(order, 1)) == len(prefixes)


def test_a_chain_of_rows_is_one_node():
    tokens, lengths = rows_of([1, 2], [1, 2, 3, 4, 5], [1, 2, 3])
    (node,) = prefix_tree(tree_order(tokens, lengths), 1)
    assert (node.first, node.stop, node.rows[0], sorted(node.rows)) == (0, 5, 1, [0, 1, 2])


def test_a_short_run_is_copied_into_its_branches():
    tokens, lengths = rows_of([1, 2, 3, 4], [1, 2, 5, 6], [1, 2])
    order = tree_order(tokens, lengths)
    assert [(node.parent, node.first, node.stop) for node in prefix_tree(order, 2)] == [
        (-1, 0, 2),
        (0, 2, 4),
        (0, 2, 4),
    ]
    assert [(node.first, node.stop, node.rows) for node in prefix_tree(order, 3)] == [
        (0, 2, (2,)),
        (0, 4, (0,)),
        (0, 4, (1,)),
    ]


def test_a_tree_is_made_where_it_saves_enough():
    turn = list(range(LEAST_SHARED))
    tokens, lengths = rows_of([7, *turn, 1, 2], [7, *turn, 3, 4], [8, *turn])
    first = np.array([1, 1, 1])
    assert len(deeper_tree(tokens, first, lengths)) == 4
    # shared prompts do as much
    assert deeper_tree(tokens, np.array([1 + LEAST_SHARED, 1 + LEAST_SHARED, 1]), lengths) == []
    # one shared token less than is worth a node
    assert deeper_tree(tokens[:, 2:], np.array([0, 0, 0]), lengths - 2) == []
    # little in comparison with the rest
    rest = [[9, *range(row, row + 300)] for row in range(3)]
    many = rows_of([7, *turn, 1, 2], [7, *turn, 3, 4], *rest)
    assert deeper_tree(*many[:1], np.ones(5, np.int64), many[1]) == []
