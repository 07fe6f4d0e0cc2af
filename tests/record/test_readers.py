"""The logs of a run as flat rows."""

from pathlib import Path

import pytest
import torch

from whet.record.log import RunRecorder, eval_rows, sample_rows, step_rows
from whet.types import Prompt, Sample, StepReport, StopReason, WhetError


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
    first, second = step_rows(folder)
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
    assert eval_rows(folder) == [{"step": 0, "eval": "eval", "accuracy": 0.25, "seconds": 2.0}]
    assert step_rows(folder / "nowhere") == [] == eval_rows(folder / "nowhere")


def texts(rows: list[dict]) -> list[str]:
    return [row["completion"] for row in rows]


def test_samples_are_chosen_and_sorted(folder: Path) -> None:
    assert len(sample_rows(folder)) == 6
    assert texts(sample_rows(folder, step=1)) == ["1 low", "1 none", "1 high"]
    assert texts(sample_rows(folder, step=-1, sort="-reward")) == ["2 high", "2 low", "2 none"]
    assert texts(sample_rows(folder, step=2, sort="reward", limit=1)) == ["2 low"]
    assert texts(sample_rows(folder, step=1, sort="short")) == ["1 high", "1 none", "1 low"]
    assert texts(sample_rows(folder, prompt_id="b")) == ["1 high", "2 high"]
    with pytest.raises(WhetError, match="no 'brevity' to sort by; give one of step, prompt_id"):
        sample_rows(folder, sort="brevity")
