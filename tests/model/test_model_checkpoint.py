from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save as save_bytes

from tests.support.checkpoints import save_checkpoint
from whet.model import checkpoint, snapshot, tensor_files
from whet.model.checkpoint import (
    drop_training_state,
    load_checkpoint,
    prune_checkpoints,
    remove_leftovers,
    verify_checkpoint,
    weights_digest,
)
from whet.model.pretrained import weight_files
from whet.model.run_models import checkpoint_step, complete_checkpoints
from whet.model.snapshot import BufferLayout, HostMemory, layout_of
from whet.types import WhetError

STATE = {"cursor": {"epoch": 2, "row": 17}, "seed": 5, "rate": 0.1}


def optimizer_tensors() -> dict[str, dict[str, torch.Tensor]]:
    shared = torch.arange(12.0)  # one memory under two names, and one of them not contiguous
    return {"optimizer": {"first": shared, "second": shared.view(3, 4).T, "step": torch.tensor(40.0)}}


def save(folder: Path, step: int, model: Any, tokenizer: Any) -> Path:
    return save_checkpoint(folder, step, model, tokenizer, optimizer_tensors(), STATE)


def change(model: Any, amount: float = 0.25) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(amount)


def every_byte(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def complaint(path: Path) -> str:
    with pytest.raises(WhetError) as caught:
        verify_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["llama", "untied_llama", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_is_byte_exact(
    kind: str, dtype: torch.dtype, tmp_path: Path, tokenizer: Any, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind).to(dtype)
    with torch.no_grad():  # values that comparisons would hide
        model.get_input_embeddings().weight[3, :3] = torch.tensor([float("nan"), -0.0, 1e-40])
    before = weights_digest(model)
    path = save(tmp_path, 40, model, tokenizer)
    assert path == tmp_path / "step-000040"
    change(model)
    assert weights_digest(model) != before
    places = [parameter.data_ptr() for parameter in model.parameters()]
    tensors, state = load_checkpoint(path, model)
    assert weights_digest(model) == before
    assert [parameter.data_ptr() for parameter in model.parameters()] == places, "weights are filled in place"
    assert state == STATE
    expected = optimizer_tensors()
    assert tensors.keys() == expected.keys()
    for name, value in expected["optimizer"].items():
        assert torch.equal(tensors["optimizer"][name], value)


def test_tied_weights_stay_tied(tmp_path: Path, llama: Any, tokenizer: Any, tokens: torch.Tensor) -> None:
    from transformers import AutoModelForCausalLM

    logits = llama(tokens).logits
    path = save(tmp_path, 1, llama, tokenizer)
    again = AutoModelForCausalLM.from_pretrained(path)
    assert torch.equal(again(tokens).logits, logits)
    assert again.lm_head.weight.data_ptr() == again.model.embed_tokens.weight.data_ptr()
    change(llama)
    load_checkpoint(path, llama)
    assert llama.lm_head.weight is llama.model.embed_tokens.weight
    assert torch.equal(llama(tokens).logits, logits)


def mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(3)
    config = MixtralConfig(
        vocab_size=260,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
        eos_token_id=1,
    )
    return MixtralForCausalLM(config).eval()


def test_architecture_saved_under_other_names(tmp_path: Path, tokenizer: Any) -> None:
    model = mixtral()
    path = save(tmp_path, 1, model, tokenizer)
    before = weights_digest(model)
    change(model)
    load_checkpoint(path, model)
    assert weights_digest(model) == before


def test_same_weights_give_the_same_bytes(tmp_path: Path, llama: Any, tokenizer: Any) -> None:
    first = every_byte(save(tmp_path / "a", 40, llama, tokenizer))
    second = every_byte(save(tmp_path / "b", 40, llama, tokenizer))
    assert first == second
    assert {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json", "config.json"} <= first.keys()
    change(llama)
    third = every_byte(save(tmp_path / "c", 40, llama, tokenizer))
    assert {name for name in first if first[name] != third[name]} == {"model.safetensors", "manifest.json"}


def test_a_large_set_of_tensors_is_written_in_pieces_and_comes_back_whole(
    tmp_path: Path, llama: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "PIECE", 60)  # bytes: a tensor of 48, one of 48, one of 4
    path = save(tmp_path, 40, llama, tokenizer)
    assert [file.name for file in sorted(path.glob("optimizer*"))] == [
        "optimizer.safetensors",
        "optimizer_2.safetensors",
    ]
    tensors, _ = load_checkpoint(path, llama)
    assert tensors.keys() == {"optimizer"} and tensors["optimizer"].keys() == optimizer_tensors()["optimizer"].keys()
    assert all(torch.equal(tensors["optimizer"][name], it) for name, it in optimizer_tensors()["optimizer"].items())
    drop_training_state(path)
    assert not list(path.glob("optimizer*"))
    verify_checkpoint(path)


def test_copies_of_tensors_share_a_slab_and_are_filled_again() -> None:
    values = {"a": torch.arange(5.0), "b": torch.arange(3, dtype=torch.bfloat16), "empty": torch.empty(0, 4)}
    memory = HostMemory()
    memory.reserve({name: layout_of(value) for name, value in values.items()})
    for added in (0.0, 1.0):
        copies = {name: memory.copy(name, value + added) for name, value in values.items()}
        assert all(torch.equal(copies[name], values[name] + added) for name in values)
    assert copies["a"].untyped_storage().data_ptr() == copies["b"].untyped_storage().data_ptr()
    assert copies["a"].data_ptr() % 64 == copies["b"].data_ptr() % 64 == 0
    wider = memory.copy("a", torch.arange(9.0))  # another shape, and more than was reserved
    assert torch.equal(wider, torch.arange(9.0)) and torch.equal(copies["b"], values["b"] + 1.0)


def test_slabs_for_a_device_are_pinned_in_one_go_and_unpinned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pinned: dict[int, int] = {}
    answers = [0, 0, 712]  # the third is refused

    def pin(address: int, size: int, flags: int) -> int:
        answer = answers.pop(0)
        if not answer:
            pinned[address] = size
        return answer

    driver = SimpleNamespace(cudaHostRegister=pin, cudaHostUnregister=lambda address: pinned.pop(address))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(snapshot, "SLAB", 256)
    memory = HostMemory()
    layout = BufferLayout(torch.Size([25]), torch.float32, True)  # 100 bytes, 128 of a slab
    memory.reserve({f"{number}": layout for number in range(8)})
    copies = [memory.copy(f"{number}", torch.full((25,), float(number))) for number in range(8)]
    assert sorted(pinned.values()) == [256, 256] and not answers  # after a refusal no other is tried
    assert "cannot be pinned (CUDA error 712)" in caplog.text
    assert all(torch.equal(copy, torch.full((25,), float(number))) for number, copy in enumerate(copies))
    assert all(any(0 <= copy.data_ptr() - start < 256 for start in pinned) for copy in copies[:4])
    memory.release()
    assert not pinned


def test_manifest_lists_every_file(tmp_path: Path, llama: Any, tokenizer: Any) -> None:
    path = save(tmp_path, 40, llama, tokenizer)
    manifest = json.loads((path / "manifest.json").read_text())
    files = {file.name: file.stat().st_size for file in path.iterdir() if file.name != "manifest.json"}
    assert {name: entry["size"] for name, entry in manifest["files"].items()} == files
    assert json.loads((path / "state.json").read_text()) == {"step": 40, "state": STATE}
    verify_checkpoint(path)


def test_saving_a_step_again_replaces_it(tmp_path: Path, llama: Any, tokenizer: Any) -> None:
    save(tmp_path, 40, llama, tokenizer)
    change(llama)
    path = save(tmp_path, 40, llama, tokenizer)
    verify_checkpoint(path)
    wanted = weights_digest(llama)
    change(llama)
    load_checkpoint(path, llama)
    assert weights_digest(llama) == wanted
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000040"]


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def change_a_digest(file: Path) -> None:
    content = json.loads(file.read_text())
    entry = content["files"]["state.json"]
    entry["sha256"] = entry["sha256"][::-1]
    file.write_text(json.dumps(content))


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize("harm", [flip_a_byte, truncate, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json"])
def test_every_damage_is_found_and_the_model_untouched(
    harm: Any, name: str, tmp_path: Path, llama: Any, tokenizer: Any
) -> None:
    path = save(tmp_path / "run" / "checkpoints", 40, llama, tokenizer)
    harm(path / name)
    change(llama)
    before = weights_digest(llama)
    message = complaint(path)
    assert name in message and "start the run again" in message
    with pytest.raises(WhetError, match=name):
        load_checkpoint(path, llama)
    assert weights_digest(llama) == before


@pytest.mark.parametrize("harm", [flip_a_byte, change_a_digest, truncate, Path.unlink])
def test_damaged_manifest(harm: Any, tmp_path: Path, llama: Any, tokenizer: Any) -> None:
    path = save(tmp_path, 40, llama, tokenizer)
    file = path / "manifest.json"
    file.write_text(file.read_text().rstrip())
    harm(file)
    assert "manifest.json" in complaint(path)


def test_fix_names_the_newest_whole_checkpoint(tmp_path: Path, llama: Any, tokenizer: Any) -> None:
    folder = tmp_path / "run" / "checkpoints"
    paths = [save(folder, step, llama, tokenizer) for step in (10, 20, 30, 40)]
    truncate(paths[2] / "state.json")
    flip_a_byte(paths[3] / "model.safetensors")
    assert complaint(paths[3]).endswith(f"whet resume {tmp_path / 'run'} --from step-000020")
    assert complaint(tmp_path / "step-000099").startswith("checkpoint")


def test_order_and_pruning(tmp_path: Path, llama: Any, tokenizer: Any) -> None:
    for step in (1_000_000, 5, 999_999, 40):
        save(tmp_path, step, llama, tokenizer)
    (tmp_path / "step-000007").mkdir()
    (tmp_path / "notes").mkdir()
    assert [checkpoint_step(path) for path in complete_checkpoints(tmp_path)] == [5, 40, 999_999, 1_000_000]
    assert [checkpoint_step(path) for path in prune_checkpoints(tmp_path, 2)] == [5, 40]
    assert [checkpoint_step(path) for path in complete_checkpoints(tmp_path)] == [999_999, 1_000_000]
    assert prune_checkpoints(tmp_path, 2) == []
    with pytest.raises(WhetError, match="at least 1"):
        prune_checkpoints(tmp_path, 0)
    assert complete_checkpoints(tmp_path / "absent") == []


def test_leftovers_are_ignored_and_removed(tmp_path: Path, llama: Any, tokenizer: Any) -> None:
    whole = save(tmp_path, 1, llama, tokenizer)
    shutil.copytree(whole, tmp_path / ".step-000002.partial")  # every byte of it is there, but not its name
    (tmp_path / ".step-000000.removed").mkdir()
    (tmp_path / ".unrelated").mkdir()
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["step-000001"]
    assert [path.name for path in remove_leftovers(tmp_path)] == [".step-000000.removed", ".step-000002.partial"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".unrelated", "step-000001"]
    verify_checkpoint(save(tmp_path, 2, llama, tokenizer))


def test_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path, llama: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(parts: Any, file: Path, wanted: Any) -> int:
        if file.name == "optimizer.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(parts, file, wanted)

    write = tensor_files._write
    monkeypatch.setattr(tensor_files, "_write", full)
    with pytest.raises(WhetError, match="No space left"):
        save(tmp_path, 2, llama, tokenizer)
    assert list(tmp_path.iterdir()) == []


def test_the_bytes_are_those_of_the_libraries(tmp_path: Path, llama: Any, gpt2: Any, tokenizer: Any) -> None:
    """What transformers and safetensors would have written, file by file, in one file or several."""
    kinds = [dtype for dtype in tensor_files.KINDS if dtype is not torch.bool]
    values = {f"{index}/\u00e9": torch.arange(6).reshape(2, 3).to(dtype) for index, dtype in enumerate(kinds)}
    values |= {"flag": torch.tensor([True, False]), "scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4)}
    for metadata in (None, {"format": "pt"}):
        assert b"".join(tensor_files.tensor_bytes(values, metadata)) == save_bytes(values, metadata)
    for model in (llama, gpt2, mixtral()):
        theirs, path = tmp_path / type(model).__name__, save(tmp_path, 1, model, tokenizer)
        model.save_pretrained(theirs)
        tokenizer.save_pretrained(theirs)
        ours = every_byte(path)
        own = {"optimizer.safetensors", "state.json", "manifest.json"}
        assert {name: ours[name] for name in ours if name not in own} == every_byte(theirs)
        model.save_pretrained(theirs / "parts", max_shard_size="8KB")
        files, index = weight_files(model, model.state_dict(), "8KB")
        written = {name: b"".join(tensor_files.tensor_bytes(part, {"format": "pt"})) for name, part in files.items()}
        expected = every_byte(theirs / "parts")
        assert len(files) > 1 and {**written, **index} == {
            name: content for name, content in expected.items() if name.startswith("model")
        }


def test_another_model_is_refused_untouched(
    tmp_path: Path, llama: Any, untied_llama: Any, gpt2: Any, tokenizer: Any
) -> None:
    path = save(tmp_path, 1, llama, tokenizer)
    before = weights_digest(untied_llama)
    with pytest.raises(WhetError, match=r"lacks lm_head\.weight"):
        load_checkpoint(path, untied_llama)
    assert weights_digest(untied_llama) == before
    with pytest.raises(WhetError, match="another model"):
        load_checkpoint(path, gpt2)
    with pytest.raises(WhetError, match="untied"):
        load_checkpoint(save(tmp_path, 2, untied_llama, tokenizer), llama)
    with pytest.raises(WhetError, match="bfloat16"):
        load_checkpoint(path, llama.to(torch.bfloat16))


def test_names_of_tensor_sets(tmp_path: Path, llama: Any, tokenizer: Any) -> None:
    for name in ("model", "../up", "Optimizer"):
        with pytest.raises(ValueError, match="cannot name"):
            save_checkpoint(tmp_path, 1, llama, tokenizer, {name: {}}, {})
    assert complete_checkpoints(tmp_path) == []


def test_weights_digest_sees_one_bit_and_the_names(llama: Any, untied_llama: Any) -> None:
    before = weights_digest(llama)
    bits = llama.model.norm.weight.data.view(torch.int32)
    bits[4] ^= 1
    assert weights_digest(llama) != before
    bits[4] ^= 1
    assert weights_digest(llama) == before
    one, other = torch.nn.Linear(2, 2, bias=False), torch.nn.Module()
    other.register_parameter("bias", one.weight)
    assert weights_digest(one) != weights_digest(other)


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from tests.model.conftest import tiny_llama
from transformers import AutoTokenizer
import torch
from whet.model.run_models import complete_checkpoints
from tests.support.checkpoints import save_checkpoint

torch.set_num_threads(1)
folder, model = Path(sys.argv[1]), tiny_llama()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
random.seed(0)
for round in range(6):
    child = os.fork()
    if child == 0:
        step = round * 1000
        while True:
            with torch.no_grad():
                model.lm_head.weight.add_(0.001)
            tensors = {"optimizer": {"m": torch.ones(9)}}
            save_checkpoint(folder, step % 1000 % 7 + round * 1000, model, tokenizer, tensors, {})
            step += 1
    while not any(path.name >= f"step-{round * 1000:06d}" for path in complete_checkpoints(folder)):
        time.sleep(0.002)
    time.sleep(random.random() * 0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(len(complete_checkpoints(folder)))
"""


@pytest.mark.slow
def test_a_killed_process_leaves_only_whole_checkpoints(tmp_path: Path, folder: Path, llama: Any) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    command = [sys.executable, "-c", KILLED, str(checkpoints), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    root = Path(__file__).parents[2]  # a program of -c finds what lies where it runs
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = complete_checkpoints(checkpoints)
    assert len(found) == int(done.stdout) >= 6
    for path in found:
        verify_checkpoint(path)
    load_checkpoint(found[-1], llama)
    assert remove_leftovers(checkpoints), "six kills must have cut at least one save"
    assert complete_checkpoints(checkpoints) == found


def test_files_reach_the_disk_before_the_name_does(
    tmp_path: Path, llama: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_flush, real_replace = os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_flush(descriptor)

    def replaced(source: Path, target: Path) -> None:
        if Path(target).parent == tmp_path:
            events.append("renamed")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", replaced)
    path = save(tmp_path, 3, llama, tokenizer)
    files = sorted(file.name for file in path.iterdir() if file.name != "manifest.json")
    assert sorted(events[: len(files)]) == files
    assert events[len(files) :] == [".manifest.json", ".step-000003.partial", "renamed", tmp_path.name]
