"""`whet eval --rerank`: run folders as scorers, the numbers it prints, its page, and its errors."""

import json
import sys
from statistics import fmean

import pytest

import whet
from whet import cli
from whet.api.evaluation import evaluation_config
from whet.data.tasks.contrast import STEP
from whet.reward.find import find_reward
from whet.tools.evaluation.reranking import rerank_plan

FEW = ["--samples", "4", "--set", "eval.prompts=12", "--set", "model.threads=1"]
TINY = {
    "data": {"count": 16},
    "batch": {"rows_per_step": 8},
    "eval": {"prompts": 0},
    "model": {"threads": 1},
}


def eval_(capsys, *words):
    """The real entry point, in process."""
    before = sys.argv
    sys.argv = ["whet", "eval", "whetstone", *words]
    try:
        cli.main()
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    finally:
        sys.argv = before
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("rm", "prm"):
        whet.train(method, steps=1, folder=str(folder / method), config=TINY, console=False)
    return folder


def test_the_true_reward_as_scorer_reaches_the_ceiling_and_votes_agree_with_marks(capsys, tmp_path):
    page = tmp_path / "rerank.html"
    code, out, _ = eval_(capsys, *FEW, "--rerank", "exact_answer", "--json", "--html", str(page))
    found = json.loads(out)
    assert code == 0 and 0 < found["accuracy"] < 1 and found["rerank"]["measure"] == "accuracy"
    lines = {(line["way"], line["scorer"]): line["values_by_n"] for line in found["rerank"]["lines"]}
    ceiling = [mark["value"] for mark in lines["best possible (pass@n)", ""]]
    assert ceiling == pytest.approx([found["pass@1"], found["pass@2"], found["pass@4"]])
    assert [mark["value"] for mark in lines["best of n", "exact_answer"]] == pytest.approx(ceiling)
    votes = lines["majority vote", ""]
    assert votes[0]["value"] == pytest.approx(found["accuracy"]) and votes[0]["low"] < found["accuracy"]
    assert [mark["n"] for mark in votes] == [1, 2, 4]
    assert votes[2]["written"] == pytest.approx(4 * found["completion_tokens"]) and votes[2]["read"] == 0
    text = page.read_text()
    assert "<b>exact_answer</b>" in text and "best of n" in text


def test_a_step_scorer_shows_every_aggregate_of_its_own_steps(capsys, runs):
    words = [*FEW, "--rerank", str(runs / "rm"), "--rerank", str(runs / "prm"), "--json"]
    code, out, _ = eval_(capsys, *words)
    assert code == 0
    found = json.loads(out)["rerank"]
    assert len(found["lines"]) == 1 + 2 + 8 + 1
    steps = {line["aggregate"] for line in found["lines"] if line["scorer"] == str(runs / "prm")}
    assert steps == {"min", "mean", "last", "product"}
    reading = [line for line in found["lines"] if line["scorer"] == str(runs / "rm")]
    assert reading[0]["values_by_n"][0]["read"] > reading[0]["values_by_n"][0]["written"] > 5


def test_a_search_stands_beside_the_best_of_as_many_tokens(capsys, runs):
    words = [*FEW, "--rerank", str(runs / "prm"), "--search", "steps", "--set", "rerank.settings.aggregate=last"]
    code, out, _ = eval_(capsys, *words, "--json", "--set", "rerank.beams=2", "--set", "rerank.branches=2")
    assert code == 0
    (search,) = json.loads(out)["rerank"]["searches"]
    assert (search["aggregate"], search["beams"], search["branches"]) == ("last", 2, 2)
    assert search["search"]["written"] > 20 and search["best_of_n"]["n"] > 1
    code, out, _ = eval_(capsys, *words)
    assert code == 0 and f"Search over steps by {runs / 'prm'} last, 4 x 4 (beams x branches): " in out
    assert "of n completions, drawn at temperature 1: accuracy in % (95% interval over 12 prompts)" in out


@pytest.mark.parametrize(
    ("given", "ends"), [({}, STEP), ({"settings": {"separator": "="}}, "="), ({"separator": "?"}, "?")]
)
def test_a_step_of_a_search_ends_as_it_is_told_or_as_the_model_learned(runs, given, ends):
    section = {"scorers": [{"reward": str(runs / "prm")}], "search": "steps", **given}
    plan = rerank_plan(evaluation_config("whetstone", None, {"rerank": section}), num_samples=4)
    assert list(plan.separators.values()) == [ends]


def test_a_reward_that_is_no_share_is_averaged(capsys, tmp_path):
    file = tmp_path / "rough.py"
    file.write_text("def rough(completion: str) -> float:\n    return len(completion) / 10\n")
    code, out, _ = eval_(capsys, *FEW, "--reward", f"{file}:rough", "--rerank", f"{file}:rough", "--json")
    found = json.loads(out)
    assert code == 0 and found["rerank"]["measure"] == "reward"
    lines = {line["way"]: [mark["value"] for mark in line["values_by_n"]] for line in found["rerank"]["lines"]}
    assert lines["best of n"] == pytest.approx(lines["best possible (pass@n)"])
    assert lines["best of n"][0] == pytest.approx(found["reward"]) and lines["best of n"][2] > found["reward"]


def test_a_learned_reward_by_name_takes_a_run_as_its_folder(runs):
    assert find_reward("learned", {"folder": str(runs / "rm")}).name == "learned"


def test_a_learned_scorer_gives_the_same_lines_by_name_and_by_run(capsys, runs):
    by_run = eval_(capsys, *FEW, "--rerank", str(runs / "rm"), "--json")[1]
    by_name = eval_(capsys, *FEW, "--rerank", "learned", "--set", f"rerank.settings.folder={runs / 'rm'}", "--json")[1]
    values = [
        [fmean(mark["value"] for mark in line["values_by_n"]) for line in json.loads(out)["rerank"]["lines"]]
        for out in (by_run, by_name)
    ]
    assert values[0] == values[1] and values[0][1] > 0


MISTAKES = {
    "no samples": (["--rerank", "exact_answer"], "--samples is 1; give --samples 16"),
    "one sample": (["--rerank", "exact_answer", "--samples", "1"], "--samples is 1"),
    "temperature 0": (
        ["--rerank", "exact_answer", "--samples", "4", "--set", "sampling.temperature=0"],
        "sampling.temperature=1.0",
    ),
    "a policy": (
        ["--rerank", "POLICY", "--samples", "4"],
        "holds LlamaForCausalLM, which is no reward model; give the folder of a run",
    ),
    "an empty folder": (["--rerank", "EMPTY", "--samples", "4"], "holds no model that can be a reward: it is empty"),
    "no such run": (
        ["--rerank", "runs/rm-009", "--samples", "4"],
        "runs/rm-009': there is no such folder; give the run",
    ),
    "a mistyped reward": (["--rerank", "exact_answr", "--samples", "4"], "did you mean 'exact_answer'"),
    "a search by whole completions": (
        ["--rerank", "exact_answer", "--samples", "4", "--search", "steps"],
        "exact_answer scores whole completions; give --rerank RUN",
    ),
    "steps without an end": (
        ["--rerank", "working_steps", "--samples", "4", "--search", "steps"],
        "give --set rerank.separator=TEXT",
    ),
    "an unknown search": (["--rerank", "exact_answer", "--samples", "4", "--search", "stps"], "'none' or 'steps'"),
    "a search of nothing": (["--samples", "4", "--search", "steps"], "give --rerank RUN"),
    "a page nowhere": (["--rerank", "exact_answer", "--samples", "4", "--html", "no/x.html"], "there is no folder no"),
    "beams without a search": (
        ["--rerank", "exact_answer", "--samples", "4", "--set", "rerank.beams=2"],
        "rerank.beams has no effect without a search",
    ),
    "settings of two": (
        ["--rerank", "judge", "--rerank", "exact_answer", "--samples", "4", "--set", "rerank.settings.form=words"],
        "rerank.settings is for one scorer, and there are 2",
    ),
    "an unknown key": (["--rerank", "exact_answer", "--samples", "4", "--set", "rerank.beam=2"], "rerank.beams"),
    "an unknown setting": (
        ["--rerank", "exact_answer", "--samples", "4", "--set", "rerank.settings.from=1"],
        "has no setting 'from'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_its_fix(capsys, tmp_path, name):
    words, fix = MISTAKES[name]
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "POLICY").mkdir()
    (tmp_path / "POLICY" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    words = [str(tmp_path / word) if word in ("EMPTY", "POLICY") else word for word in words]
    code, out, err = eval_(capsys, *words)
    assert code == 2 and out == "" and err.count("\n") == 1 and fix in err, err
