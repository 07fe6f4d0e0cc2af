"""One optimizer update: passes, gradient, clipping, step. Refuses to step on anything that is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whet.data.packing import passes, trimmed
from whet.model.split import SplitModel
from whet.model.token_logp import token_logp
from whet.objective import Objective
from whet.types import TokenBatch, Totals


class NotFinite(Exception):
    """A loss or a gradient is NaN or infinite; the weights were not touched."""

    def __init__(self, what: str, cause: str, rows: Sequence[int] = ()) -> None:
        super().__init__(f"{what}: {cause}")
        self.rows = tuple(rows)


@dataclass(frozen=True)
class Scores:
    """Both [N, T], no gradient."""

    logp: Tensor
    entropy: Tensor


@torch.no_grad()
def scores(split: SplitModel, batch: TokenBatch, temperature: float, tokens_per_pass: int) -> Scores:
    """log-probability and entropy of every action token, pass by pass."""
    logp = torch.zeros(batch.tokens.shape, dtype=torch.float32)
    entropy = torch.zeros_like(logp)
    for rows in passes(batch, tokens_per_pass):
        part = moved(trimmed(batch.select(rows)), split.device)
        found = token_logp(split, part.tokens, part.action, temperature, part.support)
        width = found.logp.shape[1]
        logp[rows, :width] = found.logp.float().cpu()
        entropy[rows, :width] = found.entropy.float().cpu()
    return Scores(logp, entropy)


def update(
    split: SplitModel,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    batch: TokenBatch,
    totals: Totals,
    *,
    temperature: float,
    tokens_per_pass: int,
    max_gradient_norm: float,
) -> tuple[dict[str, float], Scores]:
    """Accumulate the gradient of the whole batch, then step once. The metrics, and the scores seen on the way."""
    optimizer.zero_grad(set_to_none=True)
    metrics: dict[str, float] = {"loss": 0.0}
    logp = torch.zeros(batch.tokens.shape, dtype=torch.float32)
    entropy = torch.zeros_like(logp)
    for rows in passes(batch, tokens_per_pass):
        part = moved(trimmed(batch.select(rows)), split.device)
        found = token_logp(split, part.tokens, part.action, temperature, part.support)
        loss = objective.loss(part, found.logp, totals)
        if not torch.isfinite(loss.value):
            raise NotFinite("the loss is not finite", _cause(part, found.logp), rows)
        if found.logp.requires_grad and loss.value.requires_grad:
            loss.value.backward()
        width = found.logp.shape[1]
        logp[rows, :width] = found.logp.detach().float().cpu()
        entropy[rows, :width] = found.entropy.float().cpu()
        metrics["loss"] += float(loss.value.detach())
        for name, number in loss.metrics.items():
            metrics[name] = metrics.get(name, 0.0) + number
    metrics["gradient_norm"] = stepped(split.model, optimizer, max_gradient_norm)
    return metrics, Scores(logp, entropy)


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, max_gradient_norm: float) -> float:
    """Check, clip and step; the gradient norm before clipping."""
    # checked first: clipping by a norm that is not a number would spread it over every gradient
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters() if each.grad is not None])
    if not torch.isfinite(norm):
        broken = [
            name
            for name, parameter in model.named_parameters()
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all()
        ]
        where = broken[0] if broken else "the norm itself overflowed"
        optimizer.zero_grad(set_to_none=True)
        raise NotFinite("the gradient is not finite", f"first seen in {where}; try a lower optimizer.learning_rate")
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_gradient_norm, norm)
    optimizer.step()
    return float(norm)


def moved(batch: TokenBatch, device: torch.device) -> TokenBatch:
    """The batch on the device."""
    if device.type == "cpu":
        return batch
    fields: dict[str, Any] = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    there: dict[str, Any] = {name: None if value is None else value.to(device) for name, value in fields.items()}
    return TokenBatch(**there)


def _cause(batch: TokenBatch, logp: Tensor) -> str:
    if batch.advantage is not None and not torch.isfinite(batch.advantage).all():
        return "an advantage is not finite: look at the rewards of these samples"
    if not torch.isfinite(logp).all():
        return "the policy's log-probabilities are not finite: its weights diverged; lower optimizer.learning_rate"
    if batch.ref_logp is not None and not torch.isfinite(batch.ref_logp).all():
        return "the reference's log-probabilities are not finite"
    return "the ratio or the KL term overflowed: the policy moved too far; lower optimizer.learning_rate or updates"
