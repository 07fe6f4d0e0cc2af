"""Engines by name, as `sampling.engine` gives it: whet's own, and those that a user or a plugin registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whet import registry
from whet.model.causal_lm import CausalLM
from whet.protocols import Engine
from whet.rollout.torch_engine import TorchEngine
from whet.types import WhetError

ENGINES = registry.LazyEntries(
    {
        "torch": TorchEngine,
        "vllm": "whet.rollout.vllm_engine:VLLMEngine",
        "openai": "whet.rollout.openai_engine:OpenAIEngine",
    }
)


def _refusal(maker: Any) -> str:
    if not callable(maker):
        return f"it is {maker!r}; give a class, or a function that makes an engine"
    missing = [name for name in ("generate", "load") if isinstance(maker, type) and not hasattr(maker, name)]
    if missing:
        return f"{maker.__name__} has no {' and no '.join(missing)}; give it both methods of whet.protocols.Engine"
    try:
        inspect.signature(maker).bind(None, None, None, context=0)
    except TypeError as error:
        return f"it is called with (policy, tokenizer, end_tokens, context=...): {error}; take these arguments"
    return ""


registry.register_builtins("engine", ENGINES, _refusal)


def build_engine(
    name: str,
    policy: CausalLM,
    tokenizer: Any,
    end_tokens: Sequence[int],
    context: int,
    settings: Mapping[str, Any] | None = None,
    maker: Callable[..., Engine] | None = None,
) -> Engine:
    """The engine of that name for a policy; what its maker is called with is in `whet.protocols.Engine`.

    `settings` are `sampling.engine_settings`. `maker` is for a process in which the name is not registered.
    """
    maker = maker or registry.lookup("engine", name)
    registry.check_settings("engine", name, maker, settings or {})
    engine = maker(policy, tokenizer, end_tokens, context=context, **(settings or {}))
    if not isinstance(engine, Engine):
        raise WhetError(
            f"the engine {name!r} made {engine!r}; it must have generate(requests, sampling) and load(weights, version)"
        )
    return engine
