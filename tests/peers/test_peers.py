"""whet's loss layer beside its peers' installed packages: equal where they mean the same, measured elsewhere."""

import inspect
import re
from pathlib import Path

import pytest

from tests.peers import compare_advantages, compare_counting, compare_critic, compare_losses
from tests.peers.compared import MEASURED, SAME, gap
from tests.peers.peer import PACKAGES

TOPICS = (compare_losses, compare_counting, compare_advantages, compare_critic)  # importing one lists its comparisons
PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


def tables():
    """Each table row of the page as {column: cell}."""
    header = None
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            header = None
        elif header is None:
            header = cells
        elif not set(line) <= set("|-: "):
            yield dict(zip(header, cells, strict=True))


def named(cell):
    return re.findall(r"`(\w+)`", cell)


def stated():
    """What the page says was measured: {test: number}."""
    rows = [each for each in tables() if "measured" in each]
    return {named(each["test"])[0]: float(re.search(r"\d[\d.]*(e-?\d+)?", each["measured"]).group()) for each in rows}


def asked(request, function):
    """The running peers a function wants, by the names of its parameters."""
    return {name: request.getfixturevalue(name) for name in inspect.signature(function).parameters}


def test_the_page_lists_every_comparison_once():
    listed = [name for each in tables() for name in named(each["test"])]
    assert sorted(listed) == sorted([*SAME, *MEASURED])
    assert set(stated()) == set(MEASURED)
    assert {function.__module__ for function in MEASURED.values()} == {topic.__name__ for topic in TOPICS}


def test_the_page_names_the_versions():
    for package in PACKAGES.values():
        assert f"{package.name} {package.version}" in PAGE.read_text().lower()


@pytest.mark.peers
@pytest.mark.parametrize("name", [name for name in PACKAGES if name != "lm_eval"])  # its script answers once and ends
def test_the_version_that_answers_is_the_one_stated(request, name):
    assert request.getfixturevalue(name)("version")["version"] == PACKAGES[name].version


@pytest.mark.peers
@pytest.mark.parametrize("name", SAME)
def test_same(request, name):
    function, tolerance = SAME[name]
    theirs, ours = function(**asked(request, function))
    assert gap(theirs, ours) < tolerance


@pytest.mark.peers
@pytest.mark.parametrize("name", MEASURED)
def test_different_by_what_the_page_says(request, name):
    found = MEASURED[name](**asked(request, MEASURED[name]))
    assert found == pytest.approx(stated()[name], rel=6e-3, abs=1e-12)
