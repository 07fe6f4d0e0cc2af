"""What the README shows is what happens."""

import ast
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

import whet
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


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The README's program, with stand-ins for what the hub has."""
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    sums = [(a, b) for a in range(9) for b in range(9)]
    rows = [
        {"question": f"Left to right mod 10: {a}+4-{b}", "answer": f"{a}+4 ...\n#### {(a + 4 - b) % 10}"}
        for a, b in sums
    ]
    hub = ModuleType("datasets")
    hub.load_dataset = lambda *names: {"train": rows, "test": rows[:20]}
    monkeypatch.setitem(sys.modules, "datasets", hub)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.py").write_text(
        block.replace('"Qwen/Qwen2.5-0.5B-Instruct"', '"whetstone"').replace("config=asked", "config=asked, steps=2")
    )
    return tmp_path / "example.py"


@pytest.mark.slow
def test_the_python_example_runs(program, capsys):
    runpy.run_path(str(program), run_name="__main__")
    low, high = ast.literal_eval(capsys.readouterr().out.splitlines()[-1])
    assert 0 <= low < high <= 1
    assert (program.parent / "runs" / "dr_grpo-001" / "report.html").exists()
    assert "End with the answer" in (program.parent / "runs" / "dr_grpo-001" / "config.toml").read_text()


@pytest.mark.slow
def test_the_line_without_a_hub_learns(program):
    (line,) = re.findall(r"`(whet\.train\(.*?\))`", README)
    reward = runpy.run_path(str(program))["last_number"]
    assert reward("it is 1,000", "1000") == reward("so 1000", "1,000") == 1 and reward("none", "1") == 0
    run = eval(line, {"whet": whet, "last_number": reward})
    assert run.after["reward"] > run.before["reward"] + 0.3
