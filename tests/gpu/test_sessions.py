"""Conversations on the graphs: every turn is what the plain engine writes behind the same tokens, read from scratch."""

import pytest
import torch

from tests.gpu.test_decode import DTYPES, Numbers, Silent, noise, tiny
from tests.support.conversations import played, prompts_of, short_answers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"),
]


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("shape", [(6, 2, 32), (9, 3, 64), (12, 2, 128), (8, 8, 128)])
def test_chunk_attention(precision, shape):
    from whet.model import decode_kernels
    from whet.model.chunk_step import chunk_of, plain_chunk_attention

    dtype, tolerance = DTYPES[precision]
    heads, key_heads, size = shape
    prompts = tuple(noise(3, key_heads, 192, size, dtype=dtype, seed=s) for s in (1, 2))
    own = tuple(noise(6, key_heads, 300, size, dtype=dtype, seed=s) for s in (3, 4))
    lengths = torch.tensor([130, 3, 77], dtype=torch.int32, device="cuda")
    new = [[1] * count for count in (150, 1, 70, 64)]
    chunk = chunk_of([5, 0, 2, 3], [0, 1, 2, 0], [0, 140, 7, 64], new, torch.device("cuda"))
    query = noise(len(chunk.tokens), heads + 2 * key_heads, size, dtype=dtype)[:, :heads]
    found = decode_kernels.chunk_attention(query, prompts, lengths, own, chunk.spans, chunk.longest, size**-0.5)
    wide = [tuple(each.float() for each in pair) for pair in (prompts, own)]
    expected = plain_chunk_attention(query.float(), wide[0], lengths, wide[1], chunk.spans, size**-0.5)
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


def test_a_row_that_is_done_keeps_nothing():
    from whet.model import decode_kernels

    qkv = noise(2, 4 * 64)
    own = tuple(noise(2, 1, 8, 64, seed=s) for s in (1, 2))
    before = [each.clone() for each in own]
    prompts = tuple(noise(1, 1, 64, 64, seed=s) for s in (3, 4))
    tables = (torch.ones(32, 64, device="cuda"), torch.zeros(32, 64, device="cuda"))
    heads = decode_kernels.Heads(2, 1, 64, 0.1, 1e-5, tables, None)
    about = [torch.tensor(each, dtype=torch.int32, device="cuda") for each in ([5], [[1, -1]], [-1, 0])]
    place = (torch.tensor([0, 8], device="cuda"), torch.tensor([-1, 3], device="cuda"))
    out = torch.full((2, 2 * 64), 7.0, device="cuda")
    decode_kernels.attention(qkv, place, heads, decode_kernels.PromptCache(*prompts, *about), own, None, out)
    for now, then in zip(own, before, strict=True):
        assert torch.equal(now[0], then[0]) and not torch.equal(now[1, :, 3], then[1, :, 3])
    torch.testing.assert_close(out[0].view(2, 64), qkv[0].view(4, 64)[3].expand(2, 64))  # its own value alone


SETTINGS = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 8, "keeps_support": True},
    "stop": {"stop": ("1><", "7>")},
    "all": {"top_k": 9, "top_p": 0.9, "stop": ("5>",), "keeps_support": True},
}


@pytest.mark.parametrize(
    ("kind", "settings", "rows", "long"),
    [
        ("Llama", "plain", 512, False),
        ("Llama", "plain", 16, False),  # conversations lose their rows to others
        ("Llama", "plain", 512, True),  # prompts that are read in parts
        ("Llama", "stop", 16, True),
        ("Llama", "all", 512, False),
        ("Llama", "top_k", 16, False),
        ("Llama", "greedy", 512, False),
        ("Qwen2", "stop", 512, False),
        ("Qwen3", "all", 16, True),
        ("Olmo2", "plain", 512, True),
    ],
)
def test_every_turn_is_what_the_plain_engine_writes(kind, settings, rows, long):
    from whet.model.causal_lm import causal_lm
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Request, Sampling, SessionShape

    lm = causal_lm(tiny(kind, tie_word_embeddings=kind != "Qwen2"))
    sampling = Sampling(24, **SETTINGS[settings])
    fast = TorchEngine(lm, Numbers(), [7, 11], context=512, rows_per_batch=rows)
    plain = TorchEngine(lm, Numbers(), [7, 11], context=512, fast=False)
    prompts = prompts_of(5, 33, 12, *((270,) if long else (70,)))
    with fast.session(sampling, SessionShape(40, max(map(len, prompts)), 4 * 24 + 3 * 23)) as session:
        assert fast.uses_graphs
        found = played(session, prompts, 10, 4, short_answers, late=rows == 16)
        assert session.counts.continued and bool(session.counts.evicted) == (rows == 16)
    turns = [turn for each in found.values() for turn in each]
    assert len(found) == 40 and len(turns) > 100
    expected = plain.generate([Request(tokens, seed) for tokens, seed, _ in turns], sampling)
    same = kept_alike = positions = 0
    for (_, _, one), two in zip(turns, expected, strict=True):
        assert one.support is None or len(one.support.counts) == one.num_actions
        if not torch.equal(one.tokens, two.tokens):
            continue
        same += 1
        assert one.stop == two.stop and one.completion == two.completion
        gap = (one.behavior_logp - two.behavior_logp).abs()[one.action]
        alike = torch.ones_like(gap, dtype=torch.bool)
        if sampling.truncates:
            mine, theirs = (each.support.ids.split(each.support.counts.tolist()) for each in (one, two))
            alike = torch.tensor([torch.equal(*ids) for ids in zip(mine, theirs, strict=True)])
        assert gap[alike].max() < 1e-4
        positions, kept_alike = positions + len(alike), kept_alike + int(alike.sum())
    assert same >= 0.97 * len(turns)  # float noise may tip a draw over, or a token over a threshold
    assert kept_alike >= 0.99 * positions


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_sampler_is_the_trainer_over_whole_conversations(precision):
    from whet.model.causal_lm import causal_lm
    from whet.model.token_logp import token_logp
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Sampling, SessionShape

    lm = causal_lm(tiny("Llama"), DTYPES[precision][0])
    fast = TorchEngine(lm, Silent(), [7, 11], context=512)
    with fast.session(Sampling(40), SessionShape(64, 90, 4 * 40 + 3 * 23)) as session:
        assert fast.uses_graphs
        found = played(session, prompts_of(9, 90, 30, 3), 16, 4, short_answers)
    gaps = []
    for turns in found.values():
        tokens = turns[-1][2].tokens[None]
        action, behavior = torch.zeros(tokens.shape, dtype=torch.bool), torch.zeros(tokens.shape)
        for _, _, sample in turns:
            action[0, : len(sample.tokens)] |= sample.action
            behavior[0, : len(sample.tokens)] += sample.behavior_logp
        with torch.no_grad():
            gaps.append((token_logp(lm, tokens, action).logp.cpu() - behavior)[action].abs())
    assert float(torch.cat(gaps).mean()) < (1e-4 if precision == "fp32" else 5e-2)


def test_sessions_and_rollouts_take_turns():
    """They share buffers and graphs, which grow; weights that changed between them are taken over."""
    from whet.model.causal_lm import causal_lm
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Request, Sampling, SessionShape

    lm = causal_lm(tiny("Llama"))
    fast = TorchEngine(lm, Silent(), [7], context=512)
    plain = TorchEngine(lm, Silent(), [7], context=512, fast=False)
    sampling = Sampling(20)
    for growth in (150, 150, 200):
        requests = [Request(tokens, seed) for tokens in prompts_of(9, 40) for seed in range(8)]
        with fast.session(sampling, SessionShape(16, 40, growth)) as session:
            turns = [turn for each in played(session, prompts_of(9, 40), 8, 3, short_answers).values() for turn in each]
        written = [sample for _, _, sample in turns] + fast.generate(requests, sampling)
        expected = plain.generate([*(Request(tokens, seed) for tokens, seed, _ in turns), *requests], sampling)
        same = sum(torch.equal(one.tokens, two.tokens) for one, two in zip(written, expected, strict=True))
        assert same >= 0.95 * len(written)
        with torch.no_grad():
            for parameter in lm.model.parameters():
                parameter.mul_(0.97)
        fast.load({}, 1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rows_of_several_turns_learn_as_on_the_cpu(precision):
    import copy

    from tests.model.test_episode_rows import episodes, gradients
    from whet.model.causal_lm import causal_lm
    from whet.model.fused_trunk import fused_works
    from whet.model.token_logp import token_logp

    model, (tokens, action) = tiny("Llama", vocab_size=61), episodes()
    dtype, exact = DTYPES[precision][0], precision == "fp32"
    lm = causal_lm(model, dtype)
    assert fused_works(lm)
    ours = token_logp(lm, tokens, action).logp.cpu()
    our_grads = gradients(model, ours)
    other = copy.deepcopy(model).cpu()
    theirs = token_logp(causal_lm(other), tokens, action).logp
    their_grads = gradients(other, theirs)
    assert not ours[~action].any()
    assert float((ours - theirs)[action].abs().mean()) < (1e-4 if exact else 5e-2)
    for name, grad in their_grads.items():
        assert float((our_grads[name].cpu() - grad).norm() / grad.norm()) < (1e-3 if exact else 0.1), name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_that_come_in_the_middle(precision):
    """Each part is that of the weights that wrote it, by the trainer's own pass."""
    import copy

    from whet.model.causal_lm import causal_lm
    from whet.model.token_logp import token_logp
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Request, Sampling, SessionShape

    models = [tiny("Llama")]
    for _ in range(2):
        models.append(copy.deepcopy(models[-1]))
        with torch.no_grad():
            for parameter in models[-1].parameters():
                parameter.mul_(1.15)
    dtype = DTYPES[precision][0]
    fast = TorchEngine(causal_lm(copy.deepcopy(models[0]), dtype), Silent(), [], context=512, owns_weights=True)
    requests = [Request(tokens, 50 * row + copy) for row, tokens in enumerate(prompts_of(9, 90)) for copy in range(8)]
    found, calls, version = {}, 0, 0
    with fast.session(Sampling(64), SessionShape(16, 90, 64)) as session:
        assert fast.uses_graphs
        for number, request in enumerate(requests):
            session.add(number, request)
        while not session.is_idle:
            found |= dict(session.advance())
            calls += 1
            if calls in (2, 4):
                version += 1
                session.load(models[version].state_dict(), version)
    assert len(found) == 16 and all(sample.versions == (0, 2) for sample in found.values())
    for version, model in enumerate(models):
        lm, gaps = causal_lm(model, dtype), []
        for sample in found.values():
            tokens, action = sample.tokens[None].cuda(), sample.action[None].cuda()
            logp = token_logp(lm, tokens, action).logp[0].float().cpu()
            here = sample.action & (sample.token_versions == version)
            assert here.any()
            gaps.append((logp - sample.behavior_logp)[here].abs())
        assert torch.cat(gaps).mean() < (1e-4 if precision == "fp32" else 0.05)
