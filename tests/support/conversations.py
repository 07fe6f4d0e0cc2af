"""Conversations played on a session, for the tests of every backend."""

import torch

from whet.types import Request


def played(session, prompts, copies, turns, answers, late=False):
    """Conversations of several turns: {number: [(tokens in front of the turn, seed, sample)]}, first come first served.

    `answers(conversation, turn)` is what the environment says; None ends the conversation. It says it at once, or,
    where it is `late`, when there is nothing left to write: by then others may have needed the row.
    """
    firsts = [(tokens, 1000 * row + copy) for row, tokens in enumerate(prompts) for copy in range(copies)]
    asked, found, number = {}, {}, 0
    said = [(conversation, 0, *first, None) for conversation, first in enumerate(firsts)]
    while said or not session.is_idle:
        told, said = (said, []) if not late or session.is_idle else ([], said)
        for conversation, turn, tokens, seed, before in told:
            session.add(number, Request(tokens, seed, continues=before))
            asked[number] = (conversation, turn, tokens, seed)
            number += 1
        for done, sample in session.advance():
            conversation, turn, tokens, seed = asked.pop(done)
            assert sample.tokens[: len(tokens)].tolist() == list(tokens)
            assert sample.action.nonzero()[:, 0].tolist() == list(range(len(tokens), len(sample.tokens)))
            found.setdefault(conversation, []).append((tokens, seed, sample))
            answer = answers(conversation, turn) if turn + 1 < turns else None
            if answer is None:
                session.release(done)
                continue
            tokens, seed = (*sample.tokens.tolist(), *answer), seed + 100000
            said.append((conversation, turn + 1, tokens, seed, done))
    assert not asked
    return found


def prompts_of(*sizes, vocabulary=300):
    stream = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(12, vocabulary, (size,), generator=stream).tolist()) for size in sizes]


def short_answers(conversation, turn):
    if (conversation + turn) % 7 == 6:
        return None  # some end early
    return [(17 * conversation + 31 * turn + place) % 48 + 12 for place in range(1 + (5 * conversation + turn) % 23)]
