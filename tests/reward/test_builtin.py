"""Built-in rewards against gold, wrong, empty and hostile completions."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.support.for_every import for_every
from tests.support.real_data import data_rows
from whet.reward.answer import exact_answer, final_answer
from whet.reward.countdown import countdown
from whet.reward.find import BUILTIN
from whet.reward.format import think_format
from whet.reward.mathematics.math_answer import math_answer
from whet.types import Prompt, WhetError


def prompt(answer: Any, **meta: Any) -> Prompt:
    return Prompt("p", (), text="q", answer=answer, meta=meta)


SEVEN = prompt("7")
GAME = prompt(24, numbers=[3, 8, 2, 2])


@for_every(
    [
        ("<answer>7</answer>", "7"),
        ("<answer> 6 </answer> no, <answer>7</answer>", "7"),
        (r"<answer>5</answer> then \boxed{7}", "5"),
        (r"<answer>\boxed{7}</answer>", "7"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\boxed{1} \boxed{ {2} } #### 9", "{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{3 and \boxed{7}", "7"),
        (r"\\boxed{7}", "7"),
        ("work\n#### 72", "72"),
        ("#### 5\n#### 7\nthanks", "7"),
        ("####\n\n7", "7"),
        ("The answer is 7.", "7"),
        ("the answer is: **3.5**. Thanks!", "3.5"),
        ("**Answer:** $7$\nbye", "7"),
        ("Answer: 5\nAnswer: 7", "7"),
        ("Final Answer: The final answer is $7$. I hope it is correct.", "7"),
        ("<think>\\boxed{5}</think> <answer>7</answer>", "7"),
        ("it began in the prompt, <answer>5</answer></think>#### 7", "7"),
        ("<answer><answer>7</answer></answer>", "7"),
        ("", None),
        ("7", None),
        ("there are 7 of them", None),
        ("<answer></answer>", None),
        ("<answer>7", None),
        ("7</answer>", None),
        (r"\boxed{7", None),
        (r"\boxed{}", None),
        ("####", None),
        ("<think><answer>7</answer>", None),
        ("<think>a</think><think><answer>7</answer>", None),
        ("<think><answer>7</answer></think>", None),
        ("<think>The answer is 7. #### 7 \\boxed{7}</think> done", None),
    ]
)
def test_final_answer(completion: str, expected: str | None) -> None:
    assert final_answer(completion) == expected


@for_every(
    [
        ("7", " 7 "),
        (7, "7"),
        ("7", "+7"),
        ("7", "007"),
        ("7", "7.0"),
        ("7", "7."),
        ("0", "-0.00"),
        ("-7", "-07"),
        ("1234567", "1,234,567"),
        ("1,234", "1234.0"),
        ("0.5", ".50"),
        ("Paris", " paris. "),
        ("New  York", "new\nyork"),
        ([1, 2, 3], "[1,2 , 3]"),
        ("1,2,3", "1, 2, 3"),
        (True, "true"),
        ("9" * 6000, "9" * 6000),
    ]
)
def test_exact_answers_up_to_form(gold: Any, answer: str) -> None:
    assert exact_answer(prompt(gold), f"<answer>{answer}</answer>") == 1.0
    assert exact_answer(prompt(gold), f"<answer>{answer}1</answer>") == 0.0
    assert exact_answer(prompt(gold), "") == 0.0


@for_every(
    [
        "7",
        "<answer>5</answer><answer>7</answer>",
        "<answer>7</answer><answer>5</answer>",
        r"\boxed{5} <answer>7</answer>",
        r"\boxed{5} or \boxed{7}",
        "#### 5\n#### 7",
        "The answer is 5. The answer is 7.",
        "<answer>5 or 7</answer>",
        "<answer>1,2,3,4,5,6,7</answer>",
        "<answer>\uff17</answer>",
        "<answer>\u0667</answer>",
        "<answer>0x7</answer>",
        "<answer>7e0</answer>",
        "<answer>1e999</answer>",
        "<answer>7_0</answer>",
        "<answer>--7</answer>",
        "<answer>7" + "0" * 9000 + "</answer>",
        "<answer>__import__('os').getpid()</answer>",
        "<think><answer>7</answer>",
        "<think><answer>7</answer></think>",
        "<answer>7<answer>",
        "<answer>",
        "\\boxed{" * 50_000,
        "<answer>" * 50_000,
        "{" * 100_000 + "}" * 100_000,
        "answer is" * 20_000,
    ]
)
def test_hostile_completions_score_nothing(completion: str) -> None:
    assert exact_answer(SEVEN, completion) == 0.0
    assert countdown(prompt(7, numbers=[3, 4]), completion) == 0.0
    assert think_format(completion) == 0.0


def test_the_same_answer_twice_is_no_guess() -> None:
    assert exact_answer(SEVEN, r"\boxed{7}, so <answer>7.0</answer>") == 1.0
    assert exact_answer(SEVEN, "<think>\\boxed{5}</think>#### 7") == 1.0
    assert exact_answer(SEVEN, "Final Answer: The final answer is $7$. I hope it is correct.") == 1.0


@pytest.mark.parametrize("reward", [exact_answer, math_answer])
def test_a_prompt_without_gold_is_a_mistake_in_the_data(reward: Any) -> None:
    for nothing in (None, "", " . "):
        with pytest.raises(WhetError, match=f"'{reward.__name__}'.*prompt 'p' has none"):
            reward(prompt(nothing), "<answer></answer>")


@for_every(
    [
        ("<think>a</think><answer>b</answer>", 1.0),
        ("\n<think>\na\n</think>\n\n<answer> b </answer>\n", 1.0),
        ("", 0.0),
        ("<think></think><answer>b</answer>", 0.0),
        ("<think>a</think><answer> \n</answer>", 0.0),
        ("<think>\u200b</think><answer>b</answer>", 0.0),
        ("<think>a</think><answer>b</answer> more", 0.0),
        ("well <think>a</think><answer>b</answer>", 0.0),
        ("<think>a</think> so <answer>b</answer>", 0.0),
        ("<answer>b</answer><think>a</think>", 0.0),
        ("<think>a<answer>b</answer></think>", 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
        ("<think><think>a</think></think><answer>b</answer>", 0.0),
        ("<think>a</think><answer><answer>b</answer></answer>", 0.0),
        ("<think>a<answer>b</answer>", 0.0),
        ("a</think><answer>b</answer>", 0.0),
        ("<THINK>a</THINK><answer>b</answer>", 0.0),
    ]
)
def test_think_format(completion: str, expected: float) -> None:
    assert think_format(completion) == expected


@for_every(
    [
        ("3 * 8 * 2 / 2", 1.0),
        ("(3*8)*(2/2)", 1.0),
        ("2*8/2*3", 1.0),
        ("((3 * 8)) + 2 - 2", 1.0),
        ("3 * 8", 0.0),
        ("3*8*2/2*2/2", 0.0),
        ("24", 0.0),
        ("20 + 4", 0.0),
        ("3*8*2/2 = 24", 0.0),
        ("3*8*2//2", 0.0),
        ("3*2**2*2", 0.0),
        ("3**8-2-2", 0.0),
        ("-2+2+3*8", 0.0),
        ("+3*8*2/2", 0.0),
        ("~3*8*2/2", 0.0),
        ("3*8/(2-2)", 0.0),
        ("3*8*2/2 if 1 else 0", 0.0),
        ("3(8)*2/2", 0.0),
        ("(3, 8, 2, 2)", 0.0),
        ("3*8*2.0/2", 0.0),
        ("3*8*2/2j", 0.0),
        ("3*8*2/02", 0.0),
        ("\uff13*8*2/2", 0.0),
        ("3*8*2/2 #", 0.0),
        ("True*3*8*2/2", 0.0),
        ("__import__('os').system('true')", 0.0),
        ("(" * 240 + "3*8*2/2" + ")" * 240, 0.0),
        ("9" * 5000, 0.0),
        ("3*8*2/2+0" + "+0" * 400, 0.0),
        ("1e999", 0.0),
        ("", 0.0),
    ]
)
def test_countdown(answer: str, expected: float) -> None:
    assert countdown(GAME, f"<think>hm</think><answer>{answer}</answer>") == expected


def test_countdown_with_some_of_the_numbers_and_exact_fractions() -> None:
    some = prompt(24, numbers=[3, 8, 2, 2], use_all=False)
    assert countdown(some, "<answer>3*8</answer>") == 1.0
    assert countdown(some, "<answer>3*8*3/3</answer>") == 0.0
    assert countdown(prompt("24", numbers=(3, 3, 8, 8)), "<answer>8/(3-8/3)</answer>") == 1.0
    assert countdown(GAME, "3*8*2/2") == 0.0
    assert countdown(GAME, "<think><answer>3*8*2/2</answer>") == 0.0


def test_countdown_refuses_rows_it_cannot_use() -> None:
    for row in (prompt(24), prompt(24, numbers=[]), prompt(24, numbers=[1.5]), prompt(24, numbers="3 8")):
        with pytest.raises(WhetError, match="column `numbers` of prompt 'p'"):
            countdown(row, "")
    with pytest.raises(WhetError, match="whole number as the answer of prompt 'p', not 'x'"):
        countdown(prompt("x", numbers=[1]), "")


@for_every(
    [
        ("7", "", 0.0),
        ("7", "#### 7", 1.0),
        (7, r"\boxed{7.0}", 1.0),
        (r"\frac{1}{2}", "<answer>0.5</answer>", 1.0),
        ("1/2", r"\boxed{\frac{2}{4}}", 1.0),
        ("1,234", "The answer is 1234.", 1.0),
        (r"3\sqrt{2}", r"\boxed{\sqrt{18}}", 1.0),
        ("7", r"\boxed{x=7}", 1.0),
        (r"\{1,2\}", r"\boxed{\{2,1\}}", 1.0),
        (r"\text{Evelyn}", r"\boxed{\text{Evelyn}}", 1.0),
        ("7", "After all that, we get $7$", 1.0),
        ("7", "<think>it is 7</think>", 0.0),
        ("7", "<think>it is \\boxed{7}", 0.0),
        ("7", "<think>\\boxed{7}</think> so it is \\boxed{8}", 0.0),
        ("7", r"\boxed{8}", 0.0),
        ("7", r"\boxed{7} or \boxed{8}", 0.0),
        ("7", r"\boxed{8} or \boxed{7}", 0.0),
        ("0.5", r"\boxed{\frac12}, so <answer>1/2</answer>", 1.0),
        ("1,-2", r"\boxed{-2} \quad \text{and, after some more thought,} \quad \boxed{1}", 1.0),
        ("1,-2", r"\boxed{-2}, \boxed{1} and \boxed{3}", 0.0),
        ("1,-2", r"\boxed{-2}", 0.0),
        ("$$(2, 2), (6, 2)$$", r"\boxed{(2, 2)} and \boxed{(6, 2)}", 1.0),
        ("7", "<answer>6 or 7</answer>", 0.0),
        ("7", "<answer>__import__('os').getpid()</answer>", 0.0),
        ("7", r"\boxed{1e999}", 0.0),
        ("7", "<answer>\uff17</answer>", 0.0),
        ("7", "<answer>" + "7" * 9000 + "</answer>", 0.0),
        ("listen", r"\boxed{silent}", None),
        ("listen", r"\boxed{listen}", None),
        ("???", r"\boxed{???}", None),
        (r"\frac{", r"\boxed{\frac{}", None),
    ]
)
def test_math_answer(gold: Any, completion: str, expected: float | None) -> None:
    assert math_answer(prompt(gold), completion) == expected


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "(10^9)!", r"\sin(" * 30 + "1" + ")" * 30])
def test_math_answer_is_not_stopped_by_an_endless_comparison(answer: str) -> None:
    started = time.monotonic()
    assert math_answer(SEVEN, rf"\boxed{{{answer}}}") == 0.0
    assert time.monotonic() - started < 15


def test_math_answer_off_the_main_thread() -> None:
    scores: list[float | None] = []
    completions = (r"\boxed{\frac{14}{2}}", r"\boxed{8}")
    thread = threading.Thread(
        target=lambda: scores.extend(math_answer(SEVEN, completion) for completion in completions)
    )
    thread.start()
    thread.join(20)
    assert scores == [1.0, 0.0]


def test_gold_scores_one_and_empty_scores_nothing() -> None:
    completion = "<think>hm</think><answer>{}</answer>"
    cases = {"exact_answer": (SEVEN, "7"), "math_answer": (SEVEN, "7"), "countdown": (GAME, "3*8*2/2")}
    for name, (row, gold) in cases.items():
        assert BUILTIN[name](row, completion.format(gold)) == 1.0
        assert BUILTIN[name](row, "") == 0.0
    assert BUILTIN["think_format"](completion.format("7")) == 1.0


def test_importing_the_room_is_cheap() -> None:
    program = "import sys, whet.reward; print(sorted({'math_verify', 'torch', 'transformers'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_gsm8k_gold_answers_score_one() -> None:
    solutions = [row["answer"] for row in data_rows("gsm8k/train")[::20][:300]]
    for reward in (exact_answer, math_answer):
        right = wrong = 0.0
        for solution in solutions:
            row = prompt(solution.split("####")[1].strip())
            right += reward(row, solution) or 0.0
            wrong += reward(row, solution + "1") or 0.0
        assert (right, wrong) == (300.0, 0.0), reward.__name__
