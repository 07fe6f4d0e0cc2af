"""Is a completion that came from elsewhere one that the request can have? What it may not be, whatever the policy."""

from __future__ import annotations

import torch

from whet.types import Request, Sample, Sampling

ROUNDING = 1e-3  # nats that rounding may lift a log-probability above 0


def wrong_with(sample: object, request: Request, sampling: Sampling, vocabulary: int, version: int | None) -> str:
    """What is wrong with a sample, in words; empty where nothing is. `version` None: any policy may have written it."""
    if not isinstance(sample, Sample):
        return f"it is {type(sample).__name__}, not a sample"
    start, length = len(request.tokens), len(sample.tokens)
    budget = request.max_new_tokens or sampling.max_new_tokens
    if sample.tokens.dim() != 1 or sample.tokens.dtype != torch.long:
        return f"its tokens are {_described(sample.tokens)}, not int64 [L]"
    if sample.action.shape != sample.tokens.shape or sample.action.dtype != torch.bool:
        return f"its action mask is {_described(sample.action)}, not bool [{length}]"
    if sample.behavior_logp.shape != sample.tokens.shape:
        return f"its log-probabilities are {_described(sample.behavior_logp)}, not [{length}]"
    if tuple(sample.tokens[:start].tolist()) != request.tokens:
        return "it does not begin with the prompt that was sent"
    if not 1 <= length - start <= budget:
        return f"it has {length - start} new tokens; 1 to {budget} were asked for"
    fresh, logp = sample.tokens[start:], sample.behavior_logp[start:]
    if bool(sample.action[:start].any()) or not bool(sample.action[start:].all()):
        return "its action mask is not the completion"
    if int(fresh.min()) < 0 or int(fresh.max()) >= vocabulary:
        return f"it has the token {int(fresh.max())} of a vocabulary of {vocabulary}"
    if not bool(torch.isfinite(logp).all()):
        return "a log-probability is not finite (NaN or infinity)"
    if float(logp.max()) > ROUNDING:
        return f"a log-probability is {float(logp.max()):.3g}, more than 0"
    if version is not None and sample.versions != (version, version):
        return f"policy version {sample.versions[0]} wrote it, and the engine was given {version}"
    return ""


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
