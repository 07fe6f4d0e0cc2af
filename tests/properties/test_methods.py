"""The contract of the loss layer, for every method: cutting, padding, order and ranks never change a gradient.

Gradients are those of logp, of every tensor of the pass and of the critic's value. Batches are single completions, or
episodes with turns, roles and branches.
"""

from dataclasses import asdict, fields, replace
from functools import cache

import pytest
import torch

from tests.support.for_every import for_every
from tests.support.oracle_batches import EXTRA_TENSORS, chosen, random_extras, with_leaves
from tests.support.oracle_methods import MEMORY, METHODS, example, gradients, largest, objective_of, relative
from whet.data.packing import token_micro_batches
from whet.objective import AXES, PRESETS, step_totals
from whet.objective.select import lottery
from whet.types import TOKEN_FIELDS, Extras, Totals, WhetError

PRESET_METHODS = list(PRESETS)
VARIED = [name for name in METHODS if name not in PRESETS]
# presets on both kinds of batch, their variations on the kind that has everything in it
METHODS_AND_KINDS = [
    *((name, kind) for name in PRESET_METHODS for kind in ("completions", "branches")),
    *((name, "branches") for name in VARIED),
]
CLOSE = 1e-12


def prepared(objective, batch):
    return objective.advantage(batch, MEMORY)[0]


def surveyed(objective, batch, logp):
    """Parts of a step were surveyed with the whole of it."""
    return batch if batch.step_weight is not None else objective.surveyed(batch, logp)


def gradients_and_metrics(objective, batch, logp, extras, totals=None):
    """Of a prepared batch: the policy's loss and the critic's together."""
    totals = totals or step_totals(batch, batch.max_new_tokens)
    batch = surveyed(objective, batch, logp)
    leaf, extras = logp.clone().requires_grad_(), with_leaves(extras)
    loss = objective.tuned(MEMORY).loss(batch, leaf, totals, extras)
    value = loss.value
    if objective.value.needs:
        value = value + objective.critic_loss(batch, extras.value, totals).value
    if value.requires_grad:
        value.backward()
    return gradients(leaf, extras), loss.metrics


def found_gradients(*arguments):
    return gradients_and_metrics(*arguments)[0]


@cache
def whole_step(name, kind):
    """A method, a prepared batch in which one completion could not be scored, and its gradients and metrics in one
    pass."""
    objective, batch, logp, extras = example(METHODS[name], 3, kind)
    batch = prepared(objective, batch)
    return objective, batch, logp, extras, *gradients_and_metrics(objective, batch, logp, extras)


def trained(objective, batch):
    """Tokens that a method learns from: its actions and, where it imitates them, an environment's tokens or those of a
    demonstration."""
    imitated = [getattr(batch, name) for name in ("observed", "demonstrated") if name in objective.needs()]
    return torch.stack([batch.action, *imitated]).any(0)


def metrics_of(objective, batch, logp, extras, totals):
    batch = surveyed(objective, batch, logp)
    return objective.tuned(MEMORY).loss(batch, logp, totals, extras).metrics


def assert_same(found, expected, tolerance=CLOSE):
    assert largest(expected) > 1e-5
    for name, gradient in expected.items():
        assert relative(found[name], gradient) < tolerance, name


def in_parts(objective, batch, logp, extras, parts):
    """Gradients and metrics of a step that is cut into these rows, each part trimmed to its own width."""
    totals = step_totals(batch, batch.max_new_tokens)
    batch = surveyed(objective, batch, logp)
    whole = {name: torch.zeros_like(tensor) for name, tensor in tensors_of(logp, extras).items()}
    sums, learning = {}, trained(objective, batch)
    for rows in parts:
        learned = learning[rows]
        width = int(learned.any(0).nonzero().max()) + 1 if learned.any() else 1
        part, component = batch.select(rows).narrowed(width), chosen(extras, rows, width)
        found, metrics = gradients_and_metrics(objective, part, logp[rows, :width], component, totals)
        for name, gradient in found.items():
            whole[name][rows, :width] += gradient
        for name, number in metrics.items():
            sums[name] = sums.get(name, 0.0) + number
    return whole, sums


def tensors_of(logp, extras):
    return {"logp": logp, **{name: getattr(extras, name) for name in EXTRA_TENSORS}}


@for_every([*((name, 1, "completions") for name in PRESET_METHODS), *((name, 100, "branches") for name in METHODS)])
def test_micro_batches_do_not_matter(name, micro_batch_tokens, kind):
    objective, batch, logp, extras, expected, whole = whole_step(name, kind)
    parts = token_micro_batches(batch, micro_batch_tokens)
    if micro_batch_tokens == 1:  # some rows alone, the others together
        parts = [*parts[:3], [row for rows in parts[3:] for row in rows]]
    assert sorted(row for rows in parts for row in rows) == list(range(batch.num_sequences))
    found, metrics = in_parts(objective, batch, logp, extras, parts)
    assert_same(found, expected)
    assert metrics == pytest.approx(whole, rel=1e-6, abs=1e-14)


@for_every([*((name, 2, "completions") for name in PRESET_METHODS), *((name, 3, "branches") for name in METHODS)])
def test_the_number_of_ranks_does_not_matter(name, ranks, kind):
    """Each rank sees only its rows and the summed totals; metrics are sums, so they add up over ranks too."""
    objective, batch, logp, extras, expected, whole = whole_step(name, kind)
    shares = [list(range(rank, batch.num_sequences, ranks)) for rank in range(ranks)]
    counted = [step_totals(batch.select(rows), batch.max_new_tokens) for rows in shares]
    totals = step_totals(batch, batch.max_new_tokens)
    summed = sum(counted[1:], counted[0])
    if kind == "completions":
        assert summed == totals  # whole numbers
    assert asdict(summed) == pytest.approx(asdict(totals), rel=1e-14)
    assert min(totals.correct_tokens, totals.observed_tokens, totals.demonstrated_tokens) > 0
    found, metrics = in_parts(objective, batch, logp, extras, shares)
    assert_same(found, expected)
    assert metrics == pytest.approx(whole, rel=1e-6, abs=1e-14)


def test_ranks_agree_on_the_grad_of_a_learned_share():
    """It is a sum over completions divided by the step's tokens: added over ranks it is the whole step's."""
    objective, batch, logp, extras = example(METHODS["lambda_grpo"], 4)
    batch = prepared(objective, batch)
    totals = step_totals(batch, batch.max_new_tokens)
    whole = metrics_of(objective, batch, logp, extras, totals)["share_grad"]
    shares = [list(range(rank, batch.num_sequences, 3)) for rank in range(3)]
    _, metrics = in_parts(objective, batch, logp, extras, shares)
    assert metrics["share_grad"] == pytest.approx(whole, rel=1e-12) and abs(whole) > 1e-4
    assert objective.learned(MEMORY, metrics, 9)["length_power"] == pytest.approx(
        objective.learned(MEMORY, {"share_grad": whole}, 9)["length_power"], rel=1e-12
    )


@for_every(METHODS_AND_KINDS)
def test_order_does_not_matter(name, kind):
    objective, batch, logp, extras = example(METHODS[name], 3, kind)
    order = torch.randperm(batch.num_sequences, generator=torch.Generator().manual_seed(0))
    shuffled = found_gradients(
        objective,
        prepared(objective, batch.select(order)),
        logp[order],
        chosen(extras, order, logp.shape[1]),
    )
    straight = whole_step(name, kind)[-2]
    assert_same(shuffled, {name: gradient[order] for name, gradient in straight.items()})


def spoiled(values, action, fill):
    """9 more columns, and everything that is not an action replaced."""
    wide = torch.cat([values, torch.zeros((len(values), 9, *values.shape[2:]), dtype=values.dtype)], dim=1)
    mask = torch.cat([action, torch.zeros(len(action), 9, dtype=torch.bool)], dim=1)
    mask = mask.reshape(*mask.shape, *[1] * (wide.ndim - 2))
    return torch.where(mask, wide, torch.as_tensor(fill, dtype=wide.dtype))


@for_every(METHODS, [(float("nan"), "completions"), (float("inf"), "branches")])
def test_prompts_tool_output_and_padding_may_hold_anything(name, fill, kind):
    objective, batch, logp, extras = example(METHODS[name], 3, kind)
    whole = whole_step(name, kind)[-2]
    fills = {"tokens": 11, "segment": 3, "anchor": 1, "node": 10, "action": False, "observed": False, "truncated": True}
    fills["demonstrated"] = False
    given = {field: getattr(batch, field) for field in TOKEN_FIELDS if getattr(batch, field) is not None}
    # which tokens an environment wrote or a demonstration shows is no number that may be anything
    flags = ("observed", "demonstrated")
    masks = {field: getattr(batch, field) if field in flags else batch.action for field in given}
    wide = replace(
        batch, **{field: spoiled(values, masks[field], fills.get(field, fill)) for field, values in given.items()}
    )
    more = Extras(
        **{
            field.name: spoiled(getattr(extras, field.name), batch.action, True if field.name == "chose_top" else fill)
            for field in fields(Extras)
        }
    )
    learned = trained(objective, batch)
    found = found_gradients(objective, prepared(objective, wide), spoiled(logp, learned, fill), more)
    width = logp.shape[1]
    assert_same({name: gradient[:, :width] for name, gradient in found.items()}, whole)
    for gradient in found.values():
        assert (gradient[~trained(objective, wide)] == 0).all()


@for_every(METHODS_AND_KINDS)
def test_untrained_tokens_get_exactly_no_gradient(name, kind):
    objective, batch, _, _, found, _ = whole_step(name, kind)
    for gradient in found.values():
        assert (gradient[~trained(objective, batch)] == 0).all()
    if "observed" in objective.needs():
        assert (found["logp"][batch.observed & ~batch.reward.isnan()[:, None]] < 0).all()
    if "demonstrated" in objective.needs():
        counted = (
            batch.demonstrated if batch.row_weight is None else batch.demonstrated & (batch.row_weight > 0)[:, None]
        )
        assert counted.any() and (found["logp"][counted] < 0).all()
    silent = 0.02 if objective.select.name == "top_entropy" or objective.clip.name == "ppo_clip" else 0.3
    tensor = "logp" if objective.baseline.name != "none" else "teacher_divergence"
    assert (found[tensor][batch.action] != 0).double().mean() > min(silent, 0.1)


@for_every(METHODS_AND_KINDS)
def test_a_sequence_without_a_trained_token_leaves_all_denominators(name, kind):
    objective, batch, logp, extras = example(METHODS[name], 6 if kind == "completions" else 4, kind)
    batch = prepared(objective, batch)
    silent, seen, shown = batch.action.clone(), batch.observed.clone(), batch.demonstrated.clone()
    silent[[0, 7]] = seen[[0, 7]] = shown[[0, 7]] = False
    quiet = replace(batch, action=silent, observed=seen, demonstrated=shown)
    others = [row for row in range(batch.num_sequences) if row not in (0, 7)]
    found = found_gradients(objective, quiet, logp, extras)
    totals, without = (step_totals(each, batch.max_new_tokens) for each in (quiet, quiet.select(others)))
    assert asdict(totals) == pytest.approx(asdict(without), rel=1e-14)
    alone = found_gradients(objective, quiet.select(others), logp[others], chosen(extras, others, logp.shape[1]))
    assert_same({name: gradient[others] for name, gradient in found.items()}, alone)
    assert all((gradient[[0, 7]] == 0).all() for gradient in found.values())


PLAIN = {"kl": "none", "entropy": "none", "imitate": "none", "select": "all", "smooth": "none", "mismatch": "none"}
PLAIN |= {"teacher": "none"}


@for_every(METHODS_AND_KINDS)
def test_at_ratio_one_the_weight_is_one(name, kind):
    """With nothing moved the policy term is share * A, whatever the clip rule; rules that choose tokens are exempt."""
    objective, batch, logp, extras = example(METHODS[name], 7, kind)
    batch = replace(batch, behavior_logp=logp)
    batch = prepared(objective, batch)
    objective = replace(objective, **{axis: AXES[axis][kind]() for axis, kind in PLAIN.items()})
    batch = replace(batch, learns=None)
    totals = step_totals(batch, batch.max_new_tokens)
    weight = 1.0 if batch.row_weight is None else batch.row_weight[:, None]
    expected = -objective.aggregate(batch, totals) * weight * torch.where(batch.action, batch.advantage, 0.0)
    for old in (None, logp):
        leaf = logp.clone().requires_grad_()
        known = objective.surveyed(replace(batch, old_logp=old), logp)
        loss = objective.loss(known, leaf, totals, extras)
        loss.value.backward()
        torch.testing.assert_close(leaf.grad, expected, rtol=1e-13, atol=0)
        assert loss.metrics["reweighted"] == 0
        assert loss.metrics["ratio"] == pytest.approx(1.0)
        assert loss.metrics["kl_old"] == 0


@for_every([name for name in METHODS if objective_of(METHODS[name]).mismatch.needs])
def test_a_sampler_that_is_the_trainer_changes_nothing(name):
    objective, batch, logp, extras = example(METHODS[name], 1)
    batch = prepared(objective, replace(batch, behavior_logp=batch.old_logp))
    if objective.mismatch.name == "stale_mask":  # looks at the updates too
        batch = replace(batch, behavior_logp=logp)
    plain = replace(objective, mismatch=AXES["mismatch"]["none"]())
    assert_same(
        found_gradients(objective, batch, logp, extras), found_gradients(plain, batch, logp, extras), tolerance=1e-15
    )


# what a constant added to a group's rewards must not change, and what it must
REMEMBERS = {"reinforce", "remax", "reinforce_pp", "ppo", "ppo_dual", "ppo_penalty", "vapo", "vtrace", "spo", "gigpo"}
REMEMBERS |= {"rae", "a_star_po"}


@for_every([name for name in PRESET_METHODS if name != "maxrl"])
def test_a_constant_added_to_a_groups_rewards(name):
    """Group baselines forget it, whatever it is; a baseline from elsewhere does not, and must not."""
    objective, batch, logp, extras = example(METHODS[name], 0)
    shift = torch.tensor([0.0, 3.0, -2.0, 100.0, 7.0], dtype=torch.float64)[batch.group]
    moved = replace(batch, reward=batch.reward + shift)
    if objective.baseline.name == "prompt_tracker":  # it counts successes: rewards stay within 0 to 1
        moved = replace(batch, reward=torch.where(batch.group == 1, 1.0, batch.reward))
    if objective.baseline.name == "partwise_group":
        moved = replace(moved, parts=batch.parts + shift[:, None])
    before = found_gradients(objective, prepared(objective, batch), logp, extras)
    after = found_gradients(objective, prepared(objective, moved), logp, extras)
    if name in REMEMBERS:
        assert relative(after["logp"], before["logp"]) > 0.05
    else:
        assert_same(after, before, tolerance=1e-10)


def test_rewards_that_are_no_verdicts_are_refused_by_the_rows_that_need_verdicts():
    objective, batch, *_ = example(METHODS["maxrl"], 0)
    with pytest.raises(WhetError, match="0 or 1"):
        prepared(objective, replace(batch, reward=batch.reward + 1))
    objective, batch, *_ = example(METHODS["spo"], 0)
    with pytest.raises(WhetError, match="within 0 to 1"):
        prepared(objective, replace(batch, reward=batch.reward - 1))
    objective, batch, *_ = example(METHODS["pass_at_k"], 0)
    with pytest.raises(WhetError, match="right or wrong"):
        prepared(objective, replace(batch, parts=batch.parts + 1))


def test_a_constant_added_to_everything_is_forgotten_by_the_greedy_completion_and_by_whitening():
    for name in ("remax", "reinforce_pp"):
        objective, batch, logp, extras = example(METHODS[name], 0)
        moved = replace(batch, reward=batch.reward + 5, greedy_reward=batch.greedy_reward + 5)
        before, after = (objective.advantage(each, MEMORY)[0] for each in (batch, moved))
        assert_same(
            found_gradients(objective, after, logp, extras), found_gradients(objective, before, logp, extras), 1e-10
        )


# methods whose advantage is 0 where a group agrees: group baselines whose reward pays no KL
AGREE = [
    name
    for name in PRESET_METHODS
    if PRESETS[name].objective.baseline.smallest_group > 1
    and not PRESETS[name].objective.kl.name.endswith("_reward")
    and not PRESETS[name].objective.kl.immediate
    and name not in ("gigpo", "rloo_turns")  # their steps have returns of their own
    and name not in ("asym_re", "dcpo")  # one is below the group's mean on purpose, one remembers other groups
]


@for_every(AGREE, [torch.float32, torch.float64])
def test_a_group_of_equal_rewards_teaches_nothing(name, dtype):
    """Also when float noise makes its spread tiny but not zero."""
    objective, batch, *_ = example(METHODS[name], 1)
    noise = torch.zeros(batch.num_sequences, dtype=dtype)
    noise[::2] = 1e-9 if dtype == torch.float64 else 1.5e-8
    verdicts = name in ("maxrl", "pass_at_k")
    reward = torch.ones_like(noise) if verdicts else 0.1 + noise
    parts = torch.stack([torch.ones_like(noise), reward], dim=1)
    steps = None if batch.step_reward is None else torch.where(batch.step_reward.isnan(), float("nan"), reward[:, None])
    shape = {} if objective.shape.name == "none" else {"max_new_tokens": 1000}  # no completion is too long
    agreed = replace(batch, reward=reward, parts=parts, step_reward=steps, **shape)
    assert (prepared(objective, agreed).advantage == 0).all()


SCALED = [("reinforce", "group_std"), ("reinforce", "token_std"), ("remax", "group_std"), ("reinforce_pp", "token_std")]


@for_every(SCALED)
def test_a_spread_of_nothing_never_blows_a_difference_up(method, scale):
    """A baseline from outside the group leaves a difference where the group agrees: it must not be divided by 1e-6."""
    _, batch, *_ = example(METHODS[method], 1)
    objective = replace(PRESETS[method].objective, scale=AXES["scale"][scale](), kl=AXES["kl"]["none"]())
    found = prepared(objective, replace(batch, reward=torch.ones_like(batch.reward))).advantage
    assert found.abs().max() <= 1


@for_every(PRESET_METHODS)
def test_a_group_of_one_is_finite_and_silent_for_group_baselines(name):
    objective, batch, logp, extras = example(METHODS[name], 2)
    batch = replace(batch, group=torch.arange(batch.num_sequences))
    found = prepared(objective, batch)
    assert found.advantage.isfinite().all() and found.advantage.abs().max() < 100
    if name in AGREE and objective.baseline.name != "step_sum":  # the steps of one completion still differ
        assert (found.advantage == 0).all()
    for gradient in found_gradients(objective, found, logp, extras).values():
        assert gradient.isfinite().all()


@for_every(METHODS_AND_KINDS)
def test_an_unscorable_sample_is_in_no_statistic_and_gets_no_advantage(name, kind):
    """Nor has an unscorable branch a share of its episode's weight in one."""
    objective, batch, logp, extras = example(METHODS[name], 1, kind)
    lost = 3
    if kind == "branches":
        lost = next(row for row, each in enumerate(batch.episode) if (batch.episode == each).sum() > 1)
    reward = batch.reward.clone()
    reward[lost] = float("nan")
    others = [row for row in range(batch.num_sequences) if row != lost]
    with_it = replace(batch, reward=reward)
    (found, memory), (without, expected) = (
        objective.advantage(each, MEMORY) for each in (with_it, batch.select(others))
    )
    assert (found.advantage[lost] == 0).all() and memory == pytest.approx(expected)
    torch.testing.assert_close(found.advantage[others], without.advantage, rtol=1e-11, atol=1e-13)
    for field in ("target", "importance"):
        if getattr(found, field) is not None:
            torch.testing.assert_close(getattr(found, field)[others], getattr(without, field), rtol=1e-11, atol=1e-13)
    gradient = found_gradients(objective, found, logp, extras)
    assert (gradient["value"][lost] == 0).all()
    if not (objective.kl.needs or objective.entropy.needs):  # what is imitated is not in it either, but demonstrations
        assert (gradient["logp"][lost][~batch.demonstrated[lost]] == 0).all()


@for_every(["clip_cov", "kl_cov"])
def test_an_unscorable_sample_changes_no_covariance(name):
    objective, batch, *_ = example(METHODS[name], 1)
    reward = batch.reward.clone()
    reward[3] = float("nan")
    others = [row for row in range(batch.num_sequences) if row != 3]
    found = prepared(objective, replace(batch, reward=reward))
    without = prepared(objective, batch.select(others))
    for field in ("learns", "tied"):
        if getattr(found, field) is not None:
            assert torch.equal(getattr(found, field)[others], getattr(without, field))


@for_every(METHODS)
def test_a_step_in_which_nothing_could_be_scored_is_silent(name):
    objective, batch, logp, extras = example(METHODS[name], 1)
    batch = prepared(objective, replace(batch, reward=torch.full_like(batch.reward, float("nan"))))
    assert (batch.advantage == 0).all()
    for gradient in found_gradients(objective, batch, logp, extras).values():
        assert gradient.isfinite().all()


@for_every(METHODS)
def test_an_empty_step_is_a_zero_not_a_nan(name):
    objective, batch, logp, extras = example(METHODS[name], 1)
    empty = torch.zeros_like(batch.action)
    batch = prepared(objective, replace(batch, action=empty, observed=empty, demonstrated=empty))
    assert step_totals(batch, 16) == Totals(0, 0, 16)
    for gradient in found_gradients(objective, batch, logp, extras).values():
        assert (gradient == 0).all()


# what the loop must annotate, by the name a method gives it: where it lives
IN_THE_PASS = {"entropy_gradient": "entropy", "top_logp": "top_logp", "divergence": "divergence"}
IN_THE_PASS |= {"teacher_divergence": "teacher_divergence"}
MAY_BE_MISSING = {"old_logp"}  # without it the policy is the one that sampled


@for_every(METHODS)
def test_a_missing_field_is_named(name):
    objective, batch, logp, extras = example(METHODS[name], 1)
    with pytest.raises(ValueError, match=r"Objective\.advantage"):
        objective.loss(batch, logp, step_totals(batch, 16), extras)
    for need in objective.needs() - MAY_BE_MISSING:
        less, fewer = batch, extras
        if need in IN_THE_PASS:
            fewer = replace(extras, **{IN_THE_PASS[need]: None})
        else:
            less = replace(batch, **{need: None})
            if need == "behavior_logp" and objective.select.needs:  # either tells who wrote the batch
                less = replace(less, old_logp=None)
        with pytest.raises(ValueError, match=IN_THE_PASS.get(need, need)):
            known = objective.surveyed(prepared(objective, less), logp)
            objective.tuned(MEMORY).loss(known, logp, step_totals(known, 16), fewer)


@for_every(PRESET_METHODS)
def test_what_a_row_does_not_need_does_not_change_it(name):
    objective, batch, logp, extras = example(METHODS[name], 1)
    with_it = found_gradients(objective, prepared(objective, batch), logp, extras)
    # the loop always gives these
    always = {"tokens", "action", "group", "reward", "behavior_logp", "parts", "part_weight", "max_new_tokens", "role"}
    kept = always | objective.needs() | ({"step_reward"} if objective.baseline.per_token else set())
    bare = {field.name: None for field in fields(batch) if field.name not in kept}
    found = found_gradients(objective, prepared(objective, replace(batch, **bare)), logp, extras)
    if "old_logp" in kept or not objective.kl.needs:  # else a KL in the reward is that of the sampler
        assert_same(found, with_it, tolerance=1e-15)


@for_every(["clip_cov", "wide clip_cov"])
def test_equal_tokens_and_positions_share_a_lot_and_no_others_do(name):
    """Cutting a batch cannot change the lottery: it looks at one completion at a time."""
    _, batch, *_ = example(METHODS[name], 4)
    lots = lottery(batch)
    assert (lots >= 0).all() and len(set(lots[batch.action].tolist())) == int(batch.action.sum())
    for row in range(batch.num_sequences):
        assert torch.equal(lottery(batch.select([row])), lots[[row]])


def test_the_extras_of_a_pass_are_what_a_row_may_ask_for():
    _, batch, *_ = example(METHODS["simko"], 0)
    assert {field.name for field in fields(Extras)} == {"chose_top", *EXTRA_TENSORS}
    assert random_extras(0, batch).top_logp.shape[:2] == batch.action.shape


# choices of tokens that count tokens, not episodes
CHOOSE = ("top_entropy", "clip_covariance", "tie_covariance")
COPIES = [
    name
    for name in METHODS
    if objective_of(METHODS[name]).select.name not in CHOOSE
    and objective_of(METHODS[name]).baseline.name != "group_and_tree"  # which counts leaves, as its paper does
]


@for_every(COPIES)
def test_equal_branches_of_an_episode_are_the_episode(name):
    """Copies of a row as branches of one episode: no baseline, scale, share or denominator may notice."""
    objective, batch, logp, extras = example(METHODS[name], 3, "episodes")
    copies = torch.tensor([1, 3, 2, *[1] * (batch.num_sequences - 4), 4])
    rows = torch.arange(batch.num_sequences).repeat_interleave(copies)
    branched = replace(batch.select(rows), episode=rows)
    (plain, memory), (branches, remembered) = (objective.advantage(each, MEMORY) for each in (batch, branched))
    assert remembered == pytest.approx(memory)
    torch.testing.assert_close(branches.advantage, plain.advantage[rows], rtol=1e-11, atol=1e-13)
    expected, usual = gradients_and_metrics(objective, plain, logp, extras, step_totals(plain, 16))
    copied = (branches, logp[rows], chosen(extras, rows, logp.shape[1]))
    found, metrics = gradients_and_metrics(objective, *copied, step_totals(branches, 16))
    assert_same(
        {key: torch.zeros_like(expected[key]).index_add(0, rows, each) for key, each in found.items()}, expected
    )
    assert metrics == pytest.approx(usual, rel=1e-6, abs=1e-14)


@for_every(PRESET_METHODS)
def test_roles_of_a_prompt_are_groups_of_their_own(name):
    objective, batch, *_ = example(METHODS[name], 1, "branches")
    apart = replace(batch, group=2 * batch.group + batch.role)
    found, expected = prepared(objective, batch), prepared(objective, apart)
    torch.testing.assert_close(found.advantage, expected.advantage, rtol=0, atol=0)
    assert torch.equal(found.group, batch.group)
    if objective.baseline.smallest_group > 1:
        together = prepared(objective, replace(batch, role=torch.zeros_like(batch.role)))
        assert relative(together.advantage, found.advantage) > 0.01


@for_every(METHODS)
def test_a_grad_known_beforehand_is_the_gradient(name):
    objective, batch, logp, extras = example(METHODS[name], 1)
    batch = replace(prepared(objective, batch), old_logp=None)
    totals = step_totals(batch, batch.max_new_tokens)
    tuned = objective.tuned(MEMORY)
    grad = tuned.grad(batch, totals)
    looking = tuned.kl.needs | tuned.mismatch.needs | tuned.smooth.needs | tuned.entropy.needs | tuned.teacher.needs
    looking = looking | (tuned.imitate.needs & {"demonstrated"})
    assert (grad is None) == bool(looking or tuned.ratio.against != "old_logp")
    if grad is not None:
        for place in (logp, logp - 1.5):
            leaf = place.clone().requires_grad_()
            tuned.loss(batch, leaf, totals, extras).value.backward()
            assert relative(grad.double(), leaf.grad) < 1e-6
