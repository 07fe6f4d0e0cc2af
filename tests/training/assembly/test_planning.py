"""A run's own plan: what can never fit is refused before it is read, what will probably not is told in one line."""

import json

import pytest

from whet import api
from whet.api.planning import plan
from whet.tools.planner import from_config as planning
from whet.tools.planner.from_config import device_plan, memory_facts, refuse_too_large, workload
from whet.tools.planner.shapes import NAMED
from whet.tools.planner.workload import Devices
from whet.training.assembly import assembly
from whet.training.config import resolved
from whet.types import Prompt, WhetError

TINY = {"steps": 1, "eval": {"prompts": 0}, "data": {"count": 16}, "batch": {"prompts_per_step": 2, "group_size": 2}}


@pytest.fixture
def large(tmp_path):
    """A folder that says it holds a model of 7 billion weights."""
    values = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008}
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.json").write_text(json.dumps({**values, "vocab_size": 32000, "model_type": "llama"}))
    return str(tmp_path / "large")


def test_a_model_that_can_never_fit_is_refused_before_it_is_read(large, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "this_device", lambda device: Devices(1, 24e9, is_cpu=True))
    monkeypatch.setattr(assembly, "load_runtime", lambda *_: pytest.fail("the model was read"))
    with pytest.raises(WhetError, match=r"does not fit: 1\d\d GB before the first pass and 24 GB are free") as error:
        api.train("grpo", model=large, config=TINY, console=False)
    line = str(error.value)
    assert "\n" not in line and "policy: AdamW's two moments" in line and "`whet plan`" in line
    assert not any((tmp_path / "runs").glob("*")), "nothing is left behind"


def test_the_way_out_is_named(large):
    config = resolved("grpo", {"model": {"name": large}}, TINY)
    with pytest.raises(WhetError, match=r"add --set .*; the plan: "):
        refuse_too_large(config, Devices(1, 100e9))
    refuse_too_large(config, Devices(1, 100e9), ranks=8)  # a shard each
    refuse_too_large(resolved("grpo", {"model": {"name": large, "lora": 16}}, TINY), Devices(1, 100e9))
    refuse_too_large(resolved("grpo", {"model": {"name": "owner/model"}}, TINY), Devices(1, 1e6))  # told later


def test_a_run_that_will_not_fit_says_so_and_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = {}

    class Facts:
        def started(self, summary):
            seen.update(summary["facts"])

    monkeypatch.setattr(planning, "this_device", lambda device: Devices(1, 0.1e9, is_cpu=True))
    run = api.train("grpo", config=TINY, console=False, callbacks=[Facts()])
    assert run.status == "finished" and seen["memory"].startswith("the plan says: does not fit: ")
    monkeypatch.setattr(planning, "this_device", lambda device: Devices(1, 64e9, is_cpu=True))
    seen.clear()
    api.train("grpo", config=TINY, console=False, callbacks=[Facts()])
    assert "memory" not in seen and "model" in seen


def test_longer_prompts_take_more():
    config = resolved("grpo", {"model": {"name": "smollm2"}}, TINY)
    room = Devices(1, 1e9, is_cpu=True)
    short, long = (device_plan(config, room, tokens, 1).memory.total for tokens in (10, 4000))
    assert long > short
    words = memory_facts(config, room, [Prompt("a", (), text="x" * 16000)])["memory"]
    assert f"{long / 1e9:.3g} GB" in words


def test_a_workload_is_what_the_config_says():
    shape = NAMED["smollm2-135m"]
    policy = workload(resolved("ppo", {"model": {"name": "a/b", "lora": 8}, "batch": {"updates_per_step": 2}}), shape)
    assert (policy.lora_rank, policy.updates, policy.critic, policy.compute) == (8, 2, "own", "bf16")
    assert {"value"} <= policy.needs and policy.recompute == "wide" and policy.draws
    rows = workload(resolved("dpo", {"model": {"name": "a/b"}, "batch": {"rows_per_step": 6}}), shape, on_cpu=True)
    assert (rows.prompts_per_step, rows.group_size, rows.draws, rows.compute) == (6, 2, False, "fp32")
    assert rows.needs == {"ref_logp"} and rows.recompute == "none"
    free = workload(resolved("grpo", {"model": {"name": "a/b"}, "objective": {"kl": "none"}}), shape)
    assert not free.needs_reference
    assert not workload(resolved("rm", {"model": {"name": "a/b"}}), shape).has_head


def test_the_memory_that_is_free_is_known():
    import torch

    room = planning.this_device(torch.device("cpu"))
    assert room.is_cpu and 1e8 < room.memory < 1e14


def test_a_teacher_is_counted_where_it_stands():
    def lines(**teacher):
        found = plan("opd", model="smollm2-135m", gpus="1x80GB", settings={"teacher": teacher})
        return {line.name: line.bytes for line in found.memory.lines if "teacher" in line.name}

    here = lines(name="smollm2-135m")
    assert here["teacher (smollm2-135m)"] == pytest.approx(2 * 134.5e6, rel=0.01)
    assert here["teacher: forward pass, nothing kept"] > 0
    assert lines(name="smollm2-135m", device="cuda:1") == lines(base_url="http://localhost:8000/v1") == {}
    own = plan("sdpo", model="smollm2-135m", gpus="1x80GB", settings={})
    assert any(line.name.startswith("reference") for line in own.memory.lines)
