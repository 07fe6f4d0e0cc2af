"""A situation from flags or questions on a terminal, and the advice as text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from whet.record.text import WIDTH, folded
from whet.tools.advice.guide import FILES, GOALS, Advice, Situation
from whet.types import WhetError

NO_ANSWERS = (
    "no flag was given and there is no terminal to ask on; give some of --signal (verifiable, preferences, labels, "
    "demonstrations, reward_model), --model-size BILLIONS, --moe, --memory GIGABYTES, --completion-tokens N, "
    "--several-updates, --one-completion, --agent, --goal (pass@1, pass@k), --rows N, such as: "
    "whet advise --signal verifiable --model-size 7 --memory 80"
)
SIGNAL_WORDS = {
    "verifiable": "a checker: right answers, tests, rules",
    "preferences": "people or a judge preferred one completion to another (pairs)",
    "labels": "thumbs up or down on single completions",
    "demonstrations": "good completions to imitate",
    "reward_model": "a learned reward model",
}


def _samples(answers: Mapping[str, Any]) -> bool:
    return answers["signal"] not in FILES


def _always(answers: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True)
class Question:
    """One field of the situation: numbered choices, the first being the default, or a number that may be left open."""

    field: str
    text: str
    choices: tuple[tuple[str, Any], ...] = ()
    number: Callable[[str], float] = float
    applies: Callable[[Mapping[str, Any]], bool] = _always


QUESTIONS = (
    Question("signal", "What tells a good completion?", tuple((words, name) for name, words in SIGNAL_WORDS.items())),
    Question("model_billions", "How many billion weights has the model?"),
    Question("memory_gigabytes", "How many gigabytes of memory has the device?"),
    Question("mixture_of_experts", "Is it a mixture of experts?", (("no", False), ("yes", True)), applies=_samples),
    Question(
        "group_sampling",
        "Can you sample several completions to each prompt?",
        (("yes", True), ("no, one completion per prompt", False)),
        applies=_samples,
    ),
    Question("completion_tokens", "How many tokens may a completion have?", number=int, applies=_samples),
    Question(
        "several_updates",
        "How often is a batch of completions used?",
        (("once", False), ("several updates, or it comes from an older policy", True)),
        applies=_samples,
    ),
    Question(
        "turns",
        "One completion, or an agent over several turns?",
        (("one completion", False), ("an agent", True)),
        applies=_samples,
    ),
    Question(
        "goal",
        "What should be right?",
        (("the one completion (pass@1)", GOALS[0]), ("one of k completions (pass@k)", GOALS[1])),
        applies=_samples,
    ),
    Question("data_size", "How many rows of data are there?", number=int),
)


def situation_from(answers: Mapping[str, Any]) -> Situation:
    """The situation from the answers given; a field without one keeps its default."""
    fields = dict(answers)
    if "goal" in fields:
        fields["goal"] = str(fields["goal"]).replace("@", "_at_")
    return Situation(**fields)


def situation_from_flags(flags: Mapping[str, Any], terminal: bool) -> Situation | None:
    """From the flags given (None: not given), or else from questions; None if the user leaves with Ctrl-C."""
    answers = {field: value for field, value in flags.items() if value is not None}
    if answers:
        return situation_from(answers)
    if not terminal:
        raise WhetError(NO_ANSWERS)
    return ask()


def ask(read: Callable[[str], str] | None = None, write: Callable[[str], None] = print) -> Situation | None:
    """Put the questions one after another; an empty line takes the default. None on Ctrl-C or the end of input."""
    answers: dict[str, Any] = {}
    try:
        for question in QUESTIONS:
            if question.applies(answers):
                answers[question.field] = _answer(question, read or input, write)
    except (KeyboardInterrupt, EOFError):
        write("")
        return None
    return Situation(**answers)


def _answer(question: Question, read: Callable[[str], str], write: Callable[[str], None]) -> Any:
    write(question.text)
    for choice_number, (words, _) in enumerate(question.choices, 1):
        write(f"  {choice_number}  {words}")
    while True:
        text = read("  [1] " if question.choices else "  [not known] ").strip()
        if question.choices:
            if (text or "1") in map(str, range(1, len(question.choices) + 1)):
                return question.choices[int(text or 1) - 1][1]
            write(f"  give a number from 1 to {len(question.choices)}, or nothing for 1")
            continue
        if not text:
            return None
        try:
            number = question.number(text)
        except ValueError:
            number = 0
        if 0 < number < float("inf"):
            return number
        whole = "whole " if question.number is int else ""
        write(f"  give a {whole}number above 0, or nothing if you do not know")


def advice_record(situation: Situation, advice: Advice) -> dict[str, Any]:
    """Everything as plain values, for JSON."""
    return {"situation": asdict(situation), **asdict(advice)}


def advice_text(situation: Situation, advice: Advice) -> str:
    """The advice as a page for the terminal."""
    lines = [f"{advice.title} (whet train {advice.recommendation})", folded(f"for {_summary(situation)}", 4)]
    lines += _section("Why", advice.reasons)
    others = [
        f"{other.title} ({other.method if other.available else 'not in whet yet'}): {other.when}"
        for other in advice.alternatives
    ]
    lines += _section("Rather, when", others)
    lines += _section("Mind", advice.warnings)
    if advice.memory is not None:
        total = f"{advice.memory.gigabytes:.3g} GB in all; {advice.memory.verdict}"
        lines += _section("Memory", (*advice.memory.parts, total))
    lines += ["", "Run, with your own model and files:", f"  {advice.command}"]
    if advice.rehearsal is not None:
        lines += ["", "Try it first on the built-in model and task, as it stands:", f"  {advice.rehearsal}"]
    return "\n".join(lines)


def _summary(situation: Situation) -> str:
    parts = [SIGNAL_WORDS[situation.signal]]
    if situation.model_billions is not None:
        parts.append(f"{situation.model_billions:g} billion weights")
    if situation.mixture_of_experts:
        parts.append("a mixture of experts")
    if situation.memory_gigabytes is not None:
        parts.append(f"{situation.memory_gigabytes:g} GB")
    if _samples({"signal": situation.signal}):
        parts.append("several completions per prompt" if situation.group_sampling else "one completion per prompt")
        parts.append("several updates per batch" if situation.several_updates else "one update per batch")
        parts += [f"up to {situation.completion_tokens} tokens"] if situation.completion_tokens is not None else []
        parts += ["an agent"] if situation.turns else []
        parts += ["pass@k"] if situation.goal == GOALS[1] else []
    if situation.data_size is not None:
        parts.append(f"{situation.data_size} rows")
    return "; ".join(parts)


def _section(title: str, entries: tuple[str, ...] | list[str]) -> list[str]:
    wrapped = [
        textwrap.fill(entry, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
        for entry in entries
    ]
    return ["", title, *wrapped] if wrapped else []
