"""A trial is made once per checkpoint in a process, and again for whatever is not that checkpoint."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from whet.model import fused_trunk, hooked_decode, trials
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.model.trials import verdict
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sampling


def tried(name, *models, **settings):
    """How many of the models were tried out, one after the other."""
    made = []
    for model in models:
        assert verdict(name, causal_lm(model, **settings), lambda: made.append(1) or "no") == "no"
    return len(made)


def test_a_checkpoint_that_is_read_again_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(trials, "_VERDICTS", {})
    assert tried("again", *(load_model("whetstone").model for _ in range(3))) == 1
    assert tried("another trial", load_model("whetstone").model) == 1
    assert tried("again", load_model("whetstone").model, dtype=torch.bfloat16) == 1


def test_other_weights_and_other_modules_are_another_model(monkeypatch):
    monkeypatch.setattr(trials, "_VERDICTS", {})  # where something is patched, a model that was made here is tried anew
    moved, hooked, replaced = (load_model("whetstone").model for _ in range(3))
    with torch.no_grad():
        moved.model.layers[1].mlp.up_proj.weight[0, 0] += 1e-3
    hooked.model.layers[0].register_forward_hook(lambda *_: None)
    replaced.model.layers[0].mlp.act_fn = torch.nn.GELU()
    assert tried("changed", load_model("whetstone").model, moved, hooked, replaced) == 4
    assert tried("changed", hooked, hooked) == 2  # what a hook does is not known
    small = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    fresh = LlamaForCausalLM(LlamaConfig(**small, num_attention_heads=2))
    assert tried("made here", fresh, fresh) == 2  # of no checkpoint


def test_a_long_trial_without_a_finding_is_noted_for_the_next_process(tmp_path, monkeypatch):
    def made_in_a_new_process(said):
        made = []
        monkeypatch.setattr(trials, "_VERDICTS", {})
        assert verdict("long", causal_lm(load_model("whetstone").model), lambda: made.append(1) or said) == said
        return len(made)

    monkeypatch.setenv("WHET_CACHE", str(tmp_path))
    assert [made_in_a_new_process("") for _ in range(2)] == [1, 1] and not list(tmp_path.iterdir())  # quick ones
    monkeypatch.setattr(trials, "LONG", -1.0)
    assert [made_in_a_new_process("no") for _ in range(2)] == [1, 1]  # what is wrong is looked at again
    assert [made_in_a_new_process("") for _ in range(3)] == [1, 0, 0]
    monkeypatch.setattr(trials, "_software", lambda: ("another version",))
    assert made_in_a_new_process("") == 1
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    assert made_in_a_new_process("") == 1  # nowhere to note it


def test_what_is_built_on_an_earlier_verdict_writes_what_the_plain_engine_does(monkeypatch):
    def engine(fast):
        loaded = load_model("whetstone")
        lm = causal_lm(loaded.model)
        return TorchEngine(lm, loaded.tokenizer, loaded.end_tokens, context=loaded.context, fast=fast), lm

    monkeypatch.setattr(trials, "_VERDICTS", {})  # from here on a verdict is about one checkpoint, as in a run
    first, lm = engine(fast=True)
    assert first.decode_path.kind == "fused decoder" and not fused_trunk.fused_refusal(lm)
    monkeypatch.setattr(hooked_decode, "_disagreement", lambda *_: "tried again")
    monkeypatch.setattr(fused_trunk, "_layers_refusal", lambda *_: "tried again")
    second, lm = engine(fast=True)
    assert second.decode_path == first.decode_path and not fused_trunk.fused_refusal(lm)
    requests = [Request(tuple(range(5, 12 + number)), number) for number in range(3)]
    written, plain = (each.generate(requests, Sampling(max_new_tokens=6)) for each in (second, engine(fast=False)[0]))
    assert [sample.tokens.tolist() for sample in written] == [sample.tokens.tolist() for sample in plain]
