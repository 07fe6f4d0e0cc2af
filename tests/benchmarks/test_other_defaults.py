"""The rule that chooses a default: it never loses against the start, and is within noise of the best."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    return importlib.import_module("other_defaults")


def outcomes(sweep: ModuleType, start: float, **after: float) -> list[Any]:
    """Three seeds that end around the share, by value: `v1e_3` is 1e-3."""
    return [
        sweep.Outcome(float(name[1:].replace("_", "-")), (start,) * 3, (share - 0.01, share, share + 0.01))
        for name, share in after.items()
    ]


def test_a_value_is_fine_where_no_seed_loses_and_the_mean_is_near_the_best(sweep: ModuleType) -> None:
    found = outcomes(sweep, 0.3, v1e_5=0.32, v1e_4=0.85, v1e_3=0.88, v1e_2=0.05)
    assert [one.loses() for one in found] == [False, False, False, True]
    assert sweep.fine_values(found) == ([1e-4, 1e-3], 1e-3)
    lucky = sweep.Outcome(1e-2, (0.3, 0.3, 0.3), (1.0, 1.0, 0.1))  # one seed is enough to lose, whatever the mean
    assert lucky.mean > 0.6 and lucky.loses() and 1e-2 not in sweep.fine_values([*found[:3], lucky])[0]
    assert sweep.fine_values([lucky]) == ([], 0.0)


def test_today_stands_where_it_is_fine_and_else_the_value_that_suits_most_methods_is_chosen(sweep: ModuleType) -> None:
    one = outcomes(sweep, 0.3, v1e_5=0.32, v1e_4=0.85, v1e_3=0.88, v1e_2=0.05)
    other = outcomes(sweep, 0.3, v1e_5=0.31, v1e_4=0.50, v1e_3=0.80, v1e_2=0.81)
    alone = sweep.choose({"one": one}, today=9e-5)
    assert (alone.nearest, alone.stands, alone.chosen) == (1e-4, True, 1e-4)
    both = sweep.choose({"one": one, "other": other}, today=9e-5)
    assert not both.stands and both.chosen == 1e-3 and both.losing == {"one": [1e-2], "other": []}


def test_no_value_is_near_to_none(sweep: ModuleType) -> None:
    assert sweep.decades(0.0, 4.0) == sweep.decades(4.0, 0.0) == float("inf") and sweep.decades(0.0, 0.0) == 0.0
    assert sweep.decades(1.0, 100.0) == 2.0


def test_settings_that_follow_from_a_value_go_with_it(sweep: ModuleType) -> None:
    [group] = [group for group in sweep.GROUPS if group.name == "group-size"]
    batches = [plan.settings["batch"] for plan in sweep.planned([group], 1, Path("runs")) if plan.method == "grpo"]
    assert [batch["group_size"] * batch["prompts_per_step"] for batch in batches] == [sweep.COMPLETIONS] * 5
    [clip] = [group for group in sweep.GROUPS if group.name == "clip"]
    widest = sweep.planned([clip], 1, Path("runs"))[-1].settings
    assert widest["objective"] == {"clip": {"low": 0.8, "high": 0.8}} and widest["batch"] == {"updates_per_step": 4}


def test_every_group_has_seven_values_over_two_decades_and_settings_of_its_own_key(sweep: ModuleType) -> None:
    for group in sweep.GROUPS:
        values = group.values()
        if group.own_values:
            assert values == list(group.own_values) and (group.today or group.middle) in values
        else:
            assert len(values) == 7 and 99 < values[-1] / values[0] < 101, group.name
    assert sweep.nested("objective.control.nats", 3.0) == {"objective": {"control": {"nats": 3.0}}}
    plans = sweep.planned([sweep.GROUPS[-1]], 2, Path("runs"))
    assert len({plan.name for plan in plans}) == len(plans) == 7 * 2 * len(sweep.GROUPS[-1].methods)
