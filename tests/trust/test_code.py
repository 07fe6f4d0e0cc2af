"""The corpus that attacks the reward for code."""

from __future__ import annotations

import sys

import pytest

from benchmarks.trust.code import loot_of, sections
from whet.sandbox import Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the attacks are Linux ones")

THIEVES = sections("thieves.txt")
SEARCH_MEMORY = (
    "frames up to the first one",
    "objects the collector knows",
    "own memory, page by page without a map",
)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(1) as pool:
        yield pool


@pytest.mark.parametrize("thief", THIEVES)
def test_a_thief_finds_nothing_of_other_jobs_or_of_the_tests(sandbox, thief):
    assert loot_of(sandbox, THIEVES[thief]) == []


@pytest.mark.parametrize("thief", SEARCH_MEMORY)
def test_a_thief_finds_what_lies_in_its_own_memory(sandbox, thief):
    assert len(loot_of(sandbox, THIEVES[thief], planted=True)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("without", [("privilege",), ("namespaces",)])
def test_with_weaker_walls_too(without):
    with Sandbox(1, without=without) as pool:
        assert [name for name, source in THIEVES.items() if loot_of(pool, source)] == []
