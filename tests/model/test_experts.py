"""Experts noted and replayed: against a naive transcription in float64, packed and padded, with recomputation."""

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers

from tests.support.for_every import for_every
from whet.model.causal_lm import causal_lm
from whet.model.experts import NO_MIXTURE, UNKNOWN, routers, routing, routing_refusal
from whet.model.shared_prefix import shared_prefix_batch
from whet.model.shared_prefix_attention import trial_rows
from whet.model.token_logp import Details, packs, token_logp

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
EIGHT = {"num_experts": 8, "num_experts_per_tok": 2}
OF_DEEPSEEK = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_routed_experts": 8, "first_k_dense_replace": 1}
MIXTURES = {
    "qwen3_moe": ("Qwen3MoeConfig", {**EIGHT, "head_dim": 8, "moe_intermediate_size": 16}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "olmoe": ("OlmoeConfig", EIGHT),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {**EIGHT, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    "gpt_oss": ("GptOssConfig", {"head_dim": 8, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "granitemoe": ("GraniteMoeConfig", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "glm4_moe": ("Glm4MoeConfig", {**OF_DEEPSEEK, "head_dim": 8}),
}


def mixture(name: str, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    config, extra = MIXTURES[name]
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**SMALL, **extra)).to(dtype)
    with torch.no_grad():  # or the routers hardly decide, and experts hardly matter
        for each in model.parameters():
            if each.ndim > 1:
                each.mul_(6.0)
    return causal_lm(model, dtype)


def other_experts(of, chosen: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Some tokens of some layers get other experts, all different from each other."""
    stream = torch.Generator().manual_seed(seed)
    fresh = torch.rand(*chosen.shape[:-1], of.num_experts, generator=stream).argsort(-1)[..., : chosen.shape[-1]]
    some = torch.rand(chosen.shape[:-1], generator=stream) < 0.5
    return torch.where(some[..., None], fresh.to(chosen.dtype), chosen)


@for_every(MIXTURES)
def test_what_is_replayed_is_used_and_what_was_chosen_changes_nothing(name):
    lm = mixture(name)
    of = routers(lm)
    assert of is not None, routing_refusal(lm)
    assert (of.num_experts, of.experts_per_token) == (8, 2)
    tokens = torch.arange(20).view(2, 10) * 7 % 97
    with torch.no_grad():
        plain = lm.hidden(tokens)
        with routing(lm) as noted:
            torch.testing.assert_close(lm.hidden(tokens), plain, rtol=0, atol=0)
        assert noted.chosen.shape == (20, of.num_layers, 2)
        with routing(lm, noted.chosen):
            torch.testing.assert_close(lm.hidden(tokens), plain, rtol=1e-5, atol=1e-5)
        told = other_experts(of, noted.chosen)
        with routing(lm, told):
            moved = lm.hidden(tokens)
        with routing(lm, torch.full_like(told, UNKNOWN)):
            torch.testing.assert_close(lm.hidden(tokens), plain, rtol=1e-5, atol=1e-5)
        # outside nothing is left of it
        torch.testing.assert_close(lm.hidden(tokens), plain, rtol=0, atol=0)
    assert (moved - plain).abs().max() > 0.01 * plain.abs().max()
    assert all("forward" not in vars(module) for module in of.modules)


def test_a_model_without_experts_and_one_whose_routers_sample_are_refused():
    dense = causal_lm(transformers.AutoModelForCausalLM.from_config(transformers.Qwen3Config(**SMALL, head_dim=8)))
    assert routing_refusal(dense) == NO_MIXTURE and routers(dense) is None
    settings = transformers.PhimoeConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2)
    sampled = causal_lm(transformers.AutoModelForCausalLM.from_config(settings))
    assert "do not choose their experts by topk" in routing_refusal(sampled)


class NaiveMixture(torch.nn.Module):
    """R3's formula (2510.11370), one token and one expert at a time: y = SUM g_i E_i(x) over the experts i that were
    told, g_i = exp(s_i) / SUM_j exp(s_j) over the same experts, with the current logits s = W x."""

    def __init__(self, block, told: torch.Tensor):  # [tokens, k]
        super().__init__()
        self.gate, self.experts, self.told = block.gate, block.experts, told

    def forward(self, states):
        flat = states.reshape(-1, states.shape[-1])
        rows = []
        for state, told in zip(flat, self.told.tolist(), strict=True):
            gates = [(self.gate.weight[each] @ state).exp() for each in told]
            parts = []
            for each, gate in zip(told, gates, strict=True):
                narrow, up = (self.experts.gate_up_proj[each] @ state).chunk(2)
                parts.append(gate / sum(gates) * (self.experts.down_proj[each] @ (F.silu(narrow) * up)))
            rows.append(sum(parts))
        return torch.stack(rows).view(states.shape)


def exact(model):
    """Transformers computes norms and the routers' softmax in float32, whatever the model: here in float64."""

    def norm(layer):
        return lambda values: (
            layer.weight * values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + layer.variance_epsilon)
        )

    def router(layer):
        def forward(states):
            logits = states.reshape(-1, states.shape[-1]) @ layer.weight.T
            value, index = logits.softmax(-1).topk(layer.top_k, dim=-1)
            return logits, value / value.sum(-1, keepdim=True), index

        return forward

    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = norm(module)
        if type(module).__name__.endswith("TopKRouter"):
            module.forward = router(module)
    return model


@pytest.mark.parametrize("packed", [False, True])
def test_log_probabilities_and_gradient_of_a_replay_are_those_of_the_formula(packed):
    model = mixture("qwen3_moe", torch.float64).model
    model.set_experts_implementation("eager")  # the grouped product has no float64
    twin = exact(copy.deepcopy(model))
    lm = causal_lm(exact(model), torch.float64)
    assert packs(lm)
    tokens, action = trial_rows(lm.vocabulary, lm.device)
    own = token_logp(lm, tokens, action, details=Details(packed=packed, experts=True))
    told = other_experts(routers(lm), own.experts.clamp(min=0))
    # a prompt that rows share has one routing, as a sampler that reads it once leaves it
    tree = shared_prefix_batch(tokens, action)
    told = told.flatten(0, 1)[tree.sources(tokens.shape[1])][tree.places(*tokens.shape)]
    weight = torch.linspace(0.5, 1.5, int(action.sum()), dtype=torch.float64)
    ours = token_logp(lm, tokens, action, details=Details(packed=packed, replay=told)).logp[action]
    (ours * weight).sum().backward()
    for number, layer in enumerate(twin.model.layers):
        layer.mlp = NaiveMixture(layer.mlp, told[:, :, number].flatten(0, 1))
    logp = twin(input_ids=tokens).logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    theirs = logp[action[:, 1:]]
    (theirs * weight).sum().backward()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    gradients = {name: parameter.grad for name, parameter in twin.named_parameters()}
    for name, parameter in lm.model.named_parameters():
        size = float(gradients[name].abs().max())
        gap = float((parameter.grad - gradients[name]).abs().max())
        assert size > 0 and gap <= 1e-10 * size, (name, gap, size)
    assert (ours - own.logp[action]).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "olmoe"])
def test_packed_rows_note_and_replay_the_experts_of_padded_rows(name):
    lm = mixture(name)
    assert packs(lm)
    tokens, action = trial_rows(lm.vocabulary, lm.device)
    with torch.no_grad():
        packed, padded = (
            token_logp(lm, tokens, action, details=Details(packed=each, experts=True)) for each in (True, False)
        )
        known = packed.experts[..., 0, 0] >= 0
        assert torch.equal(packed.experts[known], padded.experts[known])
        # every token that predicts an action is known; the last action of a row, which predicts nothing, is not
        assert known[:, :-1][action[:, 1:]].all() and not known.all()
        of = routers(lm)
        told = torch.where(padded.experts < 0, padded.experts, (padded.experts + 3) % of.num_experts)
        ours, theirs = (
            token_logp(lm, tokens, action, details=Details(packed=each, replay=told)) for each in (True, False)
        )
    torch.testing.assert_close(ours.logp, theirs.logp, rtol=1e-4, atol=1e-4)
    assert (ours.logp - packed.logp).abs().max() > 1e-3


def test_layers_that_are_computed_again_use_the_replayed_experts():
    gradients = []
    for recompute in (False, True):
        lm = mixture("qwen3_moe")
        lm.model.train()
        if recompute:
            lm.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        tokens, action = trial_rows(lm.vocabulary, lm.device)
        own = token_logp(lm, tokens, action, details=Details(experts=True)).experts
        told = torch.where(own < 0, own, (own + 3) % 8)
        token_logp(lm, tokens, action, details=Details(replay=told)).logp.sum().backward()
        gradients.append([parameter.grad for parameter in lm.model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, plain, rtol=1e-4, atol=1e-5)
