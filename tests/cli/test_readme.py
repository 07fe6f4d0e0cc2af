"""What the README shows is what happens."""

import re
import runpy
from pathlib import Path

import pytest

from whet.objective.catalogue import methods
from whet.pages.methods import axes_table

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_counts_are_the_real_ones():
    for kind, words in (("policy", "policy presets"), ("preference", "preference presets")):
        (count,) = re.findall(rf"(\d+)\s+{words}", README)
        assert int(count) == len(methods(kind))


def test_the_table_of_axes_is_the_real_one():
    page = (Path(__file__).parents[2] / "docs" / "objective.md").read_text()
    assert axes_table("policy") in page, "refresh it: python -m whet.pages.methods"


@pytest.mark.slow
def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "example.py"
    program.write_text(block)
    runpy.run_path(str(program), run_name="__main__")
    printed = capsys.readouterr().out
    before, after = (float(number) for number in re.findall(r"'reward': (-?[\d.]+)", printed)[:2])
    assert after > before + 0.3 and 0 <= float(printed.splitlines()[-1]) <= 1
    assert (tmp_path / "runs" / "grpo-001" / "report.html").exists()
