"""The commands and tables of docs/environments.md, held against the adapters."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.envs.test_adapters_gym import ONE_PLAYER
from whet.cli import app
from whet.envs.find import BUILT_IN
from whet.envs.sections import OWN_TASKS

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if "smollm2" not in line
]
PACKAGES = {"gym": "gymnasium", "textarena": "textarena", "skyrl": "skyrl_gym", "reasoning_gym": "reasoning_gym"}
SMALL = ["--steps=1", "--set=batch.prompts_per_step=1", "--set=batch.group_size=2", "--set=sampling.max_new_tokens=4"]
SHORT = ["--set=env.max_turns=2", "--set=model.threads=1"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_run(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    package = PACKAGES.get(words[words.index("--env") + 1])
    if package is not None:
        pytest.importorskip(package, reason=f"{package} is not installed")
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    Path("counting.py").write_text(source)
    small = [*SMALL, "--set=eval.prompts=1"] if words[1] == "train" else []
    done = CliRunner().invoke(app, [*words[1:], *small, *SHORT])
    assert done.exit_code == 0 and done.output.strip(), (done.output, done.exception)


def test_every_environment_is_on_the_page_with_its_command():
    table = re.findall(r"^\| `(\w+)` \| .*pip install", PAGE, re.MULTILINE)
    assert sorted(table) == sorted(BUILT_IN)
    for name in BUILT_IN:
        module = {"reasoning_gym": "attempts", "gem": "gym"}.get(name, name)
        adapter = importlib.import_module(f"whet.envs.adapters.{module}")
        for line in re.findall(r"pip install [^&]*?(?= and |$)", getattr(adapter, "INSTALL", "")):
            assert f"`{line}`" in PAGE, (name, line)


def test_the_defaults_of_the_page_are_those_of_the_config():
    assert {name: values["data"]["source"] for name, values in OWN_TASKS.items()} == {
        "bfcl": "seeds:200", "gem": "seeds:1000", "gym": "seeds:1000", "textarena": "seeds:1000"
    }  # fmt: skip
    assert {values["env"]["max_turns"] for values in OWN_TASKS.values()} == {30, 60}
    assert OWN_TASKS["bfcl"]["env"]["max_turns"] == 60


def test_the_games_of_the_page_are_those_that_are_tried():
    listed = re.search(r"without the network:\n\n(.*?) \(each with", PAGE, re.DOTALL)
    assert listed is not None
    assert [each.strip() for each in listed[1].replace("\n", " ").split(",")] == list(ONE_PLAYER)
