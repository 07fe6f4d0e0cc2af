"""Checkpoints of models that nobody trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from whet.model.checkpoint import empty_partial
from whet.model.run_models import checkpoint_name
from whet.model.snapshot import (
    HostMemory,
    SnapshotNotes,
    naming,
    state_text,
    take_snapshot,
    tokenizer_texts,
    write_snapshot,
)


def save_checkpoint(
    folder: Path,
    step: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
) -> Path:
    """Write `folder/step-000040` in one atomic step; an older folder of that name is replaced. `state` is JSON."""
    final = folder / checkpoint_name(step)
    with naming(final):
        folder.mkdir(parents=True, exist_ok=True)
        empty_partial(final)
    snapshot = take_snapshot(step, model, tokenizer_texts(tokenizer), tensors, HostMemory())
    write_snapshot(snapshot, final, lambda: SnapshotNotes(state_text(step, state)))
    return final
