"""A run killed with kill -9 at any moment goes on to the very bytes an unbroken run has."""

import hashlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.commands import finished, started
from whet.record.log import read_metrics

pytestmark = pytest.mark.slow  # every point of a save is hit with every commit: test_saving.py
METHODS = ["grpo", "reinforce", "ppo", "sft"]
STEPS = 8


def arguments(method: str, folder: Path) -> list[str]:
    common = [
        f"--steps={STEPS}",
        "--seed=3",
        f"--folder={folder}",
        "--set",
        "report.save_every=2",
        "--set",
        "eval.every=3",
        "--set",
        "eval.prompts=12",
        "--set",
        "data.count=40",
        "--set",
        "model.threads=1",
        "--set",
        "sampling.max_new_tokens=24",
        "--set",
        "report.keep_checkpoints=3",
    ]
    batch = ["batch.rows_per_step=6"] if method == "sft" else ["batch.prompts_per_step=3", "batch.group_size=4"]
    if method == "grpo":
        batch += ["batch.updates_per_step=2", "batch.micro_batch_tokens=300"]
    return ["train", method, *common, *(word for each in batch for word in ("--set", each))]


def content(folder: Path) -> dict[str, object]:
    """Everything two equal runs share: weights, optimizer, samples, metrics without wall-clock times."""
    found: dict[str, object] = {}
    for path in sorted((folder / "checkpoints").glob("step-*/*.safetensors")):
        found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    samples = folder / "samples.jsonl"
    found["samples"] = hashlib.sha256(samples.read_bytes()).hexdigest() if samples.exists() else None
    metrics = read_metrics(folder)
    for line in metrics:
        line.pop("seconds"), line.pop("timeline", None), line.pop("machine", None)
    found["metrics"] = json.dumps(metrics)
    last = max((folder / "checkpoints").glob("step-*"))
    state = json.loads((last / "state.json").read_text())["state"]
    found["trainer"] = json.dumps(state["trainer"], sort_keys=True)
    return found


def training_seconds(folder: Path) -> float:
    return sum(sum(line["seconds"].values()) for line in read_metrics(folder))


def status(folder: Path) -> str:
    summary = folder / "run.json"
    return json.loads(summary.read_text())["status"] if summary.exists() else "not started"


@pytest.fixture(scope="module", params=METHODS)
def unbroken(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    done = finished(*arguments(request.param, folder))
    assert done.returncode == 0, done.stderr
    assert f"step-{STEPS:06d}" in os.listdir(folder / "checkpoints")
    return request.param, folder


def test_two_equal_runs_are_equal(unbroken, tmp_path):
    method, folder = unbroken
    assert finished(*arguments(method, tmp_path / "run")).returncode == 0
    assert content(tmp_path / "run") == content(folder)


def test_killed_at_random_moments_and_resumed(unbroken, tmp_path):
    method, folder = unbroken
    stream = random.Random(f"{method}/5")
    broken = tmp_path / "run"
    process, kills, attempts = started(*arguments(method, broken)), 0, 0
    while attempts < 12:
        attempts += 1
        killed_at = stream.uniform(0.0, 0.35) * training_seconds(folder)
        begun, deadline = None, time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if begun is None and (broken / "metrics.jsonl").exists():
                begun = time.monotonic()  # start-up takes seconds: count from the first record on
            if begun is not None and time.monotonic() - begun > killed_at:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
                break
            time.sleep(0.002)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.stderr
        if status(broken) == "finished":
            break  # killed after its last word: there is nothing left to do
        process = started("resume", str(broken))
        if attempts >= 4:
            process.wait()
    assert process.wait() in (0, -signal.SIGKILL) and status(broken) == "finished"
    assert kills >= 2
    assert content(broken) == content(folder)


def test_a_finished_run_has_nothing_to_resume(unbroken):
    _, folder = unbroken
    before = content(folder)
    done = finished("resume", str(folder))
    assert done.returncode == 2
    output = done.stdout + done.stderr
    assert "nothing to do" in output and "steps=16" in output and len(output.strip().splitlines()) == 1
    assert content(folder) == before
