"""Train mode computes what eval mode computes, whatever a model draws in it."""

import copy

import pytest
import torch
import transformers

from whet.model.causal_lm import causal_lm
from whet.model.load import switch_off_dropout
from whet.model.train_noise import switch_off_noise
from whet.types import WhetError

SHAPE = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
}
NOISY = {
    "phimoe": ({"num_local_experts": 4}, "PhimoeTopKRouter"),
    "mixtral": ({"num_local_experts": 4, "router_jitter_noise": 0.1}, "MixtralSparseMoeBlock"),
}


def model_of(family, **settings):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SHAPE, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    switch_off_dropout(model)
    return causal_lm(model)


def states(lm):
    with torch.no_grad():
        return lm.hidden(torch.arange(3, 23)[None])


@pytest.mark.parametrize("family", NOISY)
def test_noise_is_found_named_and_off_from_then_on(family):
    settings, noisy = NOISY[family]
    lm = model_of(family, **settings)
    expected = states(lm)
    lm.model.train()
    assert (states(lm) - expected).abs().max() > 1e-3  # else there is nothing to switch off
    before = torch.get_rng_state()
    assert switch_off_noise(lm) == f"{noisy}: off (eval mode is what samples were written in)"
    assert torch.equal(torch.get_rng_state(), before) and lm.model.training
    torch.testing.assert_close(states(lm), expected)
    twin = copy.deepcopy(lm.model)
    for model in (lm.model, twin):  # as the engine does between two steps, and a critic's copy
        model.eval(), model.train()
        torch.testing.assert_close(states(causal_lm(model)), expected)
        quiet = [module for module in model.modules() if type(module).__name__ == noisy]
        assert quiet and not any(module.training for module in quiet)
        assert all(module.training for layer in model.model.layers for module in layer.self_attn.modules())
    assert switch_off_noise(lm) == ""


def test_a_model_without_noise_is_left_as_it_is():
    lm = model_of("llama")
    kinds = [type(module) for module in lm.model.modules()]
    assert switch_off_noise(lm) == "" and not lm.model.training
    assert kinds == [type(module) for module in lm.model.modules()]


def test_layers_are_not_skipped():
    """Skipped layers are too rare to be found by trying: their rate is set to 0 where the model is loaded."""
    config = transformers.OPTConfig(**{**SHAPE, "ffn_dim": 48, "word_embed_proj_dim": 32, "layerdrop": 0.5})
    model = transformers.OPTForCausalLM(config).eval()
    switch_off_dropout(model)
    lm = causal_lm(model)
    expected = states(lm)
    lm.model.train()
    for _ in range(5):
        torch.testing.assert_close(states(lm), expected)


def test_noise_that_cannot_be_switched_off_is_refused():
    lm = model_of("llama")
    layer = lm.trunk.layers[0].mlp
    forward = layer.forward
    layer.forward = lambda x: forward(x) * (1 + lm.trunk.layers[1].training * lm.trunk.norm.training)
    with pytest.raises(WhetError, match="LlamaForCausalLM computes something else in train mode than in eval mode"):
        switch_off_noise(lm)
