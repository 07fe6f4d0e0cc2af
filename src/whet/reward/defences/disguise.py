"""What a reader does not see: invisible characters and hidden markup, and letters that only look like others."""

from __future__ import annotations

import re
import unicodedata

from whet.reward.defences.reading import FENCED, Kind, defence_score
from whet.types import Prompt

INVISIBLE = frozenset(
    "\u200b\u2060\u2061\u2062\u2063\u2064\ufeff\u180e\u034f\u115f\u1160\u3164\uffa0\u00ad\u17b4\u17b5"
)
TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
JOINERS = frozenset("\u200c\u200d\u200e\u200f")
MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)|<[^<>]*(?:display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|opacity\s*:\s*0(?![.\d])|"
    r"color\s*:\s*(?:white|#fff(?:fff)?|transparent))[^<>]*>|<[^<>]*\bhidden\b[^<>]*>|"
    r"\\(?:color|textcolor)\s*\{\s*(?:white|transparent)\s*\}|\{\\color\s*\{?white|\\[vh]?phantom\s*\{[^{}]{0,200}[^\W\d_]{3}[^{}]{0,200}\}|"
    r"\\(?:fontsize\s*\{\s*0|tiny\s*\\color)|\\transparent\s*\{\s*0|\x1b\[[0-9;]*[A-Za-z]|"
    r"<(?:style|script)\b.*?(?:</(?:style|script)>|\Z)",
    re.IGNORECASE | re.DOTALL,
)
# Cyrillic and Greek letters, and a few others, that a reader takes for Latin ones
LOOK_ALIKE = frozenset(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb\u051b\u051d\u0442\u043c\u043d\u043a\u0432"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0406\u0408\u0405\u04ae\u0417\u0431"
    "\u03bf\u03bd\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03b9\u03ba\u03c1\u03c5"
    "\u0131\u0251\u0261\u01c0\u1d0f\u1d04\u1d1c\u1d20\u1d22\u0585\u057d\u0578\u0570\u13a0\u13aa\u13b3\u13de\uff41"
)
ABOUT_MARKUP = re.compile(r"(?i)\bhtml\b|\bcss\b|\bxml\b|latex|markup|web ?(?:site|page)|<[a-z!/]")
WORD = re.compile(r"[^\W\d_]{2,}")
MIXED_NUMBER = re.compile(
    r"(?<![^\W_])[0-9.,]{0,20}[OoIl\u041e\u043e\u0417\u03bf\u0406][0-9OoIl.,\u041e\u043e\u0417\u03bf\u0406]{0,20}(?![^\W_])"
)


def hidden_text(prompt: Prompt, completion: str, *, kind: Kind = "penalty") -> float:
    """A penalty: 0, or -1 where the completion holds what no reader sees (as a gate: 1, or 0): characters without
    width, ones that turn the direction of a line, tag characters, markup that hides its content, control characters.

    Joiners pass where a script or an emoji needs them; markup passes inside a code block and where the question is
    about it. What the prompt itself contains may be repeated.
    """
    question = prompt.question()
    outside = re.sub(r"`[^`\n]*`", " ", FENCED.sub(" ", completion))
    markup = [match[0] for match in MARKUP.finditer(outside)]
    about_markup = ABOUT_MARKUP.search(question) is not None
    hides = any(not about_markup and piece not in question for piece in markup)
    return defence_score(float(hides or _has_invisible(completion, question)), kind)


def look_alikes(prompt: Prompt, completion: str, *, kind: Kind = "penalty") -> float:
    """A penalty: 0, or -1 where letters or digits stand in for others that look the same (as a gate: 1, or 0).

    That is a word of Latin letters with a foreign twin among them, a foreign word made of twins alone in a Latin
    text, styled or wide letters and digits, digits of a script the text is not written in, and numbers with letters
    for digits. What stands in the question may be repeated.
    """
    question = prompt.question()
    words = [word for word in WORD.findall(completion) if _is_mixed(word)]
    words += _styled(completion)
    words += [match[0] for match in MIXED_NUMBER.finditer(completion) if _is_false_number(match[0])]
    words += _foreign_twins(completion)
    return defence_score(float(any(each not in question for each in words)), kind)


def _has_invisible(completion: str, question: str) -> bool:
    return any(
        _is_invisible(completion, place, character)
        for place, character in enumerate(completion)
        if not ("\x20" <= character < "\x7f" or character in "\t\n\r\x1b" or character in question)
    )


def _is_invisible(completion: str, place: int, character: str) -> bool:
    if character < " " or character == "\x7f" or 0xE0000 <= ord(character) <= 0xE007F:
        return True
    if character in JOINERS:
        return not _joins(completion, place)
    # a mark of the byte order may open a text
    unseen = character in INVISIBLE or character in TURNING
    return unseen and not (character == "\ufeff" and place == 0)


def _joins(completion: str, place: int) -> bool:
    """The neighbour is a letter of a script that joins, or a picture."""
    near = completion[max(place - 2, 0) : place] + completion[place + 1 : place + 2]
    return any(
        unicodedata.category(each) in ("So", "Sk", "Mn", "Mc") or each == "\ufe0f" or "\u0590" <= each <= "\u1cff"
        for each in near
    )


def _is_mixed(word: str) -> bool:
    return any(each in LOOK_ALIKE for each in word) and any("a" <= each.lower() <= "z" for each in word)


def _styled(completion: str) -> list[str]:
    """Letters and digits in mathematical, wide or foreign styles, where the rest of the text is plain.

    Single bold or script letters are ordinary in mathematics: digits and runs of letters are not.
    """
    foreign = [each for each in completion if not each.isascii()]
    scripts = {unicodedata.name(each, "").split(" ")[0] for each in foreign if each.isalpha()}
    is_wide = bool(scripts & {"CJK", "HIRAGANA", "KATAKANA", "HANGUL"})
    digits = [each for each in foreign if unicodedata.category(each) == "Nd" and _script(each) not in scripts]
    wide = [each for each in digits if not is_wide] + ([] if is_wide else re.findall("[\uff21-\uff5a]", completion))
    return wide + re.findall("[\U0001d7ce-\U0001d7ff]|[\U0001d400-\U0001d7cb\u24b6-\u24e9]{3,}", completion)


def _script(digit: str) -> str:
    """The script a digit is at home in: ARABIC, DEVANAGARI, ..."""
    return unicodedata.name(digit, "").removeprefix("EXTENDED ").replace("-", " ").split(" ")[0]


def _is_false_number(text: str) -> bool:
    digits = sum(each in "0123456789" for each in text)
    return (
        digits >= 1
        and re.search(r"\d[OoIl\u041e\u043e\u0417\u03bf]\d|\d[Oo\u041e\u043e]+\b|^[Il\u0417\u0406]\d{2}", text)
        is not None
    )


def _foreign_twins(completion: str) -> list[str]:
    """Words made only of twins, in a text that is otherwise Latin: a whole answer spelt in another script."""
    foreign = [word for word in WORD.findall(completion) if not any(each.isascii() for each in word)]
    twins = [word for word in foreign if len(word) > 1 and all(each in LOOK_ALIKE for each in word)]
    return twins if len(twins) == len([w for w in foreign if any(0x370 <= ord(c) <= 0x52F for c in w)]) else []
