"""The rule rewards against data nobody here wrote, whole files at a time. Rates are kept as floors.

Known misses are listed by their
place in the file with the reason; a new miss fails the test, and so does one that is no longer missed.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.real_data import data_rows
from whet.reward.answer import boxed, exact_answer
from whet.reward.coherence import coherence
from whet.reward.language import language
from whet.reward.mathematics.math_answer import math_answer
from whet.reward.repetition import repetition
from whet.reward.safety import findings, safety
from whet.reward.tool_calls import tool_calls
from whet.types import Prompt

pytestmark = pytest.mark.slow


def prompt(answer: Any, question: str = "q", **meta: Any) -> Prompt:
    return Prompt("p", (), text=question, answer=answer, meta=meta)


def test_math_verify_own_cases() -> None:
    known = {
        6: "1,22 as a decimal: here it is a pair",
        30: "a gold answer that is a number, and a sum still to be worked out",
        31: "asks the extraction to refuse a formula over several lines",
        32: "asks the extraction to refuse a formula over several lines",
        35: "an equation that does not hold, 1/2 = 10/9",
        109: "a gold answer with an unknown command",
        172: "frames a result on the way and another at the end: two answers here",
        189: "a gold answer that lost its backslash",
        243: "a gold answer that lost its end",
        258: "asks for 1 - 1/e and 1 + 1/e to be equal",
        267: "asks for any variable to be any other",
    }
    misses = {}
    for place, row in enumerate(data_rows("verifier_vectors/math_verify")):
        options = row["options"]
        tolerance = 0.01 if options.get("precision") == 2 else 0.0
        sets = bool(options.get("allow_set_relation_comp", False))
        score = math_answer(prompt(row["gold"]), row["pred"], tolerance=tolerance, relations_as_sets=sets)
        if score is None or (score == 1.0) != row["expected"]:
            misses[place] = (row["gold"][-80:], row["pred"][-80:], score)
    assert set(misses) == set(known), misses


def test_hendrycks_cases() -> None:
    """Its two cases of a list in another order are wrong by its rule; a set has no order here."""
    misses = []
    for row in data_rows("verifier_vectors/hendrycks_is_equiv"):
        score = math_answer(prompt(row["a"]), rf"\boxed{{{row['b']}}}")
        if score is None or (score == 1.0) != row["expected"]:
            misses.append(row["test"])
    assert misses == ["test_order", "test_decimals"]


def test_answers_of_real_models() -> None:
    """The misses of the second file are strings that lost their braces or backslashes (\\frac3*sqrt(3)4)."""
    expected = {"rasbt_math500_qwen3_answers": (298, 0), "rasbt_math500_gpt_answers": (481, 0)}
    for name, (right, unscorable) in expected.items():
        scores = [
            math_answer(prompt(row["answer"]), row["prediction"]) for row in data_rows(f"verifier_vectors/{name}")
        ]
        assert (scores.count(1.0), scores.count(None), len(scores)) == (right, unscorable, 500)


def test_trajectories_with_tools() -> None:
    """1,319 trajectories of another model: our verdict on the whole text agrees with its own prediction and gold."""
    agree = 0
    data = data_rows("verifier_vectors/tora70b_gsm8k_preds")
    for row in data:
        ours = math_answer(prompt(row["gt"], row["question"]), row["code"], judged="last")
        try:
            theirs = abs(float(str(row["pred"]).replace(",", "")) - float(str(row["gt"]).replace(",", ""))) < 1e-6
        except ValueError:
            theirs = False
        agree += ours == float(theirs)
    assert (agree, len(data)) == (1317, 1319)  # rows 98 and 288 mark no answer: "Three trucks will be needed"


@pytest.mark.parametrize("name", ["train", "test"])
def test_gsm8k_solutions_score_one(name: str) -> None:
    for row in data_rows(f"gsm8k/{name}"):
        asked = prompt(row["answer"].split("####")[1].strip(), row["question"])
        for reward in (exact_answer, math_answer):
            assert reward(asked, row["answer"]) == 1.0
            assert reward(asked, row["answer"] + "1") == 0.0


def test_gsm8k_verdicts_of_people() -> None:
    """Four models' solutions with the authors' verdict; theirs end in "A: 18", which is no mark of ours."""
    agree = total = 0
    for row in data_rows("gsm8k/example_model_solutions"):
        gold = row["ground_truth"].split("A:")[-1].strip()
        for solution in row.values():
            if isinstance(solution, dict):
                text = "Answer:".join(solution["solution"].rsplit("A:", 1))
                agree += math_answer(prompt(gold), text) == float(solution["is_correct"])
                total += 1
    assert (agree, total) == (5276, 5276)


# solutions that frame something else on the way (they score 1 with judged="last"), gold answers that are not read in
# full, and rows whose frame is empty
FRAMED = {
    "math_train": [
        *(334, 504, 1425, 2489, 3326, 3460, 3694, 3997, 4253, 5270, 5446, 6780, 6816, 6843, 6922, 7225, 7321, 7414),
        *(7417, 7493),
    ],
    "math_test": [91, 333, 414, 2152, 2549, 2656, 2703, 2716, 2912, 2936, 4060, 4559, 4562, 4860],
}
UNSCORABLE: dict[str, list[int]] = {"math_train": [], "math_test": []}
EMPTY: dict[str, list[int]] = {"math_train": [5341, 5343], "math_test": []}


@pytest.mark.parametrize("name", ["math_train", "math_test"])
def test_math_solutions_score_one(name: str) -> None:
    empty, unscorable, framed, wrong = [], [], [], []
    for place, row in enumerate(data_rows(f"math/{name}")):
        frames = boxed(row["solution"])
        if not frames or not frames[-1]:
            empty.append(place)
            continue
        score = math_answer(prompt(frames[-1]), row["solution"])
        if score is None:
            unscorable.append(place)
        elif score != 1.0:
            framed.append(place)
            wrong += [place] if math_answer(prompt(frames[-1]), row["solution"], judged="last") != 1.0 else []
    assert not wrong
    assert (empty, unscorable, framed) == (EMPTY[name], UNSCORABLE[name], FRAMED[name])


# rows whose gold answer is not read in full: words, or nothing at all
WORDS = {
    **{"aime24": 0, "aime_1983_2023": 0, "amc23": 0, "math500": 0, "gsm_hard": 0, "mawps": 0, "svamp": 0},
    **{"olympiadbench": 2, "deepscaler_math_slice": 4, "asdiv": 60},
}
COLUMNS = ("final_answer", "answer", "target", "Answer")


@pytest.mark.parametrize("name", WORDS)
def test_gold_answers_of_other_sets_score_one(name: str) -> None:
    unscorable = 0
    for row in data_rows(f"math/{name}"):
        gold = next(row[column] for column in COLUMNS if column in row)
        gold = ", ".join(map(str, gold)) if isinstance(gold, list) else gold
        if gold is None or not str(gold).strip() or math_answer(prompt(gold), r"\boxed{77777.5}") is None:
            unscorable += 1
            continue
        assert math_answer(prompt(gold), rf"\boxed{{{gold}}}") == 1.0
        assert math_answer(prompt(gold), r"\boxed{77777.5}") == 0.0
    assert unscorable == WORDS[name]


def gold_completion(call: dict[str, Any], as_json: bool) -> str:
    """A call with the first allowed value of each argument, optional arguments left out."""
    ((name, arguments),) = call.items()
    given = {key: first(values) for key, values in arguments.items() if first(values) != ""}
    if as_json:
        return f"<tool_call>{json.dumps({'name': name, 'arguments': given})}</tool_call>"
    return f"<tool_call>{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})</tool_call>"


def first(values: Any) -> Any:
    value = values[0] if values else ""
    if isinstance(value, dict):
        return {key: first(inner) for key, inner in value.items() if isinstance(inner, list) and first(inner) != ""}
    if isinstance(value, list):
        return [first([each]) for each in value]
    return value


@pytest.mark.parametrize("name", ["simple_python", "multiple", "live_simple"])
def test_function_calls_of_the_leaderboard(name: str) -> None:
    questions = {row["id"]: row for row in data_rows(f"bfcl/BFCL_v4_{name}")}
    misses = []
    for row in data_rows(f"bfcl/possible_answer_{name}"):
        asked = prompt(None, ground_truth=row["ground_truth"], function=questions[row["id"]]["function"])
        for as_json in (True, False):
            completion = "".join(gold_completion(call, as_json) for call in row["ground_truth"])
            if tool_calls(asked, completion) != 1.0 or tool_calls(asked, completion, credit="exact") != 1.0:
                misses.append((row["id"], completion))
        assert tool_calls(asked, completion.replace("(", "_other(", 1)) == 0.0
        assert tool_calls(asked, "I cannot help with that.") == 0.0
    assert not misses


def test_multi_turn_calls_of_the_leaderboard() -> None:
    for row in data_rows("bfcl/possible_answer_multi_turn_base"):
        calls = [call for turn in row["ground_truth"] for call in turn]
        completion = "".join(f"<tool_call>{call}</tool_call>" for call in calls)
        assert tool_calls(prompt(row["ground_truth"]), completion, ordered=True, credit="exact") == 1.0
        assert tool_calls(prompt(row["ground_truth"]), completion[: len(completion) // 2]) != 1.0


def test_questions_that_no_tool_answers() -> None:
    for row in data_rows("bfcl/BFCL_v4_irrelevance"):
        name = row["function"][0]["name"] if row["function"] else "f"
        assert tool_calls(prompt([]), "None of these functions can do that.") == 1.0
        assert tool_calls(prompt([]), f"<tool_call>{name}()</tool_call>") == 0.0


def honest() -> Iterator[tuple[str, str]]:
    """(question, completion) of people and good models."""
    for name in ("alpaca_en_demo", "rasbt_instruction_data"):
        yield from ((f"{row['instruction']} {row['input']}", row["output"]) for row in data_rows(f"sft/{name}"))
    for name in ("self_instruct_seed_tasks", "self_instruct_user_oriented"):
        for row in data_rows(f"sft/{name}"):
            yield from ((f"{row['instruction']} {each['input']}", each["output"]) for each in row["instances"])
    yield from ((row["prompt"], row["answer"]) for row in data_rows("sft/dolly_qa_sample"))
    for name in ("train", "test"):
        yield from ((row["question"], row["answer"]) for row in data_rows(f"gsm8k/{name}"))


def test_honest_completions_are_not_punished() -> None:
    completions = [(question, completion) for question, completion in honest() if completion.strip()]
    unsafe = sum(safety(prompt(None, question), completion) < 1 for question, completion in completions)
    incoherent = sum(coherence(prompt(None, question), completion) < 0.5 for question, completion in completions)
    repeated = sum(repetition(completion) < 0 for _, completion in completions)
    assert len(completions) > 11_000
    assert unsafe <= 1  # a lesson that calls eval
    assert incoherent / len(completions) <= 0.002
    assert repeated / len(completions) <= 0.005
    scores = [language(prompt(None, question), completion) for question, completion in completions]
    known = [score for score in scores if score is not None]
    assert len(known) / len(completions) > 0.9
    assert sum(score < 0.9 for score in known) / len(known) <= 0.01


def test_attacks_on_coherence_are_caught() -> None:
    asked = "How many are there, and what does the sum of all of them come to in the end?"
    dice = random.Random(0)
    long = [row["output"].split() for row in data_rows("sft/alpaca_en_demo") if len(row["output"].split()) > 60][:300]
    noise = ["".join(dice.choice(string.ascii_lowercase + "    ") for _ in range(300)) for _ in range(300)]
    attacks = {
        "random letters": (noise, 1.0),
        "random characters": (["".join(dice.choices(string.printable[:94], k=300)) for _ in range(300)], 0.99),
        "shuffled words": ([" ".join(dice.sample(words, len(words))) for words in long], 0.9),
        "shuffled letters": ([" ".join("".join(dice.sample(w, len(w))) for w in words) for words in long], 0.95),
        "a loop": ([" ".join(words[:12] * 12) for words in long], 1.0),
    }
    for name, (texts, floor) in attacks.items():
        caught = sum(coherence(prompt(None, asked), f"<think>{text}</think> 7") < 0.5 for text in texts)
        assert caught / len(texts) >= floor, (name, caught / len(texts))


def test_labelled_completions_hold_no_secrets() -> None:
    """2,250 completions of five models: what is flagged is the kind of thing the patterns are about."""
    found = [
        finding.pattern.name
        for row in data_rows("safety/xstest_v2_completions_labelled")
        for finding in findings(row["completion"])
    ]
    assert len(found) / 2250 < 0.01
