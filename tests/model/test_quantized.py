"""A base of 4 bits: what is unpacked is what is multiplied with, and only the adapters learn."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.support.checkpoints import save_checkpoint
from tests.support.packages import needs
from whet.model.causal_lm import causal_lm
from whet.model.checkpoint import load_checkpoint, weights_digest
from whet.model.fused_trunk import fused_refusal
from whet.model.lora import LowRank, adapter_factors, adapters_off, add_adapters, unmerged_layers
from whet.model.low_precision import widen_vectors
from whet.model.quantized import FourBitLinear, int8_codes, int8_values, pack_four_bits
from whet.model.token_logp import token_logp

pytestmark = needs("bitsandbytes")


def packed(model: Any) -> Any:
    model.to(torch.bfloat16)
    widen_vectors(model)
    add_adapters(model, LowRank(3, 6.0), merged=False, pack=pack_four_bits)
    torch.manual_seed(5)
    for name, factor in adapter_factors(model).items():
        if name.endswith(".up"):
            nn.init.normal_(factor, 0, 0.05)
    return model


def test_the_gradient_is_that_of_the_unpacked_matrix() -> None:
    """In float32, so that only the packing is between the two."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16, bias=False))
    model.base_model = model  # type: ignore[assignment]
    layers = add_adapters(model, LowRank(2, 4.0), merged=False, pack=pack_four_bits)
    x = torch.randn(5, 64, requires_grad=True)
    for layer in layers.values():
        assert isinstance(layer, FourBitLinear)
        nn.init.normal_(layer.up)
        assert layer.weight.dtype == torch.uint8 and layer.weight.numel() == layer.in_features * layer.out_features // 2
    model[1](model[0](x)).sin().sum().backward()
    found = [x.grad, *(factor.grad for layer in layers.values() for factor in (layer.down, layer.up))]

    again = x.detach().clone().requires_grad_()
    factors = [factor.detach().clone().requires_grad_() for each in layers.values() for factor in (each.down, each.up)]
    values = again
    for layer, down, up in zip(layers.values(), factors[::2], factors[1::2], strict=True):
        assert isinstance(layer, FourBitLinear)
        bias = 0.0 if layer.bias is None else layer.bias
        values = values @ (layer.whole_base().float() + 2.0 * up @ down).T + bias
    grads = torch.autograd.grad(values.sin().sum(), [again, *factors])
    for mine, other in zip(found, grads, strict=True):
        assert mine is not None and other.norm() > 0
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_packing_is_near_and_the_reference_is_the_packed_base(make_llama: Any) -> None:
    plain, model = make_llama(), packed(make_llama())
    name, layer = next(iter(unmerged_layers(model).items()))
    exact = plain.get_submodule(name).weight
    assert 0 < (layer.whole_base().float() - exact).norm() < 0.15 * exact.norm()
    lm = causal_lm(model, torch.bfloat16)
    assert "FourBitLinear" in fused_refusal(lm)
    tokens = torch.arange(1, 9)[None]
    action = torch.arange(8)[None] >= 3
    moved = token_logp(lm, tokens, action).logp
    with adapters_off(model), torch.no_grad():
        known = token_logp(lm, tokens, action).logp
    with torch.no_grad():
        for each in adapter_factors(model).values():
            each.zero_()
    assert torch.equal(token_logp(lm, tokens, action).logp, known) and not torch.equal(known, moved)


def test_a_checkpoint_holds_the_unpacked_base_with_the_adapter(tmp_path: Any, tokenizer: Any, make_llama: Any) -> None:
    import transformers

    model = packed(make_llama())
    path = save_checkpoint(tmp_path, 3, model, tokenizer, {}, {})
    whole = transformers.AutoModelForCausalLM.from_pretrained(path)
    for name, layer in unmerged_layers(model).items():
        assert torch.equal(whole.get_submodule(name).weight, layer.merged()), name
    again = make_llama().to(torch.bfloat16)
    widen_vectors(again)
    add_adapters(again, LowRank(3, 6.0, seed=4), merged=False, pack=pack_four_bits)
    load_checkpoint(path, again)
    assert weights_digest(again) == weights_digest(model)


def test_codes_of_8_bits_keep_small_numbers_beside_large_ones() -> None:
    values = torch.randn(1024).exp() * torch.randn(1024).sign()
    codes, largest = int8_codes(values, True)
    found = int8_values(codes, largest, True)
    assert codes.dtype == torch.uint8 and largest.shape == (4,)
    assert float(((found - values) / values).abs().median()) < 0.03
    assert float((found - values).abs().max()) < 0.02 * float(values.abs().max())
