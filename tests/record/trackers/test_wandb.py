"""Weights & Biases offline, read back from the file that `wandb sync` would send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import needs
from tests.support.tracked_runs import Followed

pytestmark = needs("wandb")
BLOCK = 32768  # of the log format: LevelDB's, behind a header of seven bytes


@pytest.fixture(autouse=True)
def no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def records(folder: Path) -> list[Any]:
    """The records of the one .wandb file of an offline run."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("*.wandb")
    data, at, found, piece = file.read_bytes(), 7, [], b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        piece += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, last
            found.append(wandb_internal_pb2.Record.FromString(piece))
            piece = b""
    return found


def history(found: list[Any]) -> list[dict[str, Any]]:
    rows = []
    for each in found:
        if each.WhichOneof("record_type") == "history":
            items = each.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def offline(folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob("offline-run-*"))


def completions(folder: Path) -> list[list[Any]]:
    """The rows of every increment of the table, in order."""
    files = sorted((folder / "files" / "media" / "table").rglob("*.table.json"), key=lambda each: each.stat().st_mtime)
    return [row for file in files for row in json.loads(file.read_text())["data"]]


def rewards(rows: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(row["_step"], round(row["reward"], 4)) for row in rows if "reward" in row]


def test_every_step_is_there_with_a_table_that_grows(tmp_path: Path) -> None:
    trackers = Followed(tmp_path, ["wandb"]).session(1, 3)
    assert not trackers.failures
    (folder,) = offline(tmp_path)
    assert f"wandb sync {folder}" in trackers.fact
    found = records(folder)
    rows = history(found)
    assert rewards(rows) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert [(row["_step"], row["eval/accuracy"]) for row in rows if "eval/accuracy" in row] == [(0, 0.25)]
    assert all(
        row["spread/reward/_type"] == "histogram" and sum(row["spread/reward/values"]) == 8
        for row in rows
        if "reward" in row
    )
    assert [row[0] for row in completions(folder)] == [1, 1, 2, 2, 3, 3]
    config = next(each.run.config for each in found if each.WhichOneof("record_type") == "run")
    values = {item.key: json.loads(item.value_json) for item in config.update}
    assert values["optimizer.learning_rate"] == 1e-4
    summary = {item.key or "/".join(item.nested_key): item.value_json for each in found for item in each.summary.update}
    assert "entropy fell" in str(summary) and '"0.75"' in str(summary)


@pytest.mark.slow
def test_the_newest_folder_of_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    run = Followed(tmp_path, ["wandb"])
    run.session(1, 2)
    (first,) = offline(tmp_path)
    run.session(2, 4, reward=0.9)
    (last,) = offline(tmp_path)
    assert last != first and last.name.rpartition("-")[2] == first.name.rpartition("-")[2]
    assert rewards(history(records(last))) == [(1, 0.1), (2, 0.9), (3, 0.9), (4, 0.9)]
    assert [row[0] for row in completions(last)] == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.slow
def test_what_was_synced_is_kept(tmp_path: Path) -> None:
    run = Followed(tmp_path, ["wandb"])
    run.session(1, 1)
    (first,) = offline(tmp_path)
    (first / "run.wandb.synced").touch()
    run.session(2, 2)
    assert first in offline(tmp_path) and len(offline(tmp_path)) == 2
