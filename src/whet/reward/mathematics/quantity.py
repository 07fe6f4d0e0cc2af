"""Numbers as people write them: 1,234.50, 3 1/2, 2.5 million, five hundred, $5, 40%, 5 dozen, 3 x 10^5, with or
without a unit.

`quantity` reads such a text exactly, as a fraction, and refuses everything else: formulas are read elsewhere. A word
that changes the value (dozen, tenths, negative) is read as part of it or refuses the text; only a noun is decoration.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from whet.reward.mathematics.math_value import Quantity
from whet.reward.mathematics.tokens import spelled
from whet.reward.mathematics.units import (
    NO_NOUNS,
    SCALES,
    counted_unit,
    digits_for_words,
    is_noun_phrase,
    is_unit,
    measure,
)

LONGEST = 100  # characters; a longer text is no quantity
LARGEST_EXPONENT = 400
LEAST_DIGITS = 6  # decimals, and significant digits, from which on a decimal stands for what rounds to it
MOST_DIGITS = 15  # significant ones; those beyond are a computer's noise

WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
PLAIN = rf"{WHOLE}(?:\.[0-9]+)?|\.[0-9]+"
SHAPE = re.compile(
    rf"(?P<sign>[+-]?|(?:negative|minus)\b)\s*(?P<currency>[$€£¥]?)\s*"
    rf"(?:(?P<mixed>{WHOLE})\s+(?=[0-9]+\s*/\s*[0-9]+(?![0-9]|[.,][0-9])))?"
    rf"(?P<whole>{PLAIN})(?:\.(?=\s|$))?(?:\s*/\s*(?P<divisor>{PLAIN})(?![a-z]))?"
    r"(?:e(?P<e>[+-]?[0-9]+)|\s*[x*]\s*10\s*\^\s*\{?(?P<power>[+-]?[0-9]+)\}?)?"
    r"(?P<percent>\s*(?:%|percent(?:age)?\b|per cent\b|pct\b))?"
    r"(?P<scale>(?:\s*\b(?:hundred|thousand|million|billion|trillion)s?\b)*)"
    r"(?P<unit>.*)",
    re.IGNORECASE | re.DOTALL,
)
SIGN_BEHIND = re.compile(r"^([$€£¥])\s*([+-])")  # $-5
SIMPLE_FRACTION = re.compile(r"\\frac\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")

SPACED_NUMBER = re.compile(r"(?<![\w.,/ ^])[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9/ ])")  # 1 000 000
# separators of other countries where they can mean nothing else: 1.000.000, 1.234,5, 1'000, 1,00,000. Not so 1.000,
# which is 1, nor 12,34,567, which is a list of three: no member of a list begins with a zero
SEPARATED = re.compile(
    r"(?<![0-9.,'\u2019])(?:(?P<dots>[1-9][0-9]{0,2}(?:(?:\.[0-9]{3}){2,}|(?:\.[0-9]{3})+(?=,[0-9])))(?:,(?P<decimals>[0-9]+))?"
    r"|[1-9][0-9]{0,2}(?:['\u2019][0-9]{3})+(?:\.[0-9]+)?"
    r"|(?=[0-9,]*,0)[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?)(?![0-9.,'\u2019]*[0-9])"
)


def quantity(text: str) -> Quantity | None:
    """What the text says, when it is one number with or without a unit; None for anything else."""
    return plain_quantity(spelled(text)) if len(text) <= LONGEST else None


@functools.lru_cache(maxsize=4096)  # the completions of a group say the same few numbers
def plain_quantity(text: str) -> Quantity | None:
    """`quantity` of a text that `spelled` returned."""
    if len(text) > LONGEST:
        return None
    plain = plain_text(text)
    match = SHAPE.fullmatch(plain) or (plain[:1].isalpha() and SHAPE.fullmatch(digits_for_words(plain)))
    if not match:
        return None
    value = _value(match)
    unit = _unit(match)
    if value is None or unit is None:
        return None
    counted, unit = counted_unit(unit)
    return Quantity(("number", value), match["percent"] is not None, unit, counted, _step(match))


def plain_text(text: str) -> str:
    """LaTeX's ways to write a plain number undone in what `spelled` returned, and separators of thousands taken out."""
    text = " ".join(re.sub("[\x01\x02]", " ", text.replace(r"^\circ", " degrees ")).split())
    text = SIGN_BEHIND.sub(r"\2\1", text) if text[:1] in "$€£¥" else text
    text = SEPARATED.sub(_unseparated, SPACED_NUMBER.sub(lambda match: match[0].replace(" ", ""), text))
    return SIMPLE_FRACTION.sub(lambda match: f" {match[1] or match[2]}/{match[3] or match[4]}", text).strip()


def _unseparated(match: re.Match[str]) -> str:
    """1.234,5 as 1234.5."""
    if match["dots"]:
        return match["dots"].replace(".", "") + (f".{match['decimals']}" if match["decimals"] else "")
    return re.sub("[,'\u2019]", "", match[0])


def _value(match: re.Match[str]) -> Fraction | None:
    divisor = _plain(match["divisor"] or "1")
    exponent = int(match["e"] or match["power"] or 0)
    if divisor == 0 or abs(exponent) > LARGEST_EXPONENT:
        return None
    value = _plain(match["whole"]) / divisor + _plain(match["mixed"] or "0")
    exponent += sum(SCALES[word.removesuffix("s")] for word in match["scale"].lower().split())
    value = value * Fraction(10) ** exponent if exponent else value
    return -value if match["sign"].lower() in ("-", "negative", "minus") else value


def _plain(digits: str) -> Fraction:
    # a thousand does not begin with 0: "0,111" has a decimal comma
    digits = re.sub("^0,(?=[0-9]+$)", "0.", digits).replace(",", "") if "," in digits else digits
    return Fraction(int(digits)) if digits.isdecimal() else Fraction(digits)


def _step(match: re.Match[str]) -> Fraction:
    """One unit of the last digit of a decimal that is long enough to stand for what rounds to it; 0 for others."""
    digits = match["whole"].replace(",", "")
    decimals = len(digits.partition(".")[2]) - int(match["e"] or match["power"] or 0)
    significant = len(digits.replace(".", "").lstrip("0"))
    is_short = decimals < LEAST_DIGITS or significant < LEAST_DIGITS or "." not in digits
    if is_short or match["divisor"] is not None or match["scale"]:
        return Fraction(0)
    return Fraction(10) ** (max(significant - MOST_DIGITS, 0) - decimals)


def _unit(match: re.Match[str]) -> str | None:
    """The unit in lower case, "" for none; None when what follows the number is no unit."""
    after = match["unit"].strip().removesuffix(".").strip().lower()
    if re.fullmatch(r"\([^()]*\)", after):  # "5 (x)" is a product, "5 (power drills)" is not
        words = re.findall(r"[^\s.-]+", after[1:-1])
        is_noun = is_noun_phrase(["the" if len(word) < 3 else word for word in words], NO_NOUNS)
        return after[1:-1].strip() if is_noun and NO_NOUNS.isdisjoint(words) else None
    if match["currency"]:
        if not after or measure(after) == measure(match["currency"]):  # "$5 dollars" is one unit said twice
            return match["currency"]
        if after.startswith("per "):
            return f"{match['currency']} {after}"
        return match["currency"] if is_noun_phrase(after.split()) and not counted_unit(after)[0] else None
    if not after:
        return ""
    if match["unit"].strip() in ("M", "K", "B"):
        return None  # millions rather than metres
    # "5m" and "5m^2" may well be five times m
    separated = match["unit"][:1].isspace() or (measure(after) is not None and after[1:2].isalpha())
    return after if separated and is_unit(after) else None
