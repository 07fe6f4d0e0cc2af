"""Weights of 16 bits on a CUDA device: graphs and trainer agree, there is one copy, and steps are not lost."""

import gc
from dataclasses import replace

import pytest
import torch
import transformers

from whet.model.causal_lm import causal_lm
from whet.model.lora import LowRank, adapter_factors, add_adapters, unmerged_layers
from whet.model.low_precision import widen_vectors
from whet.model.token_logp import token_logp
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"),
]

SHAPE = {
    **{"vocab_size": 2000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024},
}


class Words:
    eos_token_id = 1

    def decode(self, tokens, **_):
        return " ".join(map(str, tokens))


def model_of(family, kept=torch.bfloat16):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SHAPE, tie_word_embeddings=False)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data.mul_(3)
    model.to(kept)
    if kept.itemsize < 4:
        widen_vectors(model)
    return model


def adapted(model, merged=False):
    add_adapters(model, LowRank(16, 32.0), merged=merged)
    for name, factor in adapter_factors(model).items():
        if name.endswith(".up"):
            torch.nn.init.normal_(factor, 0, 0.02)
    for layer in unmerged_layers(model).values():
        layer.merge()
    return model


def gap_of(lm):
    """Between sampler and trainer, as a run of RL has them."""
    lm = replace(lm, follows_sampler=True)
    engine = TorchEngine(lm, Words(), (), context=1024)
    requests = [Request(tuple(range(5 + row, 5 + row + 300)), 10 * row + copy) for row in range(3) for copy in range(6)]
    samples = engine.generate(requests, Sampling(64))
    found = [token_logp(lm, each.tokens[None], each.action[None]).logp[0].detach().cpu() for each in samples]
    gap = torch.cat([(one - two.behavior_logp)[two.action].abs() for one, two in zip(found, samples, strict=True)])
    return float(gap.mean()), engine.uses_graphs


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "olmo2"])
def test_graphs_and_trainer_agree_with_adapters_beside_the_base(family, monkeypatch):
    gap, graphs = gap_of(causal_lm(adapted(model_of(family)), torch.bfloat16))
    other, _ = gap_of(causal_lm(adapted(model_of(family, torch.float32), merged=True), torch.bfloat16))
    assert graphs and gap < 1.5 * other + 1e-3  # the noise of merged float32 weights
    monkeypatch.setattr("whet.rollout.cuda_decode.MERGED_SHARE", 0.0)
    apart, _ = gap_of(causal_lm(adapted(model_of(family)), torch.bfloat16))
    assert apart < 1.5 * other + 1e-3  # as on a device without memory for copies


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_full_weights_of_16_bits_agree(family):
    gap, graphs = gap_of(causal_lm(model_of(family), torch.bfloat16))
    assert graphs == (family == "llama") and gap < 3e-2


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_factor_gradients_are_those_of_merged_float32_weights(family):
    rows = torch.randint(5, 2000, (6, 200), generator=torch.Generator().manual_seed(1))
    action = (torch.arange(200) >= 80).expand(6, -1)
    found = []
    for kept, merged in ((torch.bfloat16, False), (torch.float32, True)):
        model = model_of(family, torch.bfloat16)
        if merged:
            model.float()
        torch.manual_seed(3)
        adapted(model, merged)
        if merged:
            from whet.model.lora import merge_adapters

            merge_adapters(model)
        lm = causal_lm(model, torch.bfloat16 if kept == torch.bfloat16 else torch.float32)
        token_logp(lm, rows, action).logp.sum().backward()
        found.append({name: each.grad for name, each in adapter_factors(model).items()})
    for name, exact in found[1].items():
        assert float((found[0][name] - exact).norm() / exact.norm()) < 0.1, name


def held():
    """Bytes that tensors hold, without cuBLAS's workspaces: there is one for each stream that captured a graph."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def test_nothing_is_kept_twice(monkeypatch):
    monkeypatch.setattr("whet.rollout.cuda_decode.MERGED_SHARE", 0.0)  # no copies for the sampler
    model = adapted(model_of("llama"))
    lm = causal_lm(model, torch.bfloat16)
    before = held()
    gap_of(lm)
    weights = sum(each.nbytes for each in model.parameters())
    head = model.lm_head.weight.nbytes
    # besides: the head in float16, factors in bfloat16, tables of the rotation
    assert held() - before < head + 0.25 * weights


@pytest.mark.parametrize("states", ["float32", "int8"])
def test_the_optimizer_of_16_bits_steps_on_the_device(states):
    if states == "int8":
        pytest.importorskip("bitsandbytes", reason="pip install 'whet[bits]'")
    from whet.training.optimizer import adamw, optimizer_tensors, restore_optimizer
    from whet.training.sections import OptimizerSection

    model = model_of("llama")
    settings = OptimizerSection(learning_rate=1e-3, states=states)
    optimizer = adamw(model, settings)
    for step in range(3):
        torch.manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        if step == 2:
            saved = {name: each.clone() for name, each in optimizer_tensors(model, optimizer).items()}
            weights = {name: each.detach().clone() for name, each in model.named_parameters()}
        optimizer.step()
    after = {name: each.detach().clone() for name, each in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    again = adamw(model, settings)
    restore_optimizer(model, again, saved)
    again.step()
    assert all(torch.equal(each, after[name]) for name, each in model.named_parameters())
    assert not torch.equal(after["lm_head.weight"], weights["lm_head.weight"])


def test_four_bits():
    pytest.importorskip("bitsandbytes", reason="pip install 'whet[bits]'")
    from whet.model.quantized import pack_four_bits

    model = model_of("llama")
    add_adapters(model, LowRank(8, 16.0), merged=False, pack=pack_four_bits)
    for name, factor in adapter_factors(model).items():
        if name.endswith(".up"):
            torch.nn.init.normal_(factor, 0, 0.02)
    lm = causal_lm(model, torch.bfloat16)
    gap, graphs = gap_of(lm)
    assert not graphs and gap < 3e-2
    rows = torch.randint(5, 2000, (2, 60))
    token_logp(lm, rows, (torch.arange(60) >= 20).expand(2, -1)).logp.sum().backward()
    assert all(bool(each.grad.any()) for each in adapter_factors(model).values())
