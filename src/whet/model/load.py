"""A model by its name: built in, a folder, a run, a GGUF file, smollm2, or an id on the hub.

Whatever it comes from, it arrives the same way: every weight from its file, eval mode, no dropout, a padding token
that needs no new embedding row, and the tokens that end a completion gathered in one place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from whet.model.checkpoint import verify_checkpoint
from whet.model.hub import hub_reachable
from whet.model.local_copies import SMOLLM2
from whet.model.pretrained import first_line, import_loader, quiet_transformers, read_model
from whet.model.run_models import CHECKPOINTS, MANIFEST, MODELS, run_model
from whet.types import WhetError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BUILTIN = Path(__file__).parent / "builtin"
UNKNOWN_CONTEXT = 2**30  # for models that state no limit, such as those without position embeddings
CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
MOST_SHOWN = 100  # characters of a name in an error line
EXHAUSTED = (
    "can't allocate memory",
    "out of memory",
    "new thread",
    "Cannot allocate",
)  # of the machine, not of a model
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to write and to learn."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str  # the folder or hub id the weights came from
    end_tokens: tuple[int, ...]  # any of them ends a completion
    context: int  # the most tokens of prompt and completion together
    context_reason: str = ""  # why it is shorter than the config's; empty where it is not

    def shown(self, name: str) -> str:
        """The name that was asked for, and which of a run's models was loaded for it."""
        folder = Path(self.source)
        if os.path.isdir(name) and folder != Path(os.path.expanduser(name)):
            return f"{name}: {folder.name}"
        return name


def load_model(
    name: str, dtype: torch.dtype = torch.float32, device: str = "cpu", chat_template: str = ""
) -> LoadedModel:
    """The model called `name`, complete and in eval mode, or a `WhetError` that says how to get it.

    `chat_template` is used, and saved with the model, instead of its own.
    """
    import_loader()  # while another process may convert the model
    folder = local_folder(name)
    if folder is None:
        source = name
        model, tokenizer = from_hub(name, dtype)
    else:
        source = str(folder)
        model, tokenizer = from_folder(folder, dtype)
    cast(nn.Module, model).to(torch.device(device))
    model.eval()
    switch_off_dropout(model)
    if chat_template:
        tokenizer.chat_template = chat_template
    set_padding(model, tokenizer)
    note_unknown_tokens(model, tokenizer)
    fix_generation_config(model, tokenizer)
    # whet checks lengths itself, with the prompt's name; the tokenizer's own warning would come without one
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    ends = end_tokens(model, tokenizer)
    context, fixed = context_length(model.config), fixed_rotation_length(model.config)
    if fixed is None or fixed >= context:
        return LoadedModel(model, tokenizer, source, ends, context)
    reason = f"longrope: a longer row would turn all rows of its batch by other angles; the config's {context}"
    return LoadedModel(model, tokenizer, source, ends, fixed, reason)


def builtin_models() -> tuple[str, ...]:
    """The names of the models that come with the package."""
    if not BUILTIN.is_dir():
        return ()
    return tuple(sorted(path.name for path in BUILTIN.iterdir() if (path / "config.json").is_file()))


def local_folder(name: str) -> Path | None:
    """The folder on this machine that a name stands for; None for an id on the hub."""
    if name in builtin_models():
        return BUILTIN / name
    if name == SMOLLM2:
        from whet.model.gguf import converted_folder, smollm2_file

        return converted_folder(smollm2_file())
    path = Path(os.path.expanduser(name))
    # os.path says no where pathlib raises: a name that is too long, a null byte
    if name and os.path.isdir(path):
        return model_of_folder(path)
    if name and os.path.isfile(path):
        if path.suffix != ".gguf":
            raise WhetError(f"model {name} is a file; give a folder with config.json, or a .gguf file")
        from whet.model.gguf import converted_folder

        return converted_folder(path)
    if path.name in MODELS and run_model(path.parent) is not None:
        raise WhetError(
            f"run {path.parent} has no {path.name} model: the best is saved after an evaluation that follows a step, "
            f"the final one at the end; give {path.parent}, which loads its newest weights"
        )
    if HUB_ID.fullmatch(name) and path.suffix != ".gguf" and not name.startswith("."):
        return None
    raise WhetError(f"no model called {shown_name(name)}; {nearest_fix(name)}")


def shown_name(name: str) -> str:
    """The name in quotes, cut where it is too long for a message."""
    return repr(name if len(name) <= MOST_SHOWN else f"{name[:MOST_SHOWN]}...")


def model_of_folder(path: Path) -> Path:
    """The model that a folder stands for: that of a run, or the folder itself."""
    model = run_model(path)
    if model is not None:
        return model
    if (path / CHECKPOINTS).is_dir() and not (path / "config.json").is_file():
        raise WhetError(f"run {path} has no complete checkpoint yet; wait for its first save, or give another model")
    return path


def nearest_fix(name: str) -> str:
    """What to type instead of a name that leads nowhere."""
    known = (*builtin_models(), SMOLLM2)
    closest = nearest(name, known) or nearest_folder(name)
    hint = f"did you mean {closest}? Or give " if closest else "give "
    return f"{hint}{', '.join(known)}, a folder, a .gguf file or a hub id owner/name"


def nearest_folder(name: str) -> str | None:
    """The folder or GGUF file beside the path that was meant whose name is most similar; None where none is."""
    path = Path(os.path.expanduser(name))
    if not name or not os.path.isdir(path.parent) or not os.access(path.parent, os.R_OK):
        return None
    there = [entry for entry in path.parent.iterdir() if os.path.isdir(entry) or entry.suffix == ".gguf"]
    closest = nearest(path.name, [entry.name for entry in there])
    return str(path.parent / closest) if closest else None


def from_folder(folder: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a folder; a checkpoint is verified first."""
    if (folder / MANIFEST).is_file():
        verify_checkpoint(folder)
    require_model_files(folder)
    try:
        with quiet_transformers():
            return read_pair(str(folder), dtype)
    except WhetError:
        raise
    except Exception as error:
        is_spent = isinstance(error, MemoryError) or any(sign in str(error) for sign in EXHAUSTED)
        fix = "end other processes, or raise the limits of this one (ulimit -a)"
        fix = fix if is_spent else "save or download the folder again"
        raise WhetError(f"model {folder}: transformers cannot load it ({first_line(error)}); {fix}") from error


def require_model_files(folder: Path) -> None:
    """Name the file a model folder lacks: transformers would look for it on the hub, or guess."""
    if not (folder / "config.json").is_file():
        files = sorted(folder.glob("*.gguf"))
        fix = f"give the file {files[0]}" if files else "give a folder saved with save_pretrained, or a whet run"
        raise WhetError(f"model folder {folder} has no config.json; {fix}")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise WhetError(
            f"model folder {folder} has no tokenizer.json (nor {listed_or(TOKENIZER_FILES[1:])}); "
            f"save the tokenizer there with tokenizer.save_pretrained"
        )
    if not any(True for pattern in WEIGHT_FILES for _ in folder.glob(pattern)):
        raise WhetError(f"model folder {folder} has no model.safetensors; save the model's weights there too")


def listed_or(names: Iterable[str]) -> str:
    """The names as a list in words: `a, b or c`."""
    *most, last = names
    return f"{', '.join(most)} or {last}"


def from_hub(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Download, or take from the hub's own cache when the hub cannot be reached."""
    if name.startswith("runs/"):
        near = nearest_folder(name)
        raise WhetError(f"there is no run {name}; {f'give {near}' if near else '`whet runs` lists yours'}")
    reachable = hub_reachable()
    try:
        if reachable:
            return read_pair(name, dtype)
        with quiet_transformers():
            return read_pair(name, dtype, local_files_only=True)
    except WhetError:
        raise
    except Exception as error:
        tried = f"the hub failed ({first_line(error)})" if reachable else "the hub cannot be reached from here"
        near = nearest_folder(name)
        folder = f"the folder {near}" if near else "a local folder"
        raise WhetError(
            f"model {name}: no such folder, and {tried}; offline or misspelt? Give {folder}, or the built-in whetstone"
        ) from error


def read_pair(source: str, dtype: torch.dtype, **options: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer as transformers reads them; code from the source is never run."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    return read_model(source, dtype, f"model {source}", **options), tokenizer


def switch_off_dropout(model: nn.Module) -> None:
    """Set dropout to 0 in train mode too: the policy that learns must be the policy that wrote the samples.

    Other noise is found and switched off before training (`whet.model.train_noise`).
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("dropout" in name or "layerdrop" in name or name.endswith("pdrop")):
                setattr(module, name, 0.0)


def note_unknown_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Note that the tokenizer has tokens without a row in the embedding: an added padding, an image."""
    rows = cast(Tensor, model.get_input_embeddings().weight).shape[0]
    if len(tokenizer) > rows:
        tokenizer.embedding_rows = rows


def set_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """A padding token among the rows the embedding has; the end token serves, since padding is masked."""
    rows = cast(Tensor, model.get_input_embeddings().weight).shape[0]
    current = tokenizer.pad_token_id
    if current is not None and current < rows:
        return
    ends = [token for token in end_tokens(model, tokenizer) if token < rows]
    own = tokenizer.eos_token_id
    chosen = own if own in ends else next(iter(ends), 0)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(chosen)


def fix_generation_config(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Settings that transformers refuses to save would otherwise stop the run at its first checkpoint."""
    settings = model.generation_config
    if settings is None:
        return
    if settings.pad_token_id is None:
        settings.pad_token_id = tokenizer.pad_token_id
    if not savable(settings):
        settings.do_sample = True  # the usual fault is a temperature or top_p without it
    if not savable(settings):
        token_ids = {name: getattr(settings, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        model.generation_config = type(settings)(**token_ids)


def savable(settings: Any) -> bool:
    """Whether transformers would save these generation settings."""
    try:
        settings.validate(strict=True)
    except ValueError:
        return False
    return True


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token that some part of the model's files calls the end of a completion, in ascending order."""
    stated = (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        getattr(model.config.get_text_config(), "eos_token_id", None),
        tokenizer.eos_token_id,
    )
    ends: set[int] = set()
    for value in stated:
        for token in value if isinstance(value, list | tuple) else [] if value is None else [value]:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise WhetError(
                    f"model {model.name_or_path}: eos_token_id is {value!r}; expected the number of a token, or a list "
                    "of them; correct it in config.json and generation_config.json"
                )
            ends.add(token)
    return tuple(sorted(ends))


def context_length(config: Any) -> int:
    """The longest row the config allows, in tokens."""
    for part in (config, config.get_text_config()):
        for name in CONTEXT_FIELDS:
            value = getattr(part, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return UNKNOWN_CONTEXT


def fixed_rotation_length(config: Any) -> int | None:
    """The longest row whose rotary embedding does not depend on what it is packed with; None: any length.

    longrope takes other factors for a whole batch as soon as one row of it passes this length. (Dynamic scaling
    begins where the context ends.)
    """
    text = config.get_text_config()
    settings = getattr(text, "rope_parameters", None) or {}
    per_layer = [setting for setting in settings.values() if isinstance(setting, dict)]
    lengths = [
        setting.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
        for setting in (per_layer or [settings])
        if setting.get("rope_type") == "longrope"
    ]
    return min((int(length) for length in lengths if length), default=None)


def device_choice(name: str = "auto") -> torch.device:
    """`auto`: the first CUDA device, else the CPU. Any other name must be a device that is here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise WhetError(f"device is {name!r}; give auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise WhetError(f"device is {name!r}, but {count} CUDA devices are here; give auto or cpu")
    elif device.type == "mps":
        raise WhetError("device is 'mps': whet does not run on Apple GPUs yet; give cpu (docs/install.md: on a Mac)")
    elif device.type != "cpu":
        raise WhetError(f"device is {name!r}, which whet does not run on; give auto, cpu, cuda or cuda:N")
    return device


def dtype_choice(name: str, device: torch.device) -> tuple[torch.dtype, str]:
    """The number type for `auto`, `fp32` or `bf16` on a device, and the reason in one line for the run's report."""
    if name not in ("auto", "fp32", "bf16"):
        raise WhetError(f"dtype is {name!r}; give auto, fp32 or bf16")
    if name == "fp32":
        return torch.float32, "asked for"
    if device.type != "cuda":
        slow = f"on a {device.type.upper()} bf16 matrix products can be 200 times slower"
        return (torch.bfloat16, f"asked for; {slow}") if name == "bf16" else (torch.float32, slow)
    with torch.cuda.device(device):
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        card = torch.cuda.get_device_name(device)
    if supported:
        return torch.bfloat16, "asked for" if name == "bf16" else f"{card} computes in it"
    if name == "bf16":
        raise WhetError(f"dtype is bf16, but {card} does not compute in it; give auto or fp32")
    return torch.float32, f"{card} does not compute in bf16"
