"""Who is counted, and what the way a step is cut changes. whet's own gradient never depends on it: tests/properties."""

from dataclasses import replace

import torch

from tests.peers.compare_losses import BUDGET, NO_DUAL, TOKENS, UNTIED, WHOLE
from tests.peers.compared import (
    ONE_PLUS,
    PIECES,
    SINGLE,
    Completions,
    both,
    cut,
    gap,
    measured,
    method,
    oracle_batch,
    prepared,
    same,
    size,
    step,
    trl_gradient,
    verl_gradient,
    whet_gradient,
)
from tests.peers.steady import steady_batch


def _shares(verl, mode, aggregate, divisor=None):
    batch, logp = oracle_batch()
    ones = replace(batch, advantage=batch.action.to(logp.dtype))
    ours = whet_gradient(method("reinforce", {"aggregate": aggregate}), ones, logp)
    answer = verl(
        "aggregate",
        mode=mode,
        matrix=torch.where(batch.action, logp, 0.0),
        mask=batch.action,
        pieces=cut(len(logp), PIECES),
        divisor=divisor,
    )
    return -answer["gradient"], ours


@same()
def verl_token_mean(verl):
    return _shares(verl, "token-mean", "token_mean")


@same()
def verl_sequence_sum(verl):
    return _shares(verl, "seq-mean-token-sum", "sequence_sum")


@same(ONE_PLUS)
def verl_sequence_mean(verl):
    return _shares(verl, "seq-mean-token-mean", "sequence_mean")


@same()
def verl_fixed_length(verl):
    return _shares(verl, "seq-mean-token-sum-norm", "fixed_length", divisor=BUDGET)


def _each_in_pieces(ask, peer, cases):
    """The peer's step cut into 8 pieces beside whet's whole one, for every case in turn."""
    found = [both(objective, ask, peer, pieces=PIECES, **settings) for objective, settings in cases]
    return torch.cat([theirs for theirs, _ in found]), torch.cat([ours for _, ours in found])


@same(SINGLE)
def trl_in_pieces(trl):
    """Every loss but bnpo, with pieces of equal size and no empty completion."""
    sequence = {"importance_sampling_level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3}
    cases = [
        (method("grpo", UNTIED), {"loss_type": "grpo"}),
        (method("dr_grpo"), {"loss_type": "dr_grpo"}),
        (method("grpo", TOKENS), {"loss_type": "dapo"}),
        (method("cispo"), {"loss_type": "cispo", "epsilon_high": 5.0}),
        (method("luspo"), {"loss_type": "luspo", **sequence}),
        (method("sapo"), {"loss_type": "sapo"}),
        (method("vespo"), {"loss_type": "vespo"}),
        (method("gmpo"), {"trainer": "gmpo"}),
        (method("rloo", WHOLE), {"trainer": "rloo", "drift": 0.1}),
    ]
    return _each_in_pieces(trl_gradient, trl, cases)


@same()
def verl_in_pieces(verl):
    """Every loss but geo_mean and the two that choose tokens, with a divisor that is set."""
    narrow = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4, "loss_agg_mode": "seq-mean-token-mean"}
    fixed = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": BUDGET}
    cases = [
        (method("grpo", TOKENS), NO_DUAL),
        (method("dr_grpo"), {**fixed, **NO_DUAL}),
        (method("gspo"), {"loss_mode": "gspo", **narrow}),
        (method("cispo"), {"loss_mode": "cispo", "clip_ratio_low": 1.0, "clip_ratio_high": 4.0}),
        (method("sapo"), {"loss_mode": "sapo"}),
        (method("opo"), {"loss_mode": "gpg"}),
    ]
    return _each_in_pieces(verl_gradient, verl, cases)


@measured
def trl_bnpo_in_pieces(trl):
    batch, logp, ours = step(method("grpo", TOKENS))
    return gap(trl_gradient(trl, batch, logp, pieces=PIECES, loss_type="bnpo"), ours)


@measured
def trl_dapo_two_steps(trl):
    """Rows generated together, trained in two optimizer steps: the step with the shorter half of the completions."""
    objective = method("grpo", TOKENS)
    batch, logp = steady_batch(num_groups=32)
    batch = prepared(objective, batch)
    rows = batch.lengths.argsort(stable=True)[: len(logp) // 2]
    half, here = batch.select(rows), logp[rows]
    settings = {"loss_type": "dapo", "steps_per_generation": 2, "generated_tokens": int(batch.lengths.sum())}
    return size(trl_gradient(trl, half, here, **settings), whet_gradient(objective, half, here))


def _filtered():
    """A quarter of the completions lose all their tokens, as an overlong filter does it."""
    objective = method("grpo", UNTIED)
    batch, logp = steady_batch()
    completions = Completions.of(batch.action)
    batch = prepared(objective, batch)
    action = batch.action.clone()
    action[::4] = False
    batch = replace(batch, action=action, advantage=torch.where(action, batch.advantage, 0.0))
    return batch, logp, completions, whet_gradient(objective, batch, logp)


@measured
def trl_empty_completions(trl):
    batch, logp, completions, ours = _filtered()
    return size(trl_gradient(trl, batch, logp, completions=completions, loss_type="grpo"), ours)


@measured
def verl_empty_completions(verl):
    batch, logp, completions, ours = _filtered()
    settings = {"loss_agg_mode": "seq-mean-token-mean", **NO_DUAL}
    return size(verl_gradient(verl, batch, logp, completions=completions, **settings), ours)


@measured
def verl_geo_mean_in_pieces(verl):
    batch, logp, ours = step(method("gmpo"))
    settings = {"loss_mode": "geo_mean", "clip_ratio_low": 0.4, "clip_ratio_high": 0.4}
    return size(verl_gradient(verl, batch, logp, pieces=PIECES, **settings), ours)


NORMED = {"loss_agg_mode": "seq-mean-token-sum-norm", **NO_DUAL}


@measured
def verl_dr_grpo_default(verl):
    """With a budget of four times the longest completion."""
    objective = method("dr_grpo")
    batch, logp, _ = step(objective)
    batch = replace(batch, max_new_tokens=4 * int(Completions.of(batch.action).length.max()))
    return size(verl_gradient(verl, batch, logp, **NORMED), whet_gradient(objective, batch, logp))


@measured
def verl_dr_grpo_in_pieces(verl):
    """Beside verl's own gradient of the batch as a whole."""
    batch, logp, _ = step(method("dr_grpo"))
    whole = verl_gradient(verl, batch, logp, **NORMED)
    return gap(verl_gradient(verl, batch, logp, pieces=PIECES, **NORMED), whole)


def _choice_in_pieces(verl, loss_mode, choice, drift):
    """Beside verl's own gradient of the batch as a whole."""
    batch, logp, _ = step(method("grpo", TOKENS), drift=drift)
    settings = {"loss_mode": loss_mode, "choice": choice}
    return gap(
        verl_gradient(verl, batch, logp, pieces=PIECES, **settings), verl_gradient(verl, batch, logp, **settings)
    )


@measured
def verl_clip_cov_in_pieces(verl):
    return _choice_in_pieces(verl, "clip_cov", {"clip_cov_lb": 0.1}, drift=0.0)


@measured
def verl_kl_cov_in_pieces(verl):
    return _choice_in_pieces(verl, "kl_cov", {"ppo_kl_coef": 1.0}, drift=0.2)


@measured
def trl_top_entropy_in_pieces(trl):
    """Each pass takes the top fifth of its own tokens, whet the top fifth of the batch."""
    batch, logp, ours = step(method("grpo", {**TOKENS, "select": "top_entropy"}))
    settings = {"loss_type": "dapo", "top_entropy_quantile": 0.2}
    whole = trl_gradient(trl, batch, logp, **settings)
    assert ((whole != 0) != (ours != 0)).sum() <= 1, "as a whole the two differ by a token at the edge, at most"
    return gap(trl_gradient(trl, batch, logp, pieces=PIECES, **settings), whole)
