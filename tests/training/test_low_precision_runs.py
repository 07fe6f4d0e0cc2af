"""Whole runs with weights of 16 and 4 bits: they resume to the byte and leave a loadable model."""

import hashlib
import json

import pytest
import torch

import whet
from whet.model.load import load_model

STEPS, BREAK = 2, 1
BASE = {
    "seed": 4,
    "data": {"count": 24},
    "optimizer": {"learning_rate": 3e-3, "schedule": "constant"},
    "eval": {"prompts": 0},
    "report": {"save_every": 9, "keep_checkpoints": 9},
}
KINDS = {
    "a base of 16 bits": {"model": {"lora": {"rank": 4, "base": "bfloat16"}}},
    "a base of 4 bits": {"model": {"lora": {"rank": 4, "base": "4bit"}}},
    "weights of 16 bits": {"model": {"weights": "bfloat16"}, "optimizer": {"states": "int8"}},
}
ROWS = {"batch": {"rows_per_step": 2}}
SAMPLED = {"sampling": {"max_new_tokens": 8}, "batch": {"prompts_per_step": 2, "group_size": 2}}
TRAINERS = {"sft": ROWS, "grpo": SAMPLED, "ppo": SAMPLED, "dpo": ROWS, "rm": ROWS}


def settings(kind, changes):
    from whet.settings.layers import merged

    machine = {"model": {"threads": 1, "device": "cpu", "precision": "bf16"}}
    return merged(merged(merged(BASE, machine), KINDS[kind]), changes)


def content(folder):
    last = folder / "checkpoints" / f"step-{STEPS:06d}"
    found = {
        path.relative_to(last).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(last.rglob("*.safetensors"))
    }
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = json.dumps(
        [{key: value for key, value in line.items() if key not in ("seconds", "timeline", "machine")} for line in lines]
    )
    return found


@pytest.mark.slow  # a CPU without bf16 multiplies in it as slowly as it can
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", TRAINERS)
def test_the_run_goes_on_exactly(method, kind, tmp_path):
    pytest.importorskip("bitsandbytes")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    config = settings(kind, TRAINERS[method])
    whet.train(method, config=config, steps=STEPS, folder=str(whole), console=False)
    whet.train(method, config=config, steps=BREAK, folder=str(broken), console=False)
    whet.resume(broken, steps=STEPS, console=False)
    one, two = content(whole), content(broken)
    assert one.keys() == two.keys() and "model.safetensors" in one
    for name in one:
        assert one[name] == two[name], name
    if method != "rm":
        begun, trained = load_model("whetstone").model, load_model(str(whole)).model
        moved = [not torch.equal(a, b) for a, b in zip(begun.parameters(), trained.parameters(), strict=True)]
        assert any(moved)
