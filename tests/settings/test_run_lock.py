"""Of several processes that want one folder one gets it, and nobody removes what he did not make."""

import fcntl
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whet.record.run_folder import NO_LOCKS, is_locked, locked, write_atomically
from whet.training.config import resolved
from whet.training.saved_config import claimed_folder, read_config
from whet.types import WhetError

processes = multiprocessing.get_context("fork")


def hold(folder: str, notes: Path, name: str, start: float, seconds: float, cwd: Path | None) -> None:
    """Claim the folder at the given time, hold it for a while with data in it, and fail before a run begins."""
    os.chdir(cwd or notes)
    config = resolved("sft", {"folder": folder})
    time.sleep(max(0, start - time.time()))
    try:
        with claimed_folder(config, rows=[{"prompt": name}]) as (place, _):
            began = time.time()
            (notes / f"{name}.claimed").write_text(str(place))
            time.sleep(seconds)
            assert name in (place / "data.jsonl").read_text()
            (notes / f"{name}.held").write_text(f"{began} {time.time()}")
            raise WhetError("a mistake before the run began")
    except WhetError as error:
        (notes / f"{name}.told").write_text(str(error))


def claim(
    folder: Path | str, notes: Path, name: str, start: float = 0, seconds: float = 0.2, cwd: Path | None = None
) -> multiprocessing.Process:
    process = processes.Process(target=hold, args=(str(folder), notes, name, start, seconds, cwd))
    process.start()
    return process


def killed_start(folder: Path, notes: Path) -> None:
    """A process that claimed the folder, wrote its rows there and was killed."""
    process = claim(folder, notes, "first", seconds=60)
    while not (notes / "first.claimed").exists():
        assert process.is_alive()
        time.sleep(0.01)
    assert is_locked(folder)
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def test_twenty_at_once_take_turns_and_leave_nothing(tmp_path):
    folder, start = tmp_path / "runs" / "one", time.time() + 0.5
    for process in [claim(folder, tmp_path, f"process-{number}", start) for number in range(20)]:
        process.join()
        assert process.exitcode == 0
    held = [tuple(map(float, note.read_text().split())) for note in tmp_path.glob("*.held")]
    assert held and len(held) == len(list(tmp_path.glob("*.claimed")))  # the data of each stayed its own to the end
    refused = f"{folder}: another process is training there; wait for it, or give another folder"
    told = sorted(note.read_text() for note in tmp_path.glob("*.told"))
    assert told == sorted(["a mistake before the run began"] * len(held) + [refused] * (20 - len(held)))
    for (_, end), (begin, _) in itertools.pairwise(sorted(held)):
        assert end <= begin  # never two at a time
    assert not folder.exists() or not list(folder.iterdir())


def test_without_a_name_each_process_gets_a_folder_of_its_own(tmp_path):
    start = time.time() + 0.5
    for process in [claim("", tmp_path, f"process-{number}", start, 1.0, tmp_path) for number in range(20)]:
        process.join()
    assert {note.read_text() for note in tmp_path.glob("*.told")} == {"a mistake before the run began"}
    by_folder: dict[str, list[tuple[float, ...]]] = {}
    for note in tmp_path.glob("*.held"):
        folder = note.with_suffix(".claimed").read_text()
        by_folder.setdefault(folder, []).append(tuple(map(float, note.read_text().split())))
    assert sum(map(len, by_folder.values())) == 20
    for held in by_folder.values():  # a number is free again once its run has failed
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(sorted(held)))
    assert not list(tmp_path.glob("runs/*"))


def test_a_folder_that_another_start_takes_back_meanwhile_is_made_again(tmp_path, monkeypatch):
    """Two commands at once, and the first one to make `runs` is a mistake."""
    plain, taken = Path.mkdir, []
    folder = tmp_path / "runs" / "one"
    folder.parent.mkdir()

    def mkdir(path, *arguments, **options):
        if path == folder and not taken:
            folder.parent.rmdir()
            taken.append(path)
        plain(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(WhetError, match="a mistake"), claimed_folder(resolved("sft", {"folder": str(folder)})):
        assert taken and is_locked(folder)
        raise WhetError("a mistake")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("nobody takes a file back"))
    with (
        pytest.raises(WhetError, match=r"cannot write the run there \(Not a directory\)"),
        claimed_folder(resolved("sft", {"folder": str(tmp_path / "file")})),
    ):
        pass


def test_a_refused_process_leaves_the_first_one_alone_and_a_third_is_refused_too(tmp_path):
    folder = tmp_path / "run"
    with claimed_folder(resolved("sft", {"folder": str(folder)}), rows=[{"prompt": "mine"}]) as (place, _):
        for _ in range(2):
            with (
                pytest.raises(WhetError, match="another process"),
                claimed_folder(resolved("sft", {"folder": str(folder)}), rows=[{"prompt": "theirs"}]),
            ):
                pass
            assert (place / "lock").exists() and "mine" in (place / "data.jsonl").read_text() and is_locked(place)


def test_what_was_there_before_stays(tmp_path):
    (tmp_path / "data.jsonl").write_text("mine\n")
    for _ in range(2):
        with (
            pytest.raises(WhetError, match="not empty and not a run"),
            claimed_folder(resolved("sft", {"folder": str(tmp_path)}), rows=[{"prompt": "theirs"}]),
        ):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]
        assert (tmp_path / "data.jsonl").read_text() == "mine\n"


def test_a_start_that_was_killed_leaves_a_folder_that_can_be_used_again(tmp_path):
    folder = tmp_path / "run"
    killed_start(folder, tmp_path)
    assert (folder / "data.jsonl").exists() and not is_locked(folder)
    with pytest.raises(WhetError, match="killed before it began; start it again with the same command"):
        read_config(folder)
    with claimed_folder(resolved("sft", {"folder": str(folder)})) as (place, _):
        assert [path.name for path in place.iterdir()] == ["lock"]


def test_a_file_of_the_user_in_a_killed_start_is_not_removed(tmp_path):
    folder = tmp_path / "run"
    killed_start(folder, tmp_path)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(WhetError, match="not empty"), claimed_folder(resolved("sft", {"folder": str(folder)})):
        pass
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_run_that_lost_its_config_keeps_the_rest(tmp_path):
    folder = tmp_path / "run"
    with claimed_folder(resolved("sft", {"folder": str(folder)}), rows=[{"prompt": "mine"}]) as (place, _):
        (place / "config.toml").write_text('method = "sft"\n')
        (place / "metrics.jsonl").touch()
    (folder / "config.toml").unlink()
    with pytest.raises(WhetError, match="not empty"), claimed_folder(resolved("sft", {"folder": str(folder)})):
        pass
    assert "mine" in (folder / "data.jsonl").read_text()
    with pytest.raises(WhetError, match="not a run folder"):
        read_config(folder)


def lock_and_fork(folder: Path) -> None:
    with locked(folder):
        if not os.fork():  # a worker that outlives the run
            (folder / "forked").touch()
            time.sleep(3)
            os._exit(0)
        time.sleep(60)


def test_a_child_does_not_keep_the_lock_of_a_killed_run(tmp_path):
    process = processes.Process(target=lock_and_fork, args=(tmp_path,))
    process.start()
    while not (tmp_path / "forked").exists():
        time.sleep(0.01)
    assert is_locked(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not is_locked(tmp_path)


def test_looking_at_a_run_does_not_refuse_the_next_one(tmp_path):
    """`whet runs` holds a lock for an instant; a run that starts in that instant waits for it."""
    (tmp_path / "lock").touch()
    look = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH); print(); time.sleep(0.2)"
    process = subprocess.Popen([sys.executable, "-uc", look, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    process.stdout.readline()
    with locked(tmp_path):
        assert is_locked(tmp_path)
    process.communicate()


def test_a_file_system_without_locks_is_refused_unless_the_user_says_so(tmp_path, monkeypatch, caplog):
    def unsupported(file, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with pytest.raises(WhetError, match=f"no file locks.*Operation not supported.*{NO_LOCKS}=1"), locked(tmp_path):
        pass
    assert not is_locked(tmp_path)
    monkeypatch.setenv(NO_LOCKS, "1")
    with locked(tmp_path):
        pass
    assert "not locked" in caplog.text


def test_a_folder_that_may_only_be_read_can_be_looked_at(tmp_path):
    with locked(tmp_path):
        os.chmod(tmp_path / "lock", 0o444)
        assert is_locked(tmp_path)
    os.chmod(tmp_path, 0o555)
    try:
        assert not is_locked(tmp_path)
    finally:
        os.chmod(tmp_path, 0o755)


def test_two_writers_of_one_file_do_not_share_what_they_write(tmp_path: Path) -> None:
    file, partial = tmp_path / "run.json", tmp_path / ".run.json"
    with partial.open("wb") as other:  # in the middle of its write
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"half")
        other.flush()
        write_atomically(file, "whole")
        assert file.read_text() == "whole" and partial.read_bytes() == b"half"
        assert sorted(tmp_path.iterdir()) == [partial, file]
    write_atomically(file, "next")  # what a killed writer left is written over
    assert file.read_text() == "next" and list(tmp_path.iterdir()) == [file]


def test_a_file_is_whole_before_it_gets_its_name(tmp_path: Path, monkeypatch) -> None:
    file, plain, moved = tmp_path / "stage.json", os.replace, []

    def replace(source, target):
        moved.append(Path(source).read_text())
        plain(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write_atomically(file, "whole")
    assert moved == ["whole"]


def test_a_writer_that_comes_as_another_one_ends_leaves_its_file_alone(tmp_path: Path, monkeypatch) -> None:
    file, partial, plain = tmp_path / "run.json", tmp_path / ".run.json", fcntl.flock

    def late(opened, operation):
        monkeypatch.setattr(fcntl, "flock", plain)
        os.replace(partial, tmp_path / "published")  # the other one's, which both have open
        plain(opened, operation)

    partial.write_text("theirs")
    monkeypatch.setattr(fcntl, "flock", late)
    write_atomically(file, "mine")
    assert (tmp_path / "published").read_text() == "theirs" and file.read_text() == "mine"
