"""Mistakes in the reward section: one line each, before anything is loaded."""

import pytest
from typer.testing import CliRunner

from tests.support.for_every import for_every
from whet.cli.reward import reward_app
from whet.tools.workbench.workbench import reward_parts
from whet.training.assembly.rewards import build_reward_parts
from whet.training.config import resolved
from whet.types import WhetError

FIRST = {"reward": "exact_answer"}


@for_every(
    [
        ({"defences": ["guesing"]}, r"'guesing' is no defence \(did you mean 'guessing'\?\)"),
        ({"defences": ["math_answer"]}, "'math_answer' is no defence.*; there are incoherent_reasoning"),
        ({"defence_weight": 0.3}, "reward.defence_weight has no effect without reward.defences"),
        ({"defences_as_gates": True}, "reward.defences_as_gates has no effect without reward.defences"),
        ({"defences": ["guessing"], "defences_as_gates": True, "defence_weight": 0.3}, "no effect on gates"),
        ({"parts": [{**FIRST, "gate_least": 0.3}]}, "gate_least and gate_otherwise have no effect without gate"),
        ({"parts": [{**FIRST, "over": "steps"}]}, "over='steps' has no effect on a constant weight"),
    ]
)
def test_a_setting_without_effect_is_refused(section, said):
    with pytest.raises(WhetError, match=said):
        build_reward_parts(resolved("grpo", {"reward": section}), True)


def test_defences_that_exist_become_parts():
    parts = build_reward_parts(resolved("grpo", {"reward": {"defences": ["guessing"], "defence_weight": 0.3}}), True)
    assert [(part.name, part.weights) for part in parts] == [("exact_answer", (1.0,)), ("guessing", (0.3,))]


def test_defences_of_older_configs_are_read_as_what_took_their_place():
    older = {"reward": {"defences": ["judge_injection", "guessing", "self_grading"]}}
    assert [part.name for part in build_reward_parts(resolved("grpo", older), True)][1:] == [
        "suspect_sentences",
        "guessing",
    ]


@pytest.mark.parametrize("names", [("math_answer", "math_answer=0.5"), ("a.py:mine", "b.py:mine")])
def test_two_parts_of_one_name_are_refused(names):
    done = CliRunner().invoke(reward_app, ["test", *names, "--data", "task:arithmetic", "--limit", "2"])
    assert isinstance(done.exception, WhetError) and "two rewards are called" in str(done.exception)


@pytest.mark.parametrize(("more", "settings"), [(["exact_answer"], None), ([], {"bonus": 1})])
def test_a_config_of_a_reward_stands_alone(more, settings):
    with pytest.raises(WhetError, match=r"reward.toml is a config with all its parts; give it alone"):
        reward_parts(["reward.toml", *more], settings)
