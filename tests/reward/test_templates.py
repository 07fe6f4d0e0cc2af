"""The templates: their weights, the documents' worked example, and what may be changed about them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from whet.reward.combine import RewardPart, check_parts, combined, weights_at
from whet.reward.defences import DEFENCES
from whet.reward.find import find_reward
from whet.reward.templates import DEFENCES_OF, TEMPLATES, defended, format_first, template
from whet.types import Prompt, Sample, WhetError


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        return [1.0] * len(samples)


def parts_of(specs: Sequence[RewardPart]) -> list[RewardPart]:
    return [spec.resolved(lambda name, settings: Named(name)) for spec in specs]


def test_the_worked_example_comes_to_its_own_sum() -> None:
    scores = {"tool_calls": [1.0], "agent_format": [0.8], "efficiency": [1.0], "safety": [1.0]}
    (total,) = combined(scores, parts_of(template("agent")))
    assert total == pytest.approx(0.96)


def test_the_weights_are_those_of_the_documents() -> None:
    weights = {name: [spec.weight for spec in specs] for name, specs in TEMPLATES.items()}
    assert weights["math"] == [0.60, 0.15, 0.15, 0.10]
    assert weights["code"] == [0.50, 0.10, 0.25, 0.15]
    assert weights["agent"] == [0.50, 0.20, 0.15, 0.15]
    judged_by = {spec.reward: spec.weight for spec in TEMPLATES["retrieval"]}
    assert judged_by["exact_answer"] + judged_by["judge"] == pytest.approx(0.40)
    assert (judged_by["citations"], judged_by["efficiency"], judged_by["safety"]) == (0.20, 0.20, 0.20)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_every_template_adds_up_and_makes_sense(name: str) -> None:
    specs = template(name)
    check_parts(parts_of(specs))
    assert math.fsum(weights_at(parts_of(specs), 0.5).values()) == pytest.approx(1.0)
    assert set(DEFENCES_OF[name]) <= set(DEFENCES)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_every_part_is_a_built_in_reward_that_takes_its_settings(name: str) -> None:
    for spec in template(name):
        if spec.reward in ("judge", "code_tests"):  # these open a connection or a sandbox
            continue
        assert find_reward(spec.reward, spec.settings).name == spec.reward


def test_an_unknown_template_is_named() -> None:
    with pytest.raises(WhetError, match=r"no reward template is called 'maths' .did you mean 'math'"):
        template("maths")


def test_format_first_lends_weight_and_gives_it_back() -> None:
    parts = parts_of(format_first(template("math"), until=0.2))
    assert weights_at(parts, 0.0) == pytest.approx(
        {"math_answer": 0.4, "agent_format": 0.35, "efficiency": 0.15, "safety": 0.10}
    )
    for progress in (0.0, 0.1, 0.2, 1.0):
        assert math.fsum(weights_at(parts, progress).values()) == pytest.approx(1.0)
    assert weights_at(parts, 0.2) == pytest.approx(weights_at(parts_of(template("math")), 0.2))
    with pytest.raises(WhetError, match="no part 'agent_format' behind the first one"):
        format_first(template("retrieval"))


def test_defences_as_penalties_and_as_gates() -> None:
    names = ["padding", "guessing"]
    scores = {spec.reward: [1.0, 1.0, 1.0] for spec in template("math")}
    scores |= {"padding": [0.0, -0.5, 0.0], "guessing": [0.0, 0.0, -1.0]}
    penalties = defended(template("math"), names, weight=0.5)
    assert combined(scores, parts_of(penalties)) == pytest.approx([1.0, 0.75, 0.5])
    gates = defended(template("math"), names, as_gates=True)
    check_parts(parts_of(gates))
    assert combined(scores, parts_of(gates)) == pytest.approx([1.0, 0.4, 0.4])
    assert gates[0].reward == "math_answer"
    with pytest.raises(WhetError, match="'padding' is already a part"):
        defended(penalties, ["padding"])
    with pytest.raises(WhetError, match="has a gate already, on 'padding'"):
        defended(gates, ["look_alikes"], as_gates=True)
