"""Smaller models out of larger ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from whet.model.load import load_model
from whet.model.prune import evenly_spaced_layers, fewer_layers, new_weights, save_smaller
from whet.types import WhetError

TOKENS = torch.tensor([[5, 9, 30, 2, 77]])


def test_kept_layers_are_spread_and_hold_both_ends() -> None:
    assert evenly_spaced_layers(30, 15)[0] == 0 and evenly_spaced_layers(30, 15)[-1] == 29
    assert len(set(evenly_spaced_layers(30, 15))) == 15
    assert (
        evenly_spaced_layers(3, 2) == [0, 2]
        and evenly_spaced_layers(3, 3) == [0, 1, 2]
        and evenly_spaced_layers(3, 1) == [0]
    )


@pytest.mark.parametrize("count", [0, 4])
def test_a_count_that_cannot_be_is_refused_with_the_range(count: int) -> None:
    with pytest.raises(WhetError, match="give 1 to 3"):
        evenly_spaced_layers(3, count)


def test_all_layers_are_the_model_itself_and_fewer_are_those_layers() -> None:
    model = load_model("whetstone").model
    with torch.no_grad():
        assert torch.equal(fewer_layers(model, [0, 1, 2])(TOKENS).logits, model(TOKENS).logits)
        smaller = fewer_layers(model, [0, 2])
        # the same by hand: the larger model with its middle layer taken out
        del model.model.layers[1]
        for place, layer in enumerate(model.model.layers):
            layer.self_attn.layer_idx = place
        model.config.num_hidden_layers = 2
        assert torch.equal(smaller(TOKENS, use_cache=False).logits, model(TOKENS, use_cache=False).logits)


def test_new_weights_follow_the_seed_alone() -> None:
    model = load_model("whetstone").model
    one, again, other = (new_weights(model, 2, seed).state_dict() for seed in (1, 1, 2))
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(one[name], again[name]) and not torch.equal(one[name], other[name])


def test_a_saved_student_is_a_model_that_whet_loads(tmp_path: Path) -> None:
    before, after = save_smaller("whetstone", tmp_path / "student", 1)
    loaded = load_model(str(tmp_path / "student"))
    assert loaded.model.num_parameters() == after < before
    assert not list(tmp_path.glob(".*"))
