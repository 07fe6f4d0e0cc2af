r"""Answers as people and models write them, LaTeX or plain: one spelling of each thing, then tokens within brackets."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

LONGEST = 2000  # characters
DEEPEST = 40  # brackets within brackets


class Unreadable(Exception):
    """What was not read, in words. `is_command` where it is LaTeX that another reader may know."""

    def __init__(self, what: str, is_command: bool = False) -> None:
        super().__init__(what)
        self.is_command = is_command


class Token(NamedTuple):
    """One piece of a text, or a whole group in brackets."""

    kind: str  # number, word, command, text, row, group, or the sign itself
    text: str  # of a group its opening bracket
    spaced: bool  # white space stands before it
    inside: tuple[Token, ...] = ()  # of a group
    closing: str = ""

    @property
    def sign(self) -> str:
        r"""The text of a sign or command, or the opening bracket of a group; "" for \text{...}."""
        return "" if self.kind == "text" else self.text


# what is written for a sign or command, in other LaTeX, in programs and in Unicode
_SPELLINGS = {
    **{r"\frac": r"\dfrac \tfrac \cfrac", r"\binom": r"\dbinom \tbinom", r"\sqrt": "\u221a", "^": "**"},
    **{r"\le": "\\leq \\leqslant <= \u2264", r"\ge": "\\geq \\geqslant >= \u2265", r"\ne": "\\neq != \u2260"},
    **{"*": "\\cdot \\times \\ast \u00d7 \u00b7 \u22c5", "/": "\\div \u00f7", "-": "\u2212 \u2013", "<": r"\lt"},
    **{r"\approx": "\\simeq \\thickapprox \\approxeq \u2248", r"\pm": "\u00b1", ">": r"\gt", ":": r"\colon"},
    **{r"\{": r"\lbrace", r"\}": r"\rbrace", "[": r"\lbrack", "]": r"\rbrack", "|": r"\vert \lvert \rvert"},
    **{r"\cup": "\\union \u222a", r"\cap": "\u2229", r"\in": "\u2208", r"\setminus": r"\backslash"},
    **{r"\emptyset": "\\varnothing \u2205", r"\mathbb{R}": "\u211d", r"\infty": "\u221e", r"\pi": "\u03c0"},
    **{r"\theta": "\u03b8", r"\alpha": "\u03b1", r"\phi": r"\varphi", r"^\circ": "\u00b0", "^{2}": "\u00b2"},
    **{"^{3}": "\u00b3", "(1/2)": "\u00bd", " and ": r"\land \wedge", " or ": r"\lor \vee"},
}
ALIASES = {
    alias: f"{name} " if name[-1].isalpha() else name for name in _SPELLINGS for alias in _SPELLINGS[name].split()
}
NAMED_SIGN = re.compile("|".join((r"\\[a-zA-Z]+", *(re.escape(alias) for alias in ALIASES if alias[0] != "\\"))))
# 0{,}5 has a decimal comma; a list has no braces
DECIMAL_COMMA = re.compile(r"(?<![0-9,.}])(0|[0-9]+(?=\{,\}(?:[0-9]{1,2}|[0-9]{4,})(?![0-9]|\{,\})))\{,\}(?=[0-9])")
THOUSANDS = re.compile(r"(?<=[0-9])(?:,\\!\s*|(?:\s*\{\s*,\s*\}\s*|,?\\,\s*)(?=[0-9]{3}))(?=[0-9])")
BRACED_COMMA = re.compile(r"\{\s*,\s*\}")
# what only changes the looks
SPACES = re.compile(r"(?<!\\)\\(?:[,;:!> \n]|q?quad|displaystyle|textstyle|limits|nolimits)")
SIZES = re.compile(r"\\(?:m?left|m?right|[bB]ig[gG]?[lr]?)(?![a-zA-Z])\.?|\\(?:[lr]group)(?![a-zA-Z])")
UNSEEN = re.compile(r"\\(?:color|textcolor|phantom|hspace)\s*(?:\{[^{}]*\}|[-+=])")
TEXT = re.compile(
    r"\\(?:text|textbf|textrm|textit|textnormal|mbox|mathrm|mathbf|mathit|operatorname|rm|bf)\s*\{([^{}]*)\}"
)
DEGREES = re.compile(r"\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![a-zA-Z]))|\\degree(?![a-zA-Z])")
# TeX takes one digit: \\frac12. Nobody means that of \\sqrt15, nor of the lower 23 in \\frac123
ONE_DIGIT = re.compile(r"(\\(?:frac|binom|log\s*_)\s*)([0-9])(?=[0-9])")
TOKEN = re.compile(
    r"(?P<repeating>[0-9]*\.[0-9]*\\overline\s*\{[0-9]+\})"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"|(?P<environment>\\(?:begin|end)\s*\{[a-z*]+\}(?:\{[clr|]+\})?)"
    r"|(?P<row>\\\\)"
    r"|(?P<command>\\(?:[a-zA-Z]+|[{}|#]))"
    r"|(?P<text>\x01[^\x02]*\x02)"
    r"|(?P<word>[a-zA-Z]+)"
    r"|(?P<sign>[-+*/^_=<>!|(){}\[\],;:&%'$])"
    r"|(?P<space>\s+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_CIRCULAR = ("sin", "cos", "tan", "cot", "sec", "csc")
FUNCTIONS = {  # as mpmath names them; \log without a base is ambiguous in the field, and both sides are read alike
    **{name: name for name in (*_CIRCULAR, "exp", "ln", "log")},
    **{"lg": "log10", **{f"arc{name}": f"a{name}" for name in _CIRCULAR}},
}
WORDS = {
    **{"inf": r"\infty", "infinity": r"\infty", **{word: f"\\{word}" for word in ("pi", "sqrt", "infty", "theta")}},
    **{name: f"\\{name}" for name in FUNCTIONS},
}
BRACKETS = {
    **{"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"},
    r"\langle": r"\rangle",
}
CLOSING = frozenset(BRACKETS.values())


@functools.lru_cache(maxsize=4096)
def spelled(text: str) -> str:
    r"""The text in one spelling, without dollar signs, sizes and spaces that only change its looks.

    \text{...} stands between \x01 and \x02 in it.
    """
    if "\x0c" in text:
        text = re.sub(r"\\?\x0crac", r"\\frac", text)  # what is left of \\frac in data that was unescaped twice
    text = NAMED_SIGN.sub(lambda match: ALIASES.get(match[0], match[0]), text.replace("~", " ").replace("\u00a0", " "))
    text = BRACED_COMMA.sub(",", THOUSANDS.sub("", DECIMAL_COMMA.sub(r"\1.", text)))
    if "\\" in text:
        if "matrix" not in text and "array" not in text:
            text = re.sub(r"\\\\(?=[a-zA-Z{}%$])", lambda _: "\\", text)
        text = DEGREES.sub(r"^\\circ ", UNSEEN.sub("", text))
        while (marked := TEXT.sub(_marked, text)) != text:  # one within the other
            text = marked
        text = SIZES.sub("", SPACES.sub(" ", re.sub(r"\\!\s*(?![a-zA-Z])", "", text)))
        text = ONE_DIGIT.sub(r"\1{\2}", re.sub(r"\\[()\[\]]", " ", text))
    if not (text.count("$") - text.count(r"\$")) % 2:  # an odd one is a currency: $5, but $125$ miles
        text = re.sub(r"(?<!\\)\$", " ", text)
    return text.replace(r"\$", "$").replace(r"\%", "%")


def _marked(match: re.Match[str]) -> str:
    r"""\text{ and } joins, \mathrm{e} is a letter, \text{5} a number, \text{\frac12} a formula; others stay a text."""
    bare = match[1].strip()
    if bare in FUNCTIONS:
        return f" \\{bare} "
    is_formula = re.search(r"\\[a-zA-Z]|\x01", bare) is not None
    if not bare or is_formula or re.fullmatch(r"[0-9]+|[a-zA-Z]|,?\s*(?:and|or)|[,;]", bare):
        return f" {bare} "
    return f" \x01{match[1]}\x02 "


def tokens_of(text: str) -> tuple[Token, ...]:
    """The tokens of a text that `spelled` returned; brackets and what they hold are one token."""
    outer: list[tuple[Token, list[Token]]] = []
    tokens: list[Token] = []
    for token in _flat_tokens(text):
        name = token.text if token.kind != "text" else ""
        if name in BRACKETS or name.startswith(r"\begin"):
            outer.append((token, tokens))
            tokens = []
            if len(outer) > DEEPEST:
                raise Unreadable("brackets nested too deeply")
        elif name in CLOSING or name.startswith(r"\end"):
            if not outer:
                raise Unreadable(f"{name!r} without its beginning", is_command=name[0] == "\\")
            inside = tuple(tokens)
            opening, tokens = outer.pop()
            tokens.append(opening._replace(kind="group", inside=inside, closing=name))
        else:
            tokens.append(token)
    if outer:
        raise Unreadable("a bracket that is not closed", is_command=outer[-1][0].text[0] == "\\")
    return tuple(tokens)


def _flat_tokens(text: str) -> Iterator[Token]:
    spaced = False
    for match in TOKEN.finditer(text):
        kind, piece = match.lastgroup or "", match[0]
        if kind == "other":
            raise Unreadable(f"the sign {piece!r}")
        is_seen = kind != "space" and piece not in ("$", "\x01\x02")
        if is_seen:
            yield _named(kind, piece, spaced)
        spaced = not is_seen


def _named(kind: str, piece: str, spaced: bool) -> Token:
    if kind == "sign" or (kind == "command" and not piece[-1].isalpha()):
        kind = piece
    elif kind == "environment":
        piece = re.sub(r"\s|\}\{.*", "", piece).rstrip("}")
    elif kind == "text":
        piece = piece[1:-1]
    elif kind == "word":
        piece = WORDS.get(piece, piece)
        kind = "command" if piece[0] == "\\" else piece if piece in ("and", "or") else kind
    return Token(kind, piece, spaced)


def text_of(tokens: Sequence[Token]) -> str:
    """The tokens as one text."""
    return "".join(
        (" " if token.spaced else "") + token.text + (text_of(token.inside) + token.closing if token.closing else "")
        for token in tokens
    ).strip()
