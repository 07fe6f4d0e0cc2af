"""Shapes of models: by name, by size, by their sizes, and from a config.json."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.support.for_every import for_every
from whet.tools.planner.shapes import BY_SIZE, NAMED, folder_shape, named_shape, shape_from_config, shape_of_size
from whet.types import WhetError

# millions of weights, as the models' own pages say
PUBLISHED = {
    **{
        "smollm2-135m": 134.5,
        "smollm2-360m": 361.8,
        "smollm2-1.7b": 1711.4,
        "qwen2.5-0.5b": 494.0,
        "qwen2.5-7b": 7615.6,
    },
    **{
        "qwen2.5-72b": 72706.2,
        "qwen3-0.6b": 596.0,
        "qwen3-8b": 8190.7,
        "llama-3.1-8b": 8030.3,
        "llama-3.1-70b": 70553.7,
    },
    **{"llama-7b": 6738.4, "mistral-7b": 7248.0, "qwen3-30b-a3b": 30532.1, "llama-3.2-1b": 1235.8},
}


@for_every(PUBLISHED)
def test_a_named_shape_has_the_published_number_of_weights(name):
    assert NAMED[name].weights / 1e6 == pytest.approx(PUBLISHED[name], rel=1e-3)


def test_weights_and_adapters_are_those_of_a_real_model():
    from transformers import AutoModelForCausalLM, LlamaConfig

    from whet.model.lora import LowRank, adapter_factors, add_adapters

    config = LlamaConfig(
        hidden_size=32, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100, tie_word_embeddings=False, attention_bias=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    shape = shape_from_config(config.to_dict(), "tiny")
    biases = 3 * 32  # of the output product, which whet's shape does not know
    assert shape.weights == sum(each.numel() for each in model.parameters()) - biases
    add_adapters(model, LowRank(4, 8.0))
    assert shape.adapter_weights(4) == sum(each.numel() for each in adapter_factors(model).values())


def test_a_size_is_a_usual_model_or_one_like_it():
    assert named_shape("7B") is NAMED["qwen2.5-7b"] and named_shape(" 0.5b ") is NAMED["qwen2.5-0.5b"]
    assert set(BY_SIZE.values()) <= set(NAMED)
    for billions in (0.01, 0.05, 0.9, 5.5, 20.0, 400.0, 9000.0):
        assert shape_of_size(billions).weights / 1e9 == pytest.approx(billions, rel=0.02), billions
    tiny = shape_of_size(0.01)  # every direction shrinks, none to nothing
    assert 100 < tiny.hidden < 400 and 5 < tiny.layers < 20 and tiny.vocabulary > 10_000
    assert named_shape("350M").weights / 1e6 == pytest.approx(350, rel=0.02)
    assert named_shape("my-model") is None


def test_a_shape_can_be_written_out():
    assert named_shape("hidden=1,layers=1").layers == 1
    shape = named_shape("hidden=64,layers=2,heads=4,kv_heads=2,head_dim=16,inner=128,vocab=100,tied=false")
    assert (shape.key_heads, shape.head_size, shape.vocabulary, shape.tied) == (2, 16, 100, False)
    assert shape.weights == 2 * (64 * (2 * 64 + 2 * 32) + 3 * 64 * 128 + 2 * 64) + 64 + 2 * 6400


@for_every(
    [
        ("hidden=64", "has no layers"),
        ("hidden=64,layers=x", "layers is 'x'; give a whole number"),
        ("hidden=64,layers=2,hedas=4", "'hedas=4' is none of its sizes (did you mean 'heads'?)"),
        ("hidden=0,layers=2", "give hidden from 1"),
        ("hidden=64,layers=0", "layers from 1 to 10000"),
        ("hidden=64,layers=2,heads=4,key_heads=3", "4 heads cannot share 3 key heads"),
        ("0.0001B", "give a size from 10M to 10000B"),
    ]
)
def test_a_shape_that_cannot_be_is_refused(text, line):
    with pytest.raises(WhetError, match=r".") as error:
        named_shape(text)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_a_folder_is_counted_by_its_files(tmp_path):
    values = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 10, "model_type": "odd"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert folder_shape(tmp_path, "odd").stored is None
    save_file({"a": torch.zeros(30, 10), "b": torch.zeros(7)}, tmp_path / "model.safetensors")
    save_file({"m": torch.zeros(1000)}, tmp_path / "optimizer.safetensors")
    assert folder_shape(tmp_path, "odd").weights == 307
    (tmp_path / "model.safetensors").write_bytes(b"no such thing")
    assert folder_shape(tmp_path, "odd").stored is None
    for text, line in (("{", "is not JSON"), ("[]", "holds no table"), ("{}", "does not say hidden")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(WhetError, match=line):
            folder_shape(tmp_path, "odd")


def test_mixtures_count_every_expert_and_use_a_few():
    shape = NAMED["qwen3-30b-a3b"]
    assert shape.anatomy.used_weights / 1e9 == pytest.approx(3.05, rel=0.02)
