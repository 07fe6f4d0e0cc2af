"""Kills, changed inputs, damaged and stolen folders, in processes of their own.

All of it is slow. With every commit tests/training/test_kill.py kills and resumes a run, test_resume_rows.py compares
what a resumed run goes on to, and tests/cli/test_bad_input.py damages a checkpoint.
"""

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


def test_killed_between_two_effects_that_belong_together(lab):
    """Between the last save and its pruning, and between the report and the summary."""
    events = lab.reference("rl").events
    for event in ("rename run/checkpoints/.step-000001.removed", "rename run/run.json"):
        number = len(events) - events[::-1].index(event)
        assert not kill_and_resume(lab, "rl", number), event


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
    for number, (file, damage) in enumerate(damage_cases(lab), 1):
        assert not damaged(lab, file, damage, number % 3), (file, damage)
