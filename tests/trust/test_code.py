"""The corpus that attacks the reward for code."""

from __future__ import annotations

import sys

import pytest

from benchmarks.trust.code import (
    FORMS,
    is_code_found,
    is_suite_judged,
    loot_of,
    marks_of_right_programs,
    paid_forgeries,
    paid_object_forgeries,
    sections,
)
from whet.reward.code_tests import code_tests
from whet.reward.sandbox.pool import Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the attacks are Linux ones")

THIEVES, FORGERIES = sections("thieves.txt"), sections("forgeries.txt")
SUITES, REPLIES = sections("suites.txt"), sections("replies.txt")
SEARCH_MEMORY = ("frames up to the first one", "objects the collector knows", "own memory, page by page without a map")


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(1) as pool:
        yield pool


def test_thieves_find_nothing_of_other_jobs_or_of_the_tests(sandbox):
    assert [name for name, source in THIEVES.items() if loot_of(sandbox, source)] == []


@pytest.mark.parametrize("thief", SEARCH_MEMORY)
def test_a_thief_finds_what_lies_in_its_own_memory(sandbox, thief):
    assert len(loot_of(sandbox, THIEVES[thief], planted=True)) == 2


def judged(names: list[str]) -> list[str]:
    pytest.importorskip("pytest")
    reward = code_tests(seconds=2, workers=2)
    return [name for name in names if not is_suite_judged(reward, name, SUITES[name])]


def test_a_suite_runs_or_says_why_it_cannot():
    assert judged(list(SUITES)[::5]) == []


def test_no_forgery_is_paid():
    assert paid_forgeries(code_tests(seconds=1, workers=2), FORGERIES, {"unittest": FORMS["unittest"]}) == []


def test_right_programs_are_paid_in_full_and_forgeries_of_their_objects_are_not():
    reward = code_tests(seconds=4, workers=2)
    marks = marks_of_right_programs(reward, every=3)
    assert len(marks) > 20 and {name: mark for name, mark in marks.items() if mark != 1} == {}
    assert paid_object_forgeries(reward, every=3) == []


def test_honest_code_is_found_in_any_markdown():
    reward = code_tests(workers=2)
    assert [name for name, reply in REPLIES.items() if not is_code_found(reward, reply)] == []


@pytest.mark.slow
def test_the_whole_corpus():
    assert judged(list(SUITES)) == []
    reward = code_tests(seconds=4, workers=2)
    assert {name: mark for name, mark in marks_of_right_programs(reward).items() if mark != 1} == {}
    assert paid_object_forgeries(reward) == []
    assert paid_forgeries(code_tests(seconds=2, workers=2), FORGERIES, FORMS) == []


@pytest.mark.slow
@pytest.mark.parametrize("without", [("privilege",), ("namespaces",)])
def test_with_weaker_walls_too(without):
    with Sandbox(1, without=without) as pool:
        assert [name for name, source in THIEVES.items() if loot_of(pool, source)] == []
