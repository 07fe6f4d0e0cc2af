"""The in-process engine against transformers' own decoding and against the trainer's log-probabilities."""

import pytest
import torch
import transformers

from whet.model.split import split_model
from whet.model.token_logp import token_logp
from whet.rollout.torch_engine import TorchEngine
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
    "gpt2": lambda: transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=256),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, head_dim=8, sliding_window=6),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=6),
}
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
    return model


def engine_of(model: torch.nn.Module, end_tokens=(), **settings) -> TorchEngine:
    return TorchEngine(split_model(model), Letters(), end_tokens, context=256, **settings)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers(family):
    model = model_of(family)
    requests = [Request(tokens, seed) for seed, tokens in enumerate(PROMPTS) for _ in range(2)]
    samples = engine_of(model).generate(requests, Sampling(max_new_tokens=12, temperature=0))
    for request, sample in zip(requests, samples, strict=True):
        # one prompt at a time: no padding that could hide a mistake
        theirs = model.generate(
            torch.tensor([request.tokens]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert sample.tokens.tolist() == theirs[0].tolist()
        assert sample.stop is StopReason.LENGTH


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_new_tokens=10),
        Sampling(max_new_tokens=10, temperature=0.6),
        Sampling(max_new_tokens=10, temperature=1.7, top_p=0.8),
        Sampling(max_new_tokens=10, top_k=5),
        Sampling(max_new_tokens=10, temperature=0.9, top_p=0.9, top_k=20, min_p=0.05),
    ],
    ids=["plain", "cool", "top_p", "top_k", "all"],
)
def test_sampled_logp_equals_the_trainers(family, sampling):
    model = model_of(family)
    requests = [Request(tokens, 10 * row + n) for row, tokens in enumerate(PROMPTS) for n in range(3)]
    samples = engine_of(model, end_tokens=(3, 4)).generate(requests, sampling)
    for sample in samples:
        support = None
        if sample.support is not None:
            width = int(sample.support.counts.max())
            support = torch.full((1, len(sample.tokens), width), -1, dtype=torch.int32)
            where = sample.action.nonzero()[:, 0].tolist()
            for position, ids in zip(where, sample.support.ids.split(sample.support.counts.tolist()), strict=True):
                support[0, position, : len(ids)] = ids
                assert int(sample.tokens[position]) in ids.tolist()
        scores = token_logp(split_model(model), sample.tokens[None], sample.action[None], sampling.temperature, support)
        torch.testing.assert_close(scores.logp[0], sample.behavior_logp, rtol=0, atol=2e-4)
        assert sample.behavior_logp[sample.action].ne(0).any() or sampling.top_k == 1


def test_truncation_without_its_support_would_be_wrong():
    """The kept mass matters: on the whole vocabulary the same tokens score visibly lower."""
    model = model_of("llama")
    sample = engine_of(model).generate([Request((5, 9), 1)], Sampling(max_new_tokens=20, temperature=2.0, top_k=3))[0]
    whole = token_logp(split_model(model), sample.tokens[None], sample.action[None], 2.0).logp[0]
    assert (sample.behavior_logp - whole)[sample.action].mean() > 0.01


def test_a_reply_depends_on_its_seed_and_not_on_its_neighbours():
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


def test_end_tokens_and_stop_strings_end_a_reply():
    model = model_of("llama")
    free = engine_of(model).generate([Request((5, 9), 7)], Sampling(max_new_tokens=20, temperature=2.0))[0]
    reply = free.tokens[2:].tolist()
    fourth = reply[3]
    ended = engine_of(model, end_tokens=(fourth,)).generate(
        [Request((5, 9), 7)], Sampling(max_new_tokens=20, temperature=2.0)
    )[0]
    assert ended.tokens[2:].tolist() == reply[: reply.index(fourth) + 1]
    assert ended.stop is StopReason.END
    text = "".join(chr(40 + token) for token in reply[4:6])
    stopped = engine_of(model).generate(
        [Request((5, 9), 7)], Sampling(max_new_tokens=20, temperature=2.0, stop=(text,))
    )[0]
    assert stopped.stop is StopReason.TEXT
    assert stopped.reply.endswith(text) and stopped.tokens[2:].tolist() == reply[: len(stopped.tokens) - 2]


def test_a_prompt_is_prefilled_once_and_finished_rows_leave(monkeypatch):
    model = model_of("llama")
    shapes = []
    forward = model.model.forward
    monkeypatch.setattr(
        model.model, "forward", lambda *a, **k: shapes.append(tuple(k["input_ids"].shape)) or forward(*a, **k)
    )
    engine = engine_of(model, end_tokens=tuple(range(0, 97, 5)))
    shapes.clear()
    samples = engine.generate([Request((5, 9, 2), n) for n in range(16)], Sampling(max_new_tokens=12, temperature=3.0))
    assert shapes[0] == (1, 3)
    rows = [shape[0] for shape in shapes[1:]]
    assert rows == sorted(rows, reverse=True) and rows[-1] < 16
    lengths = [sample.num_actions for sample in samples]
    assert rows == [sum(length > n for length in lengths) for n in range(1, max(lengths))]


def test_too_long_for_the_context_is_refused():
    with pytest.raises(WhetError, match="context of 256"):
        engine_of(model_of("llama")).generate([Request((5,) * 250, 1)], Sampling(max_new_tokens=12))
