"""From a config to a server over its model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from whet.build.runtime import decode_facts, load_runtime, sampling_from
from whet.config.config import EvaluationConfig
from whet.config.sections import EnvSection
from whet.envs.serve.endpoint import require_server
from whet.envs.serve.server import ModelServer
from whet.types import WhetError


def build_server(
    config: EvaluationConfig, token: str, *, host: str, port: int, rows: int
) -> tuple[ModelServer, Mapping[str, str]]:
    """The server, not yet listened to, and the facts of its model."""
    require_server()
    # whoever asks plays the episodes
    runtime = load_runtime(config.model_copy(update={"env": EnvSection()}))
    sampling, loaded = sampling_from(config.sampling), runtime.loaded
    if sampling.max_new_tokens >= loaded.context:
        raise WhetError(
            f"sampling.max_new_tokens is {sampling.max_new_tokens}, and the model's context {loaded.context}; "
            "expected fewer, so that a prompt has room"
        )
    server = ModelServer(
        runtime.engine,
        loaded.tokenizer,
        sampling,
        token,
        model=Path(config.model.name).name,
        end_tokens=loaded.end_tokens,
        context=loaded.context,
        rows=rows,
        host=host,
        port=port,
        seed=config.seed,
        history=config.env.history,
        call_format=config.env.call_format,
    )
    return server, {**runtime.facts, **decode_facts(runtime, sampling, [(0,)])}
