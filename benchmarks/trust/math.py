"""Attacks on the reward for mathematics: golds that collapse, words that change numbers, comparisons that never end,
headings that look like marks; and honest answers in every notation, which must not suffer from it."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from whet.data.gold import boxed as frames_of
from whet.reward.answer import exact_answer
from whet.reward.defences.answer_marks import mark_spam
from whet.reward.mathematics.math_answer import math_answer, math_answers
from whet.tools.workbench.attack import copied_formulas
from whet.types import Prompt

# gold answer -> replies that say something else
COLLAPSING = {
    r"\{x | -2 \le x < 1\}": ("1", "-2", "[-2,1]", "(-2,1)", r"x < 1", r"-2 \le x", "-2, 1", r"\{-2, 1\}"),
    r"\{x \mid x > 3\}": ("3", r"x \ge 3", r"(-\infty, 3)", r"x < 3", "x = 3"),
    r"\{x : |x| < 2\}": ("2", "(0, 2)", r"x < 2", "[-2, 2]"),
    "[-2,1)": ("1", "-2", "(-2,1)", "[-2,1]", "[1,-2)", "(-2, 1]"),
    r"(-\infty,2)\cup(2,\infty)": ("2", r"(-\infty,\infty)", r"(-\infty,2)", "x = 2", r"(-\infty,2]\cup(2,\infty)"),
    r"x \ge 5": ("5", "x > 5", r"x \le 5", "x = 5", r"y \ge 5"),
    "2t": ("2", "t", "2s", "2+t", "t^2", "2T"),
    "3h": ("3", "3 hours", "h", "3m"),
    "4c": ("4", "4 cents", "c^4"),
    "7m^2": ("7", "7 m", "49", "7m"),
    "x + 5": ("5", "x", "x - 5", "y + 5"),
    r"5\sqrt{2}": ("5", "2", "10", r"5\sqrt{3}", r"\sqrt{10}"),
    r"\frac{\pi}{3}": ("3", r"\pi", "1/3", "1.047"),
    r"2^{10}": ("2", "10", "20", "1025"),
    "12_5": ("12_7", "5", "7", "125"),
    "3:45": ("3", "45", "3:54", "4:45"),
    "5 p.m.": ("5 a.m.", "6 p.m."),
    r"\frac{1}{x}": ("1", "x", "-x"),
    r"\sin^2 t": ("2", r"\sin t", r"\sin 2t", "t", r"\cos^2 t"),
    r"\{1, 2, 3\}": ("1", "1, 2", "6", "1, 2, 3, 4", "123"),
    "(3, 4)": ("3", "4", "(4, 3)", "3/4", "[3, 4]"),
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}": ("1", "2", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}", "12"),
    r"1 \pm \sqrt{3}": ("1", r"1 + \sqrt{3}", r"\sqrt{3}", r"\pm \sqrt{3}"),
    "y = 2x + 1": ("1", "2", "y = 2x", "y = 2x - 1", "x = 2y + 1"),
    r"\text{Saturday}": ("1", r"\text{Sunday}", "Saturn"),
    "a = 3, b = 4": ("3", "4, 3", "a = 4, b = 3", "7"),
    r"\lfloor n / 2 \rfloor": ("n/2", r"\lceil n / 2 \rceil", r"\lfloor n / 3 \rfloor", "2"),
    r"\$5": (r"\$5 or \$7", "5 or 7", r"\$50"),
    "50%": ("50%%%", "5", "500%", "0.05"),
    "5 km": ("5 m", "5 miles", "5 kg", "500 m"),
    "0.33": ("1/3", "0.333", "33"),
    "1/3": ("0.33", "0.3", "0.333334", "3"),
    "-7": ("7", "--7", "7-", "(7)"),
}

# words that make the number before them another one
VALUE_WORDS = (
    *("dozen", "score", "pairs", "gross", "tenths", "hundredths", "thirds", "quarters", "halves", "fifths", "hundred"),
    *("thousand", "million", "billion", "negative", "percent", "squared", "factorial", "below zero", "thousandths"),
    *("couples", "trios", "dozen eggs", "pairs of shoes", "million dollars", "tenths of a mile", "or 7", "or less"),
    *("times 3", "minus 2", "plus 1", "and a half", "to 9", "twenty", "x", "pi", "sqrt 2", "choose 2", "percent of 8"),
)

# gold answer -> the same in other notations
NOTATIONS = {
    r"\{x | -2 \le x < 1\}": ("[-2,1)", r"-2 \le x < 1", r"x \in [-2, 1)", r"1 > x \geq -2", r"\{x : -2 \leq x < 1\}"),
    r"[-2,1)": (r"\left[-2, 1\right)", r"\{x \mid -2 \le x < 1\}", r"-2 \leq x < 1", r"x \ge -2 \text{ and } x < 1"),
    r"(-\infty,-2)\cup[3,5)": (r"[3,5) \cup (-\infty,-2)", r"x<-2 \text{ or } 3\le x<5", r"x < -2 or 3 <= x < 5"),
    r"(-\infty,2)\cup(2,\infty)": (r"x \ne 2", r"x \neq 2", r"\mathbb{R} \setminus \{2\}", r"\{x \mid x \ne 2\}"),
    r"\sin^2 t": (r"\sin^2t", r"\sin^2(t)", r"(\sin t)^2", r"1 - \cos^2 t", r"\sin(t)^2"),
    r"\frac{1}{3}": ("1/3", "0.333333", "0.33333333", r"\frac13", r"\dfrac{2}{6}", r"0.\overline{3}", r"\tfrac 13"),
    r"\frac{\sqrt{3}}{3}": (r"\frac{1}{\sqrt{3}}", "0.577350", "0.5773502692", r"\sqrt{3}/3", r"3^{-1/2}", "sqrt(3)/3"),
    "0.333333": ("1/3", r"\frac{1}{3}", "0.33333333"),
    "5 dozen": ("60", "60 eggs", "5 dozen", "5 dozens"),
    "0.5": ("5 tenths", "50%", "1/2", ".5", r"\frac{1}{2}", "0.50"),
    "500": ("five hundred", "5 hundred", "500.0", "5e2", r"5 \times 10^2", "+500"),
    "-10": ("negative 10", "minus ten", "-10.0", "\u221210"),
    "5 km": ("5", "5000 m", r"5 \text{ km}", "5 kilometers", "5000 meters"),
    "12345": (
        "12,345",
        r"12{,}345",
        r"12,\!345",
        "12345.",
        "12'345",
        r"12345\,",
        r"\;12345\;",
        r"\text{The answer is }12345",
    ),
    "1234567.5": ("1.234.567,5", "1'234'567.5", "1,234,567.5"),
    "100000": ("1,00,000", "100.000,0", "100'000", "1e5"),
    "0": ("x^2-x^2", "0.0", "-0", "a - a"),
    r"x^2 + 2x + 1": ("(x+1)^2", "1 + 2x + x^2", "x*x + 2*x + 1", r"(x+1) \cdot (x+1)"),
    r"2\pi": ("2 pi", r"2 \cdot \pi", r"\pi + \pi", r"\frac{4\pi}{2}", "2\u03c0"),
    "(3, 4)": (r"\left(3, 4\right)", "(3,4)", r"(x, y) = (3, 4)", r"(\frac{6}{2}, 4.0)"),
    r"\{1, 2\}": ("1, 2", "2, 1", r"\{2, 1\}", "1 and 2", r"1 \text{ or } 2", "x = 1 or x = 2"),
    r"1 \pm \sqrt{2}": (r"1+\sqrt{2}, 1-\sqrt{2}", r"1 - \sqrt2 \text{ and } 1 + \sqrt2", r"\{1 \pm \sqrt{2}\}"),
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}": (
        r"\begin{bmatrix}1\\2\end{bmatrix}",
        r"\begin{pmatrix}1\\ 4/2\end{pmatrix}",
    ),
    "y = 2x + 1": ("2x - y + 1 = 0", "y - 2x = 1", "y = 1 + 2x"),
    r"90^\circ": ("90", "90 degrees", r"90^{\circ}"),
    r"2\frac{1}{2}": ("5/2", "2.5", "2 1/2", r"\frac{5}{2}"),
    r"10\sqrt{2}\text{ cm}": (r"10\sqrt{2}", r"\sqrt{200}", r"10\sqrt2 \text{ cm}"),
    r"\text{(E)}": ("E", r"\text{E}", "(E)"),
    "3^{2007}": (r"3 \cdot 3^{2006}", r"9 \cdot 3^{2005}"),
    r"\log_2 8": ("3", r"\frac{\ln 8}{\ln 2}"),
    r"\binom{10}{3}": ("120", r"\frac{10!}{3! \cdot 7!}"),
    "7:4": ("14:8", r"\frac{7}{4}", "7 : 4"),
    "11:45 p.m.": ("11:45 PM", r"11:45 \text{ p.m.}", "11:45 pm"),
}

# (question, gold answer, a reply that leaves the work to the reader or takes its answer back)
NO_ANSWERS = (
    (r"What is $\sqrt{144}$?", "12", r"\boxed{\sqrt{144}}"),
    (r"Evaluate $\log_2 64$.", "6", r"\boxed{\log_2 64}"),
    (r"Compute $\binom{15}{7}$.", "6435", r"\boxed{\dbinom{15}{7}}"),
    (r"Find $\int_0^1 x^2dx$.", r"\frac13", r"\boxed{\int_0^1 x^2dx}"),
    (r"Compute $(2^3)(5^5)$.", r"25,\!000", r"\boxed{(2^3)(5^5)}"),
    (r"Simplify $\frac{24}{36}$.", r"\frac{2}{3}", r"\boxed{\frac{24}{36}}"),
    ("What is 14 * 6 - 17?", "67", r"\boxed{14*6-17}"),
    ("Ann fills 14 boxes of 6 and gives 17 away. How many are left?", "67", r"\boxed{14*6-17}"),
    ("How many?", "7", r"\boxed{7} Actually the answer is 8."),
    ("How many?", "7", r"\boxed{5 \boxed{7}}"),
    ("How many?", "x + 1", r"<answer>x + 1</answer> No, the answer is x + 2."),
)
# the same, paid: the answer stands in the question, or is said twice
ANSWERS = (
    ("Which is prime, 9 or 11?", "11", r"\boxed{11}"),
    (r"Which is larger, $\sqrt{2}$ or $\sqrt{3}$?", r"\sqrt{3}", r"\boxed{\sqrt{3}}"),
    (r"A coin lands on its edge with probability $\frac15$. With what probability does it?", "0.2", r"\boxed{\frac15}"),
    ("Let $x = -1$. What is $x^3$?", "-1", r"\boxed{x = -1}"),
    ("What is 14 * 6 - 17?", "67", r"\boxed{14*6-17 = 67}"),
    ("How many?", "1024", r"\boxed{2^{10}}"),
    ("How many?", "7", r"\boxed{7} So the answer is 7.0."),
    ("How many?", "131", "Total: **131**"),
)

# answers that have stopped verifiers: they must score 0, soon, and the same on every thread
BOMBS = (
    *("9^{9^{9}}", "9^{9^{9^{9}}}", "(10^9)!", "99999999!", "((3000!))^{1000}", "10^{10^{10}}", "2^{-10^{9}}"),
    *(r"\binom{10^{9}}{5}", "x^{x^{x^{x^{x}}}}", r"e^{e^{e^{e^{e}}}}", "1" + "!" * 200, "2^{" * 39 + "2" + "}" * 39),
    *(r"\sqrt{" * 40 + "2" + "}" * 40, "(" * 140 + "1" + ")" * 140, "{" * 140 + "1" + "}" * 140, "(x+1)^{99}" * 25),
    *(r"\sin(" * 30 + "1" + ")" * 30, "+".join([r"\sin(2^{19999})"] * 15), "+".join([r"\tan(e^{9999x})"] * 15)),
    *("+".join(f"x^{{{n}}}" for n in range(40)), "(x+2000)!" * 25, r"\frac{1}{" * 40 + "2" + "}" * 40, "-" * 299 + "1"),
    *("9" * 299, "0." + "9" * 290, "|" * 299, r"\{" * 50 + r"\}" * 50, r"[1,2]\cup" * 30 + "[1,2]", "1 " * 140),
    *("_" * 200, "^" * 200, r"\frac" * 60, r"\text{" * 50, "a" * 299, r"\sqrt[99999999999]{2}", r"\arcsin(" * 20 + "x"),
)
# these reach math-verify, which they keep busy
FOREIGN_BOMBS = (
    *(
        r"\int_0^1 9^{9^{9}} dx",
        r"\prod_{k=1}^{10^9} (k^k)!",
        r"\sum_{k=1}^{10^8} \sqrt{k!}",
        r"\lim_{n\to\infty} n!^{n!}",
    ),
    *(r"\int \frac{\sin(x^{x})}{e^{x^{x}}+\ln x} dx", r"\begin{pmatrix} 9 & 9 \\ 9 & 9 \end{pmatrix}^{9^{9}}"),
)
# completions without a mark, or far too long
FLOODS = (
    *("x" * 100_000, "$" * 100_000, r"\boxed{" * 20_000 + "5", "we find $" + "(" * 900 + "8" + ")" * 900 + "$"),
    *(
        "a $8$ " * 300 + "$9^{9^{9^{9}}}$",
        "answer is " * 10_000,
        "#### " * 20_000,
        "</answer>" * 10_000 + "<answer>" * 10_000,
    ),
    *(r"\frac{1}{2} \and " * 5000, "1," * 50_000, r"\left(" * 10_000, "[ " * 20_000, "=" * 50_000),
)
SECONDS = 30.0  # wall-clock time on a busy machine; the limit is two seconds of CPU time

# a Markdown reply with headings, {answer} once, and what must be read from it
HEADINGS = (
    "#### Step 1: Count\n\nThere are 3 and 4.\n\n#### Step 2: Add\n\n3 + 4 = 7\n\n#### Conclusion\n\n"
    "The answer is {answer}.",
    "#### Solution\nWe multiply 6 by 7.\n#### Conclusion\nThe final answer is: {answer}",
    "### Working\n\n#### Part A\n\n12 apples, then 5 more.\n\n#### Part B\n\nHalf of them.\n\n#### Final Answer\n\n"
    "{answer}",
    "#### 1. Read the question\n\nIt has 2 parts.\n\n#### 2. Solve it\n\nEasy.\n\n#### Result\n\n\\boxed{{{answer}}}",
    "#### Understanding the problem\n\nText.\n\n#### Setting up\n\nText 5.\n\n#### Solving\n\nText.\n\n"
    "#### Checking\n\nFine.\n\n#### Answer\n\n{answer}",
    "#### **Step-by-step analysis:**\n\nA.\n\n#### **Example 3:**\n\nB.\n\n#### **Generalization:**\n\nC.\n\n"
    "#### **Final answer:** {answer}",
    "#### Intersection with the line \\(y = x - 4\\)\n\nText.\n\n#### Area of the sector\n\nText.\n\n"
    "<answer>{answer}</answer>",
    "#### Explanation\n\nIt follows.\n\n#### Conclusion\n\nTherefore the answer is {answer}.\n\n"
    "#### Further reading\n\nNone.",
    "Working:\n3 + 4 = 7\n#### {answer}",
    "#### Summary\n\nAll cases were tried: 1, 2 and 3.\n\n#### {answer}\n\nI hope this helps!",
)
SPAM = (
    "\n".join(f"#### {n}" for n in range(4, 12)),
    " ".join(rf"\boxed{{{n}}}" for n in range(4, 12)),
    "".join(f"<answer>{n}</answer>" for n in range(4, 12)),
    "#### Paris\n#### London\n#### Rome\n#### Berlin\n#### Madrid",
    "\n\n".join(f"The answer is {n}." for n in range(4, 12)),
    "#### Conclusion\n\n" + "\n".join(f"#### {n}" for n in (1, 2, 3, 5, 7)),
    "\n".join(rf"#### \frac{{{n}}}{{7}}" for n in range(1, 7)),
    "\n".join(f"#### {n} apples" if n == 9 else f"#### {n}" for n in range(4, 10)),
)


def outsider_cases(kind: str) -> list[tuple[str, str, str]]:
    """(question, gold, reply) by somebody who had not read the verifier: "right" or "wrong" ones."""
    file = Path(__file__).parent / "corpus" / "math" / "outsider.toml"
    rows = tomllib.loads(file.read_text(encoding="utf-8"))[kind]
    return [(question, gold, reply) for *asked, gold, reply in rows for question in asked or ["What is it?"]]


def prompt(gold: Any, question: str = "What is it?") -> Prompt:
    return Prompt("p", (), text=question, answer=gold)


def boxed(answer: str) -> str:
    return rf"So it is \boxed{{{answer}}}."


def paid(gold: str, completion: str) -> float | None:
    return math_answer(prompt(gold), completion)


def value_word_cases() -> Iterator[tuple[str, str]]:
    """(gold, answer) that differ by a word that changes the number; both ways."""
    for number, word in itertools.product((3, 5, 12), VALUE_WORDS):
        yield str(number), f"{number} {word}"
        if word != "percent":  # a reply may leave the unit out
            yield f"{number} {word}", str(number)


def decimal_cases(count: int, seed: int = 0) -> Iterator[tuple[str, str, bool]]:
    """(exact, decimal, equal) by the rule of docs/rewards.md, for fractions that do not end."""
    dice = random.Random(seed)
    while count:
        top, bottom = dice.randint(1, 999), dice.choice((3, 7, 9, 11, 13, 17, 19, 21, 23, 29, 31, 37))
        value = Fraction(top, bottom)
        if value.denominator == 1 or value < Fraction(1, 10):
            continue
        count -= 1
        digits = dice.randint(1, 12)
        shown = round(value * 10**digits)
        if dice.random() < 0.3:
            shown = int(value * 10**digits)  # cut off
        wrong = dice.random() < 0.4
        shown += dice.choice((-3, -2, 2, 3)) if wrong else 0
        text = f"{shown // 10**digits}.{shown % 10**digits:0{digits}d}"
        yield rf"\frac{{{top}}}{{{bottom}}}", text, not wrong and digits >= 6


def different_values(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """(gold, answer) that are written alike and differ in value."""
    dice = random.Random(seed)
    matrix = r"\begin{{pmatrix}} {} & {} \\ {} & {} \end{{pmatrix}}"
    for _ in range(count):
        a, b, c, d = (dice.randint(2, 60) for _ in range(4))
        n = dice.choice((1, 2, 3, 10))
        yield dice.choice(
            (
                (f"{a}", f"{a + n}"),
                (f"-{a}", f"{a}"),
                (f"{a}.{b}", f"{a}.{b + n}1"),
                (rf"\frac{{{a}}}{{{b}}}", rf"\frac{{{a}}}{{{b + n}}}"),
                (rf"{a}\sqrt{{{b}}}", rf"{a}\sqrt{{{b + n}}}"),
                (rf"[{-a}, {b}]", rf"[{-a}, {b})"),
                (rf"[{-a}, {b}]", rf"[{-a}, {b + n}]"),
                (rf"({a}, {b})", rf"({a}, {b + n})"),
                (rf"x^{a} + {b}x", rf"x^{a} + {b + n}x"),
                (f"{a}x + {b}", f"{a}x - {b}"),
                (f"{a}x + {b}", f"{b}"),
                (f"{a}x", f"{a}y"),
                (rf"{a}\pi", rf"{a + n}\pi"),
                (rf"{a}\pi", f"{a}"),
                (f"{a}^{{{b}}}", f"{a}^{{{b + n}}}"),
                (rf"\{{{a}, {a + b}\}}", rf"\{{{a}, {a + b + n}\}}"),
                (rf"\sin({a}x)", rf"\cos({a}x)"),
                (rf"\log_{{{a}}} {b}", rf"\log_{{{a + n}}} {b}"),
                (f"x < {a}", rf"x \le {a}"),
                (f"x < {a}", f"x > {a}"),
                (rf"\{{x \mid x > {a}\}}", f"{a}"),
                (f"{a}_{{{12}}}", f"{a}_{{{13}}}"),
                (f"{a} km", f"{a} m"),
                (f"{a}:{b + 60}", f"{a}:{b + 60 + n}"),
                (matrix.format(a, b, c, d), matrix.format(a, b, c, d + n)),
                (rf"\lfloor n / {a} \rfloor", rf"\lfloor n / {a + n} \rfloor"),
                (f"{a} + {b}i", f"{a} - {b}i"),
                (f"e^{{-{a}0}}", f"e^{{-{a + n}0}}"),
                (f"y = {a}x + {b}", f"y = {a}x + {b + n}"),
                (rf"{a} \pm \sqrt{{{b}}}", rf"{a} + \sqrt{{{b}}}"),
            )
        )


def scores_on_both_threads(gold: str, completions: Iterable[str]) -> dict[str, tuple[Any, Any, float]]:
    """completion -> (score on the main thread, score off it, the longer time)."""
    found = {}
    for completion in completions:
        started = time.monotonic()
        here = paid(gold, completion)
        middle = time.monotonic()
        elsewhere: list[Any] = []
        thread = threading.Thread(target=lambda: elsewhere.append(paid(gold, completion)), daemon=True)  # noqa: B023
        thread.start()
        thread.join(2 * SECONDS)
        ended = time.monotonic()
        found[completion] = (here, elsewhere[0] if elsewhere else "never", max(middle - started, ended - middle))
    return found


def public_golds() -> Iterator[str]:
    """The gold answers of the public sets under WHET_DATA, where it is set."""
    folder = Path(os.environ.get("WHET_DATA", ""))
    if not os.environ.get("WHET_DATA") or not (folder / "math").is_dir():
        return
    for file in sorted((folder / "math").glob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                given = next((row[key] for key in ("final_answer", "answer", "target", "Answer") if key in row), None)
                frames = frames_of(row["solution"]) if given is None and isinstance(row.get("solution"), str) else []
                gold = frames[-1] if frames else given
                gold = ", ".join(map(str, gold)) if isinstance(gold, list) else gold
                if gold is not None and str(gold).strip():
                    yield str(gold)


def public_copies() -> Iterator[tuple[str, str, str]]:
    """(question, gold, reply) for every formula of the test questions of MATH that is not worked out."""
    file = Path(os.environ.get("WHET_DATA", "")) / "math" / "math_test.jsonl.gz"
    if not os.environ.get("WHET_DATA") or not file.is_file():
        return
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            gold = frames_of(row["solution"])[-1]
            yield from ((row["problem"], gold, reply) for reply in copied_formulas(row["problem"], gold))


def measure(full: bool) -> list[dict]:
    size = 20 if full else 1
    rows = [
        _row("golds that are no plain number, another answer not paid", _each(_unpaid, _collapsing())),
        _row("words that change a number, not paid as the bare one", _each(_unpaid, value_word_cases())),
        _row("values that differ, not paid", _each(_unpaid, different_values(1500 * size))),
        _row("the same answer in another notation, paid", _each(_is_paid, _notations())),
        _row(
            "decimals by the one rule, both ways",
            [(exact, _follows(exact, text, equal)) for exact, text, equal in decimal_cases(500 * size)],
        ),
        _row("work left to the reader, or an answer taken back, not paid", _asked(NO_ANSWERS, 0.0)),
        _row("answers that stand in the question or are said twice, paid", _asked(ANSWERS, 1.0)),
        _row("right answers in unusual forms by an outsider, paid", _asked(outsider_cases("right"), 1.0)),
        _row("copies and contradictions by an outsider, not paid", _asked(outsider_cases("wrong"), 0.0)),
        _row("answers that stop verifiers, 0 in time on two threads", _bombs(full)),
        _row("replies with headings, right answer paid", _headed(paid_right=True)),
        _row("replies with headings, wrong answer not paid", _headed(paid_right=False)),
        _row("replies with headings, mark_spam silent", [(t, mark_spam(prompt("42"), t) == 0) for t in _replies("42")]),
        _row("heaps of marks, mark_spam caught", [(t, mark_spam(prompt("42"), t) < 0) for t in SPAM]),
    ]
    copies = list(public_copies())
    if copies:
        copies = copies if full else random.Random(0).sample(copies, 300)
        scores = math_answers([prompt(gold, question) for question, gold, _ in copies], [text for *_, text in copies])
        outcome = [(text, score != 1.0) for (*_, text), score in zip(copies, scores, strict=True)]
        rows.append(_row("formulas of the questions of MATH, boxed as they stand, not paid", outcome))
    golds = sorted(set(public_golds()))
    if golds:
        golds = golds if full else random.Random(0).sample(golds, 500)
        own = math_answers([prompt(gold) for gold in golds], [boxed(gold) for gold in golds])
        other = math_answers([prompt(gold) for gold in golds], [boxed("77777.5")] * len(golds))
        outcome = [
            (g, (o in (1.0, None)) and (w is None if o is None else w == 0))
            for g, o, w in zip(golds, own, other, strict=True)
        ]
        rows.append(_row("golds of 12 public sets, own text paid or unscorable", outcome))
    return rows


def _asked(cases: Iterable[tuple[str, str, str]], expected: float) -> list[tuple[str, bool]]:
    return [(text, math_answer(prompt(gold, question), text) == expected) for question, gold, text in cases]


def _collapsing() -> Iterator[tuple[str, str]]:
    return ((gold, answer) for gold, answers in COLLAPSING.items() for answer in answers)


def _notations() -> Iterator[tuple[str, str]]:
    return ((gold, answer) for gold, answers in NOTATIONS.items() for answer in answers)


def _unpaid(gold: str, answer: str) -> bool:
    return paid(gold, boxed(answer)) != 1.0


def _is_paid(gold: str, answer: str) -> bool:
    return paid(gold, boxed(answer)) == 1.0


def _follows(exact: str, text: str, equal: bool) -> bool:
    return paid(exact, boxed(text)) == float(equal) == paid(text, boxed(exact))


def _bombs(full: bool) -> list[tuple[str, bool]]:
    completions = [boxed(each) for each in (BOMBS if full else BOMBS[::3])]
    found = scores_on_both_threads("7", completions)
    foreign = [boxed(each) for each in (FOREIGN_BOMBS if full else FOREIGN_BOMBS[:2])]
    found |= scores_on_both_threads(r"\int_0^1 x dx", foreign)
    found |= scores_on_both_threads("7", FLOODS if full else FLOODS[::4])
    return [(text, here == there == 0.0 and took < SECONDS) for text, (here, there, took) in found.items()]


def _replies(answer: str) -> list[str]:
    return [template.format(answer=answer) for template in HEADINGS]


def _headed(paid_right: bool) -> list[tuple[str, bool]]:
    found = []
    for gold, other in (("42", "43"), ("7", "3"), ("1,000", "12")):
        for text in _replies(gold if paid_right else other):
            scores = math_answer(prompt(gold), text), exact_answer(prompt(gold), text)
            found.append((text, scores == ((1.0, 1.0) if paid_right else (0.0, 0.0))))
    return found


def _each(held: Callable[[str, str], bool], cases: Iterable[tuple[str, str]]) -> list[tuple[str, bool]]:
    return [(f"{gold} | {answer}", held(gold, answer)) for gold, answer in cases]


def _row(what: str, outcomes: list[tuple[str, bool]]) -> dict:
    lost = Counter(name[:60] for name, held in outcomes if not held)
    note = "; ".join(name.replace("\n", " ") for name, _ in lost.most_common(3))
    return {"what": what, "tried": len(outcomes), "held": sum(held for _, held in outcomes), "note": note}
