"""Newer weights in the middle of writing: each token is that of the weights it is said to be of, and none is lost."""

import copy

import torch

from tests.rollout.test_session import ENDS, FAMILIES, GAP, PROMPTS, Letters, engine_of, model_of
from tests.support.for_every import for_every
from whet.model.causal_lm import causal_lm
from whet.model.token_logp import token_logp
from whet.protocols import Session
from whet.rollout.sampling import uniforms
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sampling, SessionShape, StopReason

SHAPE = SessionShape(conversations=8, prompt_tokens=10, growth=40)


def policies(family, count=3):
    """Models that disagree clearly."""
    made = []
    for number in range(count):
        model = model_of(family)
        stream = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * number * torch.randn(parameter.shape, generator=stream) * parameter.std())
        made.append(model)
    return made


def own_copy(model, ends=ENDS, **settings):
    return TorchEngine(causal_lm(copy.deepcopy(model)), Letters(), ends, context=256, owns_weights=True, **settings)


def written(models, sampling, requests, loads, ends=ENDS, **settings):
    """Samples by number; `loads` are calls of `advance` after which the next weights come."""
    engine = own_copy(models[0], ends, **settings)
    engine.load(models[0].state_dict(), 0)
    found, calls, version = {}, 0, 0
    with engine.session(sampling, SHAPE) as session:
        assert isinstance(session, Session)
        for number, request in enumerate(requests):
            session.add(number, request)
        while not session.is_idle:
            for number, sample in session.advance():
                assert number not in found
                found[number] = sample
            calls += 1
            if calls in loads:
                version += 1
                session.load(models[version % len(models)].state_dict(), version)
    assert sorted(found) == list(range(len(requests)))
    return [found[number] for number in range(len(requests))]


def versions_of(sample):
    if sample.token_versions is None:
        assert sample.versions[0] == sample.versions[1]
        return torch.full_like(sample.tokens, sample.versions[0], dtype=torch.int32)
    return sample.token_versions


def requests_of(copies=3):
    return [Request(tokens, 100 * row + each) for row, tokens in enumerate(PROMPTS) for each in range(copies)]


@for_every([name for name in FAMILIES if name != "gemma2"])
def test_each_part_is_that_of_the_weights_that_wrote_it(family):
    models = policies(family)
    samples = written(models, Sampling(max_new_tokens=14), requests_of(2), loads=(2, 5), ends=(0, 48))
    cuts = [causal_lm(model) for model in models]
    mixed, told_apart, parts = 0, 0, 0
    for request, sample in zip(requests_of(2), samples, strict=True):
        versions = versions_of(sample)
        assert versions.dtype == torch.int32 and versions.shape == sample.tokens.shape
        assert sample.tokens[: len(request.tokens)].tolist() == list(request.tokens)
        assert sample.versions == (int(versions.min()), int(versions.max()))
        assert (versions.diff() >= 0).all()
        mixed += len(versions.unique()) > 1
        assert (sample.behavior_logp[~sample.action] == 0).all()
        for version in versions[sample.action].unique().tolist():
            own, other = (
                token_logp(lm, sample.tokens[None], sample.action[None]).logp[0]
                for lm in (cuts[version], cuts[(version + 1) % 3])
            )
            here = sample.action & (versions == version)
            assert (own - sample.behavior_logp)[here].abs().max() < GAP
            told_apart += bool((other - sample.behavior_logp)[here].abs().max() > 100 * GAP)
            parts += 1
    assert mixed > 4
    assert told_apart > 0.9 * parts, "the test could not have seen the wrong weights"


def test_the_random_stream_goes_on():
    """With the same weights loaded again, nothing changes but who is said to have written."""
    models = policies("llama", 1)
    sampling = Sampling(max_new_tokens=24)
    plain = written(models, sampling, requests_of(), loads=())
    broken = written(models, sampling, requests_of(), loads=(1, 2, 5, 6, 13))
    for a, b in zip(plain, broken, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist() and a.stop == b.stop
        assert torch.allclose(a.behavior_logp, b.behavior_logp, atol=GAP)
    assert any(sample.versions == (0, 5) for sample in broken)
    assert {sample.versions for sample in plain} == {(0, 0)}


def test_few_rows_wait_and_are_not_lost():
    models = policies("llama", 1)
    sampling = Sampling(max_new_tokens=17)
    plain = written(models, sampling, requests_of(), loads=())
    broken = written(models, sampling, requests_of(), loads=(3, 9, 20), rows_per_batch=4)
    assert [each.tokens.tolist() for each in plain] == [each.tokens.tolist() for each in broken]


def test_what_could_be_drawn_is_told_for_every_part():
    models = policies("llama", 1)
    sampling = Sampling(max_new_tokens=20, top_k=5, keeps_support=True)
    plain = written(models, sampling, requests_of(), loads=())
    broken = written(models, sampling, requests_of(), loads=(4, 11))
    for a, b in zip(plain, broken, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert a.support.counts.tolist() == b.support.counts.tolist()
        assert a.support.ids.tolist() == b.support.ids.tolist()
        assert len(b.support.counts) == b.num_actions


def test_a_stop_that_begins_before_the_new_weights_is_seen():
    models = policies("llama", 1)
    requests = requests_of(1)
    free = written(models, Sampling(max_new_tokens=20), requests, loads=(), ends=())
    text = Letters().decode(free[0].tokens[len(requests[0].tokens) :].tolist())
    at = next(place for place in range(4, 15) if text.index(text[place : place + 4]) == place)
    sampling = Sampling(max_new_tokens=20, stop=(text[at : at + 4],))
    plain = written(models, sampling, requests, loads=(), ends=())
    assert plain[0].stop is StopReason.TEXT and plain[0].num_actions == at + 4
    for load in range(at, at + 5):  # in the middle of those four tokens, wherever a look falls
        broken = written(models, sampling, requests, loads=(load,), ends=())
        assert [each.tokens.tolist() for each in broken] == [each.tokens.tolist() for each in plain]
        assert [each.stop for each in broken] == [each.stop for each in plain]


def test_conversations_that_are_kept_are_read_again():
    """The second turn, after other weights came, is that of those weights on the whole conversation."""
    models = policies("llama")
    engine = own_copy(models[0])
    sampling = Sampling(max_new_tokens=8)
    with engine.session(sampling, SHAPE) as session:
        session.add(0, Request(PROMPTS[0], 5))
        found = []
        while not session.is_idle:
            found += session.advance()
        first = found[0][1]
        session.load(models[1].state_dict(), 1)
        more = (*first.tokens.tolist(), 3, 4)
        session.add(1, Request(more, 6, continues=0))
        while not session.is_idle:
            found += session.advance()
    second = found[1][1]
    assert (first.versions, second.versions) == ((0, 0), (1, 1))
    assert session.counts.recomputed == 1
    own = token_logp(causal_lm(models[1]), second.tokens[None], second.action[None]).logp[0]
    assert (own - second.behavior_logp)[second.action].abs().max() < GAP


def test_an_engine_that_cannot_go_on_takes_weights_between_batches():
    models = policies("llama")
    samples = written(models, Sampling(max_new_tokens=8), requests_of(1), loads=(1,), fast=False)
    assert {sample.versions for sample in samples} == {(0, 0)}


def test_a_request_may_begin_in_the_middle_of_its_stream():
    """What another engine was interrupted in: the rest is drawn as it would have been."""
    engine = engine_of(model_of("llama"), ends=())
    whole = engine.generate([Request(PROMPTS[0], 9)], Sampling(max_new_tokens=12))[0]
    cut = tuple(whole.tokens[:8].tolist())
    rest = engine.generate([Request(cut, 9, max_new_tokens=7, drawn=5)], Sampling(max_new_tokens=7))[0]
    assert rest.tokens.tolist() == whole.tokens.tolist()
    assert uniforms([3, 4], 6)[:, 2:].tolist() == uniforms([3, 4], 4, [2, 2]).tolist()
