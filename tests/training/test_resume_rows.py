"""Rows that remember something from step to step go on, after a checkpoint, to the very bytes an unbroken run has."""

import hashlib
import json
import shutil

import pytest

import whet

STEPS, BREAK = 3, 2
BASE = {
    "seed": 4,
    "model": {"threads": 1, "device": "cpu"},
    "data": {"count": 24},
    "sampling": {"max_new_tokens": 8},
    "batch": {"prompts_per_step": 4, "group_size": 4},
    "optimizer": {"learning_rate": 3e-4},
    "eval": {"prompts": 0},
    "report": {"save_every": BREAK, "keep_checkpoints": 9, "samples_per_step": 1},
}
# what each case adds, and what must be in the checkpoint because of it
CASES = {
    "what goes together": (
        "grpo",
        {
            "data": {"order": "by_difficulty"},
            "objective": {
                **{"baseline": "mixed_mean", "scale": "none", "entropy": "bonus_to_target"},
                **{"control": {"kind": "proportional", "horizon": 100}, "kl": {"beta": 0.2}},
                **{"reference": {"kind": "reset", "every": 2}},
            },
        },
        ["running_sum", "entropy_weight", "beta", "reference", "rates"],
    ),
    "critic": ("ppo", {"batch": {"updates_per_step": 2}}, ["critic", "critic_optimizer"]),
    "critic on the policy's trunk": ("ppo", {"critic": {"trunk": "shared"}}, ["critic", "critic_optimizer"]),
    "critic's warm-up and imitation": ("vapo", {"objective": {"value": {"warmup": 1}}}, ["critic"]),
    "doubling controller": ("ppo_penalty", {}, ["beta"]),
    "proportional controller": (
        "grpo",
        {"objective": {"control": {"kind": "proportional", "horizon": 100}, "kl": {"beta": 0.2}}},
        ["beta"],
    ),
    "adaptive entropy": ("grpo", {"objective": {"entropy": "bonus_to_target"}}, ["entropy_weight"]),
    "learned share": ("lambda_grpo", {}, ["length_power"]),
    "reference replaced": ("grpo_r1", {"objective": {"reference": {"every": 2}}}, ["reference"]),
    "moving reference": ("grpo", {"objective": {"reference": {"kind": "ema", "decay": 0.9}}}, ["reference"]),
    "completions of an older policy": ("vtrace", {"batch": {"staleness": 2}}, ["rollouts", "critic"]),
    "refilled groups": ("dapo", {}, ["position"]),
    "groups drawn until mixed": ("grpo", {"objective": {"keep": "balanced", "baseline": "drawn_mean"}}, ["position"]),
    "prompts by difficulty": ("grpo", {"data": {"order": "by_difficulty"}}, ["rates"]),
    "a tracker for each prompt": ("spo", {}, ["prompt/"]),
    "a running mean": ("reinforce", {}, ["running_sum"]),
    "group and running mean": ("grpo", {"objective": {"baseline": "mixed_mean", "scale": "none"}}, ["running_sum"]),
    "greedy completions": ("remax", {}, ["position"]),
    "several passes": (
        "grpo",
        {"batch": {"epochs_per_batch": 2, "updates_per_step": 2}, "objective": {"control": "end_updates"}},
        ["position"],
    ),
}


# of those that keep the same kind of memory one is run with every commit; some memories go together in one run
QUICK = {
    *("what goes together", "critic", "learned share", "completions of an older policy"),
    *("refilled groups", "a tracker for each prompt"),
}


def content(folder):
    """Everything but wall-clock times."""
    last = folder / "checkpoints" / f"step-{STEPS:06d}"
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(last.glob("*.safetensors"))}
    found["trainer"] = json.dumps(json.loads((last / "state.json").read_text())["state"]["trainer"], sort_keys=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = json.dumps(
        [{key: value for key, value in line.items() if key not in ("seconds", "timeline", "machine")} for line in lines]
    )
    found["samples"] = (folder / "samples.jsonl").read_text()
    found["tokens"] = (folder / "tokens.jsonl").read_text()
    return found


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_the_run_goes_on_exactly(case, tmp_path):
    method, changes, noted = CASES[case]
    layers = {**BASE, **{key: {**BASE.get(key, {}), **value} for key, value in changes.items()}}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whet.train(method, config=layers, steps=STEPS, folder=str(whole), console=False)
    shutil.copytree(whole, broken)
    whet.resume(broken, steps=STEPS, checkpoint=f"step-{BREAK:06d}", console=False)
    one, two = content(whole), content(broken)
    assert one.keys() == two.keys()
    for name in one:
        assert one[name] == two[name], name
    text = one["trainer"] + " ".join(one)
    assert all(each in text for each in noted), (noted, list(one))
    metrics = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert len({line["metrics"]["gradient_norm"] for line in metrics if "gradient_norm" in line["metrics"]}) > 1
