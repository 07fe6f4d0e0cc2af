"""Sentences on tokens, and the states they start from."""

import torch

from whet.data.packing import anchors, number_of, policy_turns, segments, sentence_ends, with_states, with_turns
from whet.types import Sample, StopReason, Turn

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


# an episode: a prompt of one token, turns of two, one and one actions, and what stands between them
ACTION = torch.tensor([[False, True, True, False, True, False, False, True, False]])


def played(states=(None, None, None)):
    spans = ((1, 3), (4, 5), (7, 8))
    mine = [Turn("assistant", "", start, stop, state=state) for (start, stop), state in zip(spans, states, strict=True)]
    turns = (Turn("prompt", "", 0, 1), mine[0], Turn("tool", "", 3, 4), mine[1], Turn("user", "", 5, 7), mine[2])
    action = ACTION[0, :8]
    return Sample(torch.arange(8), action, torch.zeros(8), (0, 0), StopReason.END, "", turns=turns)


def test_the_turns_of_an_episode_are_those_with_actions():
    turns = policy_turns(played())
    assert [(turn.first, turn.last) for turn in turns] == [(1, 2), (4, 4), (7, 7)]
    assert all(turn.turn.role == "assistant" for turn in turns)


def test_a_row_of_an_episode_is_counted_by_turns_and_another_by_sentences():
    # the sentences: two of them in the first turn
    sentences = torch.tensor([[-1, 0, 1, -1, 2, -1, -1, 3, -1], [-1, 0, 0, -1, 1, -1, -1, 2, -1]])
    single = Sample(torch.arange(9), ACTION[0], torch.zeros(9), (0, 0), StopReason.END, "")
    found = with_turns(sentences, [played(), single])
    assert found.tolist() == [[-1, 0, 0, -1, 1, -1, -1, 2, -1], sentences[1].tolist()]
    assert sentences[0, 2] == 1  # what was given is left alone


def test_a_state_that_is_named_stands_for_the_text_before_the_turn():
    anchor = torch.tensor([[0, 11, 11, 0, 12, 0, 0, 13, 0]])
    named = number_of("kitchen")
    found = with_states(anchor, [played(("kitchen", None, "kitchen"))])
    assert found.tolist() == [[0, named, named, 0, 12, 0, 0, named, 0]]
    assert with_states(anchor, [played()]).tolist() == anchor.tolist()
    other = with_states(anchor, [played(("kitchen", None, "hall"))])
    assert other[0, 7] != named and other[0, 7] == number_of("hall")
