"""benchmarks/soak.py: a leak is told from noise."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("soak")


def noise(size: float, count: int = 400) -> list[float]:
    drawn = random.Random(0)
    return [drawn.gauss(0.0, size) for _ in range(count)]


def test_noise_is_no_drift(soak: ModuleType) -> None:
    found = soak.fitted_drift([1e9 + each for each in noise(5e6)], soak.LIMITS["resident_bytes"])
    assert not found["drifts"]
    assert abs(found["drift"]) < found["interval"] * 2


def test_a_leak_is_a_drift(soak: ModuleType) -> None:
    leak = [1e9 + 1e5 * step + each for step, each in enumerate(noise(5e6))]
    found = soak.fitted_drift(leak, soak.LIMITS["resident_bytes"])
    assert found["drifts"]
    assert found["drift"] == pytest.approx(0.9 * 400 * 1e5, rel=0.1)  # a tenth of the steps is left out


def test_one_file_left_open_per_hundred_steps_is_a_drift(soak: ModuleType) -> None:
    assert soak.fitted_drift([9.0 + step // 100 for step in range(400)], soak.LIMITS["open_files"])["drifts"]
    assert not soak.fitted_drift([9.0] * 400, soak.LIMITS["open_files"])["drifts"]


def test_what_grows_only_at_the_start_is_no_drift(soak: ModuleType) -> None:
    steps = [2.0] * 30 + [1.0 + each for each in noise(0.01, 370)]
    assert not soak.fitted_drift(steps, soak.LIMITS["step_seconds"])["drifts"]


def test_slower_and_slower_steps_are_a_drift(soak: ModuleType) -> None:
    slower = [1.0 + 0.2 * step / 400 + each for step, each in enumerate(noise(0.05))]
    assert soak.fitted_drift(slower, soak.LIMITS["step_seconds"])["drifts"]


def test_what_slows_the_fixed_work_as_much_is_no_drift(soak: ModuleType) -> None:
    busy = [1.0 + 0.5 * step / 400 for step in range(400)]
    steps = [0.3 * each + more for each, more in zip(busy, noise(0.003), strict=True)]
    assert soak.fitted_drift(steps, soak.LIMITS["step_seconds"])["drifts"]
    assert not soak.fitted_drift(steps, soak.LIMITS["step_seconds"], [0.01 * each for each in busy])["drifts"]


def test_too_few_steps_are_refused(soak: ModuleType) -> None:
    with pytest.raises(SystemExit, match="too few"):
        soak.fitted_drift([1.0] * 4, soak.LIMITS["threads"])
