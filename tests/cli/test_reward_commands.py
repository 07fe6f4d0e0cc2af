"""`whet reward ...` on a real run of the built-in model and on files."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import whet
from tests.support.real_data import data_file
from whet.cli.reward import reward_app
from whet.pages.review import read_review
from whet.record.log import read_samples
from whet.reward.ledger import history
from whet.reward.run_record import note_version, record_effect, reward_table, write_version
from whet.tools.workbench.completions import given_completions, gold_completions, run_completions
from whet.tools.workbench.workbench import reward_parts, try_reward
from whet.types import WhetError

MINE = '''
def half(completion):
    """Half a point for anything."""
    return 0.5

def breaks(completion, answer):
    if answer == "3":
        raise ValueError("no threes")
    return 1.0

calls = []

def unsteady(completion):
    calls.append(completion)
    return float(len(calls))

def batched(completions, answer):
    if "3" in answer:
        raise ValueError("no threes")
    return [1.0] * len(completions)
'''


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("workbench") / "runs" / "first"
    few = {
        "batch": {"prompts_per_step": 2, "group_size": 4},
        "eval": {"prompts": 4},
        "model": {"threads": 1},
    }
    whet.train("grpo", steps=2, folder=str(folder), config=few, console=False)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    rows = [
        {"id": str(n), "prompt": f"{n} + 0", "answer": str(n), "solution": f"so \\boxed{{{n}}}"} for n in range(1, 5)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def called(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(reward_app, list(words))
    if isinstance(done.exception, WhetError):
        raise done.exception
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_gold_answers_and_solutions_are_tried(here):
    text = called("test", "math_answer", "--data", "data.jsonl", "--html", "page.html")
    assert "gold = 1       100.0%: 8 of 8 by math_answer" in text and "deterministic  yes, scored twice" in text
    assert "math_answer" in (here / "page.html").read_text()


def test_a_wrong_gold_answer_is_listed_with_its_line(here):
    lines = (here / "data.jsonl").read_text().replace('"answer": "2"', '"answer": "5"')
    (here / "data.jsonl").write_text(lines)
    found = json.loads(called("test", "math_answer", "--data", "data.jsonl", "--json", code=1))
    assert [(miss["where"], miss["kind"]) for miss in found["gold"]["misses"]] == [("data.jsonl:2", "gold solution")]
    assert found["gold"]["rate"] == pytest.approx(7 / 8)


@pytest.mark.parametrize("name", ["mine.py:breaks", "mine.py:batched"])
def test_failures_name_the_sample_and_the_rest_is_scored(here, name):
    found = json.loads(called("test", name, "--data", "data.jsonl", "--json", code=1))
    assert {each["where"] for each in found["failures"]} == {"data.jsonl:3"}
    assert "no threes" in next(iter(found["failures"][0]["failures"].values()))
    assert found["gold"]["rate"] == 1.0 and found["samples"] == 8 and found["unscorable"] == []


def test_a_row_without_a_gold_answer_is_a_failure_and_a_missing_column_an_error(here):
    (here / "data.jsonl").write_text((here / "data.jsonl").read_text().replace('"answer": "2"', '"answer": ""'))
    found = json.loads(called("test", "math_answer", "--data", "data.jsonl", "--json", code=1))
    assert {each["where"] for each in found["failures"]} == {"data.jsonl:2"}
    (here / "wants.py").write_text("def wants(completion, colour):\n    return 1.0\n")
    with pytest.raises(WhetError, match="asks for the column 'colour'"):
        called("test", "wants.py:wants", "--data", "data.jsonl")


def code_rows(*tests: object) -> str:
    rows = [
        {"id": str(n), "prompt": "Write add.", "tests": each, "code": "def add(a, b=0):\n    return a + b"}
        for n, each in enumerate(tests)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_tests_that_judge_nothing_are_not_sound(here):
    (here / "code.jsonl").write_text(code_rows("# later", "assert 1 + 1 == 2"))
    found = json.loads(called("test", "code_tests", "--data", "code.jsonl", "--json", code=1))
    assert [each["reason"] for each in found["unscorable"]] == [
        "the tests are only comments",
        "the tests never call the code",
    ]
    assert found["troubles"] == [
        "every sample is unscorable: the tests are only comments; the tests never call the code"
    ]
    text = called("test", "code_tests", "--data", "code.jsonl", code=1)
    assert "code.jsonl:2: the tests never call the code" in text and text.rstrip().endswith(found["troubles"][0])


def test_code_that_does_nothing_is_tried(here):
    (here / "code.jsonl").write_text(code_rows("def test_add():\n    assert callable(add)\n    add(1, 2)\n"))
    found = json.loads(called("test", "code_tests", "--data", "code.jsonl", "--json", code=1))
    assert found["controls"]["kinds"] == {"empty": [0, 1], "pass": [1, 1], "return None": [1, 1]}
    assert found["controls"]["passed"][0]["completion"] == "```python def add(a, b=None): pass ```"
    assert "cannot tell right from wrong" in found["troubles"][0]
    called("test", "code_tests", "--data", "code.jsonl", "--no-controls")
    (here / "code.jsonl").write_text(code_rows("assert add(1, 2) == 3", {"inputs": ["1"], "outputs": ["1"]}))
    found = json.loads(called("test", "code_tests", "--data", "code.jsonl", "--json", code=1))
    assert found["controls"]["kinds"] == {"empty": [0, 2], "pass": [0, 2], "return None": [0, 1], "print()": [0, 1]}


def test_the_slowest_row_is_the_one_whose_program_is_slow(here):
    """One call scores all rows; each has the time of its own program, not a share of the call's."""
    slow = "from time import sleep\ndef add(a, b):\n    sleep(0.5)\n    return a + b"
    rows = [
        {
            "id": f"row {n}",
            "prompt": "Write add.",
            "tests": ["assert add(1, 2) == 3"],
            "solution": f"```python\n{code}\n```",
        }
        for n, code in enumerate(["def add(a, b): return a + b"] * 3 + [slow] + ["def add(a, b): return b + a"] * 3)
    ]
    (here / "code.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = json.loads(called("test", "code_tests", "--data", "code.jsonl", "--json", "--once", "--no-controls"))
    seconds = [each["seconds"] for each in found["slowest"]]
    assert found["slowest"][0]["where"] == "code.jsonl:4" and seconds[0] > 0.5 > 2 * seconds[1] > 0


def test_a_program_that_draws_lots_is_run_twice(here):
    """Equal programs of a step run once; a dry run that scores twice asks whether they are equal."""
    lots = "import os\ndef add(a, b):\n    return 3 if os.urandom(1)[0] % 2 else 0"
    row = {"prompt": "Write add.", "tests": ["assert add(1, 2) == 3"], "solution": f"```python\n{lots}\n```"}
    rows = [{**row, "id": f"row {number}"} for number in range(24)]
    (here / "code.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = json.loads(called("test", "code_tests", "--data", "code.jsonl", "--json", "--no-controls", code=1))
    assert found["deterministic"] is False and found["differences"]


def test_a_reward_that_pays_anything_is_not_sound(here):
    (here / "all.py").write_text("def all_right(completion):\n    return 1.0\n")
    text = called("test", "all.py:all_right", "--data", "data.jsonl", "--html", "page.html", code=1)
    assert "wrong < 1      0.0%: empty 0 of 4, no answer 0 of 4, None 0 of 4" in text
    assert "cannot tell right from wrong" in (here / "page.html").read_text()
    found = json.loads(called("test", "math_answer", "--data", "data.jsonl", "--json"))
    assert found["controls"]["kinds"] == {"empty": [0, 4], "no answer": [0, 4], "None": [0, 4]}


def test_an_unsteady_reward_is_caught(here):
    found = json.loads(called("test", "mine.py:unsteady", "--data", "data.jsonl", "--json", code=1))
    assert found["deterministic"] is False and len(found["differences"]) == 8
    assert json.loads(called("test", "mine.py:unsteady", "--data", "data.jsonl", "--json", "--once", code=1))[
        "deterministic"
    ] is None  # fmt: skip


def test_several_parts_with_weights(here):
    found = json.loads(called("test", "math_answer", "--reward", "mine.py:half=0.2", "--data", "data.jsonl", "--json"))
    assert found["title"] == "1 x math_answer + 0.2 x half"
    assert found["total"]["mean"] == pytest.approx(1.1) and found["never_vary"] == ["total", "math_answer", "half"]


def test_a_config_brings_its_reward(here):
    (here / "run.toml").write_text(
        '[[reward.parts]]\nreward = "mine.py:half"\nweight = 0.5\n[data]\nsource = "data.jsonl"\n'
    )
    found = json.loads(called("test", "run.toml", "--data", "data.jsonl", "--json", code=1))
    assert found["title"] == "0.5 x half"


def test_given_completions_stand_alone_or_join_the_data(here):
    completions = [{"prompt_id": "2", "completion": "\\boxed{2}"}, {"id": "3", "completion": "\\boxed{4}"}]
    (here / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in completions))
    joined = given_completions("completions.jsonl", "data.jsonl", {}, 0)
    assert [answer.prompt.answer for answer in joined.items] == ["2", "3"]
    found = try_reward(reward_parts(["math_answer"]), joined)
    assert [each.total for each in found.scored] == [1.0, 0.0] and not found.gold
    alone = [{"question": "2+2", "answer": "4", "response": "\\boxed{4}"}] * 2
    (here / "alone.jsonl").write_text("".join(json.dumps(row) + "\n" for row in alone))
    assert "2 (100.0%)" in called("test", "math_answer", "--completions", "alone.jsonl")
    (here / "completions.jsonl").write_text('{"prompt_id": "9", "completion": "x"}\n')
    with pytest.raises(WhetError, match=r"completions.jsonl:1: no row of data.jsonl has the id or prompt '9'"):
        given_completions("completions.jsonl", "data.jsonl", {}, 0)


def test_public_data_is_understood(here):
    (here / "gsm.jsonl").write_text(json.dumps({"question": "1+1?", "answer": "one and one\n#### 2"}) + "\n")
    found = gold_completions("gsm.jsonl", {}, 0)
    assert [(each.kind, each.prompt.answer) for each in found.items] == [("gold answer", "2"), ("gold solution", "2")]
    assert found.notes[0] == "prompt from question, answer from what follows #### in answer"
    (here / "math.jsonl").write_text(json.dumps({"problem": "x", "solution": "so \\boxed{\\frac12}"}) + "\n")
    assert gold_completions("math.jsonl", {}, 0).items[0].prompt.answer == "\\frac12"
    task = gold_completions("task:arithmetic", {}, 6)
    assert len(task.items) == 6
    assert try_reward(reward_parts(["exact_answer"]), task).gold_rate() == 1.0


def test_a_run_is_tried_and_rescored(run, here):
    saved = run_completions(run)
    found = json.loads(called("test", "exact_answer", "--run", str(run), "--json"))
    assert found["samples"] == len(saved.items) > 0
    mean = sum(answer.reward for answer in saved.items) / len(saved.items)
    assert found["total"]["mean"] == pytest.approx(mean)  # the run's own reward, from its own samples
    same = json.loads(called("rescore", str(run), "--with", "exact_answer", "--json"))
    assert same["flipped_share"] == 0.0 and same["largest"] == [] and same["groups"] >= 2
    text = called("rescore", str(run), "--with", "mine.py:half", "--html", "rescore.html")
    assert re.search(r"total +\S+ +0\.500", text)
    assert "Largest differences" in (here / "rescore.html").read_text()


def test_a_run_is_tried_with_its_own_reward(run, here):
    assert json.loads(called("test", "--run", str(run), "--json"))["title"] == "1 x exact_answer"


def test_a_run_leaves_answers_for_review(tmp_path):
    folder = tmp_path / "runs" / "reviewed"
    few = {
        "batch": {"prompts_per_step": 2, "group_size": 4},
        "eval": {"prompts": 0},
        "report": {"review_every": 2, "review_count": 2},
        "model": {"threads": 1},
    }
    whet.train("grpo", steps=3, folder=str(folder), config=few, console=False)
    rows = read_review(folder)
    hashes = {row["reward_hash"] for row in rows}
    assert {row["step"] for row in rows} == {2, 3} and hashes == {each["reward_hash"] for each in read_samples(folder)}
    assert len(hashes) == 1 and "" not in hashes
    marked = [{**row, "mark": "hacked" if row["end"] == "high" else "good"} for row in rows]
    (tmp_path / "marked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in marked))
    counts = json.loads(called("review", str(folder), "--marks", str(tmp_path / "marked.jsonl"), "--json"))
    assert counts["high unmarked"] == counts["low unmarked"] == 0
    assert counts["agreement"]["agreed"] == 0 and counts["agreement"]["marked"] == len(rows)
    said = called("review", str(folder))
    assert "marked answers with a high reward are hacked" in said and (folder / "review.html").exists()
    assert {row["mark"] for row in read_review(folder)} == {"hacked", "good"}


def test_a_run_remembers_its_reward(run, here):
    ledger = here / "rewards.jsonl"
    parts = reward_parts(["exact_answer", "think_format=0.2"])
    versions = [write_version(run, parts), write_version(run, reward_parts(["exact_answer"]))]
    first, second = (version.hash for version in versions)
    note_version(run, versions[0], ledger)
    record_effect(run, first, ledger)
    note_version(run, versions[1], ledger)
    assert set(reward_table(run)) == {first, second}
    assert reward_table(run)[first]["weights"] == {"exact_answer": "1", "think_format": "0.2"}
    entries = history(ledger)
    assert [entry.new for entry in entries] == [first, second] and entries[1].reason == "not given"
    effect = entries[0].effects[0]
    assert effect.steps == 2 and effect.parts.keys() == {"total", "exact_answer"} and "accuracy" in effect.evaluation
    called("note", "--reason", "format was enough", "--expected", "the same marks", "--ledger", str(ledger))
    text = called("history", "--ledger", str(ledger))
    assert "format was enough" in text and "held-out accuracy" in text and f"{first} -> {second}" in text
    assert json.loads(called("history", "--ledger", str(ledger), "--json"))[1]["expected"] == "the same marks"


def test_a_note_opens_an_entry(here):
    assert "first -> " in called("note", "math_answer", "--reason", "start")
    assert "start" in called("history") and (here / "runs" / "rewards.jsonl").exists()
    found = json.loads(called("version", "math_answer", "--json"))
    assert (
        found["hash"] == history("runs/rewards.jsonl")[0].new and "math_answer: file math_answer.py" in found["pieces"]
    )


def test_the_builtin_rewards_are_listed():
    assert set(json.loads(called("list", "--json"))) >= {"math_answer", "exact_answer", "think_format"}
    assert "tolerance" in json.loads(called("list", "math_answer", "--json"))["settings"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("test", "math_answr", "--data", "data.jsonl"), "did you mean 'math_answer'"),
        (("test", "--data", "data.jsonl"), "no reward is given"),
        (("test", "math_answer"), "nothing to score"),
        (("test", "math_answer=heavy", "--data", "data.jsonl"), "'heavy' is no weight"),
        (("test", "math_answer", "--run", "runs/x", "--data", "data.jsonl"), "brings its own"),
        (("test", "math_answer", "--data", "data.jsonl", "--set", "reward.timeot=1"), "did you mean 'timeout'"),
        (
            ("test", "math_answer", "mine.py:half", "--data", "data.jsonl", "--set", "other.x=1"),
            "no part is called 'other'",
        ),
        (("list", "math_answr"), "did you mean 'math_answer'"),
        (("note",), "nothing to note"),
        (("note", "--reason", "x", "--ledger", "none.jsonl"), "has no entry to explain"),
        (("review", "runs/none"), "has no review.jsonl"),
        (("rescore", "runs/none", "--with", "math_answer"), "not a run folder"),
    ],
)
def test_mistakes_are_one_line(here, words, said):
    with pytest.raises(WhetError, match=re.escape(said)) as caught:
        called(*words)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "least"), [("gsm8k/test.jsonl.gz", 0.999), ("math/math_test.jsonl.gz", 0.98)])
def test_the_workbench_on_whole_files(file, least):
    found = try_reward(reward_parts(["math_answer"]), gold_completions(str(data_file(file)), {}, 0), twice=False)
    assert found.gold_rate() >= least, [miss.where for miss in found.gold_misses]
    assert not found.failed
