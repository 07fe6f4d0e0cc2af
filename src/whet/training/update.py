"""One optimizer update: micro-batches, gradient, clipping, step.

Refuses to step on anything that is not finite, and on a gradient of zero where the objective has something to learn.
Where it has nothing to learn the update is skipped: AdamW would go on by its momentum and weight decay alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from whet.data.packing import token_micro_batches, trimmed
from whet.data.prefix_tree import SharedTokens
from whet.model.causal_lm import CausalLM
from whet.model.critic import Critic
from whet.model.experts import UNKNOWN, routers
from whet.model.fused_weights import unchanged_weights
from whet.model.head import Coefficient
from whet.model.lora import merge_adapters
from whet.model.shared_prefix import to_device
from whet.model.token_logp import Details, DistillationTarget, TokenScores, shared_by, token_logp, top_tokens
from whet.objective import Objective
from whet.training.distributed.ranks import ALONE, Ranks
from whet.types import Extras, TokenBatch, Totals

# whose experts the routers are told in the trainer's passes: nobody's, the sampler's, or those of the pass before the
# first update of the batch
RoutingReplay = Literal["none", "sampler", "trainer"]
LEAST_DOUBT = 1e-3  # the policy may be so sure of a token that its gradient vanishes in the weights' precision


class UpdateRefused(Exception):
    """The update would do harm or nothing; the weights were not touched."""

    def __init__(self, what: str, cause: str, rows: Sequence[int] = ()) -> None:
        super().__init__(f"{what}: {cause}")
        self.what, self.cause, self.rows = what, cause, tuple(rows)


class NotFinite(UpdateRefused):
    """A loss or a gradient is NaN or infinite."""


class NoGradient(UpdateRefused):
    """No weight would get a gradient, although there is something to learn."""


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
    ranks: Ranks = ALONE
    routing_replay: RoutingReplay = "none"


def replayed_experts(batch: TokenBatch, source: RoutingReplay) -> Tensor | None:
    """The experts [N, T, layers, k] that the policy's routers must use; None where they choose themselves."""
    return {"none": None, "sampler": batch.routed_experts, "trainer": batch.old_experts}[source]


@torch.no_grad()
def token_scores(
    model: CausalLM,
    batch: TokenBatch,
    temperature: float,
    micro_batch_tokens: int,
    ranks: Ranks = ALONE,
    replay: Tensor | None = None,
    experts: bool = False,
) -> TokenScores:
    """log-probability and entropy of every action token, micro-batch by micro-batch. No gradient.

    `replay` and `experts` as in `whet.model.token_logp.Details`.
    """
    logp = torch.zeros(batch.tokens.shape, dtype=torch.float32)
    entropy = torch.zeros_like(logp)
    chosen = _no_experts(model, batch) if experts else None
    done: list[tuple[list[int], TokenScores]] = []
    with unchanged_weights():
        for rows in rank_micro_batches(ranks, batch, micro_batch_tokens, shared_by(model)):
            part = trimmed(batch.select(rows)) if rows else idle_row(batch)
            part_replay = None if replay is None or not rows else replay[rows][:, : part.tokens.shape[1]]
            details = Details(replay=part_replay, experts=chosen is not None)
            done.append((rows, token_logp(model, part.tokens, part.action, temperature, part.support, details)))
    for rows, scores in done:  # read when all are on their way: between two passes the device would wait
        if rows:
            width = scores.logp.shape[1]
            logp[rows, :width] = scores.logp.float().cpu()
            entropy[rows, :width] = scores.entropy.float().cpu()
            if chosen is not None and scores.experts is not None:
                chosen[rows, :width] = scores.experts.cpu()
    return TokenScores(ranks.sum_tensor(logp), ranks.sum_tensor(entropy), experts=_joined_experts(ranks, chosen))


def _no_experts(model: CausalLM, batch: TokenBatch) -> Tensor | None:
    """A table of experts in which nothing is known yet; None for a model without routers."""
    of = routers(model)
    return None if of is None else of.unknown(*batch.tokens.shape)


def _joined_experts(ranks: Ranks, mine: Tensor | None) -> Tensor | None:
    """The tables of all ranks, each of which knows the tokens of its own rows."""
    if mine is None or ranks.size == 1:
        return mine
    return (ranks.sum_tensor(mine.int() - UNKNOWN) + UNKNOWN).to(mine.dtype)


@torch.no_grad()
def top_scores(
    model: CausalLM,
    batch: TokenBatch,
    temperature: float,
    micro_batch_tokens: int,
    count: int,
    chosen: Tensor | None = None,
    ranks: Ranks = ALONE,
) -> tuple[Tensor, Tensor]:
    """int32 [N, T, K] and [N, T, K]: the model's likeliest tokens at each action, or the `chosen`, and their logp."""
    count = min(count, model.vocabulary)
    ids = torch.zeros((*batch.tokens.shape, count), dtype=torch.int32)
    logp = torch.zeros(ids.shape, dtype=torch.float32)
    for rows in rank_micro_batches(ranks, batch, micro_batch_tokens, shared_by(model)):
        part = trimmed(batch.select(rows)) if rows else idle_row(batch)
        width = part.tokens.shape[1]
        wanted = None if chosen is None else (chosen[rows] if rows else chosen[:1])[:, :width]
        best, values = top_tokens(model, part.tokens, part.action, temperature, count, wanted)
        if rows:
            ids[rows, :width], logp[rows, :width] = best.cpu(), values.cpu()
    return ranks.sum_tensor(ids), ranks.sum_tensor(logp)


@torch.no_grad()
def critic_values(
    critic: Critic,
    policy: CausalLM,
    batch: TokenBatch,
    micro_batch_tokens: int,
    ranks: Ranks = ALONE,
    replay: Tensor | None = None,
) -> Tensor:
    """The critic's value of the state before every action: [N, T]."""
    values = torch.zeros(batch.tokens.shape, dtype=torch.float32)
    for rows in rank_micro_batches(ranks, batch, micro_batch_tokens, shared_by(critic.trunk or policy)):
        part = moved(trimmed(batch.select(rows)) if rows else idle_row(batch), policy.device)
        part_replay = None if replay is None or not rows else replay[rows][:, : part.tokens.shape[1]]
        state_values = critic.state_values(policy, part.tokens, part.action, part_replay).float()
        placed = torch.zeros(part.tokens.shape, device=policy.device).masked_scatter(part.action, state_values)
        if rows:
            values[rows, : placed.shape[1]] = placed.cpu()
    return ranks.sum_tensor(values)


def rank_micro_batches(
    ranks: Ranks, batch: TokenBatch, micro_batch_tokens: int, shared: SharedTokens, scored: Tensor | None = None
) -> list[list[int]]:
    """As `token_micro_batches`, of this rank's share of the rows. Empty ones follow where another rank has more: a
    sharded model makes the same passes everywhere."""
    if ranks.size == 1:
        return token_micro_batches(batch, micro_batch_tokens, shared, scored)
    wanted = batch.action if scored is None else scored
    column = torch.arange(1, wanted.shape[1] + 1)
    mine = ranks.shares((wanted * column).amax(-1).tolist(), batch.group.tolist())[ranks.rank]
    batches: list[list[int]] = []
    if mine:
        part = batch.select(mine)
        for rows in token_micro_batches(part, micro_batch_tokens, shared, None if scored is None else scored[mine]):
            batches.append([mine[row] for row in rows])
    return batches + [[]] * (ranks.most(len(batches)) - len(batches))


def idle_row(batch: TokenBatch) -> TokenBatch:
    """A row of two tokens for a pass that counts for nothing."""
    row = batch.select([0]).narrowed(2)
    support = None if row.support is None else torch.full_like(row.support, -1)
    if support is not None:
        support[..., 0] = 0
    return replace(
        row,
        tokens=torch.zeros_like(row.tokens),
        action=torch.tensor([[False, True]]),
        observed=None if row.observed is None else torch.zeros_like(row.observed),
        demonstrated=None if row.demonstrated is None else torch.zeros_like(row.demonstrated),
        support=support,
    )


# a mode that somebody switched off for the whole process (a reward's file, the caller) is not the training's
@torch.inference_mode(False)
@torch.enable_grad()
def update(
    state: TrainState,
    objective: Objective,
    batch: TokenBatch,
    totals: Totals,
    *,
    reference: CausalLM | None = None,
    teacher: CausalLM | None = None,
    teacher_temperature: float = 1.0,
    only_critic: bool = False,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[dict[str, float], TokenScores]:
    """Accumulate the gradient of the whole batch, then step once. The metrics, and the scores it saw on the way.

    `reference` is for the exact KL, `teacher` for a divergence over the whole vocabulary. Where the objective's
    controller ends the updates of the batch, nothing is stepped and the metrics say `ended`. `meanwhile` is called when
    a device has all passes before it and this process nothing to do but wait for them.
    """
    optimizers = [candidate for candidate in (state.optimizer, state.critic_optimizer) if candidate is not None]
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    details = replace(
        _details(state, objective, reference),
        distillation=_distillation_target(objective, teacher, teacher_temperature),
    )
    scored = _scored_tokens(objective, batch)
    # on a device nothing here waits for it: the next micro-batch is on its way while this one is computed
    done: list[_MicroBatch] = []
    ranks, apart = state.ranks, state.critic is not None and state.critic.trunk is not None
    with unchanged_weights():
        for rows in rank_micro_batches(ranks, batch, state.micro_batch_tokens, _shared_tokens(state, details), scored):
            if not rows:
                _idle_pass(state, objective, idle_row(batch), details, only_critic)
                continue
            host = trimmed(batch.select(rows), scored[rows])
            part = moved(host, state.policy.device)
            requested = replace(
                details, coefficient=_known_coefficient(objective, host, part, totals) if not only_critic else None
            )
            with torch.set_grad_enabled(not (only_critic and apart)):
                scores = _scores(state, objective, host, requested)
            losses = [] if only_critic else [objective.loss(part, scores.logp, totals, _extras(scores))]
            if state.critic is not None:
                losses.append(objective.critic_loss(part, _critic_values(state, scores, part), totals))
            _backward([_anchored(loss.value, scores, ranks) for loss in losses], apart)
            values = [loss.value.detach() for loss in losses]
            sums = [(name, number) for loss in losses for name, number in loss.sums.items()]
            sizes = (scores.computed, scores.flat)
            done.append(
                _MicroBatch(rows, scores.logp.detach(), scores.entropy.detach(), values, sums, scores.experts, *sizes)
            )
    for other in (reference, teacher):
        if other is not None:
            other.release()
    if meanwhile is not None:
        meanwhile()
    metrics: dict[str, float] = {"loss": 0.0}
    metrics["computed_tokens"] = float(sum(micro_batch.computed for micro_batch in done))
    metrics["flat_tokens"] = float(sum(micro_batch.flat for micro_batch in done))
    refusal: NotFinite | None = None
    logp = torch.zeros(batch.tokens.shape, dtype=torch.float32)
    entropy = torch.zeros_like(logp)
    experts = _no_experts(state.policy, batch)
    for micro_batch in done:
        total = math.fsum(float(value) for value in micro_batch.values)
        if not math.isfinite(total):
            part = moved(trimmed(batch.select(micro_batch.rows), scored[micro_batch.rows]), state.policy.device)
            refusal = refusal or NotFinite("the loss is not finite", _cause(part, micro_batch.logp), micro_batch.rows)
        width = micro_batch.logp.shape[1]
        logp[micro_batch.rows, :width] = micro_batch.logp.float().cpu()
        entropy[micro_batch.rows, :width] = micro_batch.entropy.float().cpu()
        if experts is not None and micro_batch.experts is not None:
            experts[micro_batch.rows, :width] = micro_batch.experts.cpu()
        metrics["loss"] += total
        for name, number in micro_batch.sums:
            metrics[name] = metrics.get(name, 0.0) + float(number)
    agree_on(ranks, refusal)
    metrics = ranks.sum(metrics)
    if metrics["computed_tokens"] == metrics["flat_tokens"]:  # no row shares more than its prompt
        del metrics["computed_tokens"], metrics["flat_tokens"]
    logp, entropy = ranks.sum_tensor(logp), ranks.sum_tensor(entropy)
    experts = _joined_experts(ranks, experts)
    if not only_critic and objective.control.ends_updates(metrics):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        return {**metrics, "ended": 1.0}, TokenScores(logp, entropy, experts=experts)
    if not only_critic:
        metrics["gradient_norm"] = optimizer_step(
            state.policy.model,
            state.optimizer,
            state.max_gradient_norm,
            lambda: _check_nothing_to_learn(state, objective, batch, totals, details),
            ranks,
        )
    if state.critic is not None and state.critic_optimizer is not None:
        modules = state.critic.modules()
        metrics["critic_gradient_norm"] = optimizer_step(
            modules, state.critic_optimizer, state.max_gradient_norm, ranks=ranks
        )
    return metrics, TokenScores(logp, entropy, experts=experts)


def agree_on(ranks: Ranks, refusal: NotFinite | None) -> None:
    """Raise on every rank what the first rank that has one refuses the update for."""
    if ranks.size == 1:
        if refusal is not None:
            raise refusal
        return
    for refused in ranks.gather(None if refusal is None else (refusal.what, refusal.cause, refusal.rows)):
        if refused is not None:
            raise NotFinite(*refused)


def _backward(values: Sequence[Tensor], apart: bool) -> None:
    """Run the backward passes of the policy's loss and the critic's. Graphs that have nothing in common are walked one
    after the other: ranks that gather weights on the way must do so in the same order."""
    differentiable = [value for value in values if value.requires_grad]
    for loss in reversed(differentiable) if apart else ([differentiable] if differentiable else []):
        torch.autograd.backward(loss)


def _anchored(value: Tensor, scores: TokenScores, ranks: Ranks) -> Tensor:
    """The loss, tied to the scores: with other ranks every pass needs its backward pass, even for a constant loss."""
    if ranks.size == 1 or value.requires_grad or not scores.logp.requires_grad:
        return value
    return value + 0.0 * scores.logp.sum()


def _idle_pass(state: TrainState, objective: Objective, row: TokenBatch, details: Details, only_critic: bool) -> None:
    """Forward and backward with the others, and nothing learned from it."""
    apart = state.critic is not None and state.critic.trunk is not None
    with torch.set_grad_enabled(not (only_critic and apart)):
        scores = _scores(state, objective, row, details)
    losses = [] if only_critic else [0.0 * scores.logp.sum()]
    if state.critic is not None:
        losses.append(0.0 * _critic_values(state, scores, moved(row, state.policy.device)).sum())
    _backward(losses, apart)


@dataclass(frozen=True)
class _MicroBatch:
    """What a micro-batch leaves behind, on the device."""

    rows: list[int]
    logp: Tensor  # [n, T]
    entropy: Tensor
    values: list[Tensor]  # [] each, of its losses
    sums: list[tuple[str, Tensor]]
    experts: Tensor | None  # [n, T, layers, k]
    computed: int  # tokens
    flat: int  # tokens that shared prompts alone would leave


def _scored_tokens(objective: Objective, batch: TokenBatch) -> Tensor:
    """bool [N, T]: tokens whose log-probability the loss looks at."""
    scored, needs = batch.action, objective.needs()
    if "observed" in needs and batch.observed is not None:
        scored = scored | batch.observed
    if "demonstrated" in needs and batch.demonstrated is not None:
        scored = scored | batch.demonstrated
    return scored


def _scores(state: TrainState, objective: Objective, host: TokenBatch, details: Details) -> TokenScores:
    """Score the actions under the distribution they were sampled from and, where the loss reads them, the tokens of an
    environment or a demonstration under the model's own distribution: in one pass where the two distributions are the
    same, else in two."""
    scored = _scored_tokens(objective, host)
    details = replace(details, replay=replayed_experts(host, state.routing_replay), experts=True)
    if details.distillation is not None and details.distillation.teacher is None:
        distillation = replace(details.distillation, top=host.teacher_top, top_logp=host.teacher_top_logp)
        details = replace(details, distillation=distillation)
    if scored is host.action:
        return token_logp(state.policy, host.tokens, host.action, state.temperature, host.support, details)
    if state.temperature == 1 and host.support is None:
        scores = token_logp(state.policy, host.tokens, scored, details=details)
        if scores.states is None:
            return scores
        return replace(scores, states=scores.states[to_device(host.action[scored], scores.states.device)])
    acted = token_logp(
        state.policy, host.tokens, host.action, state.temperature, host.support, replace(details, coefficient=None)
    )
    read = token_logp(state.policy, host.tokens, scored & ~host.action, details=Details(replay=details.replay))
    return replace(acted, logp=acted.logp + read.logp)


def _known_coefficient(objective: Objective, host: TokenBatch, part: TokenBatch, totals: Totals) -> Coefficient | None:
    """How much each token will count, where that is known before the forward pass."""
    grad = objective.grad(part, totals)
    if grad is None:
        return None
    rows, columns = _scored_tokens(objective, host).nonzero(as_tuple=True)
    coefficients = grad.flatten()[to_device(rows * grad.shape[1] + columns, grad.device)]
    return lambda logp, window: coefficients[window]


def _details(state: TrainState, objective: Objective, reference: CausalLM | None) -> Details:
    needs = objective.needs()
    return Details(
        entropy_gradient="entropy_gradient" in needs,
        num_top=objective.smooth.num_top,
        reference=reference if "divergence" in needs else None,
        states=state.critic is not None and state.critic.trunk is None,
    )


def _distillation_target(
    objective: Objective, teacher: CausalLM | None, temperature: float
) -> DistillationTarget | None:
    if "teacher_divergence" not in objective.needs():
        return None
    return DistillationTarget(objective.teacher.divergence, teacher, temperature)


def _shared_tokens(state: TrainState, details: Details) -> SharedTokens:
    """What every model of a micro-batch computes once: else the budget counts padded rows, or prompts alone."""
    teacher = details.distillation.teacher if details.distillation is not None else None
    others = (details.reference, teacher, state.critic.trunk if state.critic is not None else None)
    shared = {shared_by(model) for model in (state.policy, *others) if model is not None}
    return "nothing" if "nothing" in shared else "prompts" if "prompts" in shared else "prefixes"


def _extras(scores: TokenScores) -> Extras:
    return Extras(scores.entropy, scores.top_logp, scores.chose_top, scores.divergence, scores.teacher_divergence)


def _critic_values(state: TrainState, scores: TokenScores, part: TokenBatch) -> Tensor:
    critic = state.critic
    assert critic is not None
    if scores.states is None:
        values = critic.state_values(state.policy, part.tokens, part.action)
    else:
        values = critic.values(scores.states)
    return torch.zeros(part.tokens.shape, dtype=values.dtype, device=values.device).masked_scatter(part.action, values)


def optimizer_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    max_gradient_norm: float,
    on_zero: Callable[[], None] | None = None,
    ranks: Ranks = ALONE,
) -> float:
    """Check, clip and step; the gradient norm before clipping, over all ranks.

    A gradient of exactly zero, which `on_zero` may refuse, leaves weights and moments as they are.
    """
    # checked first: clipping by a norm that is not a number would spread it over every gradient
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm = total_norm(trained)
    size = float(norm)
    if not math.isfinite(size):
        gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        broken = [name for name, gradient in gradients.items() if not torch.isfinite(_local(gradient)).all()]
        broken_anywhere = [name for names in ranks.gather(broken) for name in names]
        where = broken_anywhere[0] if broken_anywhere else "the norm itself overflowed"
        optimizer.zero_grad(set_to_none=True)
        raise NotFinite("the gradient is not finite", f"first seen in {where}; try a lower optimizer.learning_rate")
    if size == 0:
        if on_zero is not None:
            on_zero()
        optimizer.zero_grad(set_to_none=True)
        return 0.0
    torch.nn.utils.clip_grads_with_norm_(trained, max_gradient_norm, norm)
    optimizer.step()
    merge_adapters(model)
    return size


def total_norm(parameters: Sequence[Tensor]) -> Tensor:
    """The norm of the parameters' gradient over all shards."""
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _local(value: Tensor) -> Tensor:
    """What of a tensor lies on this rank."""
    local: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return local


def _check_nothing_to_learn(
    state: TrainState, objective: Objective, batch: TokenBatch, totals: Totals, details: Details
) -> None:
    """Raise where the objective pulls at tokens that could move, and no weight received a gradient.

    A gradient of zero is right where all advantages are zero, where clipping or masks leave nothing, where the tokens
    are certain already, and where equal completions are pulled in opposite directions.
    """
    if batch.advantage is None or not bool(batch.advantage[batch.action].any()):
        return
    pull = torch.zeros(batch.tokens.shape, dtype=torch.float64)  # d loss / d logp, where the token could move
    scored = _scored_tokens(objective, batch)
    for rows in token_micro_batches(batch, state.micro_batch_tokens, _shared_tokens(state, details), scored):
        host = trimmed(batch.select(rows), scored[rows])
        part = moved(host, state.policy.device)
        with torch.no_grad():
            scores = _scores(state, objective, host, details)
        logp = scores.logp.detach().requires_grad_()
        value = objective.loss(part, logp, totals, _extras(scores)).value
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(value, logp)
            uncertain = (scores.logp.exp() < 1 - LEAST_DOUBT) & part.action
            pull[rows, : gradient.shape[1]] = torch.where(uncertain, gradient, 0.0).double().cpu()
    equal: dict[bytes, list[int]] = {}  # rows by their tokens up to the last action
    for row, (tokens, action) in enumerate(zip(batch.tokens, batch.action, strict=True)):
        end = int(action.nonzero().max()) + 1 if action.any() else 0
        equal.setdefault(tokens[:end].numpy().tobytes(), []).append(row)
    noise = 1e-6 * float(pull.abs().max())
    concerned = [row for rows in equal.values() if float(pull[rows].sum(0).abs().max()) > noise for row in rows]
    if not concerned:
        return
    state.optimizer.zero_grad(set_to_none=True)
    trained = [parameter for parameter in state.policy.model.parameters() if parameter.requires_grad]
    cause = (
        "no weight of the model is set to be trained"
        if not trained
        else "the model's output does not depend on its trained weights: look for frozen layers, a detached output or "
        "gradients that were switched off in the model's own code"
    )
    raise NoGradient("the gradient is zero although the advantages are not", cause, concerned)


def moved(batch: TokenBatch, device: torch.device) -> TokenBatch:
    """The batch on the device, without the experts: no objective looks at them."""
    if device.type == "cpu":
        return batch
    return replace(batch, routed_experts=None, old_experts=None).mapped(lambda value: to_device(value, device))


def _cause(batch: TokenBatch, logp: Tensor) -> str:
    if batch.advantage is not None and not torch.isfinite(batch.advantage).all():
        return "an advantage is not finite: look at the rewards of these samples"
    if not torch.isfinite(logp).all():
        return "the policy's log-probabilities are not finite: its weights diverged; lower optimizer.learning_rate"
    if batch.ref_logp is not None and not torch.isfinite(batch.ref_logp).all():
        return "the reference's log-probabilities are not finite"
    return "the ratio or the KL term overflowed: the policy moved too far; lower optimizer.learning_rate or updates"
