"""Rows that branch, as a tree of any depth: the numbers and the gradient of separate rows, each shared token once."""

import sys
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import transformers

import whet.model
from tests.model.test_shared_prefix import visible
from tests.model.test_shared_prefix_attention import SMALL, WINDOW, WORKS, model_of
from tests.support.for_every import for_every
from tests.support.prefix_trees import random_tree
from tests.support.rank_cases import tiny
from whet.data import prefix_tree
from whet.model import ragged_attention
from whet.model import token_logp as module
from whet.model.causal_lm import causal_lm
from whet.model.fused_trunk import fused_works
from whet.model.lora import LowRank, adapter_factors, add_adapters, merge_adapters
from whet.model.shared_prefix import shared_prefix_batch
from whet.model.token_logp import Details, shared_by, token_logp


@pytest.fixture(autouse=True)
def every_token(monkeypatch):
    """Runs of any length are shared."""
    monkeypatch.setattr(prefix_tree, "LEAST_SHARED", 1)


def tree_of(seed, **shape):
    tokens, action = random_tree(seed, **shape)
    tree = shared_prefix_batch(tokens, action, deep=True)
    assert tree is not None and tree.segments.is_deep
    return tokens, action, tree


def outcome(lm, rows, packed, **details):
    """Scores, and the gradient of a sum in which a token counts differently in every row, and not in proportion."""
    tokens, action = rows
    lm.model.zero_grad(set_to_none=True)
    found = token_logp(lm, tokens, action, 0.8, details=Details(packed=packed, **details))
    weight = torch.linspace(-1, 2, action.numel()).reshape(action.shape).to(found.logp)
    loss = (found.logp * weight).sum()
    if "coefficient" not in details:
        loss = loss + (found.logp.exp() * weight.square()).sum()
    for more in (found.top_logp, found.entropy if details.get("entropy_gradient") else None, found.states):
        loss = loss if more is None else loss + more.square().sum()
    loss.backward()
    grads = [each.grad.flatten() for each in lm.model.parameters() if each.grad is not None]
    return found.logp.detach(), found.entropy.detach(), torch.cat(grads)


def assert_same(ours, theirs, close=1e-10):
    for mine, other in zip(ours, theirs, strict=True):
        assert other.norm() > 1e-2
        assert float((mine - other).norm() / other.norm()) < close


@for_every(range(12))
def test_every_token_sees_its_own_prefix_and_nothing_else(seed):
    tokens, action, tree = tree_of(seed)
    seen = visible(tree)
    assert len(seen) == tree.size < tree.flat_size
    packed, positions = tree.tokens[0], tree.position_ids[0]
    for state, (row, column) in zip(tree.states.tolist(), action.nonzero().tolist(), strict=True):
        assert packed[seen[state]].tolist() == tokens[row, :column].tolist()
        assert positions[seen[state]].tolist() == list(range(column))


def test_a_tree_teaches_what_separate_rows_teach():
    lm, deepest = causal_lm(tiny()), 0
    for seed in range(10):
        tokens, action, tree = tree_of(seed)
        depth = [0]
        for node in tree.nodes[1:]:
            depth.append(0 if node.parent < 0 else depth[node.parent] + 1)
        deepest = max(deepest, *depth)
        assert_same(outcome(lm, (tokens, action), True), outcome(lm, (tokens, action), False))
    assert deepest >= 6


def test_with_adapters_and_whatever_else_a_method_wants():
    model = tiny()
    add_adapters(model, LowRank(3, 6.0))
    torch.manual_seed(5)
    with torch.no_grad():
        for name, factor in adapter_factors(model).items():
            if name.endswith(".up"):
                factor.normal_(0, 0.05)
    merge_adapters(model)
    lm = causal_lm(model)
    for seed in range(3):
        rows = random_tree(seed)
        for details in ({}, {"states": True}, {"entropy_gradient": True, "num_top": 2}):
            assert_same(outcome(lm, rows, True, **details), outcome(lm, rows, False, **details))


@pytest.mark.parametrize("kind", ["mistral", "gemma3", "gpt2"])
def test_windows_look_back_along_the_path(exact, kind):
    lm = causal_lm(model_of(WORKS[kind]()))
    rows = random_tree(1)
    assert rows[0].shape[1] > 2 * WINDOW
    assert_same(outcome(lm, rows, True), outcome(lm, rows, False))


def test_the_written_out_layers_take_trees():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).eval()
    lm = causal_lm(model)
    assert fused_works(lm)
    rows = random_tree(2)
    assert token_logp(lm, *rows).computed < token_logp(lm, *rows).flat
    assert_same(outcome(lm, rows, True), outcome(lm, rows, False), 1e-4)


def test_an_action_reaches_the_vocabulary_once(monkeypatch):
    counts, chunked = [], module.chunked_logp

    def watched(head, states, targets, *more):
        counts.append(len(targets))
        return chunked(head, states, targets, *more)

    monkeypatch.setattr(module, "chunked_logp", watched)
    tokens, action, tree = tree_of(3)
    found = token_logp(causal_lm(tiny()), tokens, action)
    acts = {tuple(tokens[row, : column + 1].tolist()) for row, column in action.nonzero().tolist()}
    assert counts == [len(acts)] and len(acts) < int(action.sum())
    assert (found.computed, found.flat) == (tree.size, tree.flat_size)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_known_coefficient_adds_up_over_the_rows(scale):
    lm, rows = causal_lm(tiny()), random_tree(4)
    weight = scale * torch.linspace(-1, 2, rows[1].numel()).double()[rows[1].flatten()]
    known = outcome(lm, rows, True, coefficient=lambda logp, which: weight[which])
    assert_same(known, outcome(lm, rows, False, coefficient=None))


def test_rows_that_pull_apart_leave_nothing_and_break_no_promise():
    """Equal rows with opposite weights: the sums are rounding, and are not held against the loss."""
    lm = causal_lm(tiny(dtype=torch.float32))
    tokens = torch.arange(2, 42).remainder(50).repeat(3, 1)
    action = torch.ones_like(tokens, dtype=torch.bool)
    action[:, 0] = False
    share = torch.tensor([0.1, 0.2, -0.3])[:, None].expand(tokens.shape)
    weights = share[action] * (1 + 1e-7 * torch.randn(int(action.sum()), generator=torch.Generator().manual_seed(0)))
    found = token_logp(lm, tokens, action, details=Details(coefficient=lambda logp, which: weights[which]))
    (found.logp * share).sum().backward()
    assert found.computed == 39
    assert all(each.grad.abs().max() < 1e-4 for each in lm.model.parameters() if each.grad is not None)


def test_a_mixture_shares_prompts_alone():
    """Its rows may have been routed apart where they were sampled."""
    config = WORKS["qwen3 moe"]()
    config.vocab_size = 61
    lm = causal_lm(model_of(config))
    rows = random_tree(2)
    assert shared_by(lm) == "prompts" and shared_by(causal_lm(tiny())) == "prefixes"
    found = token_logp(lm, *rows)
    assert found.computed == found.flat


def test_layers_without_attention_share_nothing():
    config = transformers.MambaConfig(vocab_size=61, hidden_size=24, num_hidden_layers=2)
    lm = causal_lm(model_of(config).float())
    rows = random_tree(2, depth=4)
    assert shared_by(lm) == "nothing" and token_logp(lm, *rows).computed == rows[0].numel()


def dense_forward(query, key, value, lengths, scale):
    """What the flash kernels give: of each segment by itself, the output and the logarithm of its normaliser."""
    queries, keys, _, _, _, causal = lengths
    groups = query.shape[1] // key.shape[1]
    outputs, norms = [], []
    for (start, stop), (first, last) in zip(pairwise(queries.tolist()), pairwise(keys.tolist()), strict=True):
        own, theirs, values = query[start:stop], key[first:last], value[first:last]
        scores = torch.einsum("qhe,khe->hqk", own, theirs.repeat_interleave(groups, 1)) * scale
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), float("-inf"))
        norms.append(scores.logsumexp(-1))
        outputs.append(torch.einsum("hqk,khe->qhe", scores.softmax(-1), values.repeat_interleave(groups, 1)))
    return torch.cat(outputs), torch.cat(norms, 1), torch.empty(0), torch.empty(0)


def dense_backward(tensors, lengths, noise, scale):
    """As the kernels do: from the joined output and normaliser, not those of the segment."""
    grad, query, key, value, output, norm = tensors
    queries, keys, _, _, _, causal = lengths
    groups = query.shape[1] // key.shape[1]
    grads = [torch.zeros_like(each) for each in (query, key, value)]
    for (start, stop), (first, last) in zip(pairwise(queries.tolist()), pairwise(keys.tolist()), strict=True):
        theirs, values = (each[first:last].repeat_interleave(groups, 1) for each in (key, value))
        scores = torch.einsum("qhe,khe->hqk", query[start:stop], theirs) * scale
        share = (scores - norm[:, start:stop, None]).exp()
        if causal:
            share = share.tril()
        along = (grad[start:stop] * output[start:stop]).sum(-1).T[:, :, None]
        lean = share * (torch.einsum("qhe,khe->hqk", grad[start:stop], values) - along) * scale
        grads[0][start:stop] = torch.einsum("hqk,khe->qhe", lean, theirs)
        for target, product in (
            (grads[1], torch.einsum("hqk,qhe->khe", lean, query[start:stop])),
            (grads[2], torch.einsum("hqk,qhe->khe", share, grad[start:stop])),
        ):
            target[first:last] = product.unflatten(1, (-1, groups)).sum(2)
    return tuple(grads)


@pytest.mark.parametrize("seed", range(4))
def test_one_softmax_from_a_call_for_each_level(monkeypatch, seed):
    """What runs on CUDA for trees of several levels, with the kernels' parts written out."""
    monkeypatch.setattr(ragged_attention, "_forward", dense_forward)
    monkeypatch.setattr(ragged_attention, "_backward", dense_backward)
    *_, tree = tree_of(seed)
    stream = torch.Generator().manual_seed(seed)
    heads = [torch.randn(tree.size, count, 8, generator=stream, dtype=torch.float64) for count in (4, 2, 2)]
    pull = torch.randn(tree.size, 4, 8, generator=stream, dtype=torch.float64)
    found = []
    for attend in (ragged_attention.ragged_attention, None):
        query, key, value = (each.clone().requires_grad_() for each in heads)
        if attend is not None:
            output = attend(query, key, value, tree.segments, 0.3)
        else:
            seen = torch.zeros(tree.size, tree.size, dtype=torch.bool)
            for token, prefix in visible(tree).items():
                seen[token, prefix] = True
            output = torch.nn.functional.scaled_dot_product_attention(
                *(each.transpose(0, 1)[None] for each in (query, key, value)),
                attn_mask=seen,
                scale=0.3,
                enable_gqa=True,
            )[0].transpose(0, 1)
        found.append((output.detach(), *torch.autograd.grad((output * pull).sum(), (query, key, value))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_own_kernels_are_used_only_where_they_give_what_torch_gives(monkeypatch):
    """On the trial's heads, with the kernels' parts written out: right ones are used, wrong gradients are told."""
    monkeypatch.setattr(ragged_attention, "_forward", dense_forward)
    monkeypatch.setattr(ragged_attention, "_backward", dense_backward)

    def forward(*values):
        output, norm, ours.noise = ragged_attention._flash_forward(*values)
        return output, norm

    def backward(grad, saved, segments, scale, targets, error=0.0):
        found = ragged_attention._flash_backward(grad, saved, segments, ours.noise, scale)
        for target, part in zip(targets, found.split([each.shape[1] for each in targets], 1), strict=True):
            target.copy_((1 + error) * part)

    case = (torch.device("cpu"), torch.float64, 4, 2, 8)
    refusal = ragged_attention._kernels_refusal.__wrapped__
    ours = SimpleNamespace(forward=forward, backward=backward)
    monkeypatch.setitem(sys.modules, "whet.model.prefix_attention_kernels", ours)
    monkeypatch.setattr(whet.model, "prefix_attention_kernels", ours, raising=False)
    assert refusal(*case) == ""
    ours.backward = partial(backward, error=0.1)
    with pytest.warns(UserWarning, match="not used: they differ from torch's by 1.0e-01"):
        assert refusal(*case) == "they differ from torch's by 1.0e-01"


def test_heads_that_torchs_kernels_take():
    def takes(num_heads, size, dtype=torch.bfloat16, is_cuda=True, value_size=None):
        query = SimpleNamespace(shape=(7, num_heads, size), dtype=dtype, is_cuda=is_cuda)
        value = SimpleNamespace(shape=(7, num_heads, value_size or size), dtype=dtype, is_cuda=is_cuda)
        return ragged_attention.ragged_works(query, query, value)

    assert takes(9, 64) and takes(3, 256, torch.float16)
    refused = {"size": takes(8, 60), "wide": takes(8, 264), "value": takes(8, 64, value_size=32)}
    refused |= {"dtype": takes(8, 64, torch.float32), "device": takes(8, 64, is_cuda=False)}
    assert not any(refused.values()), refused
