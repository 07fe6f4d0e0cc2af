"""Search over a local corpus: the right documents, with numbers to cite, the same every time."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.packages import needs
from whet.envs.tools.find import find_tools, tool_environment
from whet.envs.tools.search import CorpusDocument, read_corpus, searcher
from whet.reward.citations import citations
from whet.types import Prompt, WhetError

pytestmark = needs("bm25s")

CITIES = """Paris is the capital of France. It lies on the Seine.

Berlin is the capital of Germany.

Bananas are yellow.

Berlin has a zoo.
"""


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "cities.txt"
    file.write_text(CITIES)
    return file


def found(place: object, query: str, k: int = 2) -> str:
    return str(find_tools("search", {"corpus": str(place), "k": k}).open(None).tools[0].call(query))  # type: ignore[arg-type]


def test_the_best_documents_come_first_with_their_numbers(corpus):
    text = found(corpus, "What is the capital of Germany?")
    assert text.split("\n\n") == [
        "[2] Berlin is the capital of Germany.",
        "[1] Paris is the capital of France. It lies on the Seine.",
    ]
    assert found(corpus, "zebra") == found(corpus, "") == found(corpus, "?!") == "no results"
    assert found(corpus, "yellow", k=4) == "[3] Bananas are yellow."


def test_equal_scores_keep_the_order_of_the_corpus():
    same = searcher([CorpusDocument("red fox"), CorpusDocument("blue"), CorpusDocument("red fox")], 3)
    assert [same("fox") for _ in range(3)] == ["[1] red fox\n\n[3] red fox"] * 3


def test_rows_and_folders(tmp_path):
    rows = tmp_path / "rows.jsonl"
    lines = [{"text": "It runs.", "title": "Fox"}, {"text": "one\u2028two"}, {"text": "It sleeps.", "title": "Cat"}]
    rows.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n")
    assert found(rows, "cat") == "[3] Cat\nIt sleeps."
    folder = tmp_path / "folder"
    (folder / "b").mkdir(parents=True)
    (folder / "a.md").write_text("alpha words")
    (folder / "b" / "c.txt").write_text("gamma words")
    (folder / "picture.png").write_bytes(b"\xff")
    assert found(folder, "gamma") == "[2] b/c\ngamma words"


def test_a_long_document_is_shown_by_the_piece_that_fits():
    words = [f"word{number}" for number in range(1000)]
    text = searcher([CorpusDocument("short"), CorpusDocument(" ".join(words), "Long")], 1)("word777")
    assert text.startswith("[2] Long\nword") and " word777 " in text and len(text.split()) < 150


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("empty.txt", "", "has no documents"),
        ("bad.jsonl", "{}\n", r"bad.jsonl:1 has no column text"),
        ("torn.jsonl", '{"text": "a"}\n{"text"\n', r"torn.jsonl:2 is not JSON"),
        ("table.csv", "a,b\n", "is no .jsonl, .txt or .md file"),
        ("marks.txt", "?!\n", "has no words"),
    ],
)
def test_a_corpus_that_is_none_gets_one_line(tmp_path, name, content, line):
    (tmp_path / name).write_text(content)
    with pytest.raises(WhetError, match=line) as met:
        tool_environment(["search"], settings={"search": {"corpus": str(tmp_path / name)}})
    assert "\n" not in str(met.value)


def test_other_mistakes_get_one_line(tmp_path, corpus, monkeypatch):
    with pytest.raises(WhetError, match=r"there is no corpus .*citie.txt \(did you mean 'cities.txt'\?\)"):
        read_corpus(str(tmp_path / "citie.txt"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(WhetError, match="cannot be read as text"):
        read_corpus(str(tmp_path / "latin.txt"))
    with pytest.raises(WhetError, match="k of the tool 'search' is 0"):
        find_tools("search", {"corpus": str(corpus), "k": 0})
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(WhetError, match=r"needs bm25s; run pip install 'whet\[search\]'"):
        find_tools("search", {"corpus": str(corpus)})


def test_the_numbers_are_those_that_the_reward_for_citations_reads(corpus):
    prompt = Prompt("p", (), "?", meta={"sources": [document.text for document in read_corpus(str(corpus))]})
    assert citations(prompt, "Berlin is the capital [2] and has a zoo [4].") == 1.0
    assert citations(prompt, "Berlin is the capital [2] and has a zoo [9].") < 1.0


def test_the_index_does_not_load_jax(tmp_path, monkeypatch):
    """JAX takes most of a GPU's memory when it is loaded, and the policy's model would find none."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise SystemExit('jax was loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("bm25s", "jax")]:
        monkeypatch.delitem(sys.modules, name)
    documents = [CorpusDocument("Oslo is in Norway."), CorpusDocument("Rome is in Italy.")]
    assert "Norway" in searcher(documents, 1)("Oslo")
    assert "jax" not in sys.modules
