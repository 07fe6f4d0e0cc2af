"""A mistake of the user's gets one clear line with the fix, exit code 2, and costs nothing that was on disk."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whet import api, cli
from whet.types import WhetError

TINY = [
    "--steps",
    "2",
    "--set",
    "eval.prompts=4",
    "--set",
    "batch.prompts_per_step=2",
    "--set",
    "batch.group_size=2",
    "--set",
    "data.count=8",
    "--set",
    "model.threads=1",
]


def whet(capsys: pytest.CaptureFixture, *words: str) -> tuple[int, str, str]:
    """The real entry point, in process."""
    before = sys.argv
    sys.argv = ["whet", *words]
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
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = {
        "plain.jsonl": [{"prompt": "What is 1+1?", "answer": "2"}],
        "question.jsonl": [{"frage": "What is 1+1?", "answer": "2"}],
        "empty.jsonl": [],
        "long.jsonl": [{"prompt": "word " * 300, "answer": "2"}],
        "noanswer.jsonl": [{"prompt": "What is 1+1?"}],
    }
    for name, each in rows.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in each))
    (tmp_path / "broken.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (tmp_path / "broken.toml").write_text("steps = \n")


MISTAKES = {
    "unknown method": (["train", "gropo"], "did you mean 'grpo'"),
    "unknown key": (["train", "grpo", "--set", "batch.grup_size=3"], "did you mean 'batch.group_size'"),
    "key of another section": (["train", "grpo", "--set", "group_size=3"], "did you mean 'batch.group_size'"),
    "key of another kind of run": (["train", "sft", "--set", "batch.group_size=3"], "known in batch: rows_per_step"),
    "key inside a section that is not there": (
        ["train", "grpo", "--set", "reward.settings.judge.base_url=x"],
        "known in reward: parts",
    ),
    "bad value": (["train", "grpo", "--set", "optimizer.learning_rate=-1"], "greater than 0"),
    "not a setting": (["train", "grpo", "--set", "steps"], "expected path=value"),
    "unknown model": (["train", "grpo", "--model", "whetston"], "did you mean whetstone"),
    "unknown folder": (["train", "grpo", "--model", "./nowhere"], "give whetstone"),
    "missing column": (
        ["train", "grpo", "--data", "question.jsonl", "--reward", "exact_answer"],
        "question.jsonl:1: 'prompt' or 'messages' is missing; the row has 'frage', 'answer'",
    ),
    "empty data": (["train", "grpo", "--data", "empty.jsonl", "--reward", "exact_answer"], "holds no rows"),
    "missing file": (["train", "grpo", "--data", "plan.jsonl", "--reward", "exact_answer"], "did you mean plain.jsonl"),
    "malformed row": (["train", "grpo", "--data", "broken.jsonl", "--reward", "exact_answer"], "broken.jsonl:2"),
    "no reward": (["train", "grpo", "--data", "plain.jsonl"], "no reward: "),
    "unknown reward": (["train", "grpo", "--reward", "exact_anser"], "exact_answer"),
    "group of one": (["train", "grpo", "--set", "batch.group_size=1"], "group_size >= 2"),
    "prompt beyond the context": (
        ["train", "grpo", "--data", "long.jsonl", "--reward", "exact_answer"],
        "expected at most the model's context of 512",
    ),
    "unwritable folder": (["train", "grpo", "--folder", "/proc/nowhere/run"], "give another folder"),
    "folder is a file": (["train", "grpo", "--folder", "plain.jsonl"], "give another folder"),
    "unknown task": (["train", "grpo", "--data", "task:chess"], "there are arithmetic, countdown, lists"),
    "impossible difficulty": (["train", "grpo", "--set", "data.difficulty=77"], "give 1 to 8"),
    "setting for files on a task": (["train", "grpo", "--set", "data.limit=3"], "has no effect"),
    "evaluations of nothing": (
        ["train", "grpo", "--set", "eval.every=5", "--set", "eval.prompts=0"],
        "eval.every has no effect with eval.prompts=0",
    ),
    "setting for tasks on a file": (
        ["train", "grpo", "--data", "plain.jsonl", "--set", "data.difficulty=3"],
        "has no effect",
    ),
    "clip without a second update": (["train", "grpo", "--set", "objective.clip.high=0.3"], "has no effect"),
    "unknown axis": (["train", "grpo", "--set", "objective.clipp.high=0.3"], "did you mean 'objective.clip'"),
    "unknown component": (["train", "grpo", "--set", "objective.kl=k9"], "give one of none, k2, k3"),
    "kl of strength 0": (["train", "grpo", "--set", "objective.kl.beta=0"], "objective.kl=none"),
    "updates off policy": (["train", "reinforce", "--set", "batch.updates_per_step=2"], "objective.clip=ppo_clip"),
    "greedy training": (["train", "grpo", "--set", "sampling.temperature=0"], "give 1.0"),
    "missing config": (["train", "grpo", "--config", "missing.toml"], "no such file"),
    "broken config": (["train", "grpo", "--config", "broken.toml"], "line 1"),
    "not a run": (["resume", "."], "not a run folder"),
    "unknown model to ask": (["eval", "nomodel"], "give whetstone"),
    "unknown method to explain": (["explain", "grop"], "did you mean 'grpo'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_one_line_with_the_fix_and_nothing_left_behind(name, capsys, tmp_path):
    words, fix = MISTAKES[name]
    before = sorted(tmp_path.rglob("*"))
    code, out, err = whet(capsys, *words)
    assert code == 2
    assert out == "" and len(err.strip().splitlines()) == 1, err
    assert err.startswith("whet: ") and fix in err
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "runs"] == before


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_folder_that_holds_a_run_is_never_touched(capsys, tmp_path):
    assert whet(capsys, "train", "grpo", "--folder", "here", *TINY)[0] == 0
    before = files(tmp_path / "here")
    code, _, err = whet(capsys, "train", "grpo", "--folder", "here", *TINY)
    assert code == 2 and "(this very config)" in err and "whet resume here" in err
    code, _, err = whet(capsys, "train", "grpo", "--folder", "here", "--seed", "5", *TINY)
    assert code == 2 and "(another config: seed)" in err
    code, _, err = whet(capsys, "resume", "here")
    assert code == 2 and "nothing to do, all 2 steps are done" in err and "steps=4" in err
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "thesis.txt").write_text("years of work")
    code, _, err = whet(capsys, "train", "grpo", "--folder", "things", *TINY)
    assert code == 2 and "not empty" in err
    assert files(tmp_path / "here") == before
    assert (tmp_path / "things" / "thesis.txt").read_text() == "years of work"


def test_a_damaged_checkpoint_is_named_and_the_older_one_works(capsys, tmp_path):
    assert whet(capsys, "train", "grpo", "--folder", "run", *TINY, "--set", "report.save_every=1")[0] == 0
    weights = tmp_path / "run" / "checkpoints" / "step-000002" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-9] ^= 1
    weights.write_bytes(content)
    code, _, err = whet(capsys, "resume", "run", "--steps", "3")
    assert code == 2 and len(err.strip().splitlines()) == 1
    assert "model.safetensors" in err and "--from step-000001" in err
    assert weights.read_bytes() == content
    assert whet(capsys, "resume", "run", "--steps", "3", "--from", "step-000001")[0] == 0


def test_a_reward_that_fails_stops_the_run_with_its_sample(capsys, tmp_path):
    Path("bad.py").write_text("def judge(prompt, completion):\n    return 1 / 0\n")
    code, _, err = whet(capsys, "train", "grpo", "--reward", "bad.py:judge", "--folder", "run", *TINY)
    assert code == 2
    line = err.strip().splitlines()[-1]
    assert "bad.py:2" in line and "ZeroDivisionError" in line and "arithmetic/" in line and "on_error" in line


def test_a_gold_answer_that_is_missing_is_an_error_not_a_zero(capsys):
    code, _, err = whet(capsys, "train", "grpo", "--data", "noanswer.jsonl", "--reward", "exact_answer", *TINY[:-4])
    assert code == 2 and "answer" in err and "noanswer.jsonl:1" in err


def test_help_and_version_are_instant_and_whole():
    runner = CliRunner()
    result = runner.invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    for command in ("train", "config", "resume", "eval", "sample", "algorithms", "explain", "report"):
        assert command in result.output
    code = "import sys; from whet import cli; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})
    assert runner.invoke(cli.app, ["--version"]).output.startswith("whet 0.")


def test_algorithms_as_json_and_explain(capsys):
    code, out, _ = whet(capsys, "algorithms", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0 and {"reinforce", "grpo", "dr_grpo"} <= set(rows)
    assert rows["grpo"]["clip"] == "ppo_clip(low=0.2, high=0.2)" and rows["grpo"]["needs"] == ["old_logp", "ref_logp"]
    code, out, _ = whet(capsys, "explain", "dr_grpo")
    for word in ("formula", "fixes", "breaks", "2503.20783", "fixed_length", "1/(N L)"):
        assert word in out


def test_the_effective_objective_is_printed_before_the_first_step(capsys):
    changes = ["--set", "batch.updates_per_step=2", "--set", "objective.clip.high=0.28", "--set", "objective.kl=none"]
    code, out, _ = whet(capsys, "train", "grpo", "--folder", "run", *TINY, *changes)
    assert code == 0
    head = out.split("step 1/2")[0]
    assert "GRPO*" in head and "clip.high 0.2 -> 0.28" in head and "kl k3 -> none" in head
    assert "clip(r, 0.8, 1.28)" in head and "exp(-u)" not in head


def test_eval_and_sample(capsys):
    few = ["--set", "eval.prompts=12", "--set", "model.threads=1"]
    code, out, _ = whet(capsys, "eval", "whetstone", "--samples", "4", "--json", *few)
    marks = json.loads(out)
    assert code == 0 and marks["prompts"] == 12 and marks["pass@1"] <= marks["pass@2"] <= marks["pass@4"]
    code, out, _ = whet(capsys, "sample", "whetstone", "--count", "2", "--set", "model.threads=1")
    assert code == 0 and out.count("> Left to right mod 10") == 2 and "gold:" in out
    code, out, _ = whet(capsys, "sample", "whetstone", "Sort 3 1 2", "-n", "2", "--set", "model.threads=1")
    assert code == 0 and out.count("<answer>") == 2


def test_a_single_completion_is_greedy_and_several_are_drawn(capsys, monkeypatch):
    temperatures = []

    def stop(model, data, values):
        temperatures.append(values.get("sampling", {}).get("temperature"))
        raise WhetError("read")

    monkeypatch.setattr(api, "evaluation_config", stop)
    for number in ("1", "2"):
        assert whet(capsys, "sample", "whetstone", "-n", number)[0] == 2
    assert temperatures == [0.0, None]


def test_eval_refuses_mistyped_keys_too(capsys):
    code, _, err = whet(capsys, "eval", "whetstone", "--set", "data.dificulty=1")
    assert code == 2 and "did you mean 'data.difficulty'" in err
    code, _, err = whet(capsys, "eval", "whetstone", "--set", "batch.group_size=4")
    assert code == 2 and "'batch.group_size'; known here: seed, imports, model" in err


def test_a_component_and_its_number_in_any_order(capsys):
    from whet.settings.layers import flattened, from_settings

    expected = {"objective.kl": "k2", "objective.kl.beta": 0.1}
    assert flattened(from_settings(["objective.kl=k2", "objective.kl.beta=0.1"])) == expected
    assert flattened(from_settings(["objective.kl.beta=0.1", "objective.kl=k2"])) == expected


def test_a_config_of_another_method_is_refused(capsys, tmp_path):
    (tmp_path / "other.toml").write_text('method = "dr_grpo"\n')
    code, _, err = whet(capsys, "train", "grpo", "--config", "other.toml")
    assert code == 2 and "'dr_grpo', not 'grpo'" in err


def test_config_shows_what_train_would_use_and_reads_it_back(capsys, tmp_path):
    code, out, _ = whet(capsys, "config", "grpo", "--set", "batch.group_size=4")
    (tmp_path / "mine.toml").write_text(out)
    values = tomllib.loads(out)
    assert code == 0 and values["batch"]["group_size"] == 4 and values["optimizer"]["learning_rate"] == 1e-4
    again = whet(capsys, "config", "grpo", "--model", "smollm2")[1]
    assert tomllib.loads(again)["optimizer"]["learning_rate"] == 1e-6
    assert whet(capsys, "train", "grpo", "--config", "mine.toml", "--folder", "run", *TINY)[0] == 0


def test_what_is_neither_a_list_nor_a_file_is_refused_in_one_line(capsys, monkeypatch, tmp_path):
    """Found by hostile settings: imports that are a number, a template that never ends, a path that is no text."""
    monkeypatch.chdir(tmp_path)
    for words, said in (
        (("train", "dpo", "--set", "imports=1.5"), "imports"),
        (("train", "grpo", "--set", "model.chat_template=/dev/zero"), "cannot be read"),
        (("reward", "review", "\ud800"), "is no path"),
        (("report", "\ud800"), "not a run folder"),
    ):
        code, out, err = whet(capsys, *words)
        assert code == 2 and out == "" and said in err and len(err.strip().splitlines()) == 1, (words, err)


def test_a_list_of_runs_holds_one_of_another_version(capsys, tmp_path):
    (tmp_path / "config.toml").write_text('method = "grpo"\n')
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": {}}\n')
    code, out, err = whet(capsys, "runs", str(tmp_path))
    assert code == 0 and str(tmp_path) in out + err and "Traceback" not in out + err
