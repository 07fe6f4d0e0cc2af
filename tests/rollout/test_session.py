"""Conversations through a session: the tokens of each turn computed from scratch, and nothing computed twice."""

import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
import transformers

from whet.model.causal_lm import causal_lm
from whet.model.fused_decode import FusedDecoder
from whet.model.ring_decode import RingDecoder, RowState
from whet.model.token_logp import token_logp
from whet.protocols import Session
from whet.rollout import torch_engine
from whet.rollout.buffer_decode import BufferBackend
from whet.rollout.decode_session import DecodeSession
from whet.rollout.session import BatchSession, open_session
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sampling, SessionShape, StopReason, WhetError

SMALL = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256},
}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=8),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=9),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=9),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, head_dim=8, sliding_window=9),
}
PROMPTS = [(5, 9, 11), (7, 8, 3, 4, 60, 61, 62, 63, 64, 65), (12,), (5, 9, 11, 2)]
ENDS = tuple(range(0, 97, 12))
SHAPE = SessionShape(conversations=64, prompt_tokens=10, growth=90)
GAP = 2e-4  # between log-probabilities of differently shaped passes; a wrong key shows as a thousand times that


class Letters:
    """A tokenizer stand-in: token n is one character."""

    def decode(self, tokens, skip_special_tokens=False):
        return "".join(chr(40 + token) for token in tokens)


def model_of(family):
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).eval()
    with torch.no_grad():  # spread the logits, or every choice is a near tie
        for parameter in model.parameters():
            parameter.mul_(3.0)
    model.config._name_or_path = family  # as if read from a checkpoint: what was tried on it holds for every copy
    return model


def engine_of(model, ends=ENDS, **settings):
    return TorchEngine(causal_lm(model), Letters(), ends, context=256, **settings)


def answer(number, turn, sample):
    """Of the environment: between nothing and twelve tokens; None where the episode is over."""
    if turn >= 2 + number % 3:
        return None
    return tuple((int(sample.tokens[-1]) + 13 * number + 7 * each) % 97 for each in range((5 * number + turn) % 13))


def requests_of(groups=(3, 2, 4, 1)):
    prompts = [prompt for prompt, size in zip(PROMPTS, groups, strict=True) for _ in range(size)]
    return [Request(tokens, 1000 * number) for number, tokens in enumerate(prompts)]


def next_request(request, number, turn, sample):
    added = answer(number, turn, sample)
    if added is None:
        return None
    return replace(request, tokens=(*sample.tokens.tolist(), *added), seed=request.seed + turn)


def from_scratch(engine, requests, sampling):
    """Each turn's samples by conversation, every turn of all of them in one batch with no memory."""
    written = [[] for _ in requests]
    now = dict(enumerate(requests))
    while now:
        samples = engine.generate([replace(request, continues=None) for request in now.values()], sampling)
        later = {}
        for (number, request), sample in zip(now.items(), samples, strict=True):
            written[number].append(sample)
            following = next_request(request, number, len(written[number]), sample)
            if following is not None:
                later[number] = following
        now = later
    return written


@cache
def plainly_written(family, fast):
    """What many ways of writing are held against, written once."""
    return from_scratch(engine_of(model_of(family), fast=fast), requests_of(), Sampling(max_new_tokens=14))


def through(session, requests, release=True, delay=0, ahead=0):
    """The same through a session; an answer comes `delay` looks later, for some conversations twice that. Behind every
    `ahead` of them what is there is read."""
    written = [[] for _ in requests]
    of, asked = {}, {}
    waiting = []  # (look, number, request)
    for number, request in enumerate(requests):
        session.add(number, request)
        of[number], asked[number] = number, request
    fresh, look = len(requests), 0
    while waiting or not session.is_idle:
        look += 1
        due = [each for each in waiting if each[0] <= look or session.is_idle]
        waiting = [each for each in waiting if each not in due]
        for _, number, request in due:
            of[fresh], asked[fresh] = number, request
            session.add(fresh, request)
            fresh += 1
            if ahead and not fresh % ahead:
                session.read_ahead()
        for ticket, sample in session.advance():
            number = of[ticket]
            written[number].append(sample)
            following = next_request(asked[ticket], number, len(written[number]), sample)
            if following is not None:
                waiting.append((look + delay * (1 + number % 2), number, replace(following, continues=ticket)))
            elif release:
                session.release(ticket)
    return written


def assert_equal(found, expected):
    assert [len(turns) for turns in found] == [len(turns) for turns in expected]
    for mine, theirs in zip(found, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.action.tolist() == other.action.tolist()
            assert (one.stop, one.completion) == (other.stop, other.completion)
            torch.testing.assert_close(one.behavior_logp, other.behavior_logp, rtol=0, atol=GAP)


def by_path(family, path, monkeypatch):
    """An engine of the model that takes the path, and a small batch's decoder on it."""
    if path == "fused":
        monkeypatch.setattr(FusedDecoder, "suited", lambda self, shape: self)
    if path == "hooked":
        refused = torch_engine.NotDescribed("not now")
        monkeypatch.setattr(torch_engine, "fused_decoder", lambda base: refused)
    return engine_of(model_of(family), fast=path != "own", rows_per_batch=16)


PATHS = [
    *(("llama", path) for path in ("rows", "fused", "hooked", "own")),
    *(("qwen3", path) for path in ("rows", "fused")),
    *(("mistral", path) for path in ("fused", "hooked", "own")),
    *(("gpt2", "hooked"), ("gemma3", "hooked"), ("gemma2", "own")),
]
QUICK = [
    *(("llama", path) for path in ("rows", "fused", "hooked")),
    *(("qwen3", "rows"), ("mistral", "fused"), ("gemma3", "hooked"), ("gemma2", "own")),
]


@pytest.mark.parametrize(
    ("family", "path"), [path if path in QUICK else pytest.param(*path, marks=pytest.mark.slow) for path in PATHS]
)
def test_a_session_writes_what_each_turn_from_scratch_would(family, path, monkeypatch):
    """Groups, ragged turns, ends, answers that come at once or late; the log-probabilities are the trainer's too."""
    sampling, lm = Sampling(max_new_tokens=14), causal_lm(model_of(family))
    expected = plainly_written(family, fast=False)
    engine = by_path(family, path, monkeypatch)
    for delay in (0, 5):
        with engine.session(sampling, SHAPE) as session:
            assert isinstance(session, Session)
            assert isinstance(session, BatchSession if path == "own" else DecodeSession)
            if path in ("rows", "fused"):
                assert isinstance(session._backend._decoder, RingDecoder if path == "rows" else FusedDecoder)
                assert isinstance(session._backend._state, RowState) is (path == "rows")
            written = through(session, requests_of(), delay=delay)
            assert session.is_idle and session.advance() == []
        assert_equal(written, expected)
    samples = [sample for turns in written for sample in turns]
    assert len({sample.num_actions for sample in samples}) > 5
    assert {sample.stop for sample in samples} == {StopReason.END, StopReason.LENGTH}
    for turns in written:
        whole = turns[-1].tokens
        action = torch.zeros(len(whole), dtype=torch.bool)
        logp = torch.zeros(len(whole))
        for sample in turns:
            action[: len(sample.tokens)] |= sample.action
            logp[: len(sample.tokens)] += sample.behavior_logp
        torch.testing.assert_close(token_logp(lm, whole[None], action[None]).logp[0], logp, rtol=0, atol=GAP)


def test_a_run_opens_a_session_over_batches_where_a_model_has_no_other():
    engine = engine_of(model_of("llama"), fast=False)
    with open_session(engine, Sampling(max_new_tokens=4), SHAPE, turns=3) as session:
        session.add(0, Request(PROMPTS[0], 1))
        assert [number for number, _ in session.advance()] == [0] and session.is_idle


@pytest.mark.parametrize("delay", [0, 4])
def test_nothing_is_computed_twice(delay):
    """Tokens through prefill, chunks and steps: each prompt once for its group, each later token once for its row."""
    with engine_of(model_of("llama")).session(Sampling(max_new_tokens=14), SHAPE) as session:
        found = through(session, requests_of(), delay=delay)
        counts = session.counts
    prompts = [request.tokens for request in requests_of()]
    # the last token of a conversation is never read
    behind = sum(len(turns[-1].tokens) - len(prompt) - 1 for turns, prompt in zip(found, prompts, strict=True))
    assert counts.prefilled == sum(map(len, set(prompts)))
    assert counts.extended + counts.stepped == behind
    later = sum(len(turns) - 1 for turns in found)
    assert (counts.continued, counts.evicted, counts.recomputed) == (later, 0, 0) and later > 8
    # a chunk holds the last token of the turn before, and the answer
    answers = sum(int((~turn.action).sum()) - len(before.tokens) for turns in found for before, turn in pairs(turns))
    assert counts.extended == answers + later


def pairs(turns):
    return list(itertools.pairwise(turns))


def branches_of(sample, ticket):
    """Several completions from one state, and other answers to it; the first takes over the row."""
    tokens = tuple(sample.tokens.tolist())
    answers = [tuple(range(20, 40)), tuple(range(20, 40)), (*range(20, 33), 5), (*range(20, 40), 41, 42), (7, 8)]
    return [
        Request((*tokens, *added), 77 * number, continues=ticket if not number else None)
        for number, added in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("family", "path"),
    [("llama", "rows"), ("llama", "hooked"), ("mistral", "fused"), ("gemma3", "hooked")],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_branches_copy_what_another_row_has_read(family, path, at_once, monkeypatch):
    sampling, prompt = Sampling(max_new_tokens=14), PROMPTS[1]
    engine = by_path(family, path, monkeypatch)
    with engine.session(sampling, SHAPE) as session:
        session.add(0, Request(prompt, 3))
        (sample,) = (written for _ in range(40) for _, written in session.advance())
        asked = branches_of(sample, 0)
        before, found = replace(session.counts), {}
        for number, request in enumerate(asked, 1):
            session.add(number, request)
            while not at_once and number not in found:
                found |= dict(session.advance())
        while not session.is_idle:
            found |= dict(session.advance())
        counts = session.counts - before
    expected = engine.generate([replace(request, continues=None) for request in asked], sampling)
    assert_equal([[found[number] for number in sorted(found)]], [expected])
    read = sum(len(request.tokens) - len(prompt) for request in asked)
    held = len(sample.tokens) - len(prompt) - 1
    assert held < 16 and counts.prefilled == 0 and counts.continued == 1
    # the last branch has too little in common with the others behind the prompt
    assert counts.extended + counts.forked + held == read and counts.forked >= 3 * (held + 13)
    assert counts.extended <= 21 + (1 + 1 + 1 + 8) + (held + 3) + (0 if at_once else 1)


@pytest.mark.parametrize(
    ("family", "path"),
    [("llama", "rows"), ("qwen3", "rows"), ("llama", "hooked"), ("mistral", "fused"), ("gemma3", "hooked")],
)
def test_prompts_that_begin_alike_are_read_once(family, path, monkeypatch):
    """Behind each other, behind what rows have written, and behind prompts that nobody asks for any more."""
    sampling, shape = Sampling(max_new_tokens=14), SessionShape(6, 90, 40)
    engine = by_path(family, path, monkeypatch)
    system = tuple(range(20, 60))
    asked = [(*system, 5, 6, 7), (*system, 5, 6, 8, 9), (*system, 5, 6, 8, 9), (*system, 70), (3, 4, *system)]
    requests = [Request(tokens, 31 * number) for number, tokens in enumerate(asked)]
    with engine.session(sampling, shape) as session:

        def written(first, asked):
            found = {}
            for number, request in enumerate(asked, first):
                session.add(number, request)
            while not session.is_idle:
                found |= dict(session.advance())
            return [found[number] for number in sorted(found)]

        found = written(0, requests)
        assert session.counts.prefilled == len(system) + 3 + 4 + 1 + len(asked[-1])  # two tokens are no node
        longest = max(range(5), key=lambda number: len(found[number].tokens))
        spoken = tuple(found[longest].tokens.tolist())
        before = replace(session.counts)
        # three completions behind one answer to what a row has written: the answer is read, and its last token
        later = [Request((*spoken, 11, 12, 13), 7 * number) for number in range(3)]
        found += written(5, later)
        assert (session.counts - before).prefilled == 1 + 3 and (session.counts - before).extended == 0
        for number in range(8):
            session.release(number)
        before = replace(session.counts)
        again = [replace(request, seed=request.seed + 5) for request in requests]
        found += written(8, again)
        assert (session.counts - before).prefilled < len(system)
        expected = engine.generate([*requests, *later, *again], sampling)
    assert_equal([found], [expected])


@pytest.mark.parametrize(("path", "numbers_of_rows"), [("rows", (1, 7)), ("fused", (3,)), ("hooked", (3,))])
def test_fewer_rows_than_conversations(path, numbers_of_rows, monkeypatch):
    """New ones wait, or take the row of one that waits for its answer; that is read anew, and nothing else changes."""
    sampling, model = Sampling(max_new_tokens=14), model_of("llama")
    expected = plainly_written("llama", fast=True)
    by_path("llama", path, monkeypatch)
    for rows in numbers_of_rows:
        engine = engine_of(model, rows_per_batch=rows)
        for delay in (0, 6):
            with engine.session(sampling, SHAPE) as session:
                assert_equal(through(session, requests_of(), delay=delay), expected)
                assert session.counts.evicted == session.counts.recomputed
                assert (session.counts.evicted > 0) is (delay > 0), (rows, delay)


def test_conversations_that_nobody_releases_make_room_when_it_is_needed():
    sampling, requests = Sampling(max_new_tokens=14), requests_of()
    expected = plainly_written("llama", fast=True)
    with engine_of(model_of("llama"), rows_per_batch=4).session(sampling, SHAPE) as session:
        assert_equal(through(session, requests, release=False), expected)
        assert session.counts.evicted > session.counts.recomputed


class RunsAhead(BufferBackend):
    """Buffers on a device that is given steps before what came of the last ones is read."""

    steps, behind, slots = 4, 1, 0

    def __init__(self, *args):
        super().__init__(*args)
        self.steps_per_look, self.looks_behind = self.steps, self.behind
        self.num_slots = self.slots or self.num_slots


@cache
def stopped():
    """A sampling that stops by texts and tokens, and what it writes."""
    plain = Sampling(14, temperature=2.0, top_k=30, keeps_support=True)
    engine = engine_of(model_of("llama"))
    free = [turn for turns in from_scratch(engine, requests_of(), plain) for turn in turns]
    long = [tokens for sample in free if len(tokens := sample.tokens[sample.action].tolist()) > 8]
    sampling = replace(plain, stop=(Letters().decode(long[0][5:7]), "~~"), stop_tokens=(tuple(long[-1][3:5]), (9,)))
    expected = from_scratch(engine, requests_of(), sampling)
    stops = {sample.stop for turns in expected for sample in turns}
    assert stops == {StopReason.END, StopReason.LENGTH, StopReason.TEXT}
    return sampling, expected


@pytest.mark.parametrize(
    ("path", "devices"),
    [("rows", [(1, 1, 3), (4, 0, 16), (9, 1, 16)]), ("fused", [(4, 1, 3), (9, 1, 16)])],
    ids=["rows", "fused"],
)
def test_stops_and_supports_on_a_device_that_runs_ahead(path, devices, monkeypatch):
    """Texts and sequences of tokens are noticed late: what was drawn behind them leaves nothing in the row."""
    (sampling, expected), model = stopped(), model_of("llama")
    by_path("llama", path, monkeypatch)
    for (steps, behind, rows), (delay, ahead) in itertools.product(devices, ((0, 0), (2, 0), (0, 2))):
        backend = type("Backend", (RunsAhead,), {"steps": steps, "behind": behind, "slots": 3})
        monkeypatch.setattr(torch_engine, "BufferBackend", backend)
        with engine_of(model, rows_per_batch=rows).session(sampling, SHAPE) as session:
            written = through(session, requests_of(), delay=delay, ahead=ahead)
        assert_equal(written, expected)
        for mine, theirs in zip(written, expected, strict=True):
            for one, other in zip(mine, theirs, strict=True):
                assert one.support.counts.tolist() == other.support.counts.tolist()
                assert one.support.ids.tolist() == other.support.ids.tolist()


def test_what_cannot_be_continued_is_read_anew():
    """Released, unknown, or with other tokens than were kept."""
    engine, sampling = engine_of(model_of("llama"), ends=()), Sampling(max_new_tokens=6)
    with engine.session(sampling, SHAPE) as session:
        session.add(0, Request((5, 9, 11), 1))
        ((_, first),) = drained(session)
        tokens = tuple(first.tokens.tolist())
        changed = (*tokens[:-1], (tokens[-1] + 1) % 97, 4)
        session.add(1, Request(changed, 2, continues=0))
        session.add(2, Request((*tokens, 4, 8), 3, continues=77))
        session.add(3, Request((*tokens, 4, 8), 4, continues=0))
        session.add(4, Request((*tokens, 4, 8), 5, continues=0))  # a second branch
        found = dict(drained(session))
        session.release(3)
        session.add(5, Request((*found[3].tokens.tolist(), 1), 6, continues=3))
        found |= dict(drained(session))
        assert (session.counts.continued, session.counts.recomputed) == (1, 4)
    alone = {
        number: Request(tuple(sample.tokens[~sample.action].tolist()), number + 1) for number, sample in found.items()
    }
    assert sorted(found) == [1, 2, 3, 4, 5]
    for number, request in alone.items():
        assert engine.generate([request], sampling)[0].tokens.tolist() == found[number].tokens.tolist()


def drained(session):
    found = []
    while not session.is_idle:
        found += session.advance()
    return found


def test_a_budget_of_its_own_and_a_prompt_that_is_still_held():
    engine, sampling = engine_of(model_of("llama"), ends=()), Sampling(max_new_tokens=6)
    with engine.session(sampling, SHAPE) as session:
        session.add(0, Request((5, 9, 11), 1, max_new_tokens=1))
        session.add(1, Request((5, 9, 11), 2, max_new_tokens=11))
        session.add(2, Request((5, 9, 11), 3))
        for _ in range(3):
            session.advance()
        session.add(3, Request((5, 9, 11), 4))
        found = dict(drained(session))
        assert session.counts.prefilled == 3
    assert [found[number].num_actions for number in sorted(found)] == [11, 6, 6] and 0 not in found
    requests = [Request((5, 9, 11), 1, max_new_tokens=1), Request((5, 9, 11), 2, max_new_tokens=11)]
    for fast in (True, False):
        batch = engine_of(model_of("llama"), ends=(), fast=fast).generate(requests, sampling)
        assert [sample.num_actions for sample in batch] == [1, 11]
        assert batch[1].tokens.tolist() == found[1].tokens.tolist()


def test_no_room_is_said_and_more_room_is_found_where_there_is_some():
    engine, sampling = engine_of(model_of("llama"), ends=()), Sampling(max_new_tokens=6)
    with engine.session(sampling, SessionShape(2, 20, 10)) as session:
        session.add(0, Request((5, 9, 11), 1))
        ((_, first),) = drained(session)
        # 3 and 10 tokens are too few, 20 and 10 are not
        request = Request((*first.tokens.tolist(), *range(10)), 2, continues=0)
        session.add(1, request)
        ((_, second),) = drained(session)
        assert session.counts.recomputed == 1
        with pytest.raises(WhetError, match="room of 20 and 10"):
            session.add(2, Request((5,) * 25, 1))
    assert second.tokens.tolist() == engine.generate([request], sampling)[0].tokens.tolist()
    with (
        engine.session(sampling, SessionShape(2, 300, 10)) as session,
        pytest.raises(WhetError, match="context of 256"),
    ):
        session.add(0, Request((5,) * 252, 1))


def test_a_session_leaves_the_model_as_it_was_and_generate_works_beside_it():
    model = model_of("llama").train()
    engine, sampling = engine_of(model, ends=()), Sampling(max_new_tokens=20)
    expected = engine.generate(requests_of(), sampling)
    with engine.session(sampling, SHAPE) as session:
        for number, request in enumerate(requests_of()):
            session.add(number, request)
        found = dict(session.advance())
        # in between, the model is the model, and another batch may be written
        before = model(torch.tensor([[5, 9, 11]])).logits
        engine.generate([Request((5, 9, 11) * 20, 3)], Sampling(max_new_tokens=30))
        found |= dict(drained(session))
        assert not model.training
    assert model.training and model.config._attn_implementation == "sdpa"
    assert torch.equal(before, model(torch.tensor([[5, 9, 11]])).logits)
    assert [found[number].tokens.tolist() for number in sorted(found)] == [each.tokens.tolist() for each in expected]


def test_the_path_of_a_session_is_said():
    sampling = Sampling(max_new_tokens=6)
    assert str(engine_of(model_of("llama")).session_path(sampling, SHAPE)) == "fused decoder"
    own = engine_of(model_of("gemma2")).session_path(sampling, SHAPE)
    assert own.kind == "the model's own forward and cache, conversations read from their beginning in every turn"
    assert "softcap" in own.reason
