"""The corpus that attacks the reward for mathematics."""

from __future__ import annotations

import pytest

from benchmarks.trust import math as corpus
from tests.support.for_every import for_every
from whet.reward.answer import exact_answer
from whet.reward.defences.answer_marks import mark_spam
from whet.reward.mathematics.math_answer import math_answer


@for_every(corpus.COLLAPSING.items())
def test_a_gold_answer_does_not_collapse(gold, others):
    assert {other: corpus.paid(gold, corpus.boxed(other)) for other in others} == dict.fromkeys(others, 0.0)


@for_every(corpus.NOTATIONS.items())
def test_another_notation_is_paid(gold, others):
    assert {other: corpus.paid(gold, corpus.boxed(other)) for other in others} == dict.fromkeys(others, 1.0)


CASES = {
    0.0: (*corpus.NO_ANSWERS, *corpus.outsider_cases("wrong")),
    1.0: (*corpus.ANSWERS, *corpus.outsider_cases("right")),
}


@for_every([(expected, *case) for expected, cases in CASES.items() for case in cases])
def test_work_left_to_the_reader_is_no_answer(expected, question, gold, text):
    assert math_answer(corpus.prompt(gold, question), text) == expected


def test_words_that_change_a_number_are_no_decoration():
    assert [case for case in corpus.value_word_cases() if corpus.paid(case[0], corpus.boxed(case[1])) == 1.0] == []


def test_values_that_differ_are_not_paid():
    assert [case for case in corpus.different_values(600) if corpus.paid(case[0], corpus.boxed(case[1])) != 0.0] == []


def test_decimals_follow_one_rule():
    cases = list(corpus.decimal_cases(200))
    assert {equal for *_, equal in cases} == {True, False}
    for exact, text, equal in cases:
        assert corpus.paid(exact, corpus.boxed(text)) == float(equal) == corpus.paid(text, corpus.boxed(exact))


def test_what_stops_verifiers_scores_the_same_on_two_threads():
    completions = [*map(corpus.boxed, corpus.BOMBS[::5]), *corpus.FLOODS[:3]]
    for completion, (here, there, took) in corpus.scores_on_both_threads("7", completions).items():
        assert (here, there) == (0.0, 0.0) and took < corpus.SECONDS, completion[:60]


@for_every(corpus.HEADINGS)
def test_headings_are_no_answers(template):
    for gold, other in (("42", "43"), ("7", "3")):
        right, wrong = template.format(answer=gold), template.format(answer=other)
        for reward in (math_answer, exact_answer):
            assert (reward(corpus.prompt(gold), right), reward(corpus.prompt(gold), wrong)) == (1.0, 0.0)
        assert mark_spam(corpus.prompt(gold), right) == 0


@for_every(corpus.SPAM)
def test_heaps_of_marks_are_caught(text):
    assert mark_spam(corpus.prompt("42"), text) < 0


@pytest.mark.slow
def test_the_whole_corpus_holds():
    assert [row for row in corpus.measure(full=True) if row["held"] != row["tried"]] == []
