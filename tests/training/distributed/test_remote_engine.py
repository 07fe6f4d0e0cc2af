"""Engines elsewhere: dispatch by load, results in order, and what happens to engines that break."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.for_every import for_every
from tests.support.local_pool import LocalPool
from whet.training.distributed.engine_host import WrittenPiece
from whet.training.distributed.remote_engine import MOST_RESTARTS, RemoteEngine, pieces, wrong_with
from whet.training.distributed.wire import load_weights, packed_samples, packed_weights, unpacked_samples
from whet.training.distributed.workers import WorkerLost
from whet.types import Request, RunFailed, Sample, Sampling, StopReason, Support, WhetError

SAMPLING = Sampling(max_new_tokens=4)
VOCABULARY = 100


def sample_for(request: Request, version: int = 0) -> Sample:
    """Tokens that depend on the request alone, as those of a seeded engine do."""
    start = len(request.tokens)
    fresh = [(request.seed * 7 + place) % VOCABULARY for place in range(3)]
    return Sample(
        tokens=torch.tensor([*request.tokens, *fresh]),
        action=torch.arange(start + 3) >= start,
        behavior_logp=torch.cat([torch.zeros(start), torch.full((3,), -0.5)]),
        versions=(version, version),
        stop=StopReason.END,
        completion=str(fresh),
    )


class Host:
    """An `EngineHost` without a model; `breaks(host, requests)` may raise, or change what is sent."""

    def __init__(self, name, breaks=None):
        self.name, self.breaks, self.version, self.loaded = name, breaks, 0, []

    def load(self, version, *weights):
        self.version = version
        self.loaded += weights

    def generate(self, requests, sampling):
        found = packed_samples([sample_for(each, self.version) for each in requests])
        if self.breaks is not None:
            found = self.breaks(self, found)
        return WrittenPiece(found, 0.0)


def engines(count, breaks=None, pool=None, **options):
    pool = pool or LocalPool()

    def start(number):
        return pool.start(f"engine {number}", lambda: Host(f"engine {number}", breaks))

    engine = RemoteEngine(pool, start, count, vocabulary=VOCABULARY, timeout=options.pop("timeout", 60.0), **options)
    engine.load({"weight": torch.ones(2)}, 0)
    return engine, pool


REQUESTS = [Request((prompt, 2, 3), seed=10 * prompt + number) for prompt in range(6) for number in range(4)]


def tokens(samples):
    return [each.tokens.tolist() for each in samples]


def test_results_come_in_the_order_of_the_requests_whoever_wrote_them():
    expected = tokens(map(sample_for, REQUESTS))
    for count in (1, 2, 5):
        engine, _ = engines(count)
        assert tokens(engine.generate(REQUESTS, SAMPLING)) == expected


def test_groups_stay_together_and_every_engine_gets_its_share():
    for count in (2, 3, 6):
        found = pieces(REQUESTS, SAMPLING, count)
        assert [number for piece in found for number in piece] == list(range(len(REQUESTS)))
        assert [len(piece) for piece in found] == [24 // count] * count
        for piece in found:
            prompts = [REQUESTS[number].tokens for number in piece]
            assert all(prompts.count(each) == 4 for each in prompts)


def test_one_prompt_is_split_where_engines_would_idle_and_many_rows_make_more_pieces():
    alone = [Request((1,), seed) for seed in range(8)]
    assert pieces(alone, SAMPLING, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    many = [Request((row // 8,), row) for row in range(1024)]
    assert len(pieces(many, SAMPLING, 2)) == 8
    assert pieces([], SAMPLING, 2) == []


def test_a_long_prompt_weighs_more():
    mixed = [Request((1,) * 97, 0), *[Request((place,), place) for place in range(2, 22)]]
    assert pieces(mixed, Sampling(max_new_tokens=4), 2)[0] == [0]


def test_weights_are_stored_once_and_arrive_everywhere():
    engine, pool = engines(3)
    stored = len(pool.stored)
    engine.load({"weight": torch.full((2,), 5.0)}, 7)
    assert len(pool.stored) == stored + 1
    assert {each.versions for each in engine.generate(REQUESTS, SAMPLING)} == {(7, 7)}
    assert all(counts.loads == 2 and counts.weight_bytes == 16 for _, counts in engine.counts.values())


def test_frozen_weights_travel_once_and_reach_an_engine_that_is_started_again():
    broken = []

    def breaks(host, found):
        if not broken:
            broken.append(host)
            raise WorkerLost("killed")
        return found

    weights = {"base": torch.ones(100), "adapter": torch.ones(2)}
    pool = LocalPool()
    hosts = []

    def start(number):
        def make():
            hosts.append(Host(str(number), breaks))
            return hosts[-1]

        return pool.start(str(number), make)

    engine = RemoteEngine(pool, start, 2, vocabulary=VOCABULARY, timeout=60, frozen=frozenset({"base"}))
    engine.load(weights, 0)
    engine.load(weights, 1)
    assert [set(each.names) for each in pool.stored] == [{"base", "adapter"}, {"adapter"}]
    engine.generate(REQUESTS, SAMPLING)
    engine.generate(REQUESTS, SAMPLING)
    assert len(hosts) == 3
    assert [set(each.names) for each in hosts[2].loaded] == [{"base", "adapter"}, {"adapter"}]


@pytest.mark.parametrize("how", ["lost", "hangs", "garbage"])
def test_requests_of_an_engine_that_breaks_are_written_by_another(how, caplog):
    broken = []

    def breaks(host, found):
        if host.name == "engine 1" and not broken and how != "hangs":
            broken.append(host)
            if how == "lost":
                raise WorkerLost("kill -9")
            found[0][0]["behavior_logp"] = found[0][0]["behavior_logp"] * float("nan")
        return found

    def hangs(name, method):
        if how != "hangs" or (name, method) != ("engine 1", "generate") or broken:
            return False
        broken.append(name)
        return True

    engine, _ = engines(2, breaks, LocalPool(hangs), timeout=0.2)
    assert tokens(engine.generate(REQUESTS, SAMPLING)) == tokens(map(sample_for, REQUESTS))
    assert broken and engine.counts["engine 1"][1].restarts == 1
    cause = {"lost": "kill -9", "hangs": "no answer for 0.2 seconds", "garbage": "not finite"}[how]
    assert cause in caplog.text
    assert tokens(engine.generate(REQUESTS, SAMPLING)) == tokens(map(sample_for, REQUESTS))


def test_an_engine_that_always_breaks_is_left_out_and_the_last_one_ends_the_run():
    def one(host, found):
        if host.name == "engine 1":
            raise WorkerLost("bad memory")
        return found

    engine, pool = engines(2, one)
    for _ in range(MOST_RESTARTS + 2):
        assert tokens(engine.generate(REQUESTS, SAMPLING)) == tokens(map(sample_for, REQUESTS))
    assert len([each for each in pool.workers if each.name == "engine 1"]) == 1 + MOST_RESTARTS

    def every(host, found):
        raise WorkerLost("bad memory")

    engine, _ = engines(2, every)
    with pytest.raises(RunFailed, match=r"all 2 engines are lost; the last: engine . at here: bad memory"):
        engine.generate(REQUESTS, SAMPLING)


def test_a_mistake_of_the_user_is_told_as_it_is():
    def breaks(host, found):
        raise WhetError("a prompt is too long")

    engine, pool = engines(2, breaks)
    with pytest.raises(WhetError, match="a prompt is too long"):
        engine.generate(REQUESTS, SAMPLING)
    assert len(pool.workers) == 2


def changed(sample, **changes):
    return dataclasses.replace(sample, **changes)


@for_every(
    [
        (lambda s: None, "not a sample"),
        (lambda s: changed(s, tokens=s.tokens[None]), "not int64"),
        (lambda s: changed(s, tokens=s.tokens.float()), "not int64"),
        (lambda s: changed(s, action=s.action[:-1]), "its action mask is bool"),
        (lambda s: changed(s, action=~s.action), "is not the completion"),
        (lambda s: changed(s, behavior_logp=s.behavior_logp[1:]), "its log-probabilities are"),
        (lambda s: changed(s, behavior_logp=s.behavior_logp * float("nan")), "not finite"),
        (lambda s: changed(s, behavior_logp=-s.behavior_logp), "more than 0"),
        (lambda s: changed(s, tokens=s.tokens + 1), "does not begin with the prompt"),
        (lambda s: changed(s, tokens=torch.cat([s.tokens[:-1], torch.tensor([VOCABULARY])])), "the token 100"),
        (lambda s: changed(s, tokens=torch.cat([s.tokens[:-1], torch.tensor([-1])])), "of a vocabulary of 100"),
        (lambda s: changed(s, versions=(3, 3)), "policy version 3 wrote it"),
    ]
)
def test_what_a_completion_may_not_be(change, complaint):
    request = REQUESTS[5]
    assert wrong_with(sample_for(request), request, SAMPLING, VOCABULARY, 0) == ""
    assert complaint in wrong_with(change(sample_for(request)), request, SAMPLING, VOCABULARY, 0)


def test_too_many_tokens_or_none_are_wrong():
    request = Request((1, 2), 0, max_new_tokens=2)
    assert "3 new tokens; 1 to 2" in wrong_with(sample_for(request), request, SAMPLING, VOCABULARY, 0)
    bare = sample_for(request)
    bare = changed(bare, tokens=bare.tokens[:2], action=bare.action[:2], behavior_logp=bare.behavior_logp[:2])
    assert "0 new tokens" in wrong_with(bare, request, SAMPLING, VOCABULARY, 0)


def test_weights_arrive_bit_for_bit_tied_ones_once():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[2].weight = model[1].weight
    model.small = torch.nn.Parameter(torch.randn(5).bfloat16())
    packed = packed_weights(model.state_dict())
    assert packed.num_bytes == 4 * (9 + 9 + 3 + 3) + 10
    other = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    other[2].weight = other[1].weight
    other.small = torch.nn.Parameter(torch.zeros(5).bfloat16())
    assert not torch.equal(other.small, model.small)
    load_weights(other, packed)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="the model has no such weight"):
        load_weights(torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False)), packed)


def test_samples_travel_unchanged():
    plain = sample_for(REQUESTS[0])
    truncated = changed(plain, support=Support(torch.tensor([1, 2], dtype=torch.int32), torch.tensor([2])))
    for sent, came in zip([plain, truncated], unpacked_samples(packed_samples([plain, truncated])), strict=True):
        for name in ("tokens", "action", "behavior_logp"):
            assert torch.equal(getattr(sent, name), getattr(came, name))
            assert getattr(sent, name).dtype == getattr(came, name).dtype
        assert (sent.stop, sent.completion, sent.versions) == (came.stop, came.completion, came.versions)
    assert torch.equal(came.support.ids, truncated.support.ids)
