"""Every method that learns from preferences, and every reward model, from the command line on the built-in data."""

import json
import math
import sys
from pathlib import Path

import pytest

from whet import cli
from whet.objective.presets.preference import PAIR_PRESETS
from whet.objective.presets.reward_model import REWARD_MODELS

STEPS = 3
SINGLE = [name for name, preset in PAIR_PRESETS.items() if "pairs" not in preset.objective.needs()]


def trained(*words):
    """The steps of a run, as it recorded them."""
    before, sys.argv = sys.argv, ["whet", "train", *words, "--steps", str(STEPS), "--folder", "run"]
    try:
        cli.main()
    except SystemExit as leaving:
        assert not leaving.code, leaving
    finally:
        sys.argv = before
    return [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]


def learnt(lines):
    steps = [line["metrics"] for line in lines if "metrics" in line]
    assert len(steps) == STEPS and all(math.isfinite(value) for step in steps for value in step.values())
    assert all(step["gradient_norm"] > 0 for step in steps)
    assert len({step["loss"] for step in steps}) == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("method", [*PAIR_PRESETS, *REWARD_MODELS])
def test_it_trains_on_the_built_in_data(method, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    learnt(trained(method))
    assert "finished" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("method", SINGLE)
def test_it_trains_on_labels(method, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learnt(trained(method, "--set", "preference.labels=true"))
