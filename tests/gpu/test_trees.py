"""Rows that branch, on a GPU: trees teach what separate rows teach, and branches copy what another row has read."""

from dataclasses import replace

import pytest
import torch

from tests.gpu.test_decode import DTYPES, Numbers, tiny
from tests.model.test_prefix_trees import outcome
from tests.support.conversations import prompts_of
from tests.support.prefix_trees import random_tree

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"),
]


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("run", [(0, 4), (20, 90)])
def test_a_tree_teaches_what_separate_rows_teach(kind, precision, run, monkeypatch):
    from whet.data import prefix_tree
    from whet.model import token_logp as module
    from whet.model.causal_lm import causal_lm

    monkeypatch.setattr(prefix_tree, "LEAST_SHARED", 1)
    lm = causal_lm(tiny(kind), DTYPES[precision][0])
    for seed in range(4):
        rows = tuple(each.cuda() for each in random_tree(seed, depth=5 if run[1] > 4 else 8, run=run))
        shared = module.token_logp(lm, *rows)
        assert shared.computed < shared.flat
        ours, theirs = outcome(lm, rows, True), outcome(lm, rows, False)
        for mine, other in zip(ours, theirs, strict=True):
            gap = float((mine.float() - other.float()).norm() / other.float().norm())
            assert gap < (1e-4 if precision == "fp32" else 5e-2)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Olmo2"])
@pytest.mark.parametrize("at_once", [True, False])
def test_branches_copy_what_another_row_has_read(kind, at_once):
    from whet.model.causal_lm import causal_lm
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Request, Sampling, SessionShape

    sampling = Sampling(24)
    lm = causal_lm(tiny(kind))
    engine = TorchEngine(lm, Numbers(), [7, 11], context=512)
    (prompt,) = prompts_of(33)
    with engine.session(sampling, SessionShape(40, 40, 200)) as session:
        assert engine.uses_graphs
        session.add(0, Request(prompt, 3))
        written = {}
        while 0 not in written:
            written |= dict(session.advance())
        tokens = tuple(written[0].tokens.tolist())
        answers = [tuple(range(20, 60)), tuple(range(20, 60)), (*range(20, 53), 5), (*range(20, 60), 61, 62)]
        asked = [
            Request((*tokens, *added), 77 * number, continues=0 if not number else None)
            for number, added in enumerate(answers)
        ]
        before, found = replace(session.counts), {}
        for number, request in enumerate(asked, 1):
            session.add(number, request)
            while not at_once and number not in found:
                found |= dict(session.advance())
        while not session.is_idle:
            found |= dict(session.advance())
        counts = session.counts - before
    assert counts.forked > 40 and counts.continued == 1
    plain = TorchEngine(lm, Numbers(), [7, 11], context=512, fast=False)
    expected = plain.generate([replace(request, continues=None) for request in asked], sampling)
    for number, theirs in enumerate(expected, 1):
        assert found[number].completion == theirs.completion
        assert (found[number].behavior_logp - theirs.behavior_logp).abs()[theirs.action].max() < 1e-4
