"""Pipelines and evaluations on the board: drawn from what they left, whole, half-written or of another version."""

import json
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from tests.support.made_runs import make_comparison
from whet.pages.board.board_app import Board
from whet.pages.board.board_server import BoardServer
from whet.pages.board.files import folder_id
from whet.pages.chart_svg import WIDE, chart_svg
from whet.pages.pipeline_page import (
    MeasuredPolicy,
    PipelineSummary,
    StageSummary,
    pipeline_html,
    pipeline_values,
    summary_from,
    summary_record,
    write_pipeline_page,
)

HOSTILE = "<script>alert(1)</script>"


@contextmanager
def board_over(folder):
    server = BoardServer(Board(folder))
    server.start()
    try:
        yield lambda path: urllib.request.urlopen(server.address + path, timeout=20).read().decode()
    finally:
        server.stop()


def summary(status="finished"):
    rows = {"p1": {"id": "p1", "prompt": "1+1", "answer": "2", "right": True, "completion": HOSTILE}}
    stages = (
        StageSummary("eval-base", "measure", "10%", 2.0, {"accuracy": 0.1}, measures=("policy", 0), num_prompts=50),
        StageSummary("sft", f"train {HOSTILE}", "16 updates", 3.0, counts={"rows": 7}, report="02-sft/run/report.html"),
        StageSummary("eval", "measure", "90%", 2.0, {"accuracy": 0.9}, measures=("policy", 1), num_prompts=50),
        StageSummary("later", "not yet"),
    )
    policies = (MeasuredPolicy("policy", rows, "eval-base"),)
    return PipelineSummary("mine", "about it", status, stages, "whet pipeline mine", "a = 1", policies)


def made_pipeline(folder, status="finished"):
    (folder / "02-sft" / "run").mkdir(parents=True)
    (folder / "pipeline.toml").write_text("pipeline = 'mine'\n")
    (folder / "02-sft" / "run" / "config.toml").write_text("method = 'sft'\n")
    write_pipeline_page(folder, summary(status))
    return f"/pipeline/{folder_id('pipeline', folder.name)}"


def test_a_summary_comes_back_from_json_as_it_was():
    record = json.loads(json.dumps(summary_record(summary()), allow_nan=False))
    assert summary_from(record) == summary() and pipeline_html(summary_from(record)) == pipeline_html(summary())
    assert summary_from({**record, "newer": 1}) == summary()


def test_the_board_draws_a_pipeline_like_its_own_page_with_links_to_its_runs(tmp_path):
    address = made_pipeline(tmp_path / "p")
    with board_over(tmp_path) as get:
        page = get(address)
    run = folder_id("run", "p/02-sft/run")
    assert f'<a href="/run/{run}">2. sft</a>' in page and "02-sft/run/report.html" not in page
    assert 'class="spec"' in page and HOSTILE not in page and "&lt;script&gt;alert(1)" in page
    assert '<tr class="todo"><th>4. later' in page and "finished" in page


def test_axes_carry_the_names_of_stages_and_rounds():
    def staged(*shares):
        return tuple(
            StageSummary(
                f"eval-{at}",
                "measure",
                "",
                1.0,
                label=label,
                metrics={"accuracy": share},
                measures=("policy", at),
                sets={"all": {"accuracy": (share, 0.0, 1.0)}},
            )
            for at, (label, share) in enumerate(shares)
        )

    by_round = pipeline_values(summary())["figure"]
    assert by_round.spec["x"]["names"] == ["before", "round 1"] and ">round 1</text>" in chart_svg(by_round.spec, "a")
    stages = staged(("base", 0.1), ("<b>sft", 0.5), ("a very long name of a stage", 0.9))
    by_stage = pipeline_values(PipelineSummary("mine", "", "finished", stages, "", "", ()))["figure"]
    assert by_stage.spec["series"][0]["low"] == [0.0] * 3 and "low" not in by_round.spec["series"][0]
    drawn = chart_svg(by_stage.spec, "a", WIDE)
    assert by_stage.spec["x"]["names"][0] == "base" and by_stage.note == ""
    assert ">base</text>" in drawn and ">&lt;b&gt;sft</text>" in drawn and ">a very long nam…</text>" in drawn


def test_a_pipeline_that_nobody_runs_any_more_is_interrupted(tmp_path):
    address = made_pipeline(tmp_path / "p", status="running")
    with board_over(tmp_path) as get:
        page = get(address)
    assert '<span class="status interrupted">' in page


@pytest.mark.parametrize("content", ["{", "[]", '{"stages": 3}', '{"name": "a", "stages": [{"name": 1}]}'])
def test_a_damaged_pipeline_is_told_in_one_line(tmp_path, content):
    address = made_pipeline(tmp_path / "p")
    (tmp_path / "p" / "pipeline.json").write_text(content)
    with board_over(tmp_path) as get, pytest.raises(urllib.error.HTTPError) as error:
        get(address)
    page = error.value.read().decode()
    assert error.value.code == 422 and "p/pipeline.json cannot be read" in page and "Traceback" not in page


def test_a_pipeline_without_a_page_yet_shows_its_runs(tmp_path):
    address = made_pipeline(tmp_path / "p")
    (tmp_path / "p" / "pipeline.json").unlink()
    with board_over(tmp_path) as get:
        page = get(address)
    assert "no stage yet" in page and "p/02-sft/run</a>" in page


def test_a_comparison_is_its_own_page_with_links_to_its_runs(tmp_path):
    make_comparison(tmp_path / "c")
    address = f"/comparison/{folder_id('comparison', 'c')}"
    with board_over(tmp_path) as get:
        page = get(address)
        (tmp_path / "c" / "compare.json").write_text('{"rows": [{}]}')
        damaged = get(address)
    assert f'<a href="/run/{folder_id("run", "c/grpo-seed1")}">1</a>' in page and "90.0% ± 10.0%" in page
    assert "grpo has the highest held-out accuracy" in page and 'class="spec"' in page and "Held equal" in page
    assert "cannot be read" in damaged and '<span class="status damaged">' in damaged and "c/grpo-seed1</a>" in damaged


def eval_record(model, value):
    value = {"value": value, "low": value - 0.1, "high": value + 0.1}
    return {
        "model": model,
        "task": "arithmetic",
        "temperature": 0.0,
        "summary": {"measure": "accuracy", "value": value, "prompts": 40, "samples": 1},
    }


def test_evaluations_are_listed_with_their_intervals_and_runs_with_theirs(tmp_path):
    (tmp_path / "ev").mkdir()
    evals = [eval_record("first", 0.5), eval_record(HOSTILE, 0.75)]
    (tmp_path / "ev" / "eval.json").write_text(json.dumps({"evals": evals}))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("method = 'm'\n")
    ends = {"before": {"accuracy": 0.25}, "after": {"accuracy": 0.875}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(ends))
    with board_over(tmp_path) as get:
        page = get("/evals")
    assert "50.0% (40.0-60.0)" in page and "75.0% (65.0-85.0)" in page
    assert "Accuracy on arithmetic" in page  # two are drawn side by side
    assert HOSTILE not in page and ">25.0%<" in page and ">87.5%<" in page


@pytest.mark.parametrize(
    "content", ["", "[]", '{"evals": [{}]}', '{"evals": [{"model": "a", "task": "b", "summary": 3}]}']
)
def test_damaged_evaluations_are_named_and_the_others_shown(tmp_path, content):
    for name, text in (("good", json.dumps({"evals": [eval_record("first", 0.5)]})), ("bad", content)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "eval.json").write_text(text)
    with board_over(tmp_path) as get:
        page = get("/evals")
    assert "bad/eval.json" in page and "50.0% (40.0-60.0)" in page


def test_a_pipeline_that_goes_on_is_news(tmp_path):
    made_pipeline(tmp_path / "p", status="running")
    board = Board(tmp_path)
    board.watcher.notice()
    before = board.watcher.number
    board.watcher.notice()
    assert board.watcher.number == before
    write_pipeline_page(tmp_path / "p", summary("finished"))
    board.watcher.notice()
    assert [each.values["id"] for each in board.watcher.since(before)] == [folder_id("pipeline", "p")]
