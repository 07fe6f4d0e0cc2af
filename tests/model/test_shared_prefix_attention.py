"""A prompt computed once for all its completions gives the numbers of separate padded rows, for every architecture."""

import copy
from dataclasses import replace

import pytest
import torch
import transformers

from whet.model import shared_prefix_attention
from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.shared_prefix import shared_prefix_batch
from whet.model.shared_prefix_attention import (
    AttentionRefused,
    layer_agrees,
    shared_prefix_states,
    shared_prefix_works,
)
from whet.model.token_logp import Details, states_before, token_logp

WINDOW = 4
SMALL = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts_per_tok": 2, "experts_implementation": "eager"}  # the fused one has no double precision
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
TIED = {"tie_word_embeddings": True}
WORKS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL, **TIED),
    "llama untied": lambda: transformers.LlamaConfig(**SMALL),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL, **TIED),
    "qwen2 window": lambda: transformers.Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=12),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=WINDOW),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=2, n_positions=128),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SMALL, head_dim=12, sliding_window=WINDOW, layer_types=MIXED),
    "qwen3 moe": lambda: transformers.Qwen3MoeConfig(
        **SMALL, **EXPERTS, head_dim=12, num_experts=4, moe_intermediate_size=16
    ),
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, **EXPERTS, num_local_experts=4),
    "olmoe": lambda: transformers.OlmoeConfig(**SMALL, **EXPERTS, num_experts=4),
}
REFUSED = {
    "capped scores": lambda: transformers.Gemma2Config(**SMALL, head_dim=12),
    "sinks": lambda: transformers.GptOssConfig(
        **SMALL,
        **EXPERTS,
        head_dim=12,
        num_local_experts=4,
        layer_types=MIXED,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
    "grads instead of positions": lambda: transformers.BloomConfig(vocab_size=61, hidden_size=24, n_layer=2, n_head=2),
    "convolutions": lambda: transformers.Lfm2Config(**SMALL, layer_types=["conv", "full_attention", "conv"]),
    "no attention": lambda: transformers.MambaConfig(vocab_size=61, hidden_size=24, num_hidden_layers=2),
}


def model_of(config):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():  # the usual start hardly attends
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
    return model


def batch():
    """Two shared prompts, longer and shorter than the window, a gap, a lone row, a row without action."""
    stream = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 61, (8, 16), generator=stream)
    action = torch.zeros(8, 16, dtype=torch.bool)
    for row, (prompt, completion) in enumerate([(7, 5), (3, 9), (7, 1), (7, 6), (3, 2), (7, 9), (5, 4), (6, 4)]):
        tokens[row, :prompt] = tokens[{7: 0, 3: 1, 5: 6, 6: 7}[prompt], :prompt]
        action[row, prompt : prompt + completion] = True
    action[5, 9:12] = False
    action[7] = False
    return tokens, action


def outcome(lm, packed, more=False):
    """Scores, and the gradient of a sum in which every action counts differently."""
    tokens, action = batch()
    details = Details(packed=packed, entropy_gradient=more, num_top=2 * more, states=True)
    lm.model.zero_grad()
    found = token_logp(lm, tokens, action, 0.8, details=details)
    weight = torch.linspace(-1, 2, action.numel()).reshape(action.shape).to(found.logp)
    loss = (found.logp * weight).sum() + found.states.square().sum() * 0.1
    if more:
        loss = loss + (found.entropy * weight).sum() + (found.top_logp * weight[..., None]).sum()
    loss.backward()
    gradient = torch.cat([each.grad.flatten() for each in lm.model.parameters() if each.grad is not None])
    return found.logp.detach(), found.entropy.detach(), gradient


@pytest.fixture
def sizes(monkeypatch):
    """The shapes of the tokens that were computed."""
    seen, hidden = [], CausalLM.hidden

    def watched(self, tokens, **more):
        seen.append(tuple(tokens.shape))
        return hidden(self, tokens, **more)

    monkeypatch.setattr(CausalLM, "hidden", watched)
    return seen


def near(one, two):
    assert two.norm() > 1e-2
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize("kind", WORKS)
def test_a_tree_teaches_what_padded_rows_teach(exact, sizes, kind):
    lm = causal_lm(model_of(WORKS[kind]()))
    assert shared_prefix_works(lm)
    sizes.clear()
    ours, theirs = outcome(lm, packed=True), outcome(lm, packed=False)
    assert sizes == [(1, 7 + 3 + 4 + 0 + 5 + 8 + 8 + 1 + 8), (8, 16)]
    for mine, other in zip(ours, theirs, strict=True):
        assert near(mine, other) < 1e-10


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_what_else_a_method_wants_comes_from_the_tree_too(exact, kind):
    lm = causal_lm(model_of(WORKS[kind]()))
    for mine, other in zip(outcome(lm, True, more=True), outcome(lm, False, more=True), strict=True):
        assert near(mine, other) < 1e-10


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_tree_cannot_carry_keeps_to_padded_rows(sizes, kind):
    model = model_of(REFUSED[kind]()).float()
    lm = causal_lm(model)
    assert not shared_prefix_works(lm)
    sizes.clear()
    ours, theirs = outcome(lm, packed=True), outcome(lm, packed=False)
    assert sizes == [(8, 16), (8, 16)]
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
    assert ours[0].abs().sum() > 1


def test_a_window_that_a_model_keeps_to_itself_is_found(monkeypatch):
    """No short row reaches it, so only what the model asked of its masks gives it away."""
    config = WORKS["llama"]()
    model = model_of(config)
    assert shared_prefix_works(causal_lm(model))
    secret = copy.deepcopy(model)
    masks = transformers.models.llama.modeling_llama
    monkeypatch.setattr(masks, "create_causal_mask", transformers.masking_utils.create_sliding_window_causal_mask)
    secret.config.sliding_window = 64
    assert not shared_prefix_works(causal_lm(secret))


def test_a_model_without_positions_keeps_to_padded_rows():
    lm = causal_lm(model_of(WORKS["llama"]()))
    assert shared_prefix_works(lm) and not shared_prefix_works(replace(lm, takes_positions=False))


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_the_models_own_attention_is_back_afterwards(kind, monkeypatch):
    model = model_of(WORKS[kind]())
    lm = causal_lm(model)
    before = [module.config._attn_implementation for module in model.modules() if hasattr(module, "config")]
    tree = shared_prefix_batch(*batch())
    shared_prefix_states(lm, tree)

    def broken(*arguments, **settings):
        raise AttentionRefused("for a test")

    monkeypatch.setattr(shared_prefix_attention, "_picked", broken)
    with pytest.raises(AttentionRefused):
        shared_prefix_states(lm, tree)
    after = [module.config._attn_implementation for module in model.modules() if hasattr(module, "config")]
    assert after == before and shared_prefix_attention.NAME not in after and len(after) > 3
    assert shared_prefix_attention._CURRENT.get() is None


def test_the_check_leaves_training_as_it_was():
    model = model_of(WORKS["llama"]())
    model.train()
    model.model.layers[1].eval()
    flags = [module.training for module in model.modules()]
    assert shared_prefix_works(causal_lm(model))
    assert [module.training for module in model.modules()] == flags


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_computed_again_in_the_backward_pass_find_the_tree(exact, reentrant):
    model = model_of(WORKS["mistral"]())
    lm = causal_lm(model)
    plain = outcome(lm, packed=True)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    model.train()
    runs = []
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: runs.append(1))
    again = outcome(lm, packed=True)
    assert len(runs) == 2
    assert near(again[2], plain[2]) < 1e-12
    assert all(
        layer._gradient_checkpointing_func.func is torch.utils.checkpoint.checkpoint for layer in model.model.layers
    )


def test_half_precision_stays_near():
    model = model_of(WORKS["qwen3"]()).float()
    lm = causal_lm(model, torch.bfloat16)
    ours, theirs = outcome(lm, packed=True), outcome(lm, packed=False)
    assert near(ours[0], theirs[0]) < 0.02 and near(ours[2], theirs[2]) < 0.1


def test_little_to_save_is_left_padded(sizes):
    lm = causal_lm(model_of(WORKS["llama"]()))
    shared_prefix_works(lm)
    tokens = torch.arange(60).reshape(2, 30)
    action = torch.ones(2, 30, dtype=torch.bool)
    action[:, 0] = False
    sizes.clear()
    states_before(lm, tokens, action)
    states_before(lm, tokens, action & (torch.arange(30) < torch.tensor([[30], [9]])))
    assert sizes == [(2, 30), (1, 29 + 8)]


def test_rows_without_any_action_give_nothing():
    lm = causal_lm(model_of(WORKS["llama"]()))
    tokens, action = batch()
    found = token_logp(lm, tokens, torch.zeros_like(action))
    assert not found.logp.any() and found.logp.shape == tokens.shape


def test_a_layer_that_drops_a_massive_number_rounds_in_proportion_to_it():
    """What layer 26 of 28 does in Qwen2.5-Coder-1.5B: 3,537 enters and 403 leaves, with an error of 0.004."""
    before = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    after = before + 1.0
    before[0, 3], after[0, 3] = 3537.0, 403.0
    ours = after.clone()
    ours[0, 3] += 0.004
    assert layer_agrees(before, ours, after)
    ours = after.clone()
    ours[1, 3] += 0.004
    assert not layer_agrees(before, ours, after), "a token without such a number has no such excuse"
    ours = after.clone()
    ours[0, 3] += 3.5  # a thousandth of it: a mistake
    assert not layer_agrees(before, ours, after)
