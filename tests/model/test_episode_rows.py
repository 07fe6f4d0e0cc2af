"""Rows of several turns: what an environment wrote between the policy's tokens is context, on every path."""

import pytest
import torch
import transformers

from whet.model import token_logp as scores
from whet.model.causal_lm import causal_lm
from whet.model.fused_trunk import fused_works
from whet.model.token_logp import Details, token_logp

SMALL = {
    **{"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
}
# (prompt, tokens of the policy and of the environment in turn): groups of two and three, a row of its own
EPISODES = [
    (4, (3, 5, 2)),
    (4, (1, 4, 6, 2, 3)),
    (9, (2,)),
    (9, (5, 1, 1, 1, 1)),
    (9, (1, 7, 4)),
    (6, (3, 2, 3)),
    (4, (6, 3)),  # ends with an answer that nothing follows
]


def episodes():
    stream = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 61, (len(EPISODES), 24), generator=stream)
    action = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, (prompt, spans) in enumerate(EPISODES):
        tokens[row, :prompt] = torch.arange(prompt) + prompt
        start = prompt
        for number, span in enumerate(spans):
            action[row, start : start + span] = number % 2 == 0
            start += span
    return tokens, action


def model_of(dtype):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SMALL)).to(dtype).eval()


def plain(model, tokens, action):
    """Row by row and unpacked, without what follows the row's last token of the policy."""
    found = torch.zeros(tokens.shape, dtype=next(model.parameters()).dtype)
    for row in range(len(tokens)):
        last = int(action[row].nonzero().max())
        logp = model(input_ids=tokens[row : row + 1, :last]).logits[0].log_softmax(-1)
        picked = logp.gather(-1, tokens[row, 1 : last + 1, None])[:, 0]
        found[row, 1 : last + 1] = torch.where(action[row, 1 : last + 1], picked, 0.0)
    return found


def gradients(model, logp):
    weights = torch.rand(logp.shape, generator=torch.Generator().manual_seed(2)).to(logp.dtype)
    model.zero_grad()
    (logp * weights).sum().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters()}


@pytest.mark.parametrize("path", ["fused", "packed", "padded", "details"])
def test_logp_and_gradients_of_rows_with_several_turns(path, monkeypatch):
    dtype = torch.float32 if path == "fused" else torch.float64
    model = model_of(dtype)
    lm, (tokens, action) = causal_lm(model, dtype), episodes()
    taken = []
    for name in ("fused_states", "shared_prefix_states"):
        real = getattr(scores, name)
        monkeypatch.setattr(scores, name, lambda *given, name=name, real=real: taken.append(name) or real(*given))
    details = {"padded": Details(packed=False), "details": Details(num_top=2)}.get(path)
    found = token_logp(lm, tokens, action, details=details).logp
    expected = {"fused": ["fused_states"], "padded": []}.get(path, ["shared_prefix_states"])
    assert taken == expected and fused_works(lm) == (path == "fused")
    assert not found[~action].any() and (found[action] < 0).all()
    ours, theirs = gradients(model, found), plain(model, tokens, action)
    tolerance = 1e-4 if path == "fused" else 1e-6  # norms are float32 in every model
    torch.testing.assert_close(found, theirs, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours, gradients(model, theirs), rtol=tolerance, atol=tolerance)
