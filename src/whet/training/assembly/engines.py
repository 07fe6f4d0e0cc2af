"""From a config to engines in processes of their own, each with a copy of the policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from whet.model import device_choice, dtype_choice, load_model
from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.load import LoadedModel
from whet.model.lora import adapted_layers
from whet.model.low_precision import widen_vectors
from whet.protocols import Engine
from whet.registry import check_settings, lookup
from whet.rollout.torch_engine import TorchEngine
from whet.settings.config import Config
from whet.training.assembly.threads import thread_choice
from whet.training.distributed.engine_host import EngineHost
from whet.training.distributed.remote_engine import RemoteEngine
from whet.training.distributed.workers import WorkerPool


def writing_policy(config: Config, kept: torch.dtype) -> tuple[CausalLM, LoadedModel]:
    """The policy as the config describes it, in a process that only writes; weights are kept in the trainer's type.

    Adapters are in the weights that the trainer sends: there are none here.
    """
    device = device_choice(config.model.device)
    dtype, _ = dtype_choice(config.model.precision, device)
    loaded = load_model(config.model.name, kept, str(device))
    if kept.itemsize < 4:
        widen_vectors(loaded.model)
    threads, _ = thread_choice(config.model.threads, sum(each.numel() for each in loaded.model.parameters()))
    torch.set_num_threads(threads)
    return causal_lm(loaded.model, dtype, "none"), loaded


def engine_host(config: Config, maker: Callable[..., Engine], kept: torch.dtype) -> EngineHost:
    """Runs in the engine's own process: its policy and its engine. `kept` is how the trainer keeps its weights."""
    policy, loaded = writing_policy(config, kept)
    settings = dict(config.sampling.engine_settings)
    owns_weights = maker is TorchEngine
    if owns_weights:
        settings["owns_weights"] = True
    make = partial(maker, policy, loaded.tokenizer, loaded.end_tokens, context=loaded.context, **settings)
    return EngineHost(policy, make, owns_weights)


def remote_engine(config: Config, pool: WorkerPool, policy: CausalLM, kept: torch.dtype) -> RemoteEngine:
    """`scale.engines` of them, with the policy's weights."""
    maker = lookup("engine", config.sampling.engine)
    check_settings("engine", config.sampling.engine, maker, config.sampling.engine_settings)
    make = partial(engine_host, config, maker, kept)
    gpus = 1.0 if policy.device.type == "cuda" else 0.0

    def start(number: int) -> Any:
        return pool.start(f"engine {number}", make, gpus=gpus)

    engine = RemoteEngine(
        pool,
        start,
        config.scale.engines,
        vocabulary=policy.vocabulary,
        timeout=config.scale.timeout,
        frozen=frozen_weights(policy.model) if config.model.lora.rank else frozenset(),
    )
    engine.load(policy.model.state_dict(), 0)
    return engine


def frozen_weights(model: torch.nn.Module) -> frozenset[str]:
    """Names of weights that never change: those that neither learn nor have an adapter merged into them."""
    changing = {name for name, each in model.named_parameters() if each.requires_grad}
    changing |= {f"{name}.weight" for name in adapted_layers(model)}
    return frozenset(model.state_dict()) - changing
