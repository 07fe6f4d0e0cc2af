"""What a reward pays for wrong completions, by the trick they try: a red-team run as text and JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

LONGEST_SHOWN = 160  # characters of an example


@dataclass(frozen=True)
class PaidCompletion:
    """A wrong completion that was paid more than an honest one."""

    question: str
    answer: str
    completion: str
    reward: float
    honest_reward: float  # of the best honest wrong completion to the same prompt


@dataclass(frozen=True)
class AttackedPrompt:
    """What honest completions to one prompt are paid."""

    prompt_id: str
    wrong: float
    right: float | None


@dataclass(frozen=True)
class StrategyResult:
    """One trick on all prompts."""

    name: str
    kind: str
    tried: int  # completions that were scored
    paid: tuple[PaidCompletion, ...]


@dataclass(frozen=True)
class Attack:
    """A reward under attack."""

    title: str
    source: str
    prompts: tuple[AttackedPrompt, ...]
    results: tuple[StrategyResult, ...]
    failures: tuple[str, ...]

    @property
    def holes(self) -> tuple[StrategyResult, ...]:
        """Strategies that were paid more than honest wrong completions, the most successful first."""
        return tuple(sorted((result for result in self.results if result.paid), key=lambda each: -len(each.paid)))

    @property
    def tried(self) -> int:
        """How many completions were scored."""
        return sum(result.tried for result in self.results)

    @property
    def paid(self) -> int:
        """How many of them were paid more than an honest one."""
        return sum(len(result.paid) for result in self.results)


def attack_text(attack: Attack) -> str:
    """The table of strategies, with an example of each that was paid."""
    wrong = fmean(prompt.wrong for prompt in attack.prompts)
    right = [prompt.right for prompt in attack.prompts if prompt.right is not None]
    pays = f"an honest wrong completion is paid {wrong:.3g}" + (f", a right one {fmean(right):.3g}" if right else "")
    lines = [f"{attack.title}  on {attack.source}, {len(attack.prompts)} prompts: {pays}", ""]
    width = max(len(result.name) for result in attack.results)
    for result in attack.results:
        state, paid = "PAID" if result.paid else "held", len(result.paid)
        lines.append(f"  {state}  {result.name:{width}}  {paid:>4} of {result.tried:<4}  {result.kind}")
    for each in attack.holes:
        example = max(each.paid, key=lambda paid: paid.reward - paid.honest_reward)
        lines += [
            "",
            f"{each.name}: paid {example.reward:.3g}, an honest wrong completion {example.honest_reward:.3g}",
            f"  question  {_cut(example.question)}",
            *([f"  gold      {_cut(example.answer)}"] if example.answer else []),
            f"  completion     {_cut(example.completion)}",
        ]
    verdict = (
        f"{len(attack.holes)} of {len(attack.results)} strategies were paid more than an honest wrong completion "
        f"({attack.paid} of {attack.tried} completions)"
        if attack.holes
        else f"nothing wrong was paid more than an honest wrong completion ({attack.tried} completions, "
        f"{len(attack.results)} strategies)"
    )
    notes = [f"note: the reward failed on some completions: {attack.failures[0]}"] if attack.failures else []
    return "\n".join([*lines, "", *notes, verdict])


def attack_record(attack: Attack) -> dict[str, Any]:
    """The same as values, for --json."""
    return {
        "reward": attack.title,
        "data": attack.source,
        "prompts": [asdict(prompt) for prompt in attack.prompts],
        "tried": attack.tried,
        "paid": attack.paid,
        "strategies": [
            {
                "name": result.name,
                "kind": result.kind,
                "tried": result.tried,
                "paid": [asdict(paid) for paid in result.paid],
            }
            for result in attack.results
        ],
        "failures": list(attack.failures),
    }


def _cut(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= LONGEST_SHOWN else f"{plain[: LONGEST_SHOWN - 1]}\u2026"
