"""recipes/human_pairs.py from its command line to its summary, on a tiny model and tiny data."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Recipe = Callable[[str], ModuleType]


def write_pairs(folder: Path) -> None:
    rows = [
        {"prompt": f"Sort {number} 2 1", "chosen": f"1 2 {number}", "rejected": f"{number}", "source": "people"}
        for number in range(60)
    ]
    path = folder / "preference" / "human_pairs_unified.jsonl.gz"
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def test_one_command_trains_both_and_goes_on(
    recipe: Recipe, tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pairs(tmp_path)
    folder = tmp_path / "runs"
    words = ["human_pairs.py", "--data", str(tmp_path), "--model", "whetstone", "--folder", str(folder)]
    monkeypatch.setattr("sys.argv", [*words, "--steps", "2", "--rows", "4", "--train", "16"])
    module = recipe("human_pairs")
    module.main()
    assert [each[:2] for each in commands] == [["train", "dpo"], ["train", "rm"]]
    values = json.loads((folder / "summary.json").read_text())
    assert values["pairs"]["train"] == 16
    assert [run["method"] for run in values["runs"]] == ["dpo", "rm"]
    assert all(run["finished"] and run["steps"] == 2 for run in values["runs"])
    assert "| `rm`, 2 steps | " in (folder / "summary.md").read_text()
    module.main()
    assert len(commands) == 2  # nothing is run twice
