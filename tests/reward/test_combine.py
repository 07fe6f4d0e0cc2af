"""Weights, schedules, gates, caps and normalised parts: what a sum of rewards comes to, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.for_every import for_every
from whet.reward.combine import Gate, RewardPart, Schedule, check_parts, combined, in_shares, weights_at
from whet.types import Prompt, Sample, WhetError


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        raise AssertionError("combined never calls a reward")


def part(name: str, weight: Any = 1.0, **more: Any) -> RewardPart:
    return RewardPart(Named(name), weight, **more)


def test_a_plain_sum() -> None:
    scores = {"a": [1.0, 0.0, 0.5], "b": [0.0, 1.0, 1.0]}
    assert combined(scores, [part("a", 0.75), part("b", 0.25)]) == [0.75, 0.25, 0.625]
    assert part("a").is_plain and not part("a", cap=(0, 1)).is_plain and not part("a", ((0, 1), (1, 2))).is_plain


def test_an_unjudged_part_leaves_no_total_even_behind_a_shut_gate() -> None:
    scores = {"form": [0.0, 1.0, None], "right": [None, 1.0, 1.0]}
    parts = [part("right", gate=Gate("form", 1.0)), part("form", 0.5)]
    assert combined(scores, parts) == [None, 1.5, None]


def test_a_schedule_is_straight_between_its_points_and_flat_outside() -> None:
    schedule = Schedule(((0.2, 1.0), (0.4, 0.0), (0.8, 2.0)))
    found = [schedule.at(position) for position in (0.0, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)]
    assert found == pytest.approx([1.0, 1.0, 0.5, 0.0, 1.0, 2.0, 2.0])
    parts = [part("a", ((0.0, 1.0), (0.3, 0.2))), part("b", 0.5)]
    assert weights_at(parts, 0.15) == pytest.approx({"a": 0.6, "b": 0.5})
    assert combined({"a": [1.0], "b": [1.0]}, parts, progress=0.15) == pytest.approx([1.1])
    assert combined({"a": [1.0], "b": [1.0]}, parts) == pytest.approx([0.7])


def test_a_schedule_over_steps_becomes_one_over_shares() -> None:
    parts = [part("a", Schedule(((0, 1.0), (100, 0.0), (300, 1.0)), over="steps")), part("b")]
    with pytest.raises(WhetError, match="'a' runs over steps, and the number of steps is not known"):
        weights_at(parts, 0.5)
    shared = in_shares(parts, 200)
    assert [weights_at(shared, share)["a"] for share in (0.0, 0.25, 0.5, 0.75, 1.0)] == [1.0, 0.5, 0.0, 0.25, 0.5]
    assert weights_at(in_shares(parts, 400), 0.75)["a"] == 1.0
    assert in_shares(shared, 7) == shared


def test_a_gate_shuts_a_part_out_where_another_does_not_pass() -> None:
    scores = {"form": [1.0, 0.5, 0.0], "right": [1.0, 1.0, 1.0]}
    parts = [part("right", gate=Gate("form", 0.5, otherwise=-0.25)), part("form", 0.0)]
    assert combined(scores, parts) == [1.0, 1.0, -0.25]


def test_a_gate_behind_a_shut_gate_is_shut_and_looks_at_raw_scores() -> None:
    scores = {"safe": [1.0, 0.0], "form": [1.0, 1.0], "right": [1.0, 1.0]}
    parts = [
        part("right", gate=Gate("form", 0.9)),
        part("form", 0.5, gate=Gate("safe", 1.0), cap=(0.0, 0.5)),
        part("safe", 0.0),
    ]
    assert combined(scores, parts) == [1.25, 0.0]


def test_a_penalty_of_weight_zero_serves_as_a_gate() -> None:
    scores = {"right": [1.0, 1.0], "padding": [0.0, -0.3]}
    assert combined(scores, [part("right", gate=Gate("padding", 0.0)), part("padding", 0.0)]) == [1.0, 0.0]


def test_a_cap_holds_on_both_sides_and_before_the_gate() -> None:
    scores = {"a": [-3.0, 0.4, 9.0, 9.0], "b": [1.0, 1.0, 1.0, 0.0]}
    parts = [part("a", 2.0, cap=(-1.0, 1.0), gate=Gate("b", 1.0, otherwise=5.0)), part("b", 0.0)]
    assert combined(scores, parts) == [-2.0, 0.8, 2.0, 10.0]


def test_normalising_by_group_and_by_batch() -> None:
    scores = {"a": [0.0, 2.0, 10.0, 14.0]}
    by_group = combined(scores, [part("a", 3.0, normalise="group")], groups=["p", "p", "q", "q"])
    half = 3 * math.sqrt(0.5)
    assert by_group == pytest.approx([-half, half, -half, half], abs=1e-4)
    by_batch = combined(scores, [part("a", normalise="batch")], groups=["p", "p", "q", "q"])
    std = math.sqrt((6.5**2 + 4.5**2 + 3.5**2 + 7.5**2) / 3)
    assert by_batch == pytest.approx([-6.5 / std, -4.5 / std, 3.5 / std, 7.5 / std], rel=1e-5)


def test_float_noise_and_lone_samples_normalise_to_exactly_nothing() -> None:
    noisy = [0.1 + 0.2, 0.3, 0.3 + 1e-12, 0.3]
    assert combined({"a": noisy}, [part("a", normalise="batch")]) == [0.0] * 4
    large = [1e9, 1e9 + 1e-4]
    assert combined({"a": large}, [part("a", normalise="group")]) == [0.0, 0.0]
    assert combined({"a": [0.2, 0.9]}, [part("a", normalise="group")], groups=["p", "q"]) == [0.0, 0.0]


def test_unscorable_samples_stay_out_of_the_statistics() -> None:
    scores = {"a": [0.0, 2.0, 100.0], "b": [0.0, 0.0, None]}
    totals = combined(scores, [part("a", normalise="group"), part("b")])
    assert totals[2] is None and totals[:2] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=1e-4)


def test_what_a_gate_puts_in_its_place_is_normalised_with_the_rest() -> None:
    scores = {"short": [5.0, 4.0, 9.0], "right": [1.0, 1.0, 0.0]}
    parts = [part("short", gate=Gate("right", 1.0), normalise="group"), part("right", 0.0)]
    mean, values = 3.0, (5.0, 4.0, 0.0)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    assert combined(scores, parts) == pytest.approx([(value - mean) / std for value in values], rel=1e-5)


@for_every(
    [
        (float("inf"), {}, "'a' has weight inf; give a finite number"),
        (-0.5, {}, "'a' has weight -0.5, which pays for doing badly; give a positive weight .* penalty = true"),
        (((0.0, 1.0), (0.5, -1.0)), {}, "'a' has weight -1, which pays for doing badly"),
        (((0.5, 1.0), (0.1, 0.0)), {}, "positions 0.5, 0.1 do not rise; sort them"),
        (((0.5, 1.0), (0.5, 0.0)), {}, "positions 0.5, 0.5 do not rise"),
        (((0.0, 1.0), (30.0, 0.0)), {}, r"positions are 0, 30; give shares of the training in \[0, 1\]"),
        ((), {}, "is no list of points"),
        ("high", {}, "'a' has weight 'high'; give a number, or points"),
        (1.0, {"cap": (1.0, 0.0)}, r"'a' has cap \(1.0, 0.0\); give \(least, most\)"),
        (1.0, {"cap": (0.0, math.nan)}, "'a' has cap"),
        (1.0, {"normalise": "row"}, "'a' is normalised by 'row'; give one of off, group, batch"),
    ]
)
def test_refused_parts(weight: Any, more: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WhetError, match=complaint) as caught:
        part("a", weight, **more)
    assert "\n" not in str(caught.value)


def test_negative_weights_that_are_meant() -> None:
    assert combined({"a": [0.5]}, [part("a", -2.0, penalty=True)]) == [-1.0]
    assert combined({"length_penalty": [0.5]}, [part("length_penalty", -2.0)]) == [-1.0]


def test_refused_sums() -> None:
    with pytest.raises(WhetError, match=r"every reward has weight 0 \(a, b\)"):
        check_parts([part("a", 0.0), part("b", 0.0)])
    for name in ("total", "accuracy", "reward", "completion_tokens", "truncated"):
        with pytest.raises(WhetError, match=f"a reward is called '{name}', under which reports show something else"):
            check_parts([part(name), part("a")])
    check_parts([part("reward")])  # a single part is not listed beside the sum
    with pytest.raises(WhetError, match=r"every reward has weight 0 at 0.3 of the training \(a, b\)"):
        check_parts([part("a", ((0.0, 1.0), (0.3, 0.0))), part("b", ((0.3, 0.0), (1.0, 1.0)))])
    with pytest.raises(WhetError, match=r"looks at 'from', which is no part .did you mean 'form'.*; name one of form"):
        check_parts([part("a", gate=Gate("from")), part("form")])
    with pytest.raises(WhetError, match=r"circle \(a -> b -> c -> a\)"):
        check_parts([part("a", gate=Gate("b")), part("b", gate=Gate("c")), part("c", gate=Gate("a"))])
    with pytest.raises(WhetError, match=r"circle \(a -> a\)"):
        check_parts([part("b", gate=Gate("a")), part("a", gate=Gate("a"))])
    with pytest.raises(WhetError, match="one schedule runs over shares and another over steps"):
        check_parts([part("a", ((0.0, 1.0),)), part("b", Schedule(((5, 1.0),), over="steps"))])
    with pytest.raises(WhetError, match="the gate on 'b' has least nan"):
        Gate("b", math.nan)
    with pytest.raises(WhetError, match=r"the weighted sum of .* is not finite"):
        combined({"a": [1e308]}, [part("a", 1e3)])
    with pytest.raises(ValueError, match=r"progress is 1.5"):
        combined({"a": [1.0]}, [part("a")], progress=1.5)
    check_parts([part("a", gate=Gate("b")), part("b", gate=Gate("c")), part("c", 0.0)])


def test_a_schedule_that_ends_with_the_run_keeps_its_last_point() -> None:
    shared = Schedule(((0, 1.0), (10, 0.5)), "steps").shared(10)
    assert shared.points == ((0.0, 1.0), (1.0, 0.5))
