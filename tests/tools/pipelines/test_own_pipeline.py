"""A pipeline of your own: registered by `whet.register`, run by its name, continued; refused where it cannot work."""

import json
import shutil

import pytest
from typer.testing import CliRunner

import whet
from tests.support.for_every import for_every
from whet import registry
from whet.cli import app
from whet.record.run_folder import discard
from whet.tools.pipelines.library import EvalEntry, RejectionEntry, RLEntry, SampleEntry, SFTEntry
from whet.tools.pipelines.registry import PIPELINES, find_pipeline
from whet.tools.pipelines.runner import resume_pipeline, run_pipeline
from whet.tools.pipelines.settings import Pipeline, PipelineSettings
from whet.tools.pipelines.stages import Stage, stage_result
from whet.types import WhetError


class CountingSettings(PipelineSettings):
    limit: int = 3


def counting_stages(settings):
    def work(folder, done):
        (folder / "numbers.txt").write_text("".join(f"{at}\n" for at in range(settings.limit)))
        return stage_result(f"counted to {settings.limit}", counts={"numbers": settings.limit})

    return [Stage("count", "count", work, {"limit": settings.limit})]


COUNTING = Pipeline("counting", "counts, and trains nothing", CountingSettings, counting_stages)


# docs/pipelines.md shows this one
class TwiceSettings(PipelineSettings):
    rows: int = 8


def twice_stages(settings):
    """Imitate, practise, keep what is right, and imitate that from the start."""
    return [
        EvalEntry(name="eval-base"),
        SFTEntry(name="cold", data="task:arithmetic", rows=settings.rows, train={"steps": 1}),
        RLEntry(name="practice", start="cold", steps=1, train={"batch": {"prompts_per_step": 2, "group_size": 2}}),
        SampleEntry(name="drawn", model="practice", count=settings.rows, completions=4),
        RejectionEntry(name="kept", completions="drawn", most_per_prompt=2),
        SFTEntry(name="again", data="kept", epochs=2, train={"batch": {"rows_per_step": 4}}),
        EvalEntry(name="eval-again", model="again"),
    ]


TWICE = Pipeline("twice", "imitate, practise, keep what is right, imitate that", TwiceSettings, twice_stages)


@pytest.fixture
def twice():
    yield whet.register("pipeline", TWICE)
    PIPELINES.pop("twice")
    for shelf in registry._REGISTRIES["pipeline"]:
        shelf.registered.pop("twice", None)


def test_one_made_of_library_stages_runs_and_redoes_only_what_changed(twice, tmp_path, capsys):
    small = {
        "data": {"difficulty": [1]},
        "model": {"threads": 1},
        "eval": {"prompts": 4},
        "sampling": {"max_new_tokens": 40},
        "folder": str(tmp_path / "run"),
    }
    run = run_pipeline("twice", small)
    assert run.status == "finished" and list(run.stages)[-1] == "eval-again"
    assert "What got worse" in run.page.read_text()
    capsys.readouterr()
    run_pipeline("twice", small, {"eval": {"prompts": 5}})
    printed = capsys.readouterr().out
    assert printed.count("done before") == 5 and printed.count("runs again") == 2


@pytest.fixture
def counting():
    yield whet.register("pipeline", COUNTING)
    PIPELINES.pop("counting")
    for shelf in registry._REGISTRIES["pipeline"]:
        shelf.registered.pop("counting", None)


def test_it_is_listed_run_and_resumed_by_its_name(counting, tmp_path, capsys):
    assert counting is COUNTING and find_pipeline("counting") is COUNTING
    assert registry.lookup("pipeline", "counting") is COUNTING and registry.added("pipeline") == {"counting": COUNTING}
    listed = CliRunner().invoke(app, ["pipeline"]).output
    assert "counting        counts, and trains nothing" in listed
    run = run_pipeline("counting", {"limit": 5, "folder": str(tmp_path / "run")})
    assert run.status == "finished" and run.stages["count"].result["counts"] == {"numbers": 5}
    assert (run.folder / "01-count" / "numbers.txt").read_text() == "0\n1\n2\n3\n4\n"
    capsys.readouterr()
    assert resume_pipeline(run.folder).stages["count"].result == run.stages["count"].result
    assert "counted to 5  (done before)" in capsys.readouterr().out


def test_a_stage_that_was_killed_at_its_first_write_leaves_nothing_to_move_away(counting, tmp_path, capsys):
    run = run_pipeline("counting", {"folder": str(tmp_path / "run")})
    stage = run.stages["count"].folder
    discard(stage)
    (stage / ".started.json").write_text('{"form')
    capsys.readouterr()
    assert resume_pipeline(run.folder).status == "finished"
    assert "other inputs" not in capsys.readouterr().out and not (run.folder / "replaced").exists()
    assert sorted(path.name for path in stage.iterdir()) == ["numbers.txt", "stage.json"]


def test_a_new_stage_is_timed_and_not_called_done_before(counting, tmp_path, capsys):
    run_pipeline("counting", {"folder": str(tmp_path / "run")})
    printed = capsys.readouterr().out
    assert "done before" not in printed and printed.count("[1/1] count: count") == 1
    saved = json.loads((tmp_path / "run" / "01-count" / "stage.json").read_text())
    assert 0 <= saved["seconds"] < 60


@for_every(
    [
        (print, None, "it is no Pipeline; give Pipeline"),
        (Pipeline("mine", "", dict, counting_stages), None, "derive them from that class"),
        (Pipeline("mine", "", COUNTING, counting_stages), None, "derive them from that class"),
        (Pipeline("spin", "", CountingSettings, counting_stages), None, "called 'spin' exists already; give yours"),
        (COUNTING, "other", "'counting' where it is defined and 'other' here"),
    ]
)
def test_what_is_no_pipeline_is_refused_in_one_line(thing, name, fix):
    before = dict(PIPELINES)
    with pytest.raises(WhetError) as error:
        whet.register("pipeline", thing, name=name)
    assert fix in str(error.value) and "\n" not in str(error.value) and before == PIPELINES


def test_a_folder_that_was_emptied_meanwhile_is_said(tmp_path, monkeypatch):
    def emptying_stages(settings):
        def work(folder, done):
            shutil.rmtree(folder.parent)
            folder.mkdir(parents=True)
            return stage_result("emptied")

        return [Stage("empty", "empty", work, {})]

    monkeypatch.setitem(PIPELINES, "emptying", Pipeline("emptying", "", CountingSettings, emptying_stages))
    with pytest.raises(WhetError, match=r"pipeline\.toml was deleted, moved or replaced .* start the pipeline again"):
        run_pipeline("emptying", {"folder": str(tmp_path / "run")})
