r"""Formulas as people and models write them, LaTeX or plain, read in full or not at all.

`read_formula` turns tokens into a nested tuple and raises `Unreadable` with the first thing it does not understand:
nothing is skipped, so no part of an answer can be lost on the way. Words are never taken for products of letters.
`value_at` and `exact_value` compute such a formula. Both are bounded: sizes that could take long are refused.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

Formula = tuple[Any, ...]  # ("number", Fraction) | ("symbol", name) | ("constant", name) | (operation, *formulas)

LONGEST = 2000  # characters
DEEPEST = 40  # brackets within brackets
LARGEST_BITS = 60_000  # of an exact number, and of the exponent of any other
LARGEST_FACTORIAL = 3000
DIGITS = 60  # that constants are computed with


class Unreadable(Exception):
    """What was not read, in words. `is_command` where it is LaTeX that another reader may know."""

    def __init__(self, what: str, is_command: bool = False) -> None:
        super().__init__(what)
        self.is_command = is_command


class TooLarge(Unreadable):
    """A number that is too large to be computed."""


class Token(NamedTuple):
    kind: str  # number, word, command, text, or the sign itself
    text: str
    spaced: bool  # white space stands before it


# signs of Unicode, and of programs, as LaTeX has them
REPLACEMENTS = {
    **{"\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot "},
    **{"\u00f7": r"\div ", "\u03c0": r"\pi ", "\u221e": r"\infty ", "\u2264": r"\le ", "\u2265": r"\ge "},
    **{"\u2260": r"\ne ", "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2208": r"\in ", "\u00b2": "^{2}"},
    **{"\u00b3": "^{3}", "\u00b0": r"^\circ ", "\u00a0": " ", "\u2205": r"\emptyset ", "\u211d": r"\mathbb{R}"},
    **{"\u00b1": r"\pm ", "\u2248": r"\approx ", "\u03b8": r"\theta ", "\u03b1": r"\alpha ", "\u00bd": "(1/2)"},
    **{"**": "^", "\u221a": r"\sqrt ", "~": " "},
}
# what only changes the looks
SPACES = re.compile(r"(?<!\\)\\(?:[,;:!> \n]|q?quad|displaystyle|textstyle|limits|nolimits)")
SIZES = re.compile(r"\\(?:m?left|m?right|[bB]ig[gG]?[lr]?)(?![a-zA-Z])\.?|\\(?:[lr]group)(?![a-zA-Z])")
THOUSANDS = re.compile(
    r"(?<=[0-9]),\\!\s*(?=[0-9])|(?<=[0-9])\s*\{\s*,\s*\}\s*(?=[0-9]{3})|(?<=[0-9])\\,(?=[0-9]{3})|(?<=[0-9]),\\,\s*(?=[0-9]{3})"
)
TEXT = re.compile(
    r"\\(?:text|textbf|textrm|textit|textnormal|mbox|mathrm|mathbf|mathit|operatorname|rm|bf)\s*\{([^{}]*)\}"
)
UNSEEN = re.compile(r"\\(?:color|textcolor|phantom|hspace)\s*(?:\{[^{}]*\}|[-+=])")
TOKEN = re.compile(
    r"(?P<repeating>[0-9]*\.[0-9]*\\overline\s*\{[0-9]+\})"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"|(?P<environment>\\(?:begin|end)\s*\{[a-z*]+\}(?:\{[clr|]+\})?)"
    r"|(?P<row>\\\\)"
    r"|(?P<command>\\(?:[a-zA-Z]+|[{}|%$#]))"
    r"|(?P<text>\x01[^\x02]*\x02)"
    r"|(?P<word>[a-zA-Z]+)"
    r"|(?P<sign><=|>=|!=|[-+*/^_=<>!|(){}\[\],;:&%'])"
    r"|(?P<space>\s+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
ALIASES = {
    **dict.fromkeys((r"\dfrac", r"\tfrac", r"\cfrac"), r"\frac"),
    **dict.fromkeys((r"\dbinom", r"\tbinom"), r"\binom"),
    **dict.fromkeys((r"\leq", r"\leqslant", "<="), r"\le"),
    **dict.fromkeys((r"\geq", r"\geqslant", ">="), r"\ge"),
    **dict.fromkeys((r"\cdot", r"\times", r"\ast"), "*"),
    **dict.fromkeys((r"\vert", r"\lvert", r"\rvert"), "|"),
    **dict.fromkeys((r"\simeq", r"\thickapprox", r"\approxeq"), r"\approx"),
    **dict.fromkeys((r"\arg", r"\rightarrow"), r"\unknown"),
    **{r"\neq": r"\ne", "!=": r"\ne", r"\lt": "<", r"\gt": ">", r"\div": "/", r"\%": "%", r"\$": "$", r"\colon": ":"},
    **{r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\varnothing": r"\emptyset"},
    **{r"\wedge": r"\land", r"\vee": r"\lor", r"\union": r"\cup", r"\degree": r"\circ", r"\backslash": r"\setminus"},
    **{r"\varphi": r"\phi", r"\Big": ""},
}
_CIRCULAR = ("sin", "cos", "tan", "cot", "sec", "csc")
FUNCTIONS = {
    **{name: name for name in (*_CIRCULAR, "sinh", "cosh", "tanh", "exp", "ln", "log", "lg")},
    **{f"arc{name}": f"a{name}" for name in _CIRCULAR},
    **{f"a{name}": f"a{name}" for name in ("sinh", "cosh", "tanh")},
}
INVERSES = {"sin": "asin", "cos": "acos", "tan": "atan"}
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho sigma tau phi chi psi "
    "omega Gamma Delta Theta Lambda Sigma Phi Psi Omega ell"
)
GREEK = frozenset(f"\\{letter}" for letter in _GREEK.split())
WORDS = {"inf": r"\infty", "infinity": r"\infty", **{word: f"\\{word}" for word in ("pi", "sqrt", "infty", "theta")}}
CLOSING = {
    **{")": "(", "]": "[", "}": "{", r"\}": r"\{", r"\rfloor": r"\lfloor", r"\rceil": r"\lceil"},
    r"\rangle": r"\langle",
}
OPENING = frozenset(CLOSING.values())
CONNECTIVES = {"and": "and", "or": "or", ", and": "and", ", or": "or", ",and": "and", ",or": "or"}


def tokens_of(text: str) -> list[Token]:
    """The text cut into tokens, without the dollar signs, sizes and spaces that only change its looks."""
    if len(text) > LONGEST:
        raise Unreadable(f"a text of {len(text)} characters")
    for old, new in REPLACEMENTS.items():
        if old in text:
            text = text.replace(old, new)
    if "\x0c" in text:
        text = re.sub(r"\\?\x0crac", r"\\frac", text)  # what is left of \\frac in data that was unescaped twice
    text = THOUSANDS.sub("", text)
    if "matrix" not in text and "array" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z{}%$])", lambda _: "\\", text)
    text = TEXT.sub(lambda match: f" \x01{match[1]}\x02 ", UNSEEN.sub("", text))
    text = SIZES.sub("", SPACES.sub(" ", text))
    text = re.sub(r"\\[()\[\]]|(?<!\\)\$", " ", text)
    found: list[Token] = []
    spaced = False
    for match in TOKEN.finditer(text):
        kind, piece = match.lastgroup or "", match[0]
        if kind == "space":
            spaced = True
            continue
        if kind == "other":
            raise Unreadable(f"the sign {piece!r}")
        found += _named(kind, piece, spaced)
        spaced = False
    return found


def _named(kind: str, piece: str, spaced: bool) -> list[Token]:
    if kind in ("sign", "command"):
        piece = ALIASES.get(piece, piece)
        return [Token(piece if kind == "sign" or not piece[-1:].isalpha() else "command", piece, spaced)]
    if kind == "text":
        return _text_tokens(piece[1:-1], spaced)
    if kind == "environment":
        return [Token("environment", re.sub(r"\s|\}\{.*", "", piece).rstrip("}"), spaced)]
    if kind == "word":
        if piece in WORDS:
            return [Token("command", WORDS[piece], spaced)]
        if piece in FUNCTIONS:
            return [Token("command", "\\" + piece, spaced)]
        if piece in ("and", "or"):
            return [Token(piece, piece, spaced)]
    return [Token(kind, piece, spaced)]


def _text_tokens(words: str, spaced: bool) -> list[Token]:
    r"""\text{ and } joins, \mathrm{e} is a letter, \text{5} a number; anything else stays a text."""
    bare = words.strip()
    if bare in CONNECTIVES:
        return [Token(CONNECTIVES[bare], bare, spaced)]
    if not bare or bare in (",", ";"):
        return [Token(",", ",", spaced)] if bare else []
    if re.fullmatch(r"[0-9]+", bare):
        return [Token("number", bare, spaced)]
    if re.fullmatch(r"[a-zA-Z]", bare):
        return [Token("word", bare, spaced)]
    if bare in FUNCTIONS:
        return [Token("command", "\\" + bare, spaced)]
    return [Token("text", words, spaced)]


def depths(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """(place, depth of the brackets around it) of every token; brackets count as outside of themselves."""
    depth = 0
    for place, token in enumerate(tokens):
        closes = token.text in CLOSING or (token.kind == "environment" and token.text.startswith(r"\end"))
        depth -= closes
        if depth < 0:
            raise Unreadable(f"{token.text!r} without its beginning")
        yield place, depth
        if depth > DEEPEST:
            raise Unreadable("brackets nested too deeply")
        depth += token.text in OPENING or (token.kind == "environment" and token.text.startswith(r"\begin"))
    if depth:
        raise Unreadable("a bracket that is not closed")


def text_of(tokens: Sequence[Token]) -> str:
    return "".join((" " if token.spaced else "") + token.text for token in tokens).strip()


def read_formula(tokens: Sequence[Token]) -> Formula:
    """The formula that all of the tokens make."""
    if not tokens:
        raise Unreadable("nothing")
    reader = _Reader(list(tokens))
    formula = reader.sum()
    if reader.place < len(reader.tokens):
        rest = reader.tokens[reader.place :]
        raise Unreadable(f"{text_of(rest)[:40]!r}", is_command=rest[0].kind in ("command", "environment"))
    return formula


NO_TOKEN = Token("", "", False)


class _Reader:
    """Recursive descent: sum, quotient, product without a sign, power, and what binds tightest."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.place = 0
        self.depth = 0
        self.bars = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else NO_TOKEN

    def take(self, text: str = "") -> Token:
        token = self.next
        if not token.text or (text and token.text != text):
            raise Unreadable(f"{text or 'more'!r} missing before {text_of(self.tokens[self.place :])[:40]!r}")
        self.place += 1
        return token

    def accept(self, *texts: str) -> str:
        if self.next.text in texts:
            self.place += 1
            return self.tokens[self.place - 1].text
        return ""

    def sum(self) -> Formula:
        self.depth += 1
        if self.depth > 2 * DEEPEST:
            raise Unreadable("a formula nested too deeply")
        terms = [self.signed(self.quotient)]
        while sign := self.accept("+", "-"):
            term = self.signed(self.quotient)
            terms.append(("negative", term) if sign == "-" else term)
        self.depth -= 1
        return terms[0] if len(terms) == 1 else ("sum", *terms)

    def signed(self, read: Any) -> Formula:
        negative = False
        while sign := self.accept("+", "-"):
            negative ^= sign == "-"
        formula: Formula = read()
        return ("negative", formula) if negative else formula

    def quotient(self) -> Formula:
        formula = self.product()
        while sign := self.accept("*", "/"):
            other = self.signed(self.product)
            formula = ("product", formula, other) if sign == "*" else ("quotient", formula, other)
        return formula

    def product(self) -> Formula:
        """Factors without a sign between them; a number may only come first."""
        factors = [self.power()]
        while self.begins_factor():
            token = self.next
            if token.kind in ("number", "repeating") and self.tokens[self.place - 1].text not in (")", "}"):
                raise Unreadable(f"the number {token.text} right after {text_of(self.tokens[: self.place])[-20:]!r}")
            factor = self.power()
            if _is_whole(factors[-1]) and len(factors) == 1 and token.text == r"\frac" and _is_fraction(factor):
                factors = [("sum", factors[0], factor)]  # 2\frac12
            else:
                factors.append(factor)
        return factors[0] if len(factors) == 1 else ("product", *factors)

    def begins_factor(self) -> bool:
        token = self.next
        if token.kind in ("number", "repeating", "word"):
            return True
        if token.text in ("(", "[", "{", r"\lfloor", r"\lceil"):
            return True
        if token.text == "|":
            return not self.bars
        known = (r"\frac", r"\sqrt", r"\binom", r"\pi", r"\infty", r"\overline")
        return token.kind == "command" and (
            token.text in known or token.text in GREEK or token.text[1:] in FUNCTIONS or token.text == r"\unknown"
        )

    def power(self) -> Formula:
        base = self.factorial()
        if not self.accept("^"):
            return base
        if self.next.text == r"\circ" or [t.text for t in self.tokens[self.place : self.place + 3]] == [
            "{",
            r"\circ",
            "}",
        ]:
            self.place += 1 if self.next.text == r"\circ" else 3
            return ("degrees", base)
        formula = ("power", base, self.exponent())
        if self.next.text == "!":
            raise Unreadable("a factorial after an exponent")
        if self.next.text == "^":
            raise Unreadable("two exponents in a row without braces")
        return formula

    def exponent(self) -> Formula:
        if self.next.text == "{":
            return self.group("{", "}")
        return self.signed(self.power_of_one)

    def power_of_one(self) -> Formula:
        base = self.factorial(one_digit=False)
        return ("power", base, self.exponent()) if self.accept("^") else base

    def factorial(self, one_digit: bool = False) -> Formula:
        formula = self.atom(one_digit)
        times = 0
        while self.accept("!"):
            times += 1
            formula = ("factorial", formula)
        if times > 1:
            raise Unreadable("a factorial of a factorial")
        if self.accept("%"):
            formula = ("quotient", formula, ("number", Fraction(100)))
        return formula

    def group(self, opening: str, closing: str) -> Formula:
        self.take(opening)
        bars, self.bars = self.bars, 0
        formula = self.sum()
        self.bars = bars
        self.take(closing)
        return formula

    def atom(self, one_digit: bool = False) -> Formula:
        token = self.next
        if token.kind == "number":
            return self.number(one_digit)
        if token.kind == "repeating":
            self.take()
            return ("number", _repeating(token.text))
        if token.kind == "word":
            return self.letters()
        if token.text in ("(", "[", "{"):
            return self.group(token.text, {"(": ")", "[": "]", "{": "}"}[token.text])
        if token.text == "|":
            self.take("|")
            self.bars += 1
            formula = self.sum()
            self.bars -= 1
            self.take("|")
            return ("abs", formula)
        if token.kind == "command":
            return self.command()
        if token.kind == "text":
            raise Unreadable(f"the words {token.text.strip()!r}")
        if token.kind == "environment":
            raise Unreadable(f"the environment {token.text}", is_command=True)
        raise Unreadable(
            f"{text_of(self.tokens[self.place :])[:40]!r}" if token.text else "an end where more must follow"
        )

    def number(self, one_digit: bool) -> Formula:
        token = self.take()
        if one_digit and len(token.text) > 1 and token.text.isdigit():
            self.place -= 1
            self.tokens[self.place] = Token("number", token.text[1:], False)
            return ("number", Fraction(int(token.text[0])))
        if self.next.text == "_":
            raise Unreadable(f"the subscript of the number {token.text}")
        return ("number", Fraction(token.text))

    def letters(self) -> Formula:
        token = self.take()
        letters = token.text
        if len(letters) > 1 and not is_product(letters):
            raise Unreadable(f"the word {letters!r}")
        if len(letters) > 2 and letters.isupper():
            return ("symbol", letters)  # a triangle or a code: no letter may change its place
        symbols = [_letter(each) for each in letters[:-1]]
        last = self.subscripted(letters[-1])
        if not symbols:
            return last
        # "ab^2" is a times b squared: the last letter takes what follows
        if self.next.text in ("^", "!"):
            self.place -= 1
            self.tokens[self.place] = Token("word", letters[-1], False)
            if last[0] == "symbol" and last[1] != letters[-1]:
                raise Unreadable(f"the letters {letters!r} with a subscript and a power")
            return ("product", *symbols) if len(symbols) > 1 else symbols[0]
        return ("product", *symbols, last)

    def subscripted(self, name: str) -> Formula:
        if not self.accept("_"):
            return _letter(name)
        if self.accept("{"):
            inside = []
            while self.next.text != "}":
                token = self.take()
                if token.text in OPENING or token.text in CLOSING:
                    raise Unreadable(f"the subscript of {name!r}")
                inside.append(token.text)
            self.take("}")
            under = "".join(inside)
        else:
            under = self.take().text
        return ("symbol", f"{name}_{under}")

    def command(self) -> Formula:
        name = self.take().text
        if name == r"\frac":
            return ("quotient", self.argument(), self.argument(one_digit=False))
        if name == r"\binom":
            return ("binomial", self.argument(), self.argument())
        if name == r"\sqrt":
            if self.next.text == "[":
                index = self.group("[", "]")
                return ("root", self.argument(), index)
            # TeX would take one digit of \\sqrt15, and nobody means that
            return ("root", self.argument(one_digit=False), ("number", Fraction(2)))
        if name == r"\pi":
            return ("constant", "pi")
        if name == r"\infty":
            return ("constant", "infinity")
        if name in GREEK:
            return self.subscripted(name)
        if name == r"\lfloor":
            self.place -= 1
            return ("floor", self.group(r"\lfloor", r"\rfloor"))
        if name == r"\lceil":
            self.place -= 1
            return ("ceiling", self.group(r"\lceil", r"\rceil"))
        if name[1:] in FUNCTIONS:
            return self.function(FUNCTIONS[name[1:]])
        raise Unreadable(f"the command {name}", is_command=True)

    def argument(self, one_digit: bool = True) -> Formula:
        r"""{...}, or as TeX takes it the next sign: \frac12, \sqrt2, \frac\pi3. sqrt(3) is plain text's."""
        if self.next.text == "{":
            return self.group("{", "}")
        if self.next.text == "(":
            return self.group("(", ")")
        return self.factorial(one_digit=one_digit)

    def function(self, name: str) -> Formula:
        base: Formula | None = None
        exponent: Formula | None = None
        while self.next.text in ("^", "_"):
            if self.accept("^"):
                exponent = self.exponent()
            else:
                self.take("_")
                base = self.argument()
                if name != "log":
                    raise Unreadable(f"the subscript of {name}")
        if exponent == ("negative", ("number", Fraction(1))) and name in INVERSES:
            name, exponent = INVERSES[name], None
        if self.next.text in ("(", "[", "{", "|"):
            inside = self.atom()
            if self.next.text == "^" and exponent is not None:
                raise Unreadable(f"two exponents of {name}")
            if self.next.text == "^":  # \sin(x)^2
                self.take("^")
                exponent = self.exponent()
        else:
            inside = self.plain_factors()
        formula: Formula = ("log", inside, base) if base is not None else (name, inside)
        return formula if exponent is None else ("power", formula, exponent)

    def plain_factors(self) -> Formula:
        r"""The argument of \sin 2x \cos x: factors up to the next function, sign or bracket."""
        factors = [self.signed(self.power)]
        while self.begins_factor() and self.next.text[1:] not in FUNCTIONS and self.next.text not in ("(", "["):
            if self.next.kind == "number":
                raise Unreadable(f"the number {self.next.text} in the middle of an argument")
            factors.append(self.power())
        if self.next.text == "/" and len(self.tokens) > self.place + 1 and self.tokens[self.place + 1].kind == "number":
            self.take("/")
            factors = [("quotient", ("product", *factors) if len(factors) > 1 else factors[0], self.power())]
        return factors[0] if len(factors) == 1 else ("product", *factors)


def is_product(letters: str) -> bool:
    """True for letters that may well be factors: two of them, capitals, or neighbours in the alphabet such as xyz."""
    if len(letters) <= 2:
        return letters.lower() not in NO_PRODUCTS
    gaps = [ord(second) - ord(first) for first, second in itertools.pairwise(letters)]
    return len(letters) <= 4 and (letters.isupper() or all(0 < gap <= 3 for gap in gaps))


_SHORT_WORDS = "is as at by in it no of on or so to up we be do if an am pm"
NO_PRODUCTS = frozenset(_SHORT_WORDS.split())


def _letter(name: str) -> Formula:
    return ("constant", name) if name in ("e", "i") else ("symbol", name)


def _is_whole(formula: Formula) -> bool:
    return formula[0] == "number" and formula[1].denominator == 1


def _is_fraction(formula: Formula) -> bool:
    return (
        formula[0] == "quotient" and _is_whole(formula[1]) and _is_whole(formula[2]) and formula[1][1] < formula[2][1]
    )


def _repeating(text: str) -> Fraction:
    whole, start, period = re.fullmatch(r"([0-9]*)\.([0-9]*)\\overline\s*\{([0-9]+)\}", text).groups()  # type: ignore[union-attr]
    once = Fraction(int(whole + start or "0"), 10 ** len(start))
    return once + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(start))


@functools.lru_cache(maxsize=4096)
def symbols_of(formula: Formula) -> frozenset[str]:
    if formula[0] == "symbol":
        return frozenset((formula[1],))
    if formula[0] in ("number", "constant"):
        return frozenset()
    return frozenset().union(*(symbols_of(part) for part in formula[1:]))


def contains(formula: Formula, name: str) -> bool:
    """True where the formula has a constant or an operation of that name."""
    if formula[0] in ("number", "symbol", "constant"):
        return formula[0] == "constant" and formula[1] == name
    return formula[0] == name or any(contains(part, name) for part in formula[1:])


def substituted(formula: Formula, symbol: str, value: Fraction) -> Formula:
    """The formula with a number in the symbol's stead."""
    if formula[0] in ("number", "constant", "symbol"):
        return ("number", value) if formula == ("symbol", symbol) else formula
    return (formula[0], *(substituted(part, symbol, value) for part in formula[1:]))


@functools.lru_cache(maxsize=8192)
def exact_value(formula: Formula) -> Fraction | None:
    """The rational number that the formula is, None where it is none or only a computation could tell."""
    kind = formula[0]
    if kind == "number":
        return formula[1]  # type: ignore[no-any-return]
    if kind in ("symbol", "constant"):
        return None
    parts = [exact_value(part) for part in formula[1:]]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or kind not in EXACT:
        return None
    try:
        value: Fraction | None = EXACT[kind](*known)
    except ZeroDivisionError:
        raise Unreadable("a division by zero") from None
    return None if value is None else _bounded(value)


def _exact_product(*factors: Fraction) -> Fraction:
    value = Fraction(1)
    for factor in factors:
        value = _bounded(value * factor)
    return value


def _counted(count: Any, *parts: Fraction) -> Fraction | None:
    if any(part.denominator != 1 or part < 0 for part in parts):
        return None
    if any(part > LARGEST_FACTORIAL for part in parts):
        raise TooLarge("a factorial or binomial of a number this large")
    return Fraction(count(*map(int, parts)))


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1:
        root = _exact_root(base, Fraction(exponent.denominator)) if base >= 0 else None
        return None if root is None else _exact_power(root, Fraction(exponent.numerator))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if base in (1, -1):
        exponent %= 2
    elif base and bits * abs(exponent) > LARGEST_BITS:
        raise TooLarge("a power this large")
    return base ** int(exponent)


def _exact_root(value: Fraction, index: Fraction) -> Fraction | None:
    if index.denominator != 1 or not 2 <= index <= 64 or (value < 0 and index % 2 == 0):
        return None
    top, bottom = (_whole_root(each, int(index)) for each in (abs(value.numerator), value.denominator))
    if top is None or bottom is None:
        return None
    return Fraction(top if value >= 0 else -top, bottom)


def _whole_root(value: int, index: int) -> int | None:
    if value.bit_length() > 4000:
        return None
    low, high = 0, 1 << (value.bit_length() // index + 1)
    while low < high:
        middle = (low + high) // 2
        if middle**index < value:
            low = middle + 1
        else:
            high = middle
    return low if low**index == value else None


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > LARGEST_BITS:
        raise TooLarge("a number this large")
    return value


EXACT: Mapping[str, Any] = {
    "sum": lambda *parts: sum(parts, Fraction(0)),
    "product": _exact_product,
    "power": _exact_power,
    "root": _exact_root,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceiling": lambda value: Fraction(math.ceil(value)),
    "factorial": functools.partial(_counted, math.factorial),
    "binomial": functools.partial(_counted, math.comb),
    **{"negative": operator.neg, "quotient": operator.truediv, "abs": abs},
}

_contexts = threading.local()  # mpmath's own context is one for the whole process, with a precision anyone may change


def context(digits: int = DIGITS) -> Any:
    found = getattr(_contexts, "found", None)
    if found is None:
        import mpmath

        found = _contexts.found = mpmath.mp.clone()
    found.dps = digits
    return found


def value_at(formula: Formula, point: Mapping[str, Any], digits: int = DIGITS) -> Any:
    """The value as an mpmath number, with the symbols' values given; `Unreadable` where there is none."""
    mp = context(digits)
    try:
        value = _computed(formula, point, mp)
    except (ZeroDivisionError, ValueError, OverflowError, TypeError, mp.NoConvergence) as error:
        raise Unreadable(f"a value that cannot be computed ({type(error).__name__})") from None
    if mp.isnan(value):
        raise Unreadable("a value that is no number")
    return value


def _computed(formula: Formula, point: Mapping[str, Any], mp: Any) -> Any:
    kind = formula[0]
    if kind == "number":
        return mp.mpf(formula[1].numerator) / formula[1].denominator
    if kind == "symbol":
        return point[formula[1]]
    if kind == "constant":
        return {"pi": mp.pi, "e": mp.e, "i": mp.j, "infinity": mp.inf}[formula[1]] * 1
    if not symbols_of(formula):
        exact = exact_value(formula)
        if exact is not None:
            return mp.mpf(exact.numerator) / exact.denominator
    parts = [_computed(part, point, mp) for part in formula[1:]]
    return _size_checked(_OPERATIONS[kind](mp, *parts), mp)


def _power(mp: Any, base: Any, exponent: Any) -> Any:
    if mp.isinf(base) or mp.isinf(exponent):
        raise Unreadable("a power of infinity")
    size = abs(exponent) * max(1, abs(mp.log(abs(base), 2))) if base else 0
    if size > LARGEST_BITS:
        raise TooLarge("a power this large")
    return mp.power(base, exponent)


def _root(mp: Any, value: Any, index: Any) -> Any:
    if index == 0:
        raise Unreadable("a root of degree 0")
    odd = mp.isint(index) and int(index) % 2 == 1
    if odd and not mp.im(value) and mp.re(value) < 0:
        return -mp.power(-mp.re(value), 1 / index)
    return mp.sqrt(value) if index == 2 else mp.power(value, 1 / index)


def _size_checked(value: Any, mp: Any) -> Any:
    size = abs(value)
    if size and not mp.isinf(size) and abs(mp.mag(size)) > LARGEST_BITS:
        raise TooLarge("a number this large")
    return value


def _no_larger(largest: int, function: str, mp: Any, *parts: Any) -> Any:
    if max(map(abs, parts)) > largest:
        raise TooLarge(f"{function} of a number this large")
    return getattr(mp, function)(*parts)


_OPERATIONS: Mapping[str, Any] = {
    "sum": lambda mp, *parts: mp.fsum(parts),
    "product": lambda mp, *parts: mp.fprod(parts),
    "power": _power,
    "root": _root,
    "negative": lambda mp, value: -value,
    "quotient": lambda mp, top, bottom: top / bottom,
    "abs": lambda mp, value: abs(value),
    "floor": lambda mp, value: mp.floor(value),
    "ceiling": lambda mp, value: mp.ceil(value),
    "factorial": functools.partial(_no_larger, LARGEST_FACTORIAL, "factorial"),
    "binomial": functools.partial(_no_larger, LARGEST_FACTORIAL, "binomial"),
    "degrees": lambda mp, value: value * mp.pi / 180,
    "exp": functools.partial(_no_larger, LARGEST_BITS, "exp"),
    "ln": lambda mp, value: mp.log(value),
    "lg": lambda mp, value: mp.log(value, 10),
    # \\log without a base is ambiguous in the field; both sides are read alike
    "log": lambda mp, value, base=None: mp.log(value) if base is None else mp.log(value) / mp.log(base),
    **{
        name: functools.partial(lambda mp, value, name: getattr(mp, name)(value), name=name)
        for name in (*_CIRCULAR, "sinh", "cosh", "tanh", *(f"a{name}" for name in (*_CIRCULAR, "sinh", "cosh", "tanh")))
    },
}


def point_for(symbols: frozenset[str], turn: int, stepped: bool = False) -> dict[str, Any]:
    """A value for each symbol, always the same for the same name and turn; of both signs in odd turns.

    `stepped` is for formulas with floors and ceilings, which small values do not tell apart: whole numbers of all
    sizes, and values between them.
    """
    mp = context()
    values = {}
    for name in symbols:
        seed = zlib.crc32(f"{turn} {name}".encode())
        value = mp.mpf(seed % 1_000_003 + 300_007) / 700_001
        if stepped:
            value = mp.mpf(seed % (7 * 4 ** (turn % 8 + 1))) + 2 + (value / 3 if turn % 3 == 2 else 0)
        is_positive = turn % 2 == 0 or stepped or (turn % 4 == 3 and (seed >> 8) % 2)
        values[name] = value if is_positive else -value
    return values
