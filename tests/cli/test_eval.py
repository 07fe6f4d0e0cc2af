"""`whet eval`: several models and tasks side by side, curves, budgets, refusals, servers, its page, and its errors."""

import json
import re
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from whet import cli

FEW = ["--set", "eval.prompts=12", "--set", "model.threads=1"]


def eval_(capsys, *words):
    """The real entry point, in process."""
    before = sys.argv
    sys.argv = ["whet", "eval", *words]
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


def test_one_model_has_its_metrics_with_intervals(capsys, tmp_path):
    code, out, err = eval_(capsys, *FEW)
    assert code == 0 and err == ""
    assert re.search(r"^accuracy +\d+\.\d% \(\d+\.\d-\d+\.\d\)$", out, re.M)
    assert re.search(r"^calibration +by tokens: expected error ", out, re.M)
    assert len((tmp_path / "eval.jsonl").read_text().splitlines()) == 12 and not list(tmp_path.glob("*.part"))


def test_models_are_compared_on_the_same_prompts(capsys, tmp_path, imitator):
    words = ["whetstone", imitator, "--data", "task:arithmetic", "--samples", "4", *FEW]
    code, out, _ = eval_(capsys, *words, "--html", "page.html", "--out", "both")
    assert code == 0 and "sft against whetstone: " in out and "majority@4" in out and "completions: both" in out
    found = json.loads((tmp_path / "both" / "eval.json").read_text())
    first, second = (each["summary"] for each in found["evals"])
    (pair,) = found["pairs"]["task:arithmetic"]
    assert pair["test"] == "paired t" and pair["difference"] == pytest.approx(
        second["accuracy"]["value"] - first["accuracy"]["value"]
    )
    assert pair["gained"] + pair["lost"] > 0
    assert [point["n"] for point in first["pass_at"]] == [1, 2, 4] == [point["n"] for point in first["votes"]]
    assert first["pass_at"][0]["value"] == pytest.approx(first["accuracy"]["value"])
    assert set(first["calibration"]) == {"votes", "tokens"}
    rows = [json.loads(line) for line in open(found["evals"][1]["completions"])]  # noqa: SIM115
    assert len(rows) == 48
    right = sum(row["parts"]["exact_answer"] for row in rows) / 48
    assert right == pytest.approx(second["accuracy"]["value"])
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") >= 5 and "pass@k" in page and "Majority of n" in page and "Calibration" in page
    assert "sft against whetstone" in page


def test_several_tasks_each_with_its_own_reward(capsys):
    code, out, _ = eval_(capsys, "whetstone", "--data", "task:arithmetic", "--data", "task:countdown", *FEW, "--json")
    assert code == 0
    found = json.loads(out)
    assert [each["task"] for each in found["evals"]] == ["task:arithmetic", "task:countdown"]
    assert [each["temperature"] for each in found["evals"]] == [0.0, 0.0]  # one completion is the likeliest
    assert "accuracy" not in found and not found["pairs"]


def test_three_pairs_are_corrected(capsys, imitator, tmp_path):
    other = tmp_path / "copy"
    other.symlink_to(imitator)
    words = ["whetstone", imitator, str(other), "--data", "task:arithmetic", *FEW, "--set", "sampling.max_new_tokens=8"]
    code, out, _ = eval_(capsys, *words, "--out", "three", "--json")
    assert json.loads((tmp_path / "three" / "eval.json").read_text()) == json.loads(out)
    tests = json.loads(out)["pairs"]["task:arithmetic"]
    assert code == 0 and len(tests) == 3 and all(each["test"] == "McNemar" for each in tests)
    assert tests[2]["difference"] == 0 and tests[2]["p"] == 1
    assert tests[0]["corrected_p"] >= tests[0]["p"]
    assert "corrected for 3 pairs" in eval_(capsys, *words, "--set", "eval.prompts=2")[1]


def test_a_budget_gives_a_curve_whose_end_is_the_accuracy(capsys):
    words = ["--samples", "2", "--budget", "48,8,8", "--k", "2", *FEW, "--json", "--html", "page.html"]
    code, out, _ = eval_(capsys, "whetstone", *words)
    assert code == 0 and "Token budget" in open("page.html").read()  # noqa: SIM115
    summary = json.loads(out)["evals"][0]["summary"]
    low, high = summary["budgets"]
    assert (low["budget"], high["budget"]) == (8, 48)
    assert high["value"] == pytest.approx(summary["accuracy"]["value"]) and low["value"] <= high["value"]
    assert low["tokens"] <= 8 < high["tokens"] <= 48
    assert [point["n"] for point in summary["pass_at"]] == [2]


def test_refusals_by_the_value_of_a_column(capsys, tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": f"1+{at}"}], "label": ("safe", "unsafe")[at % 2]} for at in range(4)
    ]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--data", "asked.jsonl", "--reward", "refusal", "--refusals", "--set", "eval.by=label"]
    reward = ["--set", 'reward.parts=[{reward="refusal",settings={column="label"}}]']
    code, out, err = eval_(capsys, "whetstone", *words[:2], *words[4:], *reward, "--json", "--set", "model.threads=1")
    assert code == 0, err
    found = json.loads(out)
    summary = found["evals"][0]["summary"]
    assert set(summary["refusals"]) == {"", "safe", "unsafe"} and summary["refusals"]["safe"]["value"] == 0
    assert found["accuracy_safe"] == 1 and found["accuracy_unsafe"] == 0  # it refuses nothing: right on half
    assert "refused unsafe" in eval_(capsys, "whetstone", *words, "--set", "model.threads=1")[1]


class Answers(BaseHTTPRequestHandler):
    """A server that writes one sentence; the second path has no log-probabilities."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = f"<answer>{body['seed'] % 2}</answer>" if body["temperature"] else "<answer>7</answer>"
        if body["model"] == "thinks" and body["messages"][-1]["role"] != "assistant":
            text = "<think>" + "so on " * 20  # until it is told to answer
        choice = {
            "message": {"role": "assistant", "content": text},
            "finish_reason": "length" if "<think>" in text else "stop",
        }
        if body["model"] == "talks":
            choice["logprobs"] = {"content": [{"token": text, "logprob": -0.25}]}
        content = json.dumps({"choices": [choice], "usage": {"completion_tokens": 2}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    found = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}/v1"
    found.shutdown()
    found.server_close()


def test_a_server_is_asked_by_name_with_progress_and_calibration(capsys, server):
    words = ["--server", server, "--data", "task:arithmetic", "--set", "eval.prompts=6", "--confidence", "tokens"]
    code, out, err = eval_(capsys, "talks", *words, "--chunk", "4", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert re.findall(r"talks on task:arithmetic: (\d) of 6 prompts", err) == ["4", "6"] and "% right so far" in err
    rows = [json.loads(line) for line in open("eval.jsonl")]  # noqa: SIM115
    assert {row["completion"] for row in rows} == {"<answer>7</answer>"}
    assert found["accuracy"] == sum(row["answer"] == "7" for row in rows) / 6
    assert found["evals"][0]["summary"]["calibration"]["tokens"]["bins"]


def test_a_server_without_log_probabilities_is_told_where_they_are_needed(capsys, server):
    words = ["--server", server, "--data", "task:arithmetic", "--set", "eval.prompts=4"]
    code, out, err = eval_(capsys, "mute", *words, "--confidence", "tokens")
    assert code == 2 and out == "" and err.count("\n") == 1 and "gives none; ask a server that does" in err
    code, out, _ = eval_(capsys, "mute", *words, "--samples", "4", "--confidence", "votes", "--json")
    assert code == 0 and set(json.loads(out)["evals"][0]["summary"]["calibration"]) == {"votes"}


MISTAKES = {
    "an unknown second model": (["whetstone", "nomodel", *FEW], "give whetstone"),
    "no reward": (["whetstone", "--data", "FILE"], "no reward"),
    "samples at temperature 0": (["--samples", "4", "--set", "sampling.temperature=0"], "temperature=1.0"),
    "k above n": (["--samples", "4", "--k", "1,8"], "pass@8 needs 8 completions per prompt, and --samples is 4"),
    "k in words": (["--samples", "4", "--k", "few"], "--k few: give whole numbers"),
    "a budget of nothing": (["--budget", "0,4"], "give numbers from 1"),
    "votes of one": (["--confidence", "votes"], "give --samples 8"),
    "an unknown confidence": (["--confidence", "words"], "give votes or tokens"),
    "the same twice": (["whetstone", "whetstone"], "is given twice"),
    "a file for two": (["whetstone", "other", "--out", "e.jsonl"], "give a folder"),
    "runs of different tasks": (["whetstone", "RUN"], "cannot be compared; give --data for all of them"),
    "a page nowhere": (["--html", "no/x.html"], "there is no folder no"),
    "shots from nowhere": (["--data", "FILE", "--reward", "exact_answer", "--shots", "2"], "give --shots-from FILE"),
    "examples of no shots": (["--shots-from", "FILE"], "has no effect without --shots"),
    "shots with tools": (["--shots", "2", "--tool", "calculator"], "an environment opens its own conversation"),
    "budgets with tools": (["--budget", "8", "--tool", "calculator"], "an environment has turns"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_with_its_fix(capsys, tmp_path, case):
    words, fix = MISTAKES[case]
    file, run = tmp_path / "rows.jsonl", tmp_path / "run"
    file.write_text('{"prompt": "1+1?", "answer": "2"}\n')
    run.mkdir()
    (run / "config.toml").write_text('method = "grpo"\n[data]\nsource = "task:lists"\n')
    named = {"FILE": str(file), "RUN": str(run)}
    code, out, err = eval_(capsys, *(named.get(word, word) for word in words))
    assert code == 2 and out == "" and err.count("\n") == 1 and fix in err, err


def test_models_that_were_asked_different_prompts_are_refused(capsys, imitator, tmp_path):
    """A run brings its own number of held-out prompts."""
    other = tmp_path / "other"
    shutil.copytree(imitator, other, symlinks=True)
    text = (other / "config.toml").read_text()
    (other / "config.toml").write_text(re.sub(r"(\[eval\][^\[]*?prompts = )0", r"\g<1>6", text))
    code, _, err = eval_(
        capsys, "whetstone", str(other), "--set", "model.threads=1", "--set", "sampling.max_new_tokens=2"
    )
    assert code == 2 and "were asked different prompts (200 and 6" in err and "give --data for all" in err


def test_models_that_know_different_forms_are_refused_before_one_is_measured(capsys, tmp_path):
    """A chat model gets a benchmark as a message, a base model as plain text."""
    file, base = tmp_path / "rows.jsonl", tmp_path / "base"
    file.write_text('{"question": "1 + 2?", "answer": "#### 3"}\n')
    base.mkdir()
    (base / "tokenizer_config.json").write_text("{}")
    code, out, err = eval_(capsys, "whetstone", str(base), "--data", f"gsm8k:{file}")
    assert code == 2 and out == "" and err.count("\n") == 1, err
    assert "as a user message that asks for the answer" in err
    assert "as plain text (the model has no chat template" in err
    assert err.rstrip().endswith("give --set data.as_chat=false")
