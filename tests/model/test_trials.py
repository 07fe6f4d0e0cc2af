"""The trials that a fast path passes before it is used show what happens beyond a window and far from position 0."""

import pytest
import torch
import transformers

from whet.model import block
from whet.model.block import NotDescribed, blocks_of, far_position, layer_windows, short_windows
from whet.model.causal_lm import causal_lm
from whet.model.fused_decode import fused_decoder
from whet.model.fused_trunk import fused_refusal
from whet.model.hooked_decode import HookedDecoder, hooked_decoder
from whet.model.shared_prefix_attention import layer_gap, shared_prefix_works

SHAPE = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1 << 16},
}
WINDOW = 4096  # no trial has so many tokens


def model_of(family, **settings):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SHAPE, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():  # fresh weights have scores near 0, and no window would show
        torch.nn.init.normal_(parameter, float(parameter.ndim == 1), 0.3)
    return causal_lm(model)


def test_windows_are_short_inside_only():
    lm = model_of(
        "ministral", head_dim=8, sliding_window=WINDOW, layer_types=["sliding_attention"] * 2 + ["full_attention"]
    )
    attention = lm.trunk.layers[0].self_attn
    with short_windows(lm):
        assert (lm.model.config.sliding_window, attention.sliding_window) == (4, 4)
        assert layer_windows(lm.model.config, 3) == (4, 4, None) == blocks_of(lm).windows
        assert lm.trunk.layers[2].self_attn.sliding_window is None
    assert (lm.model.config.sliding_window, attention.sliding_window) == (WINDOW, WINDOW)
    assert far_position(lm, 11) == (1 << 16) - 11


def test_a_long_window_that_the_description_does_not_know_is_found(monkeypatch):
    lm = model_of("mistral", sliding_window=WINDOW)
    assert not fused_refusal(lm) and not isinstance(fused_decoder(hooked_decoder(lm)), NotDescribed)
    base = HookedDecoder(lm, hooked_decoder(lm).attended)
    lm = model_of("mistral", sliding_window=WINDOW)
    monkeypatch.setattr(block, "layer_windows", lambda config, num_layers: (None,) * num_layers)
    assert "layer 0 differs" in fused_refusal(lm)
    monkeypatch.setattr("whet.model.hooked_decode.layer_windows", lambda config, num_layers: (None,) * num_layers)
    assert "different windows" in str(hooked_decoder(lm))
    # a model whose layers do not tell of the window that its mask has
    for layer in lm.trunk.layers:
        layer.self_attn.forward = forgetful(layer.self_attn.forward)
    monkeypatch.setattr("whet.model.hooked_decode._AttentionProbe.note", note_without_window)
    assert "logits differ" in str(hooked_decoder(lm))
    assert base.attended.windows == (WINDOW,) * 3


def forgetful(forward):
    return lambda *values, **named: forward(*values, **named)


def note_without_window(probe, module, query, kv, options):
    probe.layers[module.layer_idx] = (kv[0].shape[1], kv[0].shape[3], None)


def test_a_query_scale_by_position_is_refused_by_its_setting_and_by_the_trial(monkeypatch):
    rope = {
        **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1 << 14},
        **{"llama_4_scaling_beta": 0.1, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    }
    lm = model_of("ministral3", sliding_window=None, rope_parameters=rope)
    said = "queries are scaled by their position (llama_4_scaling_beta is 0.1)"
    assert fused_refusal(lm) == said and str(fused_decoder(hooked_decoder(lm))) == said
    monkeypatch.setattr(block, "_check_settings", lambda config: None)
    lm = model_of("ministral3", sliding_window=None, rope_parameters=rope)
    assert "layer 0 differs" in fused_refusal(lm)
    assert "logits differ" in str(fused_decoder(hooked_decoder(lm)))
    assert not isinstance(hooked_decoder(lm), NotDescribed)  # there the model scales its queries itself


@pytest.mark.parametrize(("size", "works"), [(1e-6, True), (1e-3, False)])
def test_one_layer_that_looks_at_its_neighbours_in_the_packed_row_is_found(size, works):
    lm = model_of("llama")
    inner = lm.trunk.layers[1].mlp
    forward = inner.forward
    inner.forward = lambda x: forward(x) + size * forward(x.roll(1, 1)) * (x.shape[0] == 1)
    assert shared_prefix_works(lm) is works


def test_rounding_is_told_from_a_mistake_beside_a_large_residual_stream():
    torch.manual_seed(0)
    before, added = torch.randn(20, 32), torch.randn(20, 32)
    assert layer_gap(before, before + added, before + added * (1 + 1e-6)) < 1
    assert layer_gap(before, before + added, before + added * (1 + 1e-3)) > 1
    assert layer_gap(1e4 * before, (1e4 * before + added), (1e4 * before.double() + added.double()).float()) < 1
    assert layer_gap(before, before + added, torch.full_like(added, torch.nan)) == torch.inf
