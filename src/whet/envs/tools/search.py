"""Search over a local corpus by BM25 (the package bm25s), with numbers to cite: [3] is the third document.

A document is a row of a .jsonl file (`text`, and `title` where there is one), a paragraph of a .txt or .md file, or
a .txt or .md file of a folder, in the order of their names. Long ones are searched in pieces, and a piece is shown
with the number of its document. Equal scores are in the order of the corpus: the same question, the same results.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.envs.tools.tool import ToolSource, as_tool, function_source
from whet.types import WhetError, did_you_mean

TEXT_FILES = (".txt", ".md")
PARAGRAPHS = re.compile(r"\n\s*\n")
WORD = re.compile(r"\w+")
PIECE = 120  # words of a long document that are scored and shown together
MOST_RESULTS = 50
SETTINGS = ("corpus", "k")


@dataclass(frozen=True)
class CorpusDocument:
    """A text to search in; it is cited by its number in the corpus, not by its title."""

    text: str
    title: str = ""


def search_source(corpus: str = "", k: int = 3) -> ToolSource:
    """The tool `search` over a corpus; `k` results of a search."""
    if not corpus:
        raise WhetError(
            "the tool 'search' needs a corpus; give env.tool_settings.search.corpus, a .txt or .jsonl file or a folder"
        )
    if not isinstance(k, int) or not 1 <= k <= MOST_RESULTS:
        raise WhetError(f"k of the tool 'search' is {k!r}; give a number of results from 1 to {MOST_RESULTS}")
    return function_source(as_tool(searcher(read_corpus(str(corpus)), k)))


def _bm25s() -> Any:
    """The package, without JAX: it would load it for a choice of the best that is not used here, and JAX takes three
    quarters of a GPU's memory when it is loaded."""
    hides_jax = "jax" not in sys.modules
    if hides_jax:
        sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        import bm25s
    except ImportError:
        raise WhetError("the tool 'search' needs bm25s; run pip install 'whet[search]'") from None
    finally:
        if hides_jax:
            del sys.modules["jax"]
    return bm25s


def searcher(documents: list[CorpusDocument], k: int) -> Callable[[str], str]:
    """The search tool: a function from a query to its `k` best passages as text. The index is built here, once."""
    import numpy

    bm25s = _bm25s()

    pieces = [(number, piece) for number, document in enumerate(documents, 1) for piece in _pieces(document)]
    index = bm25s.BM25()
    tokens = [_tokens(f"{documents[number - 1].title} {piece}") for number, piece in pieces]
    if not any(tokens):
        raise WhetError("the corpus of the tool 'search' has no words; give another")
    index.index(tokens, show_progress=False)

    def search(query: str) -> str:
        """Search the documents. Each result begins with the number to cite it by, such as [3].

        Args:
            query: Words to look for.
        """
        known = [word for word in _tokens(query) if word in index.vocab_dict]
        if not known:
            return "no results"
        scores = index.get_scores(known)
        best = [int(number) for number in numpy.argsort(-scores, kind="stable")[:k] if scores[number] > 0]
        return "\n\n".join(_cited(*pieces[number], documents) for number in best) or "no results"

    return search


def _cited(number: int, piece: str, documents: list[CorpusDocument]) -> str:
    title = documents[number - 1].title
    return f"[{number}] {title}\n{piece}" if title else f"[{number}] {piece}"


def _pieces(document: CorpusDocument) -> list[str]:
    words = document.text.split()
    if len(words) <= PIECE:
        return [" ".join(words)]
    count = -(-len(words) // PIECE)
    size = -(-len(words) // count)
    return [" ".join(words[start : start + size]) for start in range(0, len(words), size)]


def _tokens(text: str) -> list[str]:
    return WORD.findall(text.lower())


def read_corpus(corpus: str) -> list[CorpusDocument]:
    """The documents of a file or folder, empty ones left out; raises `WhetError` if none remain."""
    path = Path(corpus).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix in TEXT_FILES)
        documents = [CorpusDocument(_text(file), str(file.relative_to(path).with_suffix(""))) for file in files]
    elif path.is_file() and path.suffix == ".jsonl":
        documents = _rows(path)
    elif path.is_file() and path.suffix in TEXT_FILES:
        documents = [CorpusDocument(piece.strip()) for piece in PARAGRAPHS.split(_text(path))]
    elif path.is_file():
        raise WhetError(f"the corpus {corpus} is no .jsonl, .txt or .md file; convert it, or give a folder of texts")
    else:
        near = [neighbour.name for neighbour in path.parent.iterdir()] if path.parent.is_dir() else []
        raise WhetError(f"there is no corpus {corpus}{did_you_mean(path.name, near)}; give a file or a folder of texts")
    documents = [document for document in documents if document.text.strip()]
    if not documents:
        raise WhetError(f"the corpus {corpus} has no documents; give a .jsonl or .txt file, or a folder of texts")
    return documents


def _rows(path: Path) -> list[CorpusDocument]:
    documents = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            raise WhetError(f"{path}:{number} is not JSON; give one object per line with a column text") from None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise WhetError(f"{path}:{number} has no column text; give one object per line, such as {{'text': '...'}}")
        documents.append(CorpusDocument(row["text"], str(row.get("title") or "")))
    return documents


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WhetError(f"the corpus file {file} cannot be read as text: {error}; convert it to UTF-8") from None
