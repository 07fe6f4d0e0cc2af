"""What the README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

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


def test_the_python_example_runs(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    program = tmp_path / "example.py"
    program.write_text(block)
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = (float(number) for number in re.findall(r"'reward': (-?[\d.]+)", done.stdout)[:2])
    assert after > before + 0.3 and 0 <= float(done.stdout.splitlines()[-1]) <= 1
    assert (tmp_path / "runs" / "grpo-001" / "report.html").exists()
