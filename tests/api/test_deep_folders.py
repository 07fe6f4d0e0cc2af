"""Folders inside one another by the hundred do not stop `whet runs`."""

from __future__ import annotations

import os

from whet.api.listing import listed_runs


def test_runs_are_listed_beside_a_tower_of_folders(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.toml").write_text("method = 'grpo'\n")
    monkeypatch.chdir(tmp_path)
    for _ in range(1200):  # paths this long can only be made step by step
        os.mkdir("a")
        os.chdir("a")
    os.chdir(tmp_path)
    try:
        assert [run.folder for run in listed_runs(tmp_path)] == [str(tmp_path / "mine")]
    finally:
        # from below: shutil recurses too
        for _ in range(1200):
            os.chdir("a")
        for _ in range(1200):
            os.chdir("..")
            os.rmdir("a")
