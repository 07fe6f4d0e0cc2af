"""The in-process engine against transformers' own decoding and against the trainer's log-probabilities."""

import gc
import itertools
import weakref
from dataclasses import replace

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.for_every import for_every
from whet.model.block import NotDescribed, blocks_of
from whet.model.causal_lm import causal_lm
from whet.model.decode_state import BatchShape
from whet.model.fused_decode import FusedDecoder, fused_decoder
from whet.model.hooked_decode import HookedDecoder, hooked_decoder
from whet.model.token_logp import token_logp
from whet.rollout.buffer_decode import BufferBackend
from whet.rollout.own_cache import OwnCacheBackend
from whet.rollout.sampling import draw
from whet.rollout.scheduler import DecodeScheduler, StopRule, decode_job
from whet.rollout.torch_engine import TorchEngine, decoded
from whet.types import Request, Sampling, StopReason, WhetError

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "llama_tied": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=8),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=6),
    "olmo2": lambda: transformers.Olmo2Config(**SMALL),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=256),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, head_dim=8, sliding_window=6),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=6),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SMALL, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
    ),
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2),
    "olmoe": lambda: transformers.OlmoeConfig(**SMALL, num_experts=4, num_experts_per_tok=2),
}
WRITTEN_OUT = {"llama", "llama_tied", "qwen2", "qwen3", "mistral", "olmo2"}
OWN_CACHE = {"gemma2"}  # its scores are capped
REASONS = {
    "gemma2": "softcap",
    "gemma3": "the activation is",
    "qwen3_moe": "model.layers.0.mlp is a mixture of experts",
    "gpt2": "the trunk has no embed_tokens",
}
DIFFERENT_IN_KIND = ("llama", "mistral", "olmo2", "gemma2", "qwen3_moe")  # what the default selection reads
EVERY_FAMILY = [
    family if family in DIFFERENT_IN_KIND else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES
]
PROMPTS = [(5, 9, 11), (7, 8, 3, 4, 60, 61, 62, 63, 64, 65), (12,), (5, 9, 11, 2)]


class Letters:
    """A tokenizer stand-in: token n is one character."""

    def decode(self, tokens, skip_special_tokens=False):
        return "".join(chr(40 + token) for token in tokens)


def model_of(family: str) -> torch.nn.Module:
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).eval()
    with torch.no_grad():  # spread the logits, or every greedy choice is a near tie
        for parameter in model.parameters():
            parameter.mul_(3.0)
    model.config._name_or_path = family  # as if read from a checkpoint: what was tried on it holds for every copy
    return model


def engine_of(model: torch.nn.Module, end_tokens=(), **settings) -> TorchEngine:
    return TorchEngine(causal_lm(model), Letters(), end_tokens, context=256, **settings)


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_greedy_equals_transformers(family):
    model = model_of(family)
    requests = [Request(tokens, seed) for seed, tokens in enumerate(PROMPTS) for _ in range(2)]
    samples = engine_of(model).generate(requests, Sampling(max_new_tokens=12, temperature=0))
    for tokens, both in zip(PROMPTS, zip(samples[::2], samples[1::2], strict=True), strict=True):
        # one prompt at a time: no padding that could hide a mistake
        theirs = model.generate(
            torch.tensor([tokens]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert [sample.tokens.tolist() for sample in both] == [theirs[0].tolist()] * 2
        assert all(sample.stop is StopReason.LENGTH for sample in both)


SAMPLINGS = [
    Sampling(max_new_tokens=10, keeps_support=True),
    Sampling(max_new_tokens=10, keeps_support=True, temperature=0.6),
    Sampling(max_new_tokens=10, keeps_support=True, temperature=1.7, top_p=0.8),
    Sampling(max_new_tokens=10, keeps_support=True, top_k=5),
    Sampling(max_new_tokens=10, keeps_support=True, temperature=0.9, top_p=0.9, top_k=20, min_p=0.05),
]


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_sampled_logp_equals_the_trainers(family):
    model = model_of(family)
    engine = engine_of(model, end_tokens=(3, 4))
    requests = [Request(tokens, 10 * row) for row, tokens in enumerate(PROMPTS)]
    drawn = [(sampling, sample) for sampling in SAMPLINGS for sample in engine.generate(requests, sampling)]
    lm = causal_lm(model)
    for sampling, sample in drawn:
        support = None
        if sample.support is not None:
            width = int(sample.support.counts.max())
            support = torch.full((1, len(sample.tokens), width), -1, dtype=torch.int32)
            where = sample.action.nonzero()[:, 0].tolist()
            for position, ids in zip(where, sample.support.ids.split(sample.support.counts.tolist()), strict=True):
                support[0, position, : len(ids)] = ids
                assert int(sample.tokens[position]) in ids.tolist()
        scores = token_logp(lm, sample.tokens[None], sample.action[None], sampling.temperature, support)
        torch.testing.assert_close(
            scores.logp[0], sample.behavior_logp, rtol=0, atol=2e-4, msg=lambda text, s=sampling: f"{s}: {text}"
        )
        assert sample.behavior_logp[sample.action].ne(0).any() or sampling.top_k == 1, sampling


@for_every(
    [
        Sampling(max_new_tokens=8, temperature=2.0, top_k=3),
        Sampling(max_new_tokens=8, temperature=3.0, top_p=0.5),
        Sampling(max_new_tokens=8, temperature=3.0, min_p=0.4),
    ],
    [True, False],
)
def test_the_engine_truncates_as_the_definition_says(sampling, fast):
    """At every position the kept ids are those found from the model's own logits, one token after the other."""
    model, sampling = model_of("llama"), replace(sampling, keeps_support=True)
    sizes = []
    for sample in engine_of(model, fast=fast).generate([Request(PROMPTS[0], n) for n in range(4)], sampling):
        logits = model(sample.tokens[None]).logits[0].double() / sampling.temperature
        positions = sample.action.nonzero()[:, 0].tolist()
        for position, ids in zip(positions, sample.support.ids.split(sample.support.counts.tolist()), strict=True):
            share, order = logits[position - 1].softmax(-1).sort(descending=True)
            if sampling.top_k:
                count = sampling.top_k
            elif sampling.top_p < 1:
                count = 1 + int((share.cumsum(-1) < sampling.top_p).sum())
            else:
                count = int((share >= sampling.min_p * share[0]).sum())
            assert sorted(ids.tolist()) == sorted(order[:count].tolist())
            sizes.append(count)
    assert max(sizes) > 1 and max(sizes) < 97


def test_truncation_without_its_support_would_be_wrong():
    """The kept mass matters: on the whole vocabulary the same tokens score visibly lower."""
    model = model_of("llama")
    sample = engine_of(model).generate([Request((5, 9), 1)], Sampling(max_new_tokens=20, temperature=2.0, top_k=3))[0]
    whole = token_logp(causal_lm(model), sample.tokens[None], sample.action[None], 2.0).logp[0]
    assert (sample.behavior_logp - whole)[sample.action].mean() > 0.01


def test_a_completion_depends_on_its_seed_and_not_on_its_neighbours():
    engine = engine_of(model_of("llama"), end_tokens=(3,))
    sampling = Sampling(max_new_tokens=15)
    requests = [Request(tokens, seed) for tokens in PROMPTS for seed in (1, 2, 3)]
    together = engine.generate(requests, sampling)
    alone = [engine.generate([request], sampling)[0] for request in requests]
    assert [sample.tokens.tolist() for sample in together] == [sample.tokens.tolist() for sample in alone]
    small = engine_of(model_of("llama"), end_tokens=(3,), rows_per_batch=5).generate(requests, sampling)
    assert [sample.tokens.tolist() for sample in together] == [sample.tokens.tolist() for sample in small]
    other = engine.generate([Request(PROMPTS[0], 4)], sampling)[0]
    assert other.tokens.tolist() not in [sample.tokens.tolist() for sample in together]


def test_end_tokens_and_stop_strings_end_a_completion():
    model = model_of("llama")
    free = engine_of(model).generate([Request((5, 9), 7)], Sampling(max_new_tokens=20, temperature=2.0))[0]
    completion = free.tokens[2:].tolist()
    fourth = completion[3]
    ended = engine_of(model, end_tokens=(fourth,)).generate(
        [Request((5, 9), 7)], Sampling(max_new_tokens=20, temperature=2.0)
    )[0]
    assert ended.tokens[2:].tolist() == completion[: completion.index(fourth) + 1]
    assert ended.stop is StopReason.END
    text = "".join(chr(40 + token) for token in completion[4:6])
    stopped = engine_of(model).generate(
        [Request((5, 9), 7)], Sampling(max_new_tokens=20, temperature=2.0, stop=(text,))
    )[0]
    assert stopped.stop is StopReason.TEXT
    assert stopped.completion.endswith(text) and stopped.tokens[2:].tolist() == completion[: len(stopped.tokens) - 2]


@for_every(FAMILIES)
def test_each_family_takes_the_quickest_way_it_can(family):
    model = model_of(family)
    before = model.config._attn_implementation
    path = engine_of(model).decode_path
    kinds = {True: "fused decoder", False: "the model's own layers on whet's buffers"}
    assert path.kind == ("the model's own forward and cache" if family in OWN_CACHE else kinds[family in WRITTEN_OUT])
    assert bool(path.reason) == (family not in WRITTEN_OUT) and REASONS.get(family, "") in path.reason
    assert model.config._attn_implementation == before


def written_with(decoder_or_model, requests, sampling, stop, rows):
    """By the model's own forward, or by a decoder on buffers."""
    job = decode_job(requests, sampling, stop)
    if isinstance(decoder_or_model, HookedDecoder):
        return DecodeScheduler(BufferBackend(decoder_or_model, job, rows), job).run()
    return DecodeScheduler(OwnCacheBackend(decoder_or_model, job, rows), job).run()


def ways(model: torch.nn.Module):
    """Every way of decoding the model, as requests, sampling, stop rule, rows -> completions."""
    lm = causal_lm(model)
    hooked = hooked_decoder(lm)
    for way in (lm, hooked, FusedDecoder(hooked, blocks_of(lm)), fused_decoder(hooked)):
        assert not isinstance(way, NotDescribed)
        yield torch.no_grad()(lambda *job, way=way: written_with(way, *job))


@pytest.mark.parametrize(
    "family", ["qwen3", "mistral", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "olmo2"))]
)
def test_all_ways_write_the_same_whoever_waits_enters_or_leaves(family):
    """Groups of different size and length, fewer rows than requests: rows change hands, move and wait."""
    requests = [Request(tokens, 7 * n + row) for row, tokens in enumerate(PROMPTS * 2) for n in range(1 + row % 4)]
    ending, sampling = StopRule(torch.arange(0, 97, 12), Letters().decode), Sampling(max_new_tokens=16)
    own, *others = ways(model_of(family))
    expected = own(requests, sampling, ending, 64)
    assert len({len(drawn.tokens) for drawn in expected}) > 5
    assert {drawn.stop for drawn in expected} == {StopReason.END, StopReason.LENGTH}
    for way, rows in [(own, 3), *((way, rows) for way in others for rows in (3, 64))]:
        written = way(requests, sampling, ending, rows)
        for mine, theirs in zip(written, expected, strict=True):
            assert (mine.tokens.tolist(), mine.stop) == (theirs.tokens.tolist(), theirs.stop)
            torch.testing.assert_close(mine.logp, theirs.logp, rtol=0, atol=2e-4)


def test_logp_of_unspread_weights_equals_the_trainers_to_float_noise():
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(FAMILIES["llama"]()).eval()
    lm = causal_lm(model)
    for sample in engine_of(model).generate(
        [Request(tokens, n) for n in range(3) for tokens in PROMPTS], Sampling(max_new_tokens=40)
    ):
        scores = token_logp(lm, sample.tokens[None], sample.action[None])
        torch.testing.assert_close(scores.logp[0], sample.behavior_logp, rtol=0, atol=1e-5)


def test_changed_weights_are_seen_and_samples_can_be_trained_on():
    model = model_of("llama")
    engine = engine_of(model)
    sampling = Sampling(max_new_tokens=30, temperature=0)
    before = engine.generate([Request((5, 9, 11), 0)], sampling)[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    after = engine.generate([Request((5, 9, 11), 0)], sampling)[0]
    theirs = model.generate(
        torch.tensor([[5, 9, 11]]), max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert after.tokens.tolist() == theirs[0].tolist() != before.tokens.tolist()
    scores = token_logp(causal_lm(model), after.tokens[None], after.action[None])
    (scores.logp * after.behavior_logp).sum().backward()
    assert model.model.embed_tokens.weight.grad.abs().sum() > 0


def test_the_models_attention_is_put_back_after_an_error(monkeypatch):
    model = model_of("llama")
    engine = engine_of(model)
    engine.generate([Request((5, 9), 1)], Sampling(max_new_tokens=2))
    monkeypatch.setattr(model.model.layers[1].mlp, "forward", lambda x: x.nothing)
    with pytest.raises(AttributeError):
        engine.generate([Request((5, 9), 1)], Sampling(max_new_tokens=2))
    assert model.config._attn_implementation == "sdpa" and not model.training


class Watch(TorchDispatchMode):
    """Fails on operations that wait for the device, or whose shapes depend on data."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "equal.default")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not any(name in str(func) for name in self.FORBIDDEN), func
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("written_out", [False, True])
def test_a_step_and_its_draw_never_wait_for_the_device(written_out):
    decoder = hooked_decoder(causal_lm(model_of("mistral")))
    decoder = fused_decoder(decoder) if written_out else decoder
    state = decoder.state(BatchShape(4, 2, 5, 6))
    with torch.no_grad(), decoder.running():
        decoder.prefill(torch.tensor([[5, 6, 7, 8, 9], [4, 3, 2, 0, 0]]), [5, 3], [0, 1], state)
        state.seat([0, 1, 0, None], 5)
        state.completion_width = 1
        with Watch() as watch:
            logits = decoder.step(torch.tensor([5, 6, 7, 8]), state)
            drawn = draw(logits, torch.rand(4), Sampling())
        assert watch.count > 50 and logits.shape == (4, 97) and drawn.token.shape == (4,)
        with pytest.raises(AssertionError), Watch():
            logits.nonzero()


def test_a_prompt_is_read_once_and_its_rows_are_moved_together():
    """Sixteen rows, one prompt: its keys are held once, and the batch shrinks with the rows that are left."""
    decoder = fused_decoder(hooked_decoder(causal_lm(model_of("llama")))).suited(BatchShape(16, 1, 3, 12))
    widths, prefills = [], []
    step, prefill = decoder.step, decoder.prefill
    decoder.step = lambda tokens, state: widths.append((len(tokens), state.slots)) or step(tokens, state)
    decoder.prefill = lambda tokens, *rest: prefills.append(tuple(tokens.shape)) or prefill(tokens, *rest)
    ending = StopRule(torch.arange(0, 97, 5), Letters().decode)
    requests = [Request((5, 9, 2), n) for n in range(16)]
    with torch.no_grad():
        completions = written_with(decoder, requests, Sampling(max_new_tokens=12, temperature=3.0), ending, 512)
    assert prefills == [(1, 3)] and all(slots == 1 for _, slots in widths)
    rows = [row for row, _ in widths]
    counts = [len(drawn.tokens) for drawn in completions]
    needed = [sum(count > n for count in counts) for n in range(1, max(counts))]
    assert rows == sorted(rows, reverse=True) and rows[-1] < 16
    assert all(need <= row <= need + max(1, row // 8) for need, row in zip(needed, rows, strict=True))


def test_the_models_own_cache_drops_finished_rows():
    model = model_of("gemma2")
    requests = [Request((5, 9, 2), n) for n in range(16)]
    ending = StopRule(torch.arange(0, 97, 5), Letters().decode)
    lm, shapes = causal_lm(model), []
    model.model.register_forward_pre_hook(
        lambda _, args, more: shapes.append(more["input_ids"].shape[0]), with_kwargs=True
    )
    completions = written_with(lm, requests, Sampling(max_new_tokens=12, temperature=3.0), ending, 512)
    counts = [len(drawn.tokens) for drawn in completions]
    assert shapes == [1, *(sum(count > n for count in counts) for n in range(1, max(counts)))]


def test_equal_prompts_that_are_no_neighbours_are_read_once():
    """In any order of the requests, and the completions stay with their requests."""
    model = model_of("llama")
    decoder, prefills = fused_decoder(hooked_decoder(causal_lm(model))).suited(BatchShape(8, 2, 4, 12)), []
    prefill = decoder.prefill
    decoder.prefill = lambda tokens, *rest: prefills.append(len(tokens)) or prefill(tokens, *rest)
    requests = [Request(PROMPTS[n % 2], n) for n in range(8)]
    ending, sampling = StopRule(torch.tensor([3]), Letters().decode), Sampling(max_new_tokens=12)
    with torch.no_grad():
        mixed = written_with(decoder, requests, sampling, ending, 8)
        assert sum(prefills) == 2
        for drawn, request in zip(mixed, requests, strict=True):
            (alone,) = written_with(decoder, [request], sampling, ending, 8)
            assert drawn.tokens.tolist() == alone.tokens.tolist()


def test_too_long_for_the_context_is_refused():
    with pytest.raises(WhetError, match="context of 256"):
        engine_of(model_of("llama")).generate([Request((5,) * 250, 1)], Sampling(max_new_tokens=12))


def test_any_number_of_prompts_and_completions():
    """The layout of a product's result depends on its sizes; the completions must not."""
    from whet.model.load import load_model

    loaded = load_model("whetstone")
    engines = [
        TorchEngine(causal_lm(loaded.model), loaded.tokenizer, loaded.end_tokens, context=loaded.context, fast=fast)
        for fast in (True, False)
    ]
    tokens = tuple(range(5, 20))
    for num_prompts, copies in ((1, 1), (1, 8), (2, 3), (5, 1), (5, 2), (5, 8)):
        requests = [
            Request(tokens[: 15 - row], 10 * row + copy) for row in range(num_prompts) for copy in range(copies)
        ]
        quick, plain = (engine.generate(requests, Sampling(max_new_tokens=8)) for engine in engines)
        assert [sample.tokens.tolist() for sample in quick] == [sample.tokens.tolist() for sample in plain], (
            num_prompts,
            copies,
        )


@pytest.mark.parametrize("vocabulary", [300, 50_000])
def test_logits_that_are_not_numbers_draw_something_and_do_not_break(vocabulary):
    """The trainer is the one to say that the weights have diverged."""
    logits = torch.full((2, vocabulary), float("nan"))
    logits[1] = 0.0
    drawn = draw(logits, torch.tensor([0.3, 0.3]), Sampling())
    assert ((drawn.token >= 0) & (drawn.token < vocabulary)).all()
    assert drawn.token[1] == int(0.3 * vocabulary) or abs(int(drawn.token[1]) - 0.3 * vocabulary) < 2


class RunsAhead(BufferBackend):
    """Buffers on a device that is given steps before what came of the last ones is read."""

    steps, behind = 4, 1

    def __init__(self, *args):
        super().__init__(*args)
        self.steps_per_look, self.looks_behind = self.steps, self.behind


def test_a_device_that_runs_ahead_writes_the_same():
    """Ends, texts, sequences of tokens and supports: noticed late, and cut where they happened."""
    model = model_of("llama")
    decoder = fused_decoder(hooked_decoder(causal_lm(model)))
    requests = [Request(tokens, 7 * n + row) for row, tokens in enumerate(PROMPTS * 2) for n in range(1 + row % 4)]
    plain = Sampling(16, temperature=2.0, top_k=30, keeps_support=True)
    free = engine_of(model, end_tokens=range(0, 97, 24)).generate(requests, plain)
    long = [tokens for sample in free if len(tokens := sample.tokens[sample.action].tolist()) > 8]
    sampling = replace(plain, stop=(Letters().decode(long[0][5:7]), "~~"), stop_tokens=(tuple(long[-1][3:5]),))
    ending = StopRule(torch.arange(0, 97, 24), Letters().decode)
    job = decode_job(requests, sampling, ending)
    with torch.no_grad():
        expected = written_with(decoder, requests, sampling, ending, 64)
    assert {drawn.stop for drawn in expected} == {StopReason.END, StopReason.TEXT, StopReason.LENGTH}
    assert len({len(drawn.tokens) for drawn in expected}) > 5
    for (steps, behind), rows in itertools.product([(1, 1), (4, 0), (4, 1), (9, 1)], (3, 64)):
        with torch.no_grad():
            backend = type("Backend", (RunsAhead,), {"steps": steps, "behind": behind})(decoder, job, rows)
            late = DecodeScheduler(backend, job).run()
        for mine, theirs in zip(late, expected, strict=True):
            assert (mine.tokens.tolist(), mine.stop) == (theirs.tokens.tolist(), theirs.stop), (steps, behind, rows)
            assert len(mine.support.counts) == len(mine.tokens)
            assert mine.support.counts.tolist() == theirs.support.counts.tolist()
            assert mine.support.ids.tolist() == theirs.support.ids.tolist()


def test_a_stop_is_found_where_it_is_complete_and_an_end_token_is_no_text():
    rule = StopRule(torch.tensor([90]), Letters().decode)
    letters = [ord(each) - 40 for each in "abcabd"]
    assert rule.stopped_at(letters, 0, Sampling(stop=("abd", "zz"))) == 6
    assert rule.stopped_at(letters, 0, Sampling(stop=("ca", "abd"))) == 4
    assert rule.stopped_at(letters, 4, Sampling(stop=("ca",))) is None  # told before
    assert rule.stopped_at(letters, 4, Sampling(stop=("bca", "bd"))) == 6
    assert rule.stopped_at(letters, 0, Sampling(stop_tokens=((letters[2], letters[3]), (letters[5],)))) == 4
    assert rule.stopped_at(letters[:1], 0, Sampling(stop_tokens=((letters[5], letters[0]),))) is None


def test_few_tokens_are_decoded_where_few_can_complete_a_text():
    decoded = []

    def text_of(tokens):
        decoded.append(tuple(tokens))
        return Letters().decode(tokens)

    rule, letters = StopRule(torch.tensor([90]), text_of), [ord(each) - 40 for each in "abcab" * 50]
    assert rule.stopped_at(letters, 0, Sampling(stop=("xyc",))) is None
    assert sum(len(each) == 1 for each in decoded) == 3  # every token once, alone
    assert len(decoded) == 3 + 50


def test_texts_decoded_together_are_those_decoded_alone():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = Tokenizer(models.BPE(vocab=letters, merges=[]))
    inner.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")
    rows = [[5, 9, 200, 201, tokenizer.eos_token_id], [], [40, 41, 42, 220, 13]]
    expected = [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    assert decoded(tokenizer, rows) == expected and "<eos>" not in expected[0] and expected[2]
    tokenizer.clean_up_tokenization_spaces = True
    assert decoded(tokenizer, rows) == [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    assert decoded(Letters(), rows[2:]) == [Letters().decode(rows[2])] and decoded(tokenizer, []) == []


def test_an_engine_that_is_dropped_is_gone_at_once():
    """Its caches may be gigabytes."""
    engine = engine_of(model_of("llama"))
    engine.generate([Request((5, 9), 1)], Sampling(max_new_tokens=2, stop=("zz",)))
    alive = weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("alone", "together", "stop"),
    [
        ({1: "\ufffd", 2: "\ufffd"}, "caf\u00e9", "\u00e9"),  # a character of two tokens
        ({1: "so", 2: "it"}, "so it", "so "),  # a token that loses the space in front of it
        ({1: "so", 2: ""}, "so!", "o!"),  # a token that is nothing alone
    ],
    ids=["character", "space", "empty"],
)
def test_a_stop_that_single_tokens_do_not_show_is_found(alone, together, stop):
    rule = StopRule(torch.tensor([90]), lambda tokens: alone[tokens[0]] if len(tokens) == 1 else together)
    assert rule.stopped_at([1, 2], 0, Sampling(stop=(stop,))) == 2


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "qwen3_moe"])
def test_a_completion_is_told_when_it_has_ended_and_is_the_same(family):
    """On each backend, with rows that change hands, stops and supports."""
    engine = engine_of(model_of(family), end_tokens=range(0, 97, 24), rows_per_batch=5)
    requests = [Request(tokens, 7 * n + row) for row, tokens in enumerate(PROMPTS * 2) for n in range(1 + row % 4)]
    sampling = Sampling(16, temperature=2.0, top_k=30, keeps_support=True)
    expected = engine.generate(requests, sampling)
    told = []
    assert engine.stream([], sampling, None) == []
    streamed = engine.stream(requests, sampling, lambda number, sample: told.append((number, sample)))
    assert sorted(number for number, _ in told) == list(range(len(requests))) != [number for number, _ in told]
    assert all(streamed[number] is sample for number, sample in told)
    for one, two in zip(streamed, expected, strict=True):
        assert torch.equal(one.tokens, two.tokens) and torch.equal(one.behavior_logp, two.behavior_logp)
        assert (one.stop, one.completion) == (two.stop, two.completion)
        assert torch.equal(one.support.ids, two.support.ids) and torch.equal(one.support.counts, two.support.counts)
        assert (one.routed_experts is None) == (family != "qwen3_moe")
        assert one.routed_experts is None or torch.equal(one.routed_experts, two.routed_experts)
        assert not one.tokens.is_inference() and not one.behavior_logp.is_inference()
