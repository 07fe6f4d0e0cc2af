# ruff: noqa: RUF001 (the bars of DeepSeek's control tokens are full-width)
"""Chat templates of many families, each with a small tokenizer that has the family's control tokens.

The templates are data (see chat_templates/SOURCES.md). The vocabularies are trained here on a few lines; how a family
splits text is kept: byte-level, sentencepiece with a blank before every section, or before the first one only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

FOLDER = Path(__file__).parent / "chat_templates"
CORPUS = [
    "the user asked a question and the assistant answered it\n\n",
    '{"name": "add", "arguments": {"x": 5}}\n</tool_call>',
    "<tool_response>\nthe tool result is 5.\n</tool_response>\n",
    "user\nassistant\nsystem\ntool\n  two   blanks  ",
]
# how the byte-level tokenizers of the day cut text into words
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
GLM_TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "string", "description": "A number."}},
                "required": ["x"],
            },
        },
    },
)


@dataclass(frozen=True)
class Family:
    name: str
    eos: str
    special: tuple[str, ...] = ()  # besides eos and bos
    added: tuple[str, ...] = ()  # added tokens that are not special
    bos: str | None = None
    splits: str = "bytes"  # bytes, every (a blank before each section), first (before the first section only)
    blanks: bool = False  # control tokens take up the blanks behind them

    def tokenizer(self) -> Any:
        core = Tokenizer.from_str(_base(self.splits))
        wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=core, bos_token=self.bos, eos_token=self.eos)
        names = dict.fromkeys(each for each in (self.bos, self.eos, *self.special) if each)
        tokens = [AddedToken(each, special=True, normalized=False, rstrip=self.blanks) for each in names]
        wrapped.add_special_tokens({"extra_special_tokens": tokens})
        wrapped.add_tokens([AddedToken(each, special=False, normalized=False) for each in self.added])
        path = FOLDER / f"{self.name}.jinja"
        wrapped.chat_template = path.read_text(encoding="utf-8") if path.exists() else CHATML
        return wrapped


@lru_cache
def _base(splits: str) -> str:
    """A small tokenizer as JSON."""
    if splits == "bytes":
        core = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(Regex(WORDS), "isolated")
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        core.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
        core.train_from_iterator(CORPUS * 9, trainer)
        return core.to_str()
    core = Tokenizer(models.BPE())
    lines = pre_tokenizers.Split("\n", "isolated")  # no piece runs across lines
    core.pre_tokenizer = pre_tokenizers.Sequence([lines, pre_tokenizers.Metaspace(split=False)])
    core.train_from_iterator(CORPUS * 9, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    model = json.loads(core.to_str())["model"]
    vocabulary = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for piece in model["vocab"]:
        vocabulary.setdefault(piece, len(vocabulary))
    merges = [tuple(pair) for pair in model["merges"]]
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replace = decoders.Replace("▁", " ")
    core.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse()])
    if splits == "every":
        core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif splits == "first":
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        core.normalizer = normalizers.Replace(" ", "▁")
    return core.to_str()


CHATML_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
LLAMA3_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>", "<|end_of_text|>")
DEEPSEEK_TOKENS = (
    *("<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>"),
    *("<｜tool▁output▁end｜>", "<｜tool▁sep｜>"),
)
MISTRAL_TOKENS = (
    *("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
    "[/TOOL_RESULTS]",
)
GEMMA_TOKENS = ("<start_of_turn>", "<end_of_turn>")
PHI_TOKENS = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|/tool|>", "<|tool_call|>")
GLM_TOKENS = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
HARMONY_TOKENS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|endoftext|>")
KIMI_TOKENS = (
    *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|tool_calls_section_begin|>"),
    *("<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
COHERE_TOKENS = (
    *("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|START_RESPONSE|>"),
    *("<|END_RESPONSE|>", "<|START_THINKING|>", "<|END_THINKING|>"),
)
DEEPSEEK_EDGES = {"bos": "<｜begin▁of▁sentence｜>", "eos": "<｜end▁of▁sentence｜>"}

FAMILIES = {
    family.name: family
    for family in (
        Family("chatml", "<|im_end|>", CHATML_TOKENS),  # SmolLM2 and many others
        Family("qwen2.5", "<|im_end|>", CHATML_TOKENS, ("<tool_call>", "</tool_call>")),
        Family("qwen3", "<|im_end|>", CHATML_TOKENS, QWEN_TAGS),
        Family("qwen3-instruct-2507", "<|im_end|>", CHATML_TOKENS, QWEN_TAGS),
        Family("qwen3-training", "<|im_end|>", CHATML_TOKENS, QWEN_TAGS),
        Family("llama3", "<|eot_id|>", LLAMA3_TOKENS, bos="<|begin_of_text|>"),
        Family("llama3.1", "<|eot_id|>", LLAMA3_TOKENS, bos="<|begin_of_text|>"),
        Family("llama3.2", "<|eot_id|>", LLAMA3_TOKENS, bos="<|begin_of_text|>"),
        Family("mistral-v0.3", "</s>", MISTRAL_TOKENS, bos="<s>", splits="every"),
        Family("mistral-nemo", "</s>", MISTRAL_TOKENS, bos="<s>"),
        Family("gemma2", "<eos>", GEMMA_TOKENS, ("<b>", "</b>"), bos="<bos>", splits="plain"),
        Family("gemma3", "<eos>", GEMMA_TOKENS, bos="<bos>", splits="plain"),
        Family("phi3.5", "<|endoftext|>", PHI_TOKENS, bos="<s>", splits="first", blanks=True),
        Family("phi4-mini", "<|endoftext|>", PHI_TOKENS),
        Family("deepseek-r1-distill", **DEEPSEEK_EDGES, special=DEEPSEEK_TOKENS, added=("<think>", "</think>")),
        Family("deepseek-r1", **DEEPSEEK_EDGES, special=DEEPSEEK_TOKENS, added=("<think>", "</think>")),
        Family("glm4.5", "<|endoftext|>", GLM_TOKENS, (*QWEN_TAGS, *GLM_TAGS)),
        Family("gpt-oss", "<|return|>", HARMONY_TOKENS, bos="<|startoftext|>"),
        Family("hermes", "<|im_end|>", CHATML_TOKENS, bos="<|begin_of_text|>"),
        Family(
            "granite4", "<|end_of_text|>", ("<|start_of_role|>", "<|end_of_role|>"), ("<tool_call>", "</tool_call>")
        ),
        Family("smollm3", "<|im_end|>", CHATML_TOKENS, ("<think>", "</think>")),
        Family(
            "lfm2",
            "<|im_end|>",
            (*CHATML_TOKENS, "<|tool_response_start|>", "<|tool_response_end|>"),
            bos="<|startoftext|>",
        ),
        Family("kimi-k2", "<|im_end|>", KIMI_TOKENS),
        Family("cohere2", "<|END_OF_TURN_TOKEN|>", COHERE_TOKENS, bos="<BOS_TOKEN>"),
        Family("nemotron3-nano", "<|im_end|>", CHATML_TOKENS, QWEN_TAGS),
        Family("alpaca", "</s>", bos="<s>", splits="every"),
    )
}
