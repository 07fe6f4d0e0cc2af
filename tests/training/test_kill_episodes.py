"""kill -9 in the middle of a multi-turn batch: the resumed run leaves what the undisturbed one left."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.commands import finished

ENVIRONMENT = '''
import itertools, os, signal
from pathlib import Path

import pytest

CALLS = itertools.count(1)

class Echo:
    """Three turns; the process dies in the call that the file `die` names."""

    def __init__(self):
        self.turn = 0

    def start(self, prompt):
        return None

    def step(self, completion):
        call, die = next(CALLS), Path("die")
        if die.exists() and call == int(die.read_text()):
            os.kill(os.getpid(), signal.SIGKILL)
        self.turn += 1
        if self.turn == 3:
            return float(len(completion) % 3)
        return [{"role": "user", "content": f"{completion[:5]} and {self.turn}"}]
'''
COMMAND = [
    *("train", "grpo", "--env", "echo.py:Echo", "--steps", "3", "--set", "report.save_every=1"),
    *("--set", "eval.prompts=4", "--set", "sampling.max_new_tokens=8", "--set", "env.max_turns=3"),
    *("--set", "batch.prompts_per_step=2", "--set", "batch.group_size=4"),
]


def left_behind(folder: Path) -> dict[str, object]:
    """Weights, samples and metrics of a run; without seconds."""
    found: dict[str, object] = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))
    }
    for name in ("samples.jsonl", "tokens.jsonl", "metrics.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        found[name] = [
            {key: value for key, value in line.items() if key not in ("seconds", "timeline", "machine")}
            for line in lines
        ]
    return found


@pytest.mark.slow
def test_a_run_killed_within_a_batch_of_episodes_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ENVIRONMENT)
    whole = finished(*COMMAND, "--folder", "whole", folder=tmp_path)
    assert whole.returncode == 0, whole.stderr
    # an evaluation has 4 episodes of 3 calls, a step 8 of them: this is the second turn of the second step
    (tmp_path / "die").write_text(str(4 * 3 + 8 * 3 + 12))
    killed = finished(*COMMAND, "--folder", "killed", folder=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (tmp_path / "die").unlink()
    resumed = finished("resume", "killed", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    one, other = left_behind(tmp_path / "whole"), left_behind(tmp_path / "killed")
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []
    turns = one["samples.jsonl"][0]["turns"]  # type: ignore[index]
    assert [turn["role"] for turn in turns] == ["assistant", "user"] * 2 + ["assistant"]
