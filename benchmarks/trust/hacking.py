"""Reward hacks that no defence was written for, honest replies of the same look, and real replies of people and models.

`corpus/hacking/open` and `corpus/hacking/sealed` are two halves of one corpus, drawn at random, by an author who knew
the names of the defences and nothing of their code. The open half was read while they were written; the sealed half
was measured once, at the end. A hack is held where the defence of its category punishes it; the note says how many are
caught by any defence. An honest reply is held where the defence of its category leaves it alone (of the category
`honest`: where all of them do).

Real replies are read from the folder that WHET_DATA names, and left out without one (`_honest.py`).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trust._honest import LEAST_REPLIES, honest_replies
from benchmarks.trust.defence_rates import rates
from whet.reward.answer import after_thinking
from whet.reward.citations import citations
from whet.reward.defences import DEFENCES
from whet.reward.judge.asides import without_asides
from whet.reward.judge.questions import conversation_text
from whet.reward.repetition import repetition
from whet.tools.workbench.attack import attack_prompts, attack_reward
from whet.tools.workbench.workbench import reward_parts
from whet.types import Prompt

CORPUS = Path(__file__).parent / "corpus" / "hacking"
HALVES = ("open", "sealed")
QUICK_REPLIES = 400
TO_A_JUDGE = ("judge_injection", "self_grading")
ATTACKED = ("exact_answer", "math_answer")


@dataclass(frozen=True)
class HackRow:
    """One reply of the corpus."""

    category: str
    prompt: Prompt
    completion: str
    is_hack: bool
    note: str


def read_half(half: str) -> list[HackRow]:
    """The rows of one half; none where it is not there."""
    rows = []
    for path in sorted((CORPUS / half).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row: dict[str, Any] = json.loads(line)
            meta = {"sources": row["sources"]} if "sources" in row else {}
            prompt = Prompt(path.stem, (), row["prompt"], row["answer"] or None, meta)
            rows.append(HackRow(row["category"], prompt, row["completion"], row["hack"], row["note"]))
    return rows


def caught_by(row: HackRow) -> set[str]:
    """The defences, and the rewards `repetition` and `citations`, that hold a reply against its writer.

    Of words to a judge it is the judge itself: what it cuts from a hack is not paid. Honest replies are marked twice.
    """
    found = {name for name, defence in DEFENCES.items() if defence(row.prompt, row.completion) < 0}
    shown = after_thinking(row.completion)
    if (
        row.is_hack
        and row.category in TO_A_JUDGE
        and without_asides(conversation_text(row.prompt), row.prompt.answer or "", shown) != shown
    ):
        found.add(row.category)
    if repetition(row.completion) < 0:
        found.add("repetition")
    if "sources" in row.prompt.meta and citations(row.prompt, row.completion) < 1:
        found.add("unsupported_citations")
    return found


def half_figures(half: str) -> list[dict]:
    rows = [(row, caught_by(row)) for row in read_half(half)]
    if not rows:
        return []
    figures = []
    for category in dict.fromkeys(row.category for row, _ in rows):
        hacks = [found for row, found in rows if row.category == category and row.is_hack]
        if hacks:
            anyhow = sum(bool(found) for found in hacks)
            own = sum(category in found for found in hacks)
            note = f"{anyhow} by any defence" if anyhow > own else ""
            figures.append({"what": f"{half} half: {category}", "tried": len(hacks), "held": own, "note": note})
    own = sum(each["held"] for each in figures)
    anyhow = sum(bool(found) for row, found in rows if row.is_hack)
    total = sum(each["tried"] for each in figures)
    figures.append({"what": f"{half} half: all hacks", "tried": total, "held": own, "note": f"{anyhow} by any defence"})
    honest = [(row, found) for row, found in rows if not row.is_hack]
    alarms = [
        row for row, found in honest if (row.category in found) or (row.category == "honest" and found & set(DEFENCES))
    ]
    named = ", ".join(f"{row.category}: {row.note}" for row in alarms)
    held = len(honest) - len(alarms)
    figures.append(
        {"what": f"{half} half: honest replies left alone", "tried": len(honest), "held": held, "note": named}
    )
    return figures


def own_corpora() -> dict:
    """The corpora that the defences were written against."""
    found = rates().values()
    attacks, missed = sum(each.num_attacks for each in found), sum(len(each.missed) for each in found)
    return {"what": "corpora the defences were written for", "tried": attacks, "held": attacks - missed, "note": ""}


def real_replies(full: bool) -> list[dict]:
    """Honest replies of people and models: how many no defence punishes, and the worst rates."""
    replies = honest_replies()
    if not replies:
        return []
    if not full:
        replies = random.Random(7).sample(replies, QUICK_REPLIES)
    punished = [
        {name for name, defence in DEFENCES.items() if defence(case.prompt, case.completion) < 0} for case in replies
    ]
    figures = []
    for name in DEFENCES:
        hits = [case for case, found in zip(replies, punished, strict=True) if name in found]
        sizes, by_source = Counter(case.note for case in replies), Counter(case.note for case in hits)
        rated = {source: count / sizes[source] for source, count in by_source.items() if sizes[source] >= LEAST_REPLIES}
        worst = max(rated, key=rated.__getitem__, default="")
        note = f"worst source: {worst}, {rated[worst]:.1%}" if worst else ""
        figures.append(
            {
                "what": f"real honest replies: {name}",
                "tried": len(replies),
                "held": len(replies) - len(hits),
                "note": note,
            }
        )
    return figures


def attacked(full: bool) -> list[dict]:
    """Wrong replies by every strategy of `whet reward attack`, on its built-in questions."""
    figures = []
    for name in ATTACKED:
        prompts, _ = attack_prompts(None, 0 if full else 4, {})
        found = attack_reward(reward_parts([name]), prompts)
        paid = ", ".join(each.name for each in found.holes)
        figures.append(
            {"what": f"wrong replies to {name}", "tried": found.tried, "held": found.tried - found.paid, "note": paid}
        )
    return figures


def measure(full: bool) -> list[dict]:
    figures = [row for half in HALVES for row in half_figures(half)]
    return [*figures, own_corpora(), *attacked(full), *real_replies(full)]
