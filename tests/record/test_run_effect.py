"""What came of a reward: means over the first and the last tenth of a run, and its evaluations at both ends."""

from pathlib import Path

import pytest

from whet.record.log import RunRecorder
from whet.tools.workbench.workbench import run_effect
from whet.types import StepReport


def test_the_ends_are_the_first_and_the_last_tenth(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path)
    record.started({})
    for step, accuracy in ((0, 0.1), (10, 0.4), (20, 0.7)):
        record.evaluated(step, "eval", {"accuracy": accuracy}, 1.0)
        for number in range(step + 1, min(step + 10, 20) + 1):
            record.stepped(StepReport(number, number - 1, {}, {"total": float(number), "part": 0.5}, {}), [])
    record.close()
    effect = run_effect(tmp_path)
    assert effect.steps == 20 and effect.run == tmp_path.name
    assert effect.parts["total"] == pytest.approx((1.5, 19.5)), "steps 1 and 2, steps 19 and 20"
    assert effect.parts["part"] == (0.5, 0.5)
    assert effect.evaluation == {"accuracy": (0.1, 0.7)}
