"""Citations that hold, citations that do not, and what counts as one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.for_every import for_every
from whet.reward.citations import citations, cited
from whet.types import Prompt, WhetError

PAPERS = [
    {
        "title": "Attention is all you need",
        "author": "Vaswani",
        "year": 2017,
        "url": "https://arxiv.org/abs/1706.03762",
    },
    {"title": "BERT", "author": "Devlin", "year": 2018, "text": "Bidirectional transformers for language."},
]


def prompt(**meta: Any) -> Prompt:
    return Prompt("p", (), text="q", meta=meta)


@for_every(
    [
        ("It is so [1][2].", 1.0),
        ("It is so [1, 2].", 1.0),
        ("See [1-2].", 1.0),
        ("It is so [1].", 0.5),
        ("It is so [1], and again [1].", 0.5),
        ("It is so [1] and [7].", 0.25),
        ("It is so [1], [2] and [7].", 2 / 3),
        ("See https://arxiv.org/abs/1706.03762, and (Devlin et al., 2018).", 1.0),
        ("See http://www.arxiv.org/abs/1706.03762/.", 0.5),
        ("See https://arxiv.org/abs/1706.03", 0.0),
        ("Vaswani et al. (2017) say so.", 0.5),
        ("<source>BERT</source> and <source>attention is all you need</source>", 1.0),
        ("<source>Bidirectional transformers</source>", 0.5),
        ("(Smith, 2020)", 0.0),
        ("(Devlin, 1999)", 0.0),
        ("<think>[1] [2]</think> no source", 0.0),
        ("x[0] = 3, y[100]", 0.0),
        ("", 0.0),
    ]
)
def test_citations_of_given_sources(completion: str, expected: float) -> None:
    for column in ("sources", "documents"):
        assert citations(prompt(**{column: PAPERS}), completion) == pytest.approx(expected)


@for_every(
    [
        ("It is so [1][2].", 0.0),
        ("It [1] is [2].\n\n[1] Smith, On many things, 2020\n[2] Jones, On other things", 1.0),
        ("See https://example.org/a and https://example.org/b.", 1.0),
        ("See https://example.org/a and https://example.org/a", 0.5),
        ("(Smith, 2020; Jones & Brown, 2019)", 1.0),
        ("In the summer (of 2020) it rained.", 0.0),
        ("nothing at all", 0.0),
    ]
)
def test_citations_without_given_sources(completion: str, expected: float) -> None:
    assert citations(prompt(), completion) == pytest.approx(expected)


def test_how_many_and_which_sources() -> None:
    assert citations(prompt(sources=["one text", "two text"]), "[2]", at_least=1) == 1.0
    assert citations(prompt(sources=PAPERS), "[1] [2]", at_least=4) == 0.5
    assert citations(prompt(sources={"a": "first text", "b": "second text"}), '<cite id="b">', at_least=1) == 1.0
    assert cited("(Smith, 2020), [3-5]") == [
        ("number", "3"),
        ("number", "4"),
        ("number", "5"),
        ("author", "Smith 2020"),
    ]
    with pytest.raises(WhetError, match="at_least of reward 'citations' is 0"):
        citations(prompt(), "x", at_least=0)
    with pytest.raises(WhetError, match="needs a list of sources in prompt 'p', not a str"):
        citations(prompt(sources="text"), "[1]")
