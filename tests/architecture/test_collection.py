"""Every test file in the tree is run by some command: pytest passes over folders of some names without a word."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.collection import COLLECTED, asked_for, forgotten_files
from tests.support.source_tree import ROOT, write_tree

PYTEST = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
MARKERS = {line.split(":")[0] for line in PYTEST["markers"]}


def test_every_test_file_is_collected(request: pytest.FixtureRequest) -> None:
    """Of the folders that this session was asked for; `make test` asks for all."""
    forgotten = forgotten_files(asked_for(request.config), list(request.config.stash[COLLECTED]))
    assert not forgotten, f"pytest collects nothing from {', '.join(str(file.relative_to(ROOT)) for file in forgotten)}"


def test_every_marker_is_used_left_out_by_default_and_documented(request: pytest.FixtureRequest) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page.split("| marker | needs |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == MARKERS, "CONTRIBUTING.md documents other markers"
    assert set(re.findall(r"not (\w+)", PYTEST["addopts"])) == MARKERS, "addopts leaves out other markers"
    if ROOT / "tests" in asked_for(request.config):
        used = set().union(*request.config.stash[COLLECTED].values())
        assert used >= MARKERS, f"no test has the marker {', '.join(MARKERS - used)}"


def test_a_forgotten_file_is_found(tmp_path):
    write_tree(tmp_path, {"a/test_one.py": "", "dist/test_two.py": "", "dist/cases.py": ""})
    one, two = tmp_path / "a/test_one.py", tmp_path / "dist/test_two.py"
    assert forgotten_files([tmp_path], [one]) == [two]
    assert forgotten_files([tmp_path], [one, two]) == forgotten_files([one], [one]) == []
