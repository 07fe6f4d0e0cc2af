"""The written-out trunk of plain decoders: states and every gradient against the model's own modules."""

from dataclasses import replace

import pytest
import torch
import transformers

from tests.support.for_every import for_every
from whet.model import layer_ops, norms
from whet.model.block import BlockStack, NotDescribed, blocks_of, describe_blocks, far_position
from whet.model.causal_lm import causal_lm
from whet.model.fused_trunk import _layers_refusal, fused_refusal, fused_states, fused_works
from whet.model.fused_weights import FusedWeights, _fits_float16, fused_weights, unchanged_weights
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
    "windowed": {"model_type": "mistral", "sliding_window": 4},
    "olmo2": {},
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


def gradients(states, lm, batch):
    lm.model.zero_grad(set_to_none=True)
    found = states(lm, batch)
    weights = torch.linspace(-3, 3, found.numel()).sin().view_as(found)
    (found * weights).sum().backward()
    return found.detach(), {name: each.grad for name, each in lm.model.named_parameters() if each.grad is not None}


def test_rows_of_a_trial_end_with_the_context():
    lm = causal_lm(model_of("llama"))
    assert [far_position(lm, length) for length in (8, 63, 64, 80)] == [56, 1, 0, 0]


def test_logits_are_computed_in_float16_only_where_no_state_can_outgrow_it():
    """Behind a norm a state of W numbers has one as large as its weight times the root of W: here eight times."""
    model = model_of("llama")
    stack = blocks_of(causal_lm(model))
    for largest, fits in ((500.0, True), (-500.0, True), (2000.0, False), (-2000.0, False)):
        with torch.no_grad():
            model.model.norm.weight[5] = largest
        assert _fits_float16(stack) == fits
    with torch.no_grad():
        model.model.norm.weight[5] = 1.0
        model.model.embed_tokens.weight[3, 2] = -2e4
    assert not _fits_float16(stack)


def test_a_model_of_one_layer_is_written_out_too():
    assert fused_refusal(causal_lm(model_of("llama", num_hidden_layers=1))) == ""


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, torch.float32) for family in FAMILIES),
        ("windowed", torch.bfloat16),
        *(pytest.param(name, torch.bfloat16, marks=pytest.mark.slow) for name in FAMILIES if name != "windowed"),
    ],
)
def test_states_and_gradients_are_the_models_own(family, dtype):
    lm = causal_lm(model_of(family), dtype)
    assert fused_works(lm)
    batch = shared_prefix_batch(*trial_rows(97, lm.device))
    theirs, their_grads = gradients(shared_prefix_states, lm, batch)
    exact = dtype == torch.float32
    for recompute in ("none", "wide", "layers"):
        ours, our_grads = gradients(fused_states, replace(lm, recompute=recompute), batch)
        assert (ours - theirs).norm() <= (1e-6 if exact else 1e-2) * theirs.norm(), recompute
        assert our_grads.keys() == their_grads.keys() and len(our_grads) > 20
        for name, grad in their_grads.items():
            gap = (our_grads[name] - grad).norm() / grad.norm()
            assert gap <= (2e-5 if exact else 5e-2), (recompute, name)


def test_pieces_have_the_gradients_autograd_finds():
    torch.manual_seed(1)
    x, weight, y = torch.randn(5, 8).double(), torch.randn(8).double(), torch.randn(5, 8).double()
    x.requires_grad_(), weight.requires_grad_()
    grad, carried = torch.randn(5, 8).double(), torch.randn(5, 8).double()
    total = x + y
    normed = total * (total.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    with torch.no_grad():
        for ours, theirs in zip(
            norms.added_and_normed(x, y, weight, 1e-5, torch.float64), (total, normed), strict=True
        ):
            torch.testing.assert_close(ours, theirs)
    expected = torch.autograd.grad((normed * grad).sum() + (total * carried).sum(), (x, weight))
    found = norms.norm_grad(total.detach(), weight.detach(), 1e-5, grad, carried)
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
    back = layer_ops.rotated_back(grad.clone(), 4, tables)
    torch.testing.assert_close((turned * grad).sum(), (heads * back).sum())


def test_frozen_weights_get_no_gradient_and_the_others_the_same():
    lm = causal_lm(model_of("llama"))
    batch = shared_prefix_batch(*trial_rows(97, lm.device))
    _, whole = gradients(fused_states, lm, batch)
    frozen = lm.model.model.layers[1]
    frozen.requires_grad_(False)
    lm.model.model.layers[0].self_attn.k_proj.requires_grad_(False)
    _, rest = gradients(fused_states, lm, batch)
    assert set(whole) - set(rest) == {
        "model.layers.0.self_attn.k_proj.weight",
        *(f"model.layers.1.{name}" for name, _ in frozen.named_parameters()),
    }
    for name, grad in rest.items():
        torch.testing.assert_close(grad, whole[name])


def test_prompts_hand_over_their_keys_and_values():
    lm = causal_lm(model_of("qwen2"))
    prompts = [(5, 6, 7, 8, 9), (11, 12), (13, 14, 15, 16)]
    batch, kept = prompt_batch(prompts, lm.device), {}
    with torch.no_grad():
        states = fused_states(lm, batch, lambda number, key, value: kept.update({number: (key, value)}))
        for row, prompt in enumerate(prompts):
            cache = transformers.DynamicCache()
            hidden = lm.hidden(torch.tensor([prompt]), cache=cache)
            torch.testing.assert_close(states[row], hidden[0, -1], rtol=1e-4, atol=1e-5)
            for number, (key, value) in kept.items():
                at = batch.layout.prompt_index[row, : len(prompt)]
                torch.testing.assert_close(key[at], cache.layers[number].keys[0].transpose(0, 1), rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(
                    value[at], cache.layers[number].values[0].transpose(0, 1), rtol=1e-4, atol=1e-5
                )
    assert len(kept) == 3


def test_the_copy_follows_a_fused_optimizer():
    """Such an optimizer changes weights without a trace in their version counters."""
    lm = causal_lm(model_of("llama"), torch.bfloat16)
    before = fused_weights(blocks_of(lm), torch.bfloat16).blocks[0].down.clone()
    optimizer = torch.optim.AdamW(lm.model.parameters(), lr=0.1, fused=True)
    tokens, action = trial_rows(97, lm.device)
    token_logp(lm, tokens, action).logp.sum().backward()
    optimizer.step()
    copies = fused_weights(blocks_of(lm), torch.bfloat16)
    assert not torch.equal(copies.blocks[0].down, before)
    assert torch.equal(copies.blocks[0].down, lm.model.model.layers[0].mlp.down_proj.weight.bfloat16())


REASONS = {
    "hook": "model.layers.1.mlp has a forward hook",
    "dropout": "model.layers.0.self_attn.attention_dropout is 0.1",
    "wrapped": "model.layers.0.mlp.up_proj is a Sequential, not a linear layer",
    "double": "the weights are float64, and models compute their norms in float32",
    "experts": "model.layers.0.mlp is a mixture of experts",
    "bias": "model.layers.0.mlp.gate_proj has a bias",
    "one bias": "model.layers.0.self_attn has a bias on some of queries, keys and values only",
    "activation": "the activation is gelu, not silu",
    "rotation": "the rotary embedding is of type dynamic, which depends on the length of the text",
    "gpt2": "gpt2: the trunk has no embed_tokens",
    "gemma3": "the activation is gelu_pytorch_tanh, not silu",
}


@for_every(REASONS)
def test_a_model_that_is_not_taken_has_a_reason(change):
    settings = {
        "dropout": {"attention_dropout": 0.1},
        "bias": {"mlp_bias": True},
        "activation": {"hidden_act": "gelu"},
        "rotation": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    }.get(change, {})
    if change == "experts":
        experts = transformers.Qwen3MoeConfig(
            **SHAPE, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
        )
        model = transformers.AutoModelForCausalLM.from_config(experts)
    elif change == "gpt2":
        small = transformers.GPT2Config(vocab_size=97, n_embd=24, n_layer=2, n_head=2)
        model = transformers.AutoModelForCausalLM.from_config(small)
    elif change == "gemma3":
        model = transformers.AutoModelForCausalLM.from_config(transformers.Gemma3TextConfig(**SHAPE, head_dim=16))
    else:
        model = model_of("llama", **settings)
    if change == "hook":
        model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output * 2)
    if change == "wrapped":
        model.model.layers[0].mlp.up_proj = torch.nn.Sequential(model.model.layers[0].mlp.up_proj)
    if change == "double":
        model.double()
    if change == "one bias":
        query = model.model.layers[0].self_attn.q_proj
        query.bias = torch.nn.Parameter(torch.ones(query.out_features))
    lm = causal_lm(model.eval())
    assert fused_refusal(lm) == REASONS[change] and not fused_works(lm)
    described = describe_blocks(lm)
    if change in ("double", "bias", "one bias"):  # decoders take it
        assert isinstance(described, BlockStack)
    else:
        assert str(described) == REASONS[change]


def test_a_mistake_is_told_from_rounding(monkeypatch):
    """A layer that is off by a thousandth is found and named; one that rounds differently is taken."""
    lm = causal_lm(model_of("llama"))
    layer = lm.model.model.layers[1]
    forward = layer.mlp.forward
    layer.mlp.forward = lambda x: forward(x) * 1.001
    assert fused_refusal(lm).startswith("the written-out layer 1 differs from the model's own by ")
    other = causal_lm(model_of("llama"))
    inner = other.model.model.layers[1].mlp
    plain = inner.forward
    inner.forward = lambda x: plain(x) * (1 + 1e-5)  # ten times the rounding of a model of 7B weights
    assert fused_works(other)


def test_a_norm_that_is_left_out_or_misplaced_is_found(monkeypatch):
    from whet.model import block

    lm = causal_lm(model_of("olmo2"))
    monkeypatch.setitem(
        block.FAMILIES,
        "olmo2",
        block.BlockFamily(before_attention="post_attention_layernorm", before_mlp="post_feedforward_layernorm"),
    )
    assert "layer 0 differs" in fused_refusal(lm)
    assert not isinstance(describe_blocks(lm), NotDescribed)
    with torch.no_grad():
        assert "layer 0 differs" in _layers_refusal(lm)


def test_a_copy_is_refreshed_once_while_nobody_changes_the_weights(monkeypatch):
    lm = causal_lm(model_of("llama"), torch.bfloat16)
    stack = blocks_of(lm)
    copy = fused_weights(stack, torch.bfloat16)
    refreshed = []
    monkeypatch.setattr(FusedWeights, "refresh", lambda self: refreshed.append(self))
    with unchanged_weights():
        for _ in range(3):
            assert fused_weights(stack, torch.bfloat16) is copy
    assert refreshed == [copy]
    fused_weights(stack, torch.bfloat16)
    fused_weights(stack, torch.bfloat16)
    assert len(refreshed) == 3
