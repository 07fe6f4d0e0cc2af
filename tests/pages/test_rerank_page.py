"""The lines over n of a pool, what they cost, and how the page of an evaluation draws them."""

from dataclasses import asdict

import pytest

from whet.pages.chart_svg import cost_scale
from whet.pages.eval_report import EvalReport, ModelEval, eval_page
from whet.pages.rerank import Reranking, reranking_text
from whet.record.metrics.choice_curves import Pool, RerankerScores, choice_curves, search_result
from whet.record.metrics.eval_summary import Attempt, summarized

POOLS = [
    Pool((1.0, 0.0, 0.0, 1.0), ("4", "3", "3", "4"), (10, 4, 4, 12), (20, 14, 14, 22)),
    Pool((0.0, 1.0, 0.0, 0.0), ("7", "8", None, "7"), (6, 6, 6, 6), (16, 16, 16, 16)),
]
RIGHT = RerankerScores("right", ((0.9, 0.1, 0.2, 0.8), (0.1, 0.9, 0.3, 0.2)), models=2)
WRONG = RerankerScores("wrong", ((-3.0, 1.0, 2.0, -4.0), (2.0, -1.0, None, 1.0)), models=0, aggregate="min")


def found(**changes):
    values = {"measure": "accuracy", "lines": choice_curves(POOLS, [RIGHT, WRONG]), **changes}
    return Reranking("tiny <model>", "task:arithmetic", values.pop("measure"), 2, 4, 1.0, **values)


def test_lines_are_means_over_the_prompts_with_what_they_cost():
    lines = {line.name: line.values_by_n for line in found().lines}
    assert list(lines) == [
        *("majority vote", "right: best of n", "right: weighted vote"),
        *("wrong min: best of n", "wrong min: weighted vote", "best possible (pass@n)"),
    ]
    assert [point.value for point in lines["right: best of n"]] == pytest.approx([0.375, (5 / 6 + 1 / 2) / 2, 1.0])
    assert [point.value for point in lines["wrong min: best of n"]] == pytest.approx([0.375, (1 / 6 + 1 / 6) / 2, 0.0])
    assert lines["majority vote"][2].value == pytest.approx((0.5 + 0.0) / 2)
    assert lines["right: weighted vote"][2].value == pytest.approx(1.0)
    assert [point.written for point in lines["majority vote"]] == [6.75, 13.5, 27.0]
    assert [point.read for point in lines["right: best of n"]] == [33.5, 67.0, 134.0]
    assert lines["wrong min: best of n"][0].read == lines["majority vote"][0].read == 0


def test_votes_are_left_out_where_no_completion_answers():
    silent = [Pool((1.0, 0.0), (None, None), (3, 3), (9, 9))]
    lines = choice_curves(silent, [RerankerScores("a", ((0.1, 0.2),))])
    assert [line.way for line in lines] == ["best of n", "best possible (pass@n)"] and lines[0].values_by_n[
        1
    ].value == 0.0


def test_a_search_is_compared_with_what_its_tokens_pay_for():
    result = search_result(POOLS, RIGHT, [1.0, 0.0], (21.0, 100.0), (2, 3))
    assert result.best_of_n.n == 3 and result.search.value == 0.5
    assert result.best_of_n.written == pytest.approx(20.25)
    dear = search_result(POOLS, RIGHT, [1.0, 0.0], (500.0, 100.0), (2, 3))
    assert dear.best_of_n.n == 4
    text = reranking_text(found(searches=(result, dear)))
    assert "Search over steps by right, 2 x 3 (beams x branches): 50.0 (9-91), 21.0 tokens" in text
    assert text.count("than 4 would cost more") == 1


def test_the_page_has_a_figure_a_scorer_and_every_number():
    result = search_result(POOLS, RIGHT, [1.0, 0.0], (21.0, 100.0), (2, 3))
    attempts = [[Attempt(right, 4, True) for right in pool.outcomes] for pool in POOLS]
    summary = summarized(attempts, [])
    evaluated = ModelEval("tiny <model>", "task:arithmetic", {}, summary, 1.0, reranking=found(searches=(result,)))
    page = eval_page(EvalReport((evaluated,), {}))
    assert page.count("<figure>") == 4 and page.count('class="search') == 1 and "tiny &lt;model&gt;" in page
    assert "Search over steps by right, 2 x 3" in page
    assert "tiny <model>" not in page and "Content-Security-Policy" in page and "<script" not in page
    for line in found().lines:
        assert f"<th>{line.name}</th>" in page
    assert "wrong min: weighted vote" in page and "66.7 (2-99)" in page


def test_a_reward_is_shown_as_a_number_and_the_record_is_complete():
    assert "0.375 (0.0068 to 0.981)" in reranking_text(found(measure="reward"))
    record = asdict(found())
    assert record["lines"][1]["values_by_n"][2] == {
        **{"n": 4, "value": 1.0, "low": pytest.approx(0.342, abs=1e-3), "high": 1.0},  # two prompts say little
        **{"written": 27.0, "read": 134.0},
    }


def test_costs_have_ticks_at_round_numbers():
    assert cost_scale(14, 748, (0, 100)).ticks == (20, 50, 100, 200, 500)
    assert cost_scale(3, 30_000, (0, 100)).ticks == (10, 100, 1000, 10_000)
