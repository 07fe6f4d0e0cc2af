"""Tiny models and a tiny tokenizer, made on the spot: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

WORDS = ["<s>", "</s>", "<unk>", "<turn>"]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[symbol] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<turn>"],
    )


def tiny_llama(tied: bool = True, **changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    settings: dict[str, Any] = {
        "vocab_size": 260,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 96,
        "tie_word_embeddings": tied,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    return LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()


def tiny_gpt2(dropout: float = 0.5) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(2)
    config = GPT2Config(
        vocab_size=260,
        n_positions=48,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=1,
        attn_pdrop=dropout,
        embd_pdrop=dropout,
        resid_pdrop=dropout,
    )
    return GPT2LMHeadModel(config).eval()


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms, rotations and routers compute in single precision whatever the weights are: here, in double as well."""
    to, softmax = torch.Tensor.to, torch.nn.functional.softmax

    def widened(values: Any, *asked: Any, **more: Any) -> Any:
        wide = [torch.float64 if each is torch.float32 else each for each in asked]
        return to(
            values, *wide, **{name: torch.float64 if each is torch.float32 else each for name, each in more.items()}
        )

    def shares(values: Any, dim: Any = None, dtype: Any = None, **more: Any) -> Any:
        return softmax(values, dim=dim, dtype=None if values.dtype == torch.float64 else dtype, **more)

    monkeypatch.setattr(torch.Tensor, "to", widened)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch.nn.functional, "softmax", shares)


@pytest.fixture
def make_llama() -> Callable[..., Any]:
    """The builder itself, for tests that need other sizes."""
    return tiny_llama


@pytest.fixture
def llama() -> Any:
    return tiny_llama()


@pytest.fixture
def untied_llama() -> Any:
    return tiny_llama(tied=False)


@pytest.fixture
def gpt2() -> Any:
    return tiny_gpt2()


@pytest.fixture
def folder(tmp_path: Path, llama: Any, tokenizer: Any) -> Path:
    """A complete model folder."""
    path = tmp_path / "tiny"
    llama.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.tensor([[0, 5, 9, 200, 31, 7, 1]])
