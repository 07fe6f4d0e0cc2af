"""Noise, loops and heaps of words are told from reasoning."""

from __future__ import annotations

import random
import string
import time

import pytest

from tests.support.for_every import for_every
from whet.reward.coherence import coherence, coherence_signals
from whet.types import Prompt

ASKED = Prompt("p", (), text="How many eggs does she sell each day, and how much does she earn with them?")
HONEST = [
    "Janet has 16 eggs a day. She eats three for breakfast and bakes muffins with four, so 16 - 3 - 4 = 9 are left. "
    "At 2 dollars each she makes 9 * 2 = 18 dollars every day at the market.",
    "Let x be the number of students. If each of them has 3 pens then there are 3x pens in total. We know that this is "
    "equal to 45, so x = 15. Therefore the class has 15 students, and each row of the room holds 5 of them.",
    "First I should find the area of the triangle. Its base is 10 and its height is 5, so the area is half of their "
    "product, which is 25. The question asks for the area of two such triangles, so the answer is 50.",
    "We need to be careful here: the train leaves at noon but the clock is one hour late. Hence the true time of "
    "departure is 1 pm, and after 3 hours of travel it arrives at 4 pm, unless it stops on the way, which it does not.",
]


def shuffled(text: str, seed: int) -> str:
    words = text.split()
    random.Random(seed).shuffle(words)
    return " ".join(words)


def letters(seed: int, alphabet: str = string.ascii_lowercase + "    ") -> str:
    return "".join(random.Random(seed).choice(alphabet) for _ in range(400))


@pytest.mark.parametrize("text", HONEST)
def test_honest_reasoning(text: str) -> None:
    assert coherence(ASKED, f"<think>{text}</think> 18") > 0.9
    assert coherence(ASKED, text) > 0.9
    assert coherence(ASKED, f"{text}</think> 18") > 0.9


@for_every(range(5))
def test_random_letters_and_characters_fail(seed: int) -> None:
    assert coherence(ASKED, f"<think>{letters(seed)}</think> 18") < 0.2
    assert coherence(ASKED, f"<think>{letters(seed, string.ascii_lowercase)}</think> 18") < 0.2
    assert coherence(ASKED, f"<think>{letters(seed, string.printable[:94])}</think> 18") < 0.2


def test_loops_heaps_of_words_and_nothing_fail() -> None:
    for text in ("wait, let me check. " * 30, "a" * 500, "hmm " * 100, ". " * 300, "\u25a0" * 300):
        assert coherence(ASKED, f"<think>{text}</think> 18") < 0.2
    assert coherence(ASKED, "<think> \n </think> 18") == 0.0
    assert coherence(ASKED, "") == 0.0
    heaps = [coherence(ASKED, shuffled(" ".join(HONEST), seed)) for seed in range(20)]
    assert sum(score < 0.5 for score in heaps) >= 19


def test_other_languages_and_formulas_are_not_punished() -> None:
    german = (
        "Zuerst muss ich die Anzahl der Eier berechnen. Sie hat am Tag sechzehn Eier und isst davon drei zum "
        "Fr\u00fchst\u00fcck; vier braucht sie f\u00fcr den Kuchen. Also bleiben neun Eier, die sie verkaufen kann."
    )
    chinese = "\u6bcf\u5929\u6709\u5341\u516d\u4e2a\u9e21\u86cb\uff0c\u5979\u5403\u4e09\u4e2a\u3002"
    plain = Prompt("p", (), text="2+2")
    for text in (german, chinese, "4+1=5;5-6=9;9*3=7", r"\frac{1}{2} + \frac{1}{3} = \frac{5}{6}"):
        assert coherence(plain, f"<think>{text}</think>") > 0.8


def test_signals_are_named_and_short_text_is_left_alone() -> None:
    named = {"characters", "repetition", "compression", "spelling", "common", "order"}
    assert set(coherence_signals(" ".join(HONEST))) == named
    assert coherence(ASKED, "<think>ok</think>") == 1.0
    worst = coherence_signals(letters(1), english=True)
    assert worst["spelling"] < 0.2 and worst["repetition"] == 1.0


def test_long_text_is_read_quickly() -> None:
    started = time.monotonic()
    coherence(ASKED, "<think>" + " ".join(HONEST) * 2000 + "</think>")
    assert time.monotonic() - started < 15
