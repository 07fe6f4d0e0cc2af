"""What a reward leaves behind is said by its name, and nobody else's memory is."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from whet.reward import journal


@pytest.fixture
def memory(monkeypatch):
    """The process as it grows: by a gigabyte with every look."""
    looks = iter(range(100))
    monkeypatch.setattr(journal, "_memory", lambda: 10**9 * next(looks))
    for kept in (journal._grown, journal._calls, journal._reported):
        monkeypatch.setattr(journal, next(name for name, value in vars(journal).items() if value is kept), type(kept)())


def judge_thrice():
    for _ in range(3):
        with journal.remarks("greedy"):
            pass


def test_a_reward_that_keeps_memory_is_named(memory, caplog):
    with caplog.at_level(logging.WARNING):
        judge_thrice()
    assert "reward 'greedy' has grown the process by 2.0 GB in 3 calls" in caplog.text


def test_what_grows_beside_a_reward_is_not_laid_at_its_door(memory, caplog):
    """Judged behind a rollout: the process grows by pages of the rollout and of a save."""
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(1) as lane:
        lane.submit(judge_thrice).result()
    assert not caplog.text
