"""recipes/word_problems.py from its command line to its summary, on a tiny model and tiny data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Recipe = Callable[[str], ModuleType]
SPELLED = str.maketrans("01", "ab")


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("3 + 4 = 7\n#### 7", "7", 1.0),
        ("so 12 apples", "12", 1.0),
        ("9-3", "3", 1.0),  # a minus behind a number subtracts
        ("9 -3", "3", 1.0),
        ("it is -3", "-3", 1.0),
        ("it is -3", "3", 0.0),
        ("$1,250.50.", "1250.5", 1.0),
        ("costs .5", "0.5", 1.0),
        ("7 apples, then 8", "7", 0.0),
        ("v2 has 1,000", "1000", 1.0),
        ("3.14", "3", 0.0),
        ("none", "0", 0.0),
        ("", "0", 0.0),
    ],
)
def test_the_last_number_decides(recipe: Recipe, completion: str, answer: str, right: float) -> None:
    assert recipe("last_number").last_number(completion, answer) == right


def test_a_formula_becomes_one_line_per_operation(recipe: Recipe) -> None:
    worked = recipe("word_problem_data").worked_solution
    assert worked("(87-33)/6=9", "9", "pages") == "87 - 33 = 54\n54 / 6 = 9 pages\n#### 9"
    assert worked("7+2=9", "8", "") == ""  # the formula and the answer disagree
    assert worked("47/6=7 r5", "7", "") == ""
    assert worked("28/25=1 r3; 3/1=3; 1+3=4", "4", "") == ""
    assert worked("__import__('os')=1", "1", "") == ""


def test_what_is_like_a_test_question_is_never_trained_on(recipe: Recipe) -> None:
    data = recipe("word_problem_data")
    test = data.Question("svamp", "Sam had 9 red marbles and lost 4 of them in the park. How many has he now?", "5")
    near = data.Question("asdiv", "Sam had 31 red marbles and lost 12 of them. How many has he now?", "19")
    worded = data.Question("asdiv", "Sam had nine red marbles and lost four of them in the park. How many now?", "5")
    far = data.Question("asdiv", "A train needs 3 hours for 240 km. How fast is it?", "80")
    kept, found = data.without_alike([near, worded, far], [test])
    assert kept == [far]
    assert found["svamp"] == {near, worded}


def test_questions_that_are_alike_lie_on_one_side(recipe: Recipe) -> None:
    data = recipe("word_problem_data")
    families = [
        [data.Question("mawps", f"{family:08b} ".translate(SPELLED) * 4 + f"{count}?", "1") for count in range(3)]
        for family in range(40)
    ]
    train, held_out = data.split([question for family in families for question in family])
    assert train and held_out
    for family in families:
        assert len({question in held_out for question in family}) == 1


def test_the_files_are_the_same_every_time_and_do_not_overlap(
    recipe: Recipe, word_problems: Path, tmp_path: Path
) -> None:
    data = recipe("word_problem_data")
    about = data.write_data(word_problems, tmp_path / "one", ("gsm8k", "asdiv"))
    data.write_data(word_problems, tmp_path / "two", ("gsm8k", "asdiv"))
    rows = {}
    for name in ("demonstrations", "train", "eval"):
        text = (tmp_path / "one" / f"{name}.jsonl").read_text()
        assert text == (tmp_path / "two" / f"{name}.jsonl").read_text()
        rows[name] = [json.loads(line) for line in text.splitlines()]
    assert about["eval"]["svamp"] == about["eval"]["gsm8k"] == 20
    assert sum(about["train"].values()) == len(rows["train"]) > 0
    tested = {row["prompt"][0]["content"] for row in rows["eval"]}
    assert not tested & {row["prompt"][0]["content"] for row in (*rows["train"], *rows["demonstrations"])}
    assert not any("<<" in row["completion"] for row in rows["demonstrations"])


@pytest.mark.parametrize(
    ("completion", "paid"),
    [("3 + 4 = 7\n#### 7", 1.0), ("#### -1,250.5 ", 1.0), ("#### 7 apples", 0.0), ("so #### 7", 0.0), ("7", 0.0)],
)
def test_the_answer_has_a_line_of_its_own(recipe: Recipe, completion: str, paid: float) -> None:
    assert recipe("last_number").answer_line(completion, "7") == paid


def test_evals_are_averaged_over_the_seeds_and_paths_stay_on_the_machine(recipe: Recipe, tmp_path: Path) -> None:
    pipelines = recipe("smollm2_pipelines")
    found = pipelines.over_seeds([{"prompts": 5, "pass@8": (0.2, 0.1, 0.3)}, {"prompts": 5, "pass@8": (0.4, 0.3, 0.5)}])
    assert found["pass_at_8"]["mean"] == pytest.approx(0.3) and found["pass_at_8"]["std"] == pytest.approx(0.02**0.5)
    assert found["seeds"] == 2 and (found["pass_at_8"]["low"], found["pass_at_8"]["high"]) == (0.1, 0.3)
    stage = {"name": "mix", "result": {"summary": "3 of /data/here/rows.jsonl, 1/2 kept"}, "seconds": 1.0}
    (tmp_path / "01-mix").mkdir()
    (tmp_path / "01-mix" / "stage.json").write_text(json.dumps(stage))
    assert pipelines.stage_results(tmp_path)["mix"]["summary"] == "3 of rows.jsonl, 1/2 kept"


def test_more_questions_to_train_on_are_not_tested_either(recipe: Recipe, word_problems: Path, tmp_path: Path) -> None:
    data = recipe("word_problem_data")
    without = data.write_data(word_problems, tmp_path / "one", ("gsm8k", "asdiv"))
    about = data.write_data(word_problems, tmp_path / "two", ("gsm8k", "asdiv"), gsm8k_questions=5)
    assert about["train"] == {**without["train"], "gsm8k": 5}
    assert about["asdiv_and_mawps"] == without["asdiv_and_mawps"]
    texts = [
        {json.loads(line)["prompt"][0]["content"] for line in (tmp_path / "two" / f"{name}.jsonl").open()}
        for name in ("train", "eval")
    ]
    assert not texts[0] & texts[1]


def test_general_rows_are_instructions_with_their_input(recipe: Recipe, word_problems: Path) -> None:
    rows = recipe("word_problem_data").general_rows(word_problems)
    assert sorted(row["completion"] for row in rows) == ["No.", "Yes.", "Yes.", "Yes."]
    (task,) = [row["prompt"][0]["content"] for row in rows if row["completion"] == "No."]
    assert task.startswith("Shorten.\n\n")


def arguments(data: Path, folder: Path, *more: str) -> list[str]:
    words = ["word_problems.py", "--data", str(data), "--model", "whetstone", "--folder", str(folder)]
    words += ["--methods", "grpo,rloo", "--epochs", "2", "--sft-steps", "2", "--prompts-per-step", "8", "--limit", "12"]
    return [*words, "--set", "batch.group_size=2", "--set", "sampling.max_new_tokens=8", *more]


@pytest.mark.slow
def test_one_command_runs_the_chain_and_goes_on(
    recipe: Recipe, word_problems: Path, tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, folder = recipe("word_problems"), tmp_path / "runs"
    monkeypatch.setattr("sys.argv", arguments(word_problems, folder))
    module.main()
    assert [words[0:2] for words in commands[1:]] == [["train", "sft"], ["train", "grpo"], ["train", "rloo"]]
    assert commands[0][0] == "eval"
    values = json.loads((folder / "summary.json").read_text())
    assert values["steps_per_epoch"] == 2  # 12 questions, 8 in a step
    assert values["unfinished"] == []
    for run in values["runs"]:
        assert [stage["step"] for stage in run["stages"]] == [0, 2, 4]
        assert {"svamp", "held_out", "gsm8k", "completion_tokens"} <= run["stages"][0].keys()
        assert {"entropy", "sampler_gap", "completion_length", "reward", "seconds"} <= run["stages"][2].keys()
        assert {"rollout", "train", "all"} <= run["seconds"].keys()
    assert values["methods"].keys() == {"grpo", "rloo"}
    assert "| `grpo`, 2 epochs | " in (folder / "summary.md").read_text()
    assert "<svg" in (folder / "curve.svg").read_text()

    done = len(commands)
    module.main()
    assert len(commands) == done  # nothing is run twice

    monkeypatch.setattr("sys.argv", arguments(word_problems, folder, "--epochs", "3", "--seeds", "2"))
    module.main()
    longer = [words for words in commands[done:] if words[0] == "resume"]
    assert [words[2:4] for words in longer] == [["--steps", "6"]] * 2
    values = json.loads((folder / "summary.json").read_text())
    assert [stage["step"] for stage in values["runs"][0]["stages"]] == [0, 2, 4, 6]
    assert values["methods"]["grpo"]["seeds"] == 2
    assert values["methods"]["grpo"]["svamp"]["interval"] is not None

    monkeypatch.setattr("sys.argv", arguments(word_problems, folder, "--learning-rate", "1e-3"))
    with pytest.raises(SystemExit, match="--learning-rate was 1e-05"):
        module.main()


def test_a_failed_stage_is_named_and_ends_the_chain(
    recipe: Recipe,
    word_problems: Path,
    tmp_path: Path,
    commands: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", arguments(word_problems, tmp_path / "runs", "--model", "no-such-model"))
    with pytest.raises(SystemExit) as stopped:
        recipe("word_problems").main()
    assert stopped.value.code == 1
    said = capsys.readouterr().out
    assert "failed: before, sft" in said
    assert "not finished: grpo seed 1, rloo seed 1" in said
    assert all(words[1] != "grpo" for words in commands)


def test_the_interval_is_that_of_student(recipe: Recipe) -> None:
    half_width = recipe("word_problems").half_width
    assert half_width([0.2]) is None
    assert half_width([0.20, 0.22, 0.24]) == pytest.approx(4.303 * 0.02 / 3**0.5)


def test_the_figure_of_the_readme_is_that_of_the_results(recipe: Recipe) -> None:
    root = Path(__file__).resolve().parents[2]
    results, figure = root / "results" / "real_word_problems.json", root / "docs" / "images" / "word-problems.svg"
    if not results.is_file():
        pytest.skip("results/real_word_problems.json: not measured yet")
    values = json.loads(results.read_text())["values"]
    assert figure.read_text() == recipe("word_problems").curve_svg(values)
