"""log pi(token | prefix) of the action tokens, without ever building [N, T, V] logits.

Only positions that carry loss reach the vocabulary head, `CHUNK_ELEMENTS` logits at a time; each chunk's logits are
dropped after the forward pass and built again in the backward pass, so the head's memory does not grow with the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from whet.model.split import SplitModel

CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class TokenScores:
    """Both [N, T], 0 where not an action. Only `logp` carries gradient."""

    logp: Tensor
    entropy: Tensor


def token_logp(
    split: SplitModel,
    tokens: Tensor,  # int64 [N, T], right-padded: a causal trunk never looks at padding that comes later
    action: Tensor,  # bool [N, T]
    temperature: float = 1.0,
    support: Tensor | None = None,  # int32 [N, T, S], -1 padding
    position_ids: Tensor | None = None,  # int64 [N, T]; restarting positions mark packed rows
) -> TokenScores:
    """Scores under the distribution that is sampled from: logits / temperature, renormalised on `support` if given."""
    if bool(action[:, 0].any()):
        raise ValueError("the first token of a row has no prefix: it cannot be an action")
    hidden = split.hidden(tokens, position_ids=position_ids)
    chosen = action[:, 1:]
    states, targets = hidden[:, :-1][chosen], tokens[:, 1:][chosen]
    kept = None if support is None else support[:, 1:][chosen]
    logp, entropy = _scores(split, states, targets, temperature, kept)
    rows = torch.zeros(tokens.shape, dtype=logp.dtype, device=tokens.device)
    return TokenScores(
        rows.masked_scatter(action, logp),
        rows.masked_scatter(action, entropy),
    )


def _scores(
    split: SplitModel, states: Tensor, targets: Tensor, temperature: float, kept: Tensor | None
) -> tuple[Tensor, Tensor]:
    rows = max(1, CHUNK_ELEMENTS // split.vocabulary)
    parts = []
    for start in range(0, max(len(targets), 1), rows):
        window = slice(start, start + rows)
        arguments = (split, states[window], targets[window], temperature, None if kept is None else kept[window])
        if len(targets) > rows and torch.is_grad_enabled():
            parts.append(checkpoint(_chunk, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(_chunk(*arguments))
    logp, entropy = zip(*parts, strict=True)
    return torch.cat(logp), torch.cat(entropy)


def _chunk(
    split: SplitModel, states: Tensor, targets: Tensor, temperature: float, kept: Tensor | None
) -> tuple[Tensor, Tensor]:
    logits = split.logits(states) / temperature
    picked = logits.gather(-1, targets[:, None])[:, 0]
    if kept is not None:
        logits = logits.gather(-1, kept.clamp(min=0).long()).masked_fill(kept < 0, float("-inf"))
    norm = logits.logsumexp(-1)
    with torch.no_grad():
        logp = logits - norm[:, None]
        entropy = -(logp.exp() * logp.masked_fill(logp == float("-inf"), 0.0)).sum(-1)
    return picked - norm, entropy
