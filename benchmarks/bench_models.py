"""Model folders of fixed shapes for the benchmarks: random weights, tokenizers that allow prompts of exact length.

    python benchmarks/bench_models.py FOLDER byte words49k

prints the folder of each model as JSON. `smollm2` is the real SmolLM2-135M-Instruct.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import zlib
from pathlib import Path
from typing import Any

BODY = {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 8, "num_key_value_heads": 4}
SPECIAL = ("<pad>", "<bos>", "<eos>")
PIECE = re.compile(r"\w{1,6}|[^\w\s]")  # a word of ordinary length is one token, as it is to a trained tokenizer

# (family, settings); a vocabulary of 0 is that of bytes
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": (
        "llama",
        {
            **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
            **{"num_key_value_heads": 2, "vocab_size": 512},
        },
    ),
    "byte": ("llama", {**BODY, "num_hidden_layers": 4, "vocab_size": 0}),
    "words49k": ("llama", {**BODY, "num_hidden_layers": 4, "vocab_size": 49152}),
    "135m": (
        "llama",
        {
            **{"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9},
            **{"num_key_value_heads": 3, "vocab_size": 49152},
        },
    ),
    "1.5b": (
        "qwen2",
        {
            **{"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
            **{"num_key_value_heads": 2, "vocab_size": 151936},
        },
    ),
    "7b": (
        "qwen2",
        {
            **{"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
            **{"num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
        },
    ),
}


def tokenizer_of(vocabulary: int) -> Any:
    """Bytes, or words w0, w1, ... with a number for each token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if vocabulary == 0:
        letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        inner = Tokenizer(models.BPE(vocab=letters, merges=[]))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
    else:
        words = {f"w{number}": number for number in range(vocabulary - len(SPECIAL))}
        inner = Tokenizer(models.WordLevel(words, unk_token="w0"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pad, begin, end = SPECIAL
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=pad, bos_token=begin, eos_token=end)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + '\n' }}{% endfor %}"
    return tokenizer


def words_of(text: str, vocabulary: int) -> str:
    """The text in the words of a tokenizer of that size: the same piece is the same word everywhere."""
    count = vocabulary - len(SPECIAL)
    return " ".join(f"w{zlib.crc32(piece.encode()) % count}" for piece in PIECE.findall(text)) or "w0"


def random_model(
    family: str, settings: dict[str, Any], tokenizer: Any, device: str = "cpu", seed: int = 0, dtype: str = "float32"
) -> Any:
    """A model of this shape with random weights, made on the device in their dtype."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    kind = {"llama": LlamaConfig, "qwen2": Qwen2Config}[family]
    values = {"max_position_embeddings": 8192, "tie_word_embeddings": True, **settings, "vocab_size": len(tokenizer)}
    ends = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    torch.manual_seed(seed)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(kind(**values, **ends), dtype=getattr(torch, dtype))


def random_machine(
    family: str,
    settings: dict[str, Any],
    device: Any,
    precision: str,
    recompute: str = "auto",
    rank: int = 0,
    weights_type: str = "auto",
) -> Any:
    """A runtime around a random model: matrix products in `precision`, completions that never end.

    With a rank only adapters of it learn. `weights_type` is float32, bfloat16 or, under adapters, 4bit; auto is
    what a run would choose.
    """
    import torch

    from whet.model.load import LoadedModel, dtype_choice
    from whet.model.lora import LowRank, adapter_factors, add_adapters, merge_adapters
    from whet.model.low_precision import widen_vectors
    from whet.model.quantized import pack_four_bits
    from whet.rollout.episodes import EnvironmentRunner
    from whet.rollout.torch_engine import TorchEngine
    from whet.training.assembly.engines import thread_choice
    from whet.training.assembly.runtime import Runtime, build_policy, recompute_choice

    tokenizer = tokenizer_of(settings["vocab_size"])
    dtype, why = dtype_choice(precision, device)
    if weights_type == "auto":
        weights_type = "bfloat16" if rank and device.type == "cuda" and dtype == torch.bfloat16 else "float32"
    wide = weights_type == "float32"
    model = random_model(family, settings, tokenizer, str(device), dtype="float32" if wide else "bfloat16")
    if not wide:
        widen_vectors(model)
    if rank:
        pack = pack_four_bits if weights_type == "4bit" else None
        add_adapters(model, LowRank(rank, 2.0 * rank), merged=wide, pack=pack)
        for name, factor in adapter_factors(model).items():
            if name.endswith(".up"):  # as after some training: at zero an adapter that is forgotten would not show
                torch.nn.init.normal_(factor, 0.0, 0.01)
        merge_adapters(model)
    if device.type == "cuda":  # as a run does
        size = sum(parameter.numel() for parameter in model.parameters())
        torch.set_num_threads(thread_choice(0, size, on_gpu=True)[0])
    policy = build_policy(model, dtype, recompute_choice(recompute, device))
    context = model.config.max_position_embeddings
    weights = sum(parameter.numel() for parameter in model.parameters())
    facts = {"model": f"{weights / 1e6:.1f}M random weights", "dtype": f"{dtype} ({why})"}
    engine = TorchEngine(policy, tokenizer, (), context=context)
    loaded = LoadedModel(model, tokenizer, "random", (), context)
    return Runtime(loaded, policy, engine, EnvironmentRunner(engine), facts)


def model_folder(name: str, root: Path, device: str = "cpu") -> Path:
    """The folder of the named model, made where it is not there yet."""
    if name == "smollm2":
        from whet.model.load import local_folder

        path = local_folder(name)
        assert path is not None
        return path
    if name not in SHAPES:
        return Path(name)
    folder = root / name
    if not (folder / "model.safetensors").exists():
        family, settings = SHAPES[name]
        tokenizer = tokenizer_of(settings["vocab_size"])
        random_model(family, settings, tokenizer, device).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def prompts_of(folder: Path, count: int, length: int, seed: int) -> tuple[list[str], list[list[int]]]:
    """Random texts of exactly `length` tokens, and those tokens; each text gives them back."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    draw = random.Random(seed)
    pieces = single_pieces(tokenizer)
    texts = ["".join(draw.choice(pieces) for _ in range(length)) for _ in range(count)]
    tokens = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    wrong = [len(row) for row in tokens if len(row) != length]
    if wrong:
        raise SystemExit(f"{folder}: a prompt of {length} pieces became {wrong[0]} tokens; its tokenizer merges them")
    return texts, tokens


def single_pieces(tokenizer: Any) -> list[str]:
    """Texts that are one token each wherever they stand: ` word`, or single letters of a vocabulary of bytes."""
    ids = range(min(len(tokenizer), 20000))
    texts = [f" {text.strip()}" for text in tokenizer.batch_decode([[token] for token in ids])]
    encoded = tokenizer([text * 2 for text in texts], add_special_tokens=False)["input_ids"]
    words = [text for text, pieces in zip(texts, encoded, strict=True) if len(pieces) == 2 and text[1:].isalnum()]
    return words if len(words) > 100 else list("abcdefghijklmnopqrstuvwxyz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--prompts", default="", help="COUNTxLENGTH: also print random prompts of exact length")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    facts: dict[str, Any] = {}
    for name in chosen.names:
        folder = model_folder(name, chosen.folder)
        facts[name] = {"folder": str(folder)}
        if chosen.prompts:
            count, _, length = chosen.prompts.partition("x")
            texts, tokens = prompts_of(folder, int(count), int(length), chosen.seed)
            facts[name].update(texts=texts, tokens=tokens)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
