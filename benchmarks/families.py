"""Every family of causal language models in transformers, tiny and random: what whet does, and whether it is right.

    python benchmarks/families.py                      # all of them, a line each
    python benchmarks/families.py mistral olmo3        # some of them
    python benchmarks/families.py --results            # and write results/families.json, which docs/models.md quotes

Rows are longer than every window, chunk and original length of the tiny configs, share prompts and are ragged. Training
(log-probabilities and every gradient, packed as whet packs them) and decoding (the log-probabilities that the engine
reports) are compared with the model's own plain forward pass of each row alone, in float64 where the model allows it.
"""

from __future__ import annotations

import argparse
import copy
import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from results_file import add_results_flag, write_results
from torch import Tensor

from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.fast_path import fast_path
from whet.model.load import switch_off_dropout
from whet.model.token_logp import token_logp
from whet.model.train_noise import switch_off_noise
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sampling

WINDOW = 8
TINY = {
    **{"vocab_size": 261, "vocab_size_per_layer_input": 261},
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "model_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **{"num_key_value_heads": 2, "head_dim": 8},
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    **dict.fromkeys(("sliding_window", "window_size", "attention_window_size", "attention_chunk_size"), WINDOW),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **{"pad_token_id": None, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False},
}
MLA = {
    "head_dim": None,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
INDEXED = {**MLA, "index_topk": 64, "index_head_dim": 16, "index_n_heads": 2}
MAMBA = {"mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_conv": 4}
MAMBA |= {"mamba_chunk_size": WINDOW}
GATED_DELTA = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"]},
}
SLIDING = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
HYBRID = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
# what a family needs besides the tiny sizes; None in it: leave the default
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "bamba": {**MAMBA, "attn_layer_indices": [1, 3]},
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"), MLA),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), INDEXED),
    "bailing_hybrid": {**MLA, "head_dim": 8, "layer_group_size": 2},
    "beam": {"n_group": 1, "topk_group": 1},
    "codegen": {"rotary_dim": 4},
    "dots1": {
        **{"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2},
        **{"layer_types": SLIDING},
    },
    "kimi_linear": {**MLA, "q_lora_rank": None, "layer_types": HYBRID, "linear_head_dim": 8, "linear_num_heads": 4},
    "gptj": {"rotary_dim": 4},
    "gemma3n_text": {"num_kv_shared_layers": 0, "layer_types": SLIDING},
    "modernbert-decoder": {"pad_token_id": 2},
    "falcon": {"head_dim": None},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64},
    "gemma3_text": {"layer_types": SLIDING},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention", "mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "llama4_text": {"floor_scale": WINDOW, "attn_scale": 0.5, "no_rope_layers": [1, 1, 1, 0]},
    "longcat_flash": {
        **MLA,
        **{"head_dim": 8, "num_layers": 2, "num_hidden_layers": None, "ffn_hidden_size": 48, "moe_topk": 2},
        **{"zero_expert_num": 2},
    },
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": WINDOW},
    "ministral": {"layer_types": SLIDING},
    "ministral3": {
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": WINDOW},
            **{"llama_4_scaling_beta": 0.5, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        }
    },
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1},
    "phi3": {"num_key_value_heads": 4},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen2_moe": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen3_next": GATED_DELTA,
    "qwen3_5_text": GATED_DELTA,
    "qwen3_5_moe_text": GATED_DELTA,
    "smollm3": {"use_sliding_window": True, "layer_types": SLIDING, "no_rope_layers": [1, 0, 1, 0]},
    "zamba2": {
        **{"mamba_d_state": 8, "n_mamba_heads": 4, "chunk_size": WINDOW, "num_key_value_heads": 4},
        **{"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "adapter_rank": 4},
    },
}
# other settings of a family, by a name of their own
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}),
    "granite multipliers": (
        "granite",
        {"residual_multiplier": 0.5, "embedding_multiplier": 3.0, "attention_multiplier": 0.3, "logits_scaling": 2.0},
    ),
    "llama biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2 full": ("qwen2", {"use_sliding_window": False}),
    "mistral full": ("mistral", {"sliding_window": None}),
}
# what transformers' own step and its own scan make of these differs: the sampler's gap, and not whet's to close
STEP_IS_NOT_SCAN = {"nemotron_h": 1e-2, "zamba2": 1e-1}  # nats at most, at random weights
# not decoder-only language models over text alone, or not on a tiny config
LEFT_OUT = frozenset(
    {
        *(
            "bart",
            "bert",
            "bert-generation",
            "big_bird",
            "bigbird_pegasus",
            "blenderbot",
            "blenderbot-small",
            "camembert",
        ),
        *("data2vec-text", "electra", "ernie", "marian", "mbart", "megatron-bert", "mvp", "pegasus", "plbart"),
        *("prophetnet", "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "trocr"),
        *("whisper", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod", "musicgen", "musicgen_melody", "moshi"),
        *("aria_text", "emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_assistant", "gemma4_unified"),
        *("gemma4_unified_assistant", "git", "got_ocr2", "llama4", "mllama", "moss_transcribe_diarize"),
        *("phi4_multimodal", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "cpmant", "ctrl", "blt", "gpt-sw3", "openai-gpt"),
        *("cohere_compass_text", "dbrx", "qwen4_exp_text", "xlstm", "zaya"),
    }
)


def families() -> list[str]:
    """The model families that are checked."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *VARIANTS} - LEFT_OUT)


def tiny_model(name: str, **changes: Any) -> Any:
    """A model of the family with random weights, norms and biases away from 1 and 0."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    family, more = VARIANTS.get(name, (name, {}))
    config_class = CONFIG_MAPPING[family]
    known = _settings(config_class)
    settings = {key: value for key, value in TINY.items() if key in known}
    settings |= {**CHANGES.get(family, {}), **more, **changes}
    config = config_class(**{key: value for key, value in settings.items() if value is not None or key in known_none})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    spread_weights(model)
    switch_off_dropout(model)
    return model.eval()


known_none = frozenset({"pad_token_id", "sliding_window"})


def _settings(config_class: Any) -> set[str]:
    """Names that the config takes."""
    config = config_class()
    return {name for name in TINY if name in vars(config) or name in getattr(config, "attribute_map", {})}


@torch.no_grad()
def spread_weights(model: Any) -> None:
    """Fresh models have scores near 0 and norms of exactly 1: nothing would show."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.normal_(0.0, max(parameter.shape[-1], 4) ** -0.5)
        elif parameter.numel():
            parameter.add_(torch.randn_like(parameter) * 0.3)


@dataclass(frozen=True)
class Gaps:
    """What whet does with a family, and how far it is from the model's own plain forward pass."""

    family: str
    training: str = ""
    decoding: str = ""
    logp: float = float("nan")  # largest difference, nats
    gradient: float = float("nan")  # largest over the parameters, relative
    sampled_logp: float = float("nan")  # largest difference, nats
    error: str = ""
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Whether every gap is rounding."""
        sampled = STEP_IS_NOT_SCAN.get(self.family, 2e-4)
        return not self.error and self.logp < 2e-4 and self.gradient < 2e-3 and self.sampled_logp < sampled


def long_rows(vocabulary: int) -> tuple[Tensor, Tensor]:
    """Two shared prompts with several completions, and a row of its own: int64 [N, T], bool [N, T]."""
    shapes = [(13, 20), (13, 3), (5, 25), (13, 11), (5, 9), (21, 7)]
    tokens = torch.zeros(len(shapes), 34, dtype=torch.long)
    action = torch.zeros(len(shapes), 34, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(shapes):
        stream = torch.Generator().manual_seed(prompt)
        tokens[row, :prompt] = torch.randint(2, vocabulary, (prompt,), generator=stream)
        stream = torch.Generator().manual_seed(100 + row)
        tokens[row, prompt : prompt + completion] = torch.randint(2, vocabulary, (completion,), generator=stream)
        action[row, prompt : prompt + completion] = True
    return tokens, action


def own_logp(model: Any, row: Tensor) -> Tensor:
    """[T - 1]: by the model's own plain forward pass of the row alone."""
    logits = model(input_ids=row[None], use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, row[1:, None])[:, 0]


def wide_copy(model: Any) -> Any:
    """A float64 copy, where the model computes in it; else one as it is."""
    copied = copy.deepcopy(model).double()
    try:
        with torch.no_grad():
            own_logp(copied, torch.arange(2, 9))
        return copied
    except RuntimeError:
        return copy.deepcopy(model)


def training_gaps(lm: CausalLM, reference: Any) -> tuple[float, float]:
    """The gaps of log-probabilities, and of the gradients of a weighted sum of them."""
    tokens, action = long_rows(lm.vocabulary)
    weight = torch.linspace(-3, 3, action.numel()).sin().view(action.shape)
    lm.model.zero_grad(set_to_none=True)
    lm.model.train()
    try:
        logp = token_logp(lm, tokens, action).logp
        (logp * weight).sum().backward()
    finally:
        lm.model.eval()
    reference.zero_grad(set_to_none=True)
    gap = 0.0
    for row, flags, factor, ours in zip(tokens, action, weight, logp.detach(), strict=True):
        length = int(flags.nonzero().max()) + 1
        theirs = own_logp(reference, row[:length])
        chosen = flags[1:length]
        (theirs * factor[1:length] * chosen).sum().backward()
        gap = max(gap, float((ours[1:length] - theirs.detach())[chosen].abs().max()))
    pairs = [
        (ours.grad, theirs.grad)
        for ours, theirs in zip(lm.model.parameters(), reference.parameters(), strict=True)
        if theirs.grad is not None and float(theirs.grad.norm()) > 0
    ]
    whole = float(torch.stack([theirs.norm() for _, theirs in pairs]).norm())
    gradient = 0.0
    for ours, theirs in pairs:
        difference = theirs if ours is None else ours.to(theirs) - theirs
        gradient = max(gradient, float(difference.norm() / theirs.norm().clamp(min=1e-2 * whole)))
    return gap, gradient


class Words:
    """A tokenizer as far as the engine needs one."""

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return " ".join(map(str, tokens))


def decoding_gap(lm: CausalLM, reference: Any) -> tuple[str, float]:
    """The decode path, and how far sampled log-probabilities are from the reference."""
    engine = TorchEngine(lm, Words(), (1,), context=128, rows_per_batch=5)
    tokens, _ = long_rows(lm.vocabulary)
    prompts = [tuple(tokens[row, :length].tolist()) for row, length in ((0, 13), (2, 5), (5, 21), (0, 13), (2, 3))]
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts * 2)]
    sampling = Sampling(max_new_tokens=16)
    path = str(engine.path_for(sampling, 21))
    gap = 0.0
    for sample in engine.generate(requests, sampling):
        with torch.no_grad():
            theirs = own_logp(reference, sample.tokens)
        gap = max(gap, float((sample.behavior_logp[1:] - theirs)[sample.action[1:]].abs().max()))
    return path, gap


def gaps_of(name: str, **changes: Any) -> Gaps:
    """Both comparisons; an error where something raised."""
    gaps, start = Gaps(name), time.time()
    try:
        model = tiny_model(name, **changes)
    except Exception as error:
        return replace(gaps, error=f"no tiny model: {_line(error)}", seconds=time.time() - start)
    reference = wide_copy(model)
    try:
        lm = causal_lm(model)
        switch_off_noise(lm)
        gaps = replace(gaps, training=str(fast_path(lm)))
        logp, gradient = training_gaps(lm, reference)
        gaps = replace(gaps, logp=logp, gradient=gradient)
    except Exception as error:
        gaps = replace(gaps, error=f"training: {_line(error)}")
    try:
        decoding, gap = decoding_gap(lm, reference)
        gaps = replace(gaps, decoding=decoding, sampled_logp=gap)
    except Exception as error:
        gaps = replace(gaps, error=f"{gaps.error} decoding: {_line(error)}".strip())
    return replace(gaps, seconds=time.time() - start)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


SHORT = {
    "fused layers": "fused",
    "the model's own layers, shared prompts computed once": "own layers, packed",
    "the model's own layers on padded rows": "own layers, padded",
    "fused decoder": "fused",
    "the model's own layers on whet's buffers": "own layers",
    "the model's own forward and cache": "own cache",
    "the model's own forward and cache, prompts of one length at a time": "own cache, one prompt length at a time",
    "the model's own forward over whole rows, without a cache": "whole rows, no cache",
}


def results(every: Sequence[Gaps]) -> dict[str, Any]:
    """What whet does, with the families that it does it with and their largest gaps."""
    import transformers

    by_way: dict[tuple[str, ...], list[Gaps]] = {}
    for gaps in every:
        by_way.setdefault(tuple(SHORT[path.split(" (")[0]] for path in (gaps.training, gaps.decoding)), []).append(gaps)
    order = list(dict.fromkeys(SHORT.values()))
    ways = {
        " | ".join(way): {
            "families": ", ".join(sorted(gaps.family for gaps in by_way[way])),
            "training_gap": max(gaps.logp for gaps in by_way[way]),
            "gradient_gap": max(gaps.gradient for gaps in by_way[way]),
            "decoding_gap": max(gaps.sampled_logp for gaps in by_way[way]),
        }
        for way in sorted(by_way, key=lambda way: [order.index(step) for step in way])
    }
    step = max((gaps.sampled_logp for gaps in every if gaps.family in STEP_IS_NOT_SCAN), default=0.0)
    versions = {"transformers": transformers.__version__}
    return {"count": len(every), **versions, "step_is_not_scan": step, "ways": ways}


def main() -> None:
    """Print a line per family; with an error at the end if one is wrong."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="families; all where none is given")
    add_results_flag(parser, "families")
    arguments = parser.parse_args()
    every = []
    for name in arguments.names or families():
        gaps = gaps_of(name)
        every.append(gaps)
        print(
            f"{'ok   ' if gaps.right else 'WRONG'} {name:20s} logp {gaps.logp:.1e} grad {gaps.gradient:.1e} "
            f"sampled {gaps.sampled_logp:.1e} {gaps.seconds:4.1f}s | {gaps.training} | {gaps.decoding} | {gaps.error}",
            flush=True,
        )
    if wrong := [gaps.family for gaps in every if not gaps.right]:
        raise SystemExit(f"wrong: {', '.join(wrong)}")
    if arguments.results:
        write_results(arguments.results, results(every), measured=("model", "rollout"))


if __name__ == "__main__":
    main()
