r"""Texts to values: `read_value` reads a text in full or raises `Unreadable` with what it did not understand."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from fractions import Fraction

from whet.reward.mathematics.evaluate import exact_value, line_of
from whet.reward.mathematics.formula import read_formula, symbols_of
from whet.reward.mathematics.math_value import (
    EVERYTHING,
    TURNED,
    MathValue,
    Members,
    Name,
    Quantity,
    Region,
    Relation,
    half,
    is_constant,
    joined,
    number,
    region_of,
)
from whet.reward.mathematics.quantity import plain_quantity, plain_text
from whet.reward.mathematics.same_value import MOST_MEMBERS, same
from whet.reward.mathematics.tokens import LONGEST, Token, Unreadable, spelled, text_of, tokens_of
from whet.reward.mathematics.units import NUMBER_WORDS, counted_unit, is_unit

# words that only say that the answer follows: \text{The answer is } 5
ANNOUNCED = re.compile(
    r"^(\x01)?\s*(?:(?:so|thus|hence|therefore),?\s+)?(?:(?:the|our|my)\s+)?(?:(?:final|correct)\s+)?"
    r"(?:answer|result|solution|total)\s*(?:(?:is|equals)\b\s*:?|[:=])\s*",
    re.IGNORECASE,
)
NAME = re.compile(r"\(?[^\W\d_][\w\s,.'\u2019()-]*")
CLOCK = re.compile(r"([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2}))?)?(?:\s*([ap])\.?\s*m\.?)?", re.IGNORECASE)
IN_BASE = re.compile(r"([+-]?)\s*([0-9A-Za-z]*\.?[0-9A-Za-z]+)\s*_\s*(?:\{\s*([a-z]+)\s*\}|\{?\s*([0-9]{1,2})\s*\}?)")
REALS = (r"\mathbb{R}", r"\mathbbR", r"\R", r"\Reals", "R")


@functools.lru_cache(maxsize=16_384)
def read_value(text: str) -> MathValue:
    """The value that the whole text says; `Unreadable` with what was not understood."""
    if len(text) > LONGEST:
        raise Unreadable(f"a text of {len(text)} characters")
    plain = ANNOUNCED.sub(r"\1", re.sub(r"[\s.,;]+\\?$|\\$", "", spelled(text).strip()))
    plain_number = plain_quantity(plain)
    if plain_number is not None:
        return plain_number
    bare = plain_text(plain.strip("$")) if re.search(r"[_:]|m\b", plain) else ""
    try:
        return _time_of_day(bare) or _in_base(bare) or _value(tokens_of(plain))
    except RecursionError:
        raise Unreadable("a formula nested too deeply") from None


def _time_of_day(text: str) -> Members | None:
    """Hours, minutes and perhaps seconds, the last with p.m. as its unit."""
    clock = CLOCK.fullmatch(text)
    if clock is None or not (clock[2] or clock[4]):
        return None
    *before, last = [int(part) for part in (clock[1], clock[2] or 0, clock[3]) if part is not None]
    if before[0] >= (25 if clock[2] else 13) or last >= 60:
        return None
    half_of_day = f"{clock[4]}m".lower() if clock[4] else ""
    return Members("clock", (*map(number, before), Quantity(("number", Fraction(last)), unit=half_of_day)))


def _in_base(text: str) -> MathValue | None:
    """A number in another base, 1021_3; None for a letter with a subscript."""
    match = IN_BASE.fullmatch(text)
    if match is None or not (re.search("[0-9]", match[2]) or match[2].isupper()):
        return None
    base = int(match[4]) if match[4] else NUMBER_WORDS.get(match[3], 0)
    try:
        int(match[2].replace(".", "", 1), base)
    except ValueError:
        if match[2][0].isalpha():
            return None
        raise Unreadable(f"{text!r}: no number in base {base}") from None
    has_letters = re.search("[a-zA-Z]", match[2])
    digits = Name(match[1].replace("-", "minus ") + match[2]) if has_letters else plain_quantity(match[1] + match[2])
    return digits if base == 10 or digits is None else Members(f"base {base}", (digits,))


def _value(tokens: Sequence[Token]) -> MathValue:
    """What the tokens say: cut at the sign that binds least, or the value of one group, or a formula."""
    while tokens and tokens[-1].sign in (",", ";"):
        tokens = tokens[:-1]
    while tokens and tokens[0].sign == r"\approx":
        tokens = tokens[1:]
    if not tokens:
        raise Unreadable("nothing")
    written = {token.text for token in tokens if token.kind != "text"}
    for sign, cuts, build in LEVELS:
        if not written.isdisjoint(sign):
            return build(*_split(tokens, cuts))
    if _compact(tokens) in REALS[:-1]:
        return EVERYTHING
    return (_group(tokens[0]) if len(tokens) == 1 else None) or _expression(tokens)


def _split(tokens: Sequence[Token], signs: Collection[str]) -> tuple[list[Sequence[Token]], list[str]]:
    """The parts between the signs, and those signs."""
    cuts = [at for at, token in enumerate(tokens) if token.sign in signs]
    if len(cuts) >= MOST_MEMBERS:
        raise Unreadable(f"a list of {len(cuts) + 1} members")
    ends = zip([-1, *cuts], [*cuts, len(tokens)], strict=True)
    return [tokens[start + 1 : end] for start, end in ends], [tokens[at].text for at in cuts]


def _compact(tokens: Sequence[Token]) -> str:
    return text_of(tokens).replace(" ", "")


def _rows(rows: Sequence[Sequence[Token]], _: Sequence[str]) -> MathValue:
    """p = 5, q = 2; p = 7, q = 3 as two tuples."""
    values = [_flat([_value(row)]) for row in rows]
    return Members("list", tuple(members[0] if len(members) == 1 else Members("()", members) for members in values))


def _listed(parts: Sequence[Sequence[Token]], joints: Sequence[str]) -> MathValue:
    """Several answers: 1, 2 and 3; x < 1 or x > 3."""
    first, *middle, last = parts
    values = [_value(part) for part in (first, *filter(None, middle), last)]  # the two joints of `, and` hold nothing
    regions = [value for value in values if isinstance(value, Region) and (value.is_relation or value == EVERYTHING)]
    if len(regions) == len(values) and len({region.variable for region in regions}) == 1:
        union = joined(regions, any if "or" in joints else all)
        return replace(union, is_relation=True, variable=regions[0].variable)
    named: list[MathValue] = []
    for value in values:  # in a = 4, -8, -10 all three are named
        previous = named[-1] if named else None
        is_value = isinstance(value, Quantity) or (isinstance(value, Members) and value.kind[:1] in "([")
        if isinstance(previous, Relation) and previous.named and is_value:
            value = replace(previous, sides=(previous.sides[0], value))
        named.append(value)
    return Members("list", _flat(named))


def _flat(values: Sequence[MathValue]) -> tuple[MathValue, ...]:
    r"""The values, each of a list within the list by itself (1 \pm \sqrt 2 is two)."""
    flat: list[MathValue] = []
    for value in values:
        flat += value.members if isinstance(value, Members) and value.kind == "list" else (value,)
    return tuple(flat)


def _member(parts: Sequence[Sequence[Token]], _: Sequence[str]) -> MathValue:
    r"""x \in [2, 5)."""
    variable = _symbol(parts[0])
    value = EVERYTHING if _compact(parts[-1]) in REALS else _value(parts[-1])
    if isinstance(value, Members) and value.kind == "set" and variable:
        return value
    if isinstance(value, Region) or (variable and isinstance(value, Members) and len(value.members) == 2):
        return replace(region_of(value), variable=variable, is_relation=False)
    raise Unreadable(f"{text_of(parts[0])[:40]!r} as a member of {text_of(parts[-1])[:40]!r}")


def _united(parts: Sequence[Sequence[Token]], signs: Sequence[str]) -> Region:
    regions = [region_of(_value(part)) for part in parts]
    united = regions[0]
    for region, sign in zip(regions[1:], signs, strict=True):
        if sign == r"\setminus":
            region = replace(region, inside=tuple(not part for part in region.inside))
        united = joined((united, region), any if sign == r"\cup" else all)
    return united


def _related(parts: Sequence[Sequence[Token]], signs: Sequence[str]) -> MathValue:
    if r"\approx" in signs:  # x = 1/3 \approx 0.3: what stands before it is exact
        cut = signs.index(r"\approx")
        return _value(parts[cut] if cut > 0 or not _label(parts[cut]) else parts[cut + 1])
    if all(sign == "=" for sign in signs):
        return _equation(parts)
    if "=" in signs or r"\ne" in signs[1:]:
        raise Unreadable(f"the relations between {text_of(parts[0])[:40]!r} and what follows")
    sides = tuple(map(_value, parts))
    return _solved(sides, signs, parts) or Relation(sides, tuple(signs))


def _equation(parts: Sequence[Sequence[Token]]) -> MathValue:
    right = _value(parts[-1])
    label = _label(parts[0])
    if label and not (isinstance(right, Quantity) and label in symbols_of(right.formula)):
        try:
            left = _value(parts[0])
        except Unreadable:
            left = Name(label)
        return Relation((left, right), ("=",), label)
    left = _value(parts[0])
    if all(isinstance(side, Quantity) and side.is_number for side in (left, right)):  # 0.56 = 56%
        if not same(left, right):
            raise Unreadable("an equation that does not hold")
        return right
    return right if len(parts) > 2 else Relation((left, right), ("=",))


def _label(tokens: Sequence[Token]) -> str:
    """What the left side of `f(x) = ...`, `|AB| = ...`, `(p, q) = ...` names; "" where it is a formula with numbers."""
    text = text_of(tokens)
    signs = text_of([token for token in tokens if token.kind != "text"])
    if re.search(r"[0-9+*^-]", re.sub(r"_\{?[\w,]+\}?|\(\s*[0-9]+\s*\)", "", signs)) or not re.search("[a-zA-Z]", text):
        return ""
    return re.sub(r"\\(?:overline|text|mathrm|left|right)|[\s{}|]", "", text)


def _solved(sides: Sequence[MathValue], signs: Sequence[str], parts: Sequence[Sequence[Token]]) -> Region | None:
    """The region of an inequality with one variable that stands alone: x < 3, -2 <= x < 1, 1 <= |z| <= 2, -x > -1."""
    unknown = [at for at, side in enumerate(sides) if not is_constant(side)]
    side = sides[unknown[0]] if len(unknown) == 1 else None
    if not isinstance(side, Quantity):
        return None
    at, formula = unknown[0], side.formula
    bounds = [(TURNED[signs[at - 1]], sides[at - 1])] if at > 0 else []
    bounds += [(signs[at], sides[at + 1])] if at < len(signs) else []
    inside = formula[1] if formula[0] == "abs" else formula
    symbols, written, line = symbols_of(formula), _compact(parts[at]), None
    if re.fullmatch(r"[a-zA-Z]\([a-z]\)", written):
        variable, line = written, (Fraction(1), Fraction(0))
    elif len(symbols) == 1:
        (variable,) = symbols
        line = line_of(inside, variable)
    if line is None:
        return None
    lines = [line, (-line[0], -line[1])] if formula[0] == "abs" else [line]
    try:
        regions = [
            joined([half(end, sign, *line) for line in lines], any if sign in (">", r"\ge") else all)
            for sign, end in bounds
        ]
    except Unreadable:
        return None
    return replace(joined(regions, all), is_relation=True, variable=variable)


RELATIONS = ("<", ">", r"\le", r"\ge", "=", r"\ne", r"\approx")
JOINTS = (",", "and", "or")
UNIONS = (r"\cup", r"\cap", r"\setminus")
# where one of the first signs stands outside of brackets, the tokens are cut at the second ones; what binds least
# comes first, and x < 1 \cup x > 3 is a union
LEVELS: tuple[tuple[Collection[str], Collection[str], Callable[..., MathValue]], ...] = (
    ((";",), (";",), _rows),
    (JOINTS, JOINTS, _listed),
    ((r"\in",), (r"\in",), _member),
    (("=",), RELATIONS, _related),
    (UNIONS, UNIONS, _united),
    (RELATIONS, RELATIONS, _related),
    ((":",), (":",), lambda parts, _: Members("ratio", tuple(map(_value, parts)))),
)


def _group(token: Token) -> MathValue | None:
    """The value of one name or group in brackets; None where it is a formula."""
    inside, kind = token.inside, token.text + token.closing
    kind = kind.replace(r"\langle", "(").replace(r"\rangle", ")")
    signs = {inner.sign for inner in inside}
    if token.kind == "text":
        return Name(token.text) if NAME.fullmatch(token.text.strip()) else None
    if kind == r"\emptyset":
        return Members("set", ())
    if kind.startswith(r"\begin"):
        return _matrix(token)
    if kind == r"\{\}":
        return _built(inside) or Members("set", _flat([_value(inside)]) if inside else ())
    if kind == "{}":
        return _value(inside)
    if kind not in ("()", "(]", "[)", "[]"):
        return None
    if not signs.isdisjoint((*JOINTS, ";")):
        return Members(kind, tuple(map(_value, _split(inside, (",", ";"))[0])))
    is_structure = not signs.isdisjoint((*RELATIONS, r"\{")) or any(sign.startswith(r"\begin") for sign in signs)
    is_name = [inner.kind for inner in inside] == ["text"]
    return _value(inside) if kind in ("()", "[]") and (is_structure or (kind == "()" and is_name)) else None


def _built(tokens: Sequence[Token]) -> Region | None:
    r"""x \mid -2 \le x < 1, the inside of a set-builder."""
    parts, _ = _split(tokens, (r"\mid", ":"))
    bars = [at for at, token in enumerate(tokens) if token.sign == "|"]
    if len(parts) == 1 and len(bars) % 2:  # x | |x| < 3: the first bar divides
        parts = [tokens[: bars[0]], tokens[bars[0] + 1 :]]
    if len(parts) == 1:
        return None
    if len(parts) != 2:
        raise Unreadable("a set with several conditions signs")
    variable = _symbol(parts[0])
    values = [_value(part) for part in parts[bool(variable) :]]  # x \in \mathbb{R} is a condition, too
    variable = variable or getattr(values[0], "variable", "")
    regions = []
    for value in values:
        if isinstance(value, Relation) and value.named == variable:
            value = half(value.sides[1], "=")
        if not variable or not isinstance(value, Region) or value.variable not in ("", variable):
            raise Unreadable(f"the set of {text_of(tokens)[:80]!r}")
        regions.append(value)
    return replace(joined(regions, all), is_relation=False, variable=variable)


def _symbol(tokens: Sequence[Token]) -> str:
    """The one symbol that the tokens are, "" for anything else."""
    name = re.sub("[{} ]", "", text_of(tokens))
    return name if re.fullmatch(r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_\w+)?", name) else ""


def _matrix(token: Token) -> MathValue | None:
    if not re.search(r"\{[pbBvV]?matrix|\{array|\{smallmatrix", token.text):
        return None
    if any(inner.text.startswith(r"\begin") for inner in token.inside):
        raise Unreadable("arithmetic with matrices", is_command=True)
    rows, _ = _split(token.inside, (r"\\",))
    cells = [_split(row, ("&",))[0] for row in (rows if rows[-1] else rows[:-1])]
    if sum(map(len, cells)) > MOST_MEMBERS or len({len(row) for row in cells}) != 1:
        raise Unreadable("a matrix with rows of different lengths, or too many")
    return Members("matrix", tuple(Members("row", tuple(map(_value, row))) for row in cells))


def _expression(tokens: Sequence[Token]) -> MathValue:
    written = text_of(tokens)
    double = written.count(r"\pm") + written.count(r"\mp")
    if double > 2:
        raise Unreadable("more than two double signs")
    if double:
        signs = {r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"}
        return Members("list", tuple(_expression(_with_signs(tokens, chosen)) for chosen in signs))
    plain_number = plain_quantity(written)
    if plain_number is not None:
        return plain_number
    formula_tokens, unit = without_unit(tokens)
    formula = read_formula(formula_tokens)
    if formula[0] == "degrees":
        formula, unit = formula[1], unit or "degrees"
    if counted_unit(unit)[0]:
        raise Unreadable(f"the words {unit!r}")
    exact = exact_value(formula)
    return Quantity(formula if exact is None else ("number", exact), unit=unit)


def _with_signs(tokens: Sequence[Token], signs: dict[str, str]) -> tuple[Token, ...]:
    return tuple(t._replace(text=signs.get(t.text, t.text), inside=_with_signs(t.inside, signs)) for t in tokens)


def without_unit(tokens: Sequence[Token]) -> tuple[Sequence[Token], str]:
    r"""The tokens before a unit in words or in \text{}, and the unit: 8\sqrt{3}\text{ cm}^2, 2\pi square inches."""
    start = len(tokens)
    if start > 2 and tokens[-3].kind == "text" and re.fullmatch(r"\^\{?[23]\}?", _compact(tokens[-2:])):
        start -= 2
    while start > 1 and (
        tokens[start - 1].kind == "text" or (tokens[start - 1].kind == "word" and tokens[start - 1].spaced)
    ):
        start -= 1
    formula, words = tokens[:start], tokens[start:]
    only_letters = all(token.kind == "word" and len(token.text) == 1 for token in words)
    only_words = all(token.kind == "word" for token in formula) and words and words[0].kind == "word"
    if only_letters or only_words:
        return tokens, ""
    unit = re.sub(r"\s*\^\s*", "^", " ".join(text_of(words).lower().split())).removesuffix(".")
    return (formula, unit) if is_unit(re.sub(r"[().,]", "", unit)) or is_unit(unit) else (tokens, "")
