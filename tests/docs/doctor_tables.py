"""The tables of docs/doctor.md about how often the rules are right, from results/doctor.json (benchmarks/doctor)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "results" / "doctor.json"
TUNED, SEALED = "tune", "sealed"
ADVICE = RESULTS.with_name("doctor_advice.json")
PARTS = {
    "corpus": "trained for the corpus",
    "outside": "planned by an outsider",
    "archive": "real, archived",
    "stream": "drawn",
}
VERDICTS = {
    "named": "the cause is named",
    "consequence": "a true consequence is named",
    "wrong": "a wrong cause",
    "silent": "nothing is said",
}


def values() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text())["values"])


def counted(of: Mapping[str, Any]) -> str:
    return f"{of['count']} of {of['of']}" if of.get("of") else ""


def with_interval(of: Mapping[str, Any]) -> str:
    """The count, and what the true share may be (95%)."""
    return f"{counted(of)} ({of['low']:.0%} to {of['high']:.0%})" if of.get("of") else ""


def whole_table() -> str:
    """Both halves, all rules together."""
    found = values()
    lines = ["| | half the rules were tuned on | sealed half |", "|---|---|---|"]

    def row(name: str, cell: Any) -> str:
        return f"| {name} | {cell(found[TUNED])} | {cell(found[SEALED])} |"

    def steps(number: float | None) -> str:
        return "" if number is None else f"{number:g}"

    return "\n".join(
        [
            *lines,
            row("runs (steps)", lambda half: f"{half['runs']} ({half['steps']:,})"),
            row("healthy runs with an alarm", lambda half: with_interval(half["healthy"]["alarmed"])),
            *(
                row(f"- of those {words}", lambda half, part=part: with_interval(half["parts"][part]["alarmed"]))
                for part, words in PARTS.items()
            ),
            row("healthy steps with an alarm, of 1,000", lambda half: f"{half['healthy']['per 1,000 steps']:.1f}"),
            row("faults that a fitting rule found", lambda half: with_interval(half["faulty"]["found"])),
            row("faults that a rule named", lambda half: with_interval(half["faulty"]["named"])),
            row("steps until it was found (median)", lambda half: steps(half["faulty"]["delay"])),
            *(
                row(
                    f"stories of faults: {words}", lambda half, verdict=verdict: with_interval(half["stories"][verdict])
                )
                for verdict, words in VERDICTS.items()
            ),
            *(
                row(
                    f"- told right of those {words}",
                    lambda half, part=part: with_interval(half["parts"][part]["told right"]),
                )
                for part, words in PARTS.items()
            ),
            row(
                "runs that were ever advised opposite settings",
                lambda half: with_interval(half["advice"]["opposite settings"]),
            ),
            row("faulty runs in which another rule spoke as well", lambda half: with_interval(half["faulty"]["wrong"])),
        ]
    )


def fault_table() -> str:
    """Each planted fault: found and named on both halves, after how many steps."""
    found = values()
    lines = [
        "| planted fault | found, tuned half | found, sealed half | named, sealed | steps until found | named by |",
        "|---|---|---|---|---|---|",
    ]
    for name, tuned in found[TUNED]["faults"].items():
        sealed = found[SEALED]["faults"].get(name)
        if sealed is None:
            continue
        delay = "" if sealed["delay"] is None else f"{sealed['delay']:g}"
        rules = ", ".join(sorted({**tuned["named by"], **sealed["named by"]}))
        cells = [counted(tuned["found"]), counted(sealed["found"]), counted(sealed["named"]), delay, rules]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rule_table() -> str:
    """Each rule that a planted fault calls for, or that raised a false alarm."""
    found = values()
    lines = [
        "| rule | healthy runs it alarmed, tuned half | sealed half | runs with another fault, sealed | its own faults,"
        " sealed |",
        "|---|---|---|---|---|",
    ]
    for name, sealed in found[SEALED]["rules"].items():
        tuned = found[TUNED]["rules"][name]
        alarms = sealed["healthy"]["count"] + tuned["healthy"]["count"] + sealed["other faults"]["count"]
        if not sealed["its faults"]["of"] and not alarms:
            continue
        cells = [counted(tuned["healthy"]), with_interval(sealed["healthy"])]
        cells += [counted(sealed["other faults"]), counted(sealed["its faults"])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def unplanted() -> str:
    """Rules that were asked of every run and have no fault of their own in the corpus."""
    rules = values()[SEALED]["rules"]
    return ", ".join(name for name, each in rules.items() if not each["its faults"]["of"])


def advice_table() -> str:
    """What became of runs that followed the first setting they were advised to change."""
    advice = json.loads(ADVICE.read_text())["values"]
    lines = ["| setting | runs | better | same | worse |", "|---|---|---|---|---|"]
    outcomes = ("better", "same", "worse")

    def row(name: str, counts: list[int]) -> str:
        return f"| {name} | {' | '.join(map(str, [sum(counts), *counts]))} |"

    for name, shares in {**advice["settings"], "all": advice["all"]}.items():
        shown = "all that is advised" if name == "all" else f"`{name}`"
        lines.append(row(shown, [shares[outcome]["count"] for outcome in outcomes]))
    withdrawn: dict[str, Counter[str]] = {}
    for pair in advice["withdrawn"].values():
        withdrawn.setdefault(pair["change"].partition("=")[0], Counter())[pair["outcome"]] += 1
    lines += [
        row(f"no longer advised there: `{name}`", [counts[outcome] for outcome in outcomes])
        for name, counts in withdrawn.items()
    ]
    return "\n".join(lines)


def rival_table() -> str:
    """whet beside other diagnosers on the RL runs of the sealed half."""
    found = values()[SEALED]
    lines = [
        "| RL runs of the sealed half | healthy runs with an alarm | of them critical | faulty runs with an alarm |"
        " fault named |",
        "|---|---|---|---|---|",
    ]
    for name, each in found["rivals"].items():
        healthy, faulty = each["healthy"], each["faulty"]
        critical = "" if healthy.get("critical") is None else f"{healthy['critical']} of {healthy['runs']}"
        cells = [f"{healthy['alarmed']} of {healthy['runs']}", critical]
        cells += [f"{faulty['alarmed']} of {faulty['runs']}", f"{faulty['named']} of {faulty['runs']}"]
        lines.append(f"| {name}{' ' + each['version'] if each.get('version') else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)
