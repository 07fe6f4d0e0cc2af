"""Numbers as people write them: 1,234.50, 3 1/2, 2.5 million, $5, 40%, 3 x 10^5, each with or without a unit.

`quantity` reads such a text exactly, as a fraction, and refuses everything else: formulas belong to a verifier.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Agreement = Literal["same", "different"]
Dimension = tuple[str, ...]  # ("length", "length") is an area, ("length", "/", "time") a speed

LONGEST = 100  # characters; a longer text is no quantity
LARGEST_EXPONENT = 400

PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
SHAPE = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<currency>[$€£¥]?)\s*(?P<second_sign>[+-]?)"
    rf"(?:(?P<whole>{PLAIN})(?:\.(?=\s|$))?(?:\s+(?P<top>[0-9]+)\s*/\s*(?P<bottom>[0-9]+))?"
    rf"(?:\s*/\s*(?P<divisor>{PLAIN})(?![a-z]))?)"
    r"(?:e(?P<e>[+-]?[0-9]+)|\s*[x*\u00d7]\s*10\s*(?:\^|\*\*)\s*\{?(?P<power>[+-]?[0-9]+)\}?)?"
    r"(?P<percent>\s*(?:%|percent\b|per cent\b))?"
    r"(?P<scale>\s*\b(?:hundred|thousand|million|billion|trillion)\b)?"
    r"(?P<unit>.*)",
    re.IGNORECASE | re.DOTALL,
)
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}

TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textrm|textit|mbox|mathrm|rm|operatorname)\s*\{([^{}]*)\}")
NEGATIVE_SPACE = re.compile(r"\\!\s*")
SPACING = re.compile(r"\\[ ,;:!]|\\q?quad|~")
SIMPLE_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
TIMES = re.compile(r"\\times|\\cdot")

# words that make a formula, a choice or a denial of what stands before them
NO_UNIT = frozenset(
    (
        *("or", "and", "not", "minus", "plus", "times", "over", "divided", "mod", "factorial", "squared", "cubed"),
        *("sin", "cos", "tan", "log", "exp", "sqrt", "root", "theta", "alpha", "beta", "gamma", "phi", "lambda"),
        *("choose", "modulo", "base", "more", "less", "least", "most", "remainder", "if", "but", "to", "infinity"),
    )
)
SMALL_WORDS = frozenset(("of", "in", "per", "a", "an", "the", "at", "on", "by"))

# unit -> (what it measures, how many of the first unit of that line)
UNITS: dict[str, tuple[str, Fraction]] = {
    name: (measures, Fraction(size))
    for measures, sizes in {
        "length": (
            *(("m", 1), ("meter", 1), ("metre", 1), ("cm", "0.01"), ("centimeter", "0.01"), ("centimetre", "0.01")),
            *(("mm", "0.001"), ("millimeter", "0.001"), ("km", 1000), ("kilometer", 1000), ("kilometre", 1000)),
            *(("inch", "0.0254"), ("inche", "0.0254"), ("foot", "0.3048"), ("feet", "0.3048"), ("ft", "0.3048")),
            *(("yard", "0.9144"), ("yd", "0.9144"), ("mile", "1609.344"), ("mi", "1609.344")),
        ),
        "mass": (
            *(("g", 1), ("gram", 1), ("kg", 1000), ("kilogram", 1000), ("mg", "0.001"), ("milligram", "0.001")),
            *(("ton", "907184.74"), ("tonne", 1_000_000), ("lb", "453.59237"), ("pound", "453.59237")),
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
    value: Fraction  # as written: 40 for "40%"
    percent: bool
    unit: str  # in lower case, "" where none is given


def quantity(text: str) -> Quantity | None:
    """What the text says, when it is one number with or without a unit; None for anything else."""
    if len(text) > LONGEST:
        return None
    match = SHAPE.fullmatch(_plain(text))
    if match is None:
        return None
    value = _value(match)
    unit = _unit(match)
    if value is None or unit is None:
        return None
    return Quantity(value, match["percent"] is not None, unit)


def agreement(gold: Quantity, other: Quantity, tolerance: float = 0.0) -> Agreement:
    """Whether two quantities are the same one, `tolerance` a share of the gold value.

    A missing unit agrees with any, and so does one that is not in `UNITS` ("apples"); known ones are converted.
    40% agrees with 40 and with 0.4.
    """
    sizes = _common_sizes(gold.unit, other.unit)
    if sizes is None:
        return "different"
    values = [other.value]
    if gold.percent != other.percent:
        values.append(other.value / 100 if other.percent else other.value * 100)
    wanted = gold.value * sizes[0]
    close = any(abs(value * sizes[1] - wanted) <= Fraction(tolerance) * abs(wanted) for value in values)
    return "same" if close else "different"


def _plain(text: str) -> str:
    """LaTeX's ways to write a plain number undone, as far as they are simple."""
    text = text.strip().strip("$").strip() if text.strip().startswith("$") and text.strip().endswith("$") else text
    text = NEGATIVE_SPACE.sub("", text).replace("{,}", ",").replace("\\$", "$").replace("\\%", "%")
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree", " degrees ", text)
    text = TEXT_COMMAND.sub(r" \1 ", text)
    text = SPACING.sub(" ", text)
    text = TIMES.sub("*", text)
    text = SIMPLE_FRACTION.sub(lambda match: f" {match[1] or match[2]}/{match[3] or match[4]} ", text)
    return " ".join(text.replace("\u2212", "-").replace("\u00a0", " ").split())


def _value(match: re.Match[str]) -> Fraction | None:
    if match["sign"] and match["second_sign"]:
        return None
    value = Fraction(match["whole"].replace(",", ""))
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
    value *= Fraction(10) ** (exponent + SCALES.get((match["scale"] or "").strip().lower(), 0))
    return -value if "-" in (match["sign"], match["second_sign"]) else value


def _unit(match: re.Match[str]) -> str | None:
    """The unit in lower case, "" for none; None when what follows the number is no unit."""
    after = match["unit"].strip().removesuffix(".").strip().lower()
    if after.startswith("(") and after.endswith(")"):
        after = after[1:-1].strip()
    after = SHORTHAND.get(after, after)
    if match["currency"]:
        # "$5 dollars" is one unit said twice; "$5 per hour" is a price
        return match["currency"] + (" " + after if after.startswith("per ") else "")
    if not after:
        return ""
    separated = match["unit"][:1].isspace() or match["unit"].startswith("(")
    # "5m" may well be five times m
    if _measure(after) is not None and (separated or len(after) > 1):
        return after
    words = after.split()
    fine = all(re.fullmatch(r"[^\W\d_]{3,}(?:['\u2019-][^\W\d_]+)*", word) or word in SMALL_WORDS for word in words)
    return after if fine and separated and not NO_UNIT & set(words) else None


def _common_sizes(first: str, second: str) -> tuple[Fraction, Fraction] | None:
    """What to multiply each value with before comparing; None for units that measure different things."""
    known = _measure(first), _measure(second)
    if known[0] is None or known[1] is None:
        return Fraction(1), Fraction(1)
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
    found = UNITS.get(name) or UNITS.get(name.removesuffix("s")) or UNITS.get(name.removesuffix("."))
    if found is None:
        return None
    return (found[0],) * power, found[1] ** power
