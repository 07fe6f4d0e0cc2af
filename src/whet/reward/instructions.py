"""Instructions that a program can check: at least 300 words, no comma, three highlighted sections (IFEval).

The 25 checks of Zhou et al. 2023 (2311.07911), from the column `instructions`: a list of {"name": ..., and its
settings}, named as in the paper's data. What differs from its authors' program is said in docs/data-tools.md.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

from whet.reward.answer import final_part
from whet.reward.language import NO_LANGUAGE, language_of
from whet.types import Prompt, WhetError, did_you_mean

Check = Callable[[str, Mapping[str, Any]], bool]

WORD = re.compile(r"\w+")
SENTENCE_END = re.compile(r"""[.!?\u3002\uff01\uff1f]+["'\u201d\u2019)\]]*(?=\s|$)|\n\s*\n""")
ABBREVIATIONS = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|Inc|Ltd|Co|Ph\.D|e\.g|i\.e|a\.m|p\.m|U\.S|[A-Z])\.(?=\s)"
)
CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
# scripts of the languages that the data asks for, by the first word of their letters' names
SCRIPTS = {
    **dict.fromkeys(("en", "de", "fr", "es", "it", "pt", "nl", "fi", "sw", "vi", "pl", "tr", "sv"), ("LATIN",)),
    **dict.fromkeys(("ru", "uk", "bg"), ("CYRILLIC",)),
    **dict.fromkeys(("ar", "fa", "ur"), ("ARABIC",)),
    **dict.fromkeys(("hi", "mr", "ne"), ("DEVANAGARI",)),
    **{"zh": ("CJK",), "ja": ("HIRAGANA", "KATAKANA", "CJK"), "ko": ("HANGUL",), "th": ("THAI",), "bn": ("BENGALI",)},
    **{"gu": ("GUJARATI",), "kn": ("KANNADA",), "te": ("TELUGU",), "ta": ("TAMIL",), "pa": ("GURMUKHI",)},
    **{"el": ("GREEK",), "he": ("HEBREW",), "ml": ("MALAYALAM",)},
}
KNOWN_BY_WORDS = ("en", "de", "fr", "es", "it", "pt", "nl", "ru", "uk", "ar", "fa")  # by their commonest words


def instructions(
    prompt: Prompt, completion: str, *, reading: Literal["strict", "loose"] = "strict", share: bool = False
) -> float:
    """1 when the completion follows every instruction of the row, else 0; with `share` the share that it follows.

    `reading` "loose" also accepts a completion that follows an instruction without its first line, its last line or
    its asterisks, as introductions and markdown hide what was asked for. What stands in <think> is not judged.
    """
    followed = instructions_followed(prompt, completion, reading)
    return sum(followed) / len(followed) if share else float(all(followed))


def instructions_followed(prompt: Prompt, completion: str, reading: str = "strict") -> list[bool]:
    """Whether each instruction of the row is followed."""
    text = final_part(completion)
    readings = [text] if reading == "strict" else _loose_readings(text)
    return [
        any(bool(variant.strip()) and check(variant, settings) for variant in readings)
        for check, settings in _checks_of(prompt)
    ]


def _checks_of(prompt: Prompt) -> list[tuple[Check, Mapping[str, Any]]]:
    listed = prompt.meta.get("instructions")
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, Mapping) for entry in listed):
        raise WhetError(
            f"reward 'instructions' needs the column `instructions`, a list of objects with a name, and prompt "
            f"{prompt.id!r} has {'none' if listed is None else repr(listed)[:40]}; read the file as ifeval:FILE"
        )
    checks = []
    for entry in listed:
        name = str(entry.get("name"))
        if name not in CHECKS:
            raise WhetError(
                f"prompt {prompt.id!r}: no instruction is called {name!r}{did_you_mean(name, CHECKS)}; there are "
                f"{', '.join(CHECKS)}"
            )
        check, needed = CHECKS[name]
        missing = [key for key in needed if entry.get(key) is None]
        if missing:
            raise WhetError(f"prompt {prompt.id!r}: the instruction {name!r} needs {missing[0]!r}; add it to the row")
        checks.append((check, entry))
    return checks


def _loose_readings(text: str) -> list[str]:
    """The text, and the text without its first line, its last line or both; each also without asterisks."""
    lines = text.split("\n")
    cut = [text, "\n".join(lines[1:]).strip(), "\n".join(lines[:-1]).strip(), "\n".join(lines[1:-1]).strip()]
    return [*cut, *(reading.replace("*", "") for reading in cut)]


def _compared(count: int, relation: str, bound: Any) -> bool:
    if relation not in ("less than", "at least"):
        raise WhetError(f"an instruction says {relation!r}; expected 'less than' or 'at least'; correct the row")
    return count < int(bound) if relation == "less than" else count >= int(bound)


def _forbidden(text: str, arguments: Mapping[str, Any]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in arguments["forbidden_words"])


def _keywords(text: str, arguments: Mapping[str, Any]) -> bool:
    return all(re.search(re.escape(word), text, re.IGNORECASE) for word in arguments["keywords"])


def _frequency(text: str, arguments: Mapping[str, Any]) -> bool:
    count = len(re.findall(re.escape(arguments["keyword"]), text, re.IGNORECASE))
    return _compared(count, arguments["relation"], arguments["frequency"])


def _letters(text: str, arguments: Mapping[str, Any]) -> bool:
    return _compared(
        text.lower().count(arguments["letter"].lower()), arguments["let_relation"], arguments["let_frequency"]
    )


def _language(text: str, arguments: Mapping[str, Any]) -> bool:
    return is_in_language(text, str(arguments["language"]))


def is_in_language(text: str, code: str) -> bool:
    """Whether a text is in a language, by script, or by common words where scripts are shared. No letters: True."""
    scripts = Counter(
        unicodedata.name(letter, "").partition(" ")[0] for letter in NO_LANGUAGE.sub(" ", text) if letter.isalpha()
    )
    expected = SCRIPTS.get(code)
    if expected is None:
        raise WhetError(f"the language {code!r} cannot be told; expected one of {', '.join(SCRIPTS)}")
    if not scripts:
        return True
    if 2 * sum(scripts[name] for name in expected) < scripts.total():
        return False
    guess = language_of(text)
    if code == "ja" or guess is None:
        return code != "zh" or guess is None or guess == "zh"
    return guess == code if code in KNOWN_BY_WORDS else guess not in KNOWN_BY_WORDS


def _sentences(text: str, arguments: Mapping[str, Any]) -> bool:
    return _compared(num_sentences(text), arguments["relation"], arguments["num_sentences"])


def num_sentences(text: str) -> int:
    """Pieces with a letter or digit between ends of sentences; titles and initials end none."""
    plain = ABBREVIATIONS.sub(lambda match: match[0][:-1], text)
    return sum(any(map(str.isalnum, piece)) for piece in SENTENCE_END.split(plain))


def _paragraphs(text: str, arguments: Mapping[str, Any]) -> bool:
    """Parted by ***; the first and the last may be empty, no other."""
    pieces = re.split(r"\s?\*\*\*\s?", text)
    if any(not piece.strip() for piece in pieces[1:-1]):
        return False
    return sum(bool(piece.strip()) for piece in pieces) == arguments["num_paragraphs"]


def _words(text: str, arguments: Mapping[str, Any]) -> bool:
    return _compared(len(WORD.findall(text)), arguments["relation"], arguments["num_words"])


def _first_word(text: str, arguments: Mapping[str, Any]) -> bool:
    """Whether the text has so many paragraphs, parted by empty lines, and the nth begins with the word."""
    pieces = text.split("\n\n")
    count, wanted = sum(bool(piece.strip()) for piece in pieces), int(arguments["nth_paragraph"])
    if count != arguments["num_paragraphs"] or not 1 <= wanted <= len(pieces) or not pieces[wanted - 1].strip():
        return False
    word = pieces[wanted - 1].split()[0].lstrip("'\"")
    return re.split(r"[.,?!'\"]", word)[0].lower() == str(arguments["first_word"]).lower()


def _placeholders(text: str, arguments: Mapping[str, Any]) -> bool:
    return len(re.findall(r"\[[^\]\n]*\]", text)) >= arguments["num_placeholders"]


def _postscript(text: str, arguments: Mapping[str, Any]) -> bool:
    marker = arguments["postscript_marker"]
    letters = r"\.?\s?".join(map(re.escape, marker.replace(".", "").replace(" ", "")))
    return re.search(rf"(?<!\w){letters}\b", text, re.IGNORECASE) is not None if letters else marker in text


def _bullets(text: str, arguments: Mapping[str, Any]) -> bool:
    """Lines that begin with a hyphen, or with one asterisk."""
    return len(re.findall(r"^\s*(?:\*[^*\n]|-).*$", text, re.MULTILINE)) == arguments["num_bullets"]


def _constrained(text: str, _: Mapping[str, Any]) -> bool:
    return any(choice in text for choice in CHOICES)


def _highlights(text: str, arguments: Mapping[str, Any]) -> bool:
    """Whether enough text stands between single or double asterisks; what is highlighted twice counts once."""
    plain = re.sub(r"\*\*([^*\n]*)\*\*", lambda match: f"*{match[1]}*", text)
    return (
        sum(bool(highlight.strip()) for highlight in re.findall(r"\*([^*\n]*)\*", plain)) >= arguments["num_highlights"]
    )


def _sections(text: str, arguments: Mapping[str, Any]) -> bool:
    return len(re.findall(rf"{re.escape(arguments['section_spliter'])}\s?\d+", text)) >= arguments["num_sections"]


def _json(text: str, _: Mapping[str, Any]) -> bool:
    text = re.sub(r"\A```(?:json)?|```\Z", "", text.strip(), flags=re.IGNORECASE).strip()
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str, _: Mapping[str, Any]) -> bool:
    return any(title.strip("<> ") for title in re.findall(r"<<[^\n]+>>", text))


def _two_responses(text: str, _: Mapping[str, Any]) -> bool:
    """Two different ones, parted by ******."""
    pieces = text.split("******")
    if any(not piece.strip() for piece in pieces[1:-1]):
        return False
    filled = [piece.strip() for piece in pieces if piece.strip()]
    return len(filled) == 2 and filled[0] != filled[1]


def _repeated(text: str, arguments: Mapping[str, Any]) -> bool:
    return text.strip().lower().startswith(arguments["prompt_to_repeat"].strip().lower())


def _end(text: str, arguments: Mapping[str, Any]) -> bool:
    return text.strip().strip('"').lower().endswith(arguments["end_phrase"].strip().lower())


def _capital_words(text: str, arguments: Mapping[str, Any]) -> bool:
    """Words in capitals, those with a hyphen or an apostrophe being one."""
    count = sum(word.isupper() for word in re.findall(r"\w+(?:[-'\u2019]\w+)*", text))
    return _compared(count, arguments["capital_relation"], arguments["capital_frequency"])


def _upper(text: str, _: Mapping[str, Any]) -> bool:
    return text.isupper() and is_in_language(text.lower(), "en")


def _lower(text: str, _: Mapping[str, Any]) -> bool:
    return text.islower() and is_in_language(text, "en")


def _no_comma(text: str, _: Mapping[str, Any]) -> bool:
    return "," not in text


def _quoted(text: str, _: Mapping[str, Any]) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == '"' == text[-1]


# name in the paper's data -> the check, and the settings that it cannot do without
CHECKS: Mapping[str, tuple[Check, tuple[str, ...]]] = {
    "keywords:existence": (_keywords, ("keywords",)),
    "keywords:frequency": (_frequency, ("keyword", "relation", "frequency")),
    "keywords:forbidden_words": (_forbidden, ("forbidden_words",)),
    "keywords:letter_frequency": (_letters, ("letter", "let_relation", "let_frequency")),
    "language:response_language": (_language, ("language",)),
    "length_constraints:number_sentences": (_sentences, ("relation", "num_sentences")),
    "length_constraints:number_paragraphs": (_paragraphs, ("num_paragraphs",)),
    "length_constraints:number_words": (_words, ("relation", "num_words")),
    "length_constraints:nth_paragraph_first_word": (_first_word, ("first_word", "num_paragraphs", "nth_paragraph")),
    "detectable_content:number_placeholders": (_placeholders, ("num_placeholders",)),
    "detectable_content:postscript": (_postscript, ("postscript_marker",)),
    "detectable_format:number_bullet_lists": (_bullets, ("num_bullets",)),
    "detectable_format:constrained_response": (_constrained, ()),
    "detectable_format:number_highlighted_sections": (_highlights, ("num_highlights",)),
    "detectable_format:multiple_sections": (_sections, ("section_spliter", "num_sections")),
    "detectable_format:json_format": (_json, ()),
    "detectable_format:title": (_title, ()),
    "combination:two_responses": (_two_responses, ()),
    "combination:repeat_prompt": (_repeated, ("prompt_to_repeat",)),
    "startend:end_checker": (_end, ("end_phrase",)),
    "startend:quotation": (_quoted, ()),
    "change_case:capital_word_frequency": (_capital_words, ("capital_relation", "capital_frequency")),
    "change_case:english_capital": (_upper, ()),
    "change_case:english_lowercase": (_lower, ()),
    "punctuation:no_comma": (_no_comma, ()),
}
