"""Training, evaluation, sampling and the reward workbench read a file the same way, and say how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import whet
from whet.cli import main
from whet.types import WhetError

GSM = {"question": "Left to right mod 10: 2+2+1+1+1", "answer": "2+2=4, and 3 more.\n#### 7"}
NOTE = "prompt from question, answer from what follows #### in answer"
TINY = {"steps": 1, "batch": {"prompts_per_step": 1, "group_size": 2}, "eval": {"prompts": 0}}
LONG = "word " * 700


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, *rows):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def command(capsys, monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["whet", *words])
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    out, err = capsys.readouterr()
    return code, out, err


def test_all_commands_see_the_same_prompt_and_gold_answer(capsys, monkeypatch):
    data = write("gsm.jsonl", GSM)
    run = whet.train("grpo", data=data, reward="exact_answer", folder="run", console=False, **TINY)
    assert run.summary["facts"]["columns"] == NOTE
    assert {line["answer"] for line in run.samples()} == {"7"}
    assert run.samples()[0]["question"] == GSM["question"]

    words = ("eval", "--data", data, "--reward", "exact_answer", "--out", "e.jsonl")
    code, out, err = command(capsys, monkeypatch, *words)
    found = json.loads(Path("e.jsonl").read_text())
    assert code == 0 and NOTE in out + err and (found["prompt"], found["answer"]) == (GSM["question"], "7")

    code, out, err = command(capsys, monkeypatch, "sample", "--data", data, "--reward", "exact_answer")
    assert code == 0 and f"> {GSM['question']}    (gold: 7)" in out and NOTE in err

    code, out, _ = command(capsys, monkeypatch, "reward", "test", "exact_answer", "--data", data)
    assert code == 0 and NOTE in out and "gold = 1       100.0%" in out


def test_a_reward_is_tried_on_pairs(capsys, monkeypatch):
    rows = [{"prompt": f"Say {n}.", "chosen": "Yes, " * 9 + str(n), "rejected": "no"} for n in range(4)]
    data = write("pairs.jsonl", *rows, {"prompt": "Same?", "chosen": "a", "rejected": "a"})
    Path("mine.py").write_text("def longer(prompt, completion):\n    return float(len(completion))\n")
    code, _, err = command(capsys, monkeypatch, "reward", "test", "mine.py:longer", "--data", data)
    assert code == 2 and "pairs.jsonl:5: rejected is the same text" in err and "data.unusable=drop" in err
    words = ("reward", "test", "mine.py:longer", "--data", data, "--set", "data.unusable=drop")
    code, out, _ = command(capsys, monkeypatch, *words)
    assert code == 0 and "8 samples" in out and "1 unusable" in out
    assert "100.0%: the chosen completion scores higher in 4 of 4" in out
    code, out, _ = command(capsys, monkeypatch, *words, "--json")
    assert json.loads(out)["pairs"] == {"count": 4, "in_order": 4}


SHORT = {"prompt": "1+1?", "completion": "2", "chosen": "2", "rejected": "3", "answer": "2"}
TOO_LONG = {"prompt": LONG, "completion": "2", "chosen": "2", "rejected": "3", "answer": "2"}


@pytest.mark.parametrize("method", ["grpo", "sft", "dpo", "rm"])
def test_rows_beyond_the_context_are_an_error_or_left_out(method):
    columns = {"grpo": "prompt answer", "sft": "prompt completion"}.get(method, "prompt chosen rejected").split()
    rows = [{name: row[name] for name in columns} for row in (SHORT, {**SHORT, "prompt": "2+0?"}, TOO_LONG)]
    data = write("rows.jsonl", *rows)
    batch = TINY["batch"] if method == "grpo" else {"rows_per_step": 2}
    reward = {"reward": "exact_answer"} if method == "grpo" else {}
    settings = {"steps": 1, "batch": batch, "folder": "run", "console": False, **reward}
    with pytest.raises(WhetError, match=r"data\.unusable=drop") as error:
        whet.train(method, data=data, **settings)
    assert "context of 512" in str(error.value) and not Path("run").exists()
    run = whet.train(method, data=data, config={"data": {"unusable": "drop"}}, **settings)
    assert "too long for the context" in run.summary["facts"]["data"]


def test_an_evaluation_leaves_out_prompts_beyond_the_context():
    data = write("rows.jsonl", SHORT, {**SHORT, "prompt": "2+0?"}, TOO_LONG)
    with pytest.raises(WhetError, match=r"data\.unusable=drop"):
        whet.evaluate("whetstone", data, reward="exact_answer")
    found = whet.evaluate("whetstone", data, reward="exact_answer", settings={"data": {"unusable": "drop"}})
    assert found["prompts"] == 2


def test_half_of_what_a_launcher_says_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(WhetError, match=r"WORLD_SIZE is 2 and RANK is not set: .*torchrun"):
        whet.train("grpo", folder="run", console=False, **TINY)
    assert not Path("run").exists()
