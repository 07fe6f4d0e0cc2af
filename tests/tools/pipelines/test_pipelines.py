"""Whole pipelines, tiny ones, on the built-in model."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from whet.cli import app
from whet.data import read_rows
from whet.data.pairs import preferences_from
from whet.record.log import read_summary
from whet.tools.pipelines import read_json_lines
from whet.tools.pipelines.registry import PIPELINES
from whet.tools.pipelines.runner import resume_pipeline, run_pipeline
from whet.tools.pipelines.settings import resolve_settings, settings_toml
from whet.types import WhetError

COMMON = {
    "model": {"threads": 1},
    "data": {"difficulty": [1]},
    "sampling": {"max_new_tokens": 24},
    "eval": {"prompts": 6},
    "epochs": 1,
}
TINY = {
    "iterative_dpo": {"prompts_per_round": 6, "completions": 4, "train": {"batch": {"rows_per_step": 4}}},
    "spin": {
        "rounds": 1,
        "data": {"count": 8},
        "train": {"batch": {"rows_per_step": 4}},
        "imitate": {"batch": {"rows_per_step": 4}},
    },
    "rlaif": {
        "prompts": 16,
        "learn": "pairs",
        "judge": {"examples": 16, "train": {"steps": 2, "batch": {"rows_per_step": 4}}},
        "train": {"batch": {"rows_per_step": 4}},
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Each pipeline, run once."""
    runs = {}

    def run(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp(name) / "run"
            runs[name] = run_pipeline(
                name, COMMON, TINY[name], {"folder": str(folder)}, command=f"whet pipeline {name}"
            )
        return runs[name]

    return run


def rows_of(run, stage, file):
    return read_json_lines(run.stages[stage].folder / file)


def test_each_round_begins_with_the_last_one_and_asks_new_prompts(made):
    run = made("iterative_dpo")
    assert run.status == "finished" and run.page.is_file()
    asked = [
        {row["prompt"][0]["content"] for row in rows_of(run, f"round{at}-pairs", "completions.jsonl")} for at in (1, 2)
    ]
    assert len(asked[0]) == len(asked[1]) == 6 and not asked[0] & asked[1]
    config = (run.stages["round2-train"].folder / "run" / "config.toml").read_text()
    assert str(run.stages["round1-train"].folder / "run") in config
    counts = run.stages["round1-pairs"].result["counts"]
    assert counts["pairs"] + counts["ties"] + counts["cut_off"] == 6 and counts["pairs"] > 0
    for pair in rows_of(run, "round1-pairs", "pairs.jsonl"):
        assert pair["chosen_score"] > pair["rejected_score"]
    assert {"accuracy", "reward"} <= set(run.stages["round2-eval"].result["metrics"])


def test_the_demonstrations_are_chosen_and_own_completions_rejected(made):
    run = made("spin")
    shown = {row["id"]: row["completion"] for row in rows_of(run, "demonstrations", "demonstrations.jsonl")}
    pairs = rows_of(run, "round1-pairs", "pairs.jsonl")
    assert pairs and all(pair["chosen"] == shown[pair["id"]] != pair["rejected"] for pair in pairs)
    counts = run.stages["round1-pairs"].result["counts"]
    assert counts["pairs"] + counts["identical"] + counts["empty"] == 8
    steps = run.stages["round1-train"].result["steps"]
    assert steps == 2 and "2 updates" in run.stages["round1-imitate"].result["summary"]
    path = str(run.stages["round1-pairs"].folder / "pairs.jsonl")
    assert len(preferences_from(read_rows(path))) == len(pairs)


def test_a_judge_is_made_measured_and_asked_in_both_orders(made):
    run = made("rlaif")
    examples = rows_of(run, "judge-examples", "examples.jsonl")
    assert examples and {row["completion"] for row in examples} == {"A", "B"}
    assert set(run.stages["judge-eval"].result["metrics"]) >= {"flip_rate", "tie_rate"}
    labels = rows_of(run, "pairs", "labels.jsonl")
    assert len(labels) == run.stages["pairs"].result["counts"]["compared"] > 0
    assert all(0 <= line["forth"] <= 1 and 0 <= line["back"] <= 1 for line in labels)
    asked = [
        {row["id"] for row in rows_of(run, stage, "completions.jsonl")} for stage in ("judge-examples", "completions")
    ]
    assert not asked[0] & asked[1]


class LikesLonger(BaseHTTPRequestHandler):
    """A server that prefers the longer completion, wherever it stands."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        first, second = (re.search(rf"<<<ANSWER {side} \w+>>>\n(.*?)\n<<<END", asked, re.S)[1] for side in "AB")
        code = re.search(r'"code": "(\w+)"', asked)[1]
        said = json.dumps({"code": code, "better": "A" if len(first) > len(second) else "B"})
        body = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_server_judges_and_a_reward_model_is_trained_against(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), LikesLonger)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {"base_url": f"http://127.0.0.1:{server.server_port}/v1", "model": "any"}
    layer = {
        "prompts": 12,
        "judge": {"settings": settings, "verdict": "text"},
        "steps": 1,
        "eval": {"prompts": 2},
        "reward_model": {"batch": {"rows_per_step": 4}},
        "train": {"batch": {"prompts_per_step": 2, "group_size": 2}},
        "folder": str(tmp_path / "run"),
    }
    try:
        run = run_pipeline("rlaif", COMMON, layer)
    finally:
        server.shutdown()
    pairs = rows_of(run, "pairs", "pairs.jsonl")
    assert pairs and all(len(pair["chosen"]) >= len(pair["rejected"]) for pair in pairs)
    assert run.stages["pairs"].result["counts"]["unreadable"] == 0
    assert run.stages["reward-model"].result["steps"] > 0
    assert "learned" in (run.stages["train"].folder / "run" / "config.toml").read_text()
    assert {"learned", "exact_answer"} <= set(read_summary(run.stages["train"].folder / "run")["after"])


def test_what_is_finished_is_told_and_not_done_again(made, capsys):
    run = made("iterative_dpo")
    before = (run.stages["round2-train"].folder / "stage.json").stat().st_mtime_ns
    again = resume_pipeline(run.folder)
    assert again.status == "finished" and again.stages == run.stages
    assert (run.stages["round2-train"].folder / "stage.json").stat().st_mtime_ns == before
    said = capsys.readouterr().out
    assert said.count("done before") == len(run.stages) and "held-out accuracy  before  round 1  round 2" in said
    page = run.page.read_text()
    assert "03-round1-train/run/report.html" in page and "whet pipeline iterative_dpo" in page


def test_more_rounds_continue_from_the_last(made):
    run = made("spin")
    toml = run.folder / "pipeline.toml"
    text = toml.read_text()
    try:
        toml.write_text(text.replace("rounds = 1", "rounds = 2"))
        more = resume_pipeline(run.folder)
        assert more.stages["round1-train"] == run.stages["round1-train"]
        assert more.status == "finished" and list(more.stages)[7:] == [
            "round2-pairs", "round2-train", "round2-eval", "round2-imitate", "round2-imitate-eval"
        ]  # fmt: skip
        for stage, start in (("round2-train", "round1-train"), ("round2-imitate", "round1-imitate")):
            config = (more.stages[stage].folder / "run" / "config.toml").read_text()
            assert str(run.stages[start].folder / "run") in config
    finally:
        toml.write_text(text)


def test_own_completions_that_equal_the_data_end_it(tmp_path, monkeypatch):
    import whet.tools.pipelines.self_play as self_play

    def echo(folder, config, chosen, count, seed, is_scored=False):
        shown = read_json_lines(folder.parent / "01-demonstrations" / "demonstrations.jsonl")
        return [{"completions": [row["completion"]], "finished": [True]} for row in shown]

    monkeypatch.setattr(self_play, "write_completions", echo)
    quiet = {"eval": {"prompts": 0}, "folder": str(tmp_path / "run")}
    run = run_pipeline("spin", COMMON, TINY["spin"], quiet)
    assert list(run.stages) == ["demonstrations", "round1-pairs"] and run.status == "finished"
    assert run.stages["round1-pairs"].result["stop_reason"] == "8 of 8 own completions equal the data"
    assert "ended early: 8 of 8 own completions equal the data" in run.page.read_text()


@pytest.mark.parametrize("name", list(PIPELINES))
def test_settings_are_shown_as_they_are_read_back(name):
    known = {key: value for key, value in COMMON.items() if key in PIPELINES[name].settings.model_fields}
    settings = resolve_settings(PIPELINES[name], known, TINY.get(name, {}))
    import tomllib

    assert resolve_settings(PIPELINES[name], tomllib.loads(settings_toml(settings))) == settings


@pytest.mark.parametrize(
    ("name", "layer", "said"),
    [
        ("spinn", {}, "did you mean 'spin'"),
        ("spin", {"round": 3}, "did you mean 'rounds'"),
        ("spin", {"rounds": 0}, "rounds is 0"),
        ("spin", {"train": {"optimizer": {"learning_rat": 1}}}, "did you mean 'optimizer.learning_rate'"),
        ("spin", {"train": {"steps": 3}}, "train.steps is set by the pipeline; set epochs instead"),
        ("spin", {"imitate": {"data": {"source": "x"}}}, "imitate.data is set by the pipeline"),
        ("spin", {"method": "grpo"}, "does not learn from pairs"),
        ("spin", {"data": {"limit": 3}}, "data.limit has no effect"),
        ("iterative_dpo", {"method": "dppo"}, "no method is called"),
        ("iterative_dpo", {"train": {"preference": {"online": 4}}}, "drop online"),
        (
            "rlaif",
            {"judge": {"name": "a", "settings": {"base_url": "http://localhost:1/v1", "model": "b"}}},
            "both name",
        ),
        ("rlaif", {"judge": {"settings": {"modle": "b"}}}, "modle"),
        ("rlaif", {"judge": {"settings": {"alone": True}}}, "judge.settings.alone has no effect"),
        ("rlaif", {"data": {"source": "rows.jsonl"}}, "name a model or server"),
        ("rlaif", {"method": "dpo"}, "does not learn from reward_model"),
        ("rlaif", {"learn": "pairs", "steps": 3}, "steps has no effect"),
        ("rlaif", {"train": {"steps": 3}}, "set steps instead"),
        ("rlaif", {"judge": {"name": "whetstone", "examples": 3}}, "judge.examples has no effect"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_done(tmp_path, monkeypatch, name, layer, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WhetError) as error:
        run_pipeline(name, layer)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_mistake_in_the_first_stage_leaves_nothing_behind(tmp_path, capsys):
    folder = tmp_path / "run"
    layer = {"folder": str(folder), "model": {"name": str(tmp_path / "nowhere")}}
    with pytest.raises(WhetError, match="nowhere"):
        run_pipeline("iterative_dpo", COMMON, layer, {"sampling": {"max_new_tokens": 8}, "epochs": 1})
    assert not folder.exists()


def test_a_folder_is_never_mixed(made, tmp_path):
    run = made("iterative_dpo")
    with pytest.raises(WhetError, match="already holds a pipeline 'iterative_dpo'; `whet resume"):
        run_pipeline("spin", COMMON, {"folder": str(run.folder)})
    (tmp_path / "own").write_text("mine")
    with pytest.raises(WhetError, match="is not a pipeline"):
        run_pipeline("spin", COMMON, {"folder": str(tmp_path)})
    with pytest.raises(WhetError, match="--steps has no effect"):
        resume_pipeline(run.folder, steps=3)


def test_the_command_lists_shows_and_resumes(made):
    from typer.testing import CliRunner

    said = CliRunner().invoke(app, ["pipeline"])
    assert said.exit_code == 0 and all(f"{name} " in said.output for name in PIPELINES)
    shown = CliRunner().invoke(
        app, ["pipeline", "spin", "--show", "--rounds", "7", "--set", "train.optimizer.beta1=0.5"]
    )
    assert "rounds = 7" in shown.output and "beta1 = 0.5" in shown.output
    run = made("iterative_dpo")
    again = CliRunner().invoke(app, ["resume", str(run.folder)])
    assert again.exit_code == 0 and "finished: Held-out accuracy" in again.output
    assert json.loads((run.stages["eval0"].folder / "stage.json").read_text())["name"] == "eval0"
