r"""Texts to values: `read_value` reads a text in full or raises `Unreadable` with what it did not understand."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from whet.reward.mathematics.formula import (
    Token,
    Unreadable,
    depths,
    exact_value,
    read_formula,
    symbols_of,
    text_of,
    tokens_of,
)
from whet.reward.mathematics.math_value import (
    EVERYTHING,
    Based,
    Clock,
    Expression,
    MathValue,
    Members,
    Name,
    Number,
    Region,
    Relation,
    complement,
    half,
    is_constant,
    joined,
    joined_all,
    line_of,
    number,
    of_absolute,
    of_linear,
    region_of,
)
from whet.reward.mathematics.quantity import (
    agreement,
    counted_unit,
    is_measure,
    is_noun_phrase,
    plain_text,
    quantity,
)

MOST_MEMBERS = 60
# LaTeX's spaces at both ends and punctuation at the last: 5\, and 5\ (which loses its blank when stripped) are 5
EDGES = re.compile(r"^(?:[\s~]|\\(?:[,;:!> ]|q?quad(?![a-zA-Z])))+|(?:[\s~.,;]|(?<!\\)\\(?:[,;:!> ]|q?quad|$))+$")
# words that only say that the answer follows: \text{The answer is } 5
ANNOUNCED = re.compile(
    r"^(\\(?:text(?:bf|rm|it)?|mbox|mathrm)\s*\{)?\s*(?:(?:so|thus|hence|therefore),?\s+)?(?:(?:the|our|my)\s+)?"
    r"(?:(?:final|correct)\s+)?(?:answer|result|solution|total)\s*(?:(?:is|equals)\b\s*:?|[:=])\s*",
    re.IGNORECASE,
)
NAME = re.compile(r"\(?[^\W\d_][\w\s,.'\u2019()-]*")
TURNED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": "=", r"\ne": r"\ne", r"\approx": r"\approx"}
SPELLED = re.compile(r"[_:]|[ap]\.?\s*m", re.IGNORECASE)  # what every time of day and number with a base has
CLOCK = re.compile(r"([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2}))?)?(?:\s*([ap])\.?\s*m\.?)?", re.IGNORECASE)
IN_BASE = re.compile(r"([+-]?)\s*([0-9A-Za-z]*\.?[0-9A-Za-z]+)\s*_\s*(?:\{\s*([0-9]{1,2}|[a-z]+)\s*\}|([0-9]))")
_BASES = "two three four five six seven eight nine ten"
BASE_WORDS = {word: base for base, word in enumerate(_BASES.split(), start=2)}
REALS = ([r"\mathbb", "{", "R", "}"], [r"\mathbb", "R"], [r"\R"], [r"\Reals"], ["R"])
JOINTS = (",", "and", "or")  # kinds of token between the members of a list


@functools.lru_cache(maxsize=16_384)
def read_value(text: str) -> MathValue:
    """The value that the whole text says; `Unreadable` with what was not understood."""
    plain = ANNOUNCED.sub(r"\1", EDGES.sub("", text))
    plain_number = quantity(plain)
    if plain_number is not None:
        return Number(plain_number)
    bare = plain_text(plain.strip("$")) if SPELLED.search(plain) else ""
    return _time_of_day(bare) or _in_base(bare) or _value(tokens_of(plain))


def _time_of_day(text: str) -> Clock | None:
    clock = CLOCK.fullmatch(text)
    if clock is None or not (clock[2] or clock[4]):
        return None
    hour, minute = int(clock[1]), int(clock[2] or 0)
    if hour >= (25 if clock[2] else 13) or minute >= 60:
        return None
    return Clock(hour, minute, int(clock[3] or 0), (clock[4] or "").lower())


def _in_base(text: str) -> Based | None:
    """A number in another base, 1021_3; None for a letter with a subscript."""
    match = IN_BASE.fullmatch(text)
    if match is None or not (re.search("[0-9]", match[2]) or match[2].isupper()):
        return None
    named = match[3] or match[4]
    base = BASE_WORDS.get(named) or (int(named) if named.isdigit() else 0)
    digits = match[2].upper()
    try:
        int(digits.replace(".", "", 1), base)
    except ValueError:
        if match[2][0].isalpha():
            return None
        raise Unreadable(f"{text!r}: no number in base {base}") from None
    return Based((match[1].strip("+") + digits.lstrip("0")) or "0", base)


def _value(tokens: Sequence[Token]) -> MathValue:
    while tokens and tokens[-1].text in (",", ";", "$"):
        tokens = tokens[:-1]
    while tokens and tokens[0].text in ("$", r"\approx"):
        tokens = tokens[1:]
    if not tokens:
        raise Unreadable("nothing")
    for read in (_name, _joined, _united, _braced, _bracketed, _matrix, _member, _related, _ratio):
        value = read(tokens)
        if value is not None:
            return value
    return _expression(tokens)


def _name(tokens: Sequence[Token]) -> Name | None:
    r"""\text{Saturday}, or one letter in brackets as choices have it."""
    words = [token for token in tokens if token.text not in ("(", ")")]
    is_name = len(words) == 1 and words[0].kind == "text" and NAME.fullmatch(words[0].text.strip())
    return Name(words[0].text) if is_name else None


def _split(tokens: Sequence[Token], is_cut: Callable[[Token], bool]) -> tuple[list[Sequence[Token]], list[str]]:
    """The parts between the tokens that cut, outside of all brackets, and those tokens."""
    if not any(map(is_cut, tokens)):
        return [tokens], []
    parts: list[Sequence[Token]] = []
    cuts: list[str] = []
    start = 0
    for at, depth in depths(tokens):
        if depth == 0 and is_cut(tokens[at]):
            parts.append(tokens[start:at])
            cuts.append(tokens[at].kind if tokens[at].kind in JOINTS else tokens[at].text)
            start = at + 1
    parts.append(tokens[start:])
    return parts, cuts


def _joined(tokens: Sequence[Token]) -> MathValue | None:
    """Several answers: 1, 2 and 3; x < 1 or x > 3; p = 5, q = 2; p = 7, q = 3."""
    tokens = _joints_merged(tokens)
    rows, _ = _split(tokens, lambda token: token.text == ";")
    if len(rows) > 1:
        return Members("list", _flat([_as_tuple(_value(row)) for row in rows]))
    parts, cuts = _split(tokens, lambda token: token.kind in JOINTS or token.text in (r"\land", r"\lor"))
    if len(parts) == 1:
        return None
    if len(parts) > MOST_MEMBERS:
        raise Unreadable(f"a list of {len(parts)} members")
    values = [_value(part) for part in parts]
    regions = [value for value in values if isinstance(value, Region) and value.is_relation]
    if len(regions) == len(values) and len({region.variable for region in regions}) == 1:
        return joined_regions(regions, "or" if "or" in cuts or r"\lor" in cuts else "and")
    return Members("list", _flat(_with_names(values)))


def joined_regions(regions: Sequence[Region], how: str) -> Region:
    """Inequalities of one variable, joined by "and" or "or"."""
    return replace(joined_all(regions, how), is_relation=True, variable=regions[0].variable)


def _joints_merged(tokens: Sequence[Token]) -> list[Token]:
    """`, and` is one joint; none stands at the end."""
    merged: list[Token] = []
    for token in tokens:
        if merged and token.kind in JOINTS and merged[-1].kind in JOINTS:
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
        is_value = isinstance(value, Number | Expression) or (isinstance(value, Members) and value.kind[:1] in "([")
        if isinstance(previous, Relation) and previous.named and is_value:
            value = replace(previous, sides=(previous.sides[0], value))
        named.append(value)
    return named


def _flat(values: Sequence[MathValue]) -> tuple[MathValue, ...]:
    r"""The values, each of a list within the list by itself (1 \pm \sqrt 2 is two)."""
    flat: list[MathValue] = []
    for value in values:
        flat += value.members if isinstance(value, Members) and value.kind == "list" else (value,)
    return tuple(flat)


def _as_tuple(value: MathValue) -> MathValue:
    """p = 5, q = 2 as (5, 2); any other value as it is."""
    if not isinstance(value, Members) or value.kind != "list":
        return value
    members = (member.sides[1] if isinstance(member, Relation) and member.named else member for member in value.members)
    return Members("()", tuple(members))


def _united(tokens: Sequence[Token]) -> MathValue | None:
    signs = (r"\cup", r"\cap", r"\setminus")
    if not any(token.text in signs for token in tokens):
        return None
    named = next((at for at, depth in depths(tokens) if depth == 0 and tokens[at].text in (r"\in", "=")), -1)
    parts, cuts = _split(tokens[named + 1 :], lambda token: token.text in signs)
    if len(parts) == 1:
        return None
    region = region_of(_value(parts[0]))
    for part, cut in zip(parts[1:], cuts, strict=True):
        other = region_of(_value(part))
        other = complement(other) if cut == r"\setminus" else other
        region = joined(region, other, "or" if cut == r"\cup" else "and")
    return replace(region, is_relation=False)


def _braced(tokens: Sequence[Token]) -> MathValue | None:
    texts = [token.text for token in tokens]
    if texts == [r"\emptyset"]:
        return Members("set", ())
    if texts in REALS[:-1]:
        return EVERYTHING
    inside = tokens[1:-1]
    if _encloses(tokens, r"\{", r"\}"):
        if not inside:
            return Members("set", ())
        return _built(inside) or Members("set", _flat([_value(inside)]))
    if _encloses(tokens, "{", "}"):
        return Members("list", _flat([_value(inside)])) if _has_joint(inside) else _value(inside)
    return None


def _built(tokens: Sequence[Token]) -> Region | None:
    r"""x \mid -2 \le x < 1, the inside of a set-builder."""
    parts, _ = _split(tokens, lambda token: token.text in (r"\mid", ":"))
    if len(parts) == 1:
        bars = [at for at, depth in depths(tokens) if depth == 0 and tokens[at].text == "|"]
        if len(bars) % 2 == 0:
            return None
        # x | |x| < 3: the first bar divides
        parts = [tokens[: bars[0]], tokens[bars[0] + 1 :]]
    if len(parts) != 2:
        raise Unreadable("a set with several conditions signs")
    variable = _symbol(parts[0]) or _symbol(_before_reals(parts[0]) or ())
    if not variable:
        raise Unreadable(f"the set of {text_of(parts[0])[:40]!r}")
    conditions, _ = _split(_joints_merged(parts[1]), lambda token: token.kind in (",", "and") or token.text == r"\land")
    regions = []
    for condition in conditions:
        if _before_reals(condition) is not None:
            continue
        value = _value(condition)
        if isinstance(value, Region) and value.variable in ("", variable):
            regions.append(value)
        elif isinstance(value, Relation) and value.named == variable:
            regions.append(half(value.sides[1], "="))
        else:
            raise Unreadable(f"the condition {text_of(condition)[:40]!r}")
    return replace(joined_all(regions, "and"), is_relation=False, variable=variable)


def _before_reals(tokens: Sequence[Token]) -> Sequence[Token] | None:
    r"""x of x \in \mathbb{R}."""
    texts = [token.text for token in tokens]
    for reals in REALS:
        if texts[-len(reals) - 1 :] == [r"\in", *reals]:
            return tokens[: -len(reals) - 1]
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
    return [at for at, depth in depths(tokens) if depth == 0 and at] == [len(tokens) - 1]


def _has_joint(tokens: Sequence[Token]) -> bool:
    return any(depth == 0 and tokens[at].kind in (*JOINTS, ";") for at, depth in depths(tokens))


def _bracketed(tokens: Sequence[Token]) -> MathValue | None:
    """(3, 4), [2, 5), or one value in round brackets."""
    brackets = {"(": "(", "[": "[", r"\langle": "(", ")": ")", "]": "]", r"\rangle": ")"}
    opening, closing = tokens[0].text, tokens[-1].text
    kind = brackets.get(opening, "") + brackets.get(closing, "")
    if kind not in ("()", "(]", "[)", "[]") or not _encloses(tokens, opening, closing):
        return None
    inside = tokens[1:-1]
    if not _has_joint(inside):
        is_structure = any(token.text.startswith(r"\begin") or token.text in TURNED for token in inside)
        return _value(inside) if is_structure and (opening, closing) == ("(", ")") else None
    parts, _ = _split(inside, lambda token: token.kind in (",", ";"))
    if len(parts) > MOST_MEMBERS:
        raise Unreadable(f"a tuple of {len(parts)} members")
    return Members(kind, tuple(_value(part) for part in parts))


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
    return Members("matrix", tuple(Members("row", tuple(_value(cell) for cell in row)) for row in cells))


def _member(tokens: Sequence[Token]) -> MathValue | None:
    r"""x \in [2, 5)."""
    parts, _ = _split(tokens, lambda token: token.text == r"\in")
    if len(parts) == 1:
        return None
    variable = _symbol(parts[0])
    if not variable:
        raise Unreadable(f"{text_of(parts[0])[:40]!r} as a member of a set")
    value = _value(tokens[len(parts[0]) + 1 :])
    if isinstance(value, Members) and value.kind == "set":
        return value
    if isinstance(value, Region) or (isinstance(value, Members) and len(value.members) == 2):
        return replace(region_of(value), variable=variable, is_relation=False)
    raise Unreadable(f"the set {text_of(parts[1])[:40]!r}")


def _related(tokens: Sequence[Token]) -> MathValue | None:
    parts, signs = _split(tokens, lambda token: token.text in TURNED)
    if len(parts) == 1:
        return None
    if r"\approx" in signs:  # x = 1/3 \approx 0.3: what stands before it is exact
        cut = signs.index(r"\approx")
        return _value(parts[cut] if cut > 0 or not _label(parts[cut]) else parts[cut + 1])
    if all(sign == "=" for sign in signs):
        return _equation(parts)
    if "=" in signs or r"\ne" in signs[1:]:
        raise Unreadable(f"the relations in {text_of(tokens)[:40]!r}")
    sides = tuple(_value(part) for part in parts)
    return _solved(sides, signs, parts) or Relation(sides, tuple(signs))


def _equation(parts: Sequence[Sequence[Token]]) -> MathValue:
    right = _value(parts[-1])
    label = _label(parts[0])
    if label and not (isinstance(right, Expression) and label in symbols_of(right.formula)):
        try:
            left = _value(parts[0])
        except Unreadable:
            left = Name(label)
        return Relation((left, right), ("=",), label)
    left = _value(parts[0])
    if isinstance(left, Number) and isinstance(right, Number):  # 0.56 = 56%
        if agreement(left.quantity, right.quantity) == "different":
            raise Unreadable("an equation that does not hold")
        return right
    return right if len(parts) > 2 else Relation((left, right), ("=",))


def _label(tokens: Sequence[Token]) -> str:
    """What the left side of `f(x) = ...`, `|AB| = ...`, `(p, q) = ...` names; "" where it is a formula with numbers."""
    letters = [token for token in tokens if token.kind in ("word", "text") or token.text[:1] == "\\"]
    plain = all(
        token.kind in ("word", "text")
        or token.text in ("(", ")", "|", ",", "_", "{", "}", ":", "'", "/")
        or (token.kind == "command" and token.text[1:].isalpha() and token.text != r"\sqrt")
        for token in tokens
    )
    subscripts = re.sub(r"_\{?[\w,]+\}?|\(\s*[0-9]+\s*\)", "", text_of(tokens))
    if letters and len(tokens) <= 16 and (plain or not re.search(r"[0-9+*^-]", subscripts)):
        return re.sub(r"\\(?:overline|text|mathrm|left|right)|[\s{}|]", "", text_of(tokens))
    return ""


def _solved(sides: Sequence[MathValue], signs: Sequence[str], parts: Sequence[Sequence[Token]]) -> Region | None:
    """The region of an inequality with one variable that stands alone: x < 3, -2 <= x < 1, 1 <= |z| <= 2, -x > -1."""
    unknown = [at for at, side in enumerate(sides) if not is_constant(side)]
    side = sides[unknown[0]] if len(unknown) == 1 else None
    if not isinstance(side, Expression):
        return None
    at, formula = unknown[0], side.formula
    bounds = [half(sides[at - 1], TURNED[signs[at - 1]])] if at > 0 else []
    bounds += [half(sides[at + 1], signs[at])] if at < len(signs) else []
    region = replace(joined_all(bounds, "and"), is_relation=True)
    if formula[0] == "symbol":
        return replace(region, variable=formula[1])
    if formula[0] == "abs" and formula[1][0] == "symbol":
        return replace(of_absolute(region), variable=formula[1][1])
    written = text_of(parts[at]).replace(" ", "")
    if re.fullmatch(r"[a-zA-Z]\([a-z]\)", written):
        return replace(region, variable=written)
    symbols = symbols_of(formula)
    line = line_of(formula, next(iter(symbols))) if len(symbols) == 1 else None
    return None if line is None else replace(of_linear(region, *line), variable=next(iter(symbols)))


def _ratio(tokens: Sequence[Token]) -> MathValue | None:
    parts, _ = _split(tokens, lambda token: token.text == ":")
    return Members("ratio", tuple(_value(part) for part in parts)) if 1 < len(parts) <= 6 else None


def _expression(tokens: Sequence[Token]) -> MathValue:
    if any(token.text in (r"\pm", r"\mp") for token in tokens):
        return _both_signs(tokens)
    plain_number = quantity(text_of(tokens)) if len(tokens) <= 6 else None
    if plain_number is not None:
        return Number(plain_number)
    formula_tokens, unit = _without_unit(tokens)
    formula = read_formula(formula_tokens)
    if formula[0] == "degrees":
        formula, unit = formula[1], unit or "degrees"
    if counted_unit(unit)[0]:
        raise Unreadable(f"the words {unit!r}")
    exact = exact_value(formula) if not symbols_of(formula) else None
    return number(exact) if exact is not None and not unit else Expression(formula, unit)


def _both_signs(tokens: Sequence[Token]) -> MathValue:
    if sum(token.text in (r"\pm", r"\mp") for token in tokens) > 2:
        raise Unreadable("more than two double signs")
    values = []
    for signs in ({r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"}):
        values.append(
            _expression([Token(signs[t.text], signs[t.text], t.spaced) if t.text in signs else t for t in tokens])
        )
    return Members("list", tuple(values))


def _without_unit(tokens: Sequence[Token]) -> tuple[Sequence[Token], str]:
    r"""The tokens before a unit in words or in \text{}, and the unit: 8\sqrt{3}\text{ cm}^2, 2\pi square inches."""
    start = len(tokens)
    if start > 2 and tokens[-2].text == "^" and tokens[-1].text in ("2", "3") and tokens[-3].kind == "text":
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
    unit = " ".join(" ".join(token.text for token in words).lower().split()).removesuffix(".")
    unit = re.sub(r"\s*\^\s*", "^", unit)
    nouns = [word.strip(".,") for word in unit.removeprefix("(").removesuffix(")").split()]
    return (formula, unit) if is_measure(unit) or is_noun_phrase(nouns) else (tokens, "")
