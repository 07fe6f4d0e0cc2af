"""The logs of a run as flat rows."""

from pathlib import Path

import pytest
import torch

from whet.api.run import Run
from whet.record.log import RunRecorder
from whet.types import Prompt, Sample, StepReport, StopReason


def sample(completion: str, reward: float | None, short: float = 0.0) -> Sample:
    bare = Sample(
        torch.arange(3), torch.tensor([False, True, True]), torch.zeros(3), (0, 0), StopReason.END, completion
    )
    return bare.scored({"short": short}, reward)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record = RunRecorder(tmp_path, samples_per_step=9)
    record.started({})
    record.evaluated(0, "eval", {"accuracy": 0.25}, 2.0)
    for step in (1, 2):
        samples = [
            (Prompt("a", (), "?"), sample(f"{step} low", 0.1, 0.9)),
            (Prompt("a", (), "?"), sample(f"{step} none", None, 0.5)),
            (Prompt("b", (), "?"), sample(f"{step} high", 0.8, 0.1)),
        ]
        counts, reward = {"samples": 3, "tokens": 6, "truncated": 1}, {"total": 0.5 * step, "short": 0.3}
        record.stepped(StepReport(step, step - 1, counts, reward, {"kl": 0.1}, (), {"train": 1.5}), samples)
    record.close()
    return tmp_path


def test_steps_and_evals_are_flat(folder: Path) -> None:
    run = Run(folder)
    first, second = run.rows("metrics")
    assert first == {
        "step": 1,
        "policy_version": 0,
        "seconds": 1.5,
        "health": [],
        "reward": 0.5,
        "reward/short": 0.3,
        "kl": 0.1,
        "samples": 3,
        "tokens": 6,
        "truncated": 1,
        "completion_length": 2.0,
        "truncated_share": 1 / 3,
        "tokens_per_second": 4.0,
        "seconds/train": 1.5,
    }
    assert second["reward"] == 1.0
    assert run.rows("evals") == [{"step": 0, "eval": "eval", "accuracy": 0.25, "seconds": 2.0}]
    assert [row["completion"] for row in run.samples(step=-1, sort="-reward")] == ["2 high", "2 low", "2 none"]
