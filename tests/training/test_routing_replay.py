"""Runs of a mixture of experts: whose experts the updates use, what is reported, and what is refused."""

import copy
from pathlib import Path

import pytest
import torch
import transformers

import whet
from whet import registry
from whet.model.causal_lm import causal_lm
from whet.record.log import read_metrics
from whet.rollout.buffer import RolloutBatch, RolloutBuffer
from whet.rollout.engines import ENGINES
from whet.rollout.torch_engine import TorchEngine
from whet.training.step_metrics import (
    disagreement,
    drift_metrics,
    expert_counts,
    load_metrics,
    replayed_share,
    used_experts,
)
from whet.types import Group, Prompt, Sample, StopReason, WhetError

BUILTIN = Path(whet.__file__).parent / "model/builtin/whetstone"


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUILTIN)
    torch.manual_seed(0)
    settings = transformers.Qwen3MoeConfig(
        **{"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "moe_intermediate_size": 16},
        **{"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "max_position_embeddings": 256},
        **{"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None},
        initializer_range=0.2,
    )
    transformers.Qwen3MoeForCausalLM(settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def jittery_engine(monkeypatch):
    """A sampler with the same weights in a copy of its own, whose routers take the next best expert now and then."""

    def maker(policy, tokenizer, end_tokens, *, context):
        twin = copy.deepcopy(policy.model)
        for module in twin.modules():
            if type(module).__name__.endswith("TopKRouter"):
                module.forward = jittery(module)
        return TorchEngine(causal_lm(twin), tokenizer, end_tokens, context=context, owns_weights=True)

    def jittery(router):
        def forward(states):
            states = states.reshape(-1, states.shape[-1])
            logits = states @ router.weight.T
            share = logits.softmax(-1)
            jitter = (1000 * states.sum(-1, keepdim=True) + torch.arange(router.num_experts)).sin() * 0.1
            index = (share + jitter).topk(router.top_k, dim=-1).indices
            value = share.gather(-1, index)
            return logits, value / value.sum(-1, keepdim=True), index

        return forward

    monkeypatch.setitem(ENGINES, "jittery", maker)
    assert registry.lookup("engine", "jittery") is maker
    return "jittery"


def letters(prompt, completion):
    return float(len(completion) % 3)


def trained(model, folder, replay, method="grpo", engine="torch", updates=2, **batch):
    run = whet.train(
        method,
        model=model,
        reward=letters,
        folder=str(folder),
        console=False,
        config={
            "steps": 2,
            "data": {"count": 32},
            "model": {"device": "cpu", "precision": "fp32", "threads": 1},
            "sampling": {"max_new_tokens": 8, "engine": engine},
            "batch": {
                **{"prompts_per_step": 3, "group_size": 4, "updates_per_step": updates, "routing_replay": replay},
                **batch,
            },
            "optimizer": {"learning_rate": 3e-3},
            "eval": {"prompts": 0},
            **({"objective": {"mismatch": "truncate"}} if batch.get("staleness") else {}),
        },
    )
    return [line["metrics"] for line in read_metrics(run.folder) if "metrics" in line]


def test_a_sampler_that_routes_otherwise_is_seen_and_replayed(mixture, jittery_engine, tmp_path):
    found = {
        replay: trained(mixture, tmp_path / replay, replay, engine=jittery_engine)
        for replay in ("none", "sampler", "trainer")
    }
    first = {name: steps[0] for name, steps in found.items()}
    # the first step has drawn the same completions in all three
    assert first["none"]["router_drift"] == first["trainer"]["router_drift"] > 0.1
    assert first["none"]["router_drift_layers"] < first["none"]["router_drift"]
    assert first["none"]["sampler_gap"] == first["trainer"]["sampler_gap"]
    assert first["sampler"]["sampler_gap"] < 0.5 * first["none"]["sampler_gap"]
    assert "replayed_experts" not in first["none"]
    assert first["sampler"]["replayed_experts"] == first["trainer"]["replayed_experts"] == 1.0
    for steps in found.values():
        for metrics in steps:
            assert 0 < metrics["router_shift"] < 1  # the second update sees what the first has moved
            assert 1 <= metrics["expert_load_max"] <= 4 and 0 < metrics["expert_load_evenness"] <= 1
            assert 0 <= metrics["dead_experts"] < 1


def test_a_shared_sampler_agrees_with_the_trainer(mixture, tmp_path):
    (first, _) = trained(mixture, tmp_path / "shared", "sampler", method="gspo", updates=1)
    assert first["router_drift"] == 0 and first["replayed_experts"] == 1
    assert first["sampler_gap"] < 1e-4 and "router_shift" not in first


def test_with_staleness_the_experts_of_the_older_sampler_wait_with_the_samples(mixture, tmp_path):
    (_, second) = trained(mixture, tmp_path / "stale", "sampler", staleness=1)
    assert second["replayed_experts"] == 1 and second["router_drift"] > 0


def test_what_cannot_be_replayed_is_refused(mixture, tmp_path, monkeypatch):
    with pytest.raises(WhetError, match=r"routing_replay=sampler: the model is no mixture of experts; drop it"):
        trained("whetstone", tmp_path / "dense", "sampler")
    with pytest.raises(WhetError, match="no effect on a single update"):
        trained(mixture, tmp_path / "single", "trainer", updates=1)

    def slow(policy, tokenizer, end_tokens, *, context):
        return TorchEngine(policy, tokenizer, end_tokens, context=context, fast=False)

    monkeypatch.setitem(ENGINES, "slow", slow)
    with pytest.raises(WhetError, match="noted on whet's buffers only"):
        trained(mixture, tmp_path / "slow", "sampler", engine="slow")

    class Silent:
        def __init__(self, policy, tokenizer, end_tokens, *, context):
            self._engine = slow(policy, tokenizer, end_tokens, context=context)

        def generate(self, requests, sampling):
            return self._engine.generate(requests, sampling)

        def load(self, weights, version):
            self._engine.load(weights, version)

    monkeypatch.setitem(ENGINES, "silent", Silent)
    with pytest.raises(Exception, match="do not say which experts wrote them"):
        trained(mixture, tmp_path / "silent", "sampler", engine="silent")


def test_a_sample_that_waits_keeps_its_experts():
    prompt, experts = Prompt("p", (), "x"), torch.arange(12, dtype=torch.int8).view(3, 2, 2)
    tokens = torch.arange(3)
    sample = Sample(tokens, tokens > 0, torch.zeros(3), (0, 0), StopReason.END, "", routed_experts=experts)
    buffer, again = RolloutBuffer(1), RolloutBuffer(1)
    buffer.add(RolloutBatch(((0, Group(prompt, (sample,))),), (), 1, 1))
    again.restore(buffer.state(), buffer.tensors(), [prompt])
    assert torch.equal(again.take().groups[0][1].samples[0].routed_experts, experts)


def test_load_and_drift_of_known_tables():
    # one row, three tokens (the last unknown), one layer, two experts of four
    first = torch.tensor([[[[0, 1]], [[2, 3]], [[-1, -1]]]], dtype=torch.int8)
    second = torch.tensor([[[[1, 0]], [[2, 1]], [[0, 1]]]], dtype=torch.int8)
    assert disagreement(first, second) == (0.5, 0.5)
    assert drift_metrics("d", first, None) == {}
    assert drift_metrics("d", first, torch.full_like(first, -1)) == {}
    counts = expert_counts(first, 4)
    assert counts.tolist() == [[1, 1, 1, 1]]
    assert load_metrics(counts) == pytest.approx(
        {"expert_load_max": 1.0, "expert_load_evenness": 1.0, "dead_experts": 0.0}
    )
    uneven = load_metrics(torch.tensor([[6, 2, 0, 0]]))
    assert uneven["expert_load_max"] == pytest.approx(3.0) and uneven["dead_experts"] == 0.5
    assert uneven["expert_load_evenness"] == pytest.approx(0.4056, abs=1e-4)
    assert load_metrics(torch.zeros(1, 4, dtype=torch.long)) == {}
    # a token that was not computed stays unknown, whatever was to be replayed
    assert torch.equal(used_experts(first, second)[0, 2], first[0, 2])
    assert torch.equal(used_experts(first, second)[0, :2], second[0, :2])
    assert replayed_share(first, second) == {"replayed_experts": 1.0}
    assert replayed_share(second, first)["replayed_experts"] == pytest.approx(2 / 3)
