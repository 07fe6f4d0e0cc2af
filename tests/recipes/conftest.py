"""Tiny data in the authors' own columns, and whet's commands run in this process instead of one each."""

from __future__ import annotations

import gzip
import importlib
import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def question(kind: str, place: int) -> str:
    """Words that no other question has, and a number."""
    letters = random.Random(f"{kind} {place}")
    return " ".join("".join(letters.choices("abcdefghijklmnop", k=4)) for _ in range(5)) + f" {place}."


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A module of recipes/, by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "recipes"))
    return importlib.import_module


@pytest.fixture
def word_problems(tmp_path: Path) -> Path:
    """A folder as the recipe expects it: 20 rows of each set, all different."""

    gsm8k = [
        {
            "question": f"{question(kind, place)} All?",
            "answer": f"{place}+1=<<{place}+1={place + 1}>>{place + 1}\n#### {place + 1}",
        }
        for kind in ("find", "hold")
        for place in range(20)
    ]
    write(tmp_path / "data/gsm8k/train.jsonl.gz", gsm8k[:20])
    write(tmp_path / "data/gsm8k/test.jsonl.gz", gsm8k[20:])
    asdiv = [
        {
            "body": question("asdiv", place),
            "question": "Sum?",
            "answer": f"{2 * place + 3} (pens)",
            "formula": f"{place + 2}+{place + 1}={2 * place + 3}",
        }
        for place in range(20)
    ]
    write(tmp_path / "data/math/asdiv.jsonl.gz", asdiv)
    mawps = [{"input": f"{question('mawps', place)} Left?", "target": 1.0} for place in range(20)]
    write(tmp_path / "data/math/mawps.jsonl.gz", mawps)
    write(
        tmp_path / "data/sft/rasbt_instruction_data.jsonl.gz",
        [{"instruction": question("tell", place), "input": "", "output": "Yes."} for place in range(3)],
    )
    told = [{"instruction": "Shorten.", "instances": [{"input": question("task", 0), "output": "No."}]}]
    write(tmp_path / "data/sft/self_instruct_user_oriented.jsonl.gz", told)
    svamp = [{"Body": question("svamp", place), "Question": "Rest?", "Answer": 1.0} for place in range(20)]
    write(tmp_path / "data/math/svamp.jsonl.gz", svamp)
    return tmp_path / "data"


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words of every whet command that a recipe started, each run to its end in this process."""
    from typer.testing import CliRunner

    from whet.cli import app

    started: list[list[str]] = []
    real = subprocess.Popen

    class Finished:
        def __init__(self, command: list[str], stdout: Any, **_: Any) -> None:
            started.append(command[3:])
            result = CliRunner().invoke(app, command[3:])
            stdout.write(f"{result.output}{result.exception or ''}".encode())
            self.returncode = result.exit_code

        def poll(self) -> int:
            return self.returncode

    def start(command: list[str], **options: Any) -> Any:
        # a run starts processes of its own
        return (Finished if command[1:3] == ["-m", "whet"] else real)(command, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    return started
