"""The programs of docs/python.md, one after another in one folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.commands import finished

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_programs_of_the_page_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    for number, block in enumerate(blocks):
        (tmp_path / f"part{number}.py").write_text(block)
        done = finished(f"part{number}.py", folder=tmp_path)
        assert done.returncode == 0, (block, done.stderr)
    assert "not comparable" not in done.stdout and "rloo" in done.stdout
