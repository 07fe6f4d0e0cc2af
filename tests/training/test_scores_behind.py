"""Runs whose completions are scored while others are written are, bit for bit, those of runs that wait."""

import hashlib
import json
import math

import pytest

import whet
from tests.training.test_health_actions import SMALL

METHODS = {
    "grpo": {"objective": {"kl": "k3"}, "batch": {"prompts_per_step": 3, "group_size": 3, "updates_per_step": 2}},
    "rloo": {},  # one update: the reference alone is asked meanwhile
    "dapo": {"objective": {"keep": "mixed_outcome"}},
    "ppo": {},
    "online_dpo": {},
}


def waits(completion: str) -> float:
    return float(len(completion) % 3)


def waits_for_scores(folder):
    """Whether the reference was asked only after the rewards, in some step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    began = [{phase: start for phase, start, _ in reversed(line["timeline"])} for line in lines if "timeline" in line]
    assert len(began) == 2 and all("reference" in phases for phases in began)
    return any(phases["reference"] > phases.get("reward", math.inf) for phases in began)


def content(folder):
    weights = folder / "checkpoints" / "step-000002" / "model.safetensors"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds"), line.pop("timeline", None), line.pop("machine", None)
    return [hashlib.sha256(weights.read_bytes()).hexdigest(), lines]


@pytest.mark.filterwarnings("ignore")
def test_runs_are_the_same_with_scores_behind(tmp_path):
    different = []
    for method, changes in METHODS.items():
        if method == "online_dpo":
            method, changes = "dpo", {"preference": {"online": 3}, "batch": {"rows_per_step": 3}}
        found = []
        for is_early in (False, True):
            waits.ahead = is_early
            folder = tmp_path / f"{method} {is_early}"
            config = {**SMALL, "eval": {"prompts": 2}, **changes}
            whet.train(method, reward=waits, steps=2, config=config, folder=str(folder), console=False)
            found.append(content(folder))
            assert method not in ("grpo", "rloo") or is_early or not waits_for_scores(folder)
        if found[0] != found[1]:
            different.append(method)
    assert not different
