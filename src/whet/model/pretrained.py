"""The one door to transformers' loader and its file layout: quiet, and strict about weights.

transformers fills a weight that the file lacks with random numbers and only warns. Here that is an error, for
whatever is loaded: folders, hub models and GGUF files all come through `read_model`.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.types import WhetError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

MOST_SHOWN = 300  # characters of another package's error
MOST_BYTES = "50GB"  # of a file of weights: transformers' own choice
MOST_NAMES = 3  # of missing weights in a message: enough to see the pattern, short enough for a line


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and log lines, which would garble the console's own display."""
    from transformers.utils import logging

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def import_loader() -> None:
    """Import what loads a model, and leave scikit-learn where it is.

    Up to 5.17 transformers imports it for a threshold of assisted decoding, which nobody asks for here; with pandas and
    scipy behind it that takes up to four seconds of a start.
    """
    from transformers import utils

    module = "transformers.generation.candidate_generator"
    if module in sys.modules:
        return
    known = utils.is_sklearn_available
    utils.is_sklearn_available = lambda: False
    try:
        importlib.import_module(module)
    finally:
        utils.is_sklearn_available = known
    from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_utils  # noqa: F401


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says, for a message of one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    text = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def read_model(source: str, dtype: torch.dtype, shown: str, **options: Any) -> PreTrainedModel:
    """The model of a folder or hub id, every weight from its file; `shown` is what errors call it.

    transformers' own exceptions pass through: the caller knows which fix to offer.
    """
    from transformers import AutoModelForCausalLM

    # Code that comes with a model is never run; without the explicit no, transformers asks on the terminal.
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=dtype,
        output_loading_info=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,  # they are refused below, by name
        **options,
    )
    model, loading = loaded
    refuse_incomplete(model, loading, shown)
    return model


def refuse_incomplete(model: PreTrainedModel, loading: Mapping[str, Any], shown: str) -> None:
    """Raise unless the file and the model hold the same weights; a tied head may be absent from the file."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    missing = set(loading.get("missing_keys") or ()) - tied
    mismatched = {str(entry[0]) for entry in loading.get("mismatched_keys") or ()}
    unexpected = set(loading.get("unexpected_keys") or ())
    kind = type(model).__name__
    if missing:
        raise WhetError(
            f"{shown}: the file lacks {listed(missing)} of {kind}, which would be random numbers; "
            f"check config.json, or save the model again with all its weights"
        )
    if mismatched:
        raise WhetError(
            f"{shown}: {listed(mismatched)} has another shape in the file than in config.json; "
            f"take both from the same model"
        )
    if unexpected:
        raise WhetError(
            f"{shown}: the file holds {listed(unexpected)}, which {kind} does not know and would drop; "
            f"check the architecture in config.json"
        )


def saved_texts(save: Callable[[str], object]) -> dict[str, bytes]:
    """The small files that something writes into a folder, by name: a config, a tokenizer."""
    with tempfile.TemporaryDirectory() as folder, quiet_transformers():
        save(folder)
        files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def weight_files(
    model: Any, weights: Mapping[str, Tensor], most_bytes: int | str = MOST_BYTES
) -> tuple[dict[str, dict[str, Tensor]], dict[str, bytes]]:
    """The weights as `save_pretrained` lays them out in files: tied ones once, under the names of the published model.

    Besides the tensors by file: the index, where there are several files. The model's own weights are not read.
    """
    from huggingface_hub import split_torch_state_dict_into_shards
    from transformers import PreTrainedModel
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    ignored = getattr(model, "_keys_to_ignore_on_save", None) or ()
    stored = {name: value for name, value in weights.items() if name not in ignored}
    if isinstance(model, PreTrainedModel):
        stored = remove_tied_weights_from_state_dict(stored, model)
        stored = revert_weight_conversion(model, stored)
    split = split_torch_state_dict_into_shards(
        stored, filename_pattern="model{suffix}.safetensors", max_shard_size=most_bytes
    )
    files = {file: {name: stored[name] for name in names} for file, names in split.filename_to_tensors.items()}
    if not split.is_sharded:
        return files, {}
    metadata = {"total_parameters": model.num_parameters(), **split.metadata}
    index = {"metadata": metadata, "weight_map": split.tensor_to_filename}
    return files, {"model.safetensors.index.json": (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()}


def listed(names: Collection[str]) -> str:
    """`a.weight, b.weight and 7 more`."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:MOST_NAMES])
    more = len(ordered) - MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
