"""Methods side by side: the statistics against a t table, the words about noise, the table and the page."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as xml
from fractions import Fraction

import pytest

from tests.support.for_every import for_every
from tests.support.own_script import without_charts_script
from whet.pages.chart_specs import chart
from whet.pages.chart_svg import chart_svg
from whet.pages.compare import (
    Estimate,
    MethodComparison,
    MethodRun,
    compare_page,
    comparison_from,
    comparison_values,
    metric_name,
    notes,
    reward_bands,
    rows,
    standings,
    table_text,
    verdict,
)
from whet.record.metrics.intervals import corrected, incomplete_beta, two_sided_p, welch_p

# critical values of Student's t as tables print them: (degrees of freedom, two-sided p, t)
T_TABLE = [
    (1, 0.10, 6.314),
    (1, 0.05, 12.706),
    (2, 0.05, 4.303),
    (3, 0.05, 3.182),
    (4, 0.10, 2.132),
    (4, 0.05, 2.776),
    (4, 0.01, 4.604),
    (10, 0.05, 2.228),
    (10, 0.001, 4.587),
    (30, 0.05, 2.042),
    (120, 0.05, 1.980),
]


def result(method: str, seed: int, after: float | None, rewards=(0.25, 0.5), tokens=1000) -> MethodRun:
    marks = {} if after is None else {"accuracy": after, "reward": after}
    before = {} if after is None else {"accuracy": 0.125, "reward": 0.125}
    points = tuple((float(step), value) for step, value in enumerate(rewards, 1))
    return MethodRun(method, seed, before, marks, points, tokens, 2.0, f"{method}-seed{seed}")


def comparison(finals: dict[str, list[float | None]], **changes) -> MethodComparison:
    seeds = tuple(range(max(map(len, finals.values()))))
    results = tuple(result(method, seed, each) for method, marks in finals.items() for seed, each in enumerate(marks))
    values = {"methods": tuple(finals), "seeds": seeds, "results": results, **changes}
    return MethodComparison(**values)


@for_every(T_TABLE)
def test_p_agrees_with_the_t_table(freedom, p, t):
    assert two_sided_p(t, freedom) == pytest.approx(p, rel=2e-3)
    assert two_sided_p(-t, freedom) == two_sided_p(t, freedom)


@for_every([0.0, 0.1, 1.0, 3.0, 50.0, 1e6])
def test_p_agrees_with_the_closed_forms_of_one_and_two_degrees(t):
    assert two_sided_p(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-9, abs=1e-15)
    assert two_sided_p(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-9, abs=1e-11)


def test_incomplete_beta_is_the_binomial_tail():
    """I_x(k, n - k + 1) = P(at least k of n succeed)."""
    x, n = Fraction(3, 10), 12
    for k in range(1, n + 1):
        tail = sum(math.comb(n, j) * x**j * (1 - x) ** (n - j) for j in range(k, n + 1))
        assert incomplete_beta(0.3, k, n - k + 1) == pytest.approx(float(tail), rel=1e-12)
    assert (incomplete_beta(0.0, 2, 3), incomplete_beta(1.0, 2, 3)) == (0.0, 1.0)


def test_welch_by_hand():
    """means 2 and 4, variances 1 and 4, n 3: t = -2 / sqrt(5/3), f = (5/3)^2 / ((1/9 + 16/9) / 2) = 50/17."""
    expected = two_sided_p(2 / math.sqrt(5 / 3), 50 / 17)
    assert welch_p([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(expected, rel=1e-12)
    assert 0.20 < expected < 0.25  # between the table's t of f = 3 for 0.20 (1.638) and for 0.25 (1.423)


def test_welch_with_spread_on_one_side_only_has_that_side_s_freedom():
    # error 1/3 from the second alone: t = 2 / sqrt(1/3), f = 2
    assert welch_p([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]) == pytest.approx(two_sided_p(2 * math.sqrt(3), 2), rel=1e-12)


@pytest.mark.parametrize(("first", "second"), [([1.0, 1.0], [1.0, 1.0]), ([0.7] * 3, [0.9] * 3), ([1.0], [0.0, 1.0])])
def test_without_spread_or_seeds_there_is_no_p(first, second):
    assert welch_p(first, second) is None


def test_holm_by_hand():
    assert corrected([0.04, 0.01, 0.03], 3) == pytest.approx([0.06, 0.03, 0.06])
    assert corrected([0.02], 1) == [0.02]
    assert corrected([0.02], 3) == pytest.approx([0.06])
    assert corrected([0.9, 0.8], 2) == [1.0, 1.0]


def test_the_last_quarter_of_the_steps():
    assert result("a", 0, 0.5, rewards=(0, 0, 0, 0, 0, 0, 0.5, 1.0)).last_quarter == 0.75
    assert result("a", 0, 0.5, rewards=(0, 0, 0, 0, 1.0)).last_quarter == 0.5  # two of five: rounded up
    assert result("a", 0, 0.5, rewards=(1.0, math.nan)).last_quarter == 1.0
    assert result("a", 0, 0.5, rewards=()).last_quarter is None


def test_a_row_is_the_mean_and_spread_of_its_seeds():
    (row, other) = rows(comparison({"a": [0.5, 0.7, 0.9], "b": [0.25]}))
    assert row.after.mean == pytest.approx(0.7) and row.after.spread == pytest.approx(0.2)
    assert row.after.text("accuracy") == "70.0% ± 20.0%" and row.before.spread == 0.0
    assert other.after.mean == 0.25 and other.after.spread is None and other.after.text("accuracy") == "25.0%"
    assert (row.reward.mean, row.tokens.mean, row.seconds.mean) == (0.5, 1000, 2.0)
    assert Estimate(()).mean is None and Estimate(()).text("accuracy") == "-"


def test_a_clear_difference_is_beyond_noise():
    found = standings(comparison({"a": [0.50, 0.52, 0.51], "b": [0.90, 0.91, 0.92]}))
    assert found["b"].words == "highest" and found["b"].p is None
    assert found["a"].words == "below b beyond noise (p < 0.001)"
    assert found["a"].p == pytest.approx(two_sided_p(0.40 / math.sqrt(2e-4 / 3), 4), rel=1e-6)


def test_a_difference_smaller_than_the_spread_is_noise():
    both = comparison({"a": [0.5, 0.7, 0.6], "b": [0.8, 0.5, 0.65]})
    assert re.fullmatch(r"within noise of b \(p = 0\.\d\d\)", standings(both)["a"].words)
    assert standings(both)["b"].words == "highest, within noise"
    assert "Within noise of it: a (p = 0." in verdict(both)


def test_several_tests_are_corrected():
    """What two methods alone would call a difference is noise among five."""
    pair = {"a": [0.50, 0.56, 0.53], "b": [0.60, 0.66, 0.63]}
    alone = standings(comparison(pair))["a"].p
    filler = {name: [0.59, 0.65, 0.62] for name in "cde"}
    crowd = standings(comparison({**pair, **filler}))["a"].p
    assert alone == pytest.approx(two_sided_p(0.1 / math.sqrt(2 * 0.0009 / 3), 4), rel=1e-6) and alone < 0.05
    assert crowd == pytest.approx(4 * alone) and "corrected for 4 tests" in " ".join(
        notes(comparison({**pair, **filler}))
    )


def test_no_spread_at_all_is_said_and_not_divided_by():
    equal = comparison({"a": [1.0, 1.0], "b": [1.0, 1.0]})
    assert standings(equal)["b"].words == "within noise of a (equal in every seed)"
    assert verdict(equal) == "No method is ahead: each has held-out accuracy 100.0%."
    assert any("too easy" in note for note in notes(equal))
    apart = comparison({"a": [0.5, 0.5], "b": [1.0, 1.0]})
    assert standings(apart)["a"].words == "below b in every seed (no spread to test against)"
    assert standings(apart)["a"].p is None and not any("too easy" in note for note in notes(apart))
    thirds = comparison({"a": [0.1 + 0.2, 0.3], "b": [0.3, 0.3]})
    assert standings(thirds)["b"].words.startswith("within noise of a")


def test_one_seed_says_nothing_about_noise():
    single = comparison({"a": [0.5], "b": [0.9]})
    assert standings(single)["a"].words == "below b, noise unknown"
    assert any(note.startswith("One seed: nothing can be said about noise") for note in notes(single))
    assert "p " not in standings(single)["a"].words and "nothing can be said about noise" in table_text(single)


def test_one_method_has_nothing_to_be_compared_with():
    alone = comparison({"a": [0.5, 0.6]})
    assert standings(alone)["a"].words == "nothing to compare with"
    assert "there is nothing to compare it with" in verdict(alone) and "55.0% ± 7.1%" in verdict(alone)


def test_a_comparison_that_is_not_finished_says_so():
    nothing = comparison({"a": [], "b": []}, seeds=(0, 1))
    assert verdict(nothing) == "No run has finished yet." and comparison_values(nothing)["status"] == "unfinished"
    half = comparison({"a": [0.5], "b": []}, seeds=(0, 1))
    assert standings(half)["b"].words == "no finished run"
    assert "Too few runs are finished: nothing can be said about noise yet." in notes(half)
    for each in (nothing, half):
        assert "<svg" in compare_page(each) or each is nothing
        json.dumps(comparison_values(each), allow_nan=False)


def test_without_held_out_prompts_the_reward_decides():
    results = tuple(
        result(method, seed, None, rewards=(0.1, top + seed / 100))
        for method, top in (("a", 0.2), ("b", 0.8))
        for seed in (0, 1)
    )
    both = MethodComparison(("a", "b"), (0, 1), results)
    assert metric_name(results) is None and standings(both)["b"].words == "highest"
    assert standings(both)["a"].words.startswith("below b beyond noise") and "mean reward, last quarter" in verdict(
        both
    )
    assert any(note.startswith("Nothing was held out") for note in notes(both))


def test_a_mark_that_one_run_lacks_is_not_compared():
    lacking = MethodRun("b", 0, {}, {"reward": 0.75}, (), 1, 1.0)
    assert metric_name([result("a", 0, 0.5), lacking]) == "reward"


def test_a_difference_in_cost_is_put_into_words():
    results = (result("a", 0, 0.5, tokens=1000), result("b", 0, 0.5, tokens=2500))
    assert any(
        "b generated 2.5 times the tokens of a" in note for note in notes(MethodComparison(("a", "b"), (0,), results))
    )
    assert not any("times the tokens" in note for note in notes(comparison({"a": [0.5], "b": [0.5]})))


def test_the_table_as_text():
    text = table_text(
        comparison(
            {"first": [0.5, 0.75], "second": [0.25, 0.25]},
            equal={"budget": "2 steps"},
            unequal={"optimizer.learning_rate": "first 1, second 2"},
            remarks=("first seed 2 failed.",),
        )
    )
    lines = text.splitlines()
    assert lines[0].split() == ["method", "runs", "before", "after", "reward", "tokens", "time"]
    assert re.split(r"\s{2,}", lines[1].strip()) == [
        "first", "2", "12.5% ± 0.0%", "62.5% ± 17.7%", "0.500 ± 0", "1,000", "2.0 s",
    ]  # fmt: skip
    assert len({len(line) for line in lines[:3]}) == 1 and max(map(len, lines)) <= 80
    assert "Held equal\n  budget     2 steps" in text and "Not equal, besides the method" in text
    assert "first seed 2 failed." in text


def test_the_values_are_json_and_complete():
    values = json.loads(
        json.dumps(comparison_values(comparison({"a": [0.5, 0.75], "b": [0.25, 0.3]})), allow_nan=False)
    )
    assert values["status"] == "finished" and values["metric"] == "accuracy" and values["seeds"] == [0, 1]
    assert values["rows"][0]["after"] == {"mean": 0.625, "spread": pytest.approx(0.1767767), "values": [0.5, 0.75]}
    assert [run["folder"] for run in values["runs"]] == ["a-seed0", "a-seed1", "b-seed0", "b-seed1"]
    assert values["runs"][0]["rewards"] == [0.25, 0.5] and 0 < values["rows"][1]["p"] < 1


def test_a_comparison_comes_back_from_its_file():
    both = comparison(
        {"a": [0.5, 0.75], "b": [0.25]}, equal={"steps": "2"}, remarks=("b seed 1 failed.",), planned={"b": 2}
    )
    values = json.loads(json.dumps(comparison_values(both), allow_nan=False))
    back = comparison_from(values)
    assert verdict(back) == verdict(both) and notes(back) == notes(both) and rows(back) == rows(both)
    assert back.status == both.status == "unfinished"


def test_a_course_is_the_mean_between_the_lowest_and_the_highest_seed():
    results = (result("a", 0, 0.5, rewards=(0.0, 0.4)), result("a", 1, 0.5, rewards=(0.2, 0.8, 0.9)))
    (line,) = reward_bands(MethodComparison(("a",), (0, 1), results))
    assert line["x"] == [1.0, 2.0]  # the third step is one run's alone
    assert line["y"] == pytest.approx([0.1, 0.6])
    assert (line["low"], line["high"]) == ([0.0, 0.4], [0.2, 0.8])


def test_the_chart_has_a_line_and_a_band_a_method():
    long = [0.1 + step / 100 for step in range(60)]
    results = tuple(
        result(f"m{n}", seed, 0.5, [value + 0.1 * seed for value in long]) for n in range(10) for seed in (0, 1)
    )
    many = MethodComparison(tuple(f"m{n}" for n in range(10)), (0, 1), results)
    text = chart_svg(chart(reward_bands(many), smooth=False), "reward", (340, 200))
    drawn = xml.fromstring(text)
    classes = [part.get("class") or "" for part in drawn.iter()]
    lines = [each for each in classes if each.startswith("line")]
    assert len(lines) == len(set(lines)) == 10  # colours that come round again are dashed
    assert sum(each.startswith("band") for each in classes) == 10
    assert "<title>step 1: m0 0.150, m1 0.150" in text


def test_the_page_has_every_method_and_is_inert():
    both = comparison(
        {"first": [0.5, 0.75], "<b>second": [0.25, 0.3]}, equal={"data": "a <file>"}, command="whet compare <x>"
    )
    page = compare_page(both)
    for text in ("first", "&lt;b&gt;second", "62.5% ± 17.7%", "a &lt;file&gt;", "whet compare &lt;x&gt;"):
        assert text in page
    inert = without_charts_script(page)
    assert "<b>second" not in inert and "<script" not in inert
    assert 'href="first-seed1/report.html"' in page and page.count("<table") == 1 and page.count("<figure") == 1
    assert "prefers-color-scheme: dark" in page and "p\u00a0=\u00a0" in page
