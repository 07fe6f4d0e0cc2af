"""TRL's documented ways to write rewards and configs, run through whet with TRL's own classes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers.peer import PACKAGES, PeerMissing, install

pytestmark = pytest.mark.peers
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    try:
        folder = install(PACKAGES["trl"])
    except PeerMissing as reason:
        pytest.skip(str(reason))
    repository = HERE.parents[1]
    # whet's own packages come first: of TRL's folder only what is not there is used
    paths = (repository / "src", repository, folder)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(HERE / "trl_migration_side.py"), str(tmp_path_factory.mktemp("runs"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_no_two_settings_are_taken_for_one(answers):
    assert answers["collisions"] == []


def test_batches_have_the_sizes_that_trl_computes(answers):
    assert len(answers["sizes"]) == 20
    assert all(drawn == ours and updated == our_update for drawn, ours, updated, our_update in answers["sizes"])


def test_rewards_that_do_not_apply_are_summed_as_trl_sums_them(answers):
    theirs, ours = answers["sums"]
    assert ours == pytest.approx(theirs) and ours.count(None) == 2 and len(set(ours)) > 2


def test_the_quick_start_and_the_mixture_of_tasks_train(answers):
    trained = answers["trained"]
    assert trained["status"] == ["finished", "finished"] and trained["unmapped"] == [{}, {}, {}]
    assert trained["logged"] == [0.0, 1.0] and trained["extra"] == ["letters"]
    assert "accuracy_reward" in trained["own"] and "think_format_reward" in trained["own"]
