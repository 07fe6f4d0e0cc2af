"""TensorBoard read back by its own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorboard")
from tests.support.tracked_runs import Followed


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0, "histograms": 0})
    found.Reload()
    return found


def scalars(found: Any, name: str) -> list[tuple[int, float]]:
    return [(each.step, round(each.value, 4)) for each in found.Scalars(name)]


def texts(found: Any, name: str) -> dict[int, str]:
    values = found.Tensors(f"{name}/text_summary")
    return {each.step: each.tensor_proto.string_val[0].decode() for each in values}


def test_every_step_is_there_with_names_findings_spread_and_completions(tmp_path: Path) -> None:
    trackers = Followed(tmp_path, ["tensorboard"]).session(1, 3)
    found = read(tmp_path)
    assert not trackers.failures and str(tmp_path / "tensorboard") in trackers.fact
    assert scalars(found, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert scalars(found, "reward/exact") == [(1, 0.05), (2, 0.1), (3, 0.15)]
    assert scalars(found, "seconds/train") == [(1, 0.5), (2, 0.5), (3, 0.5)] and scalars(found, "tokens")[0] == (1, 80)
    assert scalars(found, "eval/accuracy") == [(0, 0.25)]
    assert "entropy" not in found.Tags()["scalars"]  # never finite
    assert texts(found, "health") == {2: "entropy collapse: the entropy fell to 0.01 nats"}  # once, not at step 3 again
    assert "optimizer.learning_rate = 0.0001" in texts(found, "config")[0]
    assert "after/accuracy = 0.75" in texts(found, "summary")[0] and "status = finished" in texts(found, "summary")[0]
    completions = texts(found, "completions")
    assert sorted(completions) == [1, 2, 3]
    for step, text in completions.items():
        assert f"call at step {step}" in text and "**tool**" in text and "reward/exact 1.0" in text
    spread = found.Histograms("spread/reward")
    assert [each.step for each in spread] == [1, 2, 3]
    value = spread[0].histogram_value
    assert (value.min, value.max, value.num) == (0.0, 1.0, 8) and sum(value.bucket) == 8


def test_a_resumed_run_goes_on_and_steps_that_were_cut_off_are_replaced(tmp_path: Path) -> None:
    run = Followed(tmp_path, ["tensorboard"])
    run.session(1, 4, ends=False)
    run.session(3, 5, reward=0.9)
    found = read(tmp_path)
    assert scalars(found, "reward") == [(1, 0.1), (2, 0.2), (3, 0.9), (4, 0.9), (5, 0.9)]
    assert scalars(found, "eval/accuracy") == [(0, 0.25)]
    assert sorted(texts(found, "completions")) == [1, 2, 3, 4, 5]


def test_a_tracker_that_comes_late_gets_the_whole_run(tmp_path: Path) -> None:
    run = Followed(tmp_path, ["tensorboard"])
    run.session(1, 2)
    for file in (tmp_path / "tensorboard").iterdir():
        file.unlink()  # as if it had never been followed
    run.session(3, 3)
    assert [step for step, _ in scalars(read(tmp_path), "reward")] == [1, 2, 3]
    assert sorted(texts(read(tmp_path), "completions")) == [1, 2, 3]
