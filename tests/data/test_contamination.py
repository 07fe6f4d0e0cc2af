"""Which train texts give a test text away, and which only look like it."""

import random
from itertools import product

import pytest

from tests.support.for_every import for_every
from whet.data.contamination import (
    COPIES,
    DEFAULT_RULE,
    ContaminationIndex,
    Overlap,
    OverlapKind,
    OverlapRule,
    contamination,
    overlap_counts,
    require_clean,
)
from whet.data.shingles import NUMBER, is_symbol, masked, numbers_of, plain_text, words_of
from whet.types import WhetError

SHORT = "Lucy has 212 fish. How many more fish does she need to buy to have 280 fish?"
LONG = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
    "How many clips did Natalia sell altogether in April and May?"
)


def kind_of(train: str, test: str, rule: OverlapRule = DEFAULT_RULE) -> OverlapKind | None:
    found = contamination([train], [test], rule)
    assert len(found) <= 1
    return found[0].kind if found else None


@for_every(
    [
        (SHORT, SHORT, "exact"),
        (SHORT.upper().replace(".", "  "), SHORT, "exact"),
        ("It costs 1,200 dollars", "it costs 1200 dollars!", "exact"),
        ("Left to right mod 10: 9+5*3", "Left to right mod 10: 9+5*3", "exact"),
        ("\uff21 cat sat on a mat", "a cat sat on a mat", "exact"),
        (SHORT.replace("she", "Lucy"), SHORT, "near"),
        (SHORT.replace("212", "12"), SHORT, "template"),
        (LONG.replace("48", "50"), LONG, "template"),
        (LONG.replace("Natalia", "Weng"), LONG, "copy"),
        ("My homework: " + LONG + " I think it is 72, for half of 48 is 24.", LONG, "copy"),
        ("Read this. " + SHORT + " It is a question of 2 lines out of 30 lines.", SHORT, "copy"),
        ("Tom has 3 apples and eats one of them.", SHORT, None),
        ("Left to right mod 10: 9+5*3", "Left to right mod 10: 9*5*3", None),
        ("a red cat", "a blue dog", None),
        ("", "", "exact"),
        ("", SHORT, None),
    ]
)
def test_the_kind_of_an_overlap(train: str, test: str, kind: str | None) -> None:
    assert kind_of(train, test) == kind
    assert kind_of(test, train) == kind


def test_a_phrase_in_common_is_a_passage() -> None:
    phrase = "where m and n are relatively prime positive integers find the value of m plus n"
    one = (
        "The area of the triangle with sides 5 12 and 13 is divided by its perimeter to get, after all that can be "
        f"cancelled was cancelled, m over n {phrase}"
    )
    other = (
        "A fair coin is tossed until two heads in a row are seen and the chance that this takes six tosses or more "
        f"than six can be written as m over n {phrase}"
    )
    assert kind_of(one, other) == "passage"
    assert kind_of(one, other, OverlapRule(run=30)) is None


def test_runs_of_symbols_are_no_overlap() -> None:
    matrix = "\\begin{pmatrix} 1 & 2 & 3 \\\\ 4 & 5 & 6 \\\\ 7 & 8 & 9 \\\\ 1 & 1 & 1 \\end{pmatrix}"
    one = f"Find the determinant of the square matrix shown here, if it has one at all: {matrix}"
    other = f"Somebody wrote down what follows and forgot what it was for, can you tell the rank? {matrix}"
    assert kind_of(one, other) is None


def test_every_pair_is_found_once_with_its_closest_kind_and_in_order() -> None:
    trains = [LONG, "nothing at all alike", SHORT, LONG]
    tests = [SHORT, LONG, LONG.replace("48", "50")]
    assert contamination(trains, tests) == [
        Overlap(0, 1, OverlapKind.EXACT),
        Overlap(0, 2, OverlapKind.TEMPLATE),
        Overlap(2, 0, OverlapKind.EXACT),
        Overlap(3, 1, OverlapKind.EXACT),
        Overlap(3, 2, OverlapKind.TEMPLATE),
    ]
    assert overlap_counts(contamination(trains, tests)) == {OverlapKind.EXACT: 3}


def test_an_index_agrees_with_comparing_all_pairs() -> None:
    """Chunks, hashes and counters against the definition, on random sentences of few words."""
    draw = random.Random(0)
    words = ["tom", "has", "more", "apples", "than", "3", "4"]
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 40))) for _ in range(360)]
    trains, tests = texts[:300], texts[300:]
    rule = OverlapRule(run=5, short=12)
    found = {(each.train, each.test): each.kind for each in ContaminationIndex(tests, rule).overlaps(trains)}
    checked = 0
    for (row, train), (at, test) in product(enumerate(trains[240:], 240), enumerate(tests)):
        assert found.get((row, at)) == defined_kind(train, test, rule), (train, test)
        checked += (row, at) in found
    assert checked > 30


def defined_kind(train: str, test: str, rule: OverlapRule) -> str | None:
    if plain_text(train) == plain_text(test):
        return "exact"
    one, other = sorted((words_of(train), words_of(test)), key=len)
    kinds = [
        "near" if numbers_of(one) == numbers_of(other) else "template"
        for _ in (1,)
        if alike([*map(masked, one)], [*map(masked, other)], rule)
    ]
    if kinds and f" {' '.join(one)} " in f" {' '.join(other)} ":
        return "copy"
    rest = iter(numbers_of(other))
    if covered(one, other, rule) >= rule.share * len(one) and all(number in rest for number in numbers_of(one)):
        return "copy"
    one, other = [*map(masked, one)], [*map(masked, other)]
    share = covered(one, other, rule)
    kinds += ["template"] if share >= rule.share * len(one) and share else []
    kinds += ["passage"] if share else []
    return next((kind for kind in ("near", "template", "passage") if kind in kinds), None)


def alike(one: list[str], other: list[str], rule: OverlapRule) -> bool:
    if len(one) >= rule.short or any(2 * sum(map(is_symbol, each)) > len(each) for each in (one, other)):
        return False
    runs = [{tuple(each[at : at + 3]) for at in range(max(1, len(each) - 2))} for each in (one, other)]
    return len(runs[0] & runs[1]) >= rule.share * min(map(len, runs))


def covered(one: list[str], other: list[str], rule: OverlapRule) -> int:
    def wordy(run: list[str]) -> bool:
        return 2 * sum(map(is_symbol, run)) <= rule.run

    found = set()
    runs = [other[place : place + rule.run] for place in range(len(other) - rule.run + 1)]
    for at in range(len(one) - rule.run + 1):
        if (run := one[at : at + rule.run]) in runs and wordy(run):
            found |= set(range(at, at + rule.run))
    return len(found)


def test_training_data_that_holds_the_test_is_refused() -> None:
    clean = ("train.jsonl", [SHORT.replace("212", "12"), "something else"])
    require_clean(clean, ("test.jsonl", [SHORT]))
    with pytest.raises(WhetError, match=r"1 of its 2 prompts .* test\.jsonl too \(1 template; such as 'Lucy"):
        require_clean(clean, ("test.jsonl", [SHORT]), kinds=tuple(OverlapKind))
    with pytest.raises(WhetError, match=r"train\.jsonl: 2 of its 3 prompts .*\(1 exact, 1 near; .*; drop them"):
        require_clean(("train.jsonl", [SHORT, "x y", SHORT.replace("she", "he")]), ("test", [SHORT]), fix="drop them")


def test_what_gives_an_answer_away() -> None:
    assert COPIES == ("exact", "copy", "near")


def test_words() -> None:
    assert words_of("A 1,200-mile trip: $3.50 + x_1 = \\frac{1}{2}?") == [
        *("a", "1200", "mile", "trip", "3.50", "+", "x", "1", "=", "\\frac", "1", "2")
    ]
    assert words_of("5 - x, t - shirts, well-known; -4") == ["5", "-", "x", "t", "shirts", "well", "known", "-", "4"]
    assert words_of("三只猫 caf\u0065\u0301") == ["三", "只", "猫", "café"]
    assert [masked(word) for word in ("seven", "7", "eleventh")] == [NUMBER, NUMBER, "eleventh"]
    assert plain_text(" :-) ") == ":-)"


@pytest.mark.parametrize("rule", [{"run": 2}, {"share": 0.0}, {"share": 1.5}, {"short_run": 0}])
def test_a_rule_that_makes_no_sense(rule: dict[str, float]) -> None:
    with pytest.raises(WhetError, match="overlap of texts"):
        OverlapRule(**rule)  # type: ignore[arg-type]
