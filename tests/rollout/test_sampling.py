"""Drawing tokens: the right frequencies, the right log-probabilities, and never what cannot be drawn."""

import pytest
import torch

from whet.rollout.sampling import LARGEST_UNIFORM, SMALLEST_IN_BLOCKS, draw, uniforms
from whet.types import Sampling

SIZES = [97, SMALLEST_IN_BLOCKS, SMALLEST_IN_BLOCKS + 64 * 3, SMALLEST_IN_BLOCKS + 1]


@pytest.mark.parametrize("size", SIZES)
def test_the_token_is_where_the_cumulative_probability_passes_the_number(size):
    torch.manual_seed(0)
    logits = 3 * torch.randn(64, size)
    uniform = torch.rand(64)
    drawn = draw(logits, uniform, Sampling(temperature=0.7))
    logp = (logits.double() / 0.7).log_softmax(-1)
    cumulative = logp.exp().cumsum(-1)
    reached = cumulative.gather(1, drawn.token[:, None])[:, 0]
    before = reached - logp.gather(1, drawn.token[:, None])[:, 0].exp()
    assert ((before - 1e-6 <= uniform) & (uniform <= reached + 1e-6)).all()
    torch.testing.assert_close(drawn.logp.double(), logp.gather(1, drawn.token[:, None])[:, 0], rtol=0, atol=1e-5)
    assert len(drawn.token.unique()) > 10


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-24])
def test_the_ends_of_the_unit_interval_draw_something_possible(size, number):
    """The first and last tokens cannot be drawn: rounding must not lead there."""
    torch.manual_seed(1)
    logits = 4 * torch.randn(200, size)
    logits[:, :40] = logits[:, -40:] = float("-inf")
    drawn = draw(logits, torch.full((200,), number), Sampling())
    assert drawn.logp.isfinite().all() and ((drawn.token >= 40) & (drawn.token < size - 40)).all()
    assert (drawn.token < 60).all() if number == 0 else (drawn.token > size - 400).all()


@pytest.mark.parametrize("size", SIZES)
def test_spending_the_logits_changes_nothing_but_them(size):
    logits, uniform = torch.randn(8, size), uniforms(list(range(8)), 1)[:, 0]
    kept = logits.clone()
    plain = draw(logits, uniform, Sampling())
    assert torch.equal(logits, kept)
    spent = draw(logits, uniform, Sampling(), spend=True)
    assert torch.equal(plain.token, spent.token) and torch.equal(plain.logp, spent.logp)
    assert not torch.equal(logits, kept)


def test_frequencies_are_the_probabilities():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(20000, -1)
    drawn = draw(logits, uniforms(list(range(20000)), 1)[:, 0], Sampling())
    share = torch.bincount(drawn.token, minlength=4) / 20000
    torch.testing.assert_close(share, logits[0].softmax(-1), rtol=0, atol=0.012)


def test_the_largest_uniform_number_stays_below_every_total():
    """Or a total that was rounded could be reached, and with it a token of probability 0."""
    bits = torch.cat([torch.arange(1 << 23, (1 << 23) + 4096), torch.randint(1 << 23, 0x7F000000, (200_000,))])
    totals = bits.to(torch.int32).view(torch.float32)  # positive, normal, of every exponent
    assert bool((totals * LARGEST_UNIFORM < totals).all()) and float(torch.tensor(LARGEST_UNIFORM)) < 1
    logits = torch.tensor([[0.0, 1.0, float("-inf"), float("-inf")]]).repeat(64, 1)
    drawn = draw(logits, torch.full((64,), 1 - 2.0**-24), Sampling())
    assert drawn.token.tolist() == [1] * 64
