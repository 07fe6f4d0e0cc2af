"""Markdown as the checks read it: fenced blocks, links, inline code and the commands in shell blocks."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^( {0,3}|\s*)(```+|~~~+)\s*([\w+-]*)")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
REFERENCE = re.compile(r"^\s{0,3}\[[^\]^]+\]:\s*<?(\S+?)>?(?:\s|$)")
ATTRIBUTE = re.compile(r"""\b(?:src|href|srcset)=["']([^"']+)["']""")
INLINE_CODE = re.compile(r"(`+)(.+?)\1")
SHELLS = ("bash", "sh", "shell", "console")
SEPARATORS = {"&&", "||", ";", "|", "&", "(", ")"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    line: int  # of its first line
    text: str


@dataclass(frozen=True)
class Page:
    """A Markdown file, taken apart."""

    place: str  # as shown in a complaint
    path: Path
    prose: list[tuple[int, str]]  # the lines outside fenced blocks
    blocks: list[Block]


def pages(root: Path) -> list[Page]:
    """README.md and everything under docs/ that exists."""
    found = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [page(path, path.relative_to(root).as_posix()) for path in found if path.is_file()]


def page(path: Path, place: str) -> Page:
    prose: list[tuple[int, str]] = []
    blocks: list[Block] = []
    fence, language, start, lines = "", "", 0, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        mark = FENCE.match(line)
        if fence and mark and mark[2].startswith(fence) and not mark[3]:
            blocks.append(Block(language, start, "\n".join(lines)))
            fence = ""
        elif fence:
            lines.append(line)
        elif mark:
            fence, language, start, lines = mark[2], mark[3].lower(), number + 1, []
        else:
            prose.append((number, line))
    return Page(place, path, prose, blocks)


def links(page: Page) -> list[tuple[int, str]]:
    """(line, target) of links and images, HTML ones too."""
    found = []
    for number, line in page.prose:
        said = INLINE_CODE.sub("", line)
        for pattern in (LINK, REFERENCE, ATTRIBUTE):
            found += [(number, target) for target in pattern.findall(said)]
    return found


def inline_code(page: Page) -> list[tuple[int, str]]:
    return [(number, code) for number, line in page.prose for _, code in INLINE_CODE.findall(line)]


def commands(block: Block) -> list[tuple[int, list[str]]]:
    """(line, words) of every simple command of a shell block; in a session only the lines behind a prompt count."""
    lines = block.text.splitlines()
    prompted = any(line.lstrip().startswith("$ ") for line in lines)
    found: list[tuple[int, list[str]]] = []
    start, held = 0, ""
    for number, line in enumerate(lines, block.line):
        said = line.strip()
        if not held:
            if prompted and not said.startswith("$ "):
                continue
            start, said = number, said.removeprefix("$ ")
        held += said
        if held.endswith("\\"):
            held = held[:-1] + " "
            continue
        found += [(start, words) for words in _simple_commands(held)]
        held = ""
    return found


def _simple_commands(line: str) -> list[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # an open quote: a here-document or a multi-line string
        return []
    found: list[list[str]] = [[]]
    for word in words:
        if word in SEPARATORS:
            found.append([])
        else:
            found[-1].append(word)
    return [command for command in map(_bare, found) if command]


def _bare(words: list[str]) -> list[str]:
    """Without `VAR=1`, `time` and redirections; `python -m whet` and `.venv/bin/whet` are `whet`."""
    while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] in ("time", "sudo", "exec")):
        words = words[1:]
    for at, word in enumerate(words):
        if set(word) & set("<>") and not set(word) - set("<>&"):
            words = words[: at - 1] if at and words[at - 1].isdigit() else words[:at]
            break
    if len(words) > 2 and re.fullmatch(r"(.*/)?python[\d.]*", words[0]) and words[1] == "-m":
        words = words[2:]
    return [words[0].rpartition("/")[2], *words[1:]] if words else []
