"""Reading and comparing answers of mathematics: in full or not at all, and in bounded time."""

from __future__ import annotations

import time

import pytest

from tests.support.for_every import for_every
from whet.reward.mathematics.evaluate import TooLarge
from whet.reward.mathematics.read_value import read_value
from whet.reward.mathematics.same_value import Comparison, same
from whet.reward.mathematics.tokens import Unreadable

EQUAL = [
    (r"\{x | -2 \le x < 1\}", "[-2,1)"),
    (r"\{x \mid -2 \leq x < 1\}", r"-2 \le x < 1"),
    (r"\{x : -2 <= x < 1\}", r"x \in [-2, 1)"),
    (r"\{x \in \mathbb{R} \mid x > 3\}", r"(3, \infty)"),
    (r"\{x \mid x \ne 2\}", r"(-\infty, 2) \cup (2, \infty)"),
    (r"\{x \mid |x| < 3\}", "(-3, 3)"),
    ("[-2,1)", r"1 > x \ge -2"),
    (r"(-\infty,-2)\cup[3,5)", r"x<-2 \text{ or } 3\le x<5"),
    (r"(-\infty,-2)\cup[3,5)", r"[3,5) \cup (-\infty,-2)"),
    (r"[1,2] \cup [2,3]", "[1,3]"),
    (r"\mathbb{R}\setminus\{2\}", r"(-\infty,2)\cup(2,\infty)"),
    (r"-2x > 4", r"x < -2"),
    ("2t", "t+t"),
    (r"\sqrt{2}\sqrt{3}-\sqrt{6}", "0"),
    ("0", r"\sin \pi"),
    ("e^{-200}", r"\frac{1}{e^{200}}"),
    (r"\dfrac{\pi}{3}", r"\pi \div 3"),
    (r"\delta", r"\delta"),
    (r"\frac{\displaystyle 1}{\displaystyle x}", "1/x"),
    (r"\sin^2t", r"1-\cos^2 t"),
    (r"\sin^2t", r"\sin^2(t)"),
    (r"\frac{\sqrt3}{3}", "0.577350"),
    ("0.577350", r"\frac{\sqrt3}{3}"),
    (r"\frac{\sqrt3}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"(\frac13, 1)", "(0.333333, 1)"),
    ("x^2+2x+1", "(x+1)^2"),
    ("|x|", r"\sqrt{x^2}"),
    ("3^{2007}", r"3^{2006}\cdot 3"),
    (r"1 \pm \sqrt{2}", r"1+\sqrt2, 1-\sqrt2"),
    ("12_5", "12"),
    (r"152A_{11}", r"152A_{11}"),
    ("2:4", "1:2"),
    ("1:2", "1/2"),
    (r"\cos 60^\circ", "1/2"),
    (r"\{1,2\}", "2, 1"),
    ("(1,2)", "1,2"),
    ("y=2x+1", "2x-y+1=0"),
    ("x=3", "3"),
    ("x_1=1, x_2=2", "2, 1"),
    ("10!", "3628800"),
    (r"\binom{5}{2}", "10"),
    (r"0.\overline{3}", "1/3"),
    ("90^\\circ", "90"),
    (r"\log_2 8", "3"),
    ("2\\sqrt{3}\\text{ cm}", "2\\sqrt3"),
    (r"50\%", r"\frac12"),
    (r"\text{Saturday}", r"\text{saturday}"),
    (r"\text{(E)}", "E"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
    (r"(n-2) 2^{n}+1", r"2^n n - 2^{n+1} + 1"),
    (r"\lfloor n/2 \rfloor", r"\left\lfloor \frac{n}{2} \right\rfloor"),
    ("11:45 p.m.", "11:45 PM"),
    (r"5\sqrt{2}\text{ cm}", r"50\sqrt2 \text{ mm}"),
    (r"\{1,2\}", r"\left(\{1,2\}\right)"),
    (r"\text{5 \text{ km}}", "5000 m"),
    (r"12,\!345", r"12,\!345_{10}"),
    (r"|x-2| < 3", "(-1, 5)"),
    ("1, 2, and 3", r"3, 2 \text{ and } 1"),
    (r"|2x+1| \ge 5", r"(-\infty,-3] \cup [2,\infty)"),
    (r"3 - x \le \sqrt2", r"[3-\sqrt2, \infty)"),
    (r"\{x \in \mathbb{R} \mid x > 3, x \le 7\}", "(3, 7]"),
    (r"x \in \mathbb{R}", r"(-\infty, \infty)"),
    (r"(-\infty, a)", r"(-\infty, \frac{2a}{2})"),
    (r"[1,2] \cap [3,4]", r"\emptyset"),
    (r"\{1,2\} \cup (2,3)", r"\{1\} \cup [2,3)"),
    ("x^2 + y^2 < 4", "2x^2 + 2y^2 < 8"),
    ("p = 5, q = 2; p = 7, q = 3", "(7, 3); (5, 2)"),
    ("-12_5", "-12"),
    ("1A_{16}", "1a_{16}"),
    ("two hundred and five thousand", "205000"),
    (r"e^2", r"\exp 2"),
]

DIFFERENT = [
    (r"\{x | -2 \le x < 1\}", "1"),
    (r"\{x | -2 \le x < 1\}", "[-2,1]"),
    ("2t", "2"),
    ("7", "7x"),
    ("x+1", "1"),
    (r"\frac{\sqrt3}{3}", "0.57735"),
    (r"\frac{\sqrt3}{3}", "0.577351"),
    (r"\pi", "3.14"),
    (r"\sqrt{x^2}", "x"),
    ("12_5", "12_7"),
    ("12_5", "7"),
    ("e^{-200}", "e^{-300}"),
    (r"\{1,2\}", "(1,2)"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    (r"\frac{\pi}{2}", "90^\\circ"),
    ("2\\sqrt{3}\\text{ cm}", "2\\sqrt3 m"),
    ("x", "y"),
    ("AB=4, CD=5", "5, 4"),
    (r"\lceil n / 2\rceil", r"\lceil n / 3\rceil"),
    (r"\lfloor \log_2 n \rfloor", r"\lfloor \log_4 n \rfloor"),
    ("5:00", "8:00"),
    (r"5 \text{ p.m.}", r"5 \text{ a.m.}"),
    (r"1 \pm \sqrt{2}", r"1+\sqrt2"),
    ("32349", "32, 349"),
    ("x < 1", "x > -1"),
    ("x < 1", "y < 1"),
    ("5, 7", "5, 7, 9"),
    ("LQSX", "SQLX"),
    (r"\frac{3}{2}a", "3/2"),
    ("3:30", "4:40"),
    (r"\frac34, \frac12 \text{ million}", r"\frac34, \frac12"),
    ("|x| + 1 < 3", "x < 2"),
    ("x + x(x-1)(x-5)(x+5) < 2", "x < 2"),
    ("|x-2| < 3", "(-1, 5]"),
    (r"(-\infty, a)", r"(-\infty, a]"),
    (r"(-\infty, a)", r"[-\infty, a)"),
    (r"[1,2] \cup (2,3]", r"[1,2) \cup (2,3]"),
    ("x^2 + y^2 < 4", "x^2 + y^2 > 4"),
    ("-x^2 - y^2 < -4", "x^2 + y^2 < 4"),
    ("p = 5, q = 2; p = 7, q = 3", "p = 5, q = 3; p = 7, q = 2"),
    ("-12_5", "12"),
    ("1A_{16}", "1B_{16}"),
    ("12_5", "12 km"),
    ("12", "12_5"),
    (r"2 \cdot \frac12", r"2\frac12"),
]

UNREAD = [
    *("10 negative", "cab", "no solution", "7 8", "t2", "2 + ", "(1, 2", "1,2)", r"\foo{3}", "5 apples x", "x !! y"),
    *("\uff17", r"\{x \mid x \in \mathbb{Z}\}", "1/0", "", "a word", r"5\text{ apples}3", "a = b < c", "9_2"),
    *(
        r"2\pi million",
        "twenty zero",
        "five two",
        "thousand million",
        r"x^2^\circ",
        r"x \in [1, \infty]",
    ),
]

TOO_LARGE = [r"9^{9^{9}}", "99999999!", "((3000!))^{1000}", r"\binom{10^{9}}{5}", "10^{10^{10}}", "2^{-10^{9}}"]

BOMBS = [
    *(r"\sqrt{" * 40 + "2" + "}" * 40, "(" * 150 + "1" + ")" * 150, "(x+1)^{99}" * 25, "x^{x^{x^{x^{x}}}}"),
    *("+".join([r"\sin(2^{19999})"] * 15), "+".join([r"\tan(e^{9999x})"] * 15), "1" + "!" * 200, "-" * 299 + "1"),
    *(",".join(map(str, range(55))), "(x+2000)!" * 25, "2^{" * 39 + "2" + "}" * 39, r"\arcsin(" * 20 + "x" + ")" * 20),
    *("9" * 299, "0." + "9" * 290, "|" * 299, r"\{" * 50 + r"\}" * 50, "x=y=" * 50 + "3", r"[1,2]\cup" * 30 + "[1,2]"),
    *(r"e^{e^{e^{e^{e}}}}", "_" * 200, "^" * 200, "1," * 140, "1 " * 140, r"\text{" * 50, r"\frac" * 100),
]


@for_every(EQUAL)
def test_the_same_answer_in_another_notation(gold: str, given: str) -> None:
    assert same(read_value(gold), read_value(given))


@for_every(DIFFERENT)
def test_another_answer(gold: str, given: str) -> None:
    assert not same(read_value(gold), read_value(given))


@for_every(UNREAD)
def test_what_is_not_read_in_full_is_not_read_at_all(text: str) -> None:
    with pytest.raises(Unreadable):
        read_value(text)


@for_every(TOO_LARGE)
def test_numbers_that_nobody_can_compute(text: str) -> None:
    with pytest.raises(TooLarge):
        read_value(text)


def test_brackets_beside_each_other_are_not_nested() -> None:
    assert same(read_value("+".join(["(x+1)"] * 100)), read_value("100x+100"))


def test_digits_in_another_base_have_no_tolerance() -> None:
    assert not same(read_value("1112112_3"), read_value("1112122_3"), Comparison(tolerance=0.01))


def test_every_comparison_ends_soon() -> None:
    golds = [read_value(text) for text in ("1", "x^2+1", r"\sqrt2", r"\{1,2\}", "[1,2)", "1,2,3,4,5,6,7,8", "y=2x+1")]
    for bomb in BOMBS:
        started = time.monotonic()
        try:
            given = read_value(bomb)
            for gold in golds:
                assert not same(gold, given)
        except Unreadable:
            pass
        assert time.monotonic() - started < 5, bomb
