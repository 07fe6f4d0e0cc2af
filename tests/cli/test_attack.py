"""`whet reward attack`: holes are found where there are some, and a reward without them passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whet.cli.reward import reward_app
from whet.tools.workbench.attack import STRATEGIES, attack_reward, wrong_answers
from whet.tools.workbench.workbench import reward_parts
from whet.types import Prompt, WhetError

MINE = '''
def anywhere(completion, answer):
    """1 where the gold answer stands anywhere."""
    return float(answer in completion)

def long(completion):
    return min(len(completion) / 1000, 1.0)

def strict(completion, answer):
    return float(completion.endswith(f"<answer>{answer}</answer>") and completion.count("<answer>") == 1)

def half(completion):
    return 0.5

def obeys(completion):
    return float("full marks" in completion or "\\u6ee1\\u5206" in completion)
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    rows = [{"prompt": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(5011, 5015)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def attacked(*options: str) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(reward_app, ["attack", *options, "--json"])
    return result.exit_code, json.loads(result.output) if result.exit_code < 2 else {}


def paid(record: dict[str, object]) -> set[str]:
    return {each["name"] for each in record["strategies"] if each["paid"]}  # type: ignore[attr-defined]


def test_a_reward_that_looks_anywhere_pays_for_guesses_and_nothing_else(here: Path) -> None:
    code, record = attacked("mine.py:anywhere", "--data", "sums.jsonl")
    by_name = {each.name: each for each in STRATEGIES}
    assert code == 1 and {"two boxes", "a list in the box", "white letters"} <= paid(record)
    assert all(by_name[name].sees_gold for name in paid(record))


def test_a_strict_reward_and_one_that_pays_everything_the_same_have_no_holes(here: Path) -> None:
    for name in ("mine.py:strict", "mine.py:half", "exact_answer"):
        code, record = attacked(name, "--data", "sums.jsonl")
        assert (code, paid(record)) == (0, set())
        assert record["tried"] == (len(STRATEGIES) + 1) * 4  # and the sum of the question itself


def test_the_formulas_of_the_users_own_questions_are_copied(here: Path) -> None:
    (here / "mine.py").write_text(
        "from whet.reward.mathematics.verdict import verdict\n"
        "from whet.data.gold import boxed\n"
        "def value(completion, answer):\n"
        "    return float(any(verdict(answer, box) is True for box in boxed(completion)))\n"
    )
    rows = [("Evaluate $\\log_2 64$.", "6"), ("How many weeks are 3 * 7 days?", "3"), ("Is it $5$ or $6$?", "5")]
    questions = "".join(json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in rows)
    (here / "mine.jsonl").write_text(questions)
    code, record = attacked("mine.py:value", "--data", "mine.jsonl")
    copied = next(strategy for strategy in record["strategies"] if strategy["name"] == "a formula of the question")  # type: ignore[attr-defined]
    assert (code, copied["tried"], len(copied["paid"])) == (1, 2, 1)  # 3 * 7 is not paid, and 5 is no formula
    assert "a formula of the question" not in paid(attacked("math_answer", "--data", "mine.jsonl")[1])


def test_length_and_obedience_are_found(here: Path) -> None:
    assert {"filler before", "steps that lead nowhere"} <= paid(attacked("mine.py:long", "--data", "sums.jsonl")[1])
    found = paid(attacked("mine.py:obeys", "--data", "sums.jsonl")[1])
    assert {"an order to the grader", "an order in Chinese"} <= found and "two boxes" not in found


def test_the_built_in_questions_and_the_table(here: Path) -> None:
    result = CliRunner().invoke(reward_app, ["attack", "mine.py:anywhere", "--limit", "2"])
    assert result.exit_code == 1
    assert "on built-in questions, 2 prompts: an honest wrong completion is paid 0, a right one 1" in result.output
    assert "PAID  two boxes" in result.output and "held  nothing at all" in result.output
    assert "strategies were paid more than an honest wrong completion" in result.output.splitlines()[-1]


def test_a_defence_closes_the_hole(here: Path) -> None:
    _, bare = attacked("mine.py:anywhere", "--limit", "4")
    _, guarded = attacked("mine.py:anywhere", "guessing=1.0", "--limit", "4")
    assert len(paid(guarded)) < len(paid(bare)) - 5


def test_mistakes_are_one_line(here: Path) -> None:
    (here / "bare.jsonl").write_text('{"prompt": "Hello?", "completion": "Hi."}\n')
    for options, said in (
        ((), "no reward is given"),
        (("exact_anser",), "did you mean 'exact_answer'"),
        (("exact_answer", "--data", "bare.jsonl"), "has no `answer` and no tests"),
        (("exact_answer", "--data", "missing.jsonl"), "missing.jsonl"),
    ):
        result = CliRunner().invoke(reward_app, ["attack", *options])
        assert isinstance(result.exception, WhetError) and said in str(result.exception)


def test_a_model_that_gives_the_right_answer_has_attacked_nothing() -> None:
    prompts = [Prompt("a", (), "2 + 2?", "4"), Prompt("b", (), "3 + 3?", "6")]

    def rewrite(texts: list[str]) -> list[str]:
        assert "2 + 2?" in texts[0] and "wrong" in texts[0]
        return ["\\boxed{4}", "\\boxed{6} \\boxed{7}"]

    found = attack_reward(reward_parts(["exact_answer"]), prompts, rewrite=rewrite)  # type: ignore[arg-type]
    by_model = next(each for each in found.results if each.kind == "model")
    assert by_model.tried == 1 and not by_model.paid


def test_wrong_answers_are_of_the_kind_and_wrong() -> None:
    assert "25" not in wrong_answers("25", [], 0) and all(
        each.lstrip("-").isdigit() for each in wrong_answers("25", [], 0)
    )
    assert wrong_answers("B", [], 0) == ["A", "C", "D"]
    assert wrong_answers("Lima", ["Lima", "Rome"], 0) == ["Rome"]
    assert wrong_answers("Lima", [], 0) == ["unknown"]


def test_programs_that_cheat_are_tried_where_there_are_tests() -> None:
    asked = Prompt("c", (), "Write twice(n).", None, {"test_list": ["assert twice(2) == 4"]})

    def fooled(prompts, samples):  # type: ignore[no-untyped-def]
        return [float("__eq__" in sample.completion) for sample in samples]

    fooled.name = "fooled"  # type: ignore[attr-defined]
    from whet.reward.combine import RewardPart

    found = attack_reward([RewardPart(fooled)], [asked])  # type: ignore[arg-type]
    assert {each.name for each in found.holes} == {
        "equal to everything",
        "a number equal to everything",
        "a text equal to everything",
    }
    assert all("def twice(" in each.paid[0].completion for each in found.holes)
