"""How far the policy is from its teacher, through the heads of two models: values and gradients, naively in float64."""

import pytest
import torch
import transformers

from whet.model.causal_lm import causal_lm
from whet.model.token_logp import Details, DistillationTarget, token_logp, top_tokens, with_rest
from whet.objective import AXES

POLICY, TEACHER, TEMPERATURE = 37, 41, 1.3  # rows of the heads: the teacher's is padded
TERMS = {name: AXES["teacher"][name]() for name in ("reverse_kl", "forward_kl", "jsd")}


def model(seed, vocabulary, width):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.4,
    )
    return causal_lm(transformers.LlamaForCausalLM(config).double().eval(), torch.float64)


@pytest.fixture(scope="module")
def case():
    stream = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, POLICY, (4, 11), generator=stream)
    action = torch.rand(4, 11, generator=stream) < 0.6
    action[:, :3] = False
    action[0, 5:] = False
    return model(0, POLICY, 16), model(1, TEACHER, 24), tokens, action


def kl(one, other):
    return sum(one[v] * torch.log(one[v] / other[v]) for v in range(len(one)))


def by_hand(name, own, theirs):
    """Of two lists of probabilities."""
    if name == "reverse_kl":
        return kl(own, theirs)
    if name == "forward_kl":
        return kl(theirs, own)
    between = [0.5 * p + 0.5 * q for p, q in zip(theirs, own, strict=True)]
    return 0.5 * kl(theirs, between) + 0.5 * kl(own, between)


def naive(name, case, chosen=None):
    """Row by row, token by token, no chunks and no packing; with `chosen` [N, T, K] those tokens, and all others."""
    policy, teacher, tokens, action = case
    found = []
    for row in range(len(tokens)):
        own = policy.model(tokens[row : row + 1]).logits[0]
        with torch.no_grad():
            theirs = teacher.model(tokens[row : row + 1]).logits[0]
        for place in action[row].nonzero()[:, 0].tolist():
            p, q = own[place - 1] / TEMPERATURE, theirs[place - 1] / 0.9
            if chosen is None:
                found.append(by_hand(name, list(p.softmax(-1)), list(q[:POLICY].softmax(-1))))
            else:
                p, q, ids = p.softmax(-1), q.softmax(-1), chosen[row, place].long()
                found.append(by_hand(name, [*p[ids], 1 - p[ids].sum()], [*q[ids], 1 - q[ids].sum()]))
    return torch.stack(found)


def gradient(value, policy):
    policy.model.zero_grad()
    value.backward()
    return torch.cat([each.grad.flatten() for each in policy.model.parameters()])


def relative(one, two):
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize("name", TERMS)
def test_a_distillation_target_is_the_formula_over_the_whole_vocabulary(case, name):
    policy, teacher, tokens, action = case
    expected = naive(name, case)
    weight = torch.arange(1, len(expected) + 1)
    wanted = gradient((expected * weight).sum(), policy)
    target = DistillationTarget(TERMS[name].divergence, teacher, 0.9)
    scores = token_logp(policy, tokens, action, TEMPERATURE, details=Details(distillation=target))
    found = scores.teacher_divergence[action]
    assert relative(found, expected) < 1e-9 and float(expected.min()) > 1e-3
    assert (scores.teacher_divergence[~action] == 0).all()
    assert relative(gradient((found * weight).sum(), policy), wanted) < 1e-9


@pytest.mark.parametrize("name", TERMS)
def test_a_distillation_target_of_some_tokens_counts_the_others_as_one(case, name, monkeypatch):
    monkeypatch.setattr("whet.model.token_logp.chunk_rows", lambda *_: 3)  # several chunks, built again going back
    policy, teacher, tokens, action = case
    chosen, _ = top_tokens(policy, tokens, action, TEMPERATURE, 5)
    _, logp = top_tokens(teacher, tokens, action, 0.9, 5, chosen)
    expected = naive(name, case, chosen)
    wanted = gradient(expected.sum(), policy)
    target = DistillationTarget(TERMS[name].divergence, top=chosen, top_logp=logp)
    scores = token_logp(policy, tokens, action, TEMPERATURE, details=Details(distillation=target))
    found = scores.teacher_divergence[action]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # the teacher's table is in float32
    assert relative(gradient(found.sum(), policy), wanted) < 1e-5


def test_top_tokens_are_the_likeliest_or_the_chosen(case):
    _, teacher, tokens, action = case
    with torch.no_grad():
        logp = (teacher.model(tokens).logits / 0.9).log_softmax(-1)
    ids, found = top_tokens(teacher, tokens, action, 0.9, 4)
    for row, place in action.nonzero().tolist():
        best = logp[row, place - 1].topk(4)
        assert ids[row, place].tolist() == best.indices.tolist()
        torch.testing.assert_close(found[row, place].double(), best.values, rtol=1e-5, atol=1e-5)
    chosen = torch.randint(0, POLICY, (*tokens.shape, 4), generator=torch.Generator().manual_seed(1)).int()
    same, found = top_tokens(teacher, tokens, action, 0.9, 4, chosen)
    assert torch.equal(same[action], chosen[action])
    before = logp[:, :-1].gather(-1, chosen[:, 1:].long())
    torch.testing.assert_close(found[:, 1:][action[:, 1:]].double(), before[action[:, 1:]], rtol=1e-5, atol=1e-5)


def test_the_rest_makes_a_distribution_whole():
    logp = torch.tensor([[0.5, 0.3], [0.999999999, 1e-9]], dtype=torch.float64).log()
    assert with_rest(logp).exp().sum(-1).tolist() == pytest.approx([1, 1], abs=1e-6)
    assert with_rest(logp).isfinite().all()
