"""The pieces of the benchmark of learning agents: recipes, rows, command lines, and what is said of runs."""

import gzip
import json
from pathlib import Path

import agent_data
import agent_learning
import pytest

from tests.support.packages import needs
from whet.envs.tools.calculator import calculator
from whet.training.config import resolved


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = {
        "gsm8k/train": [{"question": "1 + 1?", "answer": "so\n#### 2"}],
        "gsm8k/test": [{"question": "1,000 + 1?", "answer": "#### 1,001"}],
        "math/asdiv": [
            {
                "body": f"{name} has {count} red apples in a bowl.",
                "question": f"How many apples has {name}?",
                "answer": f"{count} (apples)",
            }
            for count, name in enumerate(("Ann", "Bob", "Cid", "Dot", "Eve", "Fay", "Gus", "Hal"), 3)
        ],
    }
    for name, lines in rows.items():
        file = tmp_path / "given" / f"{name}.jsonl.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(file, "wt", encoding="utf-8") as stream:
            stream.writelines(f"{json.dumps(line)}\n" for line in lines)
    return tmp_path / "given"


@pytest.mark.parametrize("run", agent_learning.RECIPES)
def test_a_recipe_is_a_config(run: str) -> None:
    config = resolved("grpo", agent_learning.RECIPES[run], {"data": {"source": "rows.jsonl"}})
    assert config.env.tools == (run,) or config.env.name


def test_rows_begin_with_an_example_that_is_right(data: Path, tmp_path: Path) -> None:
    agent_data.write_data(data, tmp_path, ["calculator", "bfcl", "game"])
    (row,) = map(json.loads, (tmp_path / "calculator_test.jsonl").read_text().splitlines())
    _, call, result, answer, question = (message["content"] for message in row["prompt"])
    assert calculator(call.strip("`").removeprefix("calculator")) == result and f"{{{result}}}" in answer
    assert (question, row["answer"]) == ("1,000 + 1?", "1001")
    for run, column in (("bfcl", "task"), ("game", "seed")):
        parts = [(tmp_path / f"{run}_{part}.jsonl").read_text().splitlines() for part in agent_data.PARTS]
        train, test = ({json.loads(line)[column] for line in part} for part in parts)
        assert len(train) == len(parts[0]) == len(test) and not train & test


@needs("bm25s")
def test_questions_are_without_their_stories_and_no_story_is_in_both_parts(data: Path) -> None:
    stories, rows = agent_data.story_rows(data)
    assert len(stories) == 8 and [len(rows[part]) for part in agent_data.PARTS] == [6, 2]
    for row in rows["test"]:
        assert row["prompt"][-1]["content"].startswith("How many apples has") and row["answer"] in ("6", "10")


def test_a_command_line_and_what_is_said_of_its_run(data: Path, tmp_path: Path) -> None:
    (plan,) = agent_learning.planned(["calculator"], "MODEL", data, tmp_path, [3], 40, tiny=False)
    words = agent_learning.command_line(plan).split()
    assert words[:5] == ["whet", "train", "grpo", "--config", "recipes/agent_calculator.toml"]
    assert "--seed" in words and f"--data {tmp_path}/data/calculator_train.jsonl" in " ".join(words)
    counts = {"samples": 10, "tool_calls": 20, "tool_errors": 3, "unknown_tools": 2, "turns": 30, "truncated": 1}
    step = {"step": 1, "counts": counts, "reward": {"total": 0.5}}
    evals = [
        {"step": number, "eval": "eval", "size": 100, "result": {"accuracy": right, "reward": right, "tool_calls": 1.0}}
        for number, right in ((0, 0.2), (40, 0.6))
    ]
    record = {"tags": {"run": "calculator"}, "error": "", "wall_s": 9.0, "lines": [evals[0], step, evals[1]]}
    said = agent_learning.summary([record])["calculator"]
    assert (said["before"]["accuracy"], said["after"]["accuracy"], said["seconds"]) == (0.2, 0.6, 9.0)
    assert said["after"]["low"] < 0.6 < said["after"]["high"]
    assert said["last_steps"] == {"reward": 0.5, "calls": 2.0, "failed_calls": 0.5, "turns": 3.0, "truncated": 0.1}
    assert "20.0%   60.0%" in agent_learning.table({"calculator": said})
