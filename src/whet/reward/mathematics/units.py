"""Words beside numbers: those that are numbers themselves, those that change the number before them, and units."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

Dimension = tuple[str, ...]  # ("length", "length") is an area, ("length", "/", "time") a speed

SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}  # powers of ten
_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = {
    **{word: value for value, word in enumerate(_TO_NINETEEN.split())},
    **{word: 10 * value for value, word in enumerate(_TENS.split(), start=2)},
}
_WORD = _TO_NINETEEN.replace(" ", "|")
_SMALL = rf"(?:(?:{_TENS.replace(' ', '|')})(?:[\s-]+(?!zero|ten|\w*teen|eleven|twelve)(?:{_WORD}))?|{_WORD})\b"
IN_WORDS = re.compile(  # two hundred and five thousand
    rf"(?:(?:(?P<many>{_SMALL})\s+)?(?P<hundred>hundred)\b(?:(?:\s+and)?\s+(?P<few>{_SMALL}))?|(?P<small>{_SMALL}))?"
    rf"(?:\s*(?P<scale>{'|'.join(SCALES)})\b)?(?:(?:\s+and)?\s+(?={_SMALL}|hundred))?",
    re.IGNORECASE,
)
# words that multiply the number before them
_ORDINALS = "third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
_MULTIPLES = {
    **{"dozen": 12, "score": 20, "pair": 2, "couple": 2, "gross": 144, "trio": 3, "ten": 10},
    **{"lakh": 10**5, "crore": 10**7},
}
_PARTS = {
    **{word: number for number, word in enumerate(_ORDINALS.split(), start=3)},
    **{"half": 2, "halve": 2, "quarter": 4, "sixteenth": 16, "twentieth": 20, "hundredth": 100, "thousandth": 1000},
    **{"millionth": 10**6, "billionth": 10**9},
}
COUNTS = {
    **{word: Fraction(size) for word, size in _MULTIPLES.items()},
    **{word: Fraction(1, size) for word, size in _PARTS.items()},
}
# what these say is not the number before them, wherever they stand
VALUE_CHANGERS = frozenset(
    (
        *("negative", "minus", "below", "under", "deficit", "debt", "loss", "double", "twice", "thrice", "triple"),
        *("percent", "percentage", "squared", "cubed", "factorial", "not", "or", "and", "to", "remainder", "bc"),
    )
)
_OF_FORMULAS = "sin cos tan cot sec csc log exp sqrt root theta alpha beta gamma phi lambda"
NO_NOUNS = VALUE_CHANGERS | frozenset(_OF_FORMULAS.split())
# words that make a formula, a choice or a denial of what stands before them
NO_UNITS = NO_NOUNS | frozenset(
    (
        *("plus", "times", "over", "divided", "mod", "choose", "modulo", "base", "more", "less", "least", "most"),
        *("if", "but", "infinity", "short", "quadruple", "fold", "power", "inverse", "reciprocal", "point", "decimal"),
        *("dutzend", "docena", "docenas", "douzaine", "douzaines", "dozzina", "mil", "mille", "mila", "millones"),
        *("tausend", "hundert", "millionen", "milliarden", "milliards", "miliardi", "negativ", "negativo"),
        *("approximately", "almost", "nearly", "about", "roughly", "except", "without", "nor", "either", "unless"),
    )
)
NOUN = re.compile(r"[^\W\d_]{3,}(?:['\u2019-][^\W\d_]+)*")
SMALL_WORDS = frozenset(("of", "in", "per", "a", "an", "the", "at", "on", "by"))
# where both answers carry one of these, they must carry the same
OPPOSITES = (
    *(("am", "pm"), ("north", "south"), ("east", "west"), ("gain", "loss"), ("profit", "loss"), ("left", "right")),
    *(("increase", "decrease"), ("before", "after"), ("up", "down"), ("ad", "bc"), ("even", "odd"), ("more", "less")),
)
# what is measured -> size -> units of that size
_SIZES = {
    "a length": {"1": "unit"},
    "length": {"0.0254": "inch inche", "0.3048": "foot feet ft", "0.9144": "yard yd", "1609.344": "mile mi"},
    "mass": {"1": "gm", "453.59237": "lb pound", "28.349523125": "ounce oz", "907184.74": "ton", "1000000": "tonne"},
    "time": {"1": "s sec second", "60": "min minute", "3600": "h hr hour", "86400": "day", "604800": "week"},
    "money": {"1": "dollar $ usd", "0.01": "cent"},
    "euro": {"1": "euro \u20ac eur"},
    "angle": {"1": "degree \u00b0 deg"},
    "span": {"1": "year yr", "1/12": "month"},
    "count": {"1": "times"},  # "7 times" is one, "7 times 3" is not
}
_METRIC = {"length": ("m", "meter", "metre"), "mass": ("g", "gram"), "volume": ("l", "liter", "litre")}
_PREFIXES = {"1": ("", ""), "1000": ("k", "kilo"), "0.01": ("c", "centi"), "0.001": ("m", "milli")}
UNITS: dict[str, tuple[str, Fraction]] = {
    **{
        name: (measured, Fraction(size))
        for measured, sizes in _SIZES.items()
        for size, names in sizes.items()
        for name in names.split()
    },
    **{
        (short if len(unit) == 1 else long) + unit: (measured, Fraction(size))
        for measured, units in _METRIC.items()
        for unit in units
        for size, (short, long) in _PREFIXES.items()
    },
}
SHORTHAND = {"mph": "mile/hour", "kph": "km/hour"}
RAISED = re.compile(r"(square |sq\.? |cubic )?(.*?)(?:\s*\^\s*\{?([23])\}?)?", re.DOTALL)


def digits_for_words(text: str) -> str:
    """ "five hundred apples" -> "500 apples"; the text itself where it does not begin with a number in words."""
    sign = re.match(r"(?:negative|minus)\s+", text, re.IGNORECASE)
    start = at = sign.end() if sign else 0
    total, power = 0, 99
    while (group := IN_WORDS.match(text, at)) and group[0]:
        power, larger = SCALES[group["scale"].lower()] if group["scale"] else 0, power
        if power >= larger:  # "five two" is no number
            return text
        value = 100 * _small(group["many"] or "one") if group["hundred"] else 0
        value += _small(group["few"] or group["small"] or ("zero" if group["hundred"] else "one"))
        total += value * 10**power
        at = group.end()
    return text if at == start else f"{text[:start]}{total} {text[at:].strip()}".strip()


def _small(words: str) -> int:
    return sum(NUMBER_WORDS[word] for word in re.split(r"[\s-]+", words.lower()))


def counted_unit(unit: str) -> tuple[str, str]:
    """("dozen", "eggs") for "dozen eggs": the word that multiplies, and the rest."""
    first, _, rest = unit.partition(" ")
    for word in (first, first.removesuffix("s"), first.removesuffix("es")):
        if word in COUNTS:
            return word, rest.removeprefix("of ").strip()
    return "", unit


def is_unit(text: str) -> bool:
    """True for a unit of `UNITS`, alone, squared, cubed or per another, and for words that say what was counted."""
    return measure(text) is not None or is_noun_phrase(text.split())


def is_noun_phrase(words: Sequence[str], no_nouns: frozenset[str] = NO_UNITS) -> bool:
    """True for words that only say what was counted: none of them changes the number."""
    first = words[0].removesuffix("s") if words else ""
    if SMALL_WORDS.issuperset(words) or first in NUMBER_WORDS or first in SCALES or any(map(_changes, words[1:])):
        return False
    return not no_nouns & set(words) and all(NOUN.fullmatch(word) or word in SMALL_WORDS for word in words)


def changes_value(sentence: str) -> bool:
    """True where a word of the sentence makes its number another one: dozen, tenths, negative, twice."""
    words = re.findall(r"[a-z]+", sentence.lower())
    return bool(VALUE_CHANGERS & set(words) - {"and", "to"}) or any(map(_changes, words))


def _changes(word: str) -> bool:
    parts = [form for part in word.split("-") for form in (part, part.removesuffix("s"))]
    return any(part in COUNTS or part in NUMBER_WORDS or part in SCALES for part in parts)


def common_sizes(first: str, second: str) -> tuple[Fraction, Fraction] | None:
    """What to multiply each value with before comparing; None for units that measure different things."""
    if not (first and second):
        return Fraction(1), Fraction(1)
    known = measure(first), measure(second)
    if known[0] is not None and known[1] is not None and "a length" not in known[0][0] + known[1][0]:
        return (known[0][1], known[1][1]) if known[0][0] == known[1][0] else None
    words = [set(unit.replace(".", "").split()) for unit in (first, second)]
    is_opposed = any(
        words[0] & {one} and words[1] & {other} and not words[0] & words[1] & {one, other}
        for pair in OPPOSITES
        for one, other in (pair, pair[::-1])
    )
    return None if is_opposed else (Fraction(1), Fraction(1))


def measure(unit: str) -> tuple[Dimension, Fraction] | None:
    """What a unit measures and its size; None for one that is not in `UNITS`."""
    top, bar, bottom = SHORTHAND.get(unit, unit).replace(" per ", "/").replace("per ", "/").partition("/")
    if bar:
        known = measure(top), measure(bottom)
        if known[0] is None or known[1] is None:
            return None
        return (*known[0][0], "/", *known[1][0]), known[0][1] / known[1][1]
    power, name, raised = RAISED.fullmatch(unit.strip()).groups()  # type: ignore[union-attr]
    exponent = int(raised or {"sq": 2, "cu": 3}.get((power or "")[:2], 1))
    measured = UNITS.get(name) or UNITS.get(name.removesuffix("s")) or UNITS.get(name.removesuffix("."))
    return None if measured is None else ((measured[0],) * exponent, measured[1] ** exponent)
