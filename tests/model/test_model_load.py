from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import save_checkpoint
from whet.model import load as room
from whet.model.checkpoint import weights_digest
from whet.model.load import builtin_models, device_choice, dtype_choice, load_model
from whet.model.pretrained import import_loader
from whet.types import WhetError


def refusal(name: object) -> str:
    with pytest.raises(WhetError) as caught:
        load_model(str(name))
    message = str(caught.value)
    assert "\n" not in message
    return message


def edit_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_machine_without_memory_or_threads_is_no_fault_of_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, fix in (
        (RuntimeError("can't start new thread"), "ulimit -a"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "ulimit -a"),
        (MemoryError(), "ulimit -a"),
        (ValueError("a header of 0 bytes"), "download the folder again"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(room, "read_pair", lambda *_, error=error: (_ for _ in ()).throw(error))
            assert fix in refusal(folder)


def test_folder_gives_the_same_model(folder: Path, llama: Any, tokens: torch.Tensor) -> None:
    loaded = load_model(str(folder))
    assert torch.equal(loaded.model(tokens).logits, llama(tokens).logits)
    assert weights_digest(loaded.model) == weights_digest(llama)
    assert loaded.source == str(folder)
    assert loaded.context == 96
    assert loaded.end_tokens == (1,)
    assert not loaded.model.training
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert loaded.model.config._attn_implementation == "sdpa"
    assert loaded.tokenizer.decode(loaded.tokenizer("12 + 3")["input_ids"]) == "12 + 3"


def test_dtype_is_the_one_asked_for(folder: Path) -> None:
    loaded = load_model(str(folder), dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}


def test_dropout_is_off_even_while_training(tmp_path: Path, gpt2: Any, tokenizer: Any, tokens: torch.Tensor) -> None:
    gpt2.train()
    assert not torch.equal(gpt2(tokens).logits, gpt2(tokens).logits), "the fixture must have dropout"
    gpt2.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path))
    assert not loaded.model.training
    loaded.model.train()
    assert torch.equal(loaded.model(tokens).logits, gpt2.eval()(tokens).logits)
    assert loaded.context == 48


def test_functional_dropout_is_off_too(tmp_path: Path, tokenizer: Any, tokens: torch.Tensor, llama: Any) -> None:
    llama.config.attention_dropout = 0.5
    llama.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_model(str(tmp_path)).model.train()
    assert torch.equal(model(tokens).logits, model(tokens).logits)


def test_padding_falls_back_to_the_end_token(folder: Path) -> None:
    loaded = load_model(str(folder))
    assert loaded.tokenizer.pad_token == "</s>"
    assert loaded.model.get_input_embeddings().weight.shape[0] == 260
    assert len(loaded.tokenizer) == 260


def test_padding_token_outside_the_embedding_is_replaced(folder: Path, tokenizer: Any) -> None:
    import copy

    grown = copy.deepcopy(tokenizer)
    grown.add_special_tokens({"pad_token": "<pad>"})
    assert grown.pad_token_id == 260
    grown.save_pretrained(folder)
    assert load_model(str(folder)).tokenizer.pad_token_id == 1


def test_a_padding_token_of_its_own_is_kept(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", pad_token="<unk>")
    assert load_model(str(folder)).tokenizer.pad_token == "<unk>"


def test_end_tokens_are_the_union_of_all_places(folder: Path) -> None:
    edit_json(folder / "config.json", eos_token_id=2)
    edit_json(folder / "generation_config.json", eos_token_id=[3, 1])
    assert load_model(str(folder)).end_tokens == (1, 2, 3)


def test_settings_that_could_not_be_saved_are_fixed(folder: Path, tmp_path: Path) -> None:
    edit_json(folder / "generation_config.json", temperature=0.6, do_sample=False)
    loaded = load_model(str(folder))
    assert loaded.model.generation_config.temperature == 0.6
    saved = save_checkpoint(tmp_path / "checkpoints", 1, loaded.model, loaded.tokenizer, {}, {})
    assert load_model(str(saved)).end_tokens == (1,)


def test_longrope_ends_where_a_row_would_change_its_neighbours(folder: Path) -> None:
    factors = {"short_factor": [1.0, 1.0], "long_factor": [4.0, 9.0], "rope_theta": 1e4}
    edit_json(
        folder / "config.json",
        rope_parameters={"rope_type": "longrope", **factors, "original_max_position_embeddings": 32},
    )
    loaded = load_model(str(folder))
    assert loaded.context == 32 and loaded.context_reason.startswith("longrope: ")

    def states(width: int) -> torch.Tensor:
        """Of a row of 20 tokens beside one of `width`."""
        rows = (torch.arange(2 * width).view(2, width) * 7) % 250 + 4
        rows[0, 20:] = 0
        with torch.no_grad():
            return loaded.model.base_model(input_ids=rows).last_hidden_state[0, :5]

    torch.testing.assert_close(states(20), states(32))
    assert (states(20) - states(33)).abs().max() > 1e-3
    edit_json(folder / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    assert (load_model(str(folder)).context, load_model(str(folder)).context_reason) == (96, "")


def test_context_of_unknown_and_nested_configurations() -> None:
    class Plain:
        def get_text_config(self) -> Any:
            return self

    class Nested:
        def get_text_config(self) -> Any:
            inner = Plain()
            inner.max_position_embeddings = 77  # type: ignore[attr-defined]
            return inner

    assert room.context_length(Plain()) == room.UNKNOWN_CONTEXT > 10**8
    assert room.context_length(Nested()) == 77


def test_builtin_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "BUILTIN", folder.parent)
    assert builtin_models() == ("tiny",)
    assert load_model("tiny").source == str(folder)
    assert "did you mean tiny?" in refusal("tinny")


def test_run_folder_gives_its_newest_complete_checkpoint(tmp_path: Path, llama: Any, tokenizer: Any) -> None:
    run = tmp_path / "run7"
    for step in (9, 10):
        with torch.no_grad():
            llama.lm_head.weight.add_(0.5)
        save_checkpoint(run / "checkpoints", step, llama, tokenizer, {}, {})
    (run / "checkpoints" / "step-000011").mkdir()
    (run / "checkpoints" / "step-000011" / "config.json").write_text("{}")
    for name in (run, run / "checkpoints", run / "checkpoints" / "step-000010"):
        loaded = load_model(str(name))
        assert loaded.source.endswith("step-000010")
        assert weights_digest(loaded.model) == weights_digest(llama)


def test_run_folder_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert "no complete checkpoint yet" in refusal(tmp_path / "run")


def test_a_run_is_asked_for_a_model_that_it_has_not_saved(tmp_path: Path, llama: Any, tokenizer: Any) -> None:
    run = tmp_path / "run7"
    save_checkpoint(run / "checkpoints", 9, llama, tokenizer, {}, {})
    for name in ("best", "final"):
        assert f"run {run} has no {name} model" in refusal(run / name)
    assert "no model called" in refusal(run / "worst")
    assert "no model called" in refusal(tmp_path / "best")


def test_damaged_checkpoint_is_refused(tmp_path: Path, llama: Any, tokenizer: Any) -> None:
    saved = save_checkpoint(tmp_path / "checkpoints", 1, llama, tokenizer, {}, {})
    with (saved / "config.json").open("a") as stream:
        stream.write(" ")
    assert "config.json" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("removed", "named"),
    [("config.json", "config.json"), ("tokenizer.json", "tokenizer.json"), ("model.safetensors", "model.safetensors")],
)
def test_folder_that_lacks_a_file(folder: Path, removed: str, named: str) -> None:
    (folder / removed).unlink()
    message = refusal(folder)
    assert f"has no {named}" in message and str(folder) in message


def test_folder_with_only_a_gguf_points_at_it(tmp_path: Path) -> None:
    (tmp_path / "it.gguf").write_bytes(b"GGUF")
    assert f"give the file {tmp_path / 'it.gguf'}" in refusal(tmp_path)


def test_missing_weight_is_an_error(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = load_file(str(file))
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, str(file), {"format": "pt"})
    message = refusal(folder)
    assert "model.layers.1.mlp.up_proj.weight" in message and "random" in message


def test_missing_head_is_an_error_only_when_untied(folder: Path) -> None:
    assert "lm_head.weight" not in load_file(str(folder / "model.safetensors"))
    load_model(str(folder))
    edit_json(folder / "config.json", tie_word_embeddings=False)
    assert "lm_head.weight" in refusal(folder)


def test_unexpected_weight_is_an_error(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = {**load_file(str(file)), "score.weight": torch.zeros(2)}
    save_file(weights, str(file), {"format": "pt"})
    assert "score.weight" in refusal(folder)


def test_weight_of_another_shape_is_an_error(folder: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=48)
    assert str(folder) in refusal(folder)


def test_broken_files_are_an_error(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert str(folder) in refusal(folder)
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "config.json").write_text("{")
    assert str(folder) in refusal(folder)


def test_unknown_names_get_the_nearest(folder: Path, tmp_path: Path) -> None:
    assert "did you mean smollm2?" in refusal("smolm2")
    assert f"did you mean {folder}?" in refusal(tmp_path / "tinny")
    assert "owner/name" in refusal("qqqqqq")
    refusal("")
    shutil.copy(folder / "config.json", tmp_path / "model.bin")
    assert "is a file" in refusal(tmp_path / "model.bin")
    assert "no model called" in refusal("models/absent.gguf")


def test_unreachable_hub_is_one_line_and_quick(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "hub_reachable", lambda: False)
    monkeypatch.chdir(folder.parent.parent)
    message = refusal("owner-of-nothing/no-such-model")
    assert "hub cannot be reached" in message and "the built-in whetstone" in message and "local folder" in message
    assert refusal("runs/absent") == "there is no run runs/absent; `whet runs` lists yours"
    misspelt = f"{folder.parent.name}/tinyy"
    assert f"{folder.parent.name}/tiny," in refusal(misspelt)


def test_hub_failure_says_what_the_hub_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise OSError("401 gated repository\nsecond line")

    monkeypatch.setattr(room, "hub_reachable", lambda: True)
    monkeypatch.setattr(room, "read_pair", failing)
    message = refusal("owner/gated")
    assert "401 gated repository" in message and "second line" not in message


def test_hub_answers_like_a_folder(folder: Path, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = room.read_pair
    monkeypatch.setattr(room, "hub_reachable", lambda: True)
    monkeypatch.setattr(room, "read_pair", lambda name, dtype, **options: real(str(folder), dtype, **options))
    loaded = load_model("owner/tiny")
    assert loaded.source == "owner/tiny"
    assert weights_digest(loaded.model) == weights_digest(llama)


def test_reachability_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    from whet.model import hub

    monkeypatch.setattr(hub.urllib.request, "getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert hub.hub_reachable() is False
    monkeypatch.setattr(hub.urllib.request, "getproxies", lambda: {"https": "http://proxy"})
    assert hub.hub_reachable() is True
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.hub_reachable() is False


def test_device_choice() -> None:
    assert device_choice("cpu") == torch.device("cpu")
    assert device_choice().type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "mps", "cuda:99"):
        with pytest.raises(WhetError, match=name):
            device_choice(name)


def test_cpu_takes_fp32_unless_asked_and_says_why() -> None:
    cpu = torch.device("cpu")
    dtype, reason = dtype_choice("auto", cpu)
    assert dtype == torch.float32 and "CPU" in reason and "\n" not in reason
    assert dtype_choice("fp32", cpu) == (torch.float32, "asked for")
    dtype, reason = dtype_choice("bf16", cpu)
    assert dtype == torch.bfloat16 and "asked for" in reason and "slower" in reason
    with pytest.raises(WhetError, match="fp16"):
        dtype_choice("fp16", torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_takes_bf16_and_a_model_loads_there(folder: Path, llama: Any, tokens: torch.Tensor) -> None:
    device = device_choice()
    dtype, reason = dtype_choice("auto", device)
    assert dtype == torch.bfloat16 and torch.cuda.get_device_name(device) in reason
    assert dtype_choice("fp32", device)[0] == torch.float32
    loaded = load_model(str(folder), device=str(device))
    assert {parameter.device.type for parameter in loaded.model.parameters()} == {"cuda"}
    assert weights_digest(loaded.model) == weights_digest(llama)
    assert torch.allclose(loaded.model(tokens.to(device)).logits.cpu(), llama(tokens).logits, atol=1e-3)


@pytest.mark.parametrize("value", ["<end>", ["<end>"], -5])
def test_an_end_token_that_is_no_number_is_named(folder: Path, value: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    assert "eos_token_id is" in refusal(folder)


def test_names_that_no_file_system_takes(tmp_path: Path) -> None:
    for name in ("x" * 5000, f"{'a' * 300}.gguf", "~nobody/model", "a\0b"):
        assert len(refusal(name)) < 500


def test_another_shape_names_the_weight(folder: Path) -> None:
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    edit_json(folder / "config.json", vocab_size=size + 8)
    assert "has another shape in the file than in config.json" in refusal(folder)


def test_a_tokenizer_with_more_tokens_than_the_embedding_says_so(folder: Path) -> None:
    loaded = load_model(str(folder))
    assert not hasattr(loaded.tokenizer, "embedding_rows")
    rows = loaded.model.get_input_embeddings().weight.shape[0]
    loaded.tokenizer.add_tokens([f"<extra{number}>" for number in range(rows)])
    room.note_unknown_tokens(loaded.model, loaded.tokenizer)
    assert loaded.tokenizer.embedding_rows == rows


def test_scikit_learn_is_not_asked_for(monkeypatch):
    import importlib
    import sys

    from transformers import utils

    module = "transformers.generation.candidate_generator"
    importlib.import_module(module)
    monkeypatch.delitem(sys.modules, module)
    asked = []
    monkeypatch.setattr(utils, "is_sklearn_available", lambda: asked.append(True))
    known = utils.is_sklearn_available
    import_loader()
    assert sys.modules[module].is_sklearn_available() is False and not asked
    assert utils.is_sklearn_available is known
    kept = sys.modules[module]
    import_loader()
    assert sys.modules[module] is kept
