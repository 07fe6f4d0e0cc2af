"""From a config to completions that are written while the trainer trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from whet.model import device_choice, dtype_choice
from whet.protocols import Engine, Session
from whet.rollout.async_rollout import BackgroundSession
from whet.rollout.engines import build_engine
from whet.rollout.session import BatchSession
from whet.rollout.torch_engine import TorchEngine
from whet.rollout.window import GroupWindow
from whet.settings.config import PolicyConfig
from whet.training.assembly.engines import writing_policy
from whet.training.assembly.runtime import Runtime
from whet.training.assembly.weights import weights_choice
from whet.training.distributed.background import ProcessSession
from whet.training.distributed.ranks import ALONE
from whet.types import Sampling, SessionShape


def async_session(
    config: PolicyConfig, runtime: Runtime, sampling: Sampling, prompt_tokens: Sequence[Sequence[int]], groups: int
) -> BackgroundSession:
    """Room for the completions of so many groups: in a process of its own, or where the run's engines are."""
    shape = SessionShape(
        conversations=groups * config.batch.group_size,
        prompt_tokens=max(map(len, prompt_tokens)),
        growth=sampling.max_new_tokens,
    )
    elsewhere: Callable[[Sampling, SessionShape], BackgroundSession] | None
    elsewhere = getattr(runtime.engine, "background_session", None)
    if elsewhere is not None:  # of engines that are in processes of their own already
        return elsewhere(sampling, shape)
    make = partial(open_async_session, config, sampling, shape)
    return ProcessSession(make, runtime.policy.model.state_dict(), config.scale.timeout)


def async_fact(config: PolicyConfig) -> str:
    """What is written while the trainer trains, in words."""
    batch, scale = config.batch, config.scale
    window = GroupWindow(batch.prompts_per_step, scale.max_staleness, scale.window)
    passed = f"a slow one may be passed {window.passes} times" if window.passes else "in strict order"
    return f"at most {scale.max_staleness} versions behind; {window.capacity} groups in flight, {passed}"


def open_async_session(config: PolicyConfig, sampling: Sampling, shape: SessionShape) -> Session:
    """Runs in the engine's own process: its policy, and a session of its engine."""
    device = device_choice(config.model.device)
    dtype, _ = dtype_choice(config.model.precision, device)
    kept, _ = weights_choice(config, device, dtype, ALONE)
    policy, loaded = writing_policy(config, kept)
    engine: Engine
    if config.sampling.engine == "torch":
        engine = TorchEngine(policy, loaded.tokenizer, loaded.end_tokens, context=loaded.context, owns_weights=True)
    else:
        engine = build_engine(config.sampling.engine, policy, loaded.tokenizer, loaded.end_tokens, loaded.context)
    own: Any = getattr(engine, "session", None)
    session: Session = BatchSession(engine, sampling) if own is None else own(sampling, shape)
    return session
