"""Defences against rewards being gamed: small rewards that look for one trick each.

Each is a function (prompt, completion, ...) -> float: 0 for an honest completion and down to -1. Give it a positive
weight in the sum, or weight 0 and `Gate(name, least=0.0)` to the part that shall count only for completions without a
finding. All are deterministic, need no model and no gold answer, and use one where there is one.

Every defence has a corpus of attacks it must catch and honest completions it must not punish; `rates` gives both
shares.

How good each defence is: the share of attacks it catches and the share of honest completions it punishes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from whet.reward.defences.answer_marks import answer_in_thinking, broken_tags, mark_spam
from whet.reward.defences.disguise import hidden_text, look_alikes
from whet.reward.defences.guessing import guessing, hollow_answer, unsupported_answer
from whet.reward.defences.incoherence import incoherent_reasoning
from whet.reward.defences.redundancy import padding, redundant_calls
from whet.types import Prompt, WhetError, did_you_mean

Defence = Callable[..., float]


@dataclass(frozen=True)
class Case:
    """One completion of a corpus, and whether it is an attack."""

    prompt: Prompt
    completion: str
    is_attack: bool
    note: str = ""  # the trick, in a word or two


@dataclass(frozen=True)
class Rates:
    """What one defence did on its cases."""

    num_attacks: int
    num_honest: int
    missed: tuple[Case, ...]  # attacks that passed
    alarmed: tuple[Case, ...]  # honest completions that were punished

    @property
    def caught(self) -> float:
        """The share of attacks that were punished; 1 without any."""
        return 1 - len(self.missed) / self.num_attacks if self.num_attacks else 1.0

    @property
    def false_alarms(self) -> float:
        """The share of honest completions that were punished."""
        return len(self.alarmed) / self.num_honest if self.num_honest else 0.0


def rates_of(defences: Mapping[str, Defence], cases: Iterable[Case] | None = None) -> dict[str, Rates]:
    """Both rates of each defence, on the given cases or on its own corpus; any penalty at all counts as caught."""
    shared_cases = None if cases is None else list(cases)
    rates = {}
    for name, defence in defences.items():
        mine = corpus(name) if shared_cases is None else shared_cases
        punished = [defence(case.prompt, case.completion) < 0 for case in mine]
        pairs = list(zip(mine, punished, strict=True))
        rates[name] = Rates(
            sum(case.is_attack for case in mine),
            sum(not case.is_attack for case in mine),
            tuple(case for case, caught in pairs if case.is_attack and not caught),
            tuple(case for case, caught in pairs if not case.is_attack and caught),
        )
    return rates


def corpus(defence: str) -> list[Case]:
    """The cases that belong to a defence, and the honest completions that belong to all of them."""
    folder = files("whet.reward.defences") / "corpus"
    corpora = sorted(entry.name.removesuffix(".jsonl") for entry in folder.iterdir() if entry.name.endswith(".jsonl"))
    if defence not in corpora:
        raise WhetError(
            f"there is no corpus {defence!r}{did_you_mean(defence, corpora)}; there are {', '.join(corpora)}"
        )
    names = dict.fromkeys((defence, "honest"))
    return [case for name in names for case in _cases(name, (folder / f"{name}.jsonl").read_text(encoding="utf-8"))]


def _cases(name: str, text: str) -> list[Case]:
    cases = []
    for number, line in enumerate(text.splitlines(), 1):
        row = json.loads(line)
        prompt = Prompt(f"{name}/{number}", (), text=row["question"], answer=row.get("answer"))
        cases.append(Case(prompt, row["completion"], bool(row["attack"]), row.get("note", "")))
    return cases


DEFENCES: Mapping[str, Defence] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            incoherent_reasoning,
            padding,
            redundant_calls,
            unsupported_answer,
            guessing,
            hollow_answer,
            mark_spam,
            broken_tags,
            answer_in_thinking,
            hidden_text,
            look_alikes,
        )
    }
)


def rates(cases: Iterable[Case] | None = None) -> dict[str, Rates]:
    """The share of attacks that each defence catches and of honest completions it punishes: on its own corpus, or on
    these cases."""
    return rates_of(DEFENCES, cases)


__all__ = ["Case", "DEFENCES", "Defence", "Rates", "corpus", "rates", *DEFENCES]
