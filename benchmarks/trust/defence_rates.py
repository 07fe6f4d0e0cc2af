"""How good each defence is: the share of attacks it catches and the share of honest completions it punishes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from whet.reward.defences import DEFENCES, Defence
from whet.types import Prompt, WhetError, did_you_mean


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
    folder = Path(__file__).parent / "corpus" / "defences"
    corpora = sorted(entry.name.removesuffix(".jsonl") for entry in folder.glob("*.jsonl"))
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


def rates(cases: Iterable[Case] | None = None) -> dict[str, Rates]:
    """Both rates of every defence: on its own corpus, or on these cases."""
    return rates_of(DEFENCES, cases)
