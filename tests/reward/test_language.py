"""Which language a text is in, and whether a completion stays in it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.for_every import for_every
from whet.reward.language import language, language_of
from whet.types import Prompt, WhetError

SENTENCES = {
    "en": "What is the capital of France and why is it so?",
    "de": "Wie hei\u00dft die Hauptstadt von Frankreich und warum ist das so?",
    "fr": "Quelle est la capitale de la France et pourquoi est-ce ainsi ?",
    "es": "\u00bfCu\u00e1l es la capital de Francia y por qu\u00e9 es as\u00ed?",
    "it": "Qual \u00e8 la capitale della Francia e perch\u00e9 non Lione?",
    "pt": "Qual \u00e9 a capital da Fran\u00e7a e por que n\u00e3o \u00e9 Lyon?",
    "nl": "Wat is de hoofdstad van Frankrijk en waarom is het dat?",
    "ru": "\u042d\u0442\u043e \u043d\u0435 \u0442\u0430\u043a \u0438 \u043d\u0435 \u0442\u043e",
    "zh": "\u6cd5\u56fd\u7684\u9996\u90fd\u662f\u54ea\u91cc?",
    "ja": "\u30d5\u30e9\u30f3\u30b9\u306e\u9996\u90fd\u306f\u3069\u3053\u3067\u3059\u304b",
    "ko": "\ud504\ub791\uc2a4\uc758 \uc218\ub3c4\ub294 \uc5b4\ub514\uc785\ub2c8\uae4c",
    "el": "\u03a0\u03bf\u03b9\u03b1 \u03b5\u03af\u03bd\u03b1\u03b9",
}
ENGLISH = "The capital is Paris because it is the seat of the government of the country."
CHINESE = "\u9996\u90fd\u662f\u5df4\u9ece\u56e0\u4e3a\u5b83\u662f\u653f\u5e9c\u6240\u5728\u5730"


def prompt(question: str, **meta: Any) -> Prompt:
    return Prompt("p", (), text=question, meta=meta)


@for_every(SENTENCES)
def test_language_of(code: str) -> None:
    assert language_of(SENTENCES[code]) == code


@for_every(["", "2+2=?", "$x^2$", "`for i in the of and to is`", "Ok"])
def test_what_has_no_language(text: str) -> None:
    assert language_of(text) is None


@for_every(SENTENCES)
def test_a_completion_in_the_language_of_the_prompt(code: str) -> None:
    asked = prompt(SENTENCES[code])
    assert language(asked, SENTENCES[code]) == 1.0
    other = CHINESE if code != "zh" and code != "ja" else ENGLISH
    assert language(asked, other) == 0.0
    mixed = language(asked, f"{SENTENCES[code]}\n{other}")
    assert mixed is not None and 0 < mixed < 1


def test_languages_of_one_script_are_told_apart() -> None:
    german = "Das ist so, weil die Regierung dort ist und nicht in Lyon."
    assert language(prompt(SENTENCES["en"]), german) == 0.0
    score = language(prompt(SENTENCES["en"]), f"<think>{german}</think>{ENGLISH}")
    assert score is not None and 0.4 < score < 0.8


def test_formulas_code_and_links_have_no_language() -> None:
    completion = f"{ENGLISH} $\\text{{und das ist nicht}}$ ```\ndie = der + das\n``` \\(\\alpha\\)"
    assert language(prompt(SENTENCES["en"]), completion) == 1.0
    assert language(prompt(SENTENCES["en"]), "42") == 1.0


def test_the_expected_language() -> None:
    assert language(prompt("2+2"), "4") is None
    assert language(prompt("2+2"), ENGLISH, expected="en") == 1.0
    assert language(prompt("2+2"), CHINESE, expected="en") == 0.0
    assert language(prompt("2+2", language="zh-CN"), CHINESE) == 1.0
    with pytest.raises(WhetError, match="cannot tell 'xx'"):
        language(prompt("2+2"), ENGLISH, expected="xx")
