"""Adapters: their gradients, the base under them, and what a checkpoint of them holds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch.func import functional_call

from tests.support.checkpoints import save_checkpoint
from tests.support.for_every import for_every
from whet.model.causal_lm import causal_lm
from whet.model.checkpoint import load_checkpoint, weights_digest
from whet.model.critic import critic_on
from whet.model.fused_decode import fused_decoder
from whet.model.fused_trunk import fused_states, fused_works
from whet.model.hooked_decode import hooked_decoder
from whet.model.lora import (
    LowRank,
    adapted_layers,
    adapter_factors,
    adapters_off,
    add_adapters,
    merge_adapters,
    unadapted_experts,
    uncalled_layers,
)
from whet.model.reference import AdapterFreeReference
from whet.model.scalar_head import scalar_model
from whet.model.shared_prefix import shared_prefix_batch
from whet.model.shared_prefix_attention import shared_prefix_states, trial_rows
from whet.model.token_logp import token_logp
from whet.types import WhetError

SHAPE = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
}


def model_of(family: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**SHAPE, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.3)
    return model


def trained(model: Any, rank: int = 3, **settings: Any) -> Any:
    """The model with adapters that have moved away from zero."""
    add_adapters(model, LowRank(rank, 6.0, **settings))
    torch.manual_seed(5)
    with torch.no_grad():
        for name, factor in adapter_factors(model).items():
            if name.endswith(".up"):
                factor.normal_(0, 0.05)
    merge_adapters(model)
    return model


def rows(vocabulary: int = 97) -> tuple[torch.Tensor, torch.Tensor]:
    return trial_rows(vocabulary, torch.device("cpu"))


def test_gradients_are_autograds_in_double_precision(make_llama: Any, exact: None) -> None:
    plain = make_llama().double()
    adapted = trained(make_llama().double())
    tokens = torch.tensor([[0, 5, 9, 200, 31, 7, 1], [0, 8, 8, 100, 3, 70, 2]])
    logits = adapted(input_ids=tokens).logits
    weigh = torch.linspace(-3, 3, logits.numel(), dtype=torch.float64).sin().view_as(logits)
    (logits * weigh).sum().backward()
    factors = {name: each.detach().clone().requires_grad_() for name, each in adapter_factors(adapted).items()}
    weights = {
        f"{name}.weight": layer.base + 2.0 * factors[f"{name}.up"] @ factors[f"{name}.down"]
        for name, layer in adapted_layers(adapted).items()
    }
    expected = functional_call(plain, weights, kwargs={"input_ids": tokens}).logits
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
    grads = torch.autograd.grad((expected * weigh).sum(), list(factors.values()))
    assert len(factors) == 2 * 7 * 2
    for (name, learned), grad in zip(adapter_factors(adapted).items(), grads, strict=True):
        assert grad.norm() > 0
        torch.testing.assert_close(learned.grad, grad, rtol=1e-9, atol=1e-11, msg=name)
    others = [name for name, each in adapted.named_parameters() if each.grad is not None and name not in factors]
    assert others == []


@for_every([("llama", torch.float32), ("qwen2", torch.float32), ("qwen3", torch.float32), ("qwen3", torch.bfloat16)])
def test_the_written_out_layers_find_the_same(family: str, dtype: torch.dtype) -> None:
    same_in_written_out_layers(family, dtype)


@pytest.mark.slow
@for_every(["llama", "qwen2"])
def test_the_written_out_layers_find_the_same_in_bfloat16(family: str) -> None:
    same_in_written_out_layers(family, torch.bfloat16)


def same_in_written_out_layers(family: str, dtype: torch.dtype) -> None:
    model = trained(model_of(family))
    lm = causal_lm(model, dtype)
    assert fused_works(lm)
    tree = shared_prefix_batch(*rows())

    def found(states: Any, chosen: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model.zero_grad(set_to_none=True)
        values = states(chosen, tree)
        (values * torch.linspace(-3, 3, values.numel()).sin().view_as(values)).sum().backward()
        return values.detach(), {key: each.grad for key, each in model.named_parameters() if each.grad is not None}

    theirs, their_grads = found(shared_prefix_states, lm)
    assert all(grad.norm() > 0 for grad in their_grads.values())
    tight = dtype == torch.float32
    for recompute in ("none", "wide", "layers"):
        ours, our_grads = found(fused_states, replace(lm, recompute=recompute))
        assert (ours - theirs).norm() <= (1e-6 if tight else 1e-2) * theirs.norm(), recompute
        assert our_grads.keys() == their_grads.keys() == adapter_factors(model).keys()
        for name, grad in their_grads.items():
            assert (our_grads[name] - grad).norm() <= (2e-5 if tight else 6e-2) * grad.norm(), (recompute, name)


def test_some_matrices_only() -> None:
    model = trained(model_of("llama"), matrices=("q_proj", "up_proj"))
    assert sorted({name.rpartition(".")[2] for name in adapted_layers(model)}) == ["q_proj", "up_proj"]
    lm, tree = causal_lm(model), shared_prefix_batch(*rows())
    grads = []
    for states in (shared_prefix_states, fused_states):
        model.zero_grad(set_to_none=True)
        states(lm, tree).square().sum().backward()
        grads.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    assert grads[0].keys() == grads[1].keys() and len(grads[0]) == 8
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, rtol=1e-3, atol=1e-5 * float(grad.abs().max()))


def test_the_copy_of_the_factors_follows_them() -> None:
    model = trained(model_of("llama"))
    lm, tree = causal_lm(model, torch.bfloat16), shared_prefix_batch(*rows())
    for _ in range(2):
        grads = []
        for states in (shared_prefix_states, fused_states):
            model.zero_grad(set_to_none=True)
            states(lm, tree).square().sum().backward()
            grads.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
        for name, grad in grads[0].items():
            assert (grads[1][name] - grad).norm() <= 6e-2 * grad.norm(), name
        with torch.no_grad():
            for factor in adapter_factors(model).values():
                factor.mul_(-2.0)
        merge_adapters(model)


def test_before_the_first_step_it_is_the_base() -> None:
    model = model_of("llama")
    before, digest = model(input_ids=torch.arange(6)[None]).logits, weights_digest(model)
    add_adapters(model, LowRank(4, 32.0))
    assert torch.equal(model(input_ids=torch.arange(6)[None]).logits, before)
    merge_adapters(model)
    assert weights_digest(model) == digest
    assert all(bool(each.any()) == name.endswith(".down") for name, each in adapter_factors(model).items())


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float32])
def test_the_reference_is_the_base_bit_for_bit(narrow: torch.dtype) -> None:
    """Weights that fit into half the bytes are kept in them."""
    model = model_of("llama").to(narrow).float()
    lm = causal_lm(model)
    first = weights_digest(model)
    known = token_logp(lm, *rows()).logp.detach()
    trained(model)
    assert {layer.base.dtype for layer in adapted_layers(model).values()} == {narrow}
    now, moved = weights_digest(model), token_logp(lm, *rows()).logp.detach()
    assert now != first and (moved - known).abs().max() > 1e-3
    with AdapterFreeReference(lm).open() as reference, torch.no_grad():
        assert weights_digest(model) == first
        assert torch.equal(token_logp(reference, *rows()).logp, known)
    assert weights_digest(model) == now
    with pytest.raises(RuntimeError, match="in between"), adapters_off(model):
        raise RuntimeError("in between")
    assert weights_digest(model) == now


def test_samplers_keep_their_written_out_step() -> None:
    lm = causal_lm(trained(model_of("llama")))
    with torch.no_grad():
        decoder = hooked_decoder(lm)
        assert decoder is not None and fused_decoder(decoder) is not None


def test_the_head_of_a_reward_model_learns_in_full() -> None:
    language = causal_lm(trained(model_of("llama")))
    judge = scalar_model(language, "sequence", 0, (1,))
    learned = {name for name, each in judge.model.named_parameters() if each.requires_grad}
    assert learned == adapter_factors(judge.model).keys() | {"score.weight"}
    scored = torch.zeros(2, 6, dtype=torch.bool)
    scored[:, -1] = True
    judge.scores(torch.arange(12).view(2, 6), scored, torch.tensor([2, 2])).sum().backward()
    assert all(each.grad is not None and each.grad.any() for each in judge.model.parameters() if each.requires_grad)


def test_a_critic_of_its_own_has_its_own_adapters() -> None:
    policy = causal_lm(trained(model_of("llama")))
    critic, other = critic_on(policy, shared=False), critic_on(policy, shared=False)
    modules = critic.modules()
    with torch.no_grad():
        for each in adapter_factors(modules).values():
            each.add_(0.1)
    merge_adapters(modules)
    stored = {name: value.clone() for name, value in critic.tensors().items()}
    other.restore(stored)
    assert len(adapter_factors(modules)) == 28 and adapter_factors(modules).keys() <= stored.keys()
    for name, value in other.tensors().items():
        assert torch.equal(value, stored[name]), name
    assert not torch.equal(stored["trunk.layers.0.mlp.up_proj.down"], policy.trunk.layers[0].mlp.up_proj.down)


def test_a_checkpoint_is_a_whole_model_and_an_adapter(tmp_path: Any, tokenizer: Any, make_llama: Any) -> None:
    model = trained(make_llama())
    path = save_checkpoint(tmp_path, 7, model, tokenizer, {}, {})
    tokens = torch.arange(8)[None]
    whole = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    assert torch.equal(whole(input_ids=tokens).logits, model(input_ids=tokens).logits)
    assert not [name for name in whole.state_dict() if name.endswith((".up", ".down"))]
    about = json.loads((path / "adapter" / "adapter_config.json").read_text())
    assert (about["r"], about["lora_alpha"], about["task_type"]) == (3, 6, "CAUSAL_LM")

    again = make_llama()
    add_adapters(again, LowRank(3, 6.0, seed=9))
    load_checkpoint(path, again)
    assert weights_digest(again) == weights_digest(model)
    for name, factor in adapter_factors(model).items():
        assert torch.equal(adapter_factors(again)[name], factor), name
    merge_adapters(again)
    assert weights_digest(again) == weights_digest(model)


def test_a_checkpoint_of_another_base_or_without_adapters_is_refused(
    tmp_path: Any, tokenizer: Any, make_llama: Any
) -> None:
    path = save_checkpoint(tmp_path, 7, trained(make_llama()), tokenizer, {}, {})
    other = make_llama()
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight.mul_(1.1)
    add_adapters(other, LowRank(3, 6.0))
    with pytest.raises(WhetError, match=r"layers.1.mlp.up_proj is not the model the run began with"):
        load_checkpoint(path, other)
    wide = make_llama()
    add_adapters(wide, LowRank(4, 6.0))
    with pytest.raises(WhetError, match=r"has \[3, 16\] for .* where the run has \[4, 16\]; give the run's own"):
        load_checkpoint(path, wide)
    whole = save_checkpoint(tmp_path, 8, make_llama(), tokenizer, {}, {})
    with pytest.raises(WhetError, match=r"saved without model\.lora"):
        load_checkpoint(whole, wide)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (LowRank(17, 32.0), "model.lora.rank is 17 but layers.0.self_attn.q_proj is a matrix of 16 x 16; give at most"),
        (LowRank(2, 32.0, ("q_prj",)), r"names 'q_prj' \(did you mean 'q_proj'\?\); the linear layers are down_proj"),
    ],
)
def test_mistakes_are_named(llama: Any, given: LowRank, said: str) -> None:
    with pytest.raises(WhetError, match=said):
        add_adapters(llama, given)
    assert all(each.requires_grad for each in llama.parameters())


def test_a_layer_whose_output_is_added_to_in_place_learns_the_same() -> None:
    """As experts do that are shared by all tokens."""

    def grads(in_place: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 3))
        model.base_model = model  # type: ignore[assignment]
        layers = add_adapters(model, LowRank(2, 4.0))
        for layer in layers.values():
            torch.nn.init.normal_(layer.up)
        merge_adapters(model)
        values = model[0](torch.randn(2, 3, 6))
        values = values.add_(1.0) if in_place else values + 1.0
        model[1](values).sin().sum().backward()
        return [factor.grad for layer in layers.values() for factor in (layer.down, layer.up)]  # type: ignore[misc]

    for ours, theirs in zip(grads(True), grads(False), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert theirs.abs().sum() > 0


def test_gates_and_the_head_have_no_adapter() -> None:
    import transformers

    shape = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8}
    experts = {"num_local_experts": 2, "intermediate_size_mlp": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.Llama4TextConfig(**shape, **experts, pad_token_id=None)
    model = transformers.Llama4ForCausalLM(config)
    names = {name.rpartition(".")[2] for name in add_adapters(model, LowRank(2, 4.0))}
    assert "q_proj" in names and "lm_head" not in names
    assert unadapted_experts(model) == sum(each.numel() for each in model.parameters() if each.ndim == 3) > 0
    assert not causal_lm(model.eval()).whole
    qwen = {
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    }
    gated = transformers.Qwen2MoeForCausalLM(
        transformers.Qwen2MoeConfig(**shape, **qwen, num_attention_heads=4, num_key_value_heads=2)
    )
    assert "shared_expert_gate" not in {name.rpartition(".")[2] for name in add_adapters(gated, LowRank(2, 4.0))}


def test_a_model_without_linear_layers_is_refused(gpt2: Any) -> None:
    with pytest.raises(WhetError, match="GPT2LMHeadModel has no linear layers in its trunk; train it in full"):
        add_adapters(gpt2, LowRank(2, 32.0))


def test_peft_loads_the_adapter(tmp_path: Any, tokenizer: Any, make_llama: Any) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft, to compare with it")
    model = trained(make_llama())
    path = save_checkpoint(tmp_path, 7, model, tokenizer, {}, {})
    tokens = torch.arange(8)[None]
    theirs = peft.PeftModel.from_pretrained(make_llama(), str(path / "adapter"))
    assert not torch.allclose(make_llama()(input_ids=tokens).logits, model(input_ids=tokens).logits, atol=1e-3)
    torch.testing.assert_close(theirs(input_ids=tokens).logits, model(input_ids=tokens).logits)


def test_peft_loads_a_reward_model(tmp_path: Any, tokenizer: Any, make_llama: Any) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft, to compare with it")
    judge = scalar_model(causal_lm(trained(make_llama())), "sequence", 0, (1,)).model.eval()
    path = save_checkpoint(tmp_path, 7, judge, tokenizer, {}, {})
    torch.manual_seed(3)
    base = transformers.AutoModelForSequenceClassification.from_config(judge.config)
    base.model.load_state_dict(make_llama().model.state_dict())
    theirs = peft.PeftModel.from_pretrained(base.eval(), str(path / "adapter"))
    tokens = torch.arange(8)[None]
    torch.testing.assert_close(theirs(input_ids=tokens).logits, judge(input_ids=tokens).logits)


def test_a_layer_that_nothing_calls_gets_no_adapter() -> None:
    """Mamba reads the weight of dt_proj and never calls the layer: an adapter there would not learn."""
    model = model_of("mamba", state_size=8, time_step_rank=4)
    assert {"dt_proj"} == uncalled_layers(model)
    with pytest.raises(WhetError, match=r"names 'dt_proj', which MambaForCausalLM never calls.*leave it out"):
        add_adapters(model, LowRank(2, 4.0, matrices=("in_proj", "dt_proj")))
    layers = add_adapters(model, LowRank(2, 4.0))
    assert {name.rpartition(".")[2] for name in layers} == {"in_proj", "x_proj", "out_proj"}
    model(torch.arange(12)[None]).logits.square().mean().backward()
    assert not [name for name, layer in layers.items() if layer.up.grad is None or not layer.up.grad.any()]
    assert uncalled_layers(model_of("llama")) == set()
