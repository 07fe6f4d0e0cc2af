"""Step 1 of rebuilding the built-in model: its tokenizer, its config and random weights, into a folder.

    python recipes/whetstone.py build/whetstone-scratch
    whet train sft --config recipes/whetstone.toml        # step 2: learn from the built-in tasks
    # step 3: copy the last checkpoint's model and tokenizer files to whet/model/builtin/whetstone

Everything is seeded: the same package versions on the same kind of machine give the same files.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from whet.data.tasks import TASKS, gold_completion, items

VOCABULARY = 384  # at most: the tasks use fewer words
ROLES = ("system", "user", "assistant", "tool")
CONTROL = ["<|pad|>", "<|end|>", *(f"<|{role}|>" for role in ROLES)]  # never part of a completion's text
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]  # ordinary text, one token each
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def corpus() -> Iterator[str]:
    """PromptDataset and worked answers of every task, without the tags."""
    for task in TASKS.values():
        for difficulty in task.difficulties[:4]:
            for item in itertools.islice(items(task, "train", 0, difficulty), 500):
                yield item.question
                yield gold_completion(item).replace("<", "\n<").replace(">", ">\n")


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: any text goes in and comes out unchanged; digits and operators are always single tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(r"[-+*/=;()<>\n]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TAGS),
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(corpus(), trainer)
    backend.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=CONTROL[2:],
        chat_template=TEMPLATE,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def config(words: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(words),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    words = tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(config(words))
    model.generation_config = GenerationConfig(
        bos_token_id=None, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id
    )
    model.save_pretrained(folder)
    words.save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "build/whetstone-scratch"))
