"""The reward for staying in one language: the prompt's, or a given one.

Scripts tell most languages apart; languages that share a script are told apart by their commonest words. No model,
no dependency: short texts stay undecided, and undecided text is never held against a completion.
"""

from __future__ import annotations

import functools
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from whet.types import Prompt, WhetError

# script -> what a text in it is taken for; several where only words can tell
SCRIPTS = {
    "LATIN": ("en", "de", "fr", "es", "it", "pt", "nl"),
    "CYRILLIC": ("ru", "uk"),
    "ARABIC": ("ar", "fa"),
    "CJK": ("zh",),
    "HIRAGANA": ("ja",),
    "KATAKANA": ("ja",),
    "HANGUL": ("ko",),
    "GREEK": ("el",),
    "HEBREW": ("he",),
    "DEVANAGARI": ("hi",),
    "THAI": ("th",),
    "BENGALI": ("bn",),
    "TAMIL": ("ta",),
}
LANGUAGES = tuple(dict.fromkeys(language for known in SCRIPTS.values() for language in known))

COMMON_WORDS = Path(__file__).parent / "common_words.toml"
# every length is bounded: a completion of opening marks only must not take quadratic time
NO_LANGUAGE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]{0,500}`|\$\$.{0,600}?\$\$|\$[^$\n]{0,500}\$|\\\[.{0,600}?\\\]|\\\(.{0,600}?\\\)"
    r"|\\[a-zA-Z]{1,30}(?:\{[^{}]{0,500}\})*|<tool_call>.{0,2000}?(?:</tool_call>|\Z)|</?[a-zA-Z_]{1,40}>"
    r"|\b[a-z]{1,10}:/{2}\S{1,500}|[\w.+-]{1,64}@\S{1,255}",
    re.DOTALL,
)
SENTENCE = re.compile(r"[^.!?\n\u3002\uff01\uff1f]+")
WORD = re.compile(r"[^\W\d_]+")
SHARE_TO_BE_SURE = 0.12  # of the words of a sentence that are among a language's commonest
LEAD = 1.3  # how many times more of them than of any other language's
FEWEST_WORDS = 4
LONGEST = 100_000  # characters of a completion that are read


def language(prompt: Prompt, completion: str, *, expected: str = "prompt") -> float | None:
    """The share of the completion's letters that are in the expected language, 0 to 1, thinking included.

    `expected` is a code such as "en" or "zh", or "prompt": the prompt's column `language` where it has one, else the
    language its question is written in; None when that cannot be told. Formulas, code, calls and links have no
    language; a sentence too short to tell counts as right in its script. A completion without words scores 1.
    """
    wanted = _expected(prompt, expected)
    if wanted is None:
        return None
    right = total = 0
    for sentence in SENTENCE.findall(NO_LANGUAGE.sub(" ", completion[:LONGEST])):
        scripts = _letters_by_script(sentence)
        for script, letters in scripts.items():
            total += letters
            right += letters if _is_in(wanted, sentence, script, scripts) else 0
    return right / total if total else 1.0


def _is_in(wanted: str, sentence: str, script: str, scripts: Mapping[str, int]) -> bool:
    if wanted == "ja" and script == "CJK":
        return "HIRAGANA" in scripts or "KATAKANA" in scripts
    return wanted in SCRIPTS.get(script, ()) and _by_words(sentence, script) in (None, wanted)


def language_of(text: str) -> str | None:
    """The code of the language a text is written in, None when it cannot be told."""
    bare = NO_LANGUAGE.sub(" ", text)
    letters = _letters_by_script(bare)
    if not letters:
        return None
    if "HIRAGANA" in letters or "KATAKANA" in letters:
        kana = letters.get("HIRAGANA", 0) + letters.get("KATAKANA", 0)
        if kana >= 0.1 * sum(letters.values()):
            return "ja"
    script, count = letters.most_common(1)[0]
    known = SCRIPTS.get(script, ())
    if count < 0.5 * sum(letters.values()):
        return None
    return known[0] if len(known) == 1 else _by_words(bare, script)


def _expected(prompt: Prompt, expected: str) -> str | None:
    if expected == "prompt":
        column = prompt.meta.get("language")
        if column is None:
            return language_of(prompt.question())
        expected = str(column)
    code = expected.lower().replace("_", "-").partition("-")[0]
    if code not in LANGUAGES:
        raise WhetError(
            f"reward 'language' cannot tell {expected!r} (prompt {prompt.id!r}); give one of {', '.join(LANGUAGES)}, "
            "or 'prompt'"
        )
    return code


def _letters_by_script(text: str) -> Counter[str]:
    scripts: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if script := _script(character):
            scripts[script] += count
    return scripts


@functools.lru_cache(maxsize=8192)
def _script(character: str) -> str:
    """The first word of a letter's Unicode name, "" for what is no letter."""
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""


@functools.cache
def common_words() -> dict[str, frozenset[str]]:
    """The commonest words of each language that shares its script."""
    words = tomllib.loads(COMMON_WORDS.read_text(encoding="utf-8"))
    return {code: frozenset(text.split()) for code, text in words.items()}


def _by_words(text: str, script: str) -> str | None:
    """The language of the script whose commonest words the text uses most, None when that is not clear."""
    known = SCRIPTS.get(script, ())
    if len(known) < 2:
        return known[0] if known else None
    words = [word.lower() for word in WORD.findall(text)]
    if len(words) < FEWEST_WORDS:
        return None
    counts = sorted(((sum(word in common_words()[code] for word in words), code) for code in known), reverse=True)
    (best, code), (second, _) = counts[0], counts[1]
    return code if best >= max(2, SHARE_TO_BE_SURE * len(words), LEAD * second) else None
