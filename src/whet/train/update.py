"""One optimizer update: passes, gradient, clipping, step. Refuses to step on anything that is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from whet.data.packing import passes, trimmed
from whet.model.causal_lm import CausalLM
from whet.model.critic import Critic
from whet.model.head import Coefficient
from whet.model.lora import merge_adapters
from whet.model.shared_prefix import to_device
from whet.model.token_logp import Details, TokenScores, packs, token_logp
from whet.objective import Objective
from whet.types import Extras, TokenBatch, Totals


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


@dataclass(frozen=True)
class TrainState:
    """The weights that learn, and how they are stepped."""

    policy: CausalLM
    optimizer: torch.optim.Optimizer
    temperature: float
    micro_batch_tokens: int
    max_gradient_norm: float
    critic: Critic | None = None
    critic_optimizer: torch.optim.Optimizer | None = None


@torch.no_grad()
def token_scores(split: CausalLM, batch: TokenBatch, temperature: float, micro_batch_tokens: int) -> Scores:
    """log-probability and entropy of every action token, pass by pass."""
    logp = torch.zeros(batch.tokens.shape, dtype=torch.float32)
    entropy = torch.zeros_like(logp)
    for rows in passes(batch, micro_batch_tokens, packs(split)):
        part = trimmed(batch.select(rows))
        found = token_logp(split, part.tokens, part.action, temperature, part.support)
        width = found.logp.shape[1]
        logp[rows, :width] = found.logp.float().cpu()
        entropy[rows, :width] = found.entropy.float().cpu()
    return Scores(logp, entropy)


@torch.no_grad()
def critic_values(critic: Critic, policy: CausalLM, batch: TokenBatch, micro_batch_tokens: int) -> Tensor:
    """The critic's value of the state before every action: [N, T]."""
    found = torch.zeros(batch.tokens.shape, dtype=torch.float32)
    for rows in passes(batch, micro_batch_tokens, packs(critic.trunk or policy)):
        part = moved(trimmed(batch.select(rows)), policy.device)
        each = critic.values(critic.states(policy, part.tokens, part.action)).float()
        placed = torch.zeros(part.tokens.shape, device=policy.device).masked_scatter(part.action, each)
        found[rows, : placed.shape[1]] = placed.cpu()
    return found


def update(
    learner: TrainState,
    objective: Objective,
    batch: TokenBatch,
    totals: Totals,
    *,
    reference: CausalLM | None = None,
    only_critic: bool = False,
) -> tuple[dict[str, float], Scores]:
    """Accumulate the gradient of the whole batch, then step once. The metrics, and the scores seen on the way.

    `reference` is for the exact KL. Where the row's controller ends the updates of the batch, nothing is stepped and
    the metrics say `ended`.
    """
    optimizers = [each for each in (learner.optimizer, learner.critic_optimizer) if each is not None]
    for each in optimizers:
        each.zero_grad(set_to_none=True)
    details = _details(learner, objective, reference)
    # on a device nothing here waits for it: the next pass is on its way while this one is computed
    done: list[_Pass] = []
    for rows in passes(batch, learner.micro_batch_tokens, _shares_prompts(learner, details)):
        host = trimmed(batch.select(rows))
        part = moved(host, learner.policy.device)
        weighing = replace(details, coefficient=_known(objective, host, part, totals) if not only_critic else None)
        found = token_logp(learner.policy, host.tokens, host.action, learner.temperature, host.support, weighing)
        losses = [] if only_critic else [objective.loss(part, found.logp, totals, _extras(found))]
        if learner.critic is not None:
            losses.append(objective.critic_loss(part, _critic_values(learner, found, part), totals))
        learnt = [loss.value for loss in losses if loss.value.requires_grad]
        if learnt:
            torch.autograd.backward(learnt)
        values = [loss.value.detach() for loss in losses]
        sums = [(name, number) for loss in losses for name, number in loss.sums.items()]
        done.append(_Pass(rows, found.logp.detach(), found.entropy.detach(), values, sums))
    metrics: dict[str, float] = {"loss": 0.0}
    logp = torch.zeros(batch.tokens.shape, dtype=torch.float32)
    entropy = torch.zeros_like(logp)
    for seen in done:
        total = math.fsum(float(value) for value in seen.values)
        if not math.isfinite(total):
            part = moved(trimmed(batch.select(seen.rows)), learner.policy.device)
            raise NotFinite("the loss is not finite", _cause(part, seen.logp), seen.rows)
        width = seen.logp.shape[1]
        logp[seen.rows, :width] = seen.logp.float().cpu()
        entropy[seen.rows, :width] = seen.entropy.float().cpu()
        metrics["loss"] += total
        for name, number in seen.sums:
            metrics[name] = metrics.get(name, 0.0) + float(number)
    if not only_critic and objective.control.ends_updates(metrics):
        for each in optimizers:
            each.zero_grad(set_to_none=True)
        return {**metrics, "ended": 1.0}, Scores(logp, entropy)
    if not only_critic:
        metrics["gradient_norm"] = optimizer_step(learner.policy.model, learner.optimizer, learner.max_gradient_norm)
    if learner.critic is not None and learner.critic_optimizer is not None:
        modules = learner.critic.modules()
        metrics["critic_gradient_norm"] = optimizer_step(modules, learner.critic_optimizer, learner.max_gradient_norm)
    return metrics, Scores(logp, entropy)


@dataclass(frozen=True)
class _Pass:
    """What a pass leaves behind, on the device."""

    rows: list[int]
    logp: Tensor  # [n, T]
    entropy: Tensor
    values: list[Tensor]  # [] each, of its losses
    sums: list[tuple[str, Tensor]]


def _known(objective: Objective, host: TokenBatch, part: TokenBatch, totals: Totals) -> Coefficient | None:
    """How much each token will count, where that is known before the pass."""
    grad = objective.grad(part, totals)
    if grad is None:
        return None
    rows, columns = host.action.nonzero(as_tuple=True)
    each = grad.flatten()[to_device(rows * grad.shape[1] + columns, grad.device)]
    return lambda logp, window: each[window]


def _details(learner: TrainState, objective: Objective, reference: CausalLM | None) -> Details:
    needs = objective.needs()
    return Details(
        entropy_gradient="entropy_gradient" in needs,
        num_top=objective.smooth.num_top,
        reference=reference if "divergence" in needs else None,
        states=learner.critic is not None and learner.critic.trunk is None,
    )


def _shares_prompts(learner: TrainState, details: Details) -> bool:
    """True where every model of a pass computes a prompt once: else the budget counts padded rows."""
    others = (details.reference, learner.critic.trunk if learner.critic is not None else None)
    return packs(learner.policy) and all(packs(each) for each in others if each is not None)


def _extras(found: TokenScores) -> Extras:
    return Extras(found.entropy, found.top_logp, found.chose_top, found.divergence)


def _critic_values(learner: TrainState, found: TokenScores, part: TokenBatch) -> Tensor:
    critic = learner.critic
    assert critic is not None
    states = critic.states(learner.policy, part.tokens, part.action) if found.states is None else found.states
    each = critic.values(states)
    return torch.zeros(part.tokens.shape, dtype=each.dtype, device=each.device).masked_scatter(part.action, each)


def optimizer_step(model: nn.Module, optimizer: torch.optim.Optimizer, max_gradient_norm: float) -> float:
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
    merge_adapters(model)
    return float(norm)


def moved(batch: TokenBatch, device: torch.device) -> TokenBatch:
    """The batch on the device."""
    return batch if device.type == "cpu" else batch.mapped(lambda value: to_device(value, device))


def _cause(batch: TokenBatch, logp: Tensor) -> str:
    if batch.advantage is not None and not torch.isfinite(batch.advantage).all():
        return "an advantage is not finite: look at the rewards of these samples"
    if not torch.isfinite(logp).all():
        return "the policy's log-probabilities are not finite: its weights diverged; lower optimizer.learning_rate"
    if batch.ref_logp is not None and not torch.isfinite(batch.ref_logp).all():
        return "the reference's log-probabilities are not finite"
    return "the ratio or the KL term overflowed: the policy moved too far; lower optimizer.learning_rate or updates"
