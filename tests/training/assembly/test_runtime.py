"""What was chosen for a model is said, with the reason."""

import re
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

import whet
from whet.data.packing import BlockSize, micro_batches
from whet.model.block import NotDescribed
from whet.model.reference import AdapterFreeReference
from whet.training.assembly import references, runtime
from whet.training.assembly.assembly import assemble
from whet.training.assembly.engines import thread_choice
from whet.training.assembly.runtime import load_runtime, sized_passes
from whet.training.config import resolved, resolved_evaluation
from whet.training.sections import pass_tokens
from whet.types import WhetError


def test_a_runs_facts_say_which_layers_train(monkeypatch):
    config = resolved("grpo", {"model": {"device": "cpu", "threads": 1}})
    runtime = load_runtime(config)
    assert runtime.facts["training path"] == "fused layers"
    assert runtime.facts["device"].startswith("cpu, 1 thread (model.threads=1;")
    monkeypatch.setattr("whet.model.fast_path.fused_refusal", lambda lm: "its norm is unknown")
    assert load_runtime(config).facts["training path"].endswith("(its norm is unknown)")


def test_a_small_model_gets_one_thread(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert thread_choice(0, 1_999_999)[0] == 1
    assert thread_choice(3, 10**9)[0] == 3
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)), raising=False)
    for load, busy in ((9.0, "; other jobs keep 9.0 busy, model.threads=1 may be faster"), (7.0, "")):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0), raising=False)
        assert thread_choice(0, 10**9) == (16, f"every usable core{busy}")
    assert thread_choice(0, 10**9, on_gpu=True) == (4, "the GPU computes; 16 usable cores")
    assert thread_choice(9, 10**9, on_gpu=True)[0] == 9
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert thread_choice(0, 1_000)[0] == 5 and thread_choice(2, 1_000)[0] == 2


def assembled(**sections):
    return assemble(resolved("grpo", {"model": {"device": "cpu", "threads": 1}, **sections}))


def test_a_run_that_samples_says_how_completions_are_written(monkeypatch):
    data = {"data": {"source": "task:arithmetic"}, "batch": {"prompts_per_step": 2}, "eval": {"prompts": 2}}
    assert assembled(**data).facts["decode path"] == "fused decoder"
    monkeypatch.setattr("whet.rollout.torch_engine.fused_decoder", lambda base: NotDescribed("a norm is unknown"))
    assert assembled(**data).facts["decode path"] == "the model's own layers on whet's buffers (a norm is unknown)"


def test_only_who_trains_on_what_it_has_just_written_reads_the_samplers_copies(monkeypatch):
    monkeypatch.setattr("whet.training.distributed.background.ProcessSession", mock.Mock())  # nobody writes here
    data = {"data": {"source": "task:arithmetic"}, "batch": {"prompts_per_step": 2}, "eval": {"prompts": 2}}
    assert assembled(**data).trainer._models.policy.follows_sampler
    late = assembled(**data, scale={"max_staleness": 1}, objective={"mismatch": "truncate"})
    assert not late.trainer._models.policy.follows_sampler
    late.close()


def test_an_engine_that_does_not_say_how_it_decodes_is_named(monkeypatch):
    monkeypatch.delattr("whet.rollout.torch_engine.TorchEngine.path_for")
    data = {"data": {"source": "task:arithmetic"}, "batch": {"prompts_per_step": 2}, "eval": {"prompts": 2}}
    assert assembled(**data).facts["decode path"] == "the engine TorchEngine, which does not say how it decodes"


def test_an_evaluation_says_how_completions_are_written():
    result = whet.evaluate("whetstone", settings={"eval": {"prompts": 2}, "model": {"device": "cpu", "threads": 1}})
    assert result.facts == {"decode path": "fused decoder"}


def test_noise_that_was_switched_off_is_a_fact_of_training_alone(monkeypatch):
    monkeypatch.setattr("whet.training.assembly.runtime.switch_off_noise", lambda lm: "Router: off")
    small = {"model": {"device": "cpu", "threads": 1}}
    assert load_runtime(resolved("sft", small)).facts["training noise"] == "Router: off"
    assert "training noise" not in load_runtime(resolved_evaluation(small)).facts


def test_a_context_shorter_than_the_configs_is_a_fact_and_has_its_reason(monkeypatch):
    read = runtime.load_model
    monkeypatch.setattr(
        runtime, "load_model", lambda *asked: replace(read(*asked), context=24, context_reason="longrope")
    )
    small = {"model": {"device": "cpu", "threads": 1}, "sampling": {"max_new_tokens": 20}}
    assert load_runtime(resolved("sft", small)).facts["context"] == "24 tokens (longrope)"
    with pytest.raises(WhetError, match=r"expected at most the model's context of 24 \(longrope\)"):
        assembled(sampling={"max_new_tokens": 20})


def test_the_numbers_that_decide_most_are_said_before_the_first_step():
    tiny = {"batch": {"prompts_per_step": 2, "group_size": 4}, "eval": {"prompts": 0}, "data": {"count": 8}}
    facts = assembled(**tiny, sampling={"max_new_tokens": 9, "temperature": 0.7, "top_k": 5}).facts
    assert facts["learning rate"] == "0.0001, constant (found by trial for the built-in model)"
    assert facts["batch"] == "2 prompts x 4 completions per step, one update"
    assert facts["lengths"] == "prompts 18 tokens, completions up to 9; temperature 0.7, top_k 5"
    assert "critic" not in facts
    facts = assemble(resolved("ppo", {**tiny, "optimizer": {"learning_rate": 1e-5}})).facts
    assert facts["learning rate"] == "1e-05, constant (as given)" and facts["batch"].endswith("4 updates")
    assert facts["critic"] == "learning rate 0.001 (found by trial for the built-in model)"


@pytest.mark.parametrize("method", ["sft", "dpo", "rm", "prm"])
def test_rows_have_a_batch_and_lengths_and_no_temperature(method):
    small = {"batch": {"rows_per_step": 3}, "eval": {"prompts": 0}, "data": {"count": 8, "difficulty": [1, 3]}}
    facts = assemble(resolved(method, small)).facts
    assert facts["batch"] == "3 rows per step, one update"
    assert re.fullmatch(r"rows \d+ to \d+ tokens \(median \d+\)", facts["lengths"])
    assert facts["learning rate"].endswith("(found by trial for the built-in model)")


def test_a_reference_is_read_from_its_own_source_or_from_the_policys(monkeypatch):
    section = {"device": "cpu", "threads": 1, "reference": "reload"}
    configs = [resolved("grpo", {"model": {**section, **other}}) for other in ({}, {"reference_model": "elsewhere"})]
    runtime, sources = load_runtime(configs[0]), []

    def load(name, *rest):
        sources.append(name)
        return SimpleNamespace(model=runtime.policy.model, tokenizer=runtime.tokenizer)

    monkeypatch.setattr(references, "load_model", load)
    for config in configs:
        with references.build_reference(config, runtime, "frozen").open():
            pass
    assert sources == ["whetstone", "elsewhere"]


def test_with_adapters_the_reference_is_the_base_unless_both_are_asked_in_one_pass():
    config, runtime = resolved("grpo", {"model": {"lora": 2}}), SimpleNamespace(policy=None, shards=None)
    assert isinstance(references.build_reference(config, runtime, "frozen", {"ref_logp"}), AdapterFreeReference)
    with pytest.raises(WhetError, match="grpo asks policy and reference in one pass"):
        references.build_reference(config, runtime, "frozen", {"divergence"})
    with pytest.raises(WhetError, match=r"objective\.reference=ema moves the reference"):
        references.build_reference(config, runtime, "ema")


def test_a_pass_is_as_large_as_a_quarter_of_the_gpu_holds():
    gigabytes = 1e9
    sizes = {  # width, layers -> tokens of a pass on GPUs of 24, 48, 80 and 141 GB
        (576, 30): (16384, 32768, 65536, 65536),
        (896, 24): (16384, 32768, 32768, 65536),
        (1536, 28): (16384, 16384, 16384, 32768),
        (3584, 28): (16384, 16384, 16384, 16384),
    }
    for (width, layers), expected in sizes.items():
        found = tuple(pass_tokens(0, width, layers, memory * gigabytes) for memory in (24, 48, 80, 141))
        assert found == expected, (width, layers)
    assert pass_tokens(0, 576, 30, 80 * gigabytes, 4) == 32768
    assert pass_tokens(100, 576, 30, 80 * gigabytes) == 100
    assert pass_tokens(0, 576, 30, 0) == 16384


def test_passes_are_sized_when_the_model_is_there():
    config = resolved("sft", {"model": {"name": "whetstone", "device": "cpu"}})
    assert config.batch.micro_batch_tokens == 0
    policy = load_runtime(config).policy
    assert sized_passes(config, policy).batch.micro_batch_tokens == 16384
    asked = resolved("sft", {"model": {"name": "whetstone"}, "batch": {"micro_batch_tokens": 300}})
    assert sized_passes(asked, policy).batch.micro_batch_tokens == 300
    with pytest.raises(ValueError, match="micro_batch_tokens is 0"):
        micro_batches([BlockSize(1, 4, 4)], 0, packed=True)
