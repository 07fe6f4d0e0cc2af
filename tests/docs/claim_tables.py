"""The tables of docs/claims.md, from results/claims.json (benchmarks/claims.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "results" / "claims.json"
ORDER = ("reproduced", "not at this scale", "refuted", "cannot be tested here", "runs are missing")
KINDS = {"runs": "about training", "arithmetic": "about arithmetic", "untested": "beyond this project"}


@cache
def values() -> Mapping[str, Any]:
    return dict(json.loads(RESULTS.read_text(encoding="utf-8"))["values"])


def rows_of(kind: str) -> list[Mapping[str, Any]]:
    return [row for row in values()["claims"].values() if row["kind"] == kind]


def verdict_table() -> str:
    """How many claims of each kind have which verdict."""
    seen = [verdict for verdict in ORDER if verdict in values()["verdicts"]]
    lines = ["| claims | " + " | ".join(seen) + " | all |", "|---" * (len(seen) + 2) + "|"]
    for kind, words in KINDS.items():
        rows = rows_of(kind)
        counts = [sum(row["verdict"] == verdict for row in rows) for verdict in seen]
        lines.append(f"| {words} | " + " | ".join(str(count or "") for count in counts) + f" | {len(rows)} |")
    return "\n".join(lines)


def effect_text(row: Mapping[str, Any]) -> str:
    """Mean and interval over the seeds, and how many there are."""
    if "mean" not in row:
        return f"{len(row['effects'])} seeds"
    return f"{row['mean']:+.3g} ({row['low']:+.3g} to {row['high']:+.3g}), {len(row['effects'])} seeds"


def training_table() -> str:
    """Claims about training: what was claimed, what was measured, the effect over seeds, the verdict, the runs."""
    lines = ["| claim | in | measured | effect (95% interval) | verdict | runs |", "|---|---|---|---|---|---|"]
    for row in rows_of("runs"):
        sign = "above" if row["sign"] > 0 else "below"
        runs = ", ".join(f"`{arm}`" for arm in row["arms"])
        cells = [
            row["text"],
            row["said"],
            f"{row['measure']}; claimed: {sign} 0",
            effect_text(row),
            f"**{row['verdict']}**",
            runs,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def arithmetic_table() -> str:
    """Claims about arithmetic: what comes out."""
    lines = ["| claim | in | what comes out | verdict |", "|---|---|---|---|"]
    for row in rows_of("arithmetic"):
        lines.append(f"| {row['text']} | {row['said']} | {row['outcome']} | **{row['verdict']}** |")
    return "\n".join(lines)


def untested_table() -> str:
    """Claims that need what is not here."""
    lines = ["| claim | in | it would take |", "|---|---|---|"]
    for row in rows_of("untested"):
        lines.append(f"| {row['text']} | {row['said']} | {row['reason']} |")
    return "\n".join(lines)


def command_table() -> str:
    """How each run is made; every one with `--seed 0` and so on."""
    lines = ["| run | command |", "|---|---|"]
    lines += [
        f"| `{name}` | `{command.replace('|', chr(92) + '|')}` |" for name, command in values()["commands"].items()
    ]
    return "\n".join(lines)
