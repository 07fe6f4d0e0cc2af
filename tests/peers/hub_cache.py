"""A cache of the hub as its own tools leave it, filled without the hub: `models--org--name/snapshots/HASH` with
`refs/main` for models, prepared tables for datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets.naming import camelcase_to_snakecase
from datasets.packaged_modules.json.json import Json

from tests.support.chat_families import CHATML_TOKENS, Family

HASH = "0123456789abcdef0123456789abcdef01234567"


def tiny_model(folder: Path) -> None:
    """Qwen2 in small, with a chat template of its family."""
    family = Family("qwen2.5", "<|im_end|>", CHATML_TOKENS)
    tokenizer = family.tokenizer()
    tokenizer.pad_token = "<|endoftext|>"
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "max_position_embeddings": 1024, "tie_word_embeddings": True},
        **{"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None},
    )
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def add_models(home: Path, names: Iterable[str]) -> None:
    """The same small model under each of these names."""
    for name in names:
        repository = home / "hub" / f"models--{name.replace('/', '--')}"
        tiny_model(repository / "snapshots" / HASH)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(HASH)


def add_datasets(home: Path, datasets: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Each dataset's split `train`."""
    for name, rows in datasets.items():
        source = home / "sources" / f"{name.replace('/', '-')}.jsonl"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        owner, _, own = name.partition("/")
        files = {"train": [str(source)]}
        builder = Json(dataset_name=own, data_files=files, hash=HASH, cache_dir=str(home / "sources"))
        builder.download_and_prepare()
        prepared = home / "datasets" / f"{owner}___{camelcase_to_snakecase(own)}" / "default" / "0.0.0" / HASH
        prepared.parent.mkdir(parents=True)
        Path(builder.cache_dir).rename(prepared)
