"""Numbers as people write them: 1,234.50, 3 1/2, 2.5 million, five hundred, $5, 40%, 5 dozen, 3 x 10^5, with or
without a unit.

`quantity` reads such a text exactly, as a fraction, and refuses everything else: formulas are read elsewhere. A word
that changes the value (dozen, tenths, negative) is read as part of it or refuses the text; only a noun is decoration.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

Agreement = Literal["same", "different"]
Dimension = tuple[str, ...]  # ("length", "length") is an area, ("length", "/", "time") a speed

LONGEST = 100  # characters; a longer text is no quantity
LARGEST_EXPONENT = 400

PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
SHAPE = re.compile(
    rf"(?P<sign>[+-]?|(?:negative|minus)\b)\s*(?P<currency>[$€£¥]?)\s*(?P<second_sign>[+-]?)"
    rf"(?:(?P<whole>{PLAIN})(?:\.(?=\s|$))?(?:\s+(?P<top>[0-9]+)\s*/\s*(?P<bottom>[0-9]+))?"
    rf"(?:\s*/\s*(?P<divisor>{PLAIN})(?![a-z]))?)"
    r"(?:e(?P<e>[+-]?[0-9]+)|\s*[x*\u00d7]\s*10\s*(?:\^|\*\*)\s*\{?(?P<power>[+-]?[0-9]+)\}?)?"
    r"(?P<percent>\s*(?:%|percent(?:age)?\b|per cent\b|pct\b))?"
    r"(?P<scale>(?:\s*\b(?:hundred|thousand|million|billion|trillion)s?\b)*)"
    r"(?P<unit>.*)",
    re.IGNORECASE | re.DOTALL,
)
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}

TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textrm|textit|textnormal|mbox|mathrm|rm|operatorname)\s*\{([^{}]*)\}")
FORMULA_SIGN = re.compile(r"(?<!\\)\$")
BRACED_COMMA = re.compile(r"\s*\{\s*,\s*\}\s*")
DECIMAL_COMMA = re.compile(r"(?<![0-9,.}])([0-9]+)\{,\}([0-9]{1,2}|[0-9]{4,})(?![0-9]|\{,\})")  # a list has no braces
NEGATIVE_SPACE = re.compile(r"\\!\s*")
SPACING = re.compile(r"\\[ ,;:!]|\\q?quad|~")
SIMPLE_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
SPACED_NUMBER = re.compile(r"(?<![0-9.,/ ])[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9/ ])")  # 1 000 000
# separators of other countries where they can mean nothing else: 1.000.000, 1.234,5, 1'000, 1,00,000. Not so 1.000,
# which is 1, nor 12,34,567, which is a list of three
SEPARATED = re.compile(
    r"(?<![0-9.,'\u2019])(?:(?P<dots>[1-9][0-9]{0,2}(?:\.[0-9]{3})+)(?:,(?P<decimals>[0-9]+))?"
    r"|(?P<quotes>[1-9][0-9]{0,2}(?:['\u2019][0-9]{3})+)(?:\.[0-9]+)?"
    r"|(?P<lakhs>[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3})(?:\.[0-9]+)?)(?![0-9.,'\u2019]*[0-9])"
)
TIMES = re.compile(r"\\times|\\cdot")

_FUNCTIONS = "sin cos tan cot sec csc log exp sqrt root theta alpha beta gamma phi lambda"
OF_FORMULAS = frozenset(_FUNCTIONS.split())
# words that make a formula, a choice or a denial of what stands before them
NO_UNIT = frozenset(
    (
        *("or", "and", "not", "minus", "plus", "times", "over", "divided", "mod", "factorial", "squared", "cubed"),
        *OF_FORMULAS,
        *("choose", "modulo", "base", "more", "less", "least", "most", "remainder", "if", "but", "to", "infinity"),
        *("negative", "below", "under", "short", "deficit", "debt", "loss", "double", "twice", "thrice", "triple"),
        *("quadruple", "fold", "power", "inverse", "reciprocal", "percent", "percentage", "point", "decimal", "bc"),
        *("dutzend", "docena", "docenas", "douzaine", "douzaines", "dozzina", "mil", "mille", "mila", "millones"),
        *("tausend", "hundert", "millionen", "milliarden", "milliards", "miliardi", "negativ", "negativo"),
        *("approximately", "almost", "nearly", "about", "roughly", "except", "without", "nor", "either", "unless"),
    )
)
# what these say is not the number before them, wherever they stand
VALUE_CHANGERS = frozenset(
    (
        *("negative", "minus", "below", "under", "deficit", "debt", "loss", "double", "twice", "thrice", "triple"),
        *("percent", "percentage", "squared", "cubed", "factorial", "not", "or", "and", "to", "remainder", "bc"),
    )
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
# where both answers carry one of these, they must carry the same
OPPOSITES = (
    *(("am", "pm"), ("north", "south"), ("east", "west"), ("gain", "loss"), ("profit", "loss"), ("left", "right")),
    *(("increase", "decrease"), ("before", "after"), ("up", "down"), ("ad", "bc"), ("even", "odd"), ("more", "less")),
)
_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = {
    **{word: value for value, word in enumerate(_TO_NINETEEN.split())},
    **{word: 10 * value for value, word in enumerate(_TENS.split(), start=2)},
}
IN_WORDS = re.compile(rf"(?:(?:{'|'.join((*NUMBER_WORDS, *SCALES, 'and'))})\b[\s-]*)+", re.IGNORECASE)
LEAST_DIGITS = 6  # decimals, and significant digits, from which on a decimal stands for what rounds to it
MOST_DIGITS = 15  # significant ones; those beyond are a computer's noise
SMALL_WORDS = frozenset(("of", "in", "per", "a", "an", "the", "at", "on", "by"))

# unit -> (what it measures, how many of the first unit of that line)
UNITS: dict[str, tuple[str, Fraction]] = {
    name: (measures, Fraction(size))
    for measures, sizes in {
        "a length": (("unit", 1),),
        "length": (
            *(("m", 1), ("meter", 1), ("metre", 1), ("cm", "0.01"), ("centimeter", "0.01"), ("centimetre", "0.01")),
            *(("mm", "0.001"), ("millimeter", "0.001"), ("km", 1000), ("kilometer", 1000), ("kilometre", 1000)),
            *(("inch", "0.0254"), ("inche", "0.0254"), ("foot", "0.3048"), ("feet", "0.3048"), ("ft", "0.3048")),
            *(("yard", "0.9144"), ("yd", "0.9144"), ("mile", "1609.344"), ("mi", "1609.344")),
        ),
        "mass": (
            *(("g", 1), ("gm", 1), ("gram", 1), ("kg", 1000), ("kilogram", 1000), ("mg", "0.001")),
            *(
                ("milligram", "0.001"),
                ("ton", "907184.74"),
                ("tonne", 1_000_000),
                ("lb", "453.59237"),
                ("pound", "453.59237"),
            ),
            *(("ounce", "28.349523125"), ("oz", "28.349523125")),
        ),
        "time": (
            *(("s", 1), ("sec", 1), ("second", 1), ("min", 60), ("minute", 60), ("h", 3600), ("hr", 3600)),
            *(("hour", 3600), ("day", 86400), ("week", 604800)),
        ),
        "volume": (
            *(("l", 1), ("liter", 1), ("litre", 1), ("ml", "0.001"), ("milliliter", "0.001"), ("millilitre", "0.001")),
        ),
        "money": (("dollar", 1), ("$", 1), ("usd", 1), ("cent", "0.01")),
        "euro": (("euro", 1), ("€", 1), ("eur", 1)),
        "angle": (("degree", 1), ("°", 1), ("deg", 1)),
        "span": (("year", 1), ("yr", 1), ("month", Fraction(1, 12))),
    }.items()
    for name, size in sizes
}
SHORTHAND = {"mph": "mile per hour", "kph": "kilometer per hour", "km/hr": "km/h"}


@dataclass(frozen=True)
class Quantity:
    """One number as a text says it."""

    value: Fraction  # as written: 40 for "40%", 5 for "5 dozen"
    percent: bool
    unit: str  # in lower case, "" where none is given
    counted: str = ""  # the word that multiplies the value: dozen, tenth
    step: Fraction = Fraction(0)  # one unit of the last digit of a long decimal, 0 for other numbers

    @property
    def amount(self) -> Fraction:
        """60 for "5 dozen"; a percent sign and units are not applied."""
        return self.value * COUNTS.get(self.counted, 1)


@functools.lru_cache(maxsize=4096)  # the completions of a group say the same few numbers
def quantity(text: str) -> Quantity | None:
    """What the text says, when it is one number with or without a unit; None for anything else."""
    if len(text) > LONGEST:
        return None
    plain = plain_text(text)
    match = SHAPE.fullmatch(plain) or SHAPE.fullmatch(_digits_for_words(plain))
    if match is None:
        return None
    value = _value(match)
    unit = _unit(match)
    if value is None or unit is None:
        return None
    counted, unit = counted_unit(unit)
    return Quantity(value, match["percent"] is not None, unit, counted, _step(match))


def agreement(gold: Quantity, other: Quantity, tolerance: float = 0.0, question: str = "") -> Agreement:
    """Whether two quantities are the same one, `tolerance` a share of the gold value.

    A missing unit agrees with any, and so does one that is not in `UNITS` ("apples"); known ones are converted.
    40% agrees with 0.4, and where the gold answer or the question speaks of percent with 40. 5 dozen agrees with 60,
    and with 5 where the question asks how many dozen. A decimal of six or more decimals and significant digits agrees
    with what gives it when rounded or cut off.
    """
    sizes = _common_sizes(gold.unit, other.unit)
    if sizes is None:
        return "different"
    # a bare number counts in what the question asks for
    word = gold.counted or other.counted
    counted = (word, word) if word and asks_for(question, word) else (gold.counted, other.counted)
    if gold.counted and other.counted:
        counted = gold.counted, other.counted
    wanted = gold.value * COUNTS.get(counted[0], 1) * sizes[0]
    values = [other.value * COUNTS.get(counted[1], 1)]
    if gold.percent != other.percent:
        as_numbers = [value / 100 if other.percent else value * 100 for value in values]
        values = [*values, *as_numbers] if gold.percent or asks_for(question, "percent") else as_numbers
    share = Fraction(tolerance) * abs(wanted)
    for value in values:
        value *= sizes[1]
        if abs(value - wanted) <= share or stands_for(wanted, gold.step * sizes[0], value, other.step * sizes[1]):
            return "same"
    return "different"


def stands_for(first: Any, first_step: Any, second: Any, second_step: Any) -> bool:
    """Whether one of two numbers is a long decimal, and the other number rounded or cut off gives it."""
    decimal, exact, step = (first, second, first_step) if first_step > second_step else (second, first, second_step)
    if not step:
        return False
    cut_off = abs(exact) >= abs(decimal) and abs(abs(exact) - abs(decimal)) < step and (exact >= 0) == (decimal >= 0)
    return bool(cut_off or 2 * abs(exact - decimal) <= step)


def asks_for(question: str, word: str) -> bool:
    """True where the question names the unit that its answer is counted in: percent, or how many dozen."""
    if word == "percent":
        return "percent" in question.lower() or "%" in question
    asked = rf"\b(?:how many|number of|what|how much|in)\s+(?:\w+\s+){{0,2}}?{word}s?\b"
    return bool(word) and re.search(asked, question, re.IGNORECASE) is not None


def counted_unit(unit: str) -> tuple[str, str]:
    """("dozen", "eggs") for "dozen eggs": the word that multiplies, and the rest."""
    first, _, rest = unit.partition(" ")
    for word in (first, first.removesuffix("s"), first.removesuffix("es")):
        if word in COUNTS:
            return word, rest.removeprefix("of ").strip()
    return "", unit


def decimal_step(text: str, exponent: int = 0) -> Fraction:
    """One unit of the last digit of a decimal that is long enough to stand for what rounds to it; 0 for others."""
    digits = text.replace(",", "")
    decimals = len(digits.partition(".")[2]) - exponent
    significant = len(digits.replace(".", "").lstrip("0"))
    if decimals < LEAST_DIGITS or significant < LEAST_DIGITS:
        return Fraction(0)
    return Fraction(10) ** (max(significant - MOST_DIGITS, 0) - decimals)


def _step(match: re.Match[str]) -> Fraction:
    if "." not in match["whole"] or match["divisor"] is not None or match["scale"]:
        return Fraction(0)
    return decimal_step(match["whole"], int(match["e"] or match["power"] or 0))


def _digits_for_words(text: str) -> str:
    """ "five hundred apples" -> "500 apples"; the text itself where it does not begin with a number in words."""
    sign = re.match(r"(?:negative|minus)\s+", text, re.IGNORECASE)
    start = sign.end() if sign else 0
    match = IN_WORDS.match(text, start)
    if match is None:
        return text
    words = [word for word in re.split(r"[\s-]+", match[0].lower().strip()) if word]
    while words and words[-1] == "and":
        return text
    total = current = 0
    latest = 0  # the smallest unit so far decides what may follow: "five two" is no number
    for at, word in enumerate(words):
        if word == "and":
            if at == 0 or words[at - 1] not in SCALES:
                return text
        elif word in NUMBER_WORDS:
            value = NUMBER_WORDS[word]
            after_tens = latest >= 20 and latest % 10 == 0 and value < 10
            if latest and not (after_tens or latest >= 100 > value):
                return text
            current, latest = current + value, value or 1
        elif word == "hundred":
            current, latest = (current or 1) * 100, 100
        else:
            total, current, latest = total + (current or 1) * 10 ** SCALES[word], 0, 1000
    return f"{text[:start]}{total + current}{' ' if match.end() < len(text) else ''}{text[match.end() :]}"


def plain_text(text: str) -> str:
    """LaTeX's ways to write a plain number undone, as far as they are simple."""
    if "$" in text and not (text.count("$") - text.count("\\$")) % 2:
        text = FORMULA_SIGN.sub(" ", text)  # "$125$ miles"
    text = DECIMAL_COMMA.sub(r"\1.\2", NEGATIVE_SPACE.sub("", text))
    text = BRACED_COMMA.sub(",", text).replace("\\$", "$").replace("\\%", "%")
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree", " degrees ", text)
    text = TEXT_COMMAND.sub(r" \1 ", text)
    text = SPACED_NUMBER.sub(lambda match: match[0].replace(" ", ""), SPACING.sub(" ", text))
    text = TIMES.sub("*", SEPARATED.sub(_unseparated, text))
    text = SIMPLE_FRACTION.sub(lambda match: f" {match[1] or match[2]}/{match[3] or match[4]} ", text)
    return " ".join(text.replace("\u2212", "-").replace("\u00a0", " ").split())


def _unseparated(match: re.Match[str]) -> str:
    """1.234,5 as 1234.5; the text itself where it may mean something else."""
    text, decimals = match[0], match["decimals"]
    if match["dots"] and (decimals or match["dots"].count(".") > 1):
        return match["dots"].replace(".", "") + (f".{decimals}" if decimals else "")
    if match["quotes"]:
        return re.sub("['\u2019]", "", text)
    # no member of a list begins with a zero
    return text.replace(",", "") if match["lakhs"] and ",0" in text else text


def _value(match: re.Match[str]) -> Fraction | None:
    if match["sign"] and match["second_sign"]:
        return None
    # a thousand does not begin with 0: "0,111" has a decimal comma
    is_decimal_comma = match["whole"].startswith("0,") and match["whole"].count(",") == 1 and "." not in match["whole"]
    value = Fraction(match["whole"].replace(",", "." if is_decimal_comma else ""))
    if match["top"] is not None:
        # "3.5 1/2" and "1 1/2/3" are no mixed numbers
        if "." in match["whole"] or match["divisor"] is not None or int(match["bottom"]) == 0:
            return None
        value += Fraction(int(match["top"]), int(match["bottom"]))
    if match["divisor"] is not None:
        divisor = Fraction(match["divisor"].replace(",", ""))
        if divisor == 0:
            return None
        value /= divisor
    exponent = int(match["e"] or match["power"] or 0)
    if abs(exponent) > LARGEST_EXPONENT:
        return None
    scales = sum(SCALES[word.removesuffix("s")] for word in match["scale"].lower().split())
    value *= Fraction(10) ** (exponent + scales)
    is_negative = match["sign"].lower() in ("-", "negative", "minus") or match["second_sign"] == "-"
    return -value if is_negative else value


def _unit(match: re.Match[str]) -> str | None:
    """The unit in lower case, "" for none; None when what follows the number is no unit."""
    after = match["unit"].strip().removesuffix(".").strip().lower()
    if re.fullmatch(r"\([^()]*[a-z][^()]*\)", after):
        words = after[1:-1].replace("-", " ").split()
        # "5 (x)" is a product, "5 (power drills)" is not
        is_noun = not (VALUE_CHANGERS | OF_FORMULAS) & set(words) and any(len(word) > 2 for word in words)
        fine = is_noun and not any(_changes_value(word) for word in words[1:]) and words[0] not in NUMBER_WORDS
        return after[1:-1].strip() if fine and not re.search(r"[0-9+*/^=<>\\]", after) else None
    after = SHORTHAND.get(after, after)
    if match["currency"]:
        if not after or _measure(after) == _measure(match["currency"]):  # "$5 dollars" is one unit said twice
            return match["currency"]
        if after.startswith("per "):
            return f"{match['currency']} {after}"
        return match["currency"] if is_noun_phrase(after.split()) and not counted_unit(after)[0] else None
    if not after:
        return ""
    if match["unit"].strip() in ("M", "K", "B"):
        return None  # millions rather than metres
    separated = match["unit"][:1].isspace() or match["unit"].startswith("(")
    # "5m" and "5m^2" may well be five times m
    if _measure(after) is not None and (separated or after[1:2].isalpha()):
        return after
    words = after.split()
    return after if separated and is_noun_phrase(words) else None


def is_noun_phrase(words: Sequence[str]) -> bool:
    """True for words that only say what was counted: none of them changes the number."""
    if not words:
        return False
    if words[-1] == "times":  # "7 times" is a count, "7 times 3" is not
        words = words[:-1]
    fine = all(re.fullmatch(r"[^\W\d_]{3,}(?:['\u2019-][^\W\d_]+)*", word) or word in SMALL_WORDS for word in words)
    return (
        fine
        and not NO_UNIT & set(words)
        and not any(_changes_value(word) for word in words[1:])
        and not (words and words[0] in NUMBER_WORDS)
    )


def changes_value(sentence: str) -> bool:
    """True where a word of the sentence makes its number another one: dozen, tenths, negative, twice."""
    words = re.findall(r"[a-z]+", sentence.lower())
    return bool(VALUE_CHANGERS & set(words) - {"and", "to"}) or any(_changes_value(word) for word in words)


def _changes_value(word: str) -> bool:
    parts = word.split("-")
    counts = any(part in COUNTS or part.removesuffix("s") in COUNTS for part in parts)
    return counts or any(part in NUMBER_WORDS or part.removesuffix("s") in SCALES for part in parts)


def _common_sizes(first: str, second: str) -> tuple[Fraction, Fraction] | None:
    """What to multiply each value with before comparing; None for units that measure different things."""
    known = _measure(first), _measure(second)
    if any(measure is not None and set(measure[0]) == {"a length"} for measure in known):
        return Fraction(1), Fraction(1)  # "units" and "square units" are any
    if known[0] is None or known[1] is None:
        words = [{word.strip(".").replace(".", "") for word in unit.split()} for unit in (first, second)]
        opposed = any(
            {one, other} & words[0] and {one, other} & words[1] and not ({one, other} & words[0] & words[1])
            for one, other in OPPOSITES
        )
        return None if opposed else (Fraction(1), Fraction(1))
    return (known[0][1], known[1][1]) if known[0][0] == known[1][0] else None


def _measure(unit: str) -> tuple[Dimension, Fraction] | None:
    """What a unit measures and its size; None for one that is not in `UNITS`."""
    top, bar, bottom = unit.replace(" per ", "/").replace("per ", "/").partition("/")
    if bar:
        known = _measure(top.strip()), _measure(bottom.strip())
        if known[0] is None or known[1] is None:
            return None
        return (*known[0][0], "/", *known[1][0]), known[0][1] / known[1][1]
    name, power = unit.strip(), 1
    for word, times in (("square ", 2), ("sq ", 2), ("sq. ", 2), ("cubic ", 3)):
        if name.startswith(word):
            name, power = name.removeprefix(word), times
    raised = re.fullmatch(r"(.+?)\s*(?:\^\s*\{?([23])\}?|([²³]))", name)
    if raised is not None:
        name, power = raised[1], int(raised[2] or ("2" if raised[3] == "²" else "3"))
    unit_of = UNITS.get(name) or UNITS.get(name.removesuffix("s")) or UNITS.get(name.removesuffix("."))
    if unit_of is None:
        return None
    measures, size = unit_of
    return (measures,) * power, size**power


def is_measure(unit: str) -> bool:
    """True for a unit of `UNITS`, alone, squared, cubed or per another."""
    return _measure(unit) is not None
