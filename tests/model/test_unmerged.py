"""A base of 16 bits with its adapters apart: one copy for everybody, no step lost, the reference exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.func import functional_call

from tests.support.checkpoints import save_checkpoint
from tests.support.for_every import for_every
from whet.model.block import blocks_of
from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.checkpoint import load_checkpoint, weights_digest
from whet.model.fused_trunk import fused_refusal, fused_states, fused_works
from whet.model.fused_weights import NO_FACTORS, MergedWeights, decode_weights, fused_weights, layer_weights
from whet.model.lora import LowRank, adapted_layers, adapter_factors, add_adapters, unmerged_layers
from whet.model.low_precision import widen_vectors
from whet.model.reference import AdapterFreeReference
from whet.model.shared_prefix import shared_prefix_batch
from whet.model.shared_prefix_attention import shared_prefix_states, trial_rows
from whet.model.token_logp import token_logp
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sampling, WhetError

SHAPE = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
}
BF16 = torch.bfloat16


def model_of(family: str, dtype: torch.dtype = BF16) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SHAPE)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.3)
    model.to(BF16).to(dtype)  # the same numbers in every type
    if dtype == BF16:
        widen_vectors(model)
    return model


def adapted(model: Any, up: float = 0.05, **settings: Any) -> Any:
    add_adapters(model, LowRank(3, 6.0, **settings), merged=False)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, factor in adapter_factors(model).items():
            if name.endswith(".up"):
                factor.copy_(torch.randn(factor.shape) * up)
    return model


def rows() -> tuple[Tensor, Tensor]:
    return trial_rows(97, torch.device("cpu"))


def naive_grads(
    family: str, weigh: Any, factors: dict[str, Tensor], used: dict[str, Tensor] | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """States before each action and their gradients, transcribed in float64: every weight is a plain sum.

    Or it is as `used`, by the name of its layer, and the gradient is taken there.
    """
    plain = model_of(family, torch.float64)
    learned = {name: each.detach().double().requires_grad_() for name, each in factors.items()}
    layers = {name.rpartition(".")[0] for name in learned}
    weights = {}
    for name in layers:
        step = 2.0 * learned[f"{name}.up"] @ learned[f"{name}.down"]
        base = plain.get_submodule(name).weight.detach() if used is None else used[name].double() - step.detach()
        weights[f"{name}.weight"] = base + step
    tokens, action = rows()
    trunk = {name.removeprefix("model."): value for name, value in weights.items()}
    states = functional_call(plain.model, trunk, kwargs={"input_ids": tokens}).last_hidden_state
    states = states[:, :-1][action[:, 1:]]
    grads = torch.autograd.grad((states * weigh(states)).sum(), list(learned.values()))
    return states.detach(), dict(zip(learned, grads, strict=True))


def weights_of(values: Tensor) -> Tensor:
    return torch.linspace(-3, 3, values.numel(), dtype=values.dtype).sin().view_as(values)


def grads_of(model: Any, states: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    (states * weights_of(states)).sum().backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_gradients_are_those_of_the_plain_sum_in_double_precision(family: str, exact: None) -> None:
    model = adapted(model_of(family, torch.float64))
    expected, grads = naive_grads(family, weights_of, adapter_factors(model))
    tokens, action = rows()
    states = model.model(input_ids=tokens).last_hidden_state[:, :-1][action[:, 1:]]
    torch.testing.assert_close(states, expected, rtol=1e-10, atol=1e-12)
    found = grads_of(model, states)
    assert found.keys() == grads.keys() and len(grads) == 2 * 7 * 2
    for name, grad in grads.items():
        assert grad.norm() > 0
        torch.testing.assert_close(found[name], grad, rtol=1e-9, atol=1e-11, msg=name)


@for_every([("llama", torch.float32), ("qwen2", torch.float32), ("qwen3", torch.float32), ("qwen3", BF16)])
def test_the_written_out_layers_find_the_same(family: str, dtype: torch.dtype) -> None:
    same_in_written_out_layers(family, dtype)


@pytest.mark.slow
@for_every(["llama", "qwen2"])
def test_the_written_out_layers_find_the_same_in_bfloat16(family: str) -> None:
    same_in_written_out_layers(family, BF16)


def same_in_written_out_layers(family: str, dtype: torch.dtype) -> None:
    model = adapted(model_of(family, dtype))
    lm = causal_lm(model, dtype)
    assert not lm.whole and fused_works(lm), fused_refusal(lm)
    expected, grads = naive_grads(family, weights_of, adapter_factors(model))
    near, near_grads = (1e-5, 1e-4) if dtype == torch.float32 else (2e-2, 8e-2)
    for recompute in ("none", "wide", "layers"):
        states = fused_states(replace(lm, recompute=recompute), shared_prefix_batch(*rows()))
        assert (states - expected).norm() <= near * expected.norm(), recompute
        ours = grads_of(model, states)
        assert ours.keys() == grads.keys()
        for name, grad in grads.items():
            assert ours[name].dtype == torch.float32
            assert (ours[name] - grad).norm() <= near_grads * grad.norm(), (recompute, name)


def test_the_modules_own_path_agrees_and_some_matrices_may_go_without() -> None:
    model = adapted(model_of("llama"), matrices=("q_proj", "up_proj"))
    lm, tree = causal_lm(model, BF16), shared_prefix_batch(*rows())
    ours, theirs = (grads_of(model, states(lm, tree)) for states in (fused_states, shared_prefix_states))
    assert ours.keys() == theirs.keys() and len(ours) == 8
    for name, grad in theirs.items():
        assert (ours[name] - grad).norm() <= 6e-2 * grad.norm(), name


def test_there_is_one_copy_of_the_base() -> None:
    model = adapted(model_of("llama"))
    lm = causal_lm(model, BF16)
    before = {name: layer.weight.detach().clone() for name, layer in unmerged_layers(model).items()}
    weights = fused_weights(blocks_of(lm), BF16)
    for name, layer in unmerged_layers(model).items():
        assert torch.equal(layer.weight, before[name]), name
    layer = model.model.layers[1]
    owned = {
        weights.blocks[1].qkv: (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
        weights.blocks[1].gate_up: (layer.mlp.gate_proj, layer.mlp.up_proj),
        weights.blocks[1].down: (layer.mlp.down_proj,),
    }
    for place, modules in owned.items():
        for each in modules:
            assert each.weight.untyped_storage().data_ptr() == place.untyped_storage().data_ptr()
            assert not hasattr(each, "base")
    assert weights.embedding.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert fused_weights(blocks_of(lm), BF16) is weights


def test_a_step_that_16_bits_would_lose_is_kept() -> None:
    """Far below half a unit in the last place of most weights: a merged bfloat16 matrix would hardly change."""
    model = adapted(model_of("llama"), up=2e-6)
    lm = causal_lm(model, BF16)
    lost = [(each.merged() == each.weight).float().mean() for each in unmerged_layers(model).values()]
    assert min(lost) > 0.95
    x = torch.randn(4, 32).double()
    layer = model.model.layers[0].self_attn.q_proj
    exact = 2.0 * x @ (layer.up.double() @ layer.down.double()).T
    place = fused_weights(blocks_of(lm), BF16).blocks[0]
    factors = place.factors[0]
    assert factors is not None
    span = factors.spans[0]
    assert span is not None
    found = x @ factors.down.double()[span[1]].T @ factors.up.double()[span].T
    assert (found - exact).norm() <= 1e-2 * exact.norm()


def test_the_sampler_reads_copies_that_are_right_on_average() -> None:
    """A step far below half a unit in the last place: rounded to the nearest, the copies would be the base."""
    model = adapted(model_of("llama"), up=2e-6)
    lm = causal_lm(model, BF16)
    weights = fused_weights(blocks_of(lm), BF16)
    assert decode_weights(weights, 0.0) is weights  # no memory for copies
    copies = decode_weights(weights, 1e9)
    assert isinstance(copies, MergedWeights)
    steps, seen = [], []
    for block, copy in zip(weights.blocks, copies.blocks, strict=True):
        assert copy.factors == NO_FACTORS
        for name, factors in zip(("qkv", "output", "gate_up", "down"), block.factors, strict=True):
            assert factors is not None
            base = getattr(block, name)[:, : factors.down.shape[1]].double()
            steps.append((factors.up.double() @ factors.down.double()).flatten())
            seen.append((getattr(copy, name).double() - base).flatten())
    step, change = torch.cat(steps), torch.cat(seen)
    # the part of the change that lies along the step is the whole step; the noise around it is what is left
    along = float(step @ change / (step @ step))
    noise = float((change - step).norm() / step.norm() / len(step) ** 0.5) * 4
    assert noise < 0.5 and abs(along - 1) < noise, (along, noise)
    again = [block.qkv.clone() for block in copies.blocks]
    copies.refresh()
    assert all(torch.equal(block.qkv, before) for block, before in zip(copies.blocks, again, strict=True))
    for layer in unmerged_layers(model).values():
        layer.unmerge()
    copies.refresh()
    for block, copy in zip(weights.blocks, copies.blocks, strict=True):
        assert torch.equal(copy.gate_up, block.gate_up[:, : copy.gate_up.shape[1]])


def test_training_reads_the_copies_of_the_sampler() -> None:
    """The states are those of the rounded copies, the gradients are taken there, and off means the base."""
    model = adapted(model_of("qwen2"), up=0.02)
    alone = causal_lm(model, BF16)
    lm = replace(alone, follows_sampler=True)
    assert fused_works(lm), fused_refusal(lm)
    stack, tree = blocks_of(lm), shared_prefix_batch(*rows())
    apart = fused_states(lm, tree).detach()
    copies = decode_weights(fused_weights(stack, BF16), 1e9)
    assert isinstance(copies, MergedWeights) and layer_weights(stack, BF16, True, True)[0] is copies.blocks
    assert torch.equal(fused_states(alone, tree), apart)  # whoever is not trained on what was just written
    used = {}
    for number, block in enumerate(copies.blocks):
        for group, names in (
            (block.qkv, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            (block.output, ("self_attn.o_proj",)),
            (block.gate_up, ("mlp.gate_proj", "mlp.up_proj")),
            (block.down, ("mlp.down_proj",)),
        ):
            names = tuple(f"model.layers.{number}.{name}" for name in names)
            sizes = [len(model.get_submodule(name).weight) for name in names]
            used |= dict(zip(names, group.clone().split(sizes), strict=True))
    expected, grads = naive_grads("qwen2", weights_of, adapter_factors(model), used)
    states = fused_states(lm, tree)
    assert (states - expected).norm() <= 2e-2 * expected.norm()
    ours = grads_of(model, states)
    assert ours.keys() == grads.keys()
    for name, grad in grads.items():
        assert (ours[name] - grad).norm() <= 8e-2 * grad.norm(), name
    with torch.no_grad():  # a step: the copies follow it
        model.model.layers[0].mlp.down_proj.up.add_(0.5)
    assert (fused_states(lm, tree) - states).norm() > 2e-2 * states.norm()
    with AdapterFreeReference(lm).open() as reference, torch.no_grad():
        plain = causal_lm(model_of("qwen2"), BF16)
        assert torch.equal(token_logp(reference, *rows()).logp, token_logp(plain, *rows()).logp)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.up.sub_(0.5)
    del copies  # the sampler is gone, and its copies with it
    assert torch.equal(fused_states(lm, tree), apart)


def test_the_reference_is_the_base_bit_for_bit() -> None:
    plain = causal_lm(model_of("llama"), BF16)
    model = adapted(model_of("llama"))
    lm = causal_lm(model, BF16)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    moved = token_logp(lm, *rows()).logp.detach()
    with AdapterFreeReference(lm).open() as reference, torch.no_grad():
        known = token_logp(reference, *rows()).logp
        with_modules = reference.hidden(rows()[0])
    assert torch.equal(known, token_logp(plain, *rows()).logp)
    assert torch.equal(with_modules, plain.hidden(rows()[0]))
    assert (moved - known).abs().max() > 1e-3
    assert torch.equal(token_logp(lm, *rows()).logp, moved)  # on again
    assert all(torch.equal(value, first[name]) for name, value in model.state_dict().items())


def test_a_checkpoint_is_a_whole_model_and_an_adapter(tmp_path: Any, tokenizer: Any, make_llama: Any) -> None:
    def made() -> Any:
        model = make_llama().to(BF16)
        widen_vectors(model)
        return model

    model = adapted(made())
    lm = causal_lm(model, BF16)
    fused_weights(blocks_of(lm), BF16)  # weights are views of larger places from here on
    path = save_checkpoint(tmp_path, 7, model, tokenizer, {}, {})
    whole = transformers.AutoModelForCausalLM.from_pretrained(path)
    assert whole.dtype == BF16
    for name, layer in unmerged_layers(model).items():
        exact = layer.weight.double() + layer.scale * layer.up.double() @ layer.down.double()
        assert torch.equal(whole.get_submodule(name).weight, exact.to(BF16)), name
        assert not torch.equal(whole.get_submodule(name).weight, layer.weight), name

    again = made()
    add_adapters(again, LowRank(3, 6.0, seed=9), merged=False)
    assert weights_digest(again) != weights_digest(model)
    load_checkpoint(path, again)
    assert weights_digest(again) == weights_digest(model)
    other = made()
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight.mul_(1.1)
    add_adapters(other, LowRank(3, 6.0), merged=False)
    with pytest.raises(WhetError, match=r"layers.1.mlp.up_proj is not the model the run began with"):
        load_checkpoint(path, other)


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_sampler_and_trainer_agree(family: str) -> None:
    lm: CausalLM = causal_lm(adapted(model_of(family)), BF16)
    assert fused_works(lm) == (family == "llama")

    class Words:
        eos_token_id = 1

        def decode(self, tokens: Any, **_: Any) -> str:
            return " ".join(map(str, tokens))

    engine = TorchEngine(lm, Words(), [1], context=64)
    samples = engine.generate([Request((5, 9, 31), seed) for seed in range(4)], Sampling(max_new_tokens=12))
    gaps = []
    for sample in samples:
        found = token_logp(lm, sample.tokens[None], sample.action[None]).logp[0].detach()
        gaps.append((found - sample.behavior_logp)[sample.action].abs())
    assert torch.cat(gaps).mean() < 0.03
    for layer in adapted_layers(lm.model).values():
        layer.unmerge()
    without = [token_logp(lm, each.tokens[None], each.action[None]).logp[0].detach() for each in samples]
    apart = [(each - sample.behavior_logp)[sample.action].abs() for each, sample in zip(without, samples, strict=True)]
    assert torch.cat(apart).mean() > 3 * torch.cat(gaps).mean()


def test_weights_of_16_bits_are_tried_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake that half precision would hide: one layer scales its output by a thousandth more."""
    model = model_of("llama")
    assert not fused_refusal(causal_lm(model, BF16))
    other = model_of("llama")
    kind = type(other.model.layers[0].mlp)
    before = kind.forward
    lm = causal_lm(other, BF16)
    monkeypatch.setattr(kind, "forward", lambda self, x: before(self, x) * 1.001)
    assert "written-out layer 0 differs" in fused_refusal(lm)
