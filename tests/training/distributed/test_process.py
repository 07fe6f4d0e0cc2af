"""A process is ended only where it is known to be the one that was meant."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace

import pytest

from whet.training.distributed.launch import ProcessPlace, _started


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def place_of(process: subprocess.Popen[bytes]) -> ProcessPlace:
    return replace(ProcessPlace.here(), number=process.pid, started=_started(process.pid))


def test_a_process_of_this_machine_is_ended_after_the_wait(sleeper):
    place = ProcessPlace.from_words(json.loads(json.dumps(place_of(sleeper).words())))
    assert place.is_running() and not place.has_ended()
    assert place.end(0.1)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert place.has_ended() and not place.end(0.0)


def test_one_that_ends_by_itself_is_not_killed(sleeper):
    place = place_of(sleeper)
    sleeper.terminate()
    assert not place.end(60.0)  # though its parent has not collected it
    assert sleeper.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("other", [{"machine": "another"}, {"machine": ""}, {"started": "1"}])
def test_another_process_with_the_same_number_is_left_alone(sleeper, other):
    place = replace(place_of(sleeper), **other)
    assert not place.is_running() and not place.end(0.0)
    assert place.has_ended() == ("started" in other)
    assert sleeper.poll() is None
