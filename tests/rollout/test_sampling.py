"""Drawing tokens: the right frequencies, the right log-probabilities, and never what cannot be drawn."""

import pytest
import torch

from tests.support.for_every import for_every
from whet.rollout.sampling import LARGEST_UNIFORM, SMALLEST_IN_BLOCKS, draw, kept_tokens, uniforms
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


@for_every(SIZES, [0.0, 1 - 2.0**-24])
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


@pytest.mark.parametrize("size", SIZES)
def test_the_last_token_and_the_one_before_it_are_drawn_where_nothing_else_can_be(size):
    likeliest = torch.tensor([size - 1, size - 2])
    logits = torch.nn.functional.one_hot(likeliest, size).log()  # nothing else is possible
    assert draw(logits, torch.full((2,), 0.5), Sampling()).token.tolist() == likeliest.tolist()


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


# probabilities of five tokens, out of order, so that a rule that takes the first ones shows
SHARES = torch.tensor([[0.05, 0.40, 0.10, 0.30, 0.15], [0.02, 0.03, 0.90, 0.01, 0.04]])
TRUNCATIONS = {
    "top_k": (Sampling(top_k=2), [[1, 3], [2, 4]]),
    "top_k of all": (Sampling(top_k=5), [[0, 1, 2, 3, 4]] * 2),
    # a token stays while the mass in front of it is below top_p: 0.4 + 0.3 = 0.7 reaches it, so three are not needed
    "top_p": (Sampling(top_p=0.69), [[1, 3], [2]]),
    "top_p needs one more": (Sampling(top_p=0.71), [[1, 3, 4], [2]]),
    # relative to the likeliest token: 0.4 * 0.3 = 0.12 and 0.9 * 0.3 = 0.27, not 0.3
    "min_p": (Sampling(min_p=0.3), [[1, 3, 4], [2]]),
    "top_k, then top_p of what is left": (Sampling(top_k=3, top_p=0.8), [[1, 3], [2]]),
    "top_k, then min_p": (Sampling(top_k=4, min_p=0.03), [[1, 2, 3, 4], [1, 2, 4]]),
}


@for_every(TRUNCATIONS)
def test_truncation_keeps_exactly_these_tokens(rule):
    sampling, expected = TRUNCATIONS[rule]
    kept = kept_tokens(SHARES.log(), sampling)
    assert [row.nonzero()[:, 0].tolist() for row in kept] == expected


@for_every(TRUNCATIONS)
def test_draws_stay_within_the_truncation_and_reach_all_of_it(rule):
    """Frequencies are those of the kept tokens, renormalised; so are the log-probabilities."""
    sampling, expected = TRUNCATIONS[rule]
    for row, kept in enumerate(expected):
        logits = SHARES[row].log().expand(4000, -1)
        drawn = draw(logits, uniforms(list(range(4000)), 1)[:, 0], sampling)
        share = torch.zeros(5)
        share[kept] = SHARES[row][kept] / SHARES[row][kept].sum()
        assert sorted(drawn.token.unique().tolist()) == kept
        torch.testing.assert_close(torch.bincount(drawn.token, minlength=5) / 4000, share, rtol=0, atol=0.03)
        torch.testing.assert_close(drawn.logp, share[drawn.token].log(), rtol=0, atol=1e-5)


def test_temperature_comes_before_truncation():
    """At temperature 2 the shares are flatter, so the same top_p keeps more."""
    cool, warm = (
        draw(SHARES.log(), torch.rand(2), Sampling(temperature=t, top_p=0.69, keeps_support=True)).kept.sum(-1)
        for t in (1, 2)
    )
    assert (warm > cool).all()


@for_every(SIZES)
def test_weights_that_have_diverged_draw_a_token_of_the_vocabulary(size):
    drawn = draw(torch.full((2, size), float("nan")), torch.tensor([0.2, 0.9]), Sampling())
    assert ((drawn.token >= 0) & (drawn.token < size)).all()
