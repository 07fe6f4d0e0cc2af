"""A trainer that is killed or interrupted leaves no agent program behind, and its run goes on to the same bytes."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.envs.test_agent import CLIENT, alive
from tests.support.commands import finished
from tests.support.packages import needs
from tests.training.test_kill_episodes import left_behind

pytestmark = needs("fastapi", "uvicorn")
# two branches; in the second step each one ends its trainer, where the file `die` says how, and stays with a child
PROGRAM = (
    CLIENT
    + """
import subprocess
from pathlib import Path

messages = [user("1+1"), chat([user("1+1")])]
answers = [chat([*messages, user(text)]) for text in ("left", "right")]
metrics = Path("broken/metrics.jsonl")
if Path("die").exists() and metrics.exists() and '"step": 1' in metrics.read_text():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} {child.pid} ")
    os.kill(os.getppid(), int(Path("die").read_text()))
    time.sleep(300)
print(json.dumps({"reward": sum(len(each["content"]) for each in answers) % 5}))
"""
)
COMMAND = [
    *("train", "grpo", "--agent", f"{sys.executable} program.py", "--steps", "3", "--set", "report.save_every=1"),
    *("--set", "eval.prompts=0", "--set", "sampling.max_new_tokens=8", "--set", "batch.prompts_per_step=2"),
    *("--set", "batch.group_size=4"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    (folder / "program.py").write_text(PROGRAM)
    run = finished(*COMMAND, "--folder", "run", folder=folder)
    assert run.returncode == 0, run.stderr
    return left_behind(folder / "run")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_no_program_outlives_its_trainer_and_the_run_resumes_to_the_same_bytes(
    whole, tmp_path: Path, number: int, code: int
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "die").write_text(str(int(number)))
    broken = finished(*COMMAND, "--folder", "broken", folder=tmp_path)
    assert broken.returncode == code, broken.stderr
    left = (tmp_path / "pids").read_text().split()
    assert left and not [pid for pid in left if alive(int(pid))]
    (tmp_path / "die").unlink()
    resumed = finished("resume", "broken", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    again = left_behind(tmp_path / "broken")
    assert whole.keys() == again.keys() and [name for name in whole if whole[name] != again[name]] == []
    names = [sample["episode"] for sample in whole["samples.jsonl"][:4]]
    assert len(names) == 4 and len(set(names)) == 2, "each episode left two branches"
    steps = [json.loads(line) for line in (tmp_path / "broken" / "metrics.jsonl").read_text().splitlines()]
    assert [(each["counts"]["agent_calls"], each["counts"]["branches"]) for each in steps] == [(24, 16)] * 3
    # the trainer's log-probabilities of what it trains on are those that the engine sampled with
    assert all(each["metrics"]["sampler_gap_max"] < 1e-4 for each in steps)
