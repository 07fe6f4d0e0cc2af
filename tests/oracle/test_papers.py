"""Every method's gradient equals the gradient of its paper's formula, on ragged random batches in float64."""

from dataclasses import fields, replace
from math import lcm, prod

import pytest
import torch

from tests.oracle.papers import CRITICS, PAPERS, lambda_grpo
from tests.support.for_every import for_every
from tests.support.naive_losses import counting
from tests.support.oracle_batches import asked_for, chosen, episodes, random_batch, random_extras, with_leaves
from tests.support.oracle_case import case_of
from tests.support.oracle_methods import MEMORY, METHODS, SEEDS, example, gradients, largest, objective_of, relative
from tests.support.oracle_variations import VARIATIONS, Variation
from whet.objective import AXES, PRESETS, step_totals


def whet_gradients(objective, batch, logp, extras, budget):
    """Of J and, where there is a critic, of its loss; and the batch the package has prepared."""
    prepared, _ = objective.advantage(batch, MEMORY)
    prepared = objective.surveyed(prepared, logp)
    totals = step_totals(prepared, budget)
    leaf, extras = logp.clone().requires_grad_(), with_leaves(extras)
    (-objective.tuned(MEMORY).loss(prepared, leaf, totals, extras).value).backward()
    assert extras.value.grad is None
    if objective.value.needs:
        objective.critic_loss(prepared, extras.value, totals).value.backward()
    return prepared, gradients(leaf, extras)


def paper_gradients(method, batch, logp, extras, learns):
    leaf, extras = logp.clone().requires_grad_(), with_leaves(extras)
    case = case_of(batch, leaf, extras, MEMORY, learns)
    method.paper(case).backward()
    if method.critic is not None:
        method.critic(case).backward()
    return gradients(leaf, extras)


def test_every_method_has_a_paper_and_every_critic_one():
    assert set(PAPERS) == set(PRESETS)
    assert set(CRITICS) == {name for name in PRESETS if PRESETS[name].objective.value.needs}
    for name, variation in VARIATIONS.items():
        assert (variation.critic is not None) == bool(objective_of(variation).value.needs), name


def test_every_component_that_shapes_a_gradient_has_a_paper():
    used = {(axis, getattr(objective_of(method), axis).name) for method in METHODS.values() for axis in AXES}
    elsewhere = ("keep", "control", "reference")  # what the loop does with them is tested by hand numbers
    missing = {(axis, name) for axis in AXES if axis not in elsewhere for name in AXES[axis]} - used
    assert missing == set()


# presets on small and large groups, variations on small ones; in the last batch a completion was not scored
@for_every(
    [
        *((name, seed) for name in PAPERS for seed in (2, 3)),
        *((name, seed) for name in VARIATIONS for seed in (0, 3)),
    ]
)
def test_gradient_equals_the_papers(name, seed):
    method = METHODS[name]
    objective, batch, logp, extras = example(method, seed)
    prepared, ours = whet_gradients(objective, batch, logp, extras, batch.max_new_tokens)
    theirs = paper_gradients(method, batch, logp, extras, prepared.learns)
    assert largest(theirs) > 1e-4
    for tensor, gradient in theirs.items():
        assert relative(ours[tensor], gradient) < 1e-12, tensor


# methods that count attempts or tokens, or that leave turns out before they count branches: those are held by
# tests/properties, where the branches of an episode are equal
COUNTS = ("pass_at_k", "pass_at_k_marginal", "best_minus_second")
CHOOSES = ("top_entropy", "clip_covariance", "tie_covariance", "finished", "finished_turns")
WEIGHED = [
    name
    for name in METHODS
    if objective_of(METHODS[name]).baseline.name not in COUNTS
    and objective_of(METHODS[name]).select.name not in CHOOSES
]


@for_every([name for name in METHODS if name not in WEIGHED])
def test_gradient_equals_the_papers_over_episodes(name):
    """Turns of different number, holes between them, rewards of turns, roles that are never compared."""
    same_over_episodes(name)


@pytest.mark.slow  # branches, below, are such episodes too
@for_every(WEIGHED)
def test_gradient_equals_the_papers_over_episodes_that_do_not_branch(name):
    same_over_episodes(name)


def same_over_episodes(name):
    method = METHODS[name]
    objective, batch, logp, extras = example(method, 3, "episodes")
    prepared, ours = whet_gradients(objective, batch, logp, extras, batch.max_new_tokens)
    theirs = paper_gradients(method, batch, logp, extras, prepared.learns)
    assert largest(theirs) > 1e-4
    for tensor, gradient in theirs.items():
        assert relative(ours[tensor], gradient) < 1e-12, tensor


def as_often(batch):
    """Rows such that every episode has as many of them, and how many: branches stand for one episode together, each by
    the draws that it came by. What follows a state, draws and ends of branches, divides the state's rows evenly."""
    paths = [
        [int(episode), *dict.fromkeys(row[action].tolist())]
        for episode, row, action in zip(batch.episode, batch.node, batch.action, strict=True)
    ]
    following = {}
    for row, path in enumerate(paths):
        for length in range(1, len(path) + 1):
            after = path[length] if length < len(path) else ("end", row)
            following.setdefault(tuple(path[:length]), set()).add(after)
    shares = [prod(len(following[tuple(path[:length])]) for length in range(1, len(path) + 1)) for path in paths]
    copies = lcm(*shares)
    return torch.arange(batch.num_sequences).repeat_interleave(copies // torch.tensor(shares)), copies


# episodes of one and two branches for all; of one to three where siblings are averaged in another way
@for_every([*((name, 0) for name in WEIGHED), *((name, 12) for name in ("grpo", "dapo", "gspo", "dr_grpo", "ppo"))])
def test_gradient_equals_the_papers_over_branches(name, seed):
    """Each leaf is a sample, siblings averaged within their episode: the paper sees every episode equally often."""
    method = METHODS[name]
    objective, batch, logp, extras = example(method, seed, "branches")
    _, ours = whet_gradients(objective, batch, logp, extras, batch.max_new_tokens)
    rows, copies = as_often(batch)
    assert copies > 1 and len(batch.episode.unique()) < batch.num_sequences
    leaf, leaves = logp.clone().requires_grad_(), with_leaves(extras)
    with counting(copies):
        case = case_of(batch.select(rows), leaf[rows], chosen(leaves, rows, logp.shape[1]), MEMORY, rows=rows)
        method.paper(case).backward()
        if method.critic is not None:
            method.critic(case).backward()
    theirs = gradients(leaf, leaves)
    assert largest(theirs) > 1e-4
    for tensor, gradient in theirs.items():
        assert relative(ours[tensor], gradient) < 1e-12, tensor
    # as samples of their own the branches would teach something else
    _, apart = whet_gradients(objective, replace(batch, episode=None), logp, extras, batch.max_new_tokens)
    assert max(relative(apart[tensor], ours[tensor]) for tensor in ours) > 1e-3


@for_every([name for name in VARIATIONS if VARIATIONS[name].changes])
def test_a_variation_is_another_gradient_than_its_method(name):
    """Otherwise its agreement above would say nothing about what was varied."""
    plain, differences = PRESETS[VARIATIONS[name].preset].objective, [0.0]
    for seed in SEEDS:
        if max(differences) > 1e-3:
            break
        objective, batch, logp, extras = example(VARIATIONS[name], seed)
        _, varied = whet_gradients(objective, batch, logp, extras, batch.max_new_tokens)
        _, usual = whet_gradients(plain, batch, logp, extras, batch.max_new_tokens)
        differences += [relative(varied[tensor], usual[tensor]) for tensor in usual]
    assert max(differences) > 1e-3


MORE_SEEDS = range(4, 8)  # for shares of tokens


def bound_share(name, metric):
    """Mean over the seeds of a metric of the loss."""
    total = 0.0
    for seed in MORE_SEEDS:
        objective, batch, logp, extras = example(METHODS[name], seed)
        prepared = objective.surveyed(objective.advantage(batch, MEMORY)[0], logp)
        loss = objective.tuned(MEMORY).loss(prepared, logp, step_totals(prepared, batch.max_new_tokens), extras)
        total += loss.metrics[metric]
    return total / len(MORE_SEEDS)


CLIPPED = [name for name in METHODS if objective_of(METHODS[name]).clip.name not in ("on_policy", "unclipped")]


@for_every(CLIPPED)
def test_the_clip_binds_in_these_batches(name):
    """Otherwise the agreement above would say nothing about clipping. Some tokens must be left as they are, too."""
    gates = ("soft_gate", "gamma_gate", "geometric_mean", "group_softmax")
    share = bound_share(name, "reweighted")
    assert share > 0.002
    assert share < 0.9 or objective_of(METHODS[name]).clip.name in gates


@for_every([name for name in METHODS if objective_of(METHODS[name]).mismatch.needs])
def test_the_mismatch_rule_binds_in_these_batches(name):
    method, changed, dropped, tokens = METHODS[name], 0, 0, 0
    for seed in MORE_SEEDS:
        objective, batch, logp, _ = example(method, seed)
        prepared, _ = objective.advantage(batch, MEMORY)
        mismatch, staleness = batch.old_logp - batch.behavior_logp, logp - batch.behavior_logp
        factor = objective.mismatch(mismatch, staleness, prepared.advantage, batch.action)[batch.action]
        if objective.mismatch.name == "truncate_sequence":
            mismatch = torch.where(batch.action, mismatch, 0.0).sum(-1, keepdim=True).expand_as(mismatch)
        free = mismatch[batch.action].exp() if objective.mismatch.name != "stale_mask" else torch.ones_like(factor)
        changed += int((factor != free).sum())
        dropped += int((factor == 0).sum())
        tokens += factor.numel()
    assert 0.01 < changed / tokens < 0.99
    if "mask" in objective.mismatch.name:
        assert changed == dropped and abs(bound_share(name, "mismatch_dropped") - dropped / tokens) < 0.05


@for_every([name for name in METHODS if objective_of(METHODS[name]).select.name != "all"])
def test_the_choice_of_tokens_binds_in_these_batches(name):
    chosen, tokens = 0, 0
    for seed in SEEDS:
        objective, batch, *_ = example(METHODS[name], seed)
        prepared, _ = objective.advantage(batch, MEMORY)
        kept = prepared.tied if prepared.tied is not None else prepared.learns
        kept = prepared.action if kept is None else kept
        assert not (kept & ~batch.action).any()
        chosen += int(kept.sum())
        tokens += int(batch.action.sum())
    assert 0 < chosen < tokens


@for_every(["simko", "strong smoothing"])
def test_smoothing_binds_in_these_batches(name):
    moved = pushed = 0
    for seed in SEEDS:
        objective, batch, _, extras = example(METHODS[name], seed)
        prepared, _ = objective.advantage(batch, MEMORY)
        moved += int((objective.smooth.spread(prepared, extras) > 0).sum())
        pushed += int((objective.smooth.pushed(prepared.advantage, prepared, extras) != prepared.advantage).sum())
    assert moved > 20 and pushed > 20


def test_the_critics_error_is_held_in_these_batches():
    objective, batch, _, extras = example(METHODS["clipped_error"], 0)
    prepared, _ = objective.advantage(batch, MEMORY)
    plain = PRESETS["ppo"].objective.value.error(extras.value, prepared)
    differs = (objective.value.error(extras.value, prepared) != plain)[batch.action]
    assert 0.1 < differs.double().mean() < 0.9


# a stopped ratio in front of log pi has no surrogate of its own: there the value reported is weight A
STOPPED = ("cap", "gamma_gate", "tapered", "inverse_ratio", "moment_mask", "balanced_band", "group_softmax")
BESIDE = {"entropy": "none", "imitate": "none", "teacher": "none"}  # what the surrogate leaves out


def has_surrogate(objective):
    plain = all(getattr(objective, axis).name == usual for axis, usual in BESIDE.items())
    return plain and objective.clip.name not in STOPPED and objective.ratio.name != "sequence_product"


SURROGATES = [name for name in CLIPPED if has_surrogate(objective_of(METHODS[name]))]


@for_every(SURROGATES)
def test_the_reported_surrogate_is_the_papers_value(name):
    """Taken without the terms beside it: KL, entropy and imitation."""
    method = METHODS[name]
    objective = objective_of(method)
    _, batch, logp, extras = example(method, 5)
    prepared, _ = objective.advantage(batch, MEMORY)
    tuned = objective.tuned(MEMORY)
    found = tuned.loss(prepared, logp, step_totals(prepared, batch.max_new_tokens), extras).metrics["surrogate"]
    case = case_of(batch, logp, extras, MEMORY, prepared.learns)
    value = float(method.paper(case))
    if "in the loss" in name or objective.kl.name in ("k3", "k2_sampler"):
        value += kl_value(tuned, prepared, logp, extras)
    assert found == pytest.approx(value, rel=1e-11)


def kl_value(objective, batch, logp, extras):
    """beta SUM share value, what the paper's J holds beside the surrogate."""
    moved = (logp - batch.old_logp).exp()
    u = logp - (batch.behavior_logp if objective.kl.to_sampler else batch.ref_logp)
    share = objective.aggregate(batch, step_totals(batch, batch.max_new_tokens))
    full = objective.kl.name == "full"
    value = extras.divergence if full else objective.kl.value(u, moved)
    return objective.kl.beta * float((share * value)[batch.action].sum())


@for_every(SEEDS)
def test_the_grad_of_the_learned_share_is_the_papers(seed):
    """d J / d lambda, by torch's own gradient of the paper's J."""
    objective, batch, logp, extras = example(METHODS["lambda_grpo"], seed)
    prepared, _ = objective.advantage(batch, MEMORY)
    found = objective.loss(prepared, logp, step_totals(prepared, batch.max_new_tokens), extras).metrics["share_grad"]
    power = torch.tensor(MEMORY["length_power"], dtype=torch.float64, requires_grad=True)
    lambda_grpo(case_of(batch, logp, extras, MEMORY), power=power).backward()
    assert found == pytest.approx(float(power.grad), rel=1e-10) and abs(found) > 1e-6


def test_the_lottery_draws_every_candidate_alike():
    """Whichever of the candidates goes is a matter of its tokens only: over many batches no rank is preferred."""
    objective = objective_of(Variation("clip_cov", {"select.low": 0.2, "select.share": 1e-6}, None))
    places = []
    for seed in range(240):
        batch, _ = random_batch(seed, num_groups=3, group_size=4)
        batch = asked_for(batch, objective)
        prepared, _ = objective.advantage(batch, {})
        gone = (prepared.action & ~prepared.learns).nonzero()
        if not len(gone):
            continue
        assert len(gone) == 1
        cov = _covariance(prepared)
        candidates = (prepared.action & (cov > 0.2) & (cov < 5)).nonzero().tolist()
        place = candidates.index(gone[0].tolist())
        places.append((place + 0.5) / len(candidates))
    assert len(places) > 190
    # a uniform draw has mean 1/2 and variance 1/12: four standard errors
    spread = torch.tensor(places)
    assert abs(float(spread.mean()) - 0.5) < 4 * (1 / 12 / len(places)) ** 0.5
    assert abs(float(spread.var()) - 1 / 12) < 0.015
    quarters = torch.histc(spread, 4, 0, 1) / len(places)
    assert (quarters - 0.25).abs().max() < 0.09


def _covariance(batch):
    inside = batch.action
    advantage, logp = batch.advantage, batch.old_logp
    return (advantage - advantage[inside].mean()) * (logp - logp[inside].mean())


def test_the_batches_hold_every_field():
    batch, _ = random_batch(0)
    late = {
        "support",
        "advantage",
        "step_weight",
        "token_reward",
        "target",
        "learns",
        "tied",
        "importance",
        "row_weight",
    }
    late |= {"routed_experts", "old_experts"}  # of mixtures of experts alone
    late |= {"teacher_top", "teacher_top_logp"}  # of the pass, which gives the divergence
    missing = {field.name for field in fields(batch) if getattr(batch, field.name) is None}
    assert missing == late | {"episode", "returned", "node"}
    branches = episodes(0, batch, branches=True)
    assert {field.name for field in fields(batch) if getattr(branches, field.name) is None} == late
    turns = torch.where(branches.action, branches.segment, -1).amax(-1)
    assert set(turns.tolist()) == {0, 1, 2, 3} and branches.observed.any()
    assert len(branches.episode.unique()) < branches.num_sequences and len(branches.role.unique()) == 2
    extras = random_extras(0, batch)
    assert all(getattr(extras, field.name) is not None for field in fields(extras))
