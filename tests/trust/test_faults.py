"""Faults of a run, each in a process of its own: an exit code, one line, and a run folder that says what happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.trust.faults import KINDS, PLAIN, Fault, Forker, forker, survives


@pytest.fixture(scope="module")
def one() -> Iterator[Forker]:
    with forker() as found:
        yield found


def check(one: Forker, fault: Fault, folder: Path) -> None:
    outcome = survives(one, fault, folder)
    if outcome is None:
        pytest.skip("this machine cannot make the fault")
    assert not outcome.complaints, outcome.errors


# the faults that CI tries: one for each thing that catches them
IN_CI = ("os._exit(0)", "weights that are not finite", "SIGTERM in start-up", "full from event 30 on")


def faults(full: bool) -> list:
    found = [(f"{kind}: {fault.name}", fault) for kind, make in KINDS.items() for fault in make(full)]
    return [pytest.param(fault, id=name) for name, fault in found if full or fault.name in IN_CI]


@pytest.mark.parametrize("fault", faults(full=False))
def test_a_fault_ends_in_one_line(one, fault, tmp_path):
    check(one, fault, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults(full=True))
def test_every_fault_ends_in_one_line(one, fault, tmp_path):
    check(one, fault, tmp_path)


@pytest.mark.slow
def test_a_fault_that_is_not_survived_is_noticed(one, tmp_path):
    """The measure itself: a run that ends well is no answer to a fault that should stop it."""
    outcome = survives(one, Fault("none", PLAIN, said="nothing like it"), tmp_path)
    assert outcome is not None
    assert outcome.complaints == [
        "exit code 0, not 1",
        "nothing said like 'nothing like it'",
        "status 'finished', not 'failed'",
    ]
