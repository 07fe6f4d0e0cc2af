"""The written-out trunk of plain decoders: states and every gradient against the model's own modules."""

from dataclasses import replace

import pytest
import torch
import transformers

from whet.model import layer_ops
from whet.model.causal_lm import causal_lm
from whet.model.fused_trunk import fused_states, fused_works
from whet.model.fused_weights import fused_weights, is_plain
from whet.model.shared_prefix import prompt_batch, shared_prefix_batch
from whet.model.shared_prefix_attention import shared_prefix_states, trial_rows
from whet.model.token_logp import token_logp

SHAPE = {
    **{"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
}
FAMILIES = {
    "llama": {},
    "untied": {"model_type": "llama", "tie_word_embeddings": False},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "mistral": {"sliding_window": None},
}


def model_of(family, **settings):
    settings = {**SHAPE, **FAMILIES[family], **settings}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(settings.pop("model_type", family), **settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # norms and biases as they never start: away from 1 and 0
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.3)
    return model


def gradients(states, split, tree):
    split.model.zero_grad(set_to_none=True)
    found = states(split, tree)
    weights = torch.linspace(-3, 3, found.numel()).sin().view_as(found)
    (found * weights).sum().backward()
    return found.detach(), {name: each.grad for name, each in split.model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recompute", ["none", "wide", "layers"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_and_gradients_are_the_models_own(family, recompute, dtype):
    split = causal_lm(model_of(family), dtype)
    assert fused_works(split)
    tree = shared_prefix_batch(*trial_rows(97, split.device))
    theirs, their_grads = gradients(shared_prefix_states, split, tree)
    ours, our_grads = gradients(fused_states, replace(split, recompute=recompute), tree)
    exact = dtype == torch.float32
    assert (ours - theirs).norm() <= (1e-6 if exact else 1e-2) * theirs.norm()
    assert our_grads.keys() == their_grads.keys() and len(our_grads) > 20
    for name, grad in their_grads.items():
        assert (our_grads[name] - grad).norm() <= (2e-5 if exact else 5e-2) * grad.norm(), name


def test_pieces_have_the_gradients_autograd_finds():
    torch.manual_seed(1)
    x, weight, y = torch.randn(5, 8).double(), torch.randn(8).double(), torch.randn(5, 8).double()
    x.requires_grad_(), weight.requires_grad_()
    grad, carried = torch.randn(5, 8).double(), torch.randn(5, 8).double()
    total = x + y
    normed = total * (total.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    with torch.no_grad():
        for ours, theirs in zip(
            layer_ops.added_and_normed(x, y, weight, 1e-5, torch.float64), (total, normed), strict=True
        ):
            torch.testing.assert_close(ours, theirs)
    expected = torch.autograd.grad((normed * grad).sum() + (total * carried).sum(), (x, weight))
    found = layer_ops.norm_grad(total.detach(), weight.detach(), 1e-5, grad, carried)
    torch.testing.assert_close(found.x, expected[0])
    torch.testing.assert_close(found.weight, expected[1])
    torch.testing.assert_close(found.normed, normed.detach())
    gate_up, grad = torch.randn(5, 12).double().requires_grad_(), torch.randn(5, 6).double()
    opened = torch.nn.functional.silu(gate_up[:, :6]) * gate_up[:, 6:]
    torch.testing.assert_close(layer_ops.gated(gate_up.detach()), opened.detach())
    (expected,) = torch.autograd.grad((opened * grad).sum(), gate_up)
    again, found = layer_ops.gated_grad(gate_up.detach(), grad)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(again, opened.detach())


def test_turning_back_is_the_transpose_of_turning():
    torch.manual_seed(2)
    angle = torch.randn(4, 6).double()
    tables = (angle.cos(), angle.sin())
    heads, grad = torch.randn(4, 5, 6).double(), torch.randn(4, 5, 6).double()
    turned = layer_ops.rotated(heads.clone(), 4, tables)  # three heads of queries, one of keys, one of values
    assert torch.equal(turned[:, 4], heads[:, 4]) and not torch.allclose(turned[:, :4], heads[:, :4])
    back = layer_ops.turned_back(grad[:, :3], grad[:, 3:4], grad[:, 4:], tables)
    torch.testing.assert_close((turned * grad).sum(), (heads * back).sum())


def test_frozen_weights_get_no_gradient_and_the_others_the_same():
    split = causal_lm(model_of("llama"))
    tree = shared_prefix_batch(*trial_rows(97, split.device))
    _, whole = gradients(fused_states, split, tree)
    frozen = split.model.model.layers[1]
    frozen.requires_grad_(False)
    split.model.model.layers[0].self_attn.k_proj.requires_grad_(False)
    _, rest = gradients(fused_states, split, tree)
    assert set(whole) - set(rest) == {
        "model.layers.0.self_attn.k_proj.weight",
        *(f"model.layers.1.{name}" for name, _ in frozen.named_parameters()),
    }
    for name, grad in rest.items():
        torch.testing.assert_close(grad, whole[name])


def test_prompts_hand_over_their_keys_and_values():
    split = causal_lm(model_of("qwen2"))
    prompts = [(5, 6, 7, 8, 9), (11, 12), (13, 14, 15, 16)]
    tree, kept = prompt_batch(prompts, split.device), {}
    with torch.no_grad():
        states = fused_states(split, tree, lambda number, key, value: kept.update({number: (key, value)}))
        for row, prompt in enumerate(prompts):
            cache = transformers.DynamicCache()
            hidden = split.hidden(torch.tensor([prompt]), cache=cache)
            torch.testing.assert_close(states[row], hidden[0, -1], rtol=1e-4, atol=1e-5)
            for number, (key, value) in kept.items():
                at = tree.layout.prompt_index[row, : len(prompt)]
                torch.testing.assert_close(key[at], cache.layers[number].keys[0].transpose(0, 1), rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(
                    value[at], cache.layers[number].values[0].transpose(0, 1), rtol=1e-4, atol=1e-5
                )
    assert len(kept) == 3


def test_the_copy_follows_a_fused_optimizer():
    """Such an optimizer changes weights without a trace in their version counters."""
    split = causal_lm(model_of("llama"), torch.bfloat16)
    before = fused_weights(split, torch.bfloat16).layers[0].down.clone()
    optimizer = torch.optim.AdamW(split.model.parameters(), lr=0.1, fused=True)
    tokens, action = trial_rows(97, split.device)
    token_logp(split, tokens, action).logp.sum().backward()
    optimizer.step()
    copies = fused_weights(split, torch.bfloat16)
    assert not torch.equal(copies.layers[0].down, before)
    assert torch.equal(copies.layers[0].down, split.model.model.layers[0].mlp.down_proj.weight.bfloat16())


@pytest.mark.parametrize("change", ["window", "hook", "dropout", "wrapped", "double"])
def test_models_that_do_more_keep_their_own_modules(change):
    settings = {"window": {"sliding_window": 4}, "dropout": {"attention_dropout": 0.1}}.get(change, {})
    model = model_of("mistral" if change == "window" else "llama", **settings)
    if change == "hook":
        model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output * 2)
    if change == "wrapped":
        old = model.model.layers[0].mlp.up_proj
        model.model.layers[0].mlp.up_proj = torch.nn.Sequential(old)
    if change == "double":
        model.double()
    split = causal_lm(model)
    assert not fused_works(split)
    assert is_plain(split) == (change == "double")
