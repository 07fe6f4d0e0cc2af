"""What benchmarks/builtin_runs.py makes of runs with several seeds."""

from __future__ import annotations

import pytest
from builtin_runs import GAME, episode_means, spread

from whet.training.config import resolved


def test_episodes_are_counted_per_episode():
    step = {"reward": 1.4, "reward.exact_answer": 0.9, "samples": 4.0, "turns": 10.0, "tool_calls": 6.0}
    assert episode_means(step) == {"accuracy": 0.9, "turns": 2.5, "tool_calls": 1.5}
    assert episode_means({"reward": 0.25, "samples": 8.0}) == {"accuracy": 0.25}


def test_means_and_ends_over_seeds():
    seeds = [{"after": {"accuracy": 0.8, "calls": 1.0}, "s": 3.0}, {"after": {"accuracy": 1.0}, "s": 5.0}]
    found = spread(seeds)
    assert found["after"] == {"accuracy": {"mean": pytest.approx(0.9), "least": 0.8, "most": 1.0}}
    assert found["s"] == {"mean": 4.0, "least": 3.0, "most": 5.0}


def test_the_game_is_a_config():
    assert resolved("grpo", GAME, {}).env.name.endswith("guessing.py:Guessing")
