"""A session in a process of its own: newer weights reach it, and its end is noticed."""

import multiprocessing
import multiprocessing.synchronize
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.rollout.test_session import GAP, Letters, model_of
from whet.model.causal_lm import causal_lm
from whet.model.token_logp import token_logp
from whet.rollout.torch_engine import TorchEngine
from whet.training.distributed import background
from whet.training.distributed.background import EngineLost, ProcessSession
from whet.types import Request, Sampling, SessionShape

FORK = multiprocessing.get_context("fork")
HOW = Sampling(max_new_tokens=40)
SHAPE = SessionShape(8, 4, 40)


def open_small(slow=0.0):
    torch.set_num_threads(1)
    engine = TorchEngine(causal_lm(model_of("llama")), Letters(), (), context=64, owns_weights=True)
    session = engine.session(HOW, SHAPE)
    if slow:
        advance = session.advance
        session.advance = lambda: (time.sleep(slow), advance())[1]
    return session


def test_newer_weights_arrive_in_the_middle_and_a_killed_process_is_told(monkeypatch):
    # what it imports is here already; that a process of its own can be started anew is tested below
    monkeypatch.setattr(background.multiprocessing, "get_context", lambda _: FORK)
    model = model_of("llama")
    first = {name: value.clone() for name, value in model.state_dict().items()}
    session = ProcessSession(partial(open_small, 0.02), model.state_dict())
    try:
        session.load(first, 0)
        for number in range(4):
            session.add(number, Request((5, 9, 11), 70 + number))
        while not session._taken.is_set():  # it has begun
            time.sleep(0.01)
        time.sleep(0.3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.2)
        session.load(model.state_dict(), 1)
        found = []
        while not session.is_idle:
            found += session.advance()
        assert sorted(number for number, _ in found) == [0, 1, 2, 3]
        before = model_of("llama")
        for _, sample in found:
            assert sample.versions == (0, 1) and sample.num_actions == 40
            for version, policy in enumerate((before, model)):
                here = sample.action & (sample.token_versions == version)
                logp = token_logp(causal_lm(policy), sample.tokens[None], sample.action[None]).logp[0]
                assert here.any() and (logp - sample.behavior_logp)[here].abs().max() < GAP
        session.add(9, Request((5, 9, 11), 7))
        os.kill(session._process.pid, signal.SIGKILL)
        with pytest.raises(EngineLost, match="exit code -9"):
            while True:
                session.advance()
    finally:
        session.close()


def test_a_session_that_cannot_be_opened_says_why(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("semaphores: a resource tracker that is killed forgets them, and says so in tracebacks")

    monkeypatch.setattr(multiprocessing.synchronize.SemLock, "__init__", refuse)
    session = ProcessSession(partial(int, "no such device"), {})  # which the new process finds without importing tests
    session.add(0, Request((5,), 1))
    with pytest.raises(EngineLost, match="no such device"):
        while True:
            session.advance()
    session.close()


@pytest.mark.slow
def test_the_process_ends_with_a_killed_run():
    program = (
        "import time\n"
        "from tests.training.distributed.test_background import ProcessSession, open_small, model_of\n"
        "if __name__ == '__main__':\n"
        "    session = ProcessSession(open_small, model_of('llama').state_dict())\n"
        "    session.load(model_of('llama').state_dict(), 0)\n"
        "    print(session._process.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    root = Path(__file__).parents[3]  # a program of -c finds what lies where it runs
    run = subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True)
    child = int(run.stdout.readline())
    run.kill()
    run.wait()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the engine outlived its run")
