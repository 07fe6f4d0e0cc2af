"""Kills, changed inputs, damaged and stolen folders: every run is killed or changed and resumed, so all are slow."""

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

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab():
    with laboratory() as lab:
        yield lab


@pytest.mark.parametrize("kind", KINDS)
def test_killed_before_every_file_system_event(lab, kind):
    tried, failures = kill_failures(lab, kind)
    assert tried > 100 and not failures, failures


def test_killed_twice(lab):
    for number in spread(len(lab.reference("rl").events), 30, seed=1):
        assert not kill_and_resume(lab, "rl", number, then_at=20 + number % 40), number


@pytest.mark.parametrize("name", CHANGES)
def test_every_input_that_changed(lab, name):
    assert not changed_input(lab, name)


@pytest.mark.parametrize("setting", FREE)
def test_settings_that_do_not_decide_the_training(lab, setting):
    assert not free_setting(lab, setting)


def test_from_another_working_directory(lab):
    assert not other_directory(lab)


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_taken_away_from_under_a_run(lab, way):
    assert not taken_away(lab, way)


def test_a_damaged_folder(lab):
    cases = damage_cases(lab)
    for number in spread(len(cases), len(cases), seed=3):
        file, damage = cases[number - 1]
        assert not damaged(lab, file, damage, number % 3), (file, damage)
