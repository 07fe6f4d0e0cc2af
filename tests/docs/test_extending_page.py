"""docs/extending.md: its blocks are one file, and its commands run with it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.commands import finished
from whet.objective.axes import POLICY, PREFERENCE
from whet.registry import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
FILE = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S))
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]
SMALL = ["--steps=2", "--set=eval.prompts=4", "--set=model.threads=1"]
FEW = ["--set=batch.prompts_per_step=2", "--set=batch.group_size=4"]


def test_the_file_of_the_page_registers_one_of_each_kind():
    compile(FILE, "mine.py", "exec")
    registered = set(re.findall(r'register\(\s*"(\w+)"', FILE))
    assert registered == {"reward", "environment", "baseline", "clip", "preset", "curve", "engine", "tracker"}
    assert registered | set(POLICY.axes) | set(PREFERENCE.axes) | {"pipeline"} == set(KINDS)
    assert all("--import mine.py" in command or "mine.py:" in command for command in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_run(command, tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    words = shlex.split(command)[1:]
    if words[0] == "train":
        words += [*SMALL, *(["--set=batch.rows_per_step=4"] if words[1] == "dpo" else FEW), "--folder=run"]
    done = finished(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    if "text" in command:
        lines = (tmp_path / "run" / "rewards.txt").read_text().splitlines()
        assert [line.split()[0] for line in lines] == ["eval", "1", "2", "eval", "eval"]
