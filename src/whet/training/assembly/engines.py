"""From a config to the engine that writes completions: here, in processes of its own, or ahead of the trainer.

`config_engine` is the one place that makes an engine; the rest says where, and on which copy of the policy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.load import LoadedModel, device_choice, dtype_choice, load_model
from whet.model.lora import adapted_layers
from whet.model.low_precision import widen_vectors
from whet.protocols import Engine, Session
from whet.registry import check_settings, lookup
from whet.rollout.collect import PromptDataset, RolloutSpec
from whet.rollout.engines import build_engine
from whet.rollout.session import session_of
from whet.rollout.torch_engine import TorchEngine
from whet.training.config import Config, EvaluationConfig, PolicyConfig
from whet.training.distributed.ranks import Ranks
from whet.training.distributed.shared_rollout import WholeCopyEngine, whole_copy
from whet.types import Sampling, SessionShape

if TYPE_CHECKING:
    from whet.rollout.async_rollout import BackgroundSession, GroupWriter
    from whet.training.distributed.engine_host import EngineHost
    from whet.training.distributed.remote_engine import RemoteEngine
    from whet.training.distributed.workers import WorkerPool


SMALL_MODEL = 2_000_000  # weights
GPU_THREADS = 4  # of a run whose model is on a GPU: what is left for the CPU is small, and rewards want the cores


def thread_choice(requested: int, num_weights: int, on_gpu: bool = False) -> tuple[int, str]:
    """CPU threads and why. Every usable core, but one for a small model: waiting for the others would cost more."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if requested:
        return requested, f"model.threads={requested}; {cores} usable cores"
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return int(os.environ["OMP_NUM_THREADS"]), f"OMP_NUM_THREADS; {cores} usable cores"
    if num_weights < SMALL_MODEL:
        return 1, f"a model this small gains little from more; {cores} usable cores"
    if on_gpu:
        return min(GPU_THREADS, cores), f"the GPU computes; {cores} usable cores"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = f"; other jobs keep {load:.1f} busy, model.threads=1 may be faster" if load > 0.5 * cores > 0.5 else ""
    return cores, f"every usable core{busy}"


def config_engine(
    config: Config | EvaluationConfig,
    policy: CausalLM,
    loaded: LoadedModel,
    *,
    maker: Callable[..., Engine] | None = None,
    on_copy: bool = False,
) -> Engine:
    """The engine that `sampling.engine` names, with `sampling.engine_settings`.

    `maker` is given in another process, where a user's engine is not registered. `on_copy`: nobody trains these
    weights, and the trainer's are loaded into them.
    """
    sampling = config.sampling
    maker = maker or lookup("engine", sampling.engine)
    settings = dict(sampling.engine_settings)
    if is_server(maker):
        settings = {"model": config.model.name, **settings}
    if on_copy and maker is TorchEngine:
        settings["owns_weights"] = True
    return build_engine(
        sampling.engine, policy, loaded.tokenizer, loaded.end_tokens, loaded.context, settings, maker=maker
    )


def is_server(maker: Callable[..., Engine]) -> bool:
    """True for an engine whose weights are elsewhere and cannot be updated."""
    return not getattr(maker, "updates", True)


def rank_engine(config: Config | EvaluationConfig, policy: CausalLM, loaded: LoadedModel, ranks: Ranks) -> Engine:
    """The engine on the policy itself, or on a whole copy of one that will be sharded."""
    if ranks.size == 1:
        return config_engine(config, policy, loaded)
    return WholeCopyEngine(policy, lambda whole: config_engine(config, whole, loaded))


def load_for_writing(config: Config, weights: torch.dtype) -> tuple[CausalLM, LoadedModel]:
    """The policy in a process that only writes; `weights` is the type in which the trainer keeps its own.

    Adapters are in the weights that the trainer sends: there are none here.
    """
    device = device_choice(config.model.device)
    dtype, _ = dtype_choice(config.model.precision, device)
    loaded = load_model(config.model.name, weights, str(device), config.model.chat_template)
    if weights.itemsize < 4:
        widen_vectors(loaded.model)
    size = sum(parameter.numel() for parameter in loaded.model.parameters())
    torch.set_num_threads(thread_choice(config.model.threads, size, device.type == "cuda")[0])
    return causal_lm(loaded.model, dtype, "none"), loaded


def engine_host(config: Config, maker: Callable[..., Engine], weights: torch.dtype) -> EngineHost:
    """Runs in the engine's own process: its policy and its engine."""
    from whet.training.distributed.engine_host import EngineHost

    policy, loaded = load_for_writing(config, weights)
    make = partial(config_engine, config, policy, loaded, maker=maker, on_copy=True)
    return EngineHost(policy, make, owns_weights=maker is TorchEngine)


def remote_engine(config: Config, pool: WorkerPool, policy: CausalLM, weights: torch.dtype) -> RemoteEngine:
    """`scale.engines` of them, with the policy's weights."""
    from whet.training.distributed.remote_engine import RemoteEngine

    maker = lookup("engine", config.sampling.engine)
    check_settings("engine", config.sampling.engine, maker, config.sampling.engine_settings)
    make = partial(engine_host, config, maker, weights)
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
    changing = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    changing |= {f"{name}.weight" for name in adapted_layers(model)}
    return frozenset(model.state_dict()) - changing


def async_writer(
    config: PolicyConfig,
    loaded: LoadedModel,
    engine: Engine,
    policy: CausalLM,
    dataset: PromptDataset,
    spec: RolloutSpec,
    groups: int,
) -> GroupWriter:
    """The writer of so many groups at a time while the trainer trains; `engine` is the run's own.

    Episodes, and completions on a CUDA device, are written by a thread of this process, which has the device and a copy
    of the policy to itself. On a CPU a process writes completions: two threads would take turns in one interpreter.
    """
    device = policy.device
    if not config.env.is_single:
        from whet.rollout.episode_writer import EpisodeWriter
        from whet.training.assembly.episode_runner import build_episode_runner

        copied = WholeCopyEngine(policy, lambda whole: config_engine(config, whole, loaded))
        runner, _ = build_episode_runner(config, copied, loaded)
        return EpisodeWriter(runner, copied, dataset, spec, config.seed, device)
    from whet.rollout.async_rollout import SessionWriter

    shape = SessionShape(
        conversations=groups * config.batch.group_size,
        prompt_tokens=max(map(len, dataset.prompt_tokens)),
        growth=spec.sampling.max_new_tokens,
    )
    elsewhere: Callable[[Sampling, SessionShape], BackgroundSession] | None
    elsewhere = getattr(engine, "background_session", None)
    maker = lookup("engine", config.sampling.engine)
    session: BackgroundSession
    if elsewhere is not None:  # of engines that are in processes of their own already
        session = elsewhere(spec.sampling, shape)
    elif device.type == "cuda" and maker is TorchEngine:
        from whet.training.distributed.background import ThreadSession

        copied_engine = config_engine(config, whole_copy(policy), loaded, on_copy=True)
        session = ThreadSession(session_of(copied_engine, spec.sampling, shape), device)
    else:
        from whet.training.distributed.background import ProcessSession

        make = partial(open_session, config, maker, next(policy.model.parameters()).dtype, spec.sampling, shape)
        session = ProcessSession(make, policy.model.state_dict(), config.scale.timeout)
    return SessionWriter(session, dataset, spec, config.seed)


def open_session(
    config: Config, maker: Callable[..., Engine], weights: torch.dtype, sampling: Sampling, shape: SessionShape
) -> Session:
    """Runs in the engine's own process: its policy, and a session of its engine."""
    policy, loaded = load_for_writing(config, weights)
    return session_of(config_engine(config, policy, loaded, maker=maker, on_copy=True), sampling, shape)
