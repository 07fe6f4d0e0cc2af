"""Sentences on tokens, and the states they start from."""

import torch

from whet.data.segments import anchors, segments, sentence_ends

PIECES = ["", "a", "b.", "c;", "d\n", "e", "\u3002", "f!", " .", "3"]


class Pieces:
    def __len__(self):
        return len(PIECES)

    def batch_decode(self, rows, skip_special_tokens):
        return ["".join(PIECES[token] for token in row) for row in rows]


def test_tokens_that_end_a_sentence():
    ends = sentence_ends(Pieces(), 12)
    assert ends.tolist() == [False, False, True, True, True, False, True, True, True, False, False, False]


def test_a_sentence_ends_with_its_mark_and_at_what_is_not_an_action():
    ends = sentence_ends(Pieces(), 10)
    tokens = torch.tensor([[1, 1, 3, 5, 5, 4, 1, 9, 1, 0]])
    action = torch.tensor([[False, True, True, True, True, True, True, False, True, False]])
    assert segments(tokens, action, ends).tolist() == [[-1, 0, 0, 1, 1, 1, 2, -1, 3, -1]]


def test_a_completion_without_a_mark_is_one_sentence_and_an_empty_one_has_none():
    ends = sentence_ends(Pieces(), 10)
    action = torch.tensor([[False, True, True, True], [False] * 4])
    assert segments(torch.ones(2, 4, dtype=torch.long), action, ends).tolist() == [[-1, 0, 0, 0], [-1] * 4]


def test_sentences_share_an_anchor_when_all_before_them_is_the_same():
    ends = sentence_ends(Pieces(), 10)
    tokens = torch.tensor([[1, 5, 3, 5, 3, 1], [1, 5, 3, 5, 3, 5], [1, 1, 3, 5, 3, 1], [1, 5, 3, 5, 3, 1]])
    action = torch.tensor([[False, True, True, True, True, True]]).expand(4, -1)
    segment = segments(tokens, action, ends)
    assert segment[0].tolist() == [-1, 0, 0, 1, 1, 2]
    found = anchors(tokens, torch.tensor([0, 0, 0, 1]), segment)
    first, second, other, elsewhere = found
    assert torch.equal(first, second)  # they differ only inside the last sentence
    assert first[1] == other[1] and first[3] != other[3] and first[5] != other[5]
    assert not (set(first[1:].tolist()) & set(elsewhere[1:].tolist()))  # another group is another state
    assert len(set(first[1:].tolist())) == 3 and (found[:, 0] == 0).all()


def test_different_beginnings_have_different_anchors():
    """Every pair of tokens of a small vocabulary, before the same sentence."""
    pairs = torch.cartesian_prod(torch.arange(20), torch.arange(20))
    tokens = torch.cat([pairs, torch.full((400, 1), 5)], dim=1)
    segment = torch.tensor([[-1, -1, 0]]).expand(400, 3)
    found = anchors(tokens, torch.zeros(400, dtype=torch.long), segment)[:, 2]
    assert len(set(found.tolist())) == 400
