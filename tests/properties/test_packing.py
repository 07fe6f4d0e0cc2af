"""Packing is the model's business: as a tree or padded, completions give the objective equal numbers."""

import pytest
import torch
import transformers

from tests.support.oracle_batches import asked_for, random_batch
from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.token_logp import Details, token_logp
from whet.objective import PRESETS, step_totals
from whet.types import Extras


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


def scores(model, batch, packed):
    details = Details(entropy_gradient=True, num_top=3, packed=packed)
    found = token_logp(causal_lm(model), batch.tokens, batch.action, details=details)
    return found.logp, Extras(entropy=found.entropy, top_logp=found.top_logp, chose_top=found.chose_top)


@pytest.mark.parametrize("name", ["grpo", "gspo", "dr_grpo", "simko"])
def test_packed_and_padded_rows_teach_the_model_the_same(name, monkeypatch):
    model, objective = small_model(), PRESETS[name].objective
    batch, _ = random_batch(1, num_groups=2, group_size=3)
    batch = objective.advantage(asked_for(batch, objective), {})[0]
    sizes, hidden = [], CausalLM.hidden

    def watched(self, tokens, **more):
        sizes.append(tuple(tokens.shape))
        return hidden(self, tokens, **more)

    found = []
    for packed in (False, True):
        model.zero_grad()
        with monkeypatch.context() as patch:
            patch.setattr(CausalLM, "hidden", watched)
            logp, extras = scores(model, batch, packed)
        objective.loss(batch, logp, step_totals(batch, 16), extras).value.backward()
        found.append((logp.detach(), [parameter.grad.clone() for parameter in model.parameters()]))
    assert sizes[-1][0] == 1 < batch.num_sequences
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-10, atol=1e-12)
    assert sum(float(each.norm()) for each in found[0][1]) > 1e-3
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-8, atol=1e-12)
