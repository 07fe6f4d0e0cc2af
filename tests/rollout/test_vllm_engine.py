"""vLLM as an engine, over a stand-in for vLLM; tests/peers has the real one."""

import copy

import pytest
import torch

from tests.support.fake_vllm import install
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.rollout.torch_engine import TorchEngine
from whet.rollout.vllm_engine import VLLMEngine, receive, vllm_version
from whet.rollout.weight_sync_check import PolicyMismatch, PolicyWatch
from whet.types import Request, Sampling, StopReason, WhetError

PROMPT = (5, 6, 7, 8)
REQUESTS = [Request(PROMPT, seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def loaded():
    return load_model("whetstone")


def made(loaded, **settings):
    policy = causal_lm(copy.deepcopy(loaded.model))
    return policy, VLLMEngine(policy, loaded.tokenizer, loaded.end_tokens, context=128, **settings)


def moved(policy, scale=1e-3):
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(scale * torch.ones_like(weight).cumsum(-1).cos())
    return policy.model.state_dict()


@pytest.mark.parametrize("version", ["0.24.0", "0.32.0"])
def test_it_writes_what_the_trainer_would_at_every_version(loaded, monkeypatch, version):
    state = install(monkeypatch, version)
    policy, engine = made(loaded)
    ours = TorchEngine(policy, loaded.tokenizer, loaded.end_tokens, context=128)
    watch = PolicyWatch(policy, engine, 0.7, "vllm")
    sampling = Sampling(16, temperature=0.7)
    for number in (0, 1):
        if number:
            watch.load(moved(policy), number)
        theirs, mine = engine.generate(REQUESTS, sampling), ours.generate(REQUESTS, sampling)
        assert [one.tokens.tolist() for one in theirs] == [one.tokens.tolist() for one in mine]
        assert [one.stop for one in theirs] == [one.stop for one in mine]
        assert [one.completion for one in theirs] == [one.completion for one in mine]
        assert {one.versions for one in theirs} == {(number, number)}
        assert watch.check(theirs)["replay_gap"] < 1e-5
    expected = ["start True", "update", "finish"] if state.is_old else ["unpack", "update", "repack", "finish 1"]
    assert state.events[-len(expected) - 1 :] == [*expected, "reset"]


def test_tied_weights_are_sent_under_each_of_their_names_and_a_stale_head_is_noticed(loaded, monkeypatch):
    install(monkeypatch)
    policy, engine = made(loaded)
    assert "lm_head.weight" in engine.arrived and "model.embed_tokens.weight" in engine.arrived
    install(monkeypatch, tied_head=True)
    policy, engine = made(loaded)
    watch = PolicyWatch(policy, engine, 1.0, "vllm")
    with pytest.raises(PolicyMismatch, match=r"version 0.*tied to the embeddings"):
        watch.check(engine.generate(REQUESTS, Sampling(16)))


def test_weights_that_get_lost_on_the_way_are_noticed_at_the_load(loaded, monkeypatch):
    state = install(monkeypatch)
    policy, engine = made(loaded)
    watch = PolicyWatch(policy, engine, 1.0, "vllm")
    state.faults["lost"] = True
    with pytest.raises(PolicyMismatch, match=r"version 1: \d+ of \d+ tensors did not arrive in the engine vllm"):
        watch.load(moved(policy), 1)


def test_a_prefix_cache_that_is_not_emptied_is_an_error(loaded, monkeypatch):
    state = install(monkeypatch)
    policy, engine = made(loaded)
    state.faults["busy"] = True
    with pytest.raises(PolicyMismatch, match="version 1: vLLM did not empty its prefix cache"):
        engine.load(moved(policy), 1)


def test_between_processes_weights_go_through_a_file_that_is_gone_afterwards(loaded, monkeypatch):
    install(monkeypatch)
    policy, engine = made(loaded, process=True, dtype="bfloat16")
    watch = PolicyWatch(policy, engine, 1.0, "vllm")
    watch.load(moved(policy), 1)  # the fingerprints, of what was written and of what was read in bfloat16, agree
    assert not [file for file in engine._folder.iterdir() if "weights" in file.name]
    assert engine.dtype == torch.bfloat16
    monkeypatch.setattr("whet.rollout.vllm_engine.receive", lambda *_: None)
    with pytest.raises(PolicyMismatch, match="version 2: no process of vLLM says that it received"):
        watch.load(moved(policy), 2)


def test_a_file_is_read_tensor_by_tensor_and_what_was_read_is_noted(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(3), "b": torch.zeros(2)}, str(tmp_path / "w"))
    seen = {}
    receive(str(tmp_path / "w"), lambda pairs: seen.update(pairs))
    assert sorted(seen) == ["a", "b"] and len(list(tmp_path.glob("w.*.arrived"))) == 1


def test_what_is_asked_of_vllm(loaded, monkeypatch):
    state = install(monkeypatch)
    _, engine = made(loaded, max_length=64, rows=7, options={"swap_space": 0})
    arguments = state.made[0].arguments
    assert arguments["max_model_len"] == 64 and arguments["max_num_seqs"] == 7 and arguments["swap_space"] == 0
    assert arguments["enforce_eager"] is True and "gpu_memory_utilization" not in arguments
    stop = ((9,), (10, 11))
    engine.generate([Request(PROMPT, 2**64 - 1, max_new_tokens=3)], Sampling(9, stop=("x",), stop_tokens=stop))
    (asked,) = state.made[0].asked
    assert asked.max_tokens == 3 and asked.seed == (2**64 - 1) % 2**63 and asked.logprobs == 0 and asked.ignore_eos
    assert asked.stop_token_ids == sorted({*loaded.end_tokens, 9}) and asked.stop == ["x"] and asked.detokenize
    assert "sequences of stop tokens" in str(engine.path_for(Sampling(9, stop_tokens=stop), 4))


def test_a_completion_ends_where_whets_own_rule_ends_it(loaded, monkeypatch):
    install(monkeypatch)
    policy, engine = made(loaded)
    ours = TorchEngine(policy, loaded.tokenizer, loaded.end_tokens, context=128)
    (free,) = ours.generate(REQUESTS[:1], Sampling(12))
    new = free.tokens[free.action].tolist()
    stop = tuple(new[1:3])
    sampling = Sampling(12, stop_tokens=(stop,))
    (mine,), (theirs,) = ours.generate(REQUESTS[:1], sampling), engine.generate(REQUESTS[:1], sampling)
    assert theirs.tokens.tolist() == mine.tokens.tolist() and theirs.stop is mine.stop is StopReason.TEXT


def test_truncated_sampling_is_for_evaluation_only(loaded, monkeypatch):
    install(monkeypatch)
    _, engine = made(loaded)
    engine.generate(REQUESTS, Sampling(4, top_k=3))
    with pytest.raises(WhetError, match="a trainer must know which: vLLM does not say"):
        engine.generate(REQUESTS, Sampling(4, top_k=3, keeps_support=True))


def test_a_prompt_that_does_not_fit_and_an_answer_without_log_probabilities_are_errors(loaded, monkeypatch):
    state = install(monkeypatch)
    _, engine = made(loaded)
    with pytest.raises(WhetError, match="exceed the model's context of 128"):
        engine.generate([Request((1,) * 127, 1)], Sampling(4))
    state.faults["no_logprobs"] = True
    with pytest.raises(WhetError, match="0 log-probabilities"):
        engine.generate(REQUESTS, Sampling(4))


def test_it_sleeps_only_on_a_gpu_and_wakes_when_it_is_needed(loaded, monkeypatch):
    state = install(monkeypatch)
    policy, engine = made(loaded, sleep=True)
    engine.rest()
    assert not any(event.startswith("sleep") for event in state.events)  # a CPU build ignores it
    engine._sleeps = True
    engine.rest()
    engine.rest()
    engine.load(moved(policy), 1)
    assert [event for event in state.events if event in ("sleep 1", "wake")] == ["sleep 1", "wake"]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"dtype": "float23"}, "dtype of the engine vllm is 'float23'.*did you mean"),
        ({"graphs": "yes"}, "graphs of the engine vllm is 'yes'"),
        ({"devices": "1"}, "add process=true"),
    ],
)
def test_settings_that_cannot_be_are_one_line(loaded, monkeypatch, settings, complaint):
    install(monkeypatch)
    with pytest.raises(WhetError, match=complaint):
        made(loaded, **settings)


def test_a_version_outside_the_range_a_missing_package_and_a_failed_start_are_one_line(loaded, monkeypatch):
    for version in ("0.23.1", "0.33.0", "1.0.0"):
        install(monkeypatch, version)
        with pytest.raises(WhetError, match=rf"vLLM {version} is installed and .* supports vllm>=0\.24,<0\.33"):
            made(loaded)
    install(monkeypatch, "0.28.0+cpu")
    assert vllm_version() == "0.28.0+cpu"
    install(monkeypatch, start=True)
    with pytest.raises(WhetError, match=r"vLLM 0\.32\.0 did not start: RuntimeError: no room"):
        made(loaded)
    monkeypatch.undo()
    with pytest.raises(WhetError, match=r"install whet\[vllm\]"):
        vllm_version()


def test_the_environment_is_as_it_was(loaded, monkeypatch):
    install(monkeypatch)
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    import os

    before, threads = dict(os.environ), torch.get_num_threads()
    made(loaded)
    assert dict(os.environ) == before and torch.get_num_threads() == threads
