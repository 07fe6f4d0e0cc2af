"""Every method and variation as an objective with batches to try it on."""

from dataclasses import replace
from functools import cache

import torch

from tests.oracle.papers import CRITICS, PAPERS
from tests.support.oracle_batches import EXTRA_TENSORS, episodes, random_batch, random_extras
from tests.support.oracle_variations import VARIATIONS, Variation
from whet.objective import PRESETS, with_changes

SEEDS = range(8)
MEMORY = {
    **{"running_sum": 0.3, "running_mass": 0.5, "length_power": 0.7, "beta": 0.6},
    **{"prompt/3/role/0/w": 2.0, "prompt/3/role/0/l": 0.5, "prompt/10/role/0/w": 0.4, "prompt/10/role/0/l": 1.7},
    **{"prompt/3/role/1/w": 0.7, "prompt/3/role/1/l": 3.0},
    **{"visited/3/role/0/visits": 3.0, "visited/3/role/0/mean": 0.9, "visited/3/role/0/std": 0.4},
    **{"visited/10/role/1/visits": 1.0, "visited/10/role/1/mean": 0.2, "visited/10/role/1/std": 0.0},
    **{"entropy_weight": 0.04, "entropy_low": 1.0, "imitated_steps": 3.0, "role/0": 0.35, "role/1": -0.2},
}
# drifts at which the rule of a method binds often enough to be checked
DRIFT = {"gspo": 0.02, "gspo_token": 0.02, "luspo": 0.02, "cispo": 1.2, "grpo_r1": 1.5, "ppo_dual": 0.8}
DRIFT |= {"dcpo": 0.8, "aspo": 0.8, "fipo": 1.2}
STEPS = ("grpo_process", "gigpo", "rloo_turns")  # methods about process rewards
LARGE = {"pass_at_k": {"group_size": 9}}  # smaller groups are solved by every four of their completions
METHODS = {
    **{
        name: Variation(name, {}, PAPERS[name], CRITICS.get(name), LARGE.get(name, {}), name in STEPS)
        for name in PAPERS
    },
    **VARIATIONS,
}


def objective_of(method):
    return _changed(method.preset, tuple(method.changes.items()))


@cache
def _changed(preset, changes):
    return with_changes(PRESETS[preset].objective, dict(changes))


KINDS = ("completions", "episodes", "branches")


def example(method, seed, kind="completions"):
    """A batch for this method; in two of eight one completion could not be scored.

    `episodes` have turns, roles and rewards of turns; some `branches` share an episode besides.
    """
    objective = objective_of(method)
    # defined for rewards of 0 or 1 only
    binary = objective.scale.name == "group_mean" or objective.baseline.name == "prompt_tracker"
    group_size = max(3, objective.baseline.smallest_group + 1) + seed % 3
    settings = {"num_groups": 3 + seed % 3, "group_size": group_size, "drift": DRIFT.get(method.preset, 0.4)}
    settings |= method.batch
    if kind != "completions":  # two roles, of which some rows share an episode
        settings |= {"group_size": 2 * settings["group_size"] + 4, "num_groups": 2}
    return objective, *_drawn(seed, kind, binary, method.steps, tuple(settings.items()))


@cache
def _drawn(seed, kind, binary, steps, settings):
    """Many methods are tried on one batch; nobody changes a tensor of it."""
    batch, logp = random_batch(seed, binary=binary, **dict(settings))
    if kind != "completions":
        batch = episodes(seed, batch, branches=kind == "branches")
    if seed % 4 == 3:
        reward = batch.reward.clone()
        reward[seed % len(reward)] = float("nan")
        batch = replace(batch, reward=reward)
    if not steps:
        batch = replace(batch, step_reward=None, returned=None)
    return batch, logp, random_extras(seed, batch)


def gradients(leaf, extras):
    tensors = {"logp": leaf, **{name: getattr(extras, name) for name in EXTRA_TENSORS}}
    return {name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in tensors.items()}


def relative(one, two):
    return float((one - two).norm() / two.norm()) if two.norm() else float(one.norm())


def largest(gradients):
    """The norm of the largest: methods that compare distributions learn through these alone, not through logp."""
    return max(float(each.norm()) for each in gradients.values())
