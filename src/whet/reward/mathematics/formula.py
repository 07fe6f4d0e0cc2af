"""Formulas: tokens to a nested tuple, in full or not at all.

`read_formula` raises `Unreadable` with the first thing it does not understand: nothing is skipped, so no part of an
answer can be lost on the way. Words are never taken for products of letters.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from whet.reward.mathematics.tokens import BRACKETS, DEEPEST, FUNCTIONS, Token, Unreadable, text_of

Formula = tuple[Any, ...]  # ("number", Fraction) | ("symbol", name) | ("constant", name) | (operation, *formulas)

INVERSES = {"sin": "asin", "cos": "acos", "tan": "atan"}
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho sigma tau phi chi psi "
    "omega Gamma Delta Theta Lambda Sigma Phi Psi Omega ell"
)
GREEK = frozenset(f"\\{letter}" for letter in _GREEK.split())
CONSTANTS = {r"\pi": "pi", r"\infty": "infinity", "e": "e", "i": "i"}
FACTORS = frozenset(  # what begins one, beside numbers, letters, functions and bars
    ("(", "[", "{", r"\lfloor", r"\lceil", r"\frac", r"\sqrt", r"\binom", *CONSTANTS, *GREEK)
)
_SHORT_WORDS = "is as at by in it no of on or so to up we be do if an am pm"
NO_PRODUCTS = frozenset(_SHORT_WORDS.split())
NO_TOKEN = Token("", "", False)


def read_formula(tokens: Sequence[Token]) -> Formula:
    """The formula that all of the tokens make."""
    reader = _Reader(tokens)
    formula = reader.sum()
    rest = reader.tokens[reader.position :]
    if rest:
        raise Unreadable(f"{text_of(rest)[:40]!r}", is_command=_is_foreign(rest[0]))
    return formula


def _is_foreign(token: Token) -> bool:
    return token.kind == "command" or token.text.startswith(r"\begin")


class _Reader:
    """Recursive descent: sum, quotient, product without a sign, power, and what binds tightest."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        if not tokens:
            raise Unreadable("nothing")
        self.tokens = list(itertools.chain.from_iterable(map(_letters, tokens)))
        self.position = 0
        self.bars = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.position] if self.position < len(self.tokens) else NO_TOKEN

    def take(self) -> Token:
        token = self.next
        if not token.text:
            raise Unreadable(f"more missing after {text_of(self.tokens)[-20:]!r}")
        self.position += 1
        return token

    def accept(self, *texts: str) -> str:
        return self.take().text if self.next.text in texts else ""

    def sum(self) -> Formula:
        terms = [self.signed(self.quotient)]
        while self.next.text in ("+", "-"):
            terms.append(self.signed(self.quotient))
        return _of_all("sum", terms)

    def signed(self, read: Callable[[], Formula]) -> Formula:
        negative = False
        while sign := self.accept("+", "-"):
            negative ^= sign == "-"
        formula = read()
        return ("negative", formula) if negative else formula

    def quotient(self) -> Formula:
        formula = self.product()
        while sign := self.accept("*", "/"):
            formula = ("product" if sign == "*" else "quotient", formula, self.signed(self.product))
        return formula

    def product(self) -> Formula:
        """Factors without a sign between them; a number may only come first."""
        factors = [self.power()]
        while self.begins_factor():
            token, before = self.next, self.tokens[self.position - 1]
            if token.kind in ("number", "repeating") and before.closing not in (")", "}"):
                raise Unreadable(f"the number {token.text} right after {text_of(self.tokens[: self.position])[-20:]!r}")
            factors.append(self.power())
            if len(factors) == 2 and token.text == r"\frac" and _is_mixed(*factors):
                factors = [("sum", *factors)]
        return _of_all("product", factors)

    def begins_factor(self) -> bool:
        token = self.next
        if token.text == "|":
            return not self.bars
        return token.kind in ("number", "repeating", "word") or token.text in FACTORS or token.text[1:] in FUNCTIONS

    def power(self) -> Formula:
        base = self.atom()
        if self.accept("!"):
            base = ("factorial", base)
        if self.accept("%"):
            base = ("quotient", base, ("number", Fraction(100)))
        if not self.accept("^"):
            return base
        if self.accept(r"\circ"):
            return ("degrees", base)
        formula = ("power", base, self.exponent())
        if self.next.text in ("!", "^"):
            raise Unreadable("a factorial or a second exponent after an exponent")
        return formula

    def exponent(self) -> Formula:
        exponent = self.group() if self.next.text == "{" else self.signed(self.power)
        if exponent[0] == "degrees":
            raise Unreadable("degrees in an exponent", is_command=True)
        return exponent

    def group(self) -> Formula:
        token = self.take()
        if BRACKETS.get(token.text) != token.closing:
            raise Unreadable(f"{text_of([token])[:40]!r}", is_command=_is_foreign(token))
        return read_formula(token.inside)

    def atom(self) -> Formula:
        token = self.next
        if token.text in (r"\lfloor", r"\lceil"):
            return ("floor" if token.text == r"\lfloor" else "ceiling", self.group())
        if token.kind == "group" and token.text not in (r"\{", r"\langle"):
            return self.group()
        if token.kind not in ("number", "repeating", "word", "command", "|"):
            rest = text_of(self.tokens[self.position :])[:40]
            raise Unreadable(f"the words {token.text.strip()!r}" if token.kind == "text" else repr(rest))
        self.take()
        if token.kind == "command":
            return self.command(token.text)
        if token.kind == "word":
            return self.letter(token.text)
        if token.kind == "|":
            self.bars += 1
            if self.bars > DEEPEST:
                raise Unreadable("bars nested too deeply")
            formula = self.sum()
            self.bars -= 1
            if not self.accept("|"):
                raise Unreadable("a bar that is not closed")
            return ("abs", formula)
        if self.next.text == "_":
            raise Unreadable(f"the subscript of the number {token.text}")
        return ("number", Fraction(token.text) if token.kind == "number" else _repeating(token.text))

    def letter(self, name: str) -> Formula:
        if len(name) > 1 and name not in GREEK and not is_product(name):
            raise Unreadable(f"the word {name!r}")
        if not self.accept("_"):
            return ("constant", name) if name in CONSTANTS else ("symbol", name)
        under = self.take()
        parts = under.inside if under.text == "{" else (under,)
        if any(part.kind == "group" for part in parts):
            raise Unreadable(f"the subscript of {name!r}")
        return ("symbol", f"{name}_{''.join(part.text for part in parts)}")

    def command(self, name: str) -> Formula:
        if name in CONSTANTS:
            return ("constant", CONSTANTS[name])
        if name in GREEK:
            return self.letter(name)
        if name in (r"\frac", r"\binom"):
            return ("quotient" if name == r"\frac" else "binomial", self.argument(), self.argument())
        if name == r"\sqrt":
            index = self.group() if self.next.text == "[" else ("number", Fraction(2))
            return ("root", self.argument(), index)
        if name[1:] in FUNCTIONS:
            return self.function(FUNCTIONS[name[1:]])
        raise Unreadable(f"the command {name}", is_command=True)

    def argument(self) -> Formula:
        r"""{...}, or what TeX takes without braces: \frac12, \sqrt2, \frac\pi3. sqrt(3) is plain text's."""
        return self.group() if self.next.text in ("{", "(") else self.atom()

    def function(self, name: str) -> Formula:
        base: list[Formula] = []
        exponent: Formula | None = None
        while (sign := self.next.text) == "^" or (sign == "_" and name == "log"):
            self.take()
            if sign == "^":
                exponent = self.exponent()
            else:
                base = [self.argument()]
        if exponent == ("negative", ("number", Fraction(1))) and name in INVERSES:
            name, exponent = INVERSES[name], None
        inside = self.atom() if self.next.text in ("(", "[", "{", "|") else self.plain_factors()
        if exponent is None and self.accept("^"):  # \sin(x)^2
            exponent = self.exponent()
        formula: Formula = ("power", ("constant", "e"), inside) if name == "exp" else (name, inside, *base)
        return formula if exponent is None else ("power", formula, exponent)

    def plain_factors(self) -> Formula:
        r"""The argument of \sin 2x \cos x: factors up to the next function, sign or bracket."""
        factors = [self.signed(self.power)]
        while self.begins_factor() and self.next.text[1:] not in FUNCTIONS and self.next.text not in ("(", "["):
            if self.next.kind == "number":
                raise Unreadable(f"the number {self.next.text} in the middle of an argument")
            factors.append(self.power())
        formula = _of_all("product", factors)
        is_divided = [token.kind for token in self.tokens[self.position : self.position + 2]] == ["/", "number"]
        return ("quotient", formula, self.power()) if is_divided and self.take() else formula  # \sin \pi/3


def _of_all(operation: str, parts: Sequence[Formula]) -> Formula:
    return parts[0] if len(parts) == 1 else (operation, *parts)


def _letters(token: Token) -> list[Token]:
    """The letters of a product such as ab; any other token as it is. ABC is a triangle, and no letter may move."""
    word = token.text
    if token.kind != "word" or not is_product(word) or (len(word) > 2 and word.isupper()):
        return [token]
    return [Token("word", letter, token.spaced and at == 0) for at, letter in enumerate(word)]


def is_product(letters: str) -> bool:
    """True for letters that may well be factors: two of them, capitals, or neighbours in the alphabet such as xyz."""
    if len(letters) <= 2:
        return letters.lower() not in NO_PRODUCTS
    gaps = [ord(second) - ord(first) for first, second in itertools.pairwise(letters)]
    return len(letters) <= 4 and (letters.isupper() or all(0 < gap <= 3 for gap in gaps))


def _is_mixed(whole: Formula, fraction: Formula) -> bool:
    r"""True for 2\frac12."""
    parts = whole, *fraction[1:]
    return all(part[0] == "number" and part[1].denominator == 1 for part in parts) and parts[1][1] < parts[2][1]


def _repeating(text: str) -> Fraction:
    whole, start, period = re.fullmatch(r"([0-9]*)\.([0-9]*)\\overline\s*\{([0-9]+)\}", text).groups()  # type: ignore[union-attr]
    once = Fraction(int(whole + start or "0"), 10 ** len(start))
    return once + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(start))


def walk(formula: Formula) -> Iterator[Formula]:
    """The formula and all that it is made of."""
    yield formula
    if formula[0] not in ("number", "symbol", "constant"):
        for part in formula[1:]:
            yield from walk(part)


@functools.lru_cache(maxsize=4096)
def symbols_of(formula: Formula) -> frozenset[str]:
    """The names of the symbols in a formula."""
    return frozenset(part[1] for part in walk(formula) if part[0] == "symbol")
