"""`pytest --workers N`: every test is run once, and what workers report, or die of, is told."""

from pathlib import Path

from tests.support.commands import finished
from tests.support.workers import Stock

SCRIPT = """import sys
import pytest

sys.modules.pop("tests.support.commands", None)  # no test here starts one
sys.exit(pytest.main(["--workers", "2", "-p", "no:cacheprovider", "--basetemp", "base", "."]))
"""
CONFTEST = "from tests.conftest import pytest_addoption, pytest_configure, pytest_runtestloop\n"
TESTS = """import os, signal, warnings
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def session():
    yield
    with open("ended", "a") as file:
        print(os.getpid(), file=file)

@pytest.mark.parametrize("number", range(4))
def test_fine(number, session, tmp_path):
    with open("ran", "a") as file:
        print(os.getpid(), tmp_path, file=file)

def test_wrong(session):
    print("said before")
    warnings.warn("take care")
    assert 1 == 2

def test_dies(session):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_reports_of_copies_are_one_report_and_nothing_goes_unsaid(tmp_path):
    for name, text in (("script.py", SCRIPT), ("conftest.py", CONFTEST), ("test_some.py", TESTS)):
        (tmp_path / name).write_text(text)
    command = finished("script.py", folder=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert command.returncode == 1 and f"2 failed, {len(ran)} passed, 1 warning" in command.stdout
    for part in ("assert 1 == 2", "said before", "take care", "test_dies - the worker that ran this test ended wit"):
        assert part in command.stdout
    assert len({folder for _, folder in ran}) == len(ran)
    # where one worker had ended when the other died
    assert len(ran) == 4 or f"{4 - len(ran)} tests were not run" in command.stdout
    processes = {process for process, _ in ran}
    assert len(processes) == 1 or (tmp_path / "ended").read_text().strip() in processes


def test_every_test_is_handed_out_once_and_files_stay_together():
    files = [Path(name) for name in "aaabbbbccccccdd"]
    stock = Stock(files, 2)
    taken = {0: [stock.take(0)], 1: [stock.take(1)]}
    assert taken == {0: [0], 1: [13]}  # the half would begin within c
    taken[1] += [stock.take(1), stock.take(1)]
    assert taken[1] == [13, 14, 7]  # then half of what the other one has left, from a file on
    while (number := stock.take(0)) is not None:
        taken[0].append(number)
    assert sorted(taken[0] + taken[1]) == [*range(len(files))]
    stock.put_back(3)
    assert stock.left() == 1 and stock.take(1) == 3
