"""Seconds of a step: the constants are those of the results files, and the estimates meet what was measured."""

import json
from pathlib import Path

import pytest

from whet.record.speed import RolloutShape, training_operations
from whet.tools.planner import seconds as measured
from whet.tools.planner.seconds import rates, rollout_seconds, training_rate, training_seconds
from whet.tools.planner.shapes import NAMED
from whet.tools.planner.workload import devices

ROOT = Path(__file__).parents[3]
SHAPES = {"135m": NAMED["smollm2-135m"], "1.5b": NAMED["qwen2.5-1.5b"], "7b": NAMED["qwen2.5-7b"]}
H200 = rates(devices("H200"))


def values(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text())["values"]


def test_the_sources_are_there():
    assert all((ROOT / each).is_file() for each in measured.SOURCES)


def test_training_rates_are_the_files():
    for name, file, seconds, shape in (
        ("135m", "gpu_step_135m", "train_s", RolloutShape(32, 8, 128, 512)),
        ("1.5b", "gpu_train_1.5b", "seconds", RolloutShape(8, 8, 128, 512)),
    ):
        rate = training_operations(SHAPES[name].anatomy, shape) / values(file)[seconds]
        assert training_rate(SHAPES[name], H200) == pytest.approx(rate, rel=0.01)
        assert training_seconds(SHAPES[name], shape, H200) == pytest.approx(values(file)[seconds], rel=0.01)


def test_rollouts_are_met():
    cases = [
        (name, RolloutShape(count // 8, 8, 128, 512), values(f"gpu_rollout_{name}")[str(count)]["seconds"])
        for name in SHAPES
        for count in (256, 1024)
    ]
    cases.append(("1.5b", RolloutShape(16, 16, 4096, 512), values("gpu_long_prompts_1.5b")["seconds"]))
    for name, shape, seconds in cases:
        found = rollout_seconds(SHAPES[name], shape, 1024, H200)
        assert found == pytest.approx(seconds, rel=measured.FITS_WITHIN), (name, shape)


def test_another_card_is_scaled_and_says_so():
    slow = rates(devices("A100-80GB"))
    shape = RolloutShape(8, 8, 128, 512)
    for seconds in (training_seconds, lambda *asked: rollout_seconds(asked[0], asked[1], 64, asked[2])):
        assert seconds(SHAPES["7b"], shape, slow) > 1.2 * seconds(SHAPES["7b"], shape, H200)
    assert "scaled by published peaks" in slow.said and "only the memory is known" in rates(devices("80GB")).said


def test_fewer_rows_at_once_take_longer():
    shape = RolloutShape(32, 8, 128, 512)
    assert rollout_seconds(SHAPES["1.5b"], shape, 64, H200) > 2 * rollout_seconds(SHAPES["1.5b"], shape, 256, H200)
