"""Whether two values are the same answer.

Constants are compared with 60 digits, formulas with symbols at several points. The one rule for decimals: a decimal of
at least six decimals and six significant digits equals what gives it when rounded or cut off (0.333333 is 1/3); a
shorter one is exact (0.33 is 33/100). It holds on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from whet.reward.mathematics.evaluate import TooLarge, context, exact_value, point_for, value_at
from whet.reward.mathematics.formula import Formula, symbols_of, walk
from whet.reward.mathematics.math_value import (
    TURNED,
    MathValue,
    Members,
    Name,
    Quantity,
    Region,
    Relation,
    formula_of,
    infinite,
    number,
    region_of,
)
from whet.reward.mathematics.tokens import Unreadable
from whet.reward.mathematics.units import common_sizes

DIGITS_AGREE = 1e-40  # relative
MOST_MEMBERS = 60


@dataclass(frozen=True)
class Comparison:
    """How two values are compared."""

    tolerance: float = 0.0  # a share of the gold value
    relations_as_sets: bool = True
    question: str = ""


EXACT = Comparison()


def same(gold: MathValue, answer: MathValue, rule: Comparison = EXACT) -> bool:
    """Whether the answer's value is the gold one. `Unreadable` where it cannot be computed."""
    if not isinstance(gold, Quantity) or not isinstance(answer, Quantity):
        gold, answer = _unnamed(gold, answer)
    if isinstance(gold, Quantity) and isinstance(answer, Quantity):
        return _same_quantity(gold, answer, rule)
    kinds = tuple(value.kind if isinstance(value, Members) else type(value).__name__ for value in (gold, answer))
    if "Region" in kinds:
        return _same_region(gold, answer, rule)
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _same_relation(gold, answer, rule)
    if isinstance(gold, Members) and gold.kind.startswith("base"):
        # digits without a base are taken to be in the gold one's
        bare = answer if isinstance(answer, Quantity) and not answer.unit else None
        digits = answer.members[0] if isinstance(answer, Members) and answer.kind == gold.kind else bare
        return digits is not None and same(gold.members[0], digits)
    if isinstance(gold, Name) or isinstance(answer, Name):
        return _letters(gold) != "" and _letters(gold) == _letters(answer)
    if {"ratio", "clock", "Quantity"}.issuperset(kinds) and kinds not in (("clock", "clock"), ("Quantity", "clock")):
        return _same_ratio(gold, answer, rule)
    return _same_members(gold, answer, rule)


def _unnamed(gold: MathValue, answer: MathValue) -> tuple[MathValue, MathValue]:
    """x = 3 against 3: what names the value is left out where only one side has it, and so are brackets around one."""
    both = gold, answer
    names = {value.named if isinstance(value, Relation) else "" for value in both}
    are_relations = isinstance(gold, Relation) and isinstance(answer, Relation)
    if names != {""} and not (are_relations and len(names) == 2):
        return _unnamed(*(value.sides[1] if isinstance(value, Relation) else value for value in both))
    groups = [value.members if isinstance(value, Members) and value.is_unordered else () for value in both]
    is_many = any(isinstance(value, Region) for value in both) or max(map(len, groups)) > 1
    if any(groups) and not is_many and not any(value == Members("set", ()) for value in both):
        return _unnamed(*(members[0] if members else value for members, value in zip(groups, both, strict=True)))
    return both


def _same_quantity(gold: Quantity, answer: Quantity, rule: Comparison) -> bool:
    """Whether two quantities are the same one.

    A missing unit agrees with any, and so does one that is not in `UNITS` ("apples"); known ones are converted.
    40% agrees with 0.4, and where the gold answer or the question speaks of percent with 40. 5 dozen agrees with 60,
    and with 5 where the question asks how many dozen.
    """
    sizes = common_sizes(gold.unit, answer.unit)
    if sizes is None:
        return False
    # a bare number counts in what the question asks for
    is_asked_for = not (gold.counted and answer.counted) and asks_for(rule.question, gold.counted or answer.counted)
    first, second = (side if is_asked_for else side.counted_out() for side in (gold, answer))
    factors = [Fraction(1)]
    if gold.percent != answer.percent:
        other = Fraction(1, 100) if answer.percent else Fraction(100)
        factors = [Fraction(1), other] if gold.percent or asks_for(rule.question, "percent") else [other]
    first = first.scaled(sizes[0])
    return any(_same_formula(first, second.scaled(sizes[1] * factor), rule.tolerance) for factor in factors)


def asks_for(question: str, word: str) -> bool:
    """True where the question names the unit that its answer is counted in: percent, or how many dozen."""
    if word == "percent":
        return "percent" in question.lower() or "%" in question
    asked = rf"\b(?:how many|number of|what|how much|in)\s+(?:\w+\s+){{0,2}}?{word}s?\b"
    return bool(word) and re.search(asked, question, re.IGNORECASE) is not None


def _same_formula(gold: Quantity, answer: Quantity, tolerance: float) -> bool:
    first, second = gold.formula, answer.formula
    symbols = [symbols_of(side) for side in (first, second)]
    if first == second:
        return True
    if any(symbols):
        # x^2 - x^2 is 0, but f(0) is no product with 0
        has_zero = any(part == ("number", 0) for side in (first, second) if symbols_of(side) for part in walk(side))
        return (all(symbols) or not has_zero) and _identical(first, second)
    if infinite(gold) or infinite(answer):
        return infinite(gold) == infinite(answer)
    values: Any = exact_value(first), exact_value(second)
    is_exact = None not in values
    if not is_exact:
        values = value_at(first, {}), value_at(second, {})
    is_near = abs(values[0] - values[1]) <= Fraction(tolerance) * abs(values[0])
    return (
        is_near or _stands_for(values, gold.step, answer.step) or (not is_exact and _agree(first, second, {}, values))
    )


def _stands_for(values: Sequence[Any], *steps: Fraction) -> bool:
    """Whether one of two numbers is a long decimal, and the other number rounded or cut off gives it."""
    if not any(steps) or any(context().im(value) for value in values):
        return False
    decimal, exact, step = *(values if steps[0] > steps[1] else values[::-1]), max(steps)
    if not isinstance(exact, Fraction):
        decimal, exact, step = (context().re(value) for value in (decimal, exact, step))
    cut_off = abs(exact) >= abs(decimal) and abs(abs(exact) - abs(decimal)) < step and (exact >= 0) == (decimal >= 0)
    return bool(cut_off or 2 * abs(exact - decimal) <= step)


def _agree(first: Formula, second: Formula, point: Any, values: Sequence[Any]) -> bool:
    """True where the two computed values are one: they agree in their digits, or both vanish with more digits."""
    largest = max(map(abs, values))
    if largest <= 1e-30 and values[0] != values[1]:
        finer = [value_at(formula, point, 150) for formula in (first, second)]
        if all(abs(fine) <= abs(coarse) * 1e-50 for fine, coarse in zip(finer, values, strict=True)):
            return True
        values, largest = finer, max(map(abs, finer))
    return bool(abs(values[0] - values[1]) <= largest * DIGITS_AGREE)


def _samples(first: Formula, second: Formula) -> Iterator[tuple[Any, tuple[Any, Any]]]:
    """A few points at which both formulas have a value, and the values: real ones, where there are such."""
    kinds = {part[0] if part[0] != "constant" else part[1] for side in (first, second) for part in walk(side)}
    stepped = not kinds.isdisjoint(("floor", "ceiling"))
    tried = 0
    for turn in range(24 if stepped else 12):
        point = point_for(symbols_of(first) | symbols_of(second), turn, stepped)
        try:
            values = value_at(first, point), value_at(second, point)
        except TooLarge:
            raise
        except Unreadable:
            continue
        if turn < 8 and "i" not in kinds and any(abs(context().im(value)) > 1e-30 for value in values):
            continue
        yield point, values
        tried += 1
        if tried == (20 if stepped else 4):
            return
    if not tried:
        raise Unreadable("a formula without a value at any point that was tried")


def _identical(first: Formula, second: Formula) -> bool:
    """Whether two formulas have the same value wherever both have a real one.

    A symbol that only one side has may cancel out, but then it does so at every point.
    """
    return all(_agree(first, second, *sample) for sample in _samples(first, second))


def _same_region(gold: MathValue, answer: MathValue, rule: Comparison) -> bool:
    gold_relation, answer_relation = (isinstance(value, Region) and value.is_relation for value in (gold, answer))
    if answer_relation and not gold_relation and not rule.relations_as_sets:
        return False
    names = {value.variable for value in (gold, answer) if isinstance(value, Region) and value.variable}
    if gold_relation and answer_relation and len(names) == 2:
        return False
    try:
        first, second = region_of(gold), region_of(answer)
    except Unreadable:
        return False
    return first.inside == second.inside and _in_order(first.ends, second.ends, rule)


def _same_relation(gold: Relation, answer: Relation, rule: Comparison) -> bool:
    """Equal where both sides are, or where one is the other times a number: 2x + 4y = 3 is y = 3/4 - x/2."""
    turned = Relation(answer.sides[::-1], tuple(TURNED[sign] for sign in answer.signs[::-1]))
    alike = [other for other in (answer, turned) if other.signs == gold.signs]
    return any(_in_order(gold.sides, other.sides, rule) for other in alike) or (
        len(gold.signs) == 1 and any(_proportional(gold, other) for other in alike)
    )


def _proportional(gold: Relation, answer: Relation) -> bool:
    """Whether left - right is a multiple of the gold one, and no negative one where the sign is < or its like."""
    try:
        sides = [[formula_of(side) for side in relation.sides] for relation in (gold, answer)]
    except Unreadable:
        return False
    first, second = (("sum", left, ("negative", right)) for left, right in sides)
    if not symbols_of(first) or symbols_of(first) != symbols_of(second):
        return False
    share = next((values[0] / values[1] for _, values in _samples(first, second) if values[1]), 0)
    is_positive = not context().im(share) and context().re(share) > 0
    may_turn = gold.signs[0] in ("=", r"\ne")
    return bool(share) and (is_positive or may_turn) and _identical(first, ("product", ("number", share), second))


def _letters(value: MathValue) -> str:
    r"""A name, or what a formula of bare letters spells, for comparing \text{odd} with odd."""
    if isinstance(value, Name):
        return re.sub(r"[\s().,;:'\u2019-]+", " ", value.words).strip().casefold()
    if isinstance(value, Members) and all(map(_letters, value.members)):
        return " ".join(map(_letters, value.members))
    if isinstance(value, Quantity):
        formula = value.formula
        parts = formula[1:] if formula[0] == "product" else (formula,)
        is_spelled = all(part[0] in ("symbol", "constant") for part in parts)
        if is_spelled and (len(parts) > 1 or len(formula[1]) == 1):
            return "".join(str(part[1]) for part in parts).casefold()
    return ""


def _same_ratio(gold: MathValue, answer: MathValue, rule: Comparison) -> bool:
    """7:4 is 14:8 and 7/4; of a time of day and a ratio that looks like one, the same holds."""
    first, second = (value.members if isinstance(value, Members) else (value, number(1)) for value in (gold, answer))
    if _in_order(first, second, rule):
        return True
    zeros = any(isinstance(part, Quantity) and part.value == 0 for part in (*first, *second))
    if len(first) != len(second) or zeros:
        return False
    tops, *rest = ([formula_of(part) for part in pair] for pair in zip(first, second, strict=True))
    return all(same(Quantity(("product", tops[0], other)), Quantity(("product", tops[1], one))) for one, other in rest)


def _same_members(gold: MathValue, answer: MathValue, rule: Comparison) -> bool:
    groups = [value if isinstance(value, Members) else Members("", (value,)) for value in (gold, answer)]
    kinds = {group.kind for group in groups}
    if kinds == {"()", "list"} or not any(group.is_unordered for group in groups):
        is_comparable = len(kinds) == 1 or "list" in kinds
        return is_comparable and "" not in kinds and _in_order(groups[0].members, groups[1].members, rule)
    sides = [
        group.members if group.is_unordered else (value,) for group, value in zip(groups, (gold, answer), strict=True)
    ]
    names = [[member.named if isinstance(member, Relation) else "" for member in side] for side in sides]
    named = names[0] if all(names[0]) else names[1]
    if all(names[0]) != all(names[1]) and len(set(named)) == len(named) > 1:
        # AB = 4, CD = 5 against 4, 5: which is which is told by the order alone
        bare = [[m.sides[1] if isinstance(m, Relation) else m for m in side] for side in sides]
        family = len({re.sub(r"[_{}0-9]", "", name) for name in named}) == 1  # x_1, x_2 are roots in any order
        return _in_order(bare[0], bare[1], rule) or (family and _in_any_order(bare[0], bare[1], rule))
    return _in_any_order(sides[0], sides[1], rule)


def _in_order(gold: Sequence[MathValue], answer: Sequence[MathValue], rule: Comparison) -> bool:
    return len(gold) == len(answer) and all(same(one, other, rule) for one, other in zip(gold, answer, strict=True))


def _in_any_order(gold: Sequence[MathValue], answer: Sequence[MathValue], rule: Comparison) -> bool:
    if max(len(gold), len(answer)) > MOST_MEMBERS:
        raise Unreadable("too many members")
    if len(answer) > 2 * len(gold) + 2:  # members may repeat, but a heap of them is no answer
        return False
    return all(any(same(one, other, rule) for other in answer) for one in gold) and all(
        any(same(one, other, rule) for one in gold) for other in answer
    )
