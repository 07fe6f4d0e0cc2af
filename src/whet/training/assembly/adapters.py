"""From a config to adapters on the model, before training."""

from __future__ import annotations

from typing import Any

import torch

from whet.model.lora import LowRank, adapter_factors, add_adapters, unadapted_experts, uncalled_layers
from whet.model.quantized import pack_four_bits
from whet.training.config import Config
from whet.types import WhetError


def add_configured_adapters(config: Config, model: Any, kept: torch.dtype = torch.float32) -> dict[str, str]:
    """Put adapters on the model where the config asks for them; the line about them for the run's facts.

    `kept` is how the weights were read: below float32 adapters are kept apart from them.
    """
    lora = config.model.lora
    if not lora.rank:
        return {}
    if config.model.reference == "reload" and not config.model.reference_model:
        raise WhetError(
            "model.reference=reload has no effect with model.lora: the adapters are switched off for it; drop it"
        )
    layers = add_adapters(
        model,
        LowRank(lora.rank, lora.alpha, lora.target_modules, config.seed),
        merged=kept == torch.float32,
        pack=pack_four_bits if lora.base == "4bit" else None,
    )
    learned = sum(factor.numel() for factor in adapter_factors(model).values())
    experts = unadapted_experts(model)
    left = (
        f"; {experts / 1e6:.2g}M weights in tensors of all experts or of convolutions stay as they are"
        if experts
        else ""
    )
    if uncalled := sorted(uncalled_layers(model)):
        left += f"; {', '.join(uncalled)} would get no gradient and stays as it is"
    return {"lora": f"rank {lora.rank} on {len(layers)} matrices ({learned / 1e6:.2g}M weights learn{left})"}
