"""Each check of an instruction: a completion that follows it, one that does not, and the loose reading."""

import pytest

from tests.support.for_every import for_every
from whet.reward.instructions import CHECKS, instructions, instructions_followed, num_sentences
from whet.types import Prompt, WhetError

CASES = {
    "keywords:existence": ({"keywords": ["grow", "Intern"]}, "An intern can GROW.", "An intern."),
    "keywords:frequency": (
        {"keyword": "dose", "relation": "at least", "frequency": 2},
        "Dose and dose.",
        "One dose only.",
    ),
    "keywords:forbidden_words": ({"forbidden_words": ["tax"]}, "A syntax error.", "No Tax here."),
    "keywords:letter_frequency": ({"letter": "n", "let_relation": "less than", "let_frequency": 2}, "No", "None"),
    "language:response_language": ({"language": "ko"}, "안녕하세요 여러분", "Hello everybody, how are you today?"),
    "length_constraints:number_sentences": (
        {"relation": "less than", "num_sentences": 3},
        "Dr. Who ran. He hid!",
        "One. Two. Three.",
    ),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "One\n***\nTwo", "One\n\nTwo"),
    "length_constraints:number_words": ({"relation": "at least", "num_words": 3}, "one two three", "one two"),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "So"},
        "First.\n\nso, second.",
        "So.\n\nSecond.",
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, "[name], [street]", "[name]"),
    "detectable_content:postscript": ({"postscript_marker": "P.S."}, "Bye.\n\nP.S. More.", "Bye. Pst."),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* one\n- two", "* one\n* two\n* three"),
    "detectable_format:constrained_response": ({}, "My answer is no.", "No."),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 2}, "*a* and **b**", "*a* and ** **"),
    "detectable_format:multiple_sections": (
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1\na\nSECTION 2\nb",
        "SECTION 1 and SECTION two",
    ),
    "detectable_format:json_format": ({}, '```json\n{"a": 1}\n```', "{a: 1}"),
    "detectable_format:title": ({}, "<<Joy>>\ntext", "<< >>"),
    "combination:two_responses": ({}, "one ****** two", "same ****** same"),
    "combination:repeat_prompt": ({"prompt_to_repeat": "Say hi."}, "say hi. Hi!", "Hi!"),
    "startend:end_checker": ({"end_phrase": "What next?"}, 'Done. "what next?"', "What next? Done."),
    "startend:quotation": ({}, '"quoted"', 'not "quoted"'),
    "change_case:capital_word_frequency": (
        {"capital_relation": "at least", "capital_frequency": 2},
        "A WELL-KNOWN thing",
        "WELL-KNOWN thing",
    ),
    "change_case:english_capital": ({}, "ALL OF THIS IS IN ENGLISH", "Not All of this"),
    "change_case:english_lowercase": ({}, "all of this is in english", "das ist nicht auf englisch und es ist klein"),
    "punctuation:no_comma": ({}, "none", "one, two"),
}


def asked(*listed: dict[str, object]) -> Prompt:
    return Prompt("p", (), "Do.", None, {"instructions": list(listed)})


def test_every_check_has_a_case() -> None:
    assert set(CASES) == set(CHECKS) and len(CHECKS) == 25


@for_every(CASES)
def test_followed_and_not(name: str) -> None:
    settings, right, wrong = CASES[name]
    prompt = asked({"name": name, **settings})
    assert instructions(prompt, right) == 1.0
    assert instructions(prompt, f"<think>{wrong}</think>{right}") == 1.0
    assert instructions(prompt, wrong) == 0.0


def test_all_or_a_share() -> None:
    prompt = asked({"name": "punctuation:no_comma"}, {"name": "startend:quotation"})
    assert instructions(prompt, "none") == 0.0
    assert instructions(prompt, "none", share=True) == 0.5
    assert instructions_followed(prompt, "none") == [True, False]
    assert instructions(prompt, "") == 0.0


def test_the_loose_reading_forgives_an_introduction_and_markdown() -> None:
    prompt = asked({"name": "startend:quotation"})
    introduced = 'Sure, here it is:\n"quoted"'
    assert instructions(prompt, introduced) == 0.0
    assert instructions(prompt, introduced, reading="loose") == 1.0
    assert instructions(prompt, '**"quoted"**', reading="loose") == 1.0
    assert instructions(prompt, "not quoted", reading="loose") == 0.0


@pytest.mark.parametrize(
    ("text", "count"),
    [("One. Two! Three?", 3), ("Mr. Fox met J. R. Smith, e.g. here.", 1), ("Title\n\nText", 2), ("", 0)],
)
def test_sentences(text: str, count: int) -> None:
    assert num_sentences(text) == count


@for_every(
    [
        ("hi", "यह एक वाक्य है", True),
        ("mr", "हे एक वाक्य आहे", True),
        ("te", "ఇది ఒక వాక్యం", True),
        ("te", "this is a sentence in english", False),
        ("pt", "isto não é uma frase em inglês mas em português, e ela é longa para que se veja", True),
        ("pt", "the cat is on the table and it is not going to be moved by me", False),
        ("ru", "this is not it", False),
        ("en", "1 2 3", True),
    ]
)
def test_languages(code: str, text: str, told: bool) -> None:
    assert instructions(asked({"name": "language:response_language", "language": code}), text) == float(told)


@for_every(
    [
        ([], "needs the column `instructions`"),
        ([{"name": "punctuation:no_coma"}], "did you mean 'punctuation:no_comma'"),
        ([{"name": "keywords:existence"}], "needs 'keywords'"),
        ([{"name": "length_constraints:number_words", "relation": "above", "num_words": 3}], "says 'above'"),
        ([{"name": "language:response_language", "language": "xx"}], "'xx' cannot be told"),
    ]
)
def test_rows_that_cannot_be_checked(listed: list[dict[str, object]], said: str) -> None:
    with pytest.raises(WhetError, match=said):
        instructions(asked(*listed), "Some text.")
