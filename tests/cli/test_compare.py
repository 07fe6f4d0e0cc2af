"""A real comparison: every method with every seed once, continued where it was left, and never mixed."""

from __future__ import annotations

import contextlib
import io
import json
import shutil

import pytest

from whet import api
from whet.record.log import read_metrics, read_summary
from whet.tools.studies.comparison import ProgressLine, compare
from whet.training.run_loop import RunFailed
from whet.training.saved_config import read_config
from whet.types import StepReport, WhetError

METHODS = ("grpo", "reinforce")
TINY = {
    "steps": 2,
    "model": {"device": "cpu", "threads": 1},
    "data": {"count": 16},
    "batch": {"prompts_per_step": 4, "group_size": 4},
    "sampling": {"max_new_tokens": 16},
    "eval": {"prompts": 8},
}
NAMES = ["grpo-seed0", "grpo-seed1", "reinforce-seed0", "reinforce-seed1"]


def tiny(folder, methods=METHODS, seeds=2, **changes):
    """The comparison and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        found = compare(methods, seeds, folder=folder, **{"config": TINY, **changes})
    return found, output.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "first"
    return tiny(folder)


@pytest.fixture
def copied(made, tmp_path):
    """The finished comparison, to be spoilt."""
    return shutil.copytree(made[0].folder, tmp_path / "copy")


@pytest.fixture
def started(monkeypatch):
    """The folders that training was started or resumed in; the work is done all the same."""
    seen: list[tuple[str, str]] = []
    for name in ("train", "resume"):
        monkeypatch.setattr(api, name, _noted(name, getattr(api, name), seen))
    return seen


def _noted(name, real, seen):
    def call(first, **options):
        seen.append((name, str(first if name == "resume" else options["config"]["folder"]).rpartition("/")[2]))
        return real(first, **options)

    return call


def steps_of(folder):
    lines = read_metrics(folder)
    for line in lines:
        line.pop("seconds")
        line.pop("timeline", None)
        line.pop("machine", None)
    return lines


def test_every_method_runs_with_every_seed(made):
    compared, text = made
    folder = compared.folder
    assert compared.status == "finished" and sorted(path.name for path in folder.iterdir() if path.is_dir()) == NAMES
    for name in NAMES:
        summary = read_summary(folder / name)
        assert summary["status"] == "finished" and summary["seed"] == int(name[-1])
        assert summary["eval_size"] == 8
        assert len([line for line in read_metrics(folder / name) if "eval" not in line]) == 2
        assert (folder / name / "report.html").exists()
    assert [line.split("  ")[0] for line in text.splitlines()[:4]] == [
        "[1/4] grpo seed 0", "[2/4] reinforce seed 0", "[3/4] grpo seed 1", "[4/4] reinforce seed 1",
    ]  # fmt: skip
    assert "4 prompts x 4 completions of at most 16 tokens" in text and "8 prompts, the same for every run" in text
    assert "the ratio is always 1" in text  # one update per step: printed, since it makes methods alike


def test_the_numbers_are_those_of_the_runs(made):
    folder = made[0].folder
    values = json.loads((folder / "compare.json").read_text())
    row = values["rows"][1]
    summaries = [read_summary(folder / name) for name in NAMES[2:]]
    assert row["method"] == "reinforce" and values["metric"] == "accuracy" and values["unequal"] == {}
    assert row["after"]["values"] == [each["after"]["accuracy"] for each in summaries]
    assert row["tokens"]["values"] == [each["tokens"] for each in summaries] and min(row["tokens"]["values"]) > 64
    assert row["reward_last_quarter"]["values"] == [
        steps_of(folder / name)[-2]["reward"]["total"] for name in NAMES[2:]
    ]  # the last line is the evaluation
    page = (folder / "compare.html").read_text()
    assert all(f'href="{name}/report.html"' in page for name in NAMES) and page.count('class="line s') >= 4


def test_methods_meet_the_same_prompts(made):
    """A seed's first step is drawn by the same policy from the same prompts, whatever the method."""
    folder = made[0].folder
    first, second = (
        [json.loads(line) for line in (folder / name / "samples.jsonl").read_text().splitlines()]
        for name in ("grpo-seed1", "reinforce-seed1")
    )
    shown = [(line["prompt_id"], line["completion"]) for line in first if line["step"] == 1]
    assert shown and shown == [(line["prompt_id"], line["completion"]) for line in second if line["step"] == 1]


def test_again_runs_nothing(made, copied, started):
    compared, text = tiny(copied)
    assert started == [] and compared.status == "finished" and text.count("already finished") == 4
    assert compared.comparison.results == made[0].comparison.results
    _, text = tiny(copied, methods="grpo")
    assert started == [] and "the ratio is always 1" not in text  # one method has no other to be alike


def test_a_deleted_run_is_made_again(made, copied, started):
    shutil.rmtree(copied / "reinforce-seed1")
    tiny(copied)
    assert started == [("train", "reinforce-seed1")]
    assert steps_of(copied / "reinforce-seed1") == steps_of(made[0].folder / "reinforce-seed1")


def test_a_method_can_be_added(copied, started):
    compared, _ = tiny(copied, methods="reinforce, rloo", seeds=1)
    assert started == [("train", "rloo-seed0")] and compared.comparison.methods == ("reinforce", "rloo")


def test_an_interrupted_run_is_continued(made, tmp_path, started):
    real = ProgressLine.stepped

    def interrupted(self, report, samples):
        real(self, report, samples)
        if self.name == "reinforce seed 0" and report.step == 2:
            raise KeyboardInterrupt

    folder = tmp_path / "cut"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressLine, "stepped", interrupted)
        compared, text = tiny(folder, seeds=1, report={"save_every": 1})
    assert compared.status == "interrupted" and "1 of 2 runs are finished" in text
    assert f"; to continue, repeat the command with --folder {folder}" in text
    assert json.loads((folder / "compare.json").read_text())["status"] == "unfinished"
    compared, _ = tiny(folder, seeds=1, report={"save_every": 1})
    assert compared.status == "finished"
    for name in ("grpo-seed0", "reinforce-seed0"):
        assert steps_of(folder / name) == steps_of(made[0].folder / name)
    assert started == [("train", "grpo-seed0"), ("train", "reinforce-seed0"), ("resume", "reinforce-seed0")]


def test_a_run_that_fails_is_left_out_and_named(copied, monkeypatch):
    shutil.rmtree(copied / "grpo-seed0")

    def failing(*_, **__):
        raise RunFailed("step 1: the loss is not finite")

    monkeypatch.setattr(api, "train", failing)
    compared, text = tiny(copied)
    assert compared.status == "unfinished" and len(compared.comparison.results) == 3
    assert "grpo seed 0 failed and is left out (step 1: the loss is not finite)" in " ".join(text.split())


def test_the_time_left_is_that_of_the_steps_so_far(monkeypatch):
    import whet.tools.pipelines.stages as progress

    class Screen(io.StringIO):
        def isatty(self):
            return True

    now = iter((0.0, 10.0, 30.0, 50.0))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    screen = Screen()
    line = ProgressLine("run", screen)
    line.started({"total_steps": 6})
    line.stepped(StepReport(1, 1, {}, {}, {}), [])
    line.stepped(StepReport(2, 1, {}, {}, {}), [])
    assert "step 1/6" in screen.getvalue() and "1 min 40 s left" in screen.getvalue()  # 5 steps of 20 s
    assert screen.getvalue().endswith("1 min 20 s left")  # 4 of 20 s


def test_the_line_of_a_run_on_a_terminal():
    class Screen(io.StringIO):
        def isatty(self):
            return True

    screen, pipe = Screen(), io.StringIO()
    for stream in (screen, pipe):
        line = ProgressLine("row seed 1", stream)
        line.started({"total_steps": 4})
        line.stepped(StepReport(2, 1, {}, {"total": 0.5}, {}), [])
        line.clear()
    assert "\r\x1b[Krow seed 1  step 2/4  reward 0.500" in screen.getvalue() and "\n" not in screen.getvalue()
    assert pipe.getvalue() == ""


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"methods": "gropo,grpo"}, "did you mean 'grpo'"),
        ({"methods": " , "}, "--methods FIRST,SECOND"),
        ({"methods": []}, "--methods FIRST,SECOND"),
        ({"methods": "grpo,grpo"}, "'grpo' twice"),
        ({"methods": "grpo,sft"}, "compare methods of `whet algorithms` that learn from a reward"),
        ({"seeds": 0}, "give 1 or more"),
        ({"seed": 3}, "use --seeds"),
        ({"seeds": 2, "config_file": 1}, "no key is called 'config_file'"),
        ({"batch": {"grup_size": 3}}, "did you mean 'batch.group_size'"),
        ({"batch": {"group_size": 1}}, "grpo: group_size is 1"),
        ({"reward": print}, "file.py:function"),
        ({"data": "nowhere.jsonl", "reward": "exact_answer"}, "nowhere.jsonl"),
    ],
)
def test_a_mistake_costs_nothing(tmp_path, changes, fix):
    with pytest.raises(WhetError, match=fix.replace("(", r"\(")) as caught:
        tiny(tmp_path / "new", **{"methods": METHODS, **changes})
    assert "\n" not in str(caught.value) and not (tmp_path / "new").exists()


def test_other_settings_are_not_mixed_in(copied, started):
    with pytest.raises(WhetError, match=r"other settings \(steps\).*another --folder"):
        tiny(copied, steps=3)
    assert started == []


def test_a_folder_with_something_else_is_refused(made, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(WhetError, match=r"notes\.txt is there.*--folder"):
        tiny(tmp_path)
    with pytest.raises(WhetError, match="is a file"):
        tiny(tmp_path / "notes.txt")
    with pytest.raises(WhetError, match="holds a run, not a comparison"):
        tiny(made[0].folder / "grpo-seed0")
    (tmp_path / "new" / "grpo-seed0").mkdir(parents=True)
    (tmp_path / "new" / "grpo-seed0" / "mine.txt").write_text("mine")
    with pytest.raises(WhetError, match="not a run; move it away"):
        tiny(tmp_path / "new")


def test_names_stand_for_sections(tmp_path):
    """`model`, `data` and `reward` by name, one method alone and one seed: said to be no comparison."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"What is {n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(6)))
    config = {key: value for key, value in TINY.items() if key != "data"}
    named = {"model": "whetstone", "data": str(rows), "reward": "exact_answer"}
    compared, text = tiny(tmp_path / "new", methods="grpo", seeds=1, config=config, steps=1, **named)
    ran = read_config(compared.folder / "grpo-seed0")
    assert ran.data.source == str(rows) and ran.reward.parts[0].reward == "exact_answer" and ran.steps == 1
    words = " ".join(text.split())
    assert "there is nothing to compare it with" in words and "One seed: nothing can be said about noise" in words
    assert "held out nothing" in words and "Nothing was held out" in words
