"""Fenced blocks of a completion, in the markdown that models write: in lists, in quotations, of tildes, not closed."""

from __future__ import annotations

import re

QUOTE = r"(?:[ \t]{0,3}>[ \t]?)*"
OPENING = re.compile(rf"({QUOTE})([ \t]*(?:(?:[-*+]|\d{{1,3}}[.)])[ \t]+)*)(`{{3,}}|~{{3,}})[ \t]*([^`]*)$")
CLOSING = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*$")
CLOSING_INDENT = 3  # spaces more than the opening; beyond that it belongs to the content, say to a docstring
TAB = 4


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block; the indentation of the fence is taken off its content."""
    blocks: list[tuple[str, str]] = []
    lines = text.replace("\r\n", "\n").split("\n")  # not splitlines: a form feed inside code is no end of a line
    at = 0
    while at < len(lines):
        opening = OPENING.match(lines[at])
        at += 1
        if opening is None:
            continue
        quote, indent, fence, info = opening.groups()
        end = _end(lines, at, bool(quote), _width(indent), fence)
        content = [_unindented(_unquoted(line, bool(quote)), _width(indent)) for line in lines[at:end]]
        blocks.append((_language(info), "\n".join(content) + "\n"))
        at = end + 1
    return blocks


def is_python(language: str) -> bool:
    """True for the names under which fences hold Python."""
    return language.startswith("python") or language in ("py", "py3", "ipython")


def _end(lines: list[str], start: int, is_quoted: bool, indent: int, fence: str) -> int:
    """The line of the closing fence; without one, the first that looks like it, else the end of the text."""
    looks_alike = len(lines)
    for at in range(start, len(lines)):
        closing = CLOSING.match(_unquoted(lines[at], is_quoted))
        if closing is not None and closing[2][0] == fence[0] and len(closing[2]) >= len(fence):
            if _width(closing[1]) <= indent + CLOSING_INDENT:
                return at
            looks_alike = min(looks_alike, at)
    return looks_alike


def _language(info: str) -> str:
    """The first word of what follows the fence: `python title="x"`, `{.python .numberLines}`."""
    word = re.search(r"[\w+#-]+", info)
    return word[0].lower() if word else ""


def _unquoted(line: str, is_quoted: bool) -> str:
    return re.sub(rf"^{QUOTE}", "", line, count=1) if is_quoted else line


def _unindented(line: str, width: int) -> str:
    """The line without up to `width` columns of white space."""
    at = columns = 0
    while at < len(line) and columns < width and line[at] in " \t":
        columns += TAB if line[at] == "\t" else 1
        at += 1
    return line[at:]


def _width(indent: str) -> int:
    return sum(TAB if character == "\t" else 1 for character in indent)
