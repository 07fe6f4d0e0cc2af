"""A run on several ranks writes what one process writes, and goes on, on any other number of ranks, as if unbroken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import whet
from tests.support.rank_launching import run_calls

FIRST, LAST = 2, 4  # steps before the break, and in all
SHARED: dict[str, Any] = {
    "seed": 3,
    # a large epsilon: else Adam's first steps make signs, and so noise of full size, of gradients near zero
    "optimizer": {"learning_rate": 3e-3, "epsilon": 1e-2, "schedule": "constant"},
    "sampling": {"max_new_tokens": 8},
    "data": {"source": "task:arithmetic", "count": 40},
    "eval": {"prompts": 4},
    "scale": {"timeout": 120},
}
RL = {**SHARED, "batch": {"prompts_per_step": 3, "group_size": 3, "micro_batch_tokens": 100, "updates_per_step": 2}}
ROWS = {**SHARED, "batch": {"rows_per_step": 5, "micro_batch_tokens": 100}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "moved reference": ("grpo", {**RL, "objective": {"kl": "k3", "reference": {"kind": "ema", "decay": 0.5}}}),
    "critic": ("ppo", RL),
    "adapters": ("grpo", {**RL, "model": {"lora": {"rank": 4}}, "objective": {"kl": "k3"}}),
    "stale completions": (
        "grpo",
        {**RL, "batch": {**RL["batch"], "staleness": 1}, "objective": {"mismatch": "truncate"}},
    ),
    "rows": ("sft", ROWS),
    "pairs": ("dpo", {**ROWS, "objective": {"reference": {"kind": "ema", "decay": 0.5}}}),
    "reward model": ("rm", {key: each for key, each in ROWS.items() if key != "sampling"}),
}


def train(case: str, folder: Path, steps: int) -> list[Any]:
    method, config = CASES[case]
    return ["train", [method], {"config": config, "folder": str(folder), "steps": steps}]


def resume(folder: Path) -> list[Any]:
    return ["resume", [str(folder)], {"steps": LAST}]


def here(call: list[Any]) -> None:
    function, arguments, keywords = call
    getattr(whet, function)(*arguments, console=False, **keywords)


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # a run that was to end after FIRST steps is evaluated there
    found = [line for line in found if "eval" not in line or line["step"] != FIRST]
    for line in found:  # ranks have an engine with a copy of the weights, which is checked by replaying some tokens
        for name in [name for name in line.get("metrics", ()) if name.startswith("replay")]:
            del line["metrics"][name]
    return [
        {
            name: value
            for name, value in line.items()
            if name not in ("seconds", "timeline", "machine", "health", "eval")
        }
        for line in found
    ]


def assert_same(one: Path, other: Path) -> None:
    expected, found = lines(one), lines(other)
    assert [(line["step"], sorted(line)) for line in found] == [(line["step"], sorted(line)) for line in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert _flat(mine) == pytest.approx(_flat(theirs), rel=2e-4, abs=2e-5, nan_ok=True), (one, other, mine["step"])


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return {path: each for key, inner in value.items() for path, each in _flat(inner, f"{name}/{key}").items()}
    return {name: float("nan") if value is None else value}


def copied(folder: Path, name: str) -> Path:
    place = folder.parent / name
    shutil.copytree(folder, place)
    return place


@pytest.mark.slow
def test_two_ranks_write_what_one_writes_and_each_goes_on_with_the_others_run(tmp_path):
    case = "moved reference"
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    here(train(case, whole, LAST))
    here(train(case, broken, FIRST))
    up, ranked, ranked_broken = copied(broken, "up"), tmp_path / "ranked", tmp_path / "ranked_broken"
    run_calls(2, [train(case, ranked, LAST), train(case, ranked_broken, FIRST), resume(up)], tmp_path)
    assert_same(whole, ranked)
    assert_same(whole, up)
    down = copied(ranked_broken, "down")
    here(resume(down))
    assert_same(whole, down)
    checkpoint = ranked / "checkpoints" / f"step-{LAST:06d}"
    assert {each.name for each in (checkpoint / "shards").iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert sorted(each.name for each in whole.iterdir()) == sorted(each.name for each in ranked.iterdir())
    _assert_loads(checkpoint, whole / "checkpoints" / f"step-{LAST:06d}")


def _assert_loads(checkpoint: Path, other: Path) -> None:
    """Anybody's loader reads the folder, and finds the weights of the other."""
    import torch
    from transformers import AutoModelForCausalLM

    mine, theirs = (AutoModelForCausalLM.from_pretrained(each).state_dict() for each in (checkpoint, other))
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_every_kind_goes_on_on_more_and_on_fewer_ranks(tmp_path):
    """1 -> 2, 2 -> 1, 2 -> 3, 3 -> 2 against the unbroken run of one process; every kind in one set of processes."""
    places = {case: tmp_path / case.replace(" ", "_") for case in CASES if case != "moved reference"}
    for case, place in places.items():
        place.mkdir()
        here(train(case, place / "whole", LAST))
        here(train(case, place / "up", FIRST))
    calls = [[train(case, place / "down", FIRST), resume(place / "up")] for case, place in places.items()]
    run_calls(2, [call for each in calls for call in each], tmp_path, 1200)
    for place in places.values():
        copied(place / "down", "more")
        here(resume(place / "down"))
    calls = [[resume(place / "more"), train(case, place / "fewer", FIRST)] for case, place in places.items()]
    run_calls(3, [call for each in calls for call in each], tmp_path, 1200)
    run_calls(2, [resume(place / "fewer") for place in places.values()], tmp_path, 1200)
    wrong = []
    for case, place in places.items():
        for name in ("up", "down", "more", "fewer"):
            try:
                assert_same(place / "whole", place / name)
            except AssertionError as error:
                wrong.append(f"{case}, {name}: {error}")
    assert not wrong, "\n\n".join(wrong)
