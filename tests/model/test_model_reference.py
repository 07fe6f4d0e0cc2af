from __future__ import annotations

from typing import Any

import torch

from whet.model import frozen_copy, weights_digest


def test_reference_is_frozen_apart_and_equal(gpt2: Any, tokens: torch.Tensor) -> None:
    gpt2.train()
    gpt2(tokens, labels=tokens).loss.backward()
    before = weights_digest(gpt2)
    reference = frozen_copy(gpt2)
    assert not reference.training and gpt2.training
    assert all(not parameter.requires_grad and parameter.grad is None for parameter in reference.parameters())
    assert all(parameter.requires_grad for parameter in gpt2.parameters())
    assert any(parameter.grad is not None for parameter in gpt2.parameters())
    assert reference.lm_head.weight is reference.transformer.wte.weight
    with torch.no_grad():
        for parameter in gpt2.parameters():
            parameter.add_(1.0)
    assert weights_digest(reference) == before != weights_digest(gpt2)
    assert not reference(tokens).logits.requires_grad
