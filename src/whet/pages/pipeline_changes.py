"""What a stage of a pipeline changed, prompt by prompt: which eval sets fell or rose beyond noise, which prompts were
lost, and what the stages wrote to the same prompts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from whet.record.metrics.paired import PairedTest, paired_test
from whet.record.text import percent

ALL = "all"  # the eval prompts together
SURE = 0.05  # p below which a change is called one
MOST_LOST, MOST_SHOWN = 5, 4  # prompts on the page
LONGEST = 1200  # characters of a text on the page


@dataclass(frozen=True)
class MeasuredPolicy:
    """What the eval after a stage found: a row per held-out prompt, with `right` and `completion`."""

    label: str  # of the stage that left the policy
    rows: Mapping[str, Mapping[str, Any]]  # by the prompt's id
    name: str = ""  # of the eval
    against: str = ""  # name of the eval it is compared with; empty: the one before, "none": nobody


@dataclass(frozen=True)
class SetChange:
    """One eval set between two stages, over the prompts that both were measured on."""

    set: str
    metric: str  # accuracy of greedy completions, or pass@1 of drawn ones
    prompts: int
    test: PairedTest

    @property
    def is_sure(self) -> bool:
        """Whether the change is more than noise."""
        return self.test.p is not None and self.test.p < SURE

    @property
    def text(self) -> str:
        """The change in words."""
        test = self.test
        where = "" if self.set == ALL else f" on {self.set}"
        return (
            f"{self.metric}{where} from {test.first} to {test.second}: {100 * test.difference:+.1f} points "
            f"({100 * test.low:+.1f} to {100 * test.high:+.1f}); "
            f"{test.gained} of {self.prompts} prompts gained, {test.lost} lost"
        )


def set_changes(before: MeasuredPolicy, after: MeasuredPolicy) -> list[SetChange]:
    """Every eval set, paired by prompt: greedy completions, and drawn ones where there are any."""
    both = [(row, after.rows[name]) for name, row in before.rows.items() if name in after.rows]
    sets = list(dict.fromkeys([ALL, *(str(row.get("set", ALL)) for row, _ in both)]))
    if len(sets) == 2:
        sets = [ALL]
    found = []
    for name in sets:
        inside = [pair for pair in both if name in (ALL, pair[0].get("set"))]
        for metric, outcomes in (("accuracy", _greedy), ("pass@1", _drawn)):
            pairs = [(outcomes(one), outcomes(two)) for one, two in inside]
            known = [(one, two) for one, two in pairs if one and two]
            if known:
                first, second = [one for one, _ in known], [two for _, two in known]
                test = paired_test((before.label, first), (after.label, second))
                found.append(SetChange(name, metric, len(known), test))
    return found


def _greedy(row: Mapping[str, Any]) -> list[float]:
    return [row["right"]] if row.get("right") in (0, 1) else []


def _drawn(row: Mapping[str, Any]) -> list[float]:
    known = [right for right in row.get("sample_right", ()) if right is not None]
    return known if all(right in (0, 1) for right in known) else []


def compared(policies: Sequence[MeasuredPolicy]) -> list[tuple[MeasuredPolicy, MeasuredPolicy]]:
    """Which policy is held against which earlier one."""
    named = {policy.name: policy for policy in policies}
    pairs = [(named.get(two.against) if two.against else one, two) for one, two in pairwise(policies)]
    return [(one, two) for one, two in pairs if one is not None]


def branched(policies: Sequence[MeasuredPolicy]) -> str:
    """Where stages branch: each policy against the one it began as, all eval prompts together; empty elsewhere."""
    if not any(policy.against for policy in policies):
        return ""
    texts = []
    for one, two in compared(policies):
        change = next(iter(set_changes(one, two)), None)
        if change is not None:
            test = change.test
            right = [row["right"] for row in two.rows.values() if row.get("right") in (0, 1)]
            gain = (
                f"{100 * test.difference:+.1f} points on {one.label}, {100 * test.low:+.1f} to {100 * test.high:+.1f}"
            )
            texts.append(f"{two.label} {percent(sum(right) / len(right))} ({gain})")
    return "; ".join(texts)


def fallen(policies: Sequence[MeasuredPolicy]) -> list[str]:
    """What got worse from one stage to the next, in words; only what is more than noise."""
    changes = [change for one, two in compared(policies) for change in set_changes(one, two)]
    return [change.text for change in changes if change.is_sure and change.test.difference < 0]


def lost_prompts(policies: Sequence[MeasuredPolicy]) -> list[dict[str, Any]]:
    """Prompts that an earlier policy had right and the last one has wrong, with both completions."""
    if len(policies) < 2:
        return []
    last, found = policies[-1], []
    named = [policy for policy in policies[:-1] if policy.name == last.against] if last.against else policies[:-1]
    for name, row in last.rows.items():
        earlier = next((each for each in reversed(named) if each.rows.get(name, {}).get("right") == 1), None)
        if row.get("right") == 0 and earlier is not None:
            found.append(
                {
                    "prompt": question(row),
                    "answer": str(row.get("answer")),
                    "before": earlier.label,
                    "right": _cut(earlier.rows[name]["completion"]),
                    "after": last.label,
                    "wrong": _cut(row["completion"]),
                }
            )
    return found


def side_by_side(policies: Sequence[MeasuredPolicy]) -> list[dict[str, Any]]:
    """The completions of every policy to the same few prompts: first those whose outcome changed."""
    if not policies:
        return []
    shared = [name for name in policies[0].rows if all(name in policy.rows for policy in policies)]
    changed = [name for name in shared if len({policy.rows[name].get("right") for policy in policies}) > 1]
    chosen = [*changed[: MOST_SHOWN - 1], *(name for name in shared if name not in changed)][:MOST_SHOWN]
    return [
        {
            "prompt": question(policies[0].rows[name]),
            "answer": str(policies[0].rows[name].get("answer")),
            "written": [
                (policy.label, _mark(policy.rows[name].get("right")), _cut(policy.rows[name]["completion"]))
                for policy in policies
            ],
        }
        for name in chosen
    ]


def question(row: Mapping[str, Any]) -> str:
    """What a row asks, as text."""
    content = row.get("prompt", "")
    if isinstance(content, str):
        return content
    return str(content[-1].get("content", "")) if content else ""


def _mark(right: Any) -> str:
    return "right" if right == 1 else "wrong" if right == 0 else "" if right is None else f"{right:g}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def measured_text(values: Sequence[float], is_share: bool) -> str:
    """A value with its interval."""
    value, low, high = values
    if not is_share:
        return f"{value:.3g}"
    return f"{percent(value)} ({100 * low:.1f} to {100 * high:.1f})"
