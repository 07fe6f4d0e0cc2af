"""Models on their own forward: linear attention, chunks, and states that no cache holds."""

import torch
import transformers

from tests.support.for_every import for_every
from whet.model.causal_lm import causal_lm
from whet.rollout.own_cache import CachedRows, OwnForward, WholeRows, own_forward
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sampling

SIZES = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256},
}
LINEAR = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    **{"layer_types": ["linear_attention", "full_attention"], "head_dim": 8},
}
CHUNKED = {
    **{"attention_chunk_size": 8, "intermediate_size_mlp": 48, "num_local_experts": 2, "head_dim": 8},
    **{"pad_token_id": None, "no_rope_layers": [1, 0]},
}
FAMILIES = {
    "gemma2": ({"sliding_window": 8, "head_dim": 8}, OwnForward()),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, OwnForward()),
    "qwen3_next": (LINEAR, OwnForward()),
    "mamba": ({"state_size": 8}, OwnForward(mixes_lengths=False)),
    "llama4_text": (CHUNKED, OwnForward(mixes_lengths=False)),
    "rwkv": ({"attention_hidden_size": 32}, OwnForward(WholeRows)),
}


class Words:
    def decode(self, tokens, **_):
        return " ".join(map(str, tokens))


def model_of(family):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES, **FAMILIES[family][0])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return causal_lm(model)


@for_every(FAMILIES)
def test_the_way_of_each_family_gives_the_logp_of_its_plain_forward(family):
    lm, expected = model_of(family), FAMILIES[family][1]
    found = own_forward(lm)
    assert (found.reader, found.mixes_lengths) == (expected.reader, expected.mixes_lengths)
    assert bool(found.reason) is (expected != OwnForward())
    engine = TorchEngine(lm, Words(), (1,), context=256, rows_per_batch=3, fast=False)
    lengths = [5, 12, 5, 21, 12, 3, 21]
    requests = [Request(tuple(range(2, 2 + length)), seed) for seed, length in enumerate(lengths)]
    samples = engine.generate(requests, Sampling(max_new_tokens=9))
    assert found.kind in str(engine.decode_path)
    for request, sample in zip(requests, samples, strict=True):
        assert tuple(sample.tokens[: len(request.tokens)].tolist()) == request.tokens
        with torch.no_grad():
            logits = lm.model(input_ids=sample.tokens[None], use_cache=False).logits[0, :-1]
        logp = logits.log_softmax(-1).gather(-1, sample.tokens[1:, None])[:, 0]
        chosen = sample.action[1:]
        torch.testing.assert_close(sample.behavior_logp[1:][chosen], logp[chosen], rtol=0, atol=5e-5)
    # who else is there changes nothing
    alone = [engine.generate([request], Sampling(max_new_tokens=9))[0] for request in requests[:3]]
    assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(alone, samples, strict=False))


def test_a_cache_that_forgets_is_not_used(monkeypatch):
    lm = model_of("gemma2")
    monkeypatch.setattr(CachedRows, "keep", lambda self, rows: None)
    found = own_forward(lm)
    assert found.reader is WholeRows and "differ" in found.reason
