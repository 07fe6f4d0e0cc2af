"""Kills, changed inputs, damaged and stolen folders: a cut of the corpus in CI, the whole of it in the slow group."""

import pytest

from benchmarks.trust.resume import (
    CHANGES,
    FREE,
    KINDS,
    WAYS,
    changed_input,
    damage_cases,
    damaged,
    free_setting,
    kill_and_resume,
    kill_failures,
    laboratory,
    other_directory,
    spread,
    taken_away,
)


@pytest.fixture(scope="module")
def lab():
    with laboratory() as lab:
        yield lab


def test_killed_before_some_of_its_file_system_events(lab):
    tried, failures = kill_failures(lab, "rl", 2)
    assert tried == 2 and not failures, failures
    # between the last save and its pruning, and between the report and the summary
    events = lab.reference("rl").events
    for event in ("rename run/checkpoints/.step-000001.removed", "rename run/run.json"):
        number = len(events) - events[::-1].index(event)
        assert not kill_and_resume(lab, "rl", number), event


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_before_every_file_system_event(lab, kind):
    tried, failures = kill_failures(lab, kind)
    assert tried > 100 and not failures, failures


@pytest.mark.slow
def test_killed_twice(lab):
    for number in spread(len(lab.reference("rl").events), 30, seed=1):
        assert not kill_and_resume(lab, "rl", number, then_at=20 + number % 40), number


@pytest.mark.parametrize("name", ["the reward's file"])
def test_an_input_that_changed(lab, name):
    assert not changed_input(lab, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_every_input_that_changed(lab, name):
    assert not changed_input(lab, name)


@pytest.mark.slow
@pytest.mark.parametrize("setting", FREE)
def test_settings_that_do_not_decide_the_training(lab, setting):
    assert not free_setting(lab, setting)


def test_from_another_working_directory(lab):
    assert not other_directory(lab)


@pytest.mark.parametrize("way", ["the folder is deleted", pytest.param("*", marks=pytest.mark.slow)])
def test_a_folder_taken_away_from_under_a_run(lab, way):
    for each in WAYS if way == "*" else [way]:
        assert not taken_away(lab, each), each


@pytest.mark.parametrize("most", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_damaged_folder(lab, most):
    cases = damage_cases(lab)
    for number in spread(len(cases), most or len(cases), seed=3):
        file, damage = cases[number - 1]
        assert not damaged(lab, file, damage, number % 3), (file, damage)
