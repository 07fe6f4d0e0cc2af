"""Chunked log-probabilities against the plain computation, values and gradients."""

import pytest
import torch
import transformers

from whet.model import head as vocabulary
from whet.model.causal_lm import causal_lm
from whet.model.token_logp import Details, token_logp

SMALL = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}


def model_of(kind="llama"):
    torch.manual_seed(0)
    configs = {
        "llama": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
        "gemma2": lambda: transformers.Gemma2Config(**SMALL, head_dim=12, final_logit_softcapping=5.0),
        "granite": lambda: transformers.GraniteConfig(**SMALL, logits_scaling=3.0),
        "cohere": lambda: transformers.CohereConfig(**SMALL, logit_scale=0.25),
        "gpt2": lambda: transformers.GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=2, n_positions=128),
    }
    return transformers.AutoModelForCausalLM.from_config(configs[kind]()).double().eval()


def batch():
    stream = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 61, (5, 14), generator=stream)
    action = torch.rand(5, 14, generator=stream) > 0.4
    action[:, 0] = False
    return tokens, action


def plain(model, tokens, action, temperature):
    logits = model(input_ids=tokens).logits[:, :-1] / temperature
    logp = logits.log_softmax(-1)
    picked = logp.gather(-1, tokens[:, 1:, None])[..., 0]
    entropy = -(logp.exp() * logp).sum(-1)
    zero = torch.zeros(len(tokens), 1, dtype=picked.dtype)
    return [torch.where(action, torch.cat([zero, each], 1), 0.0) for each in (picked, entropy)]


def test_a_trunk_is_told_from_its_head_whatever_dropout_a_model_trains_with():
    model = model_of("gpt2").train()
    assert model.config.resid_pdrop > 0
    assert not causal_lm(model).whole and model.training and all(module.training for module in model.modules())


@pytest.mark.parametrize("kind", ["llama", "gemma2", "granite", "cohere", "gpt2"])
@pytest.mark.parametrize(("temperature", "chunk"), [(0.7, 1), (1.0, 61 * 4), (0.7, 1 << 22)])
def test_values_and_gradients_equal_the_plain_ones(exact, kind, temperature, chunk, monkeypatch):
    monkeypatch.setattr(vocabulary, "CHUNK_ELEMENTS", chunk)
    model = model_of(kind)
    lm = causal_lm(model)
    assert not lm.whole
    tokens, action = batch()
    weights = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gradients = []
    for scores in (
        lambda: token_logp(lm, tokens, action, temperature),
        lambda: plain(model, tokens, action, temperature),
    ):
        model.zero_grad()
        found = scores()
        logp, entropy = (found.logp, found.entropy) if not isinstance(found, list) else found
        (logp * weights).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        values = (logp.detach(), entropy.detach())
        if len(gradients) == 1:
            ours = values
    torch.testing.assert_close(ours, values, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("whole", [False, True], ids=["logp", "more"])
def test_logits_are_built_a_chunk_at_a_time(monkeypatch, whole):
    """[N, T, V] never exists: the largest logits tensor stays within the bound, also in the backward pass."""
    monkeypatch.setattr(vocabulary, "CHUNK_ELEMENTS", 61 * 7)
    lm = causal_lm(model_of())
    sizes = []
    tokens, action = batch()
    if whole:  # what wants more of the distribution takes the other path
        monkeypatch.setattr(type(lm), "logits", lambda self, hidden: sizes.append(len(hidden)) or self.head(hidden))
    else:
        logits = vocabulary._Chunks.logits
        monkeypatch.setattr(vocabulary._Chunks, "logits", lambda self, rows: _noted(logits(self, rows), sizes))
    token_logp(lm, tokens, action, details=Details(entropy_gradient=whole)).logp.sum().backward()
    assert max(sizes) == 7 and sum(sizes) == 2 * int(action.sum())


def _noted(logits, sizes):
    sizes.append(len(logits))
    return logits


def test_a_support_is_renormalised_on():
    model = model_of()
    lm = causal_lm(model)
    tokens, action = batch()
    support = torch.full((*tokens.shape, 4), -1, dtype=torch.int32)
    support[..., 0] = tokens
    support[..., 1] = (tokens + 7) % 61
    support[..., 2] = (tokens + 20) % 61
    found = token_logp(lm, tokens, action, 0.9, support).logp
    logits = model(input_ids=tokens).logits / 0.9
    for row, column in action.nonzero().tolist():
        kept = support[row, column][:3].long()
        expected = logits[row, column - 1][tokens[row, column]] - logits[row, column - 1][kept].logsumexp(-1)
        assert found[row, column].item() == pytest.approx(expected.item(), rel=1e-9)


def test_a_support_may_name_what_could_not_be_drawn_or_nothing(exact):
    model, (tokens, action) = model_of(), batch()
    lm = causal_lm(model)
    allowed = torch.rand(*tokens.shape, 61, generator=torch.Generator().manual_seed(4)) > 0.5
    allowed.scatter_(-1, tokens[..., None], True)
    allowed[1] = True
    support = torch.full((*tokens.shape, 61), -1, dtype=torch.int32)
    for row, column in action.nonzero().tolist():
        listed = allowed[row, column].nonzero()[:, 0]
        others = (~allowed[row, column]).nonzero()[:, 0]
        ids = listed if row % 2 == 0 else -2 - others  # of row 1 nothing is named: everything could be drawn
        support[row, column, : len(ids)] = ids
    gradients, scores = [], []
    for way in ("ours", "plain"):
        model.zero_grad()
        if way == "ours":
            logp = token_logp(lm, tokens, action, 0.7, support).logp[action]
        else:
            logits = model(input_ids=tokens).logits / 0.7
            logits = torch.cat([logits[:, :1], logits[:, :-1]], 1).masked_fill(~allowed, float("-inf"))
            logp = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0][action]
        (logp * torch.linspace(-1, 2, len(logp), dtype=torch.float64)).sum().backward()
        gradients.append(torch.cat([each.grad.flatten() for each in model.parameters()]))
        scores.append(logp.detach())
    torch.testing.assert_close(*scores, rtol=0, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-11)


def test_a_model_that_does_more_behind_its_trunk_keeps_its_head():
    model = model_of()
    forward = model.forward

    def stranger(**inputs):
        output = forward(**inputs)
        output.logits = output.logits * 1.5
        return output

    model.forward = stranger
    lm = causal_lm(model)
    assert lm.whole
    tokens, action = batch()
    expected = plain(lambda input_ids: stranger(input_ids=input_ids), tokens, action, 1.0)[0]
    torch.testing.assert_close(token_logp(lm, tokens, action).logp, expected)


def test_the_first_token_cannot_be_an_action():
    tokens, action = batch()
    with pytest.raises(ValueError, match="no prefix"):
        token_logp(causal_lm(model_of()), tokens, torch.ones_like(action))
