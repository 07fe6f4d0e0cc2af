"""What the CUDA backend keeps books on, without a device: graphs are plain calls, kernels plain torch."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers

import whet.model
from tests.support.conversations import played, prompts_of, short_answers
from whet.model.causal_lm import causal_lm
from whet.model.cuda_step import workspace
from whet.model.hooked_decode import hooked_decoder
from whet.model.lora import LowRank, adapter_factors, add_adapters
from whet.model.token_logp import token_logp
from whet.rollout import cuda_decode, torch_engine
from whet.rollout.cuda_decode import GraphBackend, graph_backend
from whet.rollout.sampling import draw, kept_tokens, uniforms
from whet.rollout.scheduler import StopRule
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sampling, SessionShape

SMALL = {
    **{"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
}


@dataclass(frozen=True)
class Heads:
    num_heads: int
    num_key_heads: int
    size: int
    scale: float
    epsilon: float
    tables: Any
    norms: Any


def add_norm(x, y, weight, epsilon, out):
    if y is not None:
        x.add_(y)
    out.copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight)


def gated(gate_up, out):
    gate, up = gate_up.chunk(2, -1)
    out.copy_(F.silu(gate) * up)


def attention(qkv, rows, heads, prompts, own, shares, out):
    """Row by row; nothing is kept of a row that is done, and a long prompt is read for its members only."""
    size, half, fresh = heads.size, heads.size // 2, heads.num_key_heads
    every = qkv.view(len(qkv), -1, size)
    cosine, sine = (table[rows[0]][:, None] for table in heads.tables)
    turned = every * cosine + torch.cat([-every[..., half:], every[..., :half]], -1) * sine
    every = torch.cat([turned[:, :-fresh], every[:, -fresh:]], 1)
    lengths, members = prompts.lengths.tolist(), prompts.members.tolist()
    for row, (written, slot) in enumerate(zip(rows[1].tolist(), prompts.slot.tolist(), strict=False)):
        query, *newest = every[row].split([heads.num_heads, fresh, fresh])
        seen = slot >= 0 and (shares is None or row in members[slot])
        length, held = lengths[slot] if seen else 0, []
        for prompt, mine, new in zip((prompts.keys, prompts.values), own, newest, strict=True):
            if written >= 0:
                mine[row, :, written] = new
            held.append(torch.cat([prompt[slot, :, :length], mine[row, :, : max(0, written)], new[:, None]], 1))
        groups = heads.num_heads // fresh > 1
        mixed = F.scaled_dot_product_attention(
            query[None, :, None], held[0][None], held[1][None], scale=heads.scale, enable_gqa=groups
        )
        out[row] = mixed.flatten()


def begin(rows, starts, read, embedding, context, out):
    position, written, uniform, residual = out
    here = slice(0, len(residual))
    written.copy_(read[here] + rows.cursor[here] - rows.first[here] - 1).masked_fill_(rows.done[here], -1)
    position.copy_((starts[here] + written).clamp_(0, context - 1))
    uniform.copy_(rows.random[rows.cursor[here]])
    residual.copy_(embedding[rows.last[here]])


def sample(logits, uniform, sampling, rows, ring=None):
    drawn, here = draw(logits, uniform, sampling), slice(0, len(logits))
    cursor, done = rows.cursor[here], rows.done[here]
    count = cursor - rows.first[here]
    rows.tokens[cursor], rows.logp[cursor], rows.last[here] = drawn.token, drawn.logp, drawn.token
    ended = (cursor >= rows.final[here]) | (drawn.token[:, None] == rows.ends).any(-1)
    cursor += ~done
    done |= ended
    if ring is not None:
        kept = kept_tokens(logits.float() / sampling.temperature, sampling)
        for row, place in enumerate((count % ring.ids.shape[1]).tolist()):
            ids = kept[row].nonzero()[:, 0]
            ring.ids[row, place, : len(ids)] = ids
            ring.counts[row, place] = len(ids)


def fields(*names):
    return lambda *values: SimpleNamespace(**dict(zip(names, values, strict=True)))


@pytest.fixture
def no_device(monkeypatch):
    kernels = SimpleNamespace(
        Heads=Heads,
        PromptCache=fields("keys", "values", "lengths", "members", "slot"),
        PromptShares=fields("top", "mass", "mixed"),
        SupportRing=fields("ids", "counts"),
        prompt_shares=lambda *_: None,
        attention=attention,
        begin=begin,
        sample=sample,
    )
    for name, module in (
        ("decode_kernels", kernels),
        ("layer_kernels", SimpleNamespace(add_norm=add_norm, gated=gated)),
    ):
        monkeypatch.setitem(sys.modules, f"whet.model.{name}", module)
        monkeypatch.setattr(whet.model, name, module, raising=False)

    def graph(self):
        key = (self._active, self._parts)
        if key not in self._graphs:
            self._graphs[key] = (None, workspace(self._weights, *key))
        return SimpleNamespace(replay=lambda: self._step(self._graphs[key][1]))

    monkeypatch.setattr(GraphBackend, "_graph", graph)
    monkeypatch.setattr(GraphBackend, "_kept_bytes", 1 << 34)
    monkeypatch.setattr(GraphBackend, "_free_bytes", lambda self: 1 << 34)


class Numbers:
    def decode(self, tokens, skip_special_tokens=False):
        return "".join(f"<{token}>" for token in tokens)


def engines(ends=(7,), adapters=False, **settings):
    """One on graphs, and a plain one; with adapters beside their base."""
    torch.manual_seed(0)
    lm = causal_lm(transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SMALL)).eval())
    with torch.no_grad():
        for parameter in lm.model.parameters():
            parameter.copy_(3 * parameter if parameter.ndim > 1 else parameter)
    if adapters:
        add_adapters(lm.model, LowRank(3, 6.0), merged=False)
        for name, factor in adapter_factors(lm.model).items():
            if name.endswith(".up"):
                torch.nn.init.normal_(factor, 0, 0.2)
    fast = TorchEngine(lm, Numbers(), ends, context=512, **settings)
    fast.decode_path  # noqa: B018  tried out, before it is given another
    fast._graphs = GraphBackend(lm, StopRule(torch.tensor(sorted(ends)), Numbers().decode), 512)
    return fast, TorchEngine(lm, Numbers(), ends, context=512, fast=False)


def test_graphs_are_tried_out_once_per_checkpoint_and_refused_where_they_differ(monkeypatch):
    lm = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16)
    stack = SimpleNamespace(head=torch.nn.Linear(2, 2, bias=False), sizes=SimpleNamespace(head_size=64))
    tried, known = [], {}
    for name, stand_in in {
        "fused_refusal": lambda _: "",
        "blocks_of": lambda _: stack,
        "GraphBackend": lambda *_: SimpleNamespace(release=lambda: tried.append("released")),
        "_logp_gap": lambda *_: tried.append("tried") or gap,
        "verdict": lambda name, lm, trial: known[name] if name in known else known.setdefault(name, trial()),
    }.items():
        monkeypatch.setattr(cuda_decode, name, stand_in)
    monkeypatch.setattr(cuda_decode.importlib.util, "find_spec", lambda _: True)
    gap = 0.01
    assert not isinstance(graph_backend(lm, None, 512), str) and tried == ["tried", "released"]
    assert not isinstance(graph_backend(lm, None, 512), str) and tried == ["tried", "released"]
    gap = 0.3
    known.clear()
    reason = "the graph's log-probabilities differ from the model's own by 3.0e-01 per token"
    assert graph_backend(lm, None, 512) == reason


def test_the_way_without_graphs_is_tried_out_only_where_graphs_do_not_go(no_device, monkeypatch):
    fast, _ = engines()
    backend, tried = fast._graphs, []
    monkeypatch.setattr(torch_engine, "graph_backend", lambda *_: backend)
    monkeypatch.setattr(torch_engine, "hooked_decoder", lambda lm: tried.append(lm) or hooked_decoder(lm))
    fresh = TorchEngine(fast._lm, Numbers(), (7,), context=512)
    requests = [Request((1, 2, 3), 0)]
    assert str(fresh.path_for(Sampling(4), 3)) == "CUDA graphs" and fresh.generate(requests, Sampling(4))
    assert not tried
    monkeypatch.setattr(GraphBackend, "refusal", lambda *_: "too long")
    assert str(fresh.path_for(Sampling(4), 3)) == "fused decoder (too long)" and fresh.generate(requests, Sampling(4))
    assert len(tried) == 1


@pytest.mark.parametrize(
    ("settings", "adapters"),
    [
        pytest.param({}, False, marks=pytest.mark.slow),
        ({"top_k": 5, "keeps_support": True, "stop": ("1><", "3>")}, False),
        ({}, True),
    ],
    ids=["plain", "support", "adapters"],
)
def test_completions_are_those_of_the_plain_engine(no_device, settings, adapters):
    fast, plain = engines(rows_per_batch=16, adapters=adapters)
    requests = [
        Request(tokens, 10 * number + copy)
        for number, tokens in enumerate(prompts_of(3, 9, 300, 20, vocabulary=61))
        for copy in range(6)
    ]
    sampling = Sampling(10, **settings)
    told = {}
    streamed = fast.stream(requests, sampling, told.setdefault)
    assert [told[number] for number in range(len(requests))] == streamed
    for one, two, three in zip(
        fast.generate(requests, sampling), plain.generate(requests, sampling), streamed, strict=True
    ):
        assert torch.equal(one.tokens, two.tokens) and one.stop == two.stop
        assert torch.equal(one.tokens, three.tokens) and torch.equal(one.behavior_logp, three.behavior_logp)
        torch.testing.assert_close(one.behavior_logp, two.behavior_logp, rtol=0, atol=1e-4)
        if one.support is not None:
            assert torch.equal(one.support.ids, two.support.ids) and torch.equal(one.support.counts, two.support.counts)


@pytest.mark.parametrize("adapters", [False, True])
def test_a_row_reads_on_behind_what_it_keeps(no_device, adapters):
    """By hand: three rows write, two change places, one waits while another writes on, all read on."""
    fast, _ = engines(ends=(), adapters=adapters)
    backend, model = fast._graphs, fast._lm.model
    prompts = prompts_of(5, 300, vocabulary=61)
    slots, texts, seeds = [0, 1, 1], [list(prompts[0]), list(prompts[1]), list(prompts[1])], [50, 51, 52]
    backend.open_session(Sampling(6), SessionShape(3, 300, 40), 512)
    log = backend.log

    def begin(rows, logits):
        for number, row in enumerate(rows):
            expected = model(torch.tensor([texts[row]])).logits[0, -1]
            torch.testing.assert_close(logits[number], expected, rtol=1e-3, atol=1e-3)
        where = torch.tensor(rows)
        log.record(where, draw(logits, log.uniform(where), Sampling(6)))

    def opened(rows):
        log.open(torch.tensor(rows), uniforms([seeds[row] for row in rows], 6), torch.full((len(rows),), 6))

    def noted(rows, count):
        for row in rows:
            texts[row] += log.written(torch.tensor([row]), count)[0][0].tolist()

    with torch.no_grad():
        backend.prefill([0, 1], prompts)
        opened([0, 1, 2])
        begin([0, 1, 2], backend.enter([0, 1, 2], slots))
        backend.seat(slots)
        for _ in range(5):
            backend.step()
        noted([0, 1, 2], 6)
        for order in (slots, texts):
            order[0], order[2] = order[2], order[0]
        log.keep([2, 1, 0])
        backend.keep([2, 1, 0], [0, 1])
        # row 0 reads on at once; the others wait, one inside the batch and one behind it
        opened([0])
        texts[0] += [11, 12, 13]
        begin([0], backend.extend([0], [slots[0]], [5], [tuple(texts[0][-4:])]))
        backend.seat([slots[0]])
        for _ in range(5):
            backend.step()
        noted([0], 6)
        # a stop string cut row 1 after four tokens: what it wrote behind them is written over
        texts[1] = [*texts[1][:-2], 14]
        texts[2] += [15, 16]
        opened([1, 2])
        begin(
            [2, 1], backend.extend([2, 1], [slots[2], slots[1]], [5, 3], [tuple(texts[2][-3:]), tuple(texts[1][-2:])])
        )
        backend.seat([None, slots[1], slots[2]])
        for _ in range(2):
            backend.step()
        for order in (slots, texts, seeds):  # in the middle of a turn
            order[1], order[2] = order[2], order[1]
        log.keep([0, 2, 1])
        backend.keep([0, 2, 1], [0, 1])
        backend.seat([None, slots[1], slots[2]])
        for _ in range(3):
            backend.step()
        noted([1, 2], 6)
        # what was written is what the model would have drawn, given all that stands in front of it
        texts[0] += [17]
        opened([0])
        begin([0], backend.extend([0], [slots[0]], [14], [tuple(texts[0][-2:])]))
        for row, written in ((1, 6), (2, 6)):
            text, stream = texts[row], uniforms([seeds[row]], 6)[0]
            logp = log.written(torch.tensor([row]), written)[1][0]
            for place in range(written):
                front = text[: len(text) - written + place]
                found = draw(model(torch.tensor([front])).logits[:, -1], stream[place : place + 1], Sampling(6))
                assert int(found.token) == text[len(front)]
                torch.testing.assert_close(found.logp[0], logp[place], rtol=0, atol=1e-4)
    backend.close_session()


@pytest.mark.parametrize(
    ("settings", "rows", "longest"),
    [
        pytest.param({}, 512, 20, marks=pytest.mark.slow),
        ({"temperature": 0.7}, 32, 70),  # the rows' buffers grow twice
        pytest.param({"stop": ("1><", "3>")}, 16, 20, marks=pytest.mark.slow),  # conversations lose their rows
        ({"top_k": 5, "keeps_support": True, "stop": ("2>",)}, 16, 260),
    ],
    ids=["plain", "growing", "evicted", "support"],
)
def test_every_turn_of_a_session_is_what_the_plain_engine_writes(no_device, settings, rows, longest, monkeypatch):
    monkeypatch.setattr(cuda_decode, "FIRST_GROWTH", 8)
    monkeypatch.setattr(cuda_decode, "_whole_blocks", lambda length: -(-length // 8) * 8)
    fast, plain = engines(rows_per_batch=rows)
    sampling = Sampling(18, **settings)
    prompts = prompts_of(3, 9, longest, vocabulary=61)
    with fast.session(sampling, SessionShape(18, longest, 3 * 18 + 2 * 23)) as session:
        found = played(session, prompts, 6, 3, short_answers, late=rows == 16)
        assert session.counts.continued > 10 and bool(session.counts.evicted) == (rows == 16)
    turns = [turn for each in found.values() for turn in each]
    expected = plain.generate([Request(tokens, seed) for tokens, seed, _ in turns], sampling)
    for (_, _, one), two in zip(turns, expected, strict=True):
        assert torch.equal(one.tokens, two.tokens) and one.stop == two.stop and one.completion == two.completion
        torch.testing.assert_close(one.behavior_logp, two.behavior_logp, rtol=0, atol=1e-4)
        if sampling.truncates:
            assert torch.equal(one.support.ids, two.support.ids) and torch.equal(one.support.counts, two.support.counts)


def written(session, requests, loads, weights=None):
    """Samples by request; after these calls of `advance` come weights, the same ones or those that are given."""
    found, calls = {}, 0
    for number, request in enumerate(requests):
        session.add(number, request)
    while not session.is_idle:
        found |= dict(session.advance())
        calls += 1
        if calls in loads:
            if weights is not None:
                with torch.no_grad():
                    for parameter in session._lm.model.parameters():
                        parameter.mul_(weights)
            session.load({}, calls)
    return [found[number] for number in range(len(requests))]


@pytest.mark.parametrize(
    ("settings", "rows"),
    [({}, 512), ({"top_k": 5, "keeps_support": True, "stop": ("2>",)}, 16)],
    ids=["plain", "support"],
)
def test_weights_that_come_in_the_middle_interrupt_nothing(no_device, settings, rows):
    fast, plain = engines(rows_per_batch=rows)
    sampling = Sampling(40, **settings)
    prompts = prompts_of(3, 9, 20, vocabulary=61)
    requests = [Request(tokens, 10 * row + copy) for row, tokens in enumerate(prompts) for copy in range(6)]
    with fast.session(sampling, SessionShape(18, 20, 40)) as session:
        found = written(session, requests, loads=(1, 2, 4))
    assert any(sample.versions == (0, 2) for sample in found)
    for one, two in zip(found, plain.generate(requests, sampling), strict=True):
        assert torch.equal(one.tokens, two.tokens) and one.stop == two.stop and one.completion == two.completion
        torch.testing.assert_close(one.behavior_logp, two.behavior_logp, rtol=0, atol=1e-4)
        if sampling.truncates:
            assert torch.equal(one.support.ids, two.support.ids) and torch.equal(one.support.counts, two.support.counts)


def test_what_newer_weights_write_is_theirs(no_device):
    fast, _ = engines(ends=(), rows_per_batch=16)
    lm = fast._lm
    before = {name: value.clone() for name, value in lm.model.state_dict().items()}
    requests = [Request((5, 9, 11), seed) for seed in range(4)]
    with fast.session(Sampling(40), SessionShape(4, 3, 40)) as session:
        samples = written(session, requests, loads=(2,), weights=1.1)
    after = {name: value.clone() for name, value in lm.model.state_dict().items()}
    for version, weights in ((0, before), (2, after)):
        lm.model.load_state_dict(weights)
        for sample in samples:
            here = sample.action & (sample.token_versions == version)
            logp = token_logp(lm, sample.tokens[None], sample.action[None]).logp[0]
            assert here.sum() > 8
            torch.testing.assert_close(logp[here], sample.behavior_logp[here], rtol=0, atol=1e-4)


def test_a_long_prompt_that_was_expected_makes_no_buffers_anew(no_device):
    sampling = Sampling(6)
    for is_told in (True, False):
        fast, _ = engines(rows_per_batch=16)
        if is_told:
            fast.path_for(sampling, 300)
        short, long = prompts_of(9, 300, vocabulary=61)
        fast.generate([Request(short, seed) for seed in range(4)], sampling)
        before = fast._graphs._caches
        fast.generate([Request(long, seed) for seed in range(4)], sampling)
        assert (fast._graphs._caches is before) == is_told


def test_few_graphs_serve_the_ragged_end_of_a_rollout(no_device):
    fast, _ = engines(ends=(7, 8, 9, 10), rows_per_batch=64)
    fast.generate([Request(prompts_of(9, vocabulary=61)[0], seed) for seed in range(64)], Sampling(30))
    sizes = sorted(rows for rows, _ in fast._graphs._graphs)
    assert sizes[-1] == 64 and len(sizes) > 1 and set(sizes) <= {16, 32, 64}
