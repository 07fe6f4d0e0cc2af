"""Whether a text is the gold answer: the same value, worked out.

An answer that leaves the work to the reader is none: a formula of the question copied, or arithmetic not carried out.
"""

from __future__ import annotations

import functools
import math
import re

from whet.reward.mathematics.formula import Formula, read_formula, walk
from whet.reward.mathematics.math_value import MathValue, Name, Quantity
from whet.reward.mathematics.quantity import plain_text, quantity
from whet.reward.mathematics.read_value import read_value, without_unit
from whet.reward.mathematics.same_value import EXACT, Comparison, same
from whet.reward.mathematics.tokens import LONGEST, Unreadable, spelled, tokens_of

# one sign for each thing, and none for what only changes the looks, beside what `spelled` does
SIGNS = (
    (re.compile(r"\\\\"), ";"),
    (re.compile(r"\\begin\s*\{[a-z*]+\}"), "["),
    (re.compile(r"\\end\s*\{[a-z*]+\}"), "]"),
    (re.compile(r"\^\\circ"), "\u00b0"),
    (re.compile(r"\\[{}]|[\s${}]|[.,;:?=]+\s*$"), ""),
)
# commands that stand for a value or a word; all others are to be worked out
VALUE = re.compile(r"\x01[^\x02]*\x02|\\(?:math[a-z]+|pi|infty|le|ge|ne|in|cup|cap|mid|pm|emptyset)(?![a-zA-Z])")
# a sum, a product, a quotient, a power, a factorial, an absolute value; no sign of a number
OPERATION = re.compile(r"(?<=[^(\[,;=<>+*/^|-])[+-]|[*/^!]|[)\]][(\[]|[0-9]\(|\)[0-9]|\|[^|]+\||\\")
FRACTION = re.compile(r"([0-9]+)\s*/\s*([0-9]+)")
LOOKS = re.compile(r"[*()]")  # signs that may be written or left out
# where the gold answer is a number, a formula with one of these is still to be worked out
TO_DO = re.compile(
    r"(?<![a-zA-Z])(?:\\?(?:log|ln|sin|cos|tan|gcd|lcm)|\\(?:[io]?int|sum|prod|lim|[bp]?mod|max|min|lg|exp|sec|csc|cot"
    r"|arc[a-z]+))(?![a-zA-Z])"
)
# and with one of these where the question has the same
ASKED = (
    re.compile(r"\\[dt]?binom|\bchoose\b"),
    re.compile(r"(?<=[0-9)}])!"),
    re.compile(r"\\sqrt|\u221a|\^\s*\{?\s*\(?\s*(?:[0-9]+\s*/|\\[dt]?frac)"),
)


def verdict(gold: str, answer: str, rule: Comparison = EXACT) -> bool | None:
    """Whether a text is the same answer as the gold one; None where it has LaTeX that only math-verify may know."""
    wanted = read_value(gold)
    try:
        return same(wanted, read_value(answer), rule)
    except Unreadable as what:
        if isinstance(wanted, Name):
            return same(wanted, Name(answer), rule)
        return None if what.is_command else False


def is_copied(answer: str, question: str, gold: str) -> bool:
    """True where the answer only writes down again what was to be worked out: "1/3 + 1/6" to "What is 1/3 + 1/6?".

    A number, a word or a list of them may stand in the question and be right all the same, and so may a formula that
    the gold answer writes in the same way.
    """
    bare = _spelled(answer)
    if not is_unevaluated(answer) or bare == _spelled(gold):
        return False
    asked = _spelled(question)
    if not _holds(asked, bare) and not _holds(LOOKS.sub("", asked), LOOKS.sub("", bare)):
        return False
    try:
        value = read_value(answer)
        return not (isinstance(value, Quantity) and not value.is_number and value == read_value(gold))
    except Unreadable:
        return True


def _holds(text: str, formula: str) -> bool:
    return re.search(rf"(?<![0-9.]){re.escape(formula)}(?!\.?[0-9])", text) is not None


def leaves_work(answer: str, question: str, gold: str, value: MathValue | None) -> bool:
    """True where the gold answer is a number, and this one has yet to be worked out.

    A sum or product of plain numbers (14*6 - 17 for 67), a logarithm, an integral; a root or a binomial coefficient
    where the question has one, too.
    """
    if not (isinstance(value, Quantity) and value.is_number):
        return False
    operators = (TO_DO, *(sign for sign in ASKED if sign.search(question)))
    if any(sign.search(answer) and not sign.search(gold) for sign in operators):
        return True
    return _has_arithmetic(answer) and not _has_arithmetic(gold)


def is_unevaluated(answer: str) -> bool:
    """True for a formula that can be worked out further, or a fraction that can be reduced; False for a number."""
    label, _, right = answer.rpartition("=")
    if quantity(right) is not None and not re.search(r"[-+*/^]", label):
        fraction = FRACTION.search(plain_text(spelled(right)))  # 16/20 and 48/6 can be reduced, 4/5 is a number
        return fraction is not None and math.gcd(int(fraction[1]), int(fraction[2])) > 1
    return r"\operatorname" in answer or OPERATION.search(_bare(VALUE.sub(",", spelled(answer)))) is not None


@functools.lru_cache(maxsize=4096)
def _spelled(text: str) -> str:
    return _bare(spelled(text))


def _bare(text: str) -> str:
    for written, sign in SIGNS:
        text = written.sub(sign, text)
    return text


def _has_arithmetic(text: str) -> bool:
    """True where a sum or product of plain numbers stands anywhere in the formula; 2 1/2 is one number."""
    right = text.rpartition("=")[2]
    if quantity(right) is not None or len(right) > LONGEST:
        return False
    try:
        tokens, _ = without_unit(tokens_of(spelled(right)))
        sums = [part for part in walk(read_formula(tokens)) if part[0] in ("sum", "product")]
    except Unreadable:
        return False
    mixed = ["sum", "number", "quotient"]
    return any(sum(map(_is_plain, parts)) > 1 and [kind, *(p[0] for p in parts)] != mixed for kind, *parts in sums)


def _is_plain(formula: Formula) -> bool:
    """True for a number, its negative, and fractions, sums and products of such."""
    return all(part[0] in ("number", "negative", "quotient", "sum", "product") for part in walk(formula))
