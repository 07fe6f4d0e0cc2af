"""Hostile programs in the sandbox: nothing escapes, and the worker goes on. CI tries a few, the slow group all."""

from __future__ import annotations

import sys

import pytest

from benchmarks.trust.sandbox import LEVELS, Outcome, hostile_programs, run_level, run_programs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the attacks are Linux ones")

# one or two of each kind, those that ended badly once among them
SMALL_CUT = (
    *("reading: open a secret", "reading: the parent's environment", "reading: attributes of a file"),
    *("writing: delete the folder", "writing: permissions", "writing: times", "writing: attributes"),
    *("cleaning: a link to the canary is left behind", "cleaning: folders nested a thousand deep"),
    *("network: connect by TCP", "network: send from one of a pair of datagram sockets"),
    *("signals: to everybody", "signals: by a descriptor with number 0", "signals: by the kernel, for input"),
    *("processes: a daemon stays", "privilege: rare system calls", "privilege: new namespaces"),
    *("memory: shared, in eight processes", "memory: shared, of the zero device", "memory: pages given to pipes"),
    *("output: messages of the sandbox itself", "descriptors: garbage into all of them", "interpreter: crash"),
)


def test_the_corpus_is_large_and_its_titles_are_unique():
    programs = hostile_programs()
    titles = [f"{each.kind}: {each.name}" for each in programs]
    assert len(programs) >= 140 and len(set(titles)) == len(titles) and set(SMALL_CUT) <= set(titles)
    for each in programs:
        compile(each.source, each.name, "exec")


def assert_held(outcomes: list[Outcome] | str) -> None:
    if isinstance(outcomes, str):
        pytest.skip(outcomes)
    assert not {f"{each.kind}: {each.name}": each.broken for each in outcomes if each.broken}


def test_a_small_cut_is_held_without_namespaces():
    assert_held(
        run_level("landlock", [each for each in hostile_programs() if f"{each.kind}: {each.name}" in SMALL_CUT])
    )


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_every_program_is_held_at_every_level(level):
    assert_held(run_level(level, hostile_programs()))


def test_an_escape_would_be_noticed():
    """The judge of the corpus itself: harmless programs that do what an escape would look like."""
    programs = [each for each in hostile_programs() if each.name in ("open a secret", "leave without a word")]
    loud = [type(each)(each.kind, each.name, "escaped('out')\nprint(open('/dev/null').read())") for each in programs]
    outcomes, _ = run_programs([*loud, *programs])
    assert [bool(each.broken) for each in outcomes] == [True, True, False, False]
    assert outcomes[0].broken == ["out"]
