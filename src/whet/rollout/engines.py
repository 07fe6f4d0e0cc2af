"""Engines by name, as `sampling.engine` gives it: whet's own, and those that a user or a plugin registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whet import registry
from whet.model.causal_lm import CausalLM
from whet.protocols import Engine
from whet.rollout.openai_engine import OpenAIEngine
from whet.rollout.torch_engine import TorchEngine
from whet.rollout.vllm_engine import VLLMEngine
from whet.types import WhetError, did_you_mean

ENGINES: dict[str, Callable[..., Engine]] = {"torch": TorchEngine, "vllm": VLLMEngine, "openai": OpenAIEngine}


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


registry.open_shelf("engine", ENGINES, _refusal)


def build_engine(
    name: str,
    policy: CausalLM,
    tokenizer: Any,
    end_tokens: Sequence[int],
    context: int,
    settings: Mapping[str, Any] | None = None,
) -> Engine:
    """The engine of that name for a policy; what its maker is called with is in `whet.protocols.Engine`.

    `settings` are `sampling.engine_settings`.
    """
    maker = registry.lookup("engine", name)
    check_settings(name, maker, settings or {})
    engine = maker(policy, tokenizer, end_tokens, context=context, **(settings or {}))
    if not isinstance(engine, Engine):
        raise WhetError(
            f"the engine {name!r} made {engine!r}; it must have generate(requests, sampling) and load(weights, version)"
        )
    return engine


def check_settings(name: str, maker: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise where the engine takes no setting of that name, or one of another type than its default."""
    parameters = inspect.signature(maker).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    named = [each for each in parameters.values() if each.kind is inspect.Parameter.KEYWORD_ONLY]
    known = [each.name for each in named if each.name != "context"]
    for key, value in settings.items():
        if key in known and parameters[key].default is not inspect.Parameter.empty:
            wanted = type(parameters[key].default)
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                kind = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", dict: "a table"}
                raise WhetError(f"{key} of the engine {name!r} is {value!r}; give {kind.get(wanted, wanted.__name__)}")
        if key not in known:
            fix = f"give one of {', '.join(known)}" if known else "it has none; drop it"
            raise WhetError(f"the engine {name!r} has no setting {key!r}{did_you_mean(key, known)}; {fix}")
