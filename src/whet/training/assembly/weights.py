"""From a config to how weights are kept: float32, bfloat16, or a frozen base in 4 bits."""

from __future__ import annotations

import torch

from whet.model.quantized import require_library
from whet.training.config import Config, EvaluationConfig
from whet.training.distributed.ranks import ALONE, Ranks
from whet.types import WhetError


def weights_choice(
    config: Config | EvaluationConfig, device: torch.device, dtype: torch.dtype, ranks: Ranks = ALONE
) -> tuple[torch.dtype, str]:
    """How weights are kept, and what to say about it; `dtype` is that of the products."""
    adapted = not isinstance(config, EvaluationConfig) and config.model.lora.rank > 0
    key, asked = ("model.lora.base", config.model.lora.base) if adapted else ("model.weights", config.model.weights)
    states = "float32" if isinstance(config, EvaluationConfig) else config.optimizer.states
    sharded = ranks.size > 1
    copied = adapted and _engine_has_copy(config)
    if asked == "auto":
        narrow = device.type == "cuda" and dtype == torch.bfloat16 and not sharded and not copied
        asked = "bfloat16" if narrow else "float32"
    if states == "int8":
        require_library()
    if sharded:
        for name, value in ((key, asked), ("optimizer.states", states)):
            if value != "float32":
                raise WhetError(f"{name}={value} is for one device; leave it away, or train in one process")
    if copied and asked != "float32":
        raise WhetError(
            f"{key}={asked} keeps adapters apart from the weights, and an engine that is sent weights would lack them; "
            f"leave {key} away, or let the trainer's own process write (scale.engines=0, scale.max_staleness=0, "
            "sampling.engine=torch)"
        )
    if asked == "float32":
        return torch.float32, ""
    if dtype != torch.bfloat16:
        raise WhetError(f"{key}={asked} needs products in bf16; give model.precision=bf16, or leave {key} away")
    if asked == "4bit":
        require_library()
        return torch.bfloat16, "base in 4 bits, unpacked for every product"
    return torch.bfloat16, "base in bfloat16, one copy" if adapted else "bfloat16, steps rounded at random"


def _engine_has_copy(config: Config | EvaluationConfig) -> bool:
    """Whether completions are written from weights that are handed over, not from the trainer's own."""
    elsewhere = not isinstance(config, EvaluationConfig) and bool(config.scale.engines or config.scale.max_staleness)
    return elsewhere or config.sampling.engine != "torch"
