"""The numbers a run is judged by, from groups written by hand."""

import math
from dataclasses import replace

import torch

from tests.support.for_every import for_every
from whet.tools.evaluation.measure import _attempts
from whet.training.evaluator import Evaluator, eval_metrics
from whet.training.step_metrics import group_counts, mean_rewards, outcome_lengths, uniform_share
from whet.types import Group, Prompt, Sample, Sampling, StopReason


def sample(reward, stop=StopReason.END, length=3, **parts):
    tokens = torch.arange(1 + length)
    return Sample(tokens, tokens > 0, torch.zeros(1 + length), (0, 0), stop, "", None, parts, reward)


def group(*rewards):
    judged = [sample(None) if reward is None else sample(reward, right=float(reward)) for reward in rewards]
    return Group(Prompt("q", (), "?"), tuple(judged))


def test_eval_metrics_are_means():
    samples = sample(1.0, length=5, right=1.0), sample(0.0, StopReason.LENGTH, length=1, right=0.0)
    found = eval_metrics([Group(Prompt("q", (), "?"), samples)])
    assert found == {"accuracy": 0.5, "reward": 0.5, "completion_tokens": 3.0, "truncated": 0.5}


def test_episodes_that_ran_out_of_time_are_counted():
    samples = sample(1.0, right=1.0), *(sample(0.0, StopReason.STEP_SECONDS, right=0.0) for _ in range(2))
    metrics = eval_metrics([Group(Prompt("q", (), "?"), samples)])
    assert metrics["ended_by_step_seconds"] == 2.0 and "ended_by_seconds" not in metrics


def test_branches_of_an_episode_count_as_one():
    lone = replace(sample(0.0, length=2, right=0.0), episode="q#0")
    branches = [replace(sample(1.0, length=length, right=1.0), episode="q#1") for length in (4, 6, 8)]
    groups = [Group(Prompt("q", (), "?"), (lone, *branches))]
    assert eval_metrics(groups) == {"accuracy": 0.5, "reward": 0.5, "completion_tokens": 4.0, "truncated": 0.0}
    assert [(attempt.outcome, attempt.tokens) for attempt in _attempts(groups[0], [])] == [(0.0, 2), (1.0, 18)]


def test_an_unscorable_completion_is_not_a_right_one():
    assert eval_metrics([group(1.0, None)])["accuracy"] == 0.5
    assert eval_metrics([group(1.0, None)])["reward"] == 1.0
    assert math.isnan(eval_metrics([group(None)])["reward"]) and "accuracy" not in eval_metrics([group(None)])


def test_accuracy_is_the_first_parts_whatever_comes_on_top():
    samples = sample(1.5, right=1.0, short=0.5), sample(0.2, right=0.0, short=0.2)
    found = eval_metrics([Group(Prompt("q", (), "?"), samples)])
    assert found["accuracy"] == 0.5
    assert (found["reward"], found["right"], found["short"]) == (0.85, 0.5, 0.35)


def test_a_graded_first_part_has_no_accuracy():
    samples = sample(0.5, close=0.5), sample(0.0, close=0.0)
    assert "accuracy" not in eval_metrics([Group(Prompt("q", (), "?"), samples)])


def test_counts():
    samples = sample(1.0, length=5), sample(None, StopReason.LENGTH, length=2)
    found = group_counts([Group(Prompt("q", (), "?"), samples), group(0.0)])
    assert found == {"prompts": 2, "samples": 3, "tokens": 10, "truncated": 1, "unscorable": 1}


def test_mean_rewards_are_over_the_scored_samples():
    samples = sample(2.0, a=1.0, b=3.0), sample(4.0, a=2.0, b=5.0), sample(None, a=9.0)
    assert mean_rewards([Group(Prompt("q", (), "?"), samples)]) == {"total": 3.0, "a": 1.5, "b": 4.0}
    assert math.isnan(mean_rewards([group(None)])["total"])


def test_lengths_are_told_apart_by_the_outcome_of_the_first_part():
    first = Group(Prompt("q", (), "?"), (sample(1.5, length=5, right=1.0), sample(0.2, length=2, right=0.0)))
    second = Group(Prompt("r", (), "?"), (sample(0.0, length=4, right=0.0), sample(None, length=9, right=1.0)))
    assert outcome_lengths([first, second]) == {"right_tokens": 5.0, "wrong_tokens": 3.0}
    assert outcome_lengths([group(1.0, 1.0)]) == {"right_tokens": 3.0}  # none is wrong
    assert outcome_lengths([group(0.5, 1.0)]) == outcome_lengths([group(None)]) == {}  # graded, unscorable


@for_every(
    [((1.0, 1.0), 1.0), ((1.0, 0.0), 0.0), ((1.0, None, 1.0), 1.0), ((1.0, None, 0.0), 0.0), ((None, None), 1.0)]
)
def test_uniform_groups_are_those_whose_scored_samples_agree(rewards, uniform):
    assert uniform_share([group(*rewards)]) == uniform
    assert uniform_share([group(*rewards), group(0.0, 1.0)]) == uniform / 2


def test_an_evaluation_is_greedy_unless_several_completions_are_asked_for():
    asked = []

    class Engine:
        def generate(self, requests, sampling):
            asked.append((len(requests), sampling.temperature, len({request.seed for request in requests})))
            return [sample(None) for _ in requests]

        def load(self, weights, version):
            pass

    def right(prompts, samples):
        return [each.scored({"right": 1.0}, 1.0) for each in samples]

    prompts = [Prompt("a", (), "?"), Prompt("b", (), "?")]
    evaluator = Evaluator(Engine(), prompts, [(1,), (2, 3)], Sampling(max_new_tokens=4, temperature=0.8), right)
    assert [len(each.samples) for each in evaluator.evaluate()] == [1, 1]
    groups = evaluator.evaluate(3, 0.8, seed=4)
    assert [(each.prompt.id, len(each.samples), each.samples[0].reward) for each in groups] == [
        ("a", 3, 1.0),
        ("b", 3, 1.0),
    ]
    assert asked == [(2, 0.0, 2), (6, 0.8, 6)]
