"""The experts that the sampler used, noted while it writes: by row, by turn, and replayed in the trainer."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import transformers

from tests.support.conversations import played, prompts_of, short_answers
from whet.model.causal_lm import causal_lm
from whet.model.experts import Routers
from whet.model.token_logp import Details, token_logp
from whet.rollout import buffer_decode
from whet.rollout.expert_log import experts_of_engine, joined_experts
from whet.rollout.torch_engine import TorchEngine
from whet.rollout.vllm_engine import VLLMEngine
from whet.types import Request, Sampling, SessionShape, WhetError

SMALL = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "eos_token_id": 1},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0},
}
FAMILIES = {
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SMALL, head_dim=8, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16
    ),
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_local_experts=8, num_experts_per_tok=2),
    "olmoe": lambda: transformers.OlmoeConfig(**SMALL, num_experts=8, num_experts_per_tok=2),
}


class Letters:
    def decode(self, tokens, skip_special_tokens=False):
        return "".join(chr(40 + token) for token in tokens)


def model_of(family="qwen3_moe"):
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).eval()
    with torch.no_grad():  # or routers hardly decide, and experts hardly matter
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5.0)
    return model


def engine_of(model, dtype=torch.float32, **settings):
    return TorchEngine(causal_lm(model, dtype), Letters(), tuple(range(0, 97, 12)), context=256, **settings)


def trained(lm, sample, **settings):
    """The trainer's scores of one sample's actions."""
    with torch.no_grad():
        details = Details(**settings)
        return token_logp(lm, sample.tokens[None], sample.action[None], details=details)


def same_experts(first, second):
    """bool [L]: equal in every layer, in any order."""
    return (first.sort(-1).values == second.sort(-1).values).all(-1).all(-1)


def check_noted(lm, sample):
    """Every token but the last is known, and in float32 the trainer chooses the same."""
    own = trained(lm, sample, experts=True, packed=False).experts[0]
    noted = sample.routed_experts
    assert noted.shape == own.shape and noted.dtype == own.dtype == torch.int8
    assert (noted[-1] == -1).all() and (noted[:-1] >= 0).all()
    return same_experts(noted, own)[:-1]


@pytest.mark.parametrize(("family", "rows"), [("qwen3_moe", 0), ("qwen3_moe", 3), ("mixtral", 3), ("olmoe", 3)])
def test_every_token_that_was_read_is_noted_whoever_moves(family, rows):
    """With three rows for twelve requests rows leave, enter and move together."""
    engine = engine_of(model_of(family), rows_per_batch=rows)
    assert engine.unrecorded_experts() == ""
    requests = [Request(tokens, 7 * number) for number, tokens in enumerate(prompts_of(3, 9, 1, 4, vocabulary=97) * 3)]
    samples = engine.generate(requests, Sampling(max_new_tokens=16))
    assert len({len(sample.tokens) for sample in samples}) > 4
    agree = torch.cat([check_noted(engine._lm, sample) for sample in samples])
    # passes of another shape round otherwise, which a near tie shows
    assert agree.double().mean() > 0.99


@pytest.mark.parametrize(("rows", "steps"), [(0, 5), (4, 1), (4, 5)])
def test_conversations_are_noted_turn_after_turn(rows, steps, monkeypatch):
    """Rows that read on, that wait, that lose their place; and steps that run past the end of a row."""
    engine = engine_of(model_of(), rows_per_batch=rows)
    engine.decode_path  # noqa: B018
    made = buffer_decode.BufferBackend.__init__

    def looks_less(self, *arguments):
        made(self, *arguments)
        self.steps_per_look = steps

    monkeypatch.setattr(buffer_decode.BufferBackend, "__init__", looks_less)
    with engine.session(Sampling(max_new_tokens=9), SessionShape(12, 16, 120)) as session:
        found = played(
            session, prompts_of(5, 12, 3, vocabulary=97), 3, 4, lambda *at: short_answers(*at) and [3, 8, 50]
        )
    agree = []
    for turns in found.values():
        for _, _, sample in turns:
            agree.append(check_noted(engine._lm, sample))
        whole = joined_experts([sample.routed_experts for _, _, sample in turns])
        assert whole.shape == turns[-1][2].routed_experts.shape
        # what a turn read stays as that turn noted it
        for _, _, sample in turns[:-1]:
            assert same_experts(whole[: len(sample.tokens) - 1], sample.routed_experts[:-1]).double().mean() > 0.99
    assert max(map(len, found.values())) > 2
    assert torch.cat(agree).double().mean() > 0.99


def test_a_conversation_keeps_the_experts_of_the_turn_that_read_a_token_first():
    first, second = torch.zeros(3, 1, 1, dtype=torch.int8), torch.ones(5, 1, 1, dtype=torch.int8)
    first[-1], second[-1] = -1, -1
    assert joined_experts([first, second]).flatten().tolist() == [0, 0, 1, 1, -1]
    assert joined_experts([first, None]) is None and joined_experts([]) is None


def with_jittery_choice(model):
    """The same weights, and routers that sometimes take the next best expert: what rounding does at a near tie, often
    enough for a test. The gates are the router's own for whom it took."""
    twin = copy.deepcopy(model)

    def forward_of(router):
        def forward(states):
            states = states.reshape(-1, states.shape[-1])
            logits = states @ router.weight.T
            share = logits.softmax(-1)
            jitter = (50 * states.sum(-1, keepdim=True) + torch.arange(router.num_experts)).sin() * 0.1
            index = (share + jitter).topk(router.top_k, dim=-1).indices
            value = share.gather(-1, index)
            return logits, value / value.sum(-1, keepdim=True) if router.norm_topk_prob else value, index

        return forward

    for module in twin.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.forward = forward_of(module)
    return twin


def test_with_replay_a_sampler_that_routes_otherwise_agrees_to_float_noise_and_without_it_does_not():
    model = model_of()
    samples = engine_of(with_jittery_choice(model)).generate(
        [Request(tokens, seed) for tokens in prompts_of(6, 11, vocabulary=97) for seed in range(4)],
        Sampling(max_new_tokens=24),
    )
    lm = causal_lm(model)
    gaps = {"replay": [], "own": []}
    differs = []
    for sample in samples:
        for name, settings in {"replay": {"replay": sample.routed_experts[None]}, "own": {"experts": True}}.items():
            scores = trained(lm, sample, **settings)
            gaps[name].append((scores.logp[0] - sample.behavior_logp)[sample.action].abs())
        differs.append(~same_experts(sample.routed_experts, scores.experts[0])[:-1])
    assert torch.cat(differs).double().mean() > 0.2
    assert torch.cat(gaps["replay"]).max() < 1e-4
    assert torch.cat(gaps["own"]).max() > 0.1


def test_a_sampler_in_half_precision_is_nearer_with_replay():
    """What is left is the rounding of everything else."""
    model = model_of()
    requests = [Request(tokens, seed) for tokens in prompts_of(6, 11, vocabulary=97) for seed in range(8)]
    samples = engine_of(model, torch.bfloat16).generate(requests, Sampling(max_new_tokens=24))
    lm = causal_lm(model)
    gaps, differs = {}, []
    for name in ("own", "replay"):
        found = []
        for sample in samples:
            replay = sample.routed_experts[None] if name == "replay" else None
            scores = trained(lm, sample, replay=replay, experts=True)
            found.append((scores.logp[0] - sample.behavior_logp)[sample.action].abs())
            if name == "own":
                differs.append(~same_experts(sample.routed_experts, scores.experts[0])[:-1])
        gaps[name] = torch.cat(found)
    assert torch.cat(differs).double().mean() > 0.005
    # the jumps are gone: a token with another expert is far off, the others a rounding
    assert gaps["replay"].max() < 0.5 * gaps["own"].max() and gaps["replay"].mean() < gaps["own"].mean()


def test_a_model_that_is_decoded_another_way_says_that_its_experts_are_not_noted():
    engine = engine_of(model_of(), fast=False)
    assert "on whet's buffers only" in engine.unrecorded_experts()
    (sample,) = engine.generate([Request((5, 6, 7), 0)], Sampling(max_new_tokens=4))
    assert sample.routed_experts is None
    dense = transformers.AutoModelForCausalLM.from_config(transformers.Qwen3Config(**SMALL, head_dim=8))
    assert engine_of(dense).unrecorded_experts() == "the model is no mixture of experts"


def test_experts_of_another_engine_are_put_on_the_layers_that_have_routers():
    of = Routers((), (1, 1), 8, 2, (1, 3))  # of four layers, the second and the last have experts
    returned = torch.arange(3 * 4 * 2).view(3, 4, 2).numpy().astype("uint8") % 8
    table = experts_of_engine(returned, 4, replace(of, modules=(torch.nn.Identity(), torch.nn.Identity())))
    assert table.shape == (4, 2, 2) and table.dtype == torch.int8
    assert (table[-1] == -1).all()
    assert torch.equal(table[:3], torch.from_numpy(returned)[:, [1, 3]].to(torch.int8))


@pytest.mark.parametrize("shape", [(3, 4, 3), (2, 4, 2), (3, 2)])
def test_experts_of_other_tokens_are_refused(shape):
    of = Routers((torch.nn.Identity(),) * 2, (1, 1), 8, 2, (1, 3))
    with pytest.raises(WhetError, match=r"expected \[3, layers, 2\]"):
        experts_of_engine(torch.zeros(shape).numpy(), 4, of)
    with pytest.raises(WhetError, match="3 layers"):
        experts_of_engine(torch.zeros(3, 3, 2).numpy(), 4, of)


def test_what_vllm_returns_is_taken_and_what_it_was_not_asked_for_is_said():
    """A stand-in: vLLM's CPU build does not return experts."""
    engine = object.__new__(VLLMEngine)
    engine._routers = Routers((torch.nn.Identity(),) * 2, (1, 1), 8, 2, (1, 3))
    engine._returns_experts, engine._routing_refusal = True, ""
    assert engine.unrecorded_experts() == ""
    returned = torch.arange(6 * 4 * 2).view(6, 4, 2).numpy().astype("uint8") % 8
    request, tokens = Request((5, 6, 7), 0), [8, 9]  # a stop has cut two of four tokens off
    found = engine._experts(request, tokens, SimpleNamespace(routed_experts=returned))
    assert torch.equal(found[:-1], torch.from_numpy(returned)[:4, [1, 3]].to(torch.int8))
    assert engine._experts(request, tokens, SimpleNamespace(routed_experts=None)) is None
    engine._returns_experts = False
    assert "enable_return_routed_experts=true" in engine.unrecorded_experts()
