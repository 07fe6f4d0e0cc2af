from __future__ import annotations

import copy
from typing import Any

import torch

from whet.model.causal_lm import causal_lm
from whet.model.checkpoint import weights_digest
from whet.model.reference import CopiedReference, ReloadedReference


def test_reference_is_frozen_apart_and_equal(gpt2: Any, tokens: torch.Tensor) -> None:
    gpt2.train()
    gpt2(tokens, labels=tokens).loss.backward()
    before = weights_digest(gpt2)
    with CopiedReference(causal_lm(gpt2)).open() as held:
        reference = held.model
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


def other_weights(model: Any) -> Any:
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for number, parameter in enumerate(twin.parameters()):
            parameter.add_(0.1 * (number + 1))
    return twin


def test_a_held_reference_follows_the_policy_by_the_share_it_does_not_keep(llama: Any) -> None:
    policy, first = causal_lm(other_weights(llama)), dict(llama.named_parameters())
    reference = CopiedReference(causal_lm(llama))
    reference.follow(policy, share=0.75)
    now = reference.tensors()
    for name, parameter in policy.model.named_parameters():
        torch.testing.assert_close(now[name], 0.75 * first[name].detach() + 0.25 * parameter.detach())
    reference.follow(policy, share=0.0)
    now = reference.tensors()
    assert all(torch.equal(now[name], parameter) for name, parameter in policy.model.named_parameters())
    with reference.open() as lm:
        assert not any(parameter.requires_grad for parameter in lm.model.parameters())


def test_a_held_reference_is_restored(llama: Any) -> None:
    first, second = CopiedReference(causal_lm(other_weights(llama))), CopiedReference(causal_lm(llama))
    second.restore(first.tensors())
    assert all(torch.equal(value, second.tensors()[name]) for name, value in first.tensors().items())


def test_a_reloaded_reference_is_read_anew_each_time_and_cannot_learn(llama: Any) -> None:
    reads = []

    def load() -> Any:
        reads.append(1)
        return causal_lm(copy.deepcopy(llama))

    reference = ReloadedReference(load)
    assert not reads
    for _ in range(2):
        with reference.open() as lm:
            assert not lm.model.training and not any(each.requires_grad for each in lm.model.parameters())
    assert len(reads) == 2
