"""What was chosen for a model is said, with the reason."""

from whet.build.assembly import assemble
from whet.build.runtime import load_runtime, thread_choice
from whet.config.config import resolved
from whet.model.block import NotDescribed


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
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert thread_choice(0, 1_000)[0] == 5 and thread_choice(2, 1_000)[0] == 2


def assembled(**sections):
    return assemble(resolved("grpo", {"model": {"device": "cpu", "threads": 1}, **sections}))


def test_a_run_that_samples_says_how_completions_are_written(monkeypatch):
    data = {"data": {"source": "task:arithmetic"}, "batch": {"prompts_per_step": 2}, "eval": {"prompts": 2}}
    assert assembled(**data).facts["decode path"] == "fused decoder"
    monkeypatch.setattr("whet.rollout.torch_engine.fused_decoder", lambda base: NotDescribed("a norm is unknown"))
    assert assembled(**data).facts["decode path"] == "the model's own layers on whet's buffers (a norm is unknown)"
