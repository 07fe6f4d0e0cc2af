"""What a pipeline says about itself: marks by round, an honest verdict, and the page."""

from tests.support.for_every import for_every
from tests.support.own_script import without_charts_script
from whet.pages.pipeline_page import (
    PipelineSummary,
    StageSummary,
    aligned,
    comparison_lines,
    pipeline_html,
    rounds_table,
    verdict,
)


def told(*marks, who="the policy", num_prompts=200, start=0):
    return [
        StageSummary(f"{who}{at}", "about", "said", 1.0, {"accuracy": mark, "reward": 0.0}, {}, (who, at), num_prompts)
        for at, mark in enumerate(marks, start)
    ]


def summary(*stages, status="finished"):
    return PipelineSummary("name", "about it", status, tuple(stages), "whet pipeline name", "recipe = 'name'")


def test_marks_stand_in_a_table_by_round():
    rows = rounds_table(summary(*told(0.1, 0.5, 0.9), *told(0.7, 0.8, who="another", start=1)))
    assert rows == [
        ["held-out accuracy", "before", "round 1", "round 2"],
        ["the policy", "10.0%", "50.0%", "90.0%"],
        ["another", "", "70.0%", "80.0%"],
    ]
    assert aligned(rows)[2] == "another                      70.0%    80.0%"
    assert aligned([]) == [] and rounds_table(summary(StageSummary("a", "b"))) == []


@for_every(
    [
        ((0.1, 0.9), "10.0% to 90.0% in 1 round, better by more than the noise of 200 prompts"),
        ((0.5, 0.55), "no further apart than the noise of 200 prompts"),
        ((0.9, 0.5, 0.1), "90.0% to 10.0% in 2 rounds, worse by more than the noise"),
        ((0.0, 0.0), "no further apart"),
        ((0.3,), "before the first round: 30.0%"),
    ]
)
def test_the_verdict_says_what_is_noise(marks, words):
    assert words in verdict(summary(*told(*marks)))


def test_the_verdict_names_a_round_that_was_better_than_the_last():
    assert "It was best after round 1: 95.0%; later rounds lost" in verdict(summary(*told(0.1, 0.95, 0.6)))
    assert "It was best before the first round: 90.0%" in verdict(summary(*told(0.9, 0.1)))
    assert "best" not in verdict(summary(*told(0.1, 0.95, 0.94)))


def test_the_verdict_compares_and_tells_why_it_ended():
    ending = StageSummary("pairs", "about", "said", 1.0, over="all the same")
    said = verdict(summary(*told(0.1, 0.4), *told(0.9, who="another", start=1), ending))
    assert "Another: 90.0%, better by more than the noise" in said and "ended early: all the same." in said
    assert "1 of 3 stages are still to do" in verdict(summary(*told(0.1, 0.4), StageSummary("next", "about")))
    assert verdict(summary(StageSummary("a", "b", "c", 1.0))).startswith("Nothing was measured: there are no held-out")
    stopped = StageSummary("eval", "about")  # Ctrl-C in the first stage
    assert verdict(summary(stopped)) == "Nothing has been measured yet. 1 of 1 stages are still to do."


def test_the_page_shows_curve_stages_links_and_counts():
    linked = StageSummary(
        "pairs<", "makes pairs", "said & done", 2.0, counts={"ties": 7}, report="02-x/run/report.html"
    )
    page = pipeline_html(summary(*told(0.1, 0.9), linked, StageSummary("later", "not yet")))
    assert 'href="02-x/run/report.html"' in page and "pairs&lt;" in page and "said &amp; done" in page
    assert "<svg viewBox" in page and "<td>7</td>" in page and 'class="todo"' in page and "whet pipeline name" in page
    assert "<script" not in without_charts_script(page) and "http:" not in page
    assert "<svg viewBox" not in pipeline_html(summary(StageSummary("a", "b")))


def test_a_comparison_is_printed_with_what_it_says_and_is_the_verdict():
    table = (("", "win rate", "KL"), ("one", "61.0%", "3.1"), ("another", "", "0.5"))
    stage = StageSummary("compare", "side by side", "best: one", 1.0, table=table, findings=("one: too long",))
    summary = PipelineSummary("mine", "", "finished", (stage,))
    assert comparison_lines(summary) == [
        "",
        "         win rate   KL",
        "one         61.0%  3.1",
        "another            0.5",
        "- one: too long",
    ]
    assert verdict(summary) == "Best: one."
    page = pipeline_html(summary)
    assert "Side by side" in page and "one: too long" in page and "61.0%" in page


def test_samples_of_a_comparison_are_on_the_page_as_text():
    sample = {
        "way": "one",
        "prompt": "a <b>",
        "completion": "c",
        "start": "s",
        "judge_gap": 1.234,
        "reward_model_gap": None,
    }
    stage = StageSummary("compare", "side by side", "", 1.0, samples=(sample,))
    page = pipeline_html(PipelineSummary("mine", "", "finished", (stage,)))
    assert "a &lt;b&gt;" in page and "+1.23" in page and "reward model" not in page
