"""Packing is the model's business: in one row or padded, replies give the objective equal numbers."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from whet.data.packing import packed_rows
from whet.model.split import split_model
from whet.model.token_logp import Details, token_logp
from whet.objective import PRESETS, step_totals
from whet.types import Encoded, Extras

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))
from batches import asked_for, random_batch


def small_model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
    )
    return transformers.AutoModelForCausalLM.from_config(config).double().eval()


def padded_scores(model, batch):
    found = token_logp(
        split_model(model), batch.tokens, batch.action, details=Details(entropy_gradient=True, num_top=3)
    )
    return found.logp, Extras(entropy=found.entropy, top_logp=found.top_logp, chose_top=found.chose_top)


def packed_scores(model, batch):
    """All replies in one row, their scores laid back on [N, T]."""
    rows = [
        Encoded(tuple(tokens[: int(action.nonzero().max()) + 1].tolist()), tuple(action.tolist()))
        for tokens, action in zip(batch.tokens, batch.action, strict=True)
    ]
    rows = [replace(row, action=row.action[: len(row.tokens)]) for row in rows]
    packed = packed_rows(rows)
    assert packed.tokens.shape[0] == 1
    details = Details(packed.position_ids, entropy_gradient=True, num_top=3)
    found = token_logp(split_model(model), packed.tokens, packed.action, details=details)

    def placed(values):
        empty = torch.zeros((*batch.action.shape, *values.shape[2:]), dtype=values.dtype)
        mask = batch.action.reshape(*batch.action.shape, *[1] * (empty.ndim - 2)).expand_as(empty)
        return empty.masked_scatter(mask, values[packed.action])

    extras = Extras(*(placed(each) for each in (found.entropy, found.top_logp, found.chose_top)))
    return placed(found.logp), extras


@pytest.mark.parametrize("name", ["grpo", "gspo", "dr_grpo", "simko"])
def test_packed_and_padded_rows_teach_the_model_the_same(name):
    model, row = small_model(), PRESETS[name].objective
    batch, _ = random_batch(1, num_groups=2, group_size=3)
    batch = row.advantage(asked_for(batch, row), {})[0]
    found = []
    for scores in (padded_scores, packed_scores):
        model.zero_grad()
        logp, extras = scores(model, batch)
        row.loss(batch, logp, step_totals(batch, 16), extras).value.backward()
        found.append((logp.detach(), [parameter.grad.clone() for parameter in model.parameters()]))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-10, atol=1e-12)
    assert sum(float(each.norm()) for each in found[0][1]) > 1e-3
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-8, atol=1e-12)
