"""From a config to a server over its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from whet.envs.sections import EnvSection
from whet.envs.serve.endpoint import require_server
from whet.envs.serve.request_queue import RequestQueue, TokenScorer
from whet.envs.serve.server import ModelServer
from whet.model.token_logp import top_tokens
from whet.training.assembly.runtime import Runtime, decode_facts, load_runtime, sampling_from
from whet.training.config import EvaluationConfig
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
    queue = RequestQueue(
        runtime.engine,
        loaded.tokenizer,
        end_tokens=loaded.end_tokens,
        context=loaded.context,
        rows=rows,
        history=config.env.history,
        call_format=config.env.call_format,
        scorer=token_scorer(runtime) if runtime.policy is not None else None,
    )
    model = Path(config.model.name).name
    server = ModelServer(queue, sampling, token, model=model, host=host, port=port, seed=config.seed)
    return server, {**runtime.facts, **decode_facts(runtime, sampling, [(0,)])}


def token_scorer(runtime: Runtime) -> TokenScorer:
    """Scores given tokens with the served model: the likeliest at each place, and the one that is there."""
    policy = runtime.policy

    def scored(tokens: Sequence[int], top: int) -> list[dict[int, float]]:
        row = torch.tensor([list(tokens)])
        action = torch.ones_like(row, dtype=torch.bool)
        action[:, 0] = False
        own = row[..., None].int()
        _, values = top_tokens(policy, row, action, 1.0, 1, own)
        tables = [{token: value} for token, value in zip(tokens[1:], values[0, 1:, 0].tolist(), strict=True)]
        if top:
            ids, best = (tensor[0, 1:].tolist() for tensor in top_tokens(policy, row, action, 1.0, top))
            tables = [
                {**dict(zip(names, logp, strict=True)), **table}
                for names, logp, table in zip(ids, best, tables, strict=True)
            ]
        return tables

    return scored
