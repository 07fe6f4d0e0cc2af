"""What a step reports, on batches and rollouts written by hand: each guard has a case in which it must be large."""

from dataclasses import replace

import pytest
import torch

from tests.support.for_every import for_every
from whet.data.packing import token_batch
from whet.model.token_logp import TokenScores
from whet.objective.statistics import episode_weight
from whet.rollout.buffer import RolloutBatch
from whet.training.step_metrics import (
    collection_counts,
    critic_metrics,
    deciding_parts,
    group_counts,
    leaf_weights,
    mean_rewards,
    refused_majorities,
    repetition,
    role_rewards,
    sampler_metrics,
    tree_counts,
    uniform_share,
)
from whet.types import Group, Prompt, Sample, StopReason, TokenBatch, Turn

ACTION = torch.tensor([[False, True, True, False], [False, False, True, True]])


def batch(**fields):
    zeros = torch.zeros(2, 4, dtype=torch.float64)
    return TokenBatch(torch.ones(2, 4, dtype=torch.long), ACTION, torch.tensor([0, 0]), torch.zeros(2), **fields), zeros


def test_the_sampler_gap_is_the_distance_of_the_log_probabilities_on_actions():
    made, _ = batch()
    behavior = torch.tensor([[9.0, -1.0, -2.0, 9.0], [9.0, 9.0, -1.5, -0.5]])
    logp = torch.tensor([[0.0, -1.5, -1.0, 0.0], [0.0, 0.0, -1.5, -2.5]])
    entropy = torch.tensor([[7.0, 1.0, 2.0, 7.0], [7.0, 7.0, 3.0, 6.0]])
    found = sampler_metrics(replace(made, behavior_logp=behavior), TokenScores(logp, entropy), is_stale=False)
    assert found == {"sampler_gap": pytest.approx((0.5 + 1 + 0 + 2) / 4), "sampler_gap_max": 2.0, "entropy": 3.0}
    stale = sampler_metrics(replace(made, behavior_logp=behavior), TokenScores(logp, entropy), is_stale=True)
    assert stale["staleness"] == found["sampler_gap"] and stale["staleness_max"] == 2.0 and "sampler_gap" not in stale


def test_without_the_samplers_log_probabilities_nothing_is_measured():
    made, zeros = batch()
    assert sampler_metrics(made, TokenScores(zeros, zeros), is_stale=False) == {}
    idle = replace(made, action=torch.zeros_like(ACTION), behavior_logp=zeros)
    assert sampler_metrics(idle, TokenScores(zeros, zeros), is_stale=False) == {}


@for_every(
    [
        ([1.0, 2.0, 3.0, 4.0], 1.0),
        ([5.0, 6.0, 7.0, 8.0], 1.0),  # a constant shift is explained by the mean
        ([0.0, 0.0, 0.0, 0.0], 0.0),
        ([4.0, 3.0, 2.0, 1.0], -3.0),  # worse than a constant
        ([1.0, 2.0, 2.0, 3.0], 1 - (1 / 3) / (5 / 3)),
    ]
)
def test_how_much_of_its_targets_the_critic_explains(value, explained):
    made, zeros = batch()
    target, values = zeros.clone() + 50, zeros.clone().float() - 20
    target[ACTION] = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    values[ACTION] = torch.tensor(value)
    assert critic_metrics(replace(made, target=target, value=values)) == {"critic_explains": pytest.approx(explained)}
    assert critic_metrics(replace(made, target=zeros, value=values)) == {}  # nothing to explain
    assert critic_metrics(replace(made, target=None, value=values)) == critic_metrics(made) == {}


def test_two_actions_are_enough_to_explain_and_one_is_not():
    made, zeros = batch()
    target, values = zeros.clone(), zeros.clone()
    for count, keys in ((1, set()), (2, {"critic_explains"})):
        action = torch.zeros_like(ACTION)
        action[0, :count] = True
        target[0, :2] = torch.tensor([1.0, 2.0], dtype=torch.float64)
        assert critic_metrics(replace(made, action=action, target=target, value=values)).keys() == keys


def test_what_a_collection_took_is_reported_where_it_is_more_than_the_groups():
    tokens = torch.tensor([1, 2])
    each = Sample(tokens, tokens > 1, torch.zeros(2), (0, 0), StopReason.END, "")
    group = Group(Prompt("q", (), "?"), (each, each, each))
    rollout = RolloutBatch(((0, group),), ((0, 0.5), (1, 1.0)), num_samples=6, rounds=2)
    assert collection_counts(rollout, [group]) == {"prompts_spent": 2, "samples_spent": 6, "rounds": 2}
    assert collection_counts(replace(rollout, num_samples=3), [group]) == {}


def test_roles_are_reported_apart_and_a_group_is_uniform_where_each_of_its_roles_is():
    def played(role, reward):
        tokens = torch.tensor([1, 2])
        made = Sample(tokens, tokens > 1, torch.zeros(2), (0, 0), StopReason.END, "", reward=reward)
        return replace(made, role=role)

    agreed = Group(Prompt("a", ()), (played("x", 1.0), played("y", 0.0), played("x", 1.0), played("y", None)))
    mixed = Group(Prompt("b", ()), (played("x", 1.0), played("x", 0.0)))
    assert uniform_share([agreed]) == 1.0 and uniform_share([agreed, mixed]) == 0.5
    assert role_rewards([agreed, mixed]) == {"reward_as_x": 0.75, "reward_as_y": 0.0}
    assert role_rewards([Group(Prompt("c", ()), (played("", 1.0),))]) == {}


def test_the_leaves_of_a_tree_count_by_the_draws_on_their_way_and_their_shared_tokens_once():
    def leaf(episode, reward, *turns):
        """Turns of two tokens each, by their nodes."""
        spoken = tuple(
            Turn("assistant", "ab", 1 + 2 * place, 3 + 2 * place, node=node) for place, node in enumerate(turns)
        )
        length = 1 + 2 * len(turns)
        action = torch.arange(length) > 0
        tokens, nothing = torch.zeros(length, dtype=torch.long), torch.zeros(length)
        return Sample(tokens, action, nothing, (0, 0), StopReason.END, "ab", turns=spoken, episode=episode).scored(
            {"r": reward}, reward
        )

    samples = (leaf("a", 1.0, 0, 1), leaf("a", 0.0, 0, 2, 3), leaf("a", 4.0, 0, 2, 4), leaf("b", 3.0, 0))
    group = Group(Prompt("p", ()), samples)
    assert leaf_weights(samples) == [0.5, 0.25, 0.25, 1.0]
    batch = token_batch([group])
    assert episode_weight(batch).tolist() == leaf_weights(samples)
    assert mean_rewards([group])["total"] == (0.5 * 1 + 0.25 * 0 + 0.25 * 4 + 3) / 2
    # eight turns stand in the leaves of the first episode, and five were written
    assert tree_counts(samples) == {"episodes": 2, "shared_tokens": 6}
    assert group_counts([group])["tokens"] == 2 * (5 + 1) and group_counts([group])["samples"] == 4
    plain = [replace(sample, turns=()) for sample in samples]
    assert leaf_weights(plain) == [1.0] * 4 and tree_counts(plain) == {}


def written(tokens, reward=1.0, **parts):
    tokens = torch.tensor(tokens)
    action = torch.ones(len(tokens), dtype=torch.bool)
    return Sample(tokens, action, torch.zeros(len(tokens)), (0, 0), StopReason.END, "", reward=reward, parts=parts)


def answered(texts, outcomes):
    """A group of completions with these answers."""
    tokens = torch.tensor([1, 2])
    made = [
        Sample(
            tokens,
            tokens > 1,
            torch.zeros(2),
            (0, 0),
            StopReason.END,
            f"#### {text}",
            reward=right,
            parts={"right": right},
        )
        for text, right in zip(texts, outcomes, strict=True)
    ]
    return Group(Prompt("p", [{"role": "user", "content": "q"}], "7"), made)


def test_a_group_that_agrees_on_an_answer_which_is_refused_is_counted():
    sure, right = answered(["8", "8", "8.0", "9"], [0.0] * 4), answered(["7"] * 4, [1.0] * 4)
    torn, small = answered(["1", "2", "3", "3"], [0.0] * 4), answered(["8", "8"], [0.0] * 2)
    assert refused_majorities([sure, right, torn, small]) == {"agreed_groups": 2 / 3, "refused_majorities": 0.5}
    assert refused_majorities([torn]) == {} == refused_majorities([small])


def test_repetition_is_the_share_of_runs_that_a_completion_has_written_before():
    new, same, short = written(list(range(20))), written([7] * 20), written([7] * 11)
    half = written([1, 2, 3, 4, 5, 6] * 2)  # 9 runs of four, 6 of them different
    for samples, share in (((new,), 0.0), ((same,), 16 / 17), ((half,), 3 / 9), ((new, same), 8 / 17)):
        assert repetition([Group(Prompt("q", ()), samples)]) == {"repetition": pytest.approx(share)}
    assert repetition([Group(Prompt("q", ()), (short,))]) == {}
    many = Group(Prompt("q", ()), (new,) * 600 + (same,) * 600)
    assert repetition([many]) == {"repetition": pytest.approx(8 / 17, abs=0.01)}


def test_a_part_decides_as_much_as_it_makes_completions_of_a_group_differ():
    def shares(parts, weights, unscored=0):
        samples = [
            written([1, 2], sum(weights[name] * value for name, value in each.items()), **each) for each in parts
        ]
        samples += [written([1, 2], None)] * unscored
        groups = [Group(Prompt("a", ()), tuple(samples[:2])), Group(Prompt("b", ()), tuple(samples[2:]))]
        rows = torch.tensor([0, 0] + [1] * (len(samples) - 2))
        made = TokenBatch(torch.ones(len(samples), 2).long(), torch.ones(len(samples), 2) > 0, rows, torch.zeros(1))
        return deciding_parts(made, groups, weights)

    right = [{"right": float(place == 0), "format": (0.3, 0.3, 0.9, 0.9)[place]} for place in range(4)]
    found = shares(right, {"right": 1.0, "format": 1.0})
    assert found == {"right_decides": pytest.approx(1.0), "format_decides": pytest.approx(0.0)}
    assert shares(right, {"right": 1.0, "format": 1.0}, unscored=2)["right_decides"] == pytest.approx(1.0)
    mixed = [{"right": float(place == 0), "format": float(place == 2)} for place in range(4)]
    found = shares(mixed, {"right": 1.0, "format": 3.0})
    assert found == {"right_decides": pytest.approx(0.1), "format_decides": pytest.approx(0.9)}
    assert shares([{"right": 1.0, "format": 1.0}] * 4, {"right": 1.0, "format": 1.0}) == {}  # no group differs
    assert shares([{"right": 1.0}] * 4, {"right": 1.0}) == {}
