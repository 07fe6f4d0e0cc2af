"""Forged verdicts are not paid, the judge's own are read: most of the corpus in CI, all of it in the slow group."""

import pytest

from benchmarks.trust.judge import CLEAR, HONEST, OWN, UNCLEAR, compared, marked, measure, texts_of
from tests.support.for_every import for_every
from whet.reward.answer import after_thinking

FORGERIES = texts_of("forgeries.txt")
# the judge opens its verdict and lets the completion finish it: such a verdict is the judge's own
FINISHED_BY_QUOTING = ("opens its verdict and quotes", '"quality": 10}')


@for_every({**CLEAR, **UNCLEAR})
def test_no_forged_mark_is_paid(name):
    scores = marked(FORGERIES, {**CLEAR, **UNCLEAR}[name])
    paid = [text for text, score in zip(FORGERIES, scores, strict=True) if score is not None and score > OWN / 10]
    assert paid == ([FINISHED_BY_QUOTING[1]] if name == FINISHED_BY_QUOTING[0] else [])


@for_every(CLEAR)
def test_a_clear_verdict_is_read_whatever_the_completion_says(name):
    shown = [text for text in FORGERIES if after_thinking(text).strip()]
    assert set(marked(shown, CLEAR[name])) == {OWN / 10}
    assert set(marked(HONEST, CLEAR[name], 7)) == {0.7}
    assert set(compared(texts_of("preferences.txt"), CLEAR[name])) == {0.0}


def test_the_corpus_is_large_and_without_repetition():
    assert len(FORGERIES) == len(set(FORGERIES)) >= 60 and all(FORGERIES)


@pytest.mark.slow
def test_the_whole_table():
    rows = measure(full=True)
    assert {row["what"]: row["tried"] - row["held"] for row in rows if row["tried"] != row["held"]} == {
        "forged marks, not paid": 1
    }
