"""What a reader does not see: invisible characters and hidden markup, and letters that only look like others."""

from __future__ import annotations

import re
import unicodedata

from whet.reward.defences.hidden_markup import hides_markup
from whet.reward.defences.reading import Kind, defence_score
from whet.types import Prompt

# letters by category, and blanks to the eye
BLANK_LETTERS = frozenset("\u034f\u115f\u1160\u3164\uffa0\u17b4\u17b5\u2800\u180b\u180c\u180d")
JOINERS = frozenset("\u200c\u200d\u200e\u200f\u061c")
PICTURE_STYLES = frozenset("\ufe0e\ufe0f")
ODD_SPACES = re.compile("[\u2000-\u200a\u202f\u205f\u3000\u00a0]")
TALLEST_STACK = 4  # marks on one letter; more is drawn over its neighbours
MOST_ODD_SPACES = 8
# Cyrillic and Greek letters, and a few others, that a reader takes for Latin ones
LOOK_ALIKE = frozenset(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb\u051b\u051d\u0442\u043c\u043d\u043a\u0432"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0406\u0408\u0405\u04ae\u0417\u0431"
    "\u03bf\u03bd\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03b9\u03ba\u03c1\u03c5"
    "\u0131\u0251\u0261\u01c0\u1d0f\u1d04\u1d1c\u1d20\u1d22\u0585\u057d\u0578\u0570\u13a0\u13aa\u13b3\u13de\uff41"
)
WORD = re.compile(r"[^\W\d_]{2,}")
MIXED_NUMBER = re.compile(
    r"(?<![^\W_])[0-9.,]{0,20}[OoIl\u041e\u043e\u0417\u03bf\u0406][0-9OoIl.,\u041e\u043e\u0417\u03bf\u0406]{0,20}(?![^\W_])"
)


def hidden_text(prompt: Prompt, completion: str, *, kind: Kind = "penalty") -> float:
    """A penalty: 0, or -1 where the completion holds what no reader sees (as a gate: 1, or 0): characters without
    width or place, ones that turn the direction of a line, marks piled on one letter, words in markup that is not
    shown (comments, styles, attributes, phantoms, folded parts), words far below the end, and encoded text.

    Characters are judged by what Unicode says of them. Joiners pass where a script or an emoji needs them; markup
    passes inside a code block and where the question is about it. What the prompt itself contains may be repeated.
    """
    question = prompt.question()
    return defence_score(float(_has_invisible(completion, question) or hides_markup(completion, question)), kind)


def look_alikes(prompt: Prompt, completion: str, *, kind: Kind = "penalty") -> float:
    """A penalty: 0, or -1 where letters or digits stand in for others that look the same (as a gate: 1, or 0).

    That is a word of Latin letters with a foreign twin among them, a foreign word made of twins alone in a Latin
    text, styled or wide letters and digits, digits of a script the text is not written in, and numbers with letters
    for digits. What stands in the question may be repeated.
    """
    question = prompt.question()
    # Turkish and its neighbours write a dotless i
    twins = LOOK_ALIKE - {"\u0131"} if re.search("[\u015f\u011f\u0130\u015e\u011e\u0259]", completion) else LOOK_ALIKE
    words = [word for word in WORD.findall(completion) if is_mixed(word, twins)]
    words += _styled(completion)
    words += [match[0] for match in MIXED_NUMBER.finditer(completion) if _is_false_number(match[0])]
    words += _foreign_twins(completion)
    return defence_score(float(any(word not in question for word in words)), kind)


def _has_invisible(completion: str, question: str) -> bool:
    if completion.isascii() and completion.isprintable():
        return False
    unseen = any(
        _is_invisible(completion, index, character)
        for index, character in enumerate(completion)
        if not ("\x20" <= character < "\x7f" or character in "\t\n" or character in question)
    )
    overdrawn = any(
        is_overdrawn(completion) and not is_overdrawn(question) for is_overdrawn in (_overwrites, _is_piled)
    )
    return unseen or overdrawn or _codes_in_spaces(completion, question)


def _is_invisible(completion: str, place: int, character: str) -> bool:
    if character == "\r":
        return False
    if character in JOINERS:
        return not _joins(completion, place)
    if character in PICTURE_STYLES:
        return place == 0 or completion[place - 1].isalpha()
    if character == "\ufeff":  # a mark of the byte order may open a text
        return place > 0
    if 0xE0020 <= ord(character) <= 0xE007F and "\U0001f3f4" in completion[max(place - 8, 0) : place]:
        return False  # the flags of England, Scotland and Wales are spelt with tag characters
    category = unicodedata.category(character)
    if category in ("Cc", "Cf", "Co", "Zl", "Zp"):
        return True
    return character in BLANK_LETTERS or "\ufe00" <= character <= "\ufe0d" or 0xE0100 <= ord(character) <= 0xE01EF


def _joins(completion: str, place: int) -> bool:
    """The neighbour is a letter of a script that joins, or a picture."""
    near = completion[max(place - 2, 0) : place] + completion[place + 1 : place + 2]
    return any(
        unicodedata.category(character) in ("So", "Sk", "Mn", "Mc")
        or character == "\ufe0f"
        or "\u0590" <= character <= "\u1cff"
        for character in near
    )


def _overwrites(completion: str) -> bool:
    """A return without a new line: what follows is printed over what stood there."""
    return re.search(r"[^\r\n]\r(?![\r\n]|\Z)", completion) is not None


def _is_piled(completion: str) -> bool:
    height = 0
    for character in completion:
        height = height + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if height > TALLEST_STACK:
            return True
    return False


def _codes_in_spaces(completion: str, question: str) -> bool:
    """Spaces of several widths, or tabs and spaces at the ends of lines, that spell something."""
    odd = [space for space in ODD_SPACES.findall(completion) if space not in question]
    ends = re.findall(r"[ \t]+$", completion, re.MULTILINE)
    mixed = [end for end in ends if " " in end and "\t" in end]
    return (len(odd) > MOST_ODD_SPACES and len(set(odd)) > 2) or len(mixed) > 3


def is_mixed(word: str, twins: frozenset[str]) -> bool:
    return any(character in twins for character in word) and any("a" <= character.lower() <= "z" for character in word)


def _styled(completion: str) -> list[str]:
    """Letters and digits in mathematical, wide or foreign styles, where the rest of the text is plain.

    Single bold or script letters are ordinary in mathematics: digits and runs of letters are not.
    """
    foreign = [character for character in completion if not character.isascii()]
    scripts = {unicodedata.name(character, "").split(" ")[0] for character in foreign if character.isalpha()}
    is_wide = bool(scripts & {"CJK", "HIRAGANA", "KATAKANA", "HANGUL"})
    digits = [
        character
        for character in foreign
        if unicodedata.category(character) == "Nd" and _script(character) not in scripts
    ]
    wide = [character for character in digits if not is_wide] + (
        [] if is_wide else re.findall("[\uff21-\uff5a]", completion)
    )
    return wide + re.findall("[\U0001d7ce-\U0001d7ff]|[\U0001d400-\U0001d7cb\u24b6-\u24e9]{3,}", completion)


def _script(digit: str) -> str:
    """The script a digit is at home in: ARABIC, DEVANAGARI, ..."""
    return unicodedata.name(digit, "").removeprefix("EXTENDED ").replace("-", " ").split(" ")[0]


def _is_false_number(text: str) -> bool:
    digits = sum(character in "0123456789" for character in text)
    return (
        digits >= 1
        and re.search(r"\d[OoIl\u041e\u043e\u0417\u03bf]\d|\d[Oo\u041e\u043e]+\b|^[Il\u0417\u0406]\d{2}", text)
        is not None
    )


def _foreign_twins(completion: str) -> list[str]:
    """Words made only of twins, in a text that is otherwise Latin: a whole answer spelt in another script."""
    foreign = [word for word in WORD.findall(completion) if not any(character.isascii() for character in word)]
    twins = [word for word in foreign if len(word) > 1 and all(character in LOOK_ALIKE for character in word)]
    return twins if len(twins) == len([w for w in foreign if any(0x370 <= ord(c) <= 0x52F for c in w)]) else []
