"""A run folder that whet 0.1 wrote is read in today's names, and refused in one line where it cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import whet
from whet.pages.run_report import write_report
from whet.record.log import read_metrics, read_samples, read_summary
from whet.training.config import PolicyConfig
from whet.training.saved_config import read_config, read_values
from whet.types import WhetError

FIXTURE = Path(__file__).parent / "run_of_0_1"  # `whet train grpo` of 0.1, three steps, without its checkpoint


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "old"))


def test_its_config_is_one_of_today(folder):
    config = read_config(folder)
    assert isinstance(config, PolicyConfig)
    assert (config.eval.every, config.eval.prompts, config.batch.staleness, config.batch.epochs_per_batch) == (
        1,
        4,
        0,
        1,
    )
    assert config.batch.micro_batch_tokens == 16384 and config.sampling.max_new_tokens == 8
    assert "evaluate_every" not in str(read_values(folder))


def test_its_metrics_and_samples_have_the_names_of_today(folder):
    samples, lines, summary = read_samples(folder), read_metrics(folder), read_summary(folder)
    assert len(samples) == 6 and samples[0]["completion"] == "<answer>3</answer>"
    assert [line["result"]["completion_tokens"] for line in lines if "eval" in line] == [4.0] * 4
    assert "kl_completion" in lines[1]["metrics"]
    assert summary["after"]["completion_tokens"] == 4.0
    assert "reply" not in str([samples, [line.get("metrics") for line in lines], summary["before"]])


def test_it_has_a_report_and_opens_from_python(folder):
    run = whet.load(folder)
    assert run.after["accuracy"] == 0.25
    page = write_report(folder)
    assert "&lt;answer&gt;3&lt;/answer&gt;" in Path(page).read_text(encoding="utf-8")


def test_resuming_it_is_refused_in_one_line_and_changes_nothing(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(WhetError, match=r"whet 0\.1 wrote this run.*`whet train grpo --model .*old`"):
        whet.resume(str(folder), steps=9, console=False)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
