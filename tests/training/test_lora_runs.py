"""Whole runs with adapters: every trainer learns, is on-policy, resumes to the byte and leaves a loadable model."""

import hashlib
import json
import shutil
import tomllib

import pytest
import torch

import whet
from whet.model.load import load_model
from whet.types import WhetError

STEPS, BREAK = 2, 1
BASE = {
    "seed": 4,
    "model": {"threads": 1, "device": "cpu", "lora": 4},
    "data": {"count": 24},
    "optimizer": {"learning_rate": 3e-3, "schedule": "constant"},
    "eval": {"prompts": 0},
    "report": {"save_every": BREAK, "keep_checkpoints": 9},
}
SAMPLED = {"sampling": {"max_new_tokens": 8}, "batch": {"prompts_per_step": 4, "group_size": 4}}
ROWS = {"batch": {"rows_per_step": 6}}
TRAINERS = {
    "a policy held to its base": ("grpo", {**SAMPLED, "objective": {"kl": {"kind": "k3", "beta": 0.1}}}),
    "a policy with a critic": ("ppo", SAMPLED),
    "preferences": ("dpo", ROWS),
    "a reference of mismatched completions": ("kto", {**ROWS, "preference": {"labels": True}}),
    "pairs of its own": (
        "dpo",
        {**ROWS, "sampling": {"max_new_tokens": 16, "temperature": 1.5}, "preference": {"online": 12}},
    ),
    "demonstrations": ("sft", ROWS),
    "a reward model": ("rm", ROWS),
}


QUICK = {"a policy with a critic", "preferences", "demonstrations", "a reward model"}


def layers_of(changes):
    return {**BASE, **changes}


def content(folder):
    last = folder / "checkpoints" / f"step-{STEPS:06d}"
    files = sorted((*last.glob("*.safetensors"), *(last / "adapter").iterdir()))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = json.dumps(
        [{key: value for key, value in line.items() if key not in ("seconds", "timeline", "machine")} for line in lines]
    )
    return found


def metrics_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["metrics"] for line in lines if "gradient_norm" in line.get("metrics", {})]


@pytest.mark.parametrize(
    "trainer", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TRAINERS]
)
def test_the_run_goes_on_exactly(trainer, tmp_path):
    method, changes = TRAINERS[trainer]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whet.train(method, config=layers_of(changes), steps=STEPS, folder=str(whole), console=False)
    shutil.copytree(whole, broken)
    whet.resume(broken, steps=STEPS, checkpoint=f"step-{BREAK:06d}", console=False)
    one, two = content(whole), content(broken)
    assert one.keys() == two.keys() and "adapter_model.safetensors" in one
    for name in one:
        assert one[name] == two[name], name
    assert len({step["gradient_norm"] for step in metrics_of(whole)}) > 1


def test_the_sampler_has_the_adapters_and_the_reference_has_not(tmp_path):
    run = tmp_path / "run"
    _, changes = TRAINERS["a policy held to its base"]
    whet.train("grpo", config=layers_of(changes), steps=STEPS, folder=str(run), console=False)
    found = metrics_of(run)
    assert max(step["sampler_gap"] for step in found) < 1e-5
    assert found[0]["kl"] == 0.0 and found[-1]["kl"] > 1e-5


def test_a_rate_of_its_own_unless_one_is_given():
    from whet.settings.layers import from_settings
    from whet.training.config import resolved, toml_text

    def rate(method, *settings):
        config = resolved(method, from_settings(settings))
        again = resolved(method, tomllib.loads(toml_text(config)))
        assert again == config  # a resumed run does not raise it once more
        return config.optimizer.learning_rate

    assert rate("grpo", "model.lora=16") == pytest.approx(10 * rate("grpo", "model.lora=0"))
    assert rate("rm", "model.lora=16") == 5e-3 < 10 * rate("rm")
    assert rate("grpo", "model.lora.rank=16", "optimizer.learning_rate=1e-5") == 1e-5
    assert resolved("grpo", from_settings(["model.lora=8", "model.lora.alpha=16"])).model.lora.alpha == 16


def test_only_factors_and_a_head_are_in_the_optimizer(tmp_path):
    from safetensors import safe_open

    run = tmp_path / "run"
    whet.train("rm", config=layers_of(ROWS), steps=1, folder=str(run), console=False)
    with safe_open(run / "checkpoints" / "step-000001" / "optimizer.safetensors", "pt") as stored:
        names = {name.rpartition("/")[0] for name in stored.keys()}  # noqa: SIM118
    assert {name.rpartition(".")[2] for name in names} == {"down", "up", "weight"}
    assert [name for name in names if name.endswith("weight")] == ["score.weight"]


def test_a_run_is_a_whole_model(tmp_path):
    run = tmp_path / "run"
    whet.train("sft", config=layers_of(ROWS), steps=STEPS, folder=str(run), console=False)
    first, after = load_model("whetstone").model, load_model(str(run)).model
    changed = {name for name, value in first.state_dict().items() if not torch.equal(value, after.state_dict()[name])}
    assert len(changed) == 21 and all("_proj." in name for name in changed)
    marks = whet.evaluate(str(run), settings={"eval": {"prompts": 4}})
    assert 0 <= marks["accuracy"] <= 1
    again = tmp_path / "again"
    whet.train("dpo", model=str(run), config=layers_of(ROWS), steps=1, folder=str(again), console=False)
    assert metrics_of(again)[0]["margin"] == 0.0  # the reference of a run on a run is the merged model


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ("tr_dpo", {}, r"objective.reference=ema moves the reference, .* give objective.reference=frozen"),
        ("grpo_r1", {}, r"objective.reference=reset moves the reference"),
        ("grpo", {"objective": {"kl": "full"}}, r"asks policy and reference in one pass, .* such as k3"),
        (
            "grpo",
            {"model": {"lora": 4, "reference": "reload"}},
            r"model.reference=reload has no effect with",
        ),
        (
            "grpo",
            {"model": {"lora": {"alpha": 8}}},
            r"alpha, target_modules and base have no effect at rank 0; give",
        ),
        ("grpo", {"model": {"lora": -1}}, r"model.lora.rank is -1: input should be greater than or equal to 0"),
        ("grpo", {"model": {"lora": "ten"}}, r"model.lora.rank is 'ten': input should be a valid integer"),
        ("grpo", {"model": {"lora": True}}, r"model.lora: give the rank of the adapters, such as 16"),
        (
            "sft",
            {"model": {"lora": {"rank": 4, "target_modules": "query"}}},
            r"model.lora.target_modules names 'query'",
        ),
    ],
)
def test_what_cannot_be_is_refused(method, changes, said, tmp_path):
    with pytest.raises(WhetError, match=said):
        whet.train(method, config=layers_of(changes), steps=1, folder=str(tmp_path / "run"), console=False)
    assert not (tmp_path / "run").exists()
