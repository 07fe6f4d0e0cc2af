"""The model that comes with the package: what it is, that its recipe makes it, and where it starts from."""

import importlib.util
import json
import tomllib
from pathlib import Path

import pytest
import torch

import whet
from whet.model.load import BUILTIN
from whet.training.config import resolved

FOLDER = BUILTIN / "whetstone"
ROOT = Path(__file__).parents[2]
START_BAND = (0.02, 0.40)  # greedy accuracy on the default task before any reinforcement learning


def recipe():
    spec = importlib.util.spec_from_file_location("whetstone_recipe", ROOT / "recipes" / "whetstone.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_small_and_loads_with_transformers():
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) < 5_000_000
    model, tokenizer = AutoModelForCausalLM.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)
    assert isinstance(model, LlamaForCausalLM)
    tokens = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Sort 3 1 2"}], add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    written = model.generate(tokens, max_new_tokens=20, do_sample=False)
    assert tokenizer.decode(written[0, tokens.shape[1] :], skip_special_tokens=True) == "<answer>1 2 3</answer>"


@pytest.mark.parametrize("text", ["7*3=1;1+5=6", "Grüße, ✓ 数学\n\t x", "<think>a</think><answer>b</answer>", ""])
def test_its_tokenizer_loses_nothing(text):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("<think>")["input_ids"]) == 1


def test_the_recipe_makes_this_tokenizer_and_this_config(tmp_path):
    recipe().write(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
    ours, shipped = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path, FOLDER))
    for values in (ours, shipped):
        values.pop("transformers_version")
    assert ours == shipped
    from safetensors.torch import load_file

    scratch, trained = load_file(tmp_path / "model.safetensors"), load_file(FOLDER / "model.safetensors")
    assert {name: value.shape for name, value in scratch.items()} == {
        name: value.shape for name, value in trained.items()
    }
    assert any(not torch.equal(scratch[name], trained[name]) for name in scratch)


def test_the_recipe_trains_on_the_built_in_tasks():
    values = tomllib.loads((ROOT / "recipes" / "whetstone.toml").read_text())
    config = resolved("sft", values)
    assert config.data.source == "task:arithmetic+countdown+lists" and 0.2 < config.data.share_worked < 0.5


def test_where_it_starts_from_is_in_the_stated_band():
    marks = whet.evaluate("whetstone", settings={"model": {"threads": 1}})
    assert START_BAND[0] < marks["accuracy"] < START_BAND[1]
    # it knows how to work the answer out, and mostly does not bother: that is what a run changes
    tried = whet.evaluate("whetstone", samples=8, settings={"model": {"threads": 1}, "eval": {"prompts": 60}})
    assert 0.25 < tried["pass@1"] < 0.6 and tried["pass@8"] > 0.85


@pytest.mark.slow
def test_the_recipe_leads_there(tmp_path):
    """The whole recipe from scratch, many minutes on a CPU: another model of the same kind, with the same start."""
    recipe().write(tmp_path / "scratch")
    values = tomllib.loads((ROOT / "recipes" / "whetstone.toml").read_text())
    values["model"]["name"] = str(tmp_path / "scratch")
    run = whet.train("sft", config=values, folder=str(tmp_path / "run"))
    settings = {"data": {"source": "task:arithmetic", "difficulty": 3}, "eval": {"prompts": 100}}
    greedy = whet.evaluate(str(run.folder), settings=settings)
    tried = whet.evaluate(str(run.folder), samples=8, settings=settings)
    print(greedy, tried)
    assert START_BAND[0] < greedy["accuracy"] < START_BAND[1]
    assert 0.25 < tried["pass@1"] < 0.6 and tried["pass@8"] > 0.85
