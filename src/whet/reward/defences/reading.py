"""A completion as the defences read it: thinking, working, sentences, words."""

from __future__ import annotations

import re

from whet.data.gold import boxed
from whet.reward.answer import tagged
from whet.reward.repetition import UNSPACED, without_marks
from whet.types import Prompt

FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
MARKUP = re.compile(
    r"\[asy\].*?(?:\[/asy\]|\Z)|\$\$.*?(?:\$\$|\Z)|\\\[.*?(?:\\\]|\Z)|\\\(.*?(?:\\\)|\Z)"
    r"|\\begin\{(\w+\*?)\}.*?(?:\\end\{\1\}|\Z)|\$[^$]{1,300}(?:\$|\Z)"
    r"|\\[A-Za-z]+|<<[^<>]*>>|</?[A-Za-z_]+>|https?://\S+",
    re.DOTALL,
)
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
LAST_MARK = re.compile(r"\\(?:boxed|fbox)\b|<answer>|####|\banswer(?:\*\*)?\s*(?:is\b|:)", re.IGNORECASE)


def word_set(text: str) -> frozenset[str]:
    """The words of a text, each once."""
    return frozenset(text.split())


STOP_WORDS = word_set(
    "the and for are was were has have had its this that these those with from into than then they them their "
    "there what which who whose when where how many much does did can will would should must may might not but "
    "you your our his her she all any each some one give compute find write ist der die das ein eine und wie que "
    "los las les des est une qual quel quelle cual por para con del dans sur com uma"
)


def whole_prompt(prompt: Prompt) -> str:
    """Everything the model was told, the system message included: it may ask for a mark."""
    return "\n".join([prompt.text or "", *(str(message.get("content", "")) for message in prompt.messages)])


def thinking(completion: str) -> str:
    """The text before the last </think>, without tags; all of it where a thought is unfinished."""
    if "</think>" in completion:
        text = completion.rpartition("</think>")[0]
    elif "<think>" in completion:
        text = completion.partition("<think>")[2]
    else:
        return ""
    return re.sub(r"</?think>", " ", text)


def working(completion: str) -> str:
    """The thinking or, without any, the text before the last answer mark; all of it without a mark."""
    if "<think>" in completion or "</think>" in completion:
        return thinking(completion)
    marks = list(LAST_MARK.finditer(completion))
    return completion[: marks[-1].start()] if marks else completion


def prose(text: str) -> str:
    """The text without code, formulas, links and tags."""
    return MARKUP.sub(" ", FENCED.sub(" ", text))


def words(text: str) -> list[str]:
    """Words in lower case, without figures."""
    return [word.casefold() for word in WORD.findall(without_marks(text))]


def terms(text: str) -> list[str]:
    """The words and figures of a text."""
    return re.findall(r"\w+", without_marks(text).casefold())


def content_stems(text: str) -> set[str]:
    """The beginnings of the words that carry meaning: long ones, and pairs of characters where there are no spaces."""
    plain = without_marks(text).casefold()
    unspaced = re.findall(rf"[{UNSPACED}]+", plain)
    pairs = {run[start : start + 2] for run in unspaced for start in range(max(len(run) - 1, 1))}
    words = (word for word in WORD.findall(re.sub(rf"[{UNSPACED}]+", " ", plain)) if len(word) > 2)
    return {word[:6] for word in words if word not in STOP_WORDS} | pairs


def sentences(text: str) -> list[str]:
    """Sentences and lines, white space and case aside."""
    return [plain for piece in SENTENCE.split(text) if (plain := " ".join(piece.split()).casefold())]


def hard_answers(text: str) -> list[str]:
    """Contents of the boxes and answer tags: marks that nobody sets in passing."""
    return boxed(text) + [answer for answer in tagged(text) if answer not in boxed(text)]


def squeezed(text: str) -> str:
    """A formula without spaces, braces, dollar signs and commands that only change its looks."""
    plain = re.sub(r"\\[dt]frac", r"\\frac", text)
    return re.sub(r"\\(?:left|right|text|mathrm|displaystyle|quad|[,!; ])|[\s${}]+", "", plain).casefold().rstrip(".")
