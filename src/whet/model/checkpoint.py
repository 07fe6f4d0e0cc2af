"""Checkpoints that are whole or not there, and that can prove it.

A checkpoint is a folder `step-000040`: the model and tokenizer as transformers saves them (any tool can load the
folder), the adapter of a model that has one, a safetensors file for each named set of tensors (the optimizer's, ...),
`state.json`, and `manifest.json` with the size and sha256 of every file. It is written beside its final place under a
hidden name and moved there in one step, so a folder of that name is complete however the process died. Equal weights
and states give equal bytes: nothing here writes a time or a path. `whet.model.snapshot` writes them.

Beside its checkpoints a run has plain models, `best` and `final`: the same without the training's state.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whet.model.lora import adapter_factors, unmerged_layers
from whet.model.pretrained import first_line, listed, quiet_transformers, read_model
from whet.model.run_models import CHECKPOINTS, MANIFEST, MODELS, complete_checkpoints
from whet.model.tensor_files import Written, load_adapter
from whet.types import WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STATE = "state.json"
PIECE, PIECE_NUMBER = 1 << 30, re.compile(r"_\d+$")  # bytes of a set of tensors that are one file; which one it is
HIDDEN = re.compile(r"\.(step-\d{6,}|best|final)\.(partial|removed)")


def tensors_file(name: str) -> str:
    """The file of a named set of tensors."""
    # transformers takes every model*.safetensors for a piece of the model
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name.startswith("model"):
        raise ValueError(f"{name!r} cannot name a set of tensors: lower-case words, and not model")
    return f"{name}.safetensors"


def in_pieces(sets: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Large sets of tensors as several of about `PIECE` bytes, `optimizer` and `optimizer_2`: one file can be hashed by
    one core only."""
    pieces: dict[str, dict[str, Tensor]] = {}
    for name, values in sets.items():
        piece, size, count = pieces.setdefault(name, {}), 0, 1
        for key, value in values.items():
            if size and size + value.nbytes > PIECE:
                count, size = count + 1, 0
                piece = pieces.setdefault(f"{name}_{count}", {})
            piece[key] = value
            size += value.nbytes
    return pieces


def write_manifest(folder: Path, step: int, tensors: Sequence[str], files: Mapping[str, Written]) -> None:
    """Write the size and sha256 of every file, and a digest of that list itself."""
    listed_files = {name: {"size": size, "sha256": digest} for name, (size, digest) in files.items()}
    content = {"step": step, "tensors": list(tensors), "files": listed_files}
    manifest = {**content, "sha256": content_digest(content)}
    partial = folder / f".{MANIFEST}"
    partial.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    flush(partial)
    os.replace(partial, folder / MANIFEST)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder that was verified, or written just now."""
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def files_written(folder: Path) -> dict[str, Written]:
    """Size and sha256 of each file, by name, as the manifest has them."""
    return {name: (entry["size"], entry["sha256"]) for name, entry in read_manifest(folder)["files"].items()}


def file_digest(file: Path) -> str:
    """sha256 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_digest(content: Mapping[str, Any]) -> str:
    """sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def partial_of(final: Path) -> Path:
    """The path at which a folder is written before it gets its final name."""
    return final.with_name(f".{final.name}.partial")


def empty_partial(final: Path) -> Path:
    """The empty folder in which a checkpoint or model is written before it takes its place."""
    partial = partial_of(final)
    remove_folder(partial)
    partial.mkdir()
    return partial


def publish(partial: Path, final: Path) -> None:
    """Move what was written, and is on the disk, to its place: whoever finds it finds it whole."""
    for path in sorted(partial.rglob("*")):
        if path.is_dir():
            flush(path)
    flush(partial)
    if final.exists():
        hide(final)
    os.replace(partial, final)
    flush(final.parent)
    remove_folder(hidden_name(final))


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hidden_name(path: Path) -> Path:
    """The path at which a checkpoint lies while it is being deleted."""
    return path.with_name(f".{path.name}.removed")


def hide(path: Path) -> None:
    """Take a checkpoint off the list in one step, so that a deletion cut short never leaves half of one listed."""
    remove_folder(hidden_name(path))
    os.replace(path, hidden_name(path))


def remove_folder(path: Path) -> None:
    """Delete a folder with all it holds; nothing where there is none."""
    if path.exists():
        shutil.rmtree(path)


def remove_leftovers(folder: Path) -> list[Path]:
    """Delete what interrupted saves and deletions left behind. Only for the process that writes the run.

    A model that was to be replaced when the process died is put back.
    """
    if not folder.is_dir():
        return []
    leftovers = []
    for path in sorted(path for path in folder.iterdir() if HIDDEN.fullmatch(path.name)):
        name, _, state = path.name[1:].rpartition(".")
        if state == "removed" and name in MODELS and not (folder / name).exists():
            os.replace(path, folder / name)
        else:
            remove_folder(path)
            leftovers.append(path)
    return leftovers


def remove_model(path: Path) -> None:
    """Delete a plain model, in one step as it is seen from outside."""
    if path.exists():
        hide(path)
        remove_folder(hidden_name(path))


def prune_checkpoints(folder: Path, keep: int) -> list[Path]:
    """Delete all but the newest `keep` checkpoints; returns those deleted."""
    if keep < 1:
        raise WhetError(f"keep is {keep} checkpoints; give at least 1, or the run could not be resumed")
    surplus = complete_checkpoints(folder)[:-keep]
    for path in surplus:
        hide(path)
        remove_folder(hidden_name(path))
    return surplus


def drop_training_state(path: Path) -> None:
    """Keep the model of a finished run and delete what only a resume would read: the optimizer's tensors.

    A kill at any point leaves a folder that loads as a model, and doing it again comes to the same bytes.
    """
    manifest, files = read_manifest(path), files_written(path)
    if not manifest["tensors"]:
        return
    for name in manifest["tensors"]:
        (path / tensors_file(name)).unlink(missing_ok=True)
        files.pop(tensors_file(name), None)
    write_manifest(path, manifest["step"], [], files)


def verify_checkpoint(path: Path) -> None:
    """Raise, naming the file, unless every byte of the checkpoint is as it was written."""
    problem = damage(path)
    if problem is not None:
        raise WhetError(f"checkpoint {path} is damaged: {problem}; {damage_fix(path)}")


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        stated = manifest.pop("sha256")
        if stated != content_digest(manifest):
            return f"{MANIFEST} was changed"
        files = manifest["files"].items()
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return f"{MANIFEST} cannot be read"
    for name, expected in files:
        try:
            size = (path / name).stat().st_size
            if size != expected["size"]:
                return f"{name} has {size} bytes, not {expected['size']}"
            if file_digest(path / name) != expected["sha256"]:
                return f"{name} has changed bytes (sha256 differs)"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({first_line(error)})"
    return None


def damage_fix(path: Path) -> str:
    """What to do about a damaged checkpoint: the command that goes on from the newest whole one."""
    run = path.parent.parent if path.parent.name == CHECKPOINTS else path.parent
    others = complete_checkpoints(run / CHECKPOINTS) or complete_checkpoints(path.parent)
    for other in reversed([other for other in others if other.name != path.name]):
        if damage(other) is None:
            return f"give {other}" if path.name in MODELS else f"whet resume {run} --from {other.name}"
    return "no other checkpoint is whole: start the run again"


def load_checkpoint(path: Path, model: PreTrainedModel) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Put a verified checkpoint's weights into the model, in place and byte for byte; its tensors and state."""
    verify_checkpoint(path)
    stored, apart = stored_weights(path, model), [f"{name}.weight" for name in unmerged_layers(model)]
    # a base that is kept apart was read from where the run found it; the checkpoint has it with the adapter in it
    copy_weights({name: value for name, value in stored.items() if name not in apart}, model, path, apart)
    load_adapter(model, path, stored)
    return load_tensors(path), checkpoint_state(path)


def load_tensors(path: Path) -> dict[str, dict[str, Tensor]]:
    """The named sets of tensors in a checkpoint that was verified."""
    from safetensors.torch import load_file

    sets: dict[str, dict[str, Tensor]] = {}
    for name in read_manifest(path)["tensors"]:
        sets.setdefault(PIECE_NUMBER.sub("", name), {}).update(load_file(str(path / tensors_file(name))))
    return sets


def checkpoint_state(path: Path) -> dict[str, Any]:
    """The state in a checkpoint that was verified."""
    state: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))["state"]
    return state


def stored_weights(path: Path, model: PreTrainedModel) -> dict[str, Tensor]:
    """The saved weights under the model's own names."""
    from safetensors.torch import load_file

    stored: dict[str, Tensor] = {}
    for file in sorted(path.glob("model*.safetensors")):
        stored |= load_file(str(file))
    if stored.keys() <= model.state_dict().keys():
        return stored
    # Some architectures are saved under the names of their first release; transformers can translate them back.
    with quiet_transformers():
        return read_model(str(path), next(model.parameters()).dtype, str(path)).state_dict()


def copy_weights(stored: Mapping[str, Tensor], model: nn.Module, path: Path, besides: Collection[str] = ()) -> None:
    """Fill every weight of the model or raise before touching any; tied ones are one memory under several names."""
    targets = {name: value for name, value in model.state_dict().items() if name not in besides}
    for name in stored.keys() & targets.keys():
        stored_layout, expected = described(stored[name]), described(targets[name])
        if stored_layout != expected:
            raise WhetError(
                f"checkpoint {path} holds {name} as {stored_layout}, the model as {expected}; load its own model"
            )
    places: dict[tuple[int, int], list[str]] = {}
    for name, tensor in targets.items():
        places.setdefault((tensor.data_ptr(), tensor.numel()), []).append(name)
    absent = [names[0] for names in places.values() if not any(name in stored for name in names)]
    surplus = stored.keys() - targets.keys()
    if absent or surplus:
        problem = f"lacks {listed(absent)}" if absent else f"holds {listed(surplus)} besides"
        raise WhetError(f"checkpoint {path} {problem}; it was saved from another model: load its own")
    for names in places.values():
        saved = [stored[name] for name in names if name in stored]
        if any(digest_of(other) != digest_of(saved[0]) for other in saved[1:]):
            raise WhetError(f"checkpoint {path} holds {listed(names)} untied, the model ties them; load its own model")
    with torch.no_grad():
        for name, tensor in stored.items():
            targets[name].copy_(tensor)


def described(tensor: Tensor) -> str:
    """Number type and shape, for messages and digests."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def raw_bytes(tensor: Tensor) -> Any:
    """The tensor's bytes as something hashlib takes without another copy."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def digest_of(tensor: Tensor) -> str:
    """sha256 of the tensor's bytes."""
    return hashlib.sha256(raw_bytes(tensor)).hexdigest()


def weights_digest(model: nn.Module) -> str:
    """sha256 over every parameter's name, type, shape and bytes: equal exactly when the policy is the same."""
    total = hashlib.sha256()
    learned = adapter_factors(model)  # they are in the weights already, unless these are kept apart
    apart = tuple(f"{name}." for name in unmerged_layers(model))
    learned = {name: factor for name, factor in learned.items() if not name.startswith(apart)}
    parameters = [(name, parameter) for name, parameter in model.named_parameters() if name not in learned]
    for name, parameter in sorted(parameters):
        total.update(f"{name} {described(parameter)}\n".encode())
        total.update(raw_bytes(parameter))
    return total.hexdigest()
