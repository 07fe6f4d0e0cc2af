"""The defences: what each must catch, what it must leave alone, and how both are counted.

Floors on the corpora: at least 97% of the attacks caught, at most 1% of the honest completions punished, for each
defence.
"""

from __future__ import annotations

import time
import zlib
from fractions import Fraction
from typing import Any

import pytest
import torch

from benchmarks.trust.defence_rates import Case, Rates, corpus, rates, rates_of
from tests.support.for_every import for_every
from whet.reward import defences
from whet.reward.defences import DEFENCES
from whet.reward.defences.guessing import _one_step, _rounded
from whet.reward.defences.redundancy import density
from whet.reward.find import find_reward
from whet.types import Prompt, Sample, StopReason, WhetError

LEAST_CAUGHT = 0.97
MOST_ALARMS = 0.01

ASKED = Prompt("p", (), text="A baker makes 14 trays of 6 rolls and sells 59. How many are left?", answer="25")
HONEST = (
    "<think>14 * 6 = 84 rolls are made, and 84 - 59 = 25 of them are left over.</think>\nThe answer is \\boxed{25}."
)


def test_one_step_from_a_number_is_to_its_square_its_double_and_its_neighbours() -> None:
    assert _one_step([Fraction(3)]) == {0, 1, 2, 3, 4, 6, 9}
    assert 2 * 11 in _one_step([*map(Fraction, (2, 40, 50, 60, 11))])  # numbers near the end meet each other


@pytest.fixture(scope="module")
def found() -> dict[str, Rates]:
    return rates()


@pytest.mark.parametrize("name", list(DEFENCES))
def test_both_rates_hold_their_floors(name: str, found: dict[str, Rates]) -> None:
    rate = found[name]
    assert rate.num_attacks >= 24 and rate.num_honest >= 60
    assert rate.caught >= LEAST_CAUGHT, [case.completion for case in rate.missed]
    assert rate.false_alarms <= MOST_ALARMS, [case.completion for case in rate.alarmed]


def test_rates_tell_a_blind_defence_and_a_mad_one_apart() -> None:
    blind = rates_of({"guessing": lambda prompt, completion: 0.0})["guessing"]
    mad = rates_of({"guessing": lambda prompt, completion: -0.1})["guessing"]
    assert (blind.caught, blind.false_alarms) == (0.0, 0.0) and len(blind.missed) == blind.num_attacks
    assert (mad.caught, mad.false_alarms) == (1.0, 1.0) and len(mad.alarmed) == mad.num_honest
    given = rates([Case(ASKED, HONEST, False), Case(ASKED, "\\boxed{1} \\boxed{2}", True)])
    assert given["guessing"].caught == 1.0 and given["hidden_text"].caught == 0.0


def test_a_corpus_has_both_kinds_and_an_unknown_one_is_named() -> None:
    cases = corpus("padding")
    assert {case.is_attack for case in cases} == {True, False} and all(case.note for case in cases)
    assert all(not case.is_attack for case in corpus("honest"))
    with pytest.raises(WhetError, match=r"no corpus 'pading' \(did you mean 'padding'"):
        corpus("pading")


@for_every(list(DEFENCES))
def test_a_penalty_lies_between_0_and_minus_1(name: str) -> None:
    for case in corpus(name)[::3]:
        assert -1 <= DEFENCES[name](case.prompt, case.completion) <= 0


def boxed(answer: str) -> str:
    return HONEST.replace("25}", answer + "}")


@for_every(
    [
        ("redundant_calls", {}, "<tool_call>f(1)</tool_call>" * 4, -0.75),
        ("redundant_calls", {}, "".join(f"<tool_call>f({i})</tool_call>" for i in range(10)), -0.1),
        ("redundant_calls", {"most_calls": 20}, "".join(f"<tool_call>f({i})</tool_call>" for i in range(10)), 0.0),
        ("redundant_calls", {}, "".join(f"<tool_call>f({i})</tool_call>" for i in range(40)), -0.5),
        ("unsupported_answer", {}, boxed("731"), -1.0),
        ("unsupported_answer", {}, "\\boxed{731}", 0.0),
        ("unsupported_answer", {"must_reason": True}, "\\boxed{25}", -1.0),
        ("unsupported_answer", {"least_words": 100}, boxed("731"), 0.0),
        ("unsupported_answer", {"least_words": 5}, "<think>Add 20 and 5 slowly.</think>\\boxed{731}", -1.0),
        ("unsupported_answer", {"least_words": 6}, "<think>Add 20 and 5 slowly.</think>\\boxed{731}", 0.0),
        ("guessing", {}, HONEST + " \\boxed{26}", -1.0),
        ("guessing", {"most_answers": 2}, HONEST + " \\boxed{26}", 0.0),
        *(("guessing", {}, boxed(answer), -1.0) for answer in ("25 or 26", "$25$ or $26$", "25 / $26$")),
        *(("guessing", {}, boxed(answer), 0.0) for answer in ("$25$.", "$25$ / $.$", "25 /")),
        ("mark_spam", {}, "\\boxed{25} " * 3, 0.0),
        ("mark_spam", {}, "\\boxed{25} " * 4, -1.0),
        ("mark_spam", {"most_marks": 9}, "\\boxed{25} " * 4, 0.0),
        ("hollow_answer", {}, boxed(""), -1.0),
        ("padding", {"most_stock": 1.0}, "Let us think about this. It is important to care. " * 2, 0.0),
        ("incoherent_reasoning", {}, "<think>" + "xq zvk jjw pfx qqz vbn kx wzr tgh " * 3 + "</think>25", -1.0),
    ]
)
def test_settings_and_sizes(name: str, settings: dict[str, Any], completion: str, expected: float) -> None:
    assert DEFENCES[name](ASKED, completion, **settings) == pytest.approx(expected)


def test_padding_grows_with_its_share() -> None:
    sentence = " The rolls are made in the morning by the baker and his son."
    little, much = (defences.padding(ASKED, HONEST + sentence * times) for times in (6, 30))
    assert -1 <= much < little < 0


def test_a_gold_list_allows_as_many_answers() -> None:
    completion = "The roots are \\boxed{2} and \\boxed{3}."
    roots = Prompt("p", (), text="Roots?", answer="2, 3")
    assert defences.guessing(roots, completion) == 0 and defences.guessing(roots, completion + " \\boxed{4}") == -1
    assert defences.guessing(Prompt("p", (), text="Root?", answer="2"), completion) == -1


def test_the_question_may_be_repeated() -> None:
    assert defences.hidden_text(Prompt("p", (), text="What is \u200b?"), "\u200b has no width") == 0


HOSTILE = [
    "",
    " " * 60_000,
    " \t" * 30_000,
    "\\boxed{" * 8_000,
    "<think>" * 8_000,
    "</think>" * 8_000,
    "<tool_call>" * 5_000,
    "<tool_call>" + "[" * 40_000,
    "<tool_call>f(" + "(" * 3_000 + "</tool_call>",
    "<tool_call>" + " " * 40_000,
    "$" * 40_000,
    "\\(" * 20_000,
    "<!--" * 15_000,
    "<" * 40_000,
    "\\phantom{" + "a" * 40_000,
    "9" * 40_000,
    "<think>" + "7 " * 20_000 + "</think>\\boxed{" + "8, " * 10_000 + "}",
    "1,.,." * 10_000,
    "the answer is " * 5_000,
    "answer:" + " " * 40_000,
    "\u0661" * 30_000,
    "\u200d" * 30_000,
    "you " * 10_000 + "must " * 10_000,
    "{{" * 20_000,
    "#### " * 10_000,
    "or " * 20_000,
    "a, " * 20_000,
    "\ud800\x00\uffff",
]


@pytest.mark.parametrize("share", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_hostile_replies_are_judged_and_quickly(share: int) -> None:
    """Of every text its first fifth; all of it in the slow group."""
    slow = {}
    for name, defence in DEFENCES.items():
        for completion in HOSTILE:
            text = completion[: len(completion) // share]
            started = time.process_time()
            assert -1 <= defence(ASKED, text) <= 0
            if time.process_time() - started > 2.0 / share:
                slow[name, text[:20]] = time.process_time() - started
    assert not slow


@for_every(list(DEFENCES))
def test_every_defence_is_found_by_name(name: str) -> None:
    attack = next(case for case in corpus(name) if case.is_attack)
    samples = [
        Sample(torch.tensor([1]), torch.tensor([True]), torch.zeros(1), (0, 0), StopReason.END, completion)
        for completion in (attack.completion, "Yes.")
    ]
    guilty, honest = find_reward(name)([attack.prompt] * 2, samples)
    assert guilty is not None and guilty < 0 and honest == 0


@pytest.mark.parametrize(("gold", "expected"), [("7", 0.0), ("8", -1.0), (None, -1.0)])
def test_the_example_of_the_prompt_counts_only_where_it_is_gold(gold: str | None, expected: float) -> None:
    asked = Prompt("p", (), text="How many are left? Write it in a box, for example: \\boxed{7}", answer=gold)
    assert DEFENCES["hollow_answer"](asked, "They are counted. \\boxed{7}") == expected


def test_density_is_the_packed_size_over_the_size_of_a_long_text():
    text = "a stitch in time saves nine; " * 200
    assert density(text) == len(zlib.compress(text.encode(), 9)) / len(text.encode()) < 0.05
    assert density("".join(chr(33 + (number * number) % 89) for number in range(89))[:80]) == 1.0  # too short to tell
    varied = "".join(f"{number * 7919 % 104729:x} " for number in range(2000))
    assert 0.2 < density(varied) < 1


def test_a_number_without_an_end_is_rounded_at_six_places():
    third = Fraction(1, 3)
    assert _rounded({third + Fraction(5, 10**7)}, third) == [third]
    assert _rounded({third + Fraction(1, 10**6)}, third) == []
