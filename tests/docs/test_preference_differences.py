"""The gaps that docs/differences.md states between whet's preference methods and those that equal a peer's."""

import re
from pathlib import Path

import pytest

from tests.support.preference_batches import random_rows
from whet.objective.axes import with_changes
from whet.objective.preference.batch import pair_totals
from whet.objective.presets.preference import PAIR_PRESETS

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
# the page's word: whet's method, the method that equals the peer's and its changes
METHODS = {
    "IPO": ("ipo", "ipo_mean", {}),
    "SimPO": ("simpo", "simpo", {"imitate": "per_token"}),
    "Label smoothing": ("cdpo", "dpo", {}),
    "BCO": ("bco", "bco", {"anchor": "zero"}),
}


def stated():
    """{bold word of a line: its gap}"""
    section = PAGE.read_text().partition("## Preferences")[2]
    found = {}
    for line in section.split("\n- ")[1:]:
        name = re.match(r"\*\*(.+?)\*\*", line)
        gap = re.search(r"Gap\s+([\d.]+\d)", line)
        if name and gap:
            found[name.group(1)] = float(gap.group(1))
    return found


def gradient(name, changes):
    objective = with_changes(PAIR_PRESETS[name].objective, changes)
    batch, logp, extras = random_rows(0)
    totals, _ = objective.anchored(pair_totals(batch), objective.anchor_sums(batch, logp), {})
    return objective.grad(batch, logp, totals, extras)[0]


def test_every_gap_has_its_methods():
    assert set(stated()) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_gap_is_what_the_page_says(name):
    own, other, changes = METHODS[name]
    mine, theirs = gradient(own, {}), gradient(other, changes)
    assert mine.norm() > 1e-4
    assert float((theirs - mine).norm() / mine.norm()) == pytest.approx(stated()[name], rel=6e-3)
