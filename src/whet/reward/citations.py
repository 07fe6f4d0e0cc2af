"""The reward for citing sources that are there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from whet.reward.answer import final_part
from whet.types import Prompt, WhetError

Kind = Literal["number", "link", "author", "tag"]

SOURCE_COLUMNS = ("sources", "documents", "contexts", "passages")
NUMBERS = re.compile(r"\[\^?(\d{1,3}(?:\s*[-\u2013,;]\s*\^?\d{1,3})*)\](?!\()")
LINK = re.compile(
    r"https?:/{2}[^\s<>()\[\]\"']+|\bdoi:\s*10\.\S+|\b10\.\d{4,9}/[^\s<>()\[\]\"']+|\barXiv:\s*\d{4}\.\d{4,5}", re.I
)
AUTHOR_INSIDE = re.compile(r"\(([^()]{4,300})\)")
AUTHOR_OUTSIDE = re.compile(
    r"\b([A-Z][\w'\u2019-]+)(?:\s+et\s+al\.?|\s+(?:and|&)\s+[A-Z][\w'\u2019-]+)?\s+\(((?:19|20)\d\d)[a-z]?\)"
)
AUTHOR = re.compile(r"[^;]*?\b([A-Z][\w'\u2019-]+)[^;()]*?,?\s+((?:19|20)\d\d)[a-z]?\s*")
TAG = re.compile(r"<(source|cite|citation|ref)\b([^<>]{0,300})>(?:(.{0,1000}?)</\1>)?", re.DOTALL | re.IGNORECASE)
REFERENCE = re.compile(r"^[ \t]*\[?\^?(\d{1,3})[\].:)]+\s*\S.{7,}$", re.MULTILINE)
SHORTEST_QUOTE = 12  # characters of a <source> that count as a quotation
LONGEST = 50_000  # characters that are read, from the end
MOST = 500  # citations of a completion that are looked at


def citations(prompt: Prompt, completion: str, *, at_least: int = 2) -> float:
    """0 to 1: the share of `at_least` different sources that the completion cites, times the share of citations that
    hold.

    Citations are [1], [1, 2], [1-3], links and DOIs, (Author, 2020), Author et al. (2020) and <source>...</source>,
    after the thinking. Where the prompt has a column `sources` (or `documents`, `contexts`, `passages`; a list of
    texts, or of rows with a url, title, author, year, id, text) a citation holds when it is one of them: a number
    within the list, a link or an author and year that occurs in one, a tag that names or quotes one. Without such a
    column a link and an author with a year hold as they are, a number only if the completion's own list of references
    has it.
    """
    if at_least < 1:
        raise WhetError(f"at_least of reward 'citations' is {at_least}; give the number of sources to cite, from 1")
    text = final_part(completion)[-LONGEST:]
    sources = sources_of(prompt)
    sources_cited = [source_cited(kind, value, sources, text) for kind, value in cited(text)]
    held = {source for source in sources_cited if source is not None}
    if not held:
        return 0.0
    return min(1.0, len(held) / at_least) * sum(source is not None for source in sources_cited) / len(sources_cited)


def cited(text: str) -> list[tuple[Kind, str]]:
    """Every citation of a text as (kind, what it says)."""
    body = REFERENCE.sub(" ", text)
    citations: list[tuple[Kind, str]] = []
    for match in NUMBERS.finditer(body):
        citations += [("number", str(number)) for number in _numbers(match[1])]
    # a link in the list of references is a citation too, its number is not
    citations += [("link", match[0].rstrip(".,;:!?")) for match in LINK.finditer(text)]
    for match in AUTHOR_INSIDE.finditer(body):
        matches = [AUTHOR.fullmatch(piece) for piece in match[1].split(";")]
        citations += [("author", f"{match[1]} {match[2]}") for match in matches if match is not None]
    citations += [("author", f"{name} {year}") for name, year in AUTHOR_OUTSIDE.findall(body)]
    citations += [("tag", (match[3] or match[2]).strip()) for match in TAG.finditer(body)]
    return citations[:MOST]


def sources_of(prompt: Prompt) -> list[str] | None:
    """The prompt's sources, each as one text of all its fields; None where the prompt has no such column."""
    sources = next((prompt.meta[column] for column in SOURCE_COLUMNS if prompt.meta.get(column) is not None), None)
    if sources is None:
        return None
    if isinstance(sources, Mapping):
        sources = [{"id": key, "text": value} for key, value in sources.items()]
    if not isinstance(sources, list | tuple):
        raise WhetError(
            f"reward 'citations' needs a list of sources in prompt {prompt.id!r}, not a {type(sources).__name__}; "
            f"fix the column ({', '.join(SOURCE_COLUMNS)})"
        )
    return [_as_text(source) for source in sources]


def source_cited(kind: Kind, value: str, sources: list[str] | None, text: str) -> str | None:
    """Which source a citation points to, as a name that is the same for the same source; None for none."""
    if sources is None:
        return _own_source(kind, value, text)
    if kind == "number":
        return f"source {int(value)}" if 1 <= int(value) <= len(sources) else None
    for number, source in enumerate(sources, 1):
        if _points_to(kind, value, source):
            return f"source {number}"
    return None


def _own_source(kind: Kind, value: str, text: str) -> str | None:
    if kind == "number":
        return f"reference {value}" if value in REFERENCE.findall(text) else None
    return f"{kind} {value.lower()}" if value else None


def _points_to(kind: Kind, value: str, source: str) -> bool:
    here = source.lower()
    wanted = value.lower()
    if kind == "link":
        bare = _bare_link(wanted)
        return any(_bare_link(link[0].lower().rstrip(".,;:!?")) == bare for link in LINK.finditer(source)) or (
            len(bare) > 6 and re.search(rf"(?<![\w./-]){re.escape(bare)}(?![\w/-])", here) is not None
        )
    if kind == "author":
        return all(re.search(rf"\b{re.escape(word)}\b", here) for word in wanted.split())
    words = wanted.strip().strip("\"'=").strip()
    identifier = re.search(r"(?:id|name|url|href)\s*=\s*[\"']?([^\"'>]+)", wanted)
    words = identifier[1].strip() if identifier else words
    first = here.split("\n", 1)[0].strip()
    return bool(words) and (
        words in here.split("\n") or words == first or (len(words) >= SHORTEST_QUOTE and words in here)
    )


def _bare_link(link: str) -> str:
    return re.sub(r"^(?:https?:/{2})?(?:www\.)?(?:(?:dx\.)?doi\.org/|doi:\s*)?", "", link).rstrip("/")


def _numbers(text: str) -> list[int]:
    """The numbers of "1, 3-5"; a span that runs backwards or too far is taken as its two ends."""
    numbers: list[int] = []
    for piece in re.split(r"\s*[,;]\s*", text.replace("^", "")):
        ends = [int(end) for end in re.split(r"\s*[-\u2013]\s*", piece) if end]
        if len(ends) == 2 and 0 < ends[1] - ends[0] <= 20:
            numbers += range(ends[0], ends[1] + 1)
        else:
            numbers += ends
    return numbers


def _as_text(source: Any) -> str:
    if isinstance(source, Mapping):
        return "\n".join(str(value) for value in source.values() if value is not None)
    return str(source)
