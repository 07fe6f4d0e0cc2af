"""A pipeline killed with kill -9 goes on to the very bytes an unbroken one has."""

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

SETTINGS = (
    "epochs=1 data.count=6 data.difficulty=1 eval.prompts=4 report.save_every=1 sampling.max_new_tokens=24 "
    "train.batch.rows_per_step=2 imitate.batch.rows_per_step=2 model.threads=1 seed=3"
)


def whet(*words: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "whet", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def begun(folder: Path) -> subprocess.Popen:
    changes = [word for each in SETTINGS.split() for word in ("--set", each)]
    return whet("pipeline", "spin", "--folder", str(folder), *changes)


def content(folder: Path) -> dict[str, str]:
    """Everything two equal pipelines share: what the stages wrote and found, and the weights they left."""
    found = {}
    for pattern in ("*/*.jsonl", "*/run/checkpoints/*/*.safetensors", "*/run/samples.jsonl"):
        for path in sorted(folder.glob(pattern)):
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.glob("*/stage.json")):
        found[str(path.relative_to(folder))] = json.dumps(json.loads(path.read_text()) | {"seconds": 0})
    return found


def test_killed_at_random_moments_and_resumed(tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    process = begun(unbroken)
    said = process.communicate(timeout=600)[0].decode()
    assert process.returncode == 0, said
    names = sorted(path.parent.name for path in unbroken.glob("*/stage.json"))
    assert len(names) == 12
    stream = random.Random(11)
    process, kills = begun(broken), 0
    for name in stream.sample(names[1:-1], 2):
        deadline = time.monotonic() + 300
        while process.poll() is None and not (broken / name).exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(stream.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += not (broken / names[-1] / "stage.json").exists()
        process = whet("resume", str(broken))
    said = process.communicate(timeout=600)[0].decode()
    assert process.returncode == 0 and "done before" in said, said
    assert kills >= 1
    assert content(broken) == content(unbroken)
    assert not list(broken.glob("*/*-parts"))


def test_an_interrupt_loses_nothing(tmp_path):
    folder = tmp_path / "run"
    process = begun(folder)
    deadline = time.monotonic() + 300
    while process.poll() is None and not list(folder.glob("*round1-train/run/metrics.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 130, said
    assert f"next  whet resume {folder}" in said and "Traceback" not in said
    assert "interrupted" in (folder / "pipeline.html").read_text()
