"""`whet plan` as it is typed: the page, JSON, and one line for each mistake."""

import json
import sys

import pytest

from whet import cli


def run(monkeypatch, capsys, *words):
    chosen = () if "--method" in words else ("--method", "grpo")
    monkeypatch.setattr(sys, "argv", ["whet", "plan", *chosen, *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_a_plan_is_printed_before_anything_starts(monkeypatch, capsys):
    words = ("--model", "7B", "--method", "ppo", "--gpus", "4x80GB", "--prompt", "512", "--completion", "4096")
    code, out, _ = run(monkeypatch, capsys, *words)
    assert code == 0
    for part in (
        "policy: weights in shards, fp32",
        "critic: gradients",
        "reference: weights",
        "keys and values",
        "activations",
    ):
        assert part in out
    for part in (
        "head: a chunk of logits",
        "does not fit",
        "--set critic.trunk=shared",
        "seconds per step",
        "results/",
    ):
        assert part in out
    code, text, _ = run(monkeypatch, capsys, *words, "--json")
    record = json.loads(text)
    assert code == 0 and record["fits"] is False and record["memory"]["bytes"] > 80e9 and record["suggestions"]


def test_settings_change_the_plan(monkeypatch, capsys):
    def planned(*words):
        code, out, err = run(monkeypatch, capsys, "--model", "1.5B", "--json", *words)
        assert code == 0, err
        return json.loads(out)["memory"]["bytes"]

    plain = planned()
    assert planned("--set", "model.lora=16") < plain
    assert planned("--set", "objective.kl=none") < plain
    assert planned("--set", "model.recompute=layers") < planned("--set", "model.recompute=none")
    assert planned("--set", "batch.micro_batch_tokens=2048") < plain
    assert planned("--set", "model.precision=fp32") > plain
    assert planned("--reward-model", "7B") > plain
    assert planned("--method", "sft") < plain < planned("--method", "ppo")
    assert planned("--method", "dpo", "--set", "preference.reference_logp=stored") < planned("--method", "dpo")
    assert planned("--method", "rm") > 0


def test_lengths_that_nobody_gave_are_those_that_the_context_holds(monkeypatch, capsys):
    def lengths(method, *words):
        code, out, err = run(monkeypatch, capsys, "--model", "whetstone", "--method", method, *words)
        assert code == 0, err
        return out.splitlines()[1].split(", ")[1]

    assert [lengths(method) for method in ("grpo", "sft", "dpo")] == ["448 + up to 64 tokens"] * 3
    assert lengths("rm") == "256 + up to 256 tokens"
    assert lengths("rm", "--completion", "100") == lengths("grpo", "--completion", "100") == "412 + up to 100 tokens"
    code, _, err = run(monkeypatch, capsys, "--model", "whetstone", "--prompt", "512")
    assert code == 2 and err.endswith("that whetstone has; give fewer (--prompt, --completion)\n")


def test_a_model_is_named_in_many_ways(monkeypatch, capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    values = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    (tmp_path / "mine" / "config.json").write_text(json.dumps(values))
    for model in (str(tmp_path / "mine"), "smollm2", "llama-7b", "33M", "hidden=64,layers=2"):
        code, out, err = run(monkeypatch, capsys, "--model", model, "--json")
        assert code == 0 and json.loads(out)["model"]["weights"] > 0, err
    assert run(monkeypatch, capsys, "--model", "whetstone", "--prompt", "64", "--gpus", "cpu:4GB")[0] == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--model", "gpt9"), "no model or shape is called 'gpt9'"),
        (("--model", "qwen2.5-7"), "did you mean 'qwen2.5-7b'?"),
        (("--model", "hidden=8"), "has no layers; give at least"),
        (("--model", "some.gguf"), "a plan reads no .gguf; give its shape"),
        (("--gpus", "8x"), "give a count and a memory such as 8x80GB"),
        (("--gpus", "0x80GB"), "0 devices"),
        (("--gpus", "4xV900"), "no card is called 'V900'"),
        (("--method", "pppo"), "did you mean 'ppo'?"),
        (("--prompt", "0"), "greater than or equal to 1"),
        (("--completion", "50000"), "exceed the context of 32768 that qwen2.5-7b has"),
        (("--set", "batch.grop_size=4"), "batch.grop_size"),
        (("--method", "sft", "--reward-model", "7B"), "--reward-model has no effect: sft draws no completions"),
        (("--method", "sft", "--set", "batch.group_size=4"), "group_size"),
        (("--reward-seconds", "1"), "have no effect without --simulate"),
        (("--simulate", "--gpus", "cpu:8GB"), "--simulate needs devices whose rates were measured"),
        (("--simulate", "--method", "sft"), "sft draws no completions"),
        (("--simulate", "--gpus", "4xH100", "--set", "scale.engines=4"), "leave no device to train on"),
        (("--simulate", "--mean-length", "9000"), "--mean-length is 9000 and the longest completion 512 tokens"),
    ],
)
def test_each_mistake_is_one_line(monkeypatch, capsys, words, line):
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 2 and out == "" and line in err and err.count("\n") == 1 and "Traceback" not in err


def test_a_model_of_the_hub_that_cannot_be_reached_names_a_shape(monkeypatch, capsys):
    monkeypatch.setattr("whet.tools.planner.from_config.hub_file", lambda name, file: None)
    code, _, err = run(monkeypatch, capsys, "--model", "Qwen/Qwen2.5-7B-Instruct")
    assert code == 2 and "give qwen2.5-7b, which has its shape" in err
