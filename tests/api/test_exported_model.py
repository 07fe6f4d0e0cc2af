"""Models that leave a run: what is in the folder, that other packages load it, and what its card says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import whet
from whet.cli import app
from whet.types import WhetError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> whet.Run:
    folder = tmp_path_factory.mktemp("export") / "adapted"
    small = {"prompts_per_step": 4, "group_size": 4}
    settings = {"optimizer": {"learning_rate": 0.01}, "eval": {"prompts": 8}, "sampling": {"max_new_tokens": 8}}
    settings |= {"model": {"lora": 4}, "batch": small}
    return whet.train("rloo", steps=2, folder=str(folder), console=False, config=settings)


def test_a_model_loads_in_transformers_and_writes_what_the_run_writes(run: whet.Run, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = run.save_model(tmp_path / "given" / "model", dtype="bfloat16")
    finally:
        os.umask(before)
    assert {path.name for path in folder.iterdir()} == {
        *("README.md", "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}
    model = AutoModelForCausalLM.from_pretrained(folder)
    own, tokenizer = run.load()
    assert model.dtype == torch.bfloat16
    for name, weight in own.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.to(torch.bfloat16)), name
    messages = [{"role": "user", "content": "3 + 4"}]
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs.apply_chat_template(messages) == tokenizer.apply_chat_template(messages)
    exact = run.save_model(tmp_path / "exact", what="merged")
    assert (exact / "model.safetensors").read_bytes() == (run.model / "model.safetensors").read_bytes()


def test_an_adapter_names_its_base_and_adds_up_to_the_model(run: whet.Run, tmp_path: Path) -> None:
    folder = run.save_model(tmp_path / "adapter", what="adapter", checkpoint="final")
    config = json.loads((folder / "adapter_config.json").read_text())
    base = load_file(Path(config["base_model_name_or_path"]) / "model.safetensors")
    factors, merged = load_file(folder / "adapter_model.safetensors"), load_file(run.model / "model.safetensors")
    names = [name.removesuffix(".lora_A.weight") for name in factors if name.endswith("lora_A.weight")]
    assert len(names) == 21 and not (folder / "model.safetensors").exists()
    for name in names:
        change = (
            factors[f"{name}.lora_B.weight"] @ factors[f"{name}.lora_A.weight"] * config["lora_alpha"] / config["r"]
        )
        weight = f"{name.removeprefix('base_model.model.')}.weight"
        assert change.abs().max() > 1e-4, name
        torch.testing.assert_close(base[weight] + change, merged[weight], msg=name)


def test_peft_loads_the_adapter(run: whet.Run, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(run.save_model(tmp_path / "adapter", what="adapter"))
    tokens = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(theirs(tokens).logits, run.load()[0](tokens).logits)


def test_the_card_says_data_method_evaluation_and_command(run: whet.Run, tmp_path: Path) -> None:
    words = ["export", str(run.folder), "--what", "model", "--from", "best", "-o", str(tmp_path / "model")]
    assert CliRunner().invoke(app, words).exit_code == 0
    card = (tmp_path / "model" / "README.md").read_text()
    last = run.evaluations.last
    assert last is not None
    for text in ("library_name: transformers", "whetstone", "task:arithmetic", "RLOO", "exact_answer", last.text):
        assert text in card, text
    assert "AutoPeftModel" in run.save_model(tmp_path / "adapter", what="adapter").joinpath("README.md").read_text()


def test_mistakes_are_one_line(run: whet.Run, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    mistakes = [
        ({"path": tmp_path / "used"}, "is there already"),
        ({"path": tmp_path / "a", "dtype": "bf16"}, "give one of float32, bfloat16, float16"),
        ({"path": tmp_path / "a", "what": "modle"}, "give one of model, adapter, merged"),
        ({"path": tmp_path / "a", "checkpoint": "step-9"}, "there are step-000002, best, final"),
        ({"path": tmp_path / "used" / "file" / "a"}, "cannot write the model there"),
    ]
    said = []
    for arguments, _ in mistakes:
        with pytest.raises(WhetError) as raised:
            run.save_model(**arguments)  # type: ignore[arg-type]
        said.append(str(raised.value))
    assert [expected for (_, expected), line in zip(mistakes, said, strict=True) if expected not in line] == [], said
    assert not (tmp_path / "a").exists()
