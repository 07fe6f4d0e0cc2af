"""One session over several engines: who writes what, newer weights in the middle, and engines that break."""

from __future__ import annotations

import pickle
import time
from functools import partial

import pytest
import torch

from tests.rollout.test_session import Letters, model_of
from tests.support.local_pool import LocalPool
from tests.training.distributed.test_remote_engine import SAMPLING, VOCABULARY, Host, sample_for
from whet.model.causal_lm import causal_lm
from whet.rollout.torch_engine import TorchEngine
from whet.training.distributed.engine_host import AsyncProgress, EngineHost
from whet.training.distributed.remote_engine import RemoteEngine, RemoteSession, RequestShares
from whet.training.distributed.wire import packed_weights
from whet.training.distributed.workers import WorkerLost
from whet.types import Request, RunFailed, Sampling, SessionShape

SHAPE = SessionShape(24, 3, 4)
REQUESTS = {number: Request((number // 4, 2, 3), seed=number) for number in range(24)}  # six prompts, four each


def test_a_prompts_requests_go_together_to_the_engine_with_the_least():
    shares = RequestShares()
    for number, request in REQUESTS.items():
        shares.add(number, request)
    shares.share_out([], 4)
    assert shares.to_send(0) == []  # nobody is ready: they wait
    shares.share_out([0, 1], 4)
    sent = {engine: [number for number, _ in shares.to_send(engine)] for engine in (0, 1)}
    assert sent == {0: [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19], 1: [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]}
    for number in sent[1]:
        shares.finish(1, number)
    shares.add(24, Request((9,), 24))
    shares.share_out([0, 1], 4)
    assert [number for number, _ in shares.to_send(1)] == [24]


def test_what_a_lost_engine_had_not_finished_waits_again_and_nothing_else():
    shares = RequestShares()
    for number, request in REQUESTS.items():
        shares.add(number, request)
    shares.share_out([0, 1], 4)
    shares.to_send(0)
    shares.finish(0, 8)
    assert shares.take_back(0) == 11 and shares.take_back(0) == 0
    assert shares.request(0, 0) is None  # whatever it sends now counts for nothing
    shares.to_send(1)
    shares.share_out([1], 4)
    again = shares.to_send(1)
    assert [number for number, _ in again] == [0, 1, 2, 3, 9, 10, 11, 16, 17, 18, 19]
    assert all(request == REQUESTS[number] for number, request in again)  # with their seeds
    for number in set(REQUESTS) - {8}:
        shares.finish(1, number)
    assert shares.is_empty and shares.rewritten == 11


class WritingHost(Host):
    """Writes one request at each look; `breaks(host, finished)` may raise, or change what is sent."""

    def open(self, sampling, shape):
        self.waiting = []

    def exchange(self, requests):
        self.waiting += requests
        done, self.waiting = self.waiting[:1], self.waiting[1:]
        found = [(number, sample_for(request, self.version)) for number, request in done]
        written = AsyncProgress([pickle.dumps(found)], 0.1, 0.0, 0.0)
        return written if self.breaks is None else self.breaks(self, written)

    def shut(self):
        pass


def opened(count, breaks=None, pool=None, timeout=60.0):
    pool = pool or LocalPool()

    def start(number):
        return pool.start(f"engine {number}", partial(WritingHost, f"engine {number}", breaks))

    engines = RemoteEngine(pool, start, count, vocabulary=VOCABULARY, timeout=timeout)
    session = RemoteSession(engines, SAMPLING, SHAPE, VOCABULARY)
    engines._session = session
    session.load({"weight": torch.ones(2)}, 0)
    return engines, session, pool


def written(session, requests):
    for number, request in requests.items():
        session.add(number, request)
    found = []
    while not session.is_idle:
        found += session.advance()
    return found


def expect_all(found):
    assert sorted(number for number, _ in found) == sorted(REQUESTS)  # each once
    for number, sample in found:
        assert sample.tokens.tolist() == sample_for(REQUESTS[number]).tokens.tolist()


def test_every_engine_writes_and_newer_weights_are_stored_once():
    engines, session, pool = opened(3)
    expect_all(written(session, REQUESTS))
    assert [counts.requests for _, counts in engines.counts.values()] == [8, 8, 8]
    stored = len(pool.stored)
    session.load({"weight": torch.zeros(2)}, 1)
    assert len(pool.stored) == stored + 1
    assert {sample.versions for _, sample in written(session, REQUESTS)} == {(1, 1)}


@pytest.mark.parametrize("how", ["lost", "hangs", "quiet", "garbage", "twice"])
def test_what_an_engine_that_breaks_had_is_written_by_another_once(how, caplog):
    seen, broken = [], []

    def breaks(host, written):
        seen.append(host.name)
        if host.name != "engine 1" or seen.count("engine 1") != 4 or how == "hangs":
            return written
        broken.append(how)
        if how == "lost":
            raise WorkerLost("kill -9")
        if how == "quiet":
            return AsyncProgress([], 0.0, 0.0, 100.0)
        if how == "garbage":
            (number, sample), *_ = pickle.loads(written.finished[0])
            sample.behavior_logp[:] = float("nan")
            return AsyncProgress([pickle.dumps([(number, sample)])])
        return AsyncProgress(written.finished * 2)

    def hangs(name, method):
        if how != "hangs" or (name, method) != ("engine 1", "exchange") or seen.count("engine 1") != 4 or broken:
            return False
        broken.append(name)
        return True

    engines, session, _ = opened(2, breaks, LocalPool(hangs), timeout=0.3 if how == "hangs" else 60.0)
    expect_all(written(session, REQUESTS))
    assert broken and engines.counts["engine 1"][1].restarts == 1 and session.rewritten > 0
    causes = {"lost": "kill -9", "hangs": "no answer for", "quiet": "not written for 100 seconds"}
    assert {**causes, "garbage": "not finite", "twice": "nobody asked"}[how] in caplog.text


def test_the_last_engine_ends_the_run():
    def breaks(host, written):
        raise WorkerLost("bad memory")

    _, session, _ = opened(2, breaks)
    with pytest.raises(RunFailed, match=r"all 2 engines are lost; the last: engine . at here: bad memory"):
        written(session, REQUESTS)


def test_a_host_takes_weights_in_the_middle_and_writes_batches_between():
    torch.set_num_threads(1)
    policy = causal_lm(model_of("llama"))
    host = EngineHost(
        policy, lambda: TorchEngine(policy, Letters(), (), context=64, owns_weights=True), owns_weights=True
    )
    model = model_of("llama")
    beside = EngineHost(policy, lambda: TorchEngine(policy, Letters(), (), context=64, owns_weights=True))
    beside.open(Sampling(max_new_tokens=4), SessionShape(8, 4, 4))  # with the weights that the policy has
    (unasked,) = beside.generate([Request((5, 9, 11), 3)], Sampling(max_new_tokens=4)).samples
    assert unasked[1].versions == (0, 0)
    beside.shut()
    assert host.load(0, packed_weights(model.state_dict()))
    how = Sampling(max_new_tokens=40)
    before = host.generate([Request((5, 9, 11), 3)], how).samples
    host.open(how, SessionShape(8, 4, 40))
    host.exchange([(number, Request((5, 9, 11), number)) for number in range(4)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    found = []
    assert host.load(1, packed_weights(model.state_dict())) is None
    batch = host.generate([Request((5, 9, 11), 3)], how).samples  # behind the load, whatever is being written
    assert batch[0][1].versions == (1, 1) and before[0][1].versions == (0, 0)
    deadline = time.monotonic() + 60
    while len(found) < 4 and time.monotonic() < deadline:
        found += [each for part in host.exchange([]).finished for each in pickle.loads(part)]
    assert sorted(number for number, _ in found) == [0, 1, 2, 3]
    assert all(sample.versions[1] == 1 and sample.num_actions == 40 for _, sample in found)
    host.shut()
    with pytest.raises(RuntimeError, match="no session is open"):
        host.exchange([])
