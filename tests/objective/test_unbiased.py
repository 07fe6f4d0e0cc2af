"""What the estimators estimate, exactly: every completion of a toy language model is enumerated, and so is every group.

The model is a table of logits, one row per state (prompt and prefix): three tokens, the last ends a completion, at most
three tokens per completion. The expected gradient of a method is the sum over all G-tuples of completions of their
probability
times the gradient of the real `Objective.loss`; nothing is sampled, so equal means equal to 1e-12.
"""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import bias_plots, bias_trees
from tests.support.drawings import same_drawing
from tests.support.for_every import for_every
from whet.objective import PRESETS, with_changes
from whet.objective.credit import GAE, VTrace
from whet.objective.kl import K3Corrected
from whet.types import TokenBatch, Totals, WhetError

DOCS = Path(__file__).parents[2] / "docs"
VOCABULARY, END, LONGEST, PROMPTS = 3, 2, 3, 2
BETA = 0.3
CLOSE = {"rtol": 0.0, "atol": 1e-12}
DIFFERENT = 0.01  # of a gradient's norm: ten orders of magnitude above what counts as equal


def prefixes():
    """Every state a completion can be in, in a fixed order."""
    return [prefix for length in range(LONGEST) for prefix in itertools.product(range(END), repeat=length)]


def completions():
    """Every completion: it ends with the end token or at the longest length."""
    ended = [(*prefix, END) for prefix in prefixes()]
    return ended + [(*prefix, token) for prefix in itertools.product(range(END), repeat=2) for token in range(END)]


COMPLETIONS = completions()
STATES = {place: at for at, place in enumerate(itertools.product(range(PROMPTS), prefixes()))}


def logits(seed):
    return torch.randn(len(STATES), VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


THETA, REFERENCE, OLDER = logits(1), logits(2), logits(1) + 0.4 * logits(3)
# any reward, and one of 0 and 1 for the methods that are defined for those only; they differ from prompt to prompt
GRADED = torch.randn(PROMPTS, len(COMPLETIONS), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
BINARY = torch.stack([GRADED[0] > 0.3, GRADED[1] > 0.6]).double()


def token_logp(table, prompt, completion):
    """[LONGEST + 1]: the prompt's own column, then one a token; 0 where there is none."""
    states = [STATES[prompt, completion[:at]] for at in range(len(completion))]
    known = table.log_softmax(-1)[states, list(completion)]
    return torch.cat([known.new_zeros(1), known, known.new_zeros(LONGEST - len(completion))])


def all_logp(table):
    """[PROMPTS, completions, T]: of every token of every completion."""
    return torch.stack(
        [
            torch.stack([token_logp(table, prompt, completion) for completion in COMPLETIONS])
            for prompt in range(PROMPTS)
        ]
    )


def chances(table):
    """[PROMPTS, completions]: of every completion; they sum to 1 for each prompt."""
    return all_logp(table).sum(-1).exp()


def gradient(value, table):
    return torch.autograd.grad(value, table)[0]


def exact(worth):
    """The gradient of `worth(table)`, a number each prompt [PROMPTS], averaged over the prompts."""
    table = THETA.clone().requires_grad_()
    return gradient(worth(table).mean(), table)


def expected_reward(reward):
    return lambda table: (chances(table) * reward).sum(-1)


def completion_kl(table):
    """KL(pi, reference) of whole completions [PROMPTS]."""
    logp = all_logp(table).sum(-1)
    return (logp.exp() * (logp - all_logp(REFERENCE).sum(-1))).sum(-1)


def visits(table):
    """[states]: how often a completion passes through each state; a constant for the gradient."""
    found, chance = torch.zeros(len(STATES), dtype=torch.float64), chances(table.detach())
    for prompt, (at, completion) in itertools.product(range(PROMPTS), enumerate(COMPLETIONS)):
        for length in range(len(completion)):
            found[STATES[prompt, completion[:length]]] += chance[prompt, at]
    return found


def state_kl(table, sampler=None):
    """Summed over the states a completion passes through, KL(pi, reference) there: [PROMPTS]. The states stay fixed."""
    logp, ref = table.log_softmax(-1), REFERENCE.log_softmax(-1)
    each = visits(table if sampler is None else sampler) * (logp.exp() * (logp - ref)).sum(-1)
    return each.reshape(PROMPTS, -1).sum(-1)


def every_group(group_size, reward, sampler=THETA):
    """A batch with every G-tuple of completions to every prompt as a group of its own, and each row's (prompt,
    completion)."""
    tuples = torch.cartesian_prod(*[torch.arange(len(COMPLETIONS))] * group_size).reshape(-1)
    prompt = torch.arange(PROMPTS).repeat_interleave(len(tuples))
    completion = tuples.repeat(PROMPTS)
    lengths = torch.tensor([len(each) for each in COMPLETIONS])[completion]
    column = torch.arange(LONGEST + 1)
    action = (column >= 1) & (column <= lengths[:, None])
    sampled, ref = all_logp(sampler)[prompt, completion], all_logp(REFERENCE)[prompt, completion]
    batch = TokenBatch(
        tokens=torch.zeros_like(action).long(),
        action=action,
        group=torch.arange(len(prompt)) // group_size,
        reward=reward[prompt, completion],
        behavior_logp=sampled,
        ref_logp=ref,
    )
    return batch, prompt, completion


def expected_gradient(objective, group_size, reward, sampler=None, memory=None, **annotated):
    """What ascent on the method's loss follows on average over the groups it could draw.

    All groups go through one call: a step is one group of each prompt, so its totals are those of PROMPTS groups, and
    the loss, linear in the groups, gives each its gradient before the probabilities weigh them.
    """
    off_policy = sampler is not None
    sampler = THETA if sampler is None else sampler
    batch, prompt, completion = every_group(group_size, reward, sampler)
    if off_policy:
        batch = replace(batch, old_logp=batch.behavior_logp)
    batch = replace(batch, **{name: values[prompt, completion] for name, values in annotated.items()})
    batch, _ = objective.advantage(batch, memory or {})
    table = THETA.clone().requires_grad_()
    logp = all_logp(table)[prompt, completion]
    leaf = logp.detach().requires_grad_()
    totals = Totals(tokens=1, sequences=PROMPTS * group_size, max_new_tokens=LONGEST)
    grad = gradient(objective.loss(batch, leaf, totals).value, leaf)
    chance = chances(sampler)[prompt, completion].reshape(-1, group_size).prod(-1).repeat_interleave(group_size)
    return -gradient((chance[:, None] * grad * logp).sum(), table)


def critic_values():
    """[PROMPTS, completions, T]: what a critic that knows nothing says of the state before each token."""
    found, wrong = torch.zeros(PROMPTS, len(COMPLETIONS), LONGEST + 1, dtype=torch.float64), logits(5)[:, 0]
    for prompt, (at, completion) in itertools.product(range(PROMPTS), enumerate(COMPLETIONS)):
        for length in range(len(completion)):
            found[prompt, at, 1 + length] = wrong[STATES[prompt, completion[:length]]]
    return found


def objective_of(name, **changes):
    """A preset with its completions counted whole: share 1 / N and, unless told otherwise, no KL."""
    return with_changes(PRESETS[name].objective, {"aggregate": "sequence_sum", "kl": "none", **changes})


def apart(one, other):
    """How far two gradients differ, as a share of the second."""
    return float((one - other).norm() / other.norm())


def cosine(one, other):
    return float((one * other).sum() / one.norm() / other.norm())


# the toy itself


def test_the_toy_is_a_language_model():
    assert len(COMPLETIONS) == len(set(COMPLETIONS)) == 15 and {len(completion) for completion in COMPLETIONS} == {
        1,
        2,
        3,
    }
    torch.testing.assert_close(chances(THETA).sum(-1), torch.ones(PROMPTS, dtype=torch.float64), **CLOSE)
    success = (chances(THETA) * BINARY).sum(-1)
    assert ((success > 0.05) & (success < 0.95)).all() and (success[0] - success[1]).abs() > 0.1
    assert exact(expected_reward(GRADED)).norm() > 0.1


def test_all_groups_at_once_are_the_groups_one_by_one():
    objective, group_size = objective_of("grpo", aggregate="sequence_mean"), 2
    table = THETA.clone().requires_grad_()
    logp, chance, total = all_logp(table), chances(THETA), 0.0
    whole, prompts, drawn = every_group(group_size, BINARY)
    for first in range(0, len(prompts), group_size):
        rows = torch.arange(first, first + group_size)
        batch, _ = objective.advantage(whole.select(rows), {})
        totals = Totals(int(batch.lengths.sum()), PROMPTS * group_size, LONGEST)
        loss = objective.loss(batch, logp[prompts[rows], drawn[rows]], totals).value
        total = total - chance[prompts[rows], drawn[rows]].prod() * loss
    torch.testing.assert_close(gradient(total, table), expected_gradient(objective, group_size, BINARY), **CLOSE)


# unbiased


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("memory", [{}, {"running_sum": 0.35, "running_mass": 0.5}])
def test_reinforce_is_unbiased_whatever_it_remembers(group_size, memory):
    found = expected_gradient(objective_of("reinforce"), group_size, GRADED, memory=memory)
    torch.testing.assert_close(found, exact(expected_reward(GRADED)), **CLOSE)


@pytest.mark.parametrize("memory", [{}, {"role/0": 0.4, "role/1": -1.5}])
def test_a_running_mean_of_each_role_is_unbiased_whatever_it_remembers(memory):
    role = torch.arange(PROMPTS)[:, None].expand(PROMPTS, len(COMPLETIONS))
    found = expected_gradient(objective_of("rae"), 2, GRADED, memory=memory, role=role)
    torch.testing.assert_close(found, exact(expected_reward(GRADED)), **CLOSE)


@pytest.mark.parametrize("group_size", [2, 3])
def test_rloo_is_unbiased(group_size):
    found = expected_gradient(objective_of("rloo"), group_size, GRADED)
    torch.testing.assert_close(found, exact(expected_reward(GRADED)), **CLOSE)


@pytest.mark.parametrize("group_size", [1, 2])
def test_remax_is_unbiased(group_size):
    greedy = THETA.argmax(-1)
    found = []
    for prompt in range(PROMPTS):
        completion = ()
        while len(completion) < LONGEST and completion[-1:] != (END,):
            completion = (*completion, int(greedy[STATES[prompt, completion]]))
        found.append(GRADED[prompt, COMPLETIONS.index(completion)].expand(len(COMPLETIONS)))
    objective = objective_of("remax")
    estimate = expected_gradient(objective, group_size, GRADED, greedy_reward=torch.stack(found))
    torch.testing.assert_close(estimate, exact(expected_reward(GRADED)), **CLOSE)


def test_any_critic_is_unbiased_with_lam_1_and_a_wrong_one_is_not_below():
    value = critic_values()
    for name in ("ppo", "vtrace"):
        changes = {"scale": "none", "clip": "on_policy"} | ({"baseline.lam": 1.0} if name == "ppo" else {})
        found = expected_gradient(objective_of(name, **changes), 1, GRADED, value=value)
        torch.testing.assert_close(found, exact(expected_reward(GRADED)), **CLOSE)
    short = objective_of("ppo", scale="none", clip="on_policy")
    assert apart(expected_gradient(short, 1, GRADED, value=value), exact(expected_reward(GRADED))) > DIFFERENT


def test_the_product_ratio_is_unbiased_on_completions_of_an_older_policy_and_the_token_ratio_is_not():
    right = exact(expected_reward(GRADED))
    product = objective_of("rloo", clip="unclipped", ratio="sequence_product")
    torch.testing.assert_close(expected_gradient(product, 2, GRADED, sampler=OLDER), right, **CLOSE)
    token = objective_of("rloo", clip="unclipped")
    assert apart(expected_gradient(token, 2, GRADED, sampler=OLDER), right) > DIFFERENT


# biased, and by how much


@pytest.mark.parametrize("group_size", [2, 3])
def test_a_mean_with_the_completion_itself_in_it_shrinks_the_gradient(group_size):
    shrunk = (group_size - 1) / group_size * exact(expected_reward(GRADED))
    objective = objective_of("dr_grpo")
    torch.testing.assert_close(expected_gradient(objective, group_size, GRADED), shrunk, **CLOSE)
    fixed = replace(objective, aggregate=PRESETS["dr_grpo"].objective.aggregate)
    torch.testing.assert_close(expected_gradient(fixed, group_size, GRADED), shrunk / LONGEST, **CLOSE)


@pytest.mark.parametrize("group_size", [2, 3])
def test_maxrl_climbs_the_log_of_success_to_order_group_size_less_one(group_size):
    """J = - SUM_{k < G} (1 - p)^k / k."""

    def series(table):
        failure = 1 - expected_reward(BINARY)(table)
        return -sum(failure**k / k for k in range(1, group_size))

    found = expected_gradient(objective_of("maxrl"), group_size, BINARY)
    torch.testing.assert_close(found, exact(series), **CLOSE)


@pytest.mark.parametrize(("group_size", "k"), [(2, 1), (2, 2), (3, 2), pytest.param(3, 3, marks=pytest.mark.slow)])
def test_what_the_marginal_form_of_pass_at_k_estimates(group_size, k):
    """grad pass@k / k = (1 - p)^(k-1) grad p, plus (k-1)/(n-1) p (1 - p)^(k-2) grad p.

    The second part is the baseline's: what the others add depends on whether this completion is right. With k = n the
    two are the gradient of pass@(k-1) / (k-1).
    """

    def climbed(table):
        p = expected_reward(BINARY)(table)
        still = p.detach()
        weight = (1 - still) ** (k - 1)
        if k > 1:
            weight = weight + (k - 1) / (group_size - 1) * still * (1 - still) ** (k - 2)
        return weight * p

    def fewer(table):
        return (1 - (1 - expected_reward(BINARY)(table)) ** (k - 1)) / (k - 1)

    objective = objective_of("pass_at_k", baseline="pass_at_k_marginal", **{"baseline.k": k})
    found = expected_gradient(objective, group_size, BINARY)
    torch.testing.assert_close(found, exact(climbed), **CLOSE)
    if k == group_size:
        torch.testing.assert_close(found, exact(fewer), **CLOSE)


def test_one_over_the_length_turns_the_gradient():
    right = exact(expected_reward(BINARY))
    assert cosine(expected_gradient(objective_of("dr_grpo"), 2, BINARY), right) == pytest.approx(1, abs=1e-12)
    mean = objective_of("dr_grpo", aggregate="sequence_mean")
    assert 0.5 < cosine(expected_gradient(mean, 2, BINARY), right) < 0.99


# the tie to the reference


@pytest.mark.parametrize(
    ("name", "changes"), [("rloo", {}), ("reinforce", {}), ("reinforce", {"baseline": "return_to_go"})]
)
def test_k1_in_the_reward_is_the_kl_of_whole_completions(name, changes):
    tied = objective_of(name, **changes, kl="k1_reward", **{"kl.beta": BETA})
    found = expected_gradient(tied, 2, GRADED)
    aim = exact(lambda table: expected_reward(GRADED)(table) - BETA * completion_kl(table))
    torch.testing.assert_close(found, aim, **CLOSE)
    assert apart(aim, exact(expected_reward(GRADED))) > DIFFERENT


def test_k1_off_each_tokens_own_advantage_is_the_kl_at_fixed_states():
    objective = objective_of("reinforce", kl="k1_immediate", **{"kl.beta": BETA})
    aim = exact(lambda table: expected_reward(GRADED)(table) - BETA * state_kl(table))
    torch.testing.assert_close(expected_gradient(objective, 1, GRADED), aim, **CLOSE)


def test_k2_in_the_loss_is_the_kl_at_fixed_states():
    objective = objective_of("rloo", kl="k2", **{"kl.beta": BETA})
    found = expected_gradient(objective, 2, torch.zeros_like(GRADED))
    torch.testing.assert_close(found, exact(lambda table: -BETA * state_kl(table)), **CLOSE)
    # what is left out: earlier tokens choose the states of later ones
    assert apart(found, exact(lambda table: -BETA * completion_kl(table))) > DIFFERENT


def test_k3_in_the_loss_is_the_forward_kl_at_fixed_states():
    """On a softmax: pi - ref at each state, as often as it is visited."""
    objective = objective_of("rloo", kl="k3", **{"kl.beta": BETA})
    found = expected_gradient(objective, 2, torch.zeros_like(GRADED))
    pull = REFERENCE.softmax(-1) - THETA.softmax(-1)
    torch.testing.assert_close(found, BETA / PROMPTS * visits(THETA)[:, None] * pull, **CLOSE)
    assert apart(found, exact(lambda table: -BETA * state_kl(table))) > DIFFERENT


def test_k1_in_the_loss_would_tie_to_nothing():
    table = THETA.clone().requires_grad_()
    k1 = (chances(THETA) * (all_logp(table) - all_logp(REFERENCE)).sum(-1)).sum()
    assert k1.item() > 0.1 and gradient(k1, table).abs().max() < 1e-12
    with pytest.raises(WhetError, match="expected gradient is 0"):
        objective_of("rloo", kl="k1")


def test_corrected_k3_is_the_kl_at_fixed_states_on_completions_of_an_older_policy():
    nothing = torch.zeros_like(GRADED)
    objective = objective_of("rloo", kl="k3_corrected", **{"kl.beta": BETA})
    found = expected_gradient(objective, 2, nothing, sampler=OLDER)
    aim = exact(lambda table: -BETA * state_kl(table, sampler=OLDER))
    torch.testing.assert_close(found, aim, **CLOSE)
    plain = objective_of("rloo", kl="k2", **{"kl.beta": BETA})
    assert apart(expected_gradient(plain, 2, nothing, sampler=OLDER), aim) > DIFFERENT


def test_corrected_k3_is_ratio_weighted_k2_token_by_token():
    logp = torch.tensor([-0.3, -1.0, -2.5], dtype=torch.float64, requires_grad=True)
    old, ref = torch.tensor([-0.5, -0.9, -1.0]).double(), torch.tensor([-1.0, -0.2, -3.0]).double()
    ratio, u = (logp - old).exp(), logp - ref
    k3 = gradient((ratio * (torch.exp(-u) - 1 + u)).sum(), logp)
    ratio, u = (logp - old).exp(), logp - ref
    k2 = gradient((ratio.detach() * u**2 / 2).sum(), logp)
    torch.testing.assert_close(k3, k2, **CLOSE)
    torch.testing.assert_close(K3Corrected(BETA).weight(u.detach(), ratio.detach()), BETA * k2, **CLOSE)


def test_vtrace_on_its_own_completions_aims_at_the_returns_of_gae():
    batch, prompt, completion = every_group(1, GRADED)
    batch = replace(batch, value=critic_values()[prompt, completion], old_logp=batch.behavior_logp)
    target = VTrace().target(batch)
    torch.testing.assert_close(target, GAE(1.0, 1.0).target(batch), **CLOSE)
    torch.testing.assert_close(target, torch.where(batch.action, batch.reward[:, None], 0.0), **CLOSE)
    torch.testing.assert_close(VTrace().centred(batch, {}), GAE(1.0, 1.0).centred(batch, {}), **CLOSE)


# turns: every token is one, earns something of its own, and the end token is the decision to stop


def turn_rewards():
    """[PROMPTS, completions, T]: of each turn, by its state and action; NaN where there is none."""
    each = logits(6)
    found = torch.full((PROMPTS, len(COMPLETIONS), LONGEST + 1), float("nan"), dtype=torch.float64)
    for prompt, (at, completion) in itertools.product(range(PROMPTS), enumerate(COMPLETIONS)):
        for length, token in enumerate(completion):
            found[prompt, at, 1 + length] = each[STATES[prompt, completion[:length]], token]
    return found


def turn_columns(values):
    """[PROMPTS, completions, T] of one number a column, where there is a turn; -1 elsewhere."""
    return torch.where(turn_rewards().isnan(), -1, values)


RETURNED = turn_rewards().nan_to_num().sum(-1)
EPISODES = RETURNED + GRADED  # what the turns earn, and an outcome on top that comes with the last one
TURNS = {
    "step_reward": turn_rewards(),
    "returned": RETURNED,
    "segment": turn_columns(torch.arange(LONGEST + 1) - 1),
}


def seen_by_others(chance, group_size):
    """E[(n - 1) / n] where one is there and each of the others with this chance."""
    return 1 - (1 - (1 - chance) ** group_size) / (group_size * chance)


@pytest.mark.parametrize("group_size", [2, 3])
def test_turn_returns_are_unbiased_where_the_policy_decides_when_to_stop(group_size):
    found = expected_gradient(objective_of("rloo_turns"), group_size, EPISODES, **TURNS)
    torch.testing.assert_close(found, exact(expected_reward(EPISODES)), **CLOSE)
    whole = expected_gradient(objective_of("rloo"), group_size, EPISODES)
    torch.testing.assert_close(found, whole, **CLOSE)


@pytest.mark.parametrize("group_size", [2, 3])
def test_normalising_by_turn_index_forgets_that_turns_are_reached(group_size):
    """E[R] = SUM_k p_k m_k, p_k the chance of a turn k, m_k what it earns. Of grad E[R] only p_k grad m_k is left."""
    earned = turn_rewards().nan_to_num()
    last = torch.tensor([len(completion) for completion in COMPLETIONS])
    earned[:, torch.arange(len(COMPLETIONS)), last] += GRADED
    there = (~turn_rewards().isnan()).double()

    def reached(table):
        """[PROMPTS, T], the chance of each turn, and what it earns where it is reached."""
        each = (chances(table)[..., None] * there).sum(1)
        return each, (chances(table)[..., None] * earned).sum(1) / each.clamp(min=1e-300)

    fixed = reached(THETA)[0]
    seen = torch.where(fixed > 0, seen_by_others(fixed.clamp(min=1e-9), group_size), 0.0)
    found = expected_gradient(objective_of("rloo_turns", baseline="turn_index_rewards"), group_size, EPISODES, **TURNS)
    torch.testing.assert_close(found, exact(lambda table: (seen * fixed * reached(table)[1]).sum(-1)), **CLOSE)
    assert apart(found, exact(expected_reward(EPISODES))) > 0.3
    # what is missing is the worth of reaching a turn: paying a constant for each further turn changes nothing
    paid = turn_rewards() + 5.0 * (torch.arange(LONGEST + 1) > 1)
    more = {**TURNS, "step_reward": paid, "returned": paid.nan_to_num().sum(-1)}
    dearer = EPISODES + (paid - turn_rewards()).nan_to_num().sum(-1)
    blind = expected_gradient(objective_of("rloo_turns", baseline="turn_index_rewards"), group_size, dearer, **more)
    torch.testing.assert_close(blind, found, **CLOSE)
    seeing = expected_gradient(objective_of("rloo_turns"), group_size, dearer, **more)
    torch.testing.assert_close(seeing, exact(expected_reward(dearer)), **CLOSE)
    assert apart(seeing, exact(expected_reward(EPISODES))) > 1


@pytest.mark.parametrize("group_size", [2, 3])
def test_anchored_steps_weigh_the_exact_gradient_state_by_state(group_size):
    """By the whole episode, (G-1)/G, and by the steps from the same state, as often as others come by."""
    names = torch.full((PROMPTS, len(COMPLETIONS), LONGEST + 1), -1)
    for prompt, (at, completion) in itertools.product(range(PROMPTS), enumerate(COMPLETIONS)):
        for length in range(len(completion)):
            names[prompt, at, 1 + length] = STATES[prompt, completion[:length]]
    objective = objective_of("gigpo", **{"baseline.gamma": 1.0, "baseline.weight": 0.5})
    found = expected_gradient(objective, group_size, EPISODES, **TURNS, anchor=names)
    counts = (group_size - 1) / group_size + 0.5 * seen_by_others(visits(THETA), group_size)
    torch.testing.assert_close(found, counts[:, None] * exact(expected_reward(EPISODES)), **CLOSE)
    assert counts.max() - counts.min() > 0.1


# trees: every tree of a toy of its own (benchmarks/bias_trees.py)


def test_the_toy_of_trees_is_one():
    for trees in (bias_trees.online(rule) for rule in (bias_trees.never, bias_trees.at_turns, bias_trees.at_chance)):
        assert sum(chance for chance, _ in trees) == pytest.approx(1, abs=1e-12)
    sizes = {len(tree) for _, tree in bias_trees.online(bias_trees.at_turns)}
    assert sizes == {1, 2, 3} and bias_trees.exact().norm() > 0.1


def test_siblings_and_leave_one_out_are_unbiased_on_trees_that_branch_when_a_state_is_reached():
    right, found = bias_trees.exact(), bias_trees.estimates()
    unbiased = [name for name in found if bias_trees.apart(found[name].mean, right) < 1e-10]
    assert [
        name for name in found if "episodes" in name or ("branching" in name and "group_and_tree" not in name)
    ] == unbiased
    assert len(unbiased) == 4
    for name in set(found) - set(unbiased):
        assert bias_trees.apart(found[name].mean, right) > DIFFERENT, name


def test_the_table_of_trees_is_fresh():
    page = (DOCS / "bias.md").read_text(encoding="utf-8")
    assert bias_trees.table() in page, "python benchmarks/bias_trees.py prints the rows of docs/bias.md"


# the figures of docs/bias.md


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "maxrl", "pass_at_k"])
def test_a_prompt_counts_what_the_figure_says(name):
    changes = {"baseline.k": 2} if name == "pass_at_k" else {}
    objective = objective_of(name, **changes)

    def weighed(table):
        p = expected_reward(BINARY)(table)
        counts = [bias_plots.prompt_weight(objective, rate, group_size=3) for rate in p.tolist()]
        return p * torch.tensor(counts, dtype=torch.float64)

    torch.testing.assert_close(expected_gradient(objective, 3, BINARY), exact(weighed), **CLOSE)


@pytest.mark.parametrize("length", [2, 8, 13, 32])
def test_the_length_bias_by_hand(length):
    """Chances 1/3: the pulls are 2, -1 and -q ninths with q = 8 / length, less a third of their sum on each logit."""
    q = bias_plots.USUAL_LENGTH / length
    assert bias_plots.length_bias(length) == pytest.approx([(5 + q) / 6, (4 - q) / 3, (1 + 2 * q) / 3], abs=1e-12)
    for fair in ("dr_grpo", "rloo"):
        assert bias_plots.length_bias(length, bias_plots.bare(fair)) == pytest.approx([1, 1, 1], abs=1e-12)


def test_the_difficulty_bias_by_hand():
    """As p -> 0 a group holds one success at most: A = (7/8) / sqrt(1/8), and 7 for the mean instead of the std."""
    methods = bias_plots.weighing_methods()
    for p in (0.05, 0.5, 0.8):
        assert bias_plots.prompt_weight(methods["dr_grpo"], p) == pytest.approx(7 / 8, abs=1e-12)
        assert bias_plots.prompt_weight(methods["maxrl"], p) == pytest.approx((1 - (1 - p) ** 7) / p, abs=1e-12)
        mirrored = bias_plots.prompt_weight(methods["grpo"], 1 - p)
        assert bias_plots.prompt_weight(methods["grpo"], p) == pytest.approx(mirrored, abs=1e-12)
    assert bias_plots.prompt_weight(methods["grpo"], 1e-7) == pytest.approx(7 / 8**0.5, abs=1e-5)
    assert bias_plots.prompt_weight(methods["maxrl"], 1e-7) == pytest.approx(7, abs=1e-5)


@for_every([0.1, 0.5, 0.8], [0.0, 1.0, 2.5])
def test_the_stopping_bias_by_hand(chance, worth):
    """By turn index the first turn is compared with first turns, of which those that stop earn 1, and the second with
    second turns, which all earn the same: nothing is left of what they earn."""
    methods = bias_plots.turn_methods()
    found = {name: bias_plots.stopping_push(objective, worth, chance) for name, objective in methods.items()}
    assert found["turn_return"] == pytest.approx(worth - 1, abs=1e-12)
    assert found["turn_index_rewards"] == pytest.approx(-7 / 8, abs=1e-12)


def test_the_numbers_of_the_page_are_measured():
    page = " ".join((DOCS / "bias.md").read_text(encoding="utf-8").split())
    methods = bias_plots.weighing_methods()
    for p in (0.02, 0.1, 0.5, 0.9, 0.98):
        cells = [p, *(bias_plots.prompt_weight(objective, p) for objective in methods.values()), 1 / p]
        assert f"| {' | '.join(f'{cell:.3f}' for cell in cells)} |" in page
    edge, middle = (bias_plots.prompt_weight(methods["grpo"], p) for p in (0.02, 0.5))
    assert f"{edge / middle:.2f} times as much as the middle" in page
    _, short, long = bias_plots.length_bias(32)
    assert f"wrong completion of 32 tokens, where the others have 8, is pushed down {long:.2f} times" in page
    assert f"the short one, no worse, {short:.2f} times" in page
    assert f"One of 4 tokens is pushed {bias_plots.length_bias(4)[2]:.2f} times" in page
    for worth in (0.0, 0.5, 1.0, 2.0, 3.0):
        pushes = [bias_plots.stopping_push(objective, worth) for objective in bias_plots.turn_methods().values()]
        cells = [worth, worth - bias_plots.STOP_PAYS, *pushes]
        assert f"| {' | '.join(f'{round(cell, 3) + 0.0:.3f}' for cell in cells)} |" in page


def test_the_figures_of_the_page_are_fresh():
    drawn = bias_plots.figures()
    assert set(drawn) == {"length_bias.svg", "difficulty_bias.svg", "stopping_bias.svg"}
    for name, text in drawn.items():
        fresh = same_drawing((DOCS / "images" / name).read_text(encoding="utf-8"), text)
        assert fresh, f"docs/images/{name} is stale: python benchmarks/bias_plots.py"
