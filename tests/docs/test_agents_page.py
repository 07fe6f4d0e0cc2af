"""The commands of docs/agents.md run, on the environment that the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whet.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_environment_of_the_page_trains_and_is_sampled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (source,) = blocks("python")
    Path("twice.py").write_text(source)
    commands = blocks("sh")[0]
    for command in commands.strip().splitlines():
        words = shlex.split(command)
        assert words[0] == "whet"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, (command, done.output, done.exception)
    assert "no, try again" in done.output and "assistant (reward" in done.output
