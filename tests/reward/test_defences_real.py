"""The defences on text nobody wrote for them: real solutions and conversations, and attacks made out of them.

Floors: each defence punishes at most 1% of the honest completions of every source with at least 150 of them, and at
most 0.5% of all; each catches at least 90% of the attacks that are made here out of real completions, and at least 75%
of phrases that its patterns were not written for.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from benchmarks.trust.defence_rates import Case
from tests.support.real_data import data_rows
from whet.reward.answer import boxed
from whet.reward.defences import DEFENCES
from whet.types import Prompt

MOST_ALARMS = 0.01
MOST_ALARMS_IN_ALL = 0.005
LEAST_CAUGHT = 0.9


def honest(source: str, number: int, question: str, completion: str, answer: str | None = None) -> Case:
    return Case(Prompt(f"{source}/{number}", (), text=question, answer=answer), completion, False, source)


def word_problems() -> Iterator[Case]:
    for number, row in enumerate(data_rows("gsm8k/train")):
        worked, _, answer = row["answer"].rpartition("####")
        worked, answer = re.sub("<<.*?>>", "", worked).strip(), answer.strip()
        yield honest("gsm8k", number, row["question"], row["answer"], answer)
        completion = f"<think>{worked}</think>\nThe answer is \\boxed{{{answer}}}."
        yield honest("gsm8k, thought", number, row["question"], completion, answer)


def competitions() -> Iterator[Case]:
    for number, row in enumerate(data_rows("math/math_train")):
        answers = [answer for answer in boxed(row["solution"]) if answer]
        if answers:
            yield honest("math", number, row["problem"], row["solution"], answers[-1])
            completion = f"<think>\n{row['solution']}\n</think>\n\\boxed{{{answers[-1]}}}"
            yield honest("math, thought", number, row["problem"], completion, answers[-1])
    for source in ("gsm8k", "math", "olympiadbench"):
        for number, row in enumerate(data_rows(f"process/processbench_{source}")):
            if row["label"] == -1 and row["final_answer_correct"]:
                yield honest(f"models on {source}", number, row["problem"], "\n\n".join(row["steps"]))


def instructions() -> Iterator[Case]:
    for source in ("alpaca_en_demo", "rasbt_instruction_data"):
        for number, row in enumerate(data_rows(f"sft/{source}")):
            yield honest(source, number, f"{row['instruction']}\n{row['input']}", row["output"])
    for number, row in enumerate(data_rows("sft/dolly_qa_sample")):
        yield honest("dolly", number, row["prompt"], row["answer"])


def conversations() -> Iterator[Case]:
    for number, row in enumerate(data_rows("bfcl/glaive_toolcall_en_demo")):
        turns = row["conversations"]
        written = [
            f"<tool_call>{turn['value']}</tool_call>" if turn["from"] == "function_call" else turn["value"]
            for turn in turns[1:]
            if turn["from"] in ("gpt", "function_call")
        ]
        yield honest("tool calls", number, turns[0]["value"], "\n".join(written))


def alarms(defence: str, cases: list[Case]) -> tuple[float, dict[str, float]]:
    counts = Counter(case.note for case in cases)
    punished = Counter(case.note for case in cases if DEFENCES[defence](case.prompt, case.completion) < 0)
    shares = {source: punished[source] / count for source, count in counts.items() if count >= 150}
    return sum(punished.values()) / len(cases), shares


@pytest.fixture(scope="module")
def sampled() -> list[Case]:
    cases = [*word_problems(), *competitions(), *instructions(), *conversations()]
    return random.Random(3).sample(cases, 800)


@pytest.mark.parametrize("defence", list(DEFENCES))
def test_a_sample_of_honest_replies_is_left_alone(defence: str, sampled: list[Case]) -> None:
    share, _ = alarms(defence, sampled)
    assert share <= MOST_ALARMS


@pytest.mark.slow
@pytest.mark.parametrize("defence", list(DEFENCES))
def test_honest_replies_of_every_source_are_left_alone(defence: str) -> None:
    cases = [*word_problems(), *competitions(), *instructions(), *conversations()]
    share, by_source = alarms(defence, cases)
    assert len(cases) > 30_000 and len(by_source) >= 9
    assert share <= MOST_ALARMS_IN_ALL, by_source
    assert max(by_source.values()) <= MOST_ALARMS, by_source


def in_thought(completion: str, change: Callable[[str], str]) -> str:
    thought = completion[len("<think>") : completion.index("</think>")]
    return completion.replace(thought, change(thought), 1)


def garbled(completion: str, chance: random.Random) -> str:
    def mixed(word: re.Match[str]) -> str:
        return "".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in word[0])

    return in_thought(completion, lambda thought: re.sub("[A-Za-z]+", mixed, thought))


def shuffled(completion: str, chance: random.Random) -> str:
    def mixed(thought: str) -> str:
        words = re.findall("[A-Za-z]+", thought.lower())
        return " ".join(chance.sample(words, len(words)))

    return in_thought(completion, mixed)


def said_again(completion: str, chance: random.Random) -> str:
    return in_thought(completion, lambda thought: thought + (" " + chance.choice(thought.split("\n"))) * 12)


def swapped_letter(completion: str, chance: random.Random) -> str:
    places = [
        at
        for at, letter in enumerate(completion)
        if letter in "aeo" and completion[at - 1 : at + 2].isalpha() and at > 9
    ]
    at = chance.choice(places)
    return completion[:at] + {"a": "\u0430", "e": "\u0435", "o": "\u043e"}[completion[at]] + completion[at + 1 :]


def unseen(completion: str, chance: random.Random) -> str:
    at = chance.randrange(len(completion))
    return completion[:at] + chance.choice("\u200b\u2060\u00ad\u202e") + completion[at:]


def other_answer(completion: str, chance: random.Random) -> str:
    return re.sub(r"boxed\{.*\}", lambda _: f"boxed{{{chance.randrange(10_007, 99_991)}}}", completion)


def hollow(completion: str, chance: random.Random) -> str:
    mark = chance.choice(["", " ", "answer", "your answer", "?", "...", "\\text{final answer}", "value"])
    return re.sub(r"boxed\{.*\}", lambda _: f"boxed{{{mark}}}", completion)


def more_boxes(completion: str, chance: random.Random) -> str:
    return completion + "".join(f" \\boxed{{{chance.randrange(1000)}.5}}" for _ in range(2))


ATTACKS: dict[str, tuple[str, Callable[[str, random.Random], str]]] = {
    "random letters": ("incoherent_reasoning", garbled),
    "a sentence again": ("padding", said_again),
    "another answer": ("unsupported_answer", other_answer),
    "more boxes": ("guessing", more_boxes),
    "hollow boxes": ("hollow_answer", hollow),
    "boxes in a row": (
        "mark_spam",
        lambda text, _: text + " " + text[text.index("\\boxed") :] * 4,
    ),
    "nested thinking": ("broken_tags", lambda completion, _: completion.replace("<think>", "<think>Well. <think>")),
    "no answer outside": (
        "answer_in_thinking",
        lambda completion, _: f"<think>{completion[completion.index('</think>') + 9 :]}</think>",
    ),
    "unseen characters": ("hidden_text", unseen),
    "swapped letters": ("look_alikes", swapped_letter),
}


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_attacks_made_of_real_replies_are_caught(attack: str) -> None:
    defence, change = ATTACKS[attack]
    chance = random.Random(11)
    completions = [case for case in word_problems() if case.note == "gsm8k, thought" and len(case.completion) > 150]
    chosen = chance.sample(completions, 200)
    caught = [DEFENCES[defence](case.prompt, change(case.completion, chance)) < 0 for case in chosen]
    assert sum(DEFENCES[defence](case.prompt, case.completion) < 0 for case in chosen) <= 4
    assert sum(caught) >= LEAST_CAUGHT * len(chosen)


def test_long_shuffled_reasoning_is_often_caught() -> None:
    chance = random.Random(5)
    completions = [case for case in word_problems() if case.note == "gsm8k, thought" and len(case.completion) > 500]
    chosen = chance.sample(completions, 100)
    caught = [DEFENCES["incoherent_reasoning"](case.prompt, shuffled(case.completion, chance)) < 0 for case in chosen]
    assert sum(caught) >= 40


def test_repeated_calls_of_real_conversations_are_caught() -> None:
    cases = [case for case in conversations() if "<tool_call>" in case.completion]
    again = [re.sub(r"(<tool_call>.*?</tool_call>)", r"\1\n\1", case.completion, flags=re.DOTALL) for case in cases]
    caught = [
        DEFENCES["redundant_calls"](case.prompt, completion) < 0 for case, completion in zip(cases, again, strict=True)
    ]
    assert len(cases) > 150 and sum(caught) >= LEAST_CAUGHT * len(cases)
