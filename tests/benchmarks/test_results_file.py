"""What a results file says of itself."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import results_file
from results_file import RESULTS, bare, commit_of, write_results

from tests.support.for_every import for_every


def test_values_stand_beside_command_date_commit_and_machine(tmp_path, monkeypatch):
    script = str(Path(__file__).parents[2] / "benchmarks" / "gpu_step.py")
    monkeypatch.setattr(sys, "argv", [script, "--rows", "/somewhere/else/rows.jsonl", "--work=/a/b"])
    path = write_results("speed", {"step": {"seconds": 1.23456789, "name": "whet", 256: [1, 2.0000001]}}, tmp_path)
    found = json.loads(path.read_text())
    assert found["command"] == "python benchmarks/gpu_step.py --rows rows.jsonl --work=b"
    assert found["values"] == {"step": {"seconds": 1.23457, "name": "whet", "256": [1, 2.0]}}
    assert found["date"].count("-") == 2 and {"processor", "cores", "python", "torch", "gpu"} <= set(found["machine"])
    assert str(Path.home()) not in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_a_number_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError):
        write_results("speed", {"step": float("nan")}, tmp_path)
    assert not (tmp_path / "speed.json").exists()


def test_a_copy_without_git_takes_the_commit_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(results_file, "ROOT", tmp_path)
    monkeypatch.delenv("WHET_COMMIT", raising=False)
    assert commit_of(tmp_path) == {"commit": "unknown"}
    monkeypatch.setenv("WHET_COMMIT", "abc1234")
    assert commit_of(tmp_path) == {"commit": "abc1234"}
    assert json.loads(write_results("a", {}, tmp_path).read_text())["commit"] == "abc1234"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_changed_code_is_dirty_and_a_changed_page_is_not(tmp_path, monkeypatch):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    monkeypatch.setenv("WHET_COMMIT", "from-outside")
    git("init")
    for name in ("code.py", "README.md", "results/a.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    assert set(commit_of(tmp_path)) == {"commit"} and commit_of(tmp_path)["commit"] != "from-outside"
    for name in ("README.md", "results/a.json"):
        (tmp_path / name).write_text("2")
    assert "dirty" not in commit_of(tmp_path)
    (tmp_path / "code.py").write_text("2")
    assert commit_of(tmp_path)["dirty"] is True
    # a folder within a checkout is not that checkout
    assert commit_of(tmp_path / "results") == {"commit": "from-outside"}


def test_a_script_that_measures_a_part_is_not_older_than_a_change_elsewhere(tmp_path):
    record = json.loads(write_results("part", {"x": 1}, tmp_path, measured=("reward/sandbox", "types.py")).read_text())
    assert list(record["code"]) == ["reward/sandbox", "types.py"] and not results_file.has_changed(record)
    for part in ("reward/sandbox", "types.py", "gone.py"):
        assert results_file.has_changed({"code": {**record["code"], part: "another"}})
    with pytest.raises(ValueError, match="reward/sandbx"):
        write_results("part", {"x": 1}, tmp_path, measured=("reward/sandbx",))


def test_words_without_a_folder_stay():
    assert [bare(each) for each in ("--parts", "grpo,sft", "data/rows.jsonl", "/a/b", "--rows=/a/b")] == [
        *("--parts", "grpo,sft", "data/rows.jsonl", "b", "--rows=b"),
    ]


@for_every(sorted(RESULTS.glob("*.json")))
def test_every_results_file_says_where_it_is_from(path):
    found = json.loads(path.read_text())
    assert set(found) - {"dirty", "code"} == {"command", "date", "commit", "machine", "values"}
    assert found["command"].startswith("python ") and (RESULTS.parent / found["command"].split()[1]).is_file()
    assert re.fullmatch(r"[0-9a-f]{7,}|unknown", found["commit"])
    assert not re.search(r'[" =]/\w', path.read_text()), "a path of the machine"


def test_a_table_made_from_an_archive_keeps_where_and_when_its_runs_were_made(tmp_path):
    file = tmp_path / "old.json"
    file.write_text(
        json.dumps({"command": "a", "date": "2020-01-01", "commit": "1", "machine": "M", "values": {"x": 1}})
    )
    record = json.loads(write_results("old", {"x": 2}, tmp_path, archived=True).read_text())
    assert {key: record[key] for key in ("date", "commit", "machine", "values")} == {
        "date": "2020-01-01", "commit": "1", "machine": "M", "values": {"x": 2},
    }  # fmt: skip
    assert "code" not in record  # the code of today did not make these runs
    assert json.loads(write_results("old", {"x": 3}, tmp_path).read_text())["commit"] != "1"


def test_a_child_has_this_tree_and_the_packages_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["script's own folder", "elsewhere/site-packages", ""])
    paths = results_file.child_environment(MARK="1")["PYTHONPATH"].split(os.pathsep)
    assert paths == [str(results_file.ROOT / "src"), "elsewhere/site-packages"]
    assert results_file.child_environment(MARK="1")["MARK"] == "1"
