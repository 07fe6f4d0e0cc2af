"""A pipeline that is interrupted and then killed with kill -9 continues to the very bytes that an unbroken one has."""

import hashlib
import json
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.commands import Command, started
from whet.settings.layers import from_settings
from whet.tools.pipelines.runner import resume_pipeline, run_pipeline

SETTINGS = [
    "rounds=1",
    "epochs=1",
    "data.count=6",
    "data.difficulty=1",
    "eval.prompts=4",
    "report.save_every=1",
    "sampling.max_new_tokens=24",
    "train.batch.rows_per_step=2",
    "imitate.batch.rows_per_step=2",
    "model.threads=1",
    "seed=3",
]


def content(folder: Path) -> dict[str, str]:
    """Everything two equal pipelines share: what the stages wrote and found, and the weights they left."""
    found = {}
    for pattern in ("*/*.jsonl", "*/run/checkpoints/*/*.safetensors", "*/run/samples.jsonl"):
        for path in sorted(folder.glob(pattern)):
            if path.name == "rewards.jsonl":  # a ledger of when which reward was used
                continue
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.glob("*/stage.json")):
        found[str(path.relative_to(folder))] = json.dumps(json.loads(path.read_text()) | {"seconds": 0})
    return found


def wait_for(process: Command, folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 300
    while process.poll() is None and not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, pattern
        time.sleep(0.002)


@pytest.mark.slow
def test_interrupted_killed_and_resumed_comes_to_the_same_bytes(tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    run = run_pipeline("spin", from_settings([*SETTINGS, f"folder={unbroken}"]))
    assert run.status == "finished" and len(run.stages) == 8

    process = started(
        "pipeline", "spin", "--folder", str(broken), *(word for each in SETTINGS for word in ("--set", each))
    )
    wait_for(process, broken, "*round1-train/run/metrics.jsonl")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130, process.stderr
    printed = process.stdout + process.stderr
    assert f"next  whet resume {broken}" in printed and "Traceback" not in printed
    assert "interrupted" in (broken / "pipeline.html").read_text()
    assert not list(broken.glob("*round1-train/stage.json"))

    process = started("resume", str(broken))
    wait_for(process, broken, "*round1-imitate/run/config.toml")
    time.sleep(random.Random(11).uniform(0, 0.2))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.stderr
    assert "done before" in process.stdout + process.stderr
    assert not list(broken.glob("*round1-imitate-eval/stage.json"))

    assert resume_pipeline(broken).status == "finished"
    assert content(broken) == content(unbroken)
    assert not list(broken.glob("*/*-parts"))


R1 = [
    *("data.count=8", "data.difficulty=1", "cold_rows=8", "seed=3", "model.threads=1", "report.save_every=1"),
    *("eval.prompts=4", "eval.samples=2", "sampling.max_new_tokens=40", "sft.steps=2", "sft.batch.rows_per_step=4"),
    *("rl.steps=3", "rl.batch.prompts_per_step=2", "rl.batch.group_size=2", "rejection.prompts=6"),
    *("sft2.steps=2", "sft2.batch.rows_per_step=2", "rl2.steps=1", "rl2.batch.prompts_per_step=2"),
    *("rl2.batch.group_size=2", "rejection.completions=4"),
]


@pytest.mark.slow
def test_stages_of_the_library_are_killed_in_training_and_come_to_the_same_bytes(tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    run = run_pipeline("r1", from_settings([*R1, f"folder={unbroken}"]))
    assert run.status == "finished" and len(run.stages) == 11

    words = ("pipeline", "r1", "--folder", str(broken), *(word for each in R1 for word in ("--set", each)))
    process = started(*words)
    wait_for(process, broken, "*reasoning-rl/run/checkpoints/step-000001/manifest.json")
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.stderr
    assert not list(broken.glob("*reasoning-rl/stage.json"))

    process = started("resume", str(broken))
    wait_for(process, broken, "*second-sft/run/config.toml")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(broken.glob("replaced/*"))

    process = started(*words)  # the same command in the same folder goes on as a resume does
    assert process.wait() == 0, process.stderr
    assert "runs again" not in process.stdout and "done before" in process.stdout
    assert content(broken) == content(unbroken)
    assert not list(broken.glob("*/*-parts")) and not list(broken.glob("*/run/checkpoints/*/optimizer.safetensors"))
