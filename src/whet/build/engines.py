"""From a config to engines in processes of their own, each with a copy of the policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from whet.build.adapters import add_configured_adapters
from whet.build.threads import thread_choice
from whet.config.config import Config
from whet.dist.engine_host import EngineHost
from whet.dist.remote_engine import RemoteEngine
from whet.dist.workers import WorkerPool
from whet.model import device_choice, dtype_choice, load_model
from whet.model.causal_lm import CausalLM, causal_lm
from whet.protocols import Engine
from whet.registry import lookup


def engine_host(config: Config, maker: Callable[..., Engine]) -> EngineHost:
    """Runs in the engine's own process: the policy as the config describes it, and its engine."""
    device = device_choice(config.model.device)
    dtype, _ = dtype_choice(config.model.precision, device)
    loaded = load_model(config.model.name, torch.float32, str(device))
    threads, _ = thread_choice(config.model.threads, sum(each.numel() for each in loaded.model.parameters()))
    torch.set_num_threads(threads)
    add_configured_adapters(config, loaded.model)
    policy = causal_lm(loaded.model, dtype, "none")
    return EngineHost(policy, maker(policy, loaded.tokenizer, loaded.end_tokens, context=loaded.context))


def remote_engine(config: Config, pool: WorkerPool, policy: CausalLM) -> RemoteEngine:
    """`scale.engines` of them, with the policy's weights."""
    make = partial(engine_host, config, lookup("engine", config.sampling.engine))
    gpus = 1.0 if policy.device.type == "cuda" else 0.0

    def start(number: int) -> Any:
        return pool.start(f"engine {number}", make, gpus=gpus)

    trained = {name for name, each in policy.model.named_parameters() if each.requires_grad}
    frozen = frozenset(policy.model.state_dict()) - trained if config.model.lora.rank else frozenset()
    engine = RemoteEngine(
        pool, start, config.scale.engines, vocabulary=policy.vocabulary, timeout=config.scale.timeout, frozen=frozen
    )
    engine.load(policy.model.state_dict(), 0)
    return engine
