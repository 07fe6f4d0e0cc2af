r"""Answers of mathematics as values: numbers, formulas, lists, tuples, intervals, sets, relations, matrices.

`read_value` reads a text in full or raises `Unreadable` with what it did not understand. `same` says whether two
values are the same answer. Constants are compared with 60 digits, formulas with symbols at several points. The one
rule for decimals: a decimal of at least six decimals and six significant digits equals what gives it when rounded or
cut off (0.333333 is 1/3); a shorter one is exact (0.33 is 33/100). It holds on both sides.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from whet.reward.mathematics.formula import (
    Formula,
    Token,
    TooLarge,
    Unreadable,
    context,
    depths,
    exact_value,
    has_constant,
    has_steps,
    point_for,
    read_formula,
    symbols_of,
    text_of,
    tokens_of,
    value_at,
)
from whet.reward.mathematics.quantity import (
    Quantity,
    agreement,
    counted_unit,
    is_measure,
    is_noun_phrase,
    quantity,
    stands_for,
)

MOST_MEMBERS = 60
# LaTeX's spaces at both ends and punctuation at the last: 5\, and 5\ (which loses its blank when stripped) are 5
EDGES = re.compile(r"^(?:[\s~]|\\(?:[,;:!> ]|q?quad(?![a-zA-Z])))+|(?:[\s~.,;]|(?<!\\)\\(?:[,;:!> ]|q?quad|$))+$")
NAME = re.compile(r"\(?[^\W\d_][\w\s,.'\u2019()-]*")
RELATIONS = ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\approx")
TURNED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": "=", r"\ne": r"\ne", r"\approx": r"\approx"}
CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?(?:\s*([ap])\.?\s*m\.?)?", re.IGNORECASE)
FULL_HOUR = re.compile(r"([0-9]{1,2})\s*([ap])\.?\s*m\.?", re.IGNORECASE)
IN_BASE = re.compile(
    r"([+-]?)\s*([0-9A-Za-z]*\.?[0-9A-Za-z]+)\s*_\s*(?:\{\s*(?:\\text\{)?\s*([0-9]{1,2}|[a-z]+)\s*\}?\s*\}|([0-9]))"
)
BASE_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}


class MathValue:
    """What an answer says."""


@dataclass(frozen=True)
class Number(MathValue):
    """A plain number with or without a unit."""

    quantity: Quantity


@dataclass(frozen=True)
class Expression(MathValue):
    formula: Formula
    unit: str = ""


@dataclass(frozen=True)
class Based(MathValue):
    """Digits in another base than ten."""

    digits: str
    base: int


@dataclass(frozen=True)
class Name(MathValue):
    words: str


@dataclass(frozen=True)
class Proportion(MathValue):
    parts: tuple[MathValue, ...]


@dataclass(frozen=True)
class Clock(MathValue):
    hour: int
    minute: int
    second: int
    half: str  # a, p, or "" where it is not said


@dataclass(frozen=True)
class Listed(MathValue):
    """Members without brackets, or in plain braces: a list or a set, as the other side has it."""

    members: tuple[MathValue, ...]


@dataclass(frozen=True)
class Collection(MathValue):
    r"""\{...\}"""

    members: tuple[MathValue, ...]


@dataclass(frozen=True)
class Bracketed(MathValue):
    """(a, b, c), or with two members an interval."""

    opening: str
    closing: str
    members: tuple[MathValue, ...]


@dataclass(frozen=True)
class Matrix(MathValue):
    rows: tuple[tuple[MathValue, ...], ...]


@dataclass(frozen=True)
class Equation(MathValue):
    left: MathValue
    right: MathValue
    named: str = ""  # what the left side names, where the equation only says what something is


@dataclass(frozen=True)
class Relation(MathValue):
    """a < b <= c: the sides and the signs between them."""

    sides: tuple[MathValue, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True)
class Piece:
    start: MathValue
    start_closed: bool
    end: MathValue
    end_closed: bool


@dataclass(frozen=True)
class Region(MathValue):
    """A set of real numbers: intervals in ascending order that do not touch."""

    pieces: tuple[Piece, ...]
    is_relation: bool = False  # written as inequalities, without set brackets
    variable: str = ""


INFINITY = Expression(("constant", "infinity"))
MINUS_INFINITY = Expression(("negative", ("constant", "infinity")))
EVERYTHING = Region((Piece(MINUS_INFINITY, False, INFINITY, False),))


@functools.lru_cache(maxsize=16_384)
def read_value(text: str) -> MathValue:
    """The value that the whole text says; `Unreadable` with what was not understood."""
    plain = EDGES.sub("", text)
    number = quantity(plain)
    if number is not None:
        return Number(number)
    special = _special(plain)
    if special is not None:
        return special
    return _value(tokens_of(plain))


def _special(text: str) -> MathValue | None:
    """What only its exact spelling tells: a number in another base, a time of day."""
    bare = (
        re.sub(r"\\(?:text|mbox|mathrm|textrm)\s*\{([^{}]*)\}", r"\1", text.strip().strip("$"))
        .replace("\\,", "")
        .strip()
    )
    bare = bare.replace("\\ ", " ").replace("\\!", "")
    hour = FULL_HOUR.fullmatch(bare)
    if hour is not None and int(hour[1]) < 13:
        return Clock(int(hour[1]), 0, 0, hour[2].lower())
    clock = CLOCK.fullmatch(bare)
    if clock is not None and int(clock[1]) < 25 and int(clock[2]) < 60:
        return Clock(int(clock[1]), int(clock[2]), int(clock[3] or 0), (clock[4] or "").lower())
    based = IN_BASE.fullmatch(bare)
    if based is not None and (re.search("[0-9]", based[2]) or based[2].isupper()):
        base = BASE_WORDS.get(based[3] or "") or (int(based[3] or based[4]) if (based[3] or based[4]).isdigit() else 0)
        digits = based[2].upper()
        try:
            int(digits.replace(".", "", 1), base)
        except ValueError:
            if based[2][0].isalpha():
                return None  # a letter with a subscript
            raise Unreadable(f"{text!r}: no number in base {base}") from None
        return Based((based[1].strip("+") + digits.lstrip("0")) or "0", base)
    return None


def _value(tokens: Sequence[Token]) -> MathValue:
    tokens = _bare(tokens)
    if not tokens:
        raise Unreadable("nothing")
    name = _name(tokens)
    if name is not None:
        return name
    for read in (_joined, _united, _braced, _bracketed, _matrix, _related, _ratio):
        found = read(tokens)
        if found is not None:
            return found
    return _expression(tokens)


def _bare(tokens: Sequence[Token]) -> Sequence[Token]:
    while tokens and tokens[-1].text in (",", ";", "$"):
        tokens = tokens[:-1]
    while tokens and (tokens[0].text == "$" or tokens[0].text == r"\approx"):
        tokens = tokens[1:]
    return tokens


def _name(tokens: Sequence[Token]) -> Name | None:
    r"""\text{Saturday}, or one letter in brackets as choices have it."""
    words = [token for token in tokens if token.text not in ("(", ")")]
    if len(words) == 1 and words[0].kind == "text" and NAME.fullmatch(words[0].text.strip()):
        return Name(words[0].text)
    return None


def _split(tokens: Sequence[Token], is_cut: Callable[[Token], bool]) -> tuple[list[Sequence[Token]], list[str]]:
    """The parts between the tokens that cut, outside of all brackets, and those tokens."""
    parts: list[Sequence[Token]] = []
    cuts: list[str] = []
    start = 0
    for place, depth in depths(tokens):
        if depth == 0 and is_cut(tokens[place]):
            parts.append(tokens[start:place])
            cuts.append(tokens[place].text if tokens[place].kind not in ("and", "or") else tokens[place].kind)
            start = place + 1
    parts.append(tokens[start:])
    return parts, cuts


def _joined(tokens: Sequence[Token]) -> MathValue | None:
    """Several answers: 1, 2 and 3; x < 1 or x > 3; p = 5, q = 2; p = 7, q = 3."""
    tokens = _cuts_merged(tokens)
    if any(token.text == ";" for token in tokens):
        parts, cuts = _split(tokens, lambda token: token.text == ";")
        if len(parts) > 1:
            rows = [_value(part) for part in parts]
            rows = [_as_tuple(row) if isinstance(row, Listed) else row for row in rows]
            return Listed(_members(rows))
    parts, cuts = _split(tokens, lambda token: token.kind in (",", "and", "or") or token.text in (r"\land", r"\lor"))
    if len(parts) == 1:
        return None
    if len(parts) > MOST_MEMBERS:
        raise Unreadable(f"a list of {len(parts)} members")
    values = [_value(part) for part in parts]
    regions = [value for value in values if isinstance(value, Region) and value.is_relation]
    if len(regions) == len(values) and len({region.variable for region in regions}) == 1:
        either = "or" in cuts or r"\lor" in cuts
        combined = functools.reduce(_union if either else _intersection, regions)
        return replace(combined, is_relation=True, variable=regions[0].variable)
    return Listed(_members(_with_names(values)))


def _cuts_merged(tokens: Sequence[Token]) -> list[Token]:
    """`, and` is one cut."""
    merged: list[Token] = []
    for token in tokens:
        if merged and token.kind in (",", "and", "or") and merged[-1].kind in (",", "and", "or"):
            merged[-1] = token if merged[-1].kind == "," else merged[-1]
        else:
            merged.append(token)
    while merged and merged[-1].kind in (",", ";"):
        merged.pop()
    return merged


def _with_names(values: Sequence[MathValue]) -> list[MathValue]:
    """In a = 4, -8, -10 all three are named."""
    named: list[MathValue] = []
    for value in values:
        previous = named[-1] if named else None
        if isinstance(previous, Equation) and previous.named and isinstance(value, Number | Expression | Bracketed):
            value = Equation(previous.left, value, previous.named)
        named.append(value)
    return named


def _members(values: Sequence[MathValue]) -> tuple[MathValue, ...]:
    """The values, each of a list within the list by itself (1 \\pm \\sqrt 2 is two)."""
    flat: list[MathValue] = []
    for value in values:
        flat += value.members if isinstance(value, Listed) else (value,)
    return tuple(flat)


def _as_tuple(value: Listed) -> Bracketed:
    return Bracketed("(", ")", tuple(each.right if isinstance(each, Equation) else each for each in value.members))


def _united(tokens: Sequence[Token]) -> MathValue | None:
    signs = (r"\cup", r"\cap", r"\setminus")
    if not any(token.text in signs for token in tokens):
        return None
    named = next((place for place, depth in depths(tokens) if depth == 0 and tokens[place].text in (r"\in", "=")), None)
    if named is not None:
        tokens = tokens[named + 1 :]
    parts, cuts = _split(tokens, lambda token: token.text in signs)
    if len(parts) == 1:
        return None
    region = _region(_value(parts[0]))
    for part, cut in zip(parts[1:], cuts, strict=True):
        other = _region(_value(part))
        if cut == r"\setminus":
            other = _complement(other)
        region = _union(region, other) if cut == r"\cup" else _intersection(region, other)
    return replace(region, is_relation=False)


def _region(value: MathValue) -> Region:
    """A value as a set of real numbers."""
    if isinstance(value, Region):
        return value
    if isinstance(value, Bracketed) and len(value.members) == 2:
        closed = value.opening == "[", value.closing == "]"
        return Region((Piece(value.members[0], closed[0], value.members[1], closed[1]),))
    if isinstance(value, Collection):
        points = (Region((Piece(member, True, member, True),)) for member in value.members)
        return functools.reduce(_union, points, Region(()))
    raise Unreadable("a union of what are no sets of numbers")


def _braced(tokens: Sequence[Token]) -> MathValue | None:
    if _encloses(tokens, r"\{", r"\}") or (_encloses(tokens, "{", "}") and _has_cut(tokens[1:-1])):
        inside = tokens[1:-1]
        if tokens[0].text == r"\{":
            built = _built(inside)
            if built is not None:
                return built
        if not inside:
            return Collection(())
        value = _value(inside)
        members = value.members if isinstance(value, Listed) else (value,)
        return Collection(members) if tokens[0].text == r"\{" else Listed(members)
    if _encloses(tokens, "{", "}"):
        return _value(tokens[1:-1])
    if len(tokens) == 1 and tokens[0].text == r"\emptyset":
        return Collection(())
    if [token.text for token in tokens] in ([r"\mathbb", "{", "R", "}"], [r"\mathbb", "R"], [r"\R"], [r"\Reals"]):
        return EVERYTHING
    return None


def _built(tokens: Sequence[Token]) -> Region | None:
    r"""x \mid -2 \le x < 1, the inside of a set-builder."""
    parts, _ = _split(tokens, lambda token: token.text in (r"\mid", ":"))
    if len(parts) == 1:
        bars = [place for place, depth in depths(tokens) if depth == 0 and tokens[place].text == "|"]
        if len(bars) % 2 == 0:
            return None
        # x | |x| < 3: the first bar divides
        parts = [tokens[: bars[0]], tokens[bars[0] + 1 :]]
    if len(parts) != 2:
        raise Unreadable("a set with several conditions signs")
    variable = _symbol(parts[0]) or _symbol(_before_real(parts[0]) or ())
    if not variable:
        raise Unreadable(f"the set of {text_of(parts[0])[:40]!r}")
    conditions, _ = _split(_cuts_merged(parts[1]), lambda token: token.kind in (",", "and") or token.text == r"\land")
    regions = []
    for condition in conditions:
        if _before_real(condition) is not None:
            continue
        value = _value(condition)
        if isinstance(value, Region) and value.variable in ("", variable):
            regions.append(value)
        elif isinstance(value, Equation) and value.named == variable:
            regions.append(_region(Collection((value.right,))))
        else:
            raise Unreadable(f"the condition {text_of(condition)[:40]!r}")
    found = functools.reduce(_intersection, regions, EVERYTHING)
    return Region(found.pieces, variable=variable)


def _before_real(tokens: Sequence[Token]) -> Sequence[Token] | None:
    r"""x of x \in \mathbb{R}."""
    texts = [token.text for token in tokens]
    for ending in ([r"\in", r"\mathbb", "{", "R", "}"], [r"\in", r"\mathbb", "R"], [r"\in", "R"], [r"\in", r"\R"]):
        if texts[-len(ending) :] == ending:
            return tokens[: -len(ending)]
    return None


def _symbol(tokens: Sequence[Token]) -> str:
    """The one symbol that the tokens are, "" for anything else."""
    try:
        formula = read_formula(tokens) if 0 < len(tokens) <= 6 else ()
    except Unreadable:
        return ""
    return str(formula[1]) if formula and formula[0] == "symbol" else ""


def _encloses(tokens: Sequence[Token], opening: str, closing: str) -> bool:
    """True where the first bracket is closed by the last one."""
    if len(tokens) < 2 or tokens[0].text != opening or tokens[-1].text != closing:
        return False
    places = [place for place, depth in depths(tokens) if depth == 0 and place]
    return places == [len(tokens) - 1]


def _has_cut(tokens: Sequence[Token]) -> bool:
    return any(depth == 0 and tokens[place].kind in (",", ";", "and", "or") for place, depth in depths(tokens))


def _bracketed(tokens: Sequence[Token]) -> MathValue | None:
    for opening in ("(", "[", r"\langle"):
        for closing in (")", "]", r"\rangle"):
            if _encloses(tokens, opening, closing):
                inside = tokens[1:-1]
                if not _has_cut(inside):
                    if (opening, closing) != ("(", ")"):
                        return None
                    return _value(inside) if _is_structure(inside) else None
                parts, _ = _split(inside, lambda token: token.kind in (",", ";"))
                if len(parts) > MOST_MEMBERS:
                    raise Unreadable(f"a tuple of {len(parts)} members")
                members = tuple(_value(part) for part in parts)
                plain = "(" if opening == r"\langle" else opening, ")" if closing == r"\rangle" else closing
                return Bracketed(*plain, members)
    return None


def _is_structure(tokens: Sequence[Token]) -> bool:
    return any(token.text.startswith(r"\begin") or token.text in RELATIONS for token in tokens)


def _matrix(tokens: Sequence[Token]) -> MathValue | None:
    if tokens[0].text == "[" and tokens[-1].text == "]":
        tokens = tokens[1:-1]
    is_one = len(tokens) >= 2 and tokens[0].kind == "environment" == tokens[-1].kind
    if not is_one or not re.search(r"\{[pbBvV]?matrix|\{array|\{smallmatrix", tokens[0].text):
        return None
    inside = tokens[1:-1]
    if any(token.kind == "environment" for token in inside):
        raise Unreadable("arithmetic with matrices", is_command=True)
    rows, _ = _split(inside, lambda token: token.kind == "row")
    while rows and not rows[-1]:
        rows.pop()
    cells = [_split(row, lambda token: token.text == "&")[0] for row in rows]
    if sum(map(len, cells)) > MOST_MEMBERS or len({len(row) for row in cells}) != 1:
        raise Unreadable("a matrix with rows of different lengths, or too many")
    return Matrix(tuple(tuple(_value(cell) for cell in row) for row in cells))


def _related(tokens: Sequence[Token]) -> MathValue | None:
    inside = [place for place, depth in depths(tokens) if depth == 0 and tokens[place].text == r"\in"]
    if inside:
        left, right = tokens[: inside[0]], tokens[inside[0] + 1 :]
        variable = _symbol(left)
        if not variable:
            raise Unreadable(f"{text_of(left)[:40]!r} as a member of a set")
        value = _value(right)
        if isinstance(value, Bracketed) and len(value.members) == 2:
            value = _region(value)
        if not isinstance(value, Region | Collection):
            raise Unreadable(f"the set {text_of(right)[:40]!r}")
        return replace(value, variable=variable, is_relation=False) if isinstance(value, Region) else value
    parts, signs = _split(tokens, lambda token: token.text in RELATIONS)
    if len(parts) == 1:
        return None
    if r"\approx" in signs:  # x = 1/3 \approx 0.3: what stands before it is exact
        cut = signs.index(r"\approx")
        before, after = parts[cut], parts[cut + 1]
        exact = cut > 0 or not _is_label(before)
        return _value(before if exact else after)
    if all(sign == "=" for sign in signs):
        return _equation(parts)
    if "=" in signs or r"\ne" in signs[1:]:
        raise Unreadable(f"the relations in {text_of(tokens)[:40]!r}")
    sides = tuple(_value(part) for part in parts)
    return _solved(sides, tuple(signs), parts) or Relation(sides, tuple(signs))


def _equation(parts: Sequence[Sequence[Token]]) -> MathValue:
    right = _value(parts[-1])
    label = _label(parts[0])
    if label and not (isinstance(right, Expression) and label in symbols_of(right.formula)):
        try:
            left = _value(parts[0])
        except Unreadable:
            left = Name(label)
        return Equation(left, right, label)
    left = _value(parts[0])
    if isinstance(left, Number) and isinstance(right, Number):  # 0.56 = 56%
        if not same(left, right):
            raise Unreadable("an equation that does not hold")
        return right
    return right if len(parts) > 2 else Equation(left, right)


def _is_label(tokens: Sequence[Token]) -> bool:
    return bool(_label(tokens))


def _label(tokens: Sequence[Token]) -> str:
    """What the left side of `f(x) = ...`, `|AB| = ...`, `(p, q) = ...` names; "" where it is a formula with numbers."""
    fine = tokens and len(tokens) <= 16
    letters = [token for token in tokens if token.kind in ("word", "text") or token.text[:1] == "\\"]
    plain = all(
        token.kind in ("word", "text")
        or token.text in ("(", ")", "|", ",", "_", "{", "}", ":", "'", "/")
        or (token.kind == "command" and token.text[1:].isalpha() and token.text not in (r"\sqrt",))
        for token in tokens
    )
    subscripts = re.sub(r"_\{?[\w,]+\}?|\(\s*[0-9]+\s*\)", "", text_of(tokens))
    if fine and letters and (plain or not re.search(r"[0-9+*^-]", subscripts)):
        return re.sub(r"\\(?:overline|text|mathrm|left|right)|[\s{}|]", "", text_of(tokens))
    return ""


def _solved(sides: tuple[MathValue, ...], signs: tuple[str, ...], parts: Sequence[Sequence[Token]]) -> Region | None:
    """The region of an inequality with one variable that stands alone: x < 3, -2 <= x < 1, 1 <= |z| <= 2, -x > -1."""
    texts = [text_of(part).replace(" ", "") for part in parts]
    constant = [_is_constant(side) for side in sides]
    unknown = [place for place, is_constant in enumerate(constant) if not is_constant]
    if len(unknown) != 1:
        return None
    place = unknown[0]
    side = sides[place]
    if not isinstance(side, Expression):
        return None
    pieces = EVERYTHING
    formula = side.formula
    symbols = symbols_of(formula)
    for other, sign in _neighbours(sides, signs, place):
        pieces = _intersection(pieces, _half(other, sign))
    if formula[0] == "symbol":
        return Region(pieces.pieces, True, formula[1])
    if formula[0] == "abs" and formula[1][0] == "symbol":
        positive = _intersection(pieces, _half(Number(Quantity(Fraction(0), False, "")), r"\ge"))
        return Region(_union(positive, _mirrored(positive)).pieces, True, formula[1][1])
    if re.fullmatch(r"[a-zA-Z]\([a-z]\)", texts[place]):
        return Region(pieces.pieces, True, texts[place])
    if len(symbols) == 1:
        return _linear(formula, next(iter(symbols)), pieces)
    return None


def _linear(formula: Formula, symbol: str, region: Region) -> Region | None:
    """The region of x, given that of a x + b."""
    values = []
    for at in (0, 1, 5):
        exact = exact_value(_substituted(formula, symbol, Fraction(at)))
        if exact is None:
            return None
        values.append(exact)
    slope, start = values[1] - values[0], values[0]
    if slope == 0 or values[2] != start + 5 * slope:
        return None
    pieces = []
    for piece in region.pieces:
        ends = [_shifted(end, start, slope) for end in (piece.start, piece.end)]
        closed = [piece.start_closed, piece.end_closed]
        if slope < 0:
            ends, closed = ends[::-1], closed[::-1]
        pieces.append(Piece(ends[0], closed[0], ends[1], closed[1]))
    return Region(_ordered(pieces), True, symbol)


def _substituted(formula: Formula, symbol: str, value: Fraction) -> Formula:
    if formula[0] == "symbol":
        return ("number", value) if formula[1] == symbol else formula
    if formula[0] in ("number", "constant"):
        return formula
    return (formula[0], *(_substituted(part, symbol, value) for part in formula[1:]))


def _shifted(end: MathValue, start: Fraction, slope: Fraction) -> MathValue:
    sign = _infinite(end)
    if sign:
        return INFINITY if (sign > 0) == (slope > 0) else MINUS_INFINITY
    shifted = ("sum", _formula(end), ("number", -start))
    return Expression(("quotient", shifted, ("number", slope)))


def _neighbours(sides: Sequence[MathValue], signs: Sequence[str], place: int) -> list[tuple[MathValue, str]]:
    found = []
    if place > 0:
        found.append((sides[place - 1], TURNED[signs[place - 1]]))
    if place < len(signs):
        found.append((sides[place + 1], signs[place]))
    return found


def _half(end: MathValue, sign: str) -> Region:
    """What stands in this relation to the end."""
    if sign in ("<", r"\le"):
        return Region((Piece(MINUS_INFINITY, False, end, sign != "<"),))
    if sign in (">", r"\ge"):
        return Region((Piece(end, sign != ">", INFINITY, False),))
    return Region((Piece(MINUS_INFINITY, False, end, False), Piece(end, False, INFINITY, False)))


def _mirrored(region: Region) -> Region:
    def turned(end: MathValue) -> MathValue:
        sign = _infinite(end)
        if sign:
            return MINUS_INFINITY if sign > 0 else INFINITY
        return Expression(("negative", _formula(end)))

    pieces = [Piece(turned(p.end), p.end_closed, turned(p.start), p.start_closed) for p in region.pieces]
    return Region(_ordered(pieces))


def _infinite(value: MathValue) -> int:
    """1 for infinity, -1 for minus infinity, else 0."""
    if isinstance(value, Expression):
        formula = value.formula
        if formula == ("constant", "infinity"):
            return 1
        if formula == ("negative", ("constant", "infinity")):
            return -1
    return 0


def _at(value: MathValue) -> Any:
    """The place of an end on the line of real numbers."""
    mp = context()
    sign = _infinite(value)
    if sign:
        return sign * mp.inf
    formula = _formula(value)
    if symbols_of(formula):
        raise Unreadable("a set whose ends have symbols")
    found = value_at(formula, {})
    if mp.im(found):
        raise Unreadable("a set whose ends are no real numbers")
    return mp.re(found)


def _ordered(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The pieces in ascending order, those that touch joined, empty ones dropped."""
    if len(pieces) == 1 and not _is_comparable(pieces[0]):
        return tuple(pieces)
    kept = []
    for piece in pieces:
        start, end = _at(piece.start), _at(piece.end)
        if start < end or (start == end and piece.start_closed and piece.end_closed):
            kept.append((start, not piece.start_closed, end, piece))
    kept.sort(key=lambda each: (each[0], each[1]))
    joined: list[Piece] = []
    for start, _, end, piece in kept:
        if joined:
            last = joined[-1]
            last_end = _at(last.end)
            touches = start < last_end or (start == last_end and (last.end_closed or piece.start_closed))
            if touches:
                if end > last_end or (end == last_end and piece.end_closed):
                    joined[-1] = replace(
                        last, end=piece.end, end_closed=piece.end_closed or (end == last_end and last.end_closed)
                    )
                continue
        joined.append(piece)
    return tuple(joined)


def _is_comparable(piece: Piece) -> bool:
    return all(_infinite(end) or not symbols_of(_formula(end)) for end in (piece.start, piece.end))


def _union(first: Region, second: Region) -> Region:
    return Region(_ordered([*first.pieces, *second.pieces]), variable=first.variable or second.variable)


def _intersection(first: Region, second: Region) -> Region:
    if first.pieces == EVERYTHING.pieces:
        return second
    if second.pieces == EVERYTHING.pieces:
        return first
    pieces = []
    for one in first.pieces:
        for other in second.pieces:
            low = max((one, other), key=lambda piece: (_at(piece.start), not piece.start_closed))
            high = min((one, other), key=lambda piece: (_at(piece.end), piece.end_closed))
            pieces.append(Piece(low.start, low.start_closed, high.end, high.end_closed))
    return Region(_ordered(pieces), variable=first.variable or second.variable)


def _complement(region: Region) -> Region:
    found = EVERYTHING
    for piece in region.pieces:
        below = Piece(MINUS_INFINITY, False, piece.start, not piece.start_closed)
        above = Piece(piece.end, not piece.end_closed, INFINITY, False)
        outside = [each for each, end in ((below, piece.start), (above, piece.end)) if not _infinite(end)]
        found = _intersection(found, Region(_ordered(outside)))
    return found


def _ratio(tokens: Sequence[Token]) -> MathValue | None:
    parts, _ = _split(tokens, lambda token: token.text == ":")
    if not 1 < len(parts) <= 6:
        return None
    return Proportion(tuple(_value(part) for part in parts))


def _expression(tokens: Sequence[Token]) -> MathValue:
    for sign in (r"\pm", r"\mp"):
        if any(token.text == sign for token in tokens):
            return _both_signs(tokens)
    number = quantity(text_of(tokens)) if len(tokens) <= 6 else None
    if number is not None:
        return Number(number)
    formula_tokens, unit = _without_unit(tokens)
    formula = read_formula(formula_tokens)
    if formula[0] == "degrees":
        formula, unit = formula[1], unit or "degrees"
    counted, _ = counted_unit(unit)
    if counted:
        raise Unreadable(f"the words {unit!r}")
    exact = exact_value(formula) if not symbols_of(formula) else None
    if exact is not None and not unit:
        return Number(Quantity(exact, False, ""))
    return Expression(formula, unit)


def _both_signs(tokens: Sequence[Token]) -> MathValue:
    if sum(token.text in (r"\pm", r"\mp") for token in tokens) > 2:
        raise Unreadable("more than two double signs")
    values = []
    for turned in ({r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"}):
        chosen = [Token(turned[t.text], turned[t.text], t.spaced) if t.text in turned else t for t in tokens]
        values.append(_expression(chosen))
    return Listed(tuple(values))


def _without_unit(tokens: Sequence[Token]) -> tuple[Sequence[Token], str]:
    r"""The tokens before a unit in words or in \text{}, and the unit: 8\sqrt{3}\text{ cm}^2, 2\pi square inches."""
    start = len(tokens)
    if start > 2 and tokens[-2].text == "^" and tokens[-1].text in ("2", "3") and tokens[-3].kind == "text":
        start -= 2
    while start > 1 and (
        tokens[start - 1].kind == "text" or (tokens[start - 1].kind == "word" and tokens[start - 1].spaced)
    ):
        start -= 1
    if start == len(tokens):
        return tokens, ""
    unit = " ".join(text_of([replace_spaced(token) for token in tokens[start:]]).lower().split()).removesuffix(".")
    unit = re.sub(r"\s*\^\s*", "^", unit)
    words = unit.removeprefix("(").removesuffix(")").split()
    if all(token.kind == "word" for token in tokens[:start]) and tokens[start].kind == "word":
        return tokens, ""  # words alone are no formula with a unit
    only_letters = all(token.kind == "word" and len(token.text) == 1 for token in tokens[start:])
    if not only_letters and (is_measure(unit) or is_noun_phrase([word.strip(".,") for word in words])):
        return tokens[:start], unit
    return tokens, ""


def replace_spaced(token: Token) -> Token:
    return token._replace(spaced=True)


def _formula(value: MathValue) -> Formula:
    """A value as one formula, where it is one."""
    if isinstance(value, Number):
        return ("number", value.quantity.value / (100 if value.quantity.percent else 1))
    if isinstance(value, Expression):
        return value.formula
    if isinstance(value, Equation) and value.named:
        return _formula(value.right)
    raise Unreadable("a structure where a number or formula is expected")


def _is_constant(value: MathValue) -> bool:
    if isinstance(value, Number):
        return True
    return isinstance(value, Expression) and not symbols_of(value.formula)


@dataclass(frozen=True)
class Comparison:
    """How two values are compared."""

    tolerance: float = 0.0  # a share of the gold value
    relations_as_sets: bool = True
    question: str = ""


EXACT = Comparison()


def same(gold: MathValue, given: MathValue, rule: Comparison = EXACT) -> bool:
    """Whether the given value is the gold one. `Unreadable` where it cannot be computed."""
    gold, given = _unnamed(gold, given)
    if isinstance(gold, Number | Expression) and isinstance(given, Number | Expression):
        return _same_formula(gold, given, rule)
    if isinstance(gold, Region) or isinstance(given, Region):
        return _same_region(gold, given, rule)
    if isinstance(gold, Equation) and isinstance(given, Equation):
        return _same_equation(gold, given, rule)
    if isinstance(gold, Relation) and isinstance(given, Relation):
        return _same_relation(gold, given, rule)
    if isinstance(gold, Name) or isinstance(given, Name):
        return _letters(gold) != "" and _letters(gold) == _letters(given)
    if isinstance(gold, Based) or isinstance(given, Based):
        return _same_digits(gold, given)
    if isinstance(gold, Clock) and isinstance(given, Clock):
        return _same_time(gold, given)
    if isinstance(gold, Proportion | Clock) and isinstance(given, Proportion | Clock | Number | Expression):
        return _same_ratio(gold, given, rule)
    if isinstance(given, Proportion) and isinstance(gold, Number | Expression):
        return _same_ratio(given, gold, rule)
    if isinstance(gold, Matrix) and isinstance(given, Matrix):
        shapes = [tuple(map(len, each.rows)) for each in (gold, given)]
        pairs = zip((c for row in gold.rows for c in row), (c for row in given.rows for c in row), strict=False)
        return shapes[0] == shapes[1] and all(same(one, other, rule) for one, other in pairs)
    return _same_members(gold, given, rule)


def verdict(gold: str, given: str, rule: Comparison = EXACT) -> bool | None:
    """Whether one text is the same answer as the gold one; None where it has LaTeX that only math-verify may know."""
    wanted = read_value(gold)
    try:
        return same(wanted, read_value(given), rule)
    except Unreadable as what:
        if isinstance(wanted, Name):
            return same(wanted, Name(given), rule)
        return None if what.is_command else False


def _unnamed(gold: MathValue, given: MathValue) -> tuple[MathValue, MathValue]:
    """x = 3 against 3: what names the value is left out where only one side has it."""
    if isinstance(given, Equation) and given.named and not isinstance(gold, Equation):
        return _unnamed(gold, given.right)
    if isinstance(gold, Equation) and gold.named and not isinstance(given, Equation):
        return _unnamed(gold.right, given)
    if isinstance(gold, Equation) and isinstance(given, Equation) and gold.named and gold.named == given.named:
        return _unnamed(gold.right, given.right)
    for one in (gold, given):
        if isinstance(one, Collection | Listed) and len(one.members) == 1:
            return (
                _unnamed(
                    *(
                        each.members[0] if isinstance(each, Collection | Listed) and len(each.members) == 1 else each
                        for each in (gold, given)
                    )
                )
                if not _is_many(gold if one is given else given)
                else (gold, given)
            )
    return gold, given


def _is_many(value: MathValue) -> bool:
    return isinstance(value, Collection | Listed | Region) and not (
        isinstance(value, Collection | Listed) and len(value.members) == 1
    )


def _same_formula(gold: Number | Expression, given: Number | Expression, rule: Comparison) -> bool:
    if isinstance(gold, Number) and isinstance(given, Number):
        return agreement(gold.quantity, given.quantity, rule.tolerance, rule.question) == "same"
    units = [each.quantity.unit if isinstance(each, Number) else each.unit for each in (gold, given)]
    one = Quantity(Fraction(1), False, "")
    sizes = [replace(one, unit=unit) for unit in units]
    if all(units) and agreement(sizes[0], sizes[1]) == "different":
        return False
    first, second = _formula(gold), _formula(given)
    counted = [
        COUNT for each in (gold, given) if isinstance(each, Number) for COUNT in [each.quantity.counted] if COUNT
    ]
    if counted:
        return False
    symbols = symbols_of(first) | symbols_of(second)
    if first == second:
        return True
    if symbols:
        return (
            symbols_of(first) != frozenset()
            and symbols_of(second) != frozenset()
            and _identical(first, second, symbols)
        )
    steps = [each.quantity.step if isinstance(each, Number) else Fraction(0) for each in (gold, given)]
    return _same_constant(first, second, steps, rule.tolerance)


def _same_constant(first: Formula, second: Formula, steps: Sequence[Fraction], tolerance: float) -> bool:
    exact = exact_value(first), exact_value(second)
    if None not in exact and exact[0] == exact[1]:
        return True
    mp = context()
    infinite = _infinite(Expression(first)), _infinite(Expression(second))
    if any(infinite):
        return infinite[0] == infinite[1]
    values = value_at(first, {}), value_at(second, {})
    widths = [mp.mpf(step.numerator) / step.denominator for step in steps]
    is_real = not any(mp.im(value) for value in values)
    if is_real and stands_for(mp.re(values[0]), widths[0], mp.re(values[1]), widths[1]):
        return True
    if tolerance and abs(values[0] - values[1]) <= tolerance * abs(values[0]):
        return True
    return None in exact and _is_zero_gap(first, second, {}, values)


def _is_zero_gap(first: Formula, second: Formula, point: Any, values: tuple[Any, Any]) -> bool:
    """True where the two computed values are one: they agree in their digits, or both vanish with more digits."""
    largest = max(abs(values[0]), abs(values[1]))
    if largest > 1e-30 or values[0] == values[1]:
        return bool(abs(values[0] - values[1]) <= largest * 1e-40)
    more = [value_at(each, point, 150) for each in (first, second)]
    if all(abs(fine) <= abs(coarse) * 1e-50 for fine, coarse in zip(more, values, strict=True)):
        return True
    return bool(abs(more[0] - more[1]) <= max(abs(more[0]), abs(more[1])) * 1e-40)


def _identical(first: Formula, second: Formula, symbols: frozenset[str]) -> bool:
    """Whether two formulas have the same value wherever both have a real one; several points are tried.

    A symbol that only one side has may cancel out, but then it does so at every point.
    """
    imaginary = has_constant(first, "i") or has_constant(second, "i")
    stepped = has_steps(first) or has_steps(second)
    mp = context()
    tried = 0
    for turn in range(24 if stepped else 12):
        point = point_for(symbols, turn, stepped)
        try:
            values = value_at(first, point), value_at(second, point)
        except TooLarge:
            raise
        except Unreadable:
            continue
        if not imaginary and turn < 8 and any(abs(mp.im(value)) > 1e-30 for value in values):
            continue
        if not _is_zero_gap(first, second, point, values):
            return False
        tried += 1
        if tried == (20 if stepped else 4):
            return True
    if tried:
        return True
    raise Unreadable("a formula without a value at any point that was tried")


def _same_region(gold: MathValue, given: MathValue, rule: Comparison) -> bool:
    if not isinstance(gold, Region) and isinstance(given, Region) and given.is_relation and not rule.relations_as_sets:
        return False
    if isinstance(gold, Region) and isinstance(given, Region):
        is_set = not gold.is_relation and not gold.variable
        named = not gold.is_relation
        if given.is_relation and named and not rule.relations_as_sets:
            return False
        both_named = gold.is_relation and given.is_relation and gold.variable and given.variable
        if both_named and gold.variable != given.variable and not is_set:
            return False
    try:
        first, second = _region(gold), _region(given)
    except Unreadable:
        return False
    if len(first.pieces) != len(second.pieces):
        return False
    for one, other in zip(first.pieces, second.pieces, strict=True):
        if (one.start_closed, one.end_closed) != (other.start_closed, other.end_closed):
            return False
        if not (same(one.start, other.start, rule) and same(one.end, other.end, rule)):
            return False
    return True


def _same_equation(gold: Equation, given: Equation, rule: Comparison) -> bool:
    """Equal where both sides are, or where one is the other times a number: 2x + 4y = 3 is y = 3/4 - x/2."""
    if gold.named and gold.named == given.named and same(gold.right, given.right, rule):
        return True
    try:
        first, second = (("sum", _formula(e.left), ("negative", _formula(e.right))) for e in (gold, given))
    except Unreadable:
        return gold.named == given.named and gold.named != "" and same(gold.right, given.right, rule)
    return _proportional(first, second, positive=False)


def _proportional(first: Formula, second: Formula, positive: bool) -> bool:
    symbols = symbols_of(first) | symbols_of(second)
    if not symbols or symbols_of(first) != symbols_of(second):
        return False
    shares = []
    for turn in range(8):
        point = point_for(symbols, turn)
        try:
            shares.append(value_at(first, point) / value_at(second, point))
        except (Unreadable, ZeroDivisionError):
            continue
        if abs(shares[-1] - shares[0]) > abs(shares[0]) * 1e-40 or shares[0] == 0:
            return False
        if positive and not (context().im(shares[0]) == 0 and context().re(shares[0]) > 0):
            return False
        if len(shares) == 4:
            return True
    return False


def _same_relation(gold: Relation, given: Relation, rule: Comparison) -> bool:
    turned = Relation(given.sides[::-1], tuple(TURNED[sign] for sign in given.signs[::-1]))
    for other in (given, turned):
        if gold.signs == other.signs and all(same(o, g, rule) for o, g in zip(gold.sides, other.sides, strict=True)):
            return True
    if len(gold.signs) == 1 == len(given.signs):
        try:
            first, second = (_difference(each) for each in (gold, given))
        except Unreadable:
            return False
        return first[1] == second[1] and _proportional(first[0], second[0], positive=first[1] != r"\ne")
    return False


def _difference(relation: Relation) -> tuple[Formula, str]:
    """left > right as (left - right, ">")."""
    left, right = (_formula(side) for side in relation.sides)
    sign = relation.signs[0]
    if sign in ("<", r"\le"):
        left, right, sign = right, left, TURNED[sign]
    return ("sum", left, ("negative", right)), sign


def _letters(value: MathValue) -> str:
    """A name, or what a formula of bare letters spells, for comparing \\text{odd} with odd."""
    if isinstance(value, Name):
        return re.sub(r"[\s().,;:'\u2019-]+", " ", value.words).strip().casefold()
    if isinstance(value, Bracketed | Listed | Collection) and all(_letters(each) for each in value.members):
        return " ".join(_letters(each) for each in value.members)
    if isinstance(value, Expression):
        formula = value.formula
        if formula[0] in ("symbol", "constant") and len(formula[1]) == 1:
            return str(formula[1]).casefold()
        if formula[0] == "product" and all(part[0] in ("symbol", "constant") for part in formula[1:]):
            return "".join(str(part[1]) for part in formula[1:]).casefold()
    return ""


def _same_digits(gold: MathValue, given: MathValue) -> bool:
    """The same digits in the same base; digits without a base are taken to be in the other's."""
    if isinstance(gold, Based) and isinstance(given, Based):
        return gold == given
    based, bare = (gold, given) if isinstance(gold, Based) else (given, gold)
    assert isinstance(based, Based)
    if isinstance(gold, Based) and isinstance(bare, Number) and not bare.quantity.unit and not bare.quantity.percent:
        try:
            return Fraction(based.digits) == bare.quantity.value
        except ValueError:
            return False
    if isinstance(gold, Number) and based.base == 10:
        return Fraction(based.digits) == gold.quantity.value
    return False


def _same_time(gold: Clock, given: Clock) -> bool:
    same_half = gold.half == given.half or "" in (gold.half, given.half)
    return same_half and (gold.hour, gold.minute, gold.second) == (given.hour, given.minute, given.second)


def _same_ratio(gold: MathValue, given: MathValue, rule: Comparison) -> bool:
    first, second = _ratio_parts(gold), _ratio_parts(given)
    if len(first) == len(second) and all(same(one, other, rule) for one, other in zip(first, second, strict=True)):
        return True
    if isinstance(gold, Clock) and isinstance(given, Clock):
        return False
    if len(second) == 1 and len(first) == 2 and isinstance(second[0], Number | Expression):
        return _same_share(first, (second[0], Number(Quantity(Fraction(1), False, ""))))
    zeros = any(isinstance(each, Number) and not each.quantity.value for each in (*first, *second))
    if len(first) != len(second) or zeros:
        return False
    return all(
        _same_share((first[0], one), (second[0], other)) for one, other in zip(first[1:], second[1:], strict=True)
    )


def _ratio_parts(value: MathValue) -> tuple[MathValue, ...]:
    if isinstance(value, Proportion):
        return value.parts
    if isinstance(value, Clock):
        return tuple(Number(Quantity(Fraction(each), False, "")) for each in (value.hour, value.minute))
    return (value,)


def _same_share(first: Sequence[MathValue], second: Sequence[MathValue]) -> bool:
    products = [("product", _formula(one), _formula(other)) for one, other in zip(first, second[::-1], strict=True)]
    return same(Expression(products[0]), Expression(products[1]))


def _same_members(gold: MathValue, given: MathValue, rule: Comparison) -> bool:
    if isinstance(gold, Bracketed) and isinstance(given, Bracketed):
        brackets = (gold.opening, gold.closing) == (given.opening, given.closing)
        return brackets and _in_order(gold.members, given.members, rule)
    ordered = {type(gold), type(given)} == {Bracketed, Listed}
    if ordered:
        tuples = [each for each in (gold, given) if isinstance(each, Bracketed)]
        return (tuples[0].opening, tuples[0].closing) == ("(", ")") and _in_order(gold.members, given.members, rule)  # type: ignore[attr-defined]
    many = (Listed, Collection)
    if not isinstance(gold, many) and not isinstance(given, many):
        return False
    members = [each.members if isinstance(each, many) else (each,) for each in (gold, given)]
    names = [[each.named if isinstance(each, Equation) else "" for each in side] for side in members]
    one_side_named = all(names[0]) != all(names[1]) and (all(names[0]) or all(names[1]))
    if one_side_named:
        named = names[0] if all(names[0]) else names[1]
        if len(set(named)) == len(named) > 1:
            # AB = 4, CD = 5 against 4, 5: which is which is told by the order alone
            first, second = (tuple(e.right if isinstance(e, Equation) else e for e in side) for side in members)
            family = len({re.sub(r"[_{}0-9]", "", each) for each in named}) == 1  # x_1, x_2 are roots in any order
            return _in_order(first, second, rule) or (family and _in_any_order(first, second, rule))
    return _in_any_order(members[0], members[1], rule)


def _in_order(gold: Sequence[MathValue], given: Sequence[MathValue], rule: Comparison) -> bool:
    return len(gold) == len(given) and all(same(one, other, rule) for one, other in zip(gold, given, strict=True))


def _in_any_order(gold: Sequence[MathValue], given: Sequence[MathValue], rule: Comparison) -> bool:
    if max(len(gold), len(given)) > MOST_MEMBERS:
        raise Unreadable("too many members")
    if len(given) > 2 * len(gold) + 2:  # members may repeat, but a heap of them is no answer
        return False
    found = all(any(same(one, other, rule) for other in given) for one in gold)
    return found and all(any(same(one, other, rule) for one in gold) for other in given)
