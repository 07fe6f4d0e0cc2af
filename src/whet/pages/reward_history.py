"""The ledger of a reward as a table for a terminal. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from whet.record.text import headline, metric_text, number

WIDTH = 100
MOST_CHANGED = 6


def history_text(changes: Sequence[Mapping[str, Any]]) -> str:
    """Each change, oldest first: what it was, why, what was expected and what came of it."""
    blocks, last = [], None
    for change in changes:
        first = f"{change['date'][:16].replace('T', ' ')}  {change['old'] or '(first)':12} -> {change['new']:12}"
        lines = [f"{first}  {change['name']}"]
        lines += _wrapped("reason", change["reason"]) + _wrapped("expected", change["expected"])
        changed = list(change["changed"])
        more = [f"and {len(changed) - MOST_CHANGED} more"] if len(changed) > MOST_CHANGED else []
        lines += _wrapped("changed", "; ".join([*changed[:MOST_CHANGED], *more]))
        for effect in change["effects"]:
            lines += _wrapped("actual", effect_text(effect, last))
        if change["effects"]:
            last = change["effects"][-1]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def effect_text(effect: Mapping[str, Any], before: Mapping[str, Any] | None) -> str:
    """One run's outcome; beside the held-out mark, where the run of the reward before had left it."""
    texts = []
    metrics = effect["evaluation"]
    name = headline(metrics)
    if name is not None:
        start, end = metrics[name]
        texts.append(f"held-out {name} {metric_text(name, start)} -> {metric_text(name, end)}")
        if before is not None and name in before["evaluation"]:
            texts[-1] += f" (the reward before: {metric_text(name, before['evaluation'][name][1])})"
    parts = ", ".join(f"{part} {number(start)} -> {number(end)}" for part, (start, end) in effect["parts"].items())
    texts += [parts] if parts else []
    return f"{effect['run']}, {effect['steps']} steps: {'; '.join(texts) or 'nothing was measured'}"


def _wrapped(label: str, text: str) -> list[str]:
    if not text:
        return []
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {label:9} ", subsequent_indent=" " * 12)
