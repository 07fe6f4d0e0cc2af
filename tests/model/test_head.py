"""The vocabulary head with its gradient written out, against autograd."""

import pytest
import torch
from torch import nn

from whet.model import head as vocabulary
from whet.model.head import VocabularyHead, chunked_logp

VOCABULARY, SIZE, COUNT = 37, 8, 23


def case(bias=False, factor=1.0, dtype=torch.float64):
    torch.manual_seed(0)
    head = VocabularyHead(nn.Linear(SIZE, VOCABULARY, bias=bias, dtype=dtype), factor)
    states = torch.randn(COUNT, SIZE, dtype=dtype, requires_grad=True)
    weights = torch.randn(COUNT, dtype=dtype)
    return head, states, torch.randint(0, VOCABULARY, (COUNT,)), weights


def plain(head, states, targets, temperature):
    logp = (head(states) / temperature).log_softmax(-1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def gradients(head, states):
    found = [states.grad, *(each.grad for each in head.layer.parameters())]
    states.grad = None
    head.layer.zero_grad()
    return found


@pytest.mark.parametrize("rows", [1, 5, COUNT])
@pytest.mark.parametrize(("bias", "factor", "temperature"), [(False, 1.0, 1.0), (True, 0.25, 0.7), (False, 3.0, 1.3)])
@pytest.mark.parametrize("promised", [False, True], ids=["general", "promised"])
def test_values_and_gradients_are_those_of_autograd(monkeypatch, rows, bias, factor, temperature, promised):
    monkeypatch.setattr(vocabulary, "CHUNK_ELEMENTS", rows * VOCABULARY)
    head, states, targets, weights = case(bias, factor)
    coefficient = (lambda logp, window: weights[window]) if promised else None
    logp, entropy = chunked_logp(head, states, targets, temperature, coefficient=coefficient)
    (-0.3 * logp * weights).sum().backward()
    found = gradients(head, states)
    expected, expected_entropy = plain(head, states, targets, temperature)
    (-0.3 * expected * weights).sum().backward()
    torch.testing.assert_close((logp, entropy), (expected, expected_entropy), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, gradients(head, states), rtol=1e-12, atol=1e-12)
    assert not entropy.requires_grad


def test_a_coefficient_may_depend_on_the_tokens_own_logp():
    """d/dlogp of exp(logp) is exp(logp): known while the logits are there."""
    head, states, targets, _ = case()
    chunked_logp(head, states, targets, coefficient=lambda logp, window: logp.exp())[0].exp().sum().backward()
    found = gradients(head, states)
    plain(head, states, targets, 1.0)[0].exp().sum().backward()
    torch.testing.assert_close(found, gradients(head, states), rtol=1e-12, atol=1e-12)


def test_a_broken_promise_is_found():
    head, states, targets, weights = case()
    logp, _ = chunked_logp(head, states, targets, coefficient=lambda logp, window: torch.ones_like(logp))
    with pytest.raises(ValueError, match="promised"):
        (logp * weights).sum().backward()
    (
        chunked_logp(head, states, targets, coefficient=lambda logp, window: torch.ones_like(logp))[0] * 0
    ).sum().backward()
    assert not gradients(head, states)[0].any()  # a loss that weighs nothing breaks no promise


@pytest.mark.parametrize("rows", [4, COUNT])
def test_only_what_learns_gets_a_gradient(monkeypatch, rows):
    monkeypatch.setattr(vocabulary, "CHUNK_ELEMENTS", rows * VOCABULARY)
    head, states, targets, weights = case(bias=True)
    head.layer.requires_grad_(False)
    logp, _ = chunked_logp(head, states, targets)
    (logp * weights).sum().backward()
    assert head.layer.weight.grad is None and states.grad.norm() > 0.1
    with torch.no_grad():
        assert not chunked_logp(head, states, targets)[0].requires_grad


def test_a_large_logit_does_not_overflow_and_a_small_share_keeps_its_logarithm():
    head, states, targets, _ = case(dtype=torch.float32)
    with torch.no_grad():
        states.mul_(400)
    logp, entropy = chunked_logp(head, states, targets)
    expected = plain(head, states, targets, 1.0)[0]
    assert float(expected.detach().min()) < -200
    torch.testing.assert_close(logp, expected, rtol=1e-5, atol=1e-3)
    assert bool(torch.isfinite(entropy).all())


def test_products_in_half_precision_stay_near(monkeypatch):
    monkeypatch.setattr(vocabulary, "CHUNK_ELEMENTS", 5 * VOCABULARY)
    head, states, targets, weights = case(bias=True, dtype=torch.float32)
    logp, _ = chunked_logp(head, states, targets, 0.8, torch.bfloat16)
    assert logp.dtype == torch.float32
    (logp * weights).sum().backward()
    found = gradients(head, states)
    expected = plain(head, states, targets, 0.8)[0]
    (expected * weights).sum().backward()
    assert float((logp - expected).detach().abs().max()) < 0.05
    for mine, theirs in zip(found, gradients(head, states), strict=True):
        assert mine.dtype == torch.float32 and float((mine - theirs).norm()) < 0.02 * float(theirs.norm())


def test_no_state_is_no_score():
    head, states, targets, _ = case()
    logp, entropy = chunked_logp(head, states[:0], targets[:0])
    assert logp.shape == entropy.shape == (0,)
    logp.sum().backward()
    assert not states.grad.any()


def test_the_entropy_comes_out_of_the_product_of_a_promised_gradient(monkeypatch):
    """Without the product, from the shares: nothing as wide as the logits is read once more where it need not be."""
    wide = []
    vecdot = torch.linalg.vecdot
    monkeypatch.setattr(torch.linalg, "vecdot", lambda a, b: wide.append(a.shape[-1]) or vecdot(a, b))
    head, states, targets, weights = case(bias=True)
    for coefficient, width in ((None, VOCABULARY), (lambda logp, window: weights[window], SIZE)):
        wide.clear()
        _, entropy = chunked_logp(head, states, targets, coefficient=coefficient)
        torch.testing.assert_close(entropy, plain(head, states, targets, 1.0)[1], rtol=1e-12, atol=1e-12)
        assert wide == [width]
