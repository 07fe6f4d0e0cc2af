"""log pi(token | prefix) of the action tokens, without ever building [N, T, V] logits.

Rows come padded and scores go back padded; in between, rows that share a prefix are packed and padding is left
out (`whet.model.shared_prefix`), where the model allows it and that saves work. Only positions with loss reach the
vocabulary head, a chunk of logits at a time (`whet.model.head`), and an action that several rows share does so once.
What a method wants beyond log-probability and entropy takes a path of its own, whose chunks are dropped after the
forward pass and built again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from whet.data.prefix_tree import SharedTokens
from whet.model.causal_lm import CausalLM
from whet.model.experts import UNKNOWN, is_mixture, routers, routing
from whet.model.fused_trunk import fused_states, fused_works
from whet.model.head import Coefficient, VocabularyHead, chunk_rows, chunked_logp, common_factor
from whet.model.shared_prefix import DistinctActions, SharedPrefixBatch, shared_prefix_batch, to_device
from whet.model.shared_prefix_attention import shared_prefix_states, shared_prefix_works

WORTHWHILE = 0.95  # a packed batch with a larger share of the padded tokens saves too little


ALMOST_ALL = -1e-7  # the log of the largest share that the likeliest tokens may hold: something is left for the rest


@dataclass(frozen=True)
class DistillationTarget:
    """What the policy's distribution is compared with: all of a teacher's, or its log-probabilities of K tokens."""

    divergence: Callable[[Tensor, Tensor], Tensor]  # (policy, teacher), log-probabilities [A, V] each -> [A]
    teacher: CausalLM | None = None  # on any device; None: `top` and `top_logp` hold what it says
    temperature: float = 1.0  # of the teacher
    top: Tensor | None = None  # int32 [N, T, K]
    top_logp: Tensor | None = None  # [N, T, K]


@dataclass(frozen=True)
class Details:
    """What is wanted of the distribution beyond the log-probability of the chosen token, and how to get there."""

    entropy_gradient: bool = False
    num_top: int = 0  # log-probabilities of the likeliest tokens
    reference: CausalLM | None = None  # for the KL to it over the whole vocabulary
    distillation: DistillationTarget | None = None
    states: bool = False  # the hidden states, for a critic on the same trunk
    packed: bool = True  # False: always padded rows
    coefficient: Coefficient | None = None  # how much each token will count, where known: saves a product
    replay: Tensor | None = None  # int [N, T, layers, k], experts for the routers; -1: their own choice
    experts: bool = False  # the experts that the routers chose, where the model has routers


@dataclass(frozen=True)
class TokenScores:
    """All [N, T, ...], 0 where not an action. `entropy` carries gradient only where asked for."""

    logp: Tensor
    entropy: Tensor
    top_logp: Tensor | None = None  # [N, T, K], with gradient
    chose_top: Tensor | None = None  # bool [N, T], the chosen token is the likeliest
    divergence: Tensor | None = None  # [N, T], KL(policy, reference), with gradient
    states: Tensor | None = None  # [A, D], what the trunk knew before each action, in row order, with gradient
    experts: Tensor | None = None  # int [N, T, layers, k], the routers' own choice; -1 for tokens that predict nothing
    teacher_divergence: Tensor | None = None  # [N, T], as the distillation target measures it, with gradient
    computed: int = 0  # tokens that went through the trunk
    flat: int = 0  # those that would have, had rows shared their prompts alone


def token_logp(
    lm: CausalLM,
    tokens: Tensor,  # int64 [N, T], right-padded: a causal trunk never looks at padding that comes later
    action: Tensor,  # bool [N, T]
    temperature: float = 1.0,
    support: Tensor | None = None,  # int32 [N, T, S] as in `whet.types.Support`, -1 padding
    details: Details | None = None,
) -> TokenScores:
    """Scores under the distribution that is sampled from: logits / temperature, renormalised on `support` if given.

    Rows may be given on the CPU: then nothing here waits for the device, and the scores come on the device.
    """
    chosen = details or Details()
    batch = _packed_rows(lm, tokens, action) if chosen.packed else None
    scores = TokenScores(*lm.one_pass(lambda: _token_logp(lm, tokens, action, temperature, support, chosen, batch)))
    sizes = (tokens.numel(),) * 2 if batch is None else (batch.size, batch.flat_size)
    return replace(scores, computed=sizes[0], flat=sizes[1])


def _token_logp(
    lm: CausalLM,
    tokens: Tensor,
    action: Tensor,
    temperature: float,
    support: Tensor | None,
    details: Details,
    batch: SharedPrefixBatch | None,
) -> tuple[Tensor, Tensor, *tuple[Tensor | None, ...]]:
    """The fields of `TokenScores`: a pass gives plain tensors."""
    device = lm.device
    targets = to_device(tokens[:, 1:][action[:, 1:]], device)
    action_support = None if support is None else support[:, 1:][action[:, 1:]].to(device)
    states, experts = _routed_states(lm, tokens, action, batch, details)
    row_states, distinct = states, None if batch is None or support is not None else batch.distinct
    others = None
    if details.reference is not None:
        with torch.no_grad():
            others = _reference_states(details.reference, tokens, action, batch)
    taught = None if details.distillation is None else _taught(details.distillation, tokens, action, device)
    coefficient, shared = details.coefficient, None
    if distinct is not None:
        states, targets = F.embedding(distinct.first, states), targets[distinct.first]
        others = None if others is None else others[distinct.first]
        if taught is not None:
            taught = (taught[0][distinct.first], None if taught[1] is None else taught[1][distinct.first])
        if coefficient is not None:
            coefficient = shared = _SharedCoefficient(coefficient, distinct)
    results: tuple[Tensor, ...]
    head = lm.head
    if isinstance(head, VocabularyHead) and not head.softcap and action_support is None and not _wants_more(details):
        results = chunked_logp(head, states, targets, temperature, lm.dtype, coefficient)
    else:
        results = _scores(_Head(lm, temperature, details), states, targets, action_support, others, taught)
    if distinct is not None:
        logp = _of_every_row(results[0], distinct) if shared is None else shared.of_every_row(results[0])
        results = (logp, *(_of_every_row(values, distinct) for values in results[1:]))

    # by their numbers, found where the rows lie: the gradient of a masked copy would wait for the device to count
    places = to_device(action.flatten().nonzero()[:, 0], device)

    def placed(values: Tensor) -> Tensor:
        rows = torch.zeros((action.numel(), *values.shape[1:]), dtype=values.dtype, device=device)
        return rows.index_copy(0, places, values).view(*tokens.shape, *values.shape[1:])

    return (
        placed(results[0]),
        placed(results[1]),
        placed(results[2]) if details.num_top else None,
        placed(results[3]) if details.num_top else None,
        placed(results[4]) if others is not None else None,
        row_states if details.states else None,
        experts,
        placed(results[5]) if taught is not None else None,
    )


def _of_every_row(values: Tensor, distinct: DistinctActions) -> Tensor:
    """[U, ...] -> [A, ...]. A lookup, whose backward pass sums over the rows in a fixed order."""
    if not values.is_floating_point():
        return values[distinct.number]
    looked_up = F.embedding(distinct.number, values.reshape(len(values), -1))
    return looked_up.view(len(distinct.number), *values.shape[1:])


class _SharedCoefficient:
    """How much an action counts in all rows that share it, and what its rows' own part of that is."""

    def __init__(self, coefficient: Coefficient, distinct: DistinctActions) -> None:
        self._coefficient, self._distinct = coefficient, distinct
        self._sums: list[Tensor] = []

    def __call__(self, logp: Tensor, window: slice | Tensor) -> Tensor:
        assert isinstance(window, slice)
        bounds = self._distinct.bounds
        actions = self._distinct.order[bounds[window.start] : bounds[window.start + len(logp)]]
        inside = self._distinct.number[actions] - window.start
        values = self._coefficient(logp[inside], actions)
        self._sums.append(values.new_zeros(len(logp)).index_put_((inside,), values, accumulate=True))
        return self._sums[-1]

    def of_every_row(self, logp: Tensor) -> Tensor:
        """[U] -> [A]; whoever asked for coefficients gets back the very sums that it was given, up to one factor."""
        if not self._sums:
            return _of_every_row(logp, self._distinct)
        number = self._distinct.number
        values = self._coefficient(logp.detach()[number], slice(0, len(number)))
        looked_up: Tensor = _PromisedLookup.apply(logp, number, values.to(logp), torch.cat(self._sums).to(logp))
        return looked_up


class _PromisedLookup(torch.autograd.Function):
    """A lookup whose gradient is known up to one factor: summed anew, rows that pull apart would leave rounding."""

    @staticmethod
    def forward(ctx: Any, logp: Tensor, number: Tensor, values: Tensor, sums: Tensor) -> Tensor:
        ctx.save_for_backward(values, sums)
        return logp[number]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, sums = ctx.saved_tensors
        return common_factor(grad, values) * sums, None, None, None


def top_tokens(
    lm: CausalLM, tokens: Tensor, action: Tensor, temperature: float, count: int, chosen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """int32 and float32 [N, T, K]: the likeliest tokens at each action, or the `chosen`, and their log-probability in
    the whole vocabulary; 0 where not an action. No gradient; logits are built a chunk at a time."""

    def scored() -> tuple[Tensor, Tensor]:
        states = _states(lm, tokens, action, _packed_rows(lm, tokens, action))
        ids = None if chosen is None else to_device(chosen[:, 1:][action[:, 1:]], lm.device).long()
        parts, rows = [], chunk_rows(lm.vocabulary, states.device)
        for start in range(0, max(len(states), 1), rows):
            logp = (lm.logits(states[start : start + rows]).float() / temperature).log_softmax(-1)
            best = logp.topk(min(count, logp.shape[-1]), dim=-1).indices if ids is None else ids[start : start + rows]
            parts.append((best.int(), logp.gather(-1, best)))
        return torch.cat([logp for logp, _ in parts]), torch.cat([entropy for _, entropy in parts])

    with torch.no_grad():
        best, values = lm.one_pass(scored)
    ids = torch.zeros((*tokens.shape, best.shape[-1]), dtype=torch.int32, device=best.device)
    logp = torch.zeros(ids.shape, device=best.device)
    flags = to_device(action, best.device)
    ids[flags], logp[flags] = best, values
    return ids, logp


def packs(lm: CausalLM) -> bool:
    """True where rows that share a prompt compute it once, and padding costs nothing."""
    return fused_works(lm) or shared_prefix_works(lm)


def shared_by(lm: CausalLM) -> SharedTokens:
    """What rows compute once. Of a mixture's prompts alone: rows that share more may have been routed apart."""
    if not packs(lm):
        return "nothing"
    return "prompts" if is_mixture(lm) else "prefixes"


def states_before(lm: CausalLM, tokens: Tensor, action: Tensor, replay: Tensor | None = None) -> Tensor:  # [A, D]
    """The trunk's hidden state before each action, in row order; `replay` as in `Details`."""
    details = Details(replay=replay)
    return lm.one_pass(lambda: _routed_states(lm, tokens, action, _packed_rows(lm, tokens, action), details)[0])


def _packed_rows(lm: CausalLM, tokens: Tensor, action: Tensor) -> SharedPrefixBatch | None:
    """The rows packed, where that saves work."""
    if not packs(lm):
        return None
    batch = shared_prefix_batch(tokens, action, lm.device, deep=shared_by(lm) == "prefixes")
    if fused_works(lm):
        return batch
    return batch if batch is not None and batch.size <= WORTHWHILE * tokens.numel() else None


def _states(lm: CausalLM, tokens: Tensor, action: Tensor, batch: SharedPrefixBatch | None) -> Tensor:
    if bool(action[:, 0].any()):
        raise ValueError("the first token of a row has no prefix: it cannot be an action")
    if batch is not None and fused_works(lm):
        return fused_states(lm, batch)
    if batch is not None and shared_prefix_works(lm):
        return shared_prefix_states(lm, batch)
    tokens, action = tokens.to(lm.device), action.to(lm.device)
    return lm.hidden(tokens)[:, :-1][action[:, 1:]]


def _routed_states(
    lm: CausalLM, tokens: Tensor, action: Tensor, batch: SharedPrefixBatch | None, details: Details
) -> tuple[Tensor, Tensor | None]:
    """The states, and the routers' own choice [N, T, layers, k] where it is wanted."""
    of = routers(lm) if details.experts or details.replay is not None else None
    if of is None:
        if details.replay is not None:
            raise ValueError("experts to replay, and no routers that could be told")
        return _states(lm, tokens, action, batch), None
    num_rows, width = tokens.shape
    replay = None
    if details.replay is not None:
        replay = to_device(details.replay, lm.device).flatten(0, 1)
        if batch is not None:  # of a prompt that rows share, the experts of its first row
            replay = replay[batch.sources(width)]
    with routing(lm, replay) as walk:
        states = _states(lm, tokens, action, batch)
    if not details.experts:
        return states, None
    if batch is None:
        return states, walk.chosen.unflatten(0, (num_rows, width))
    placed = walk.chosen[batch.places(num_rows, width)]
    return states, placed.masked_fill_(~batch.computed(num_rows, width)[..., None, None], UNKNOWN)


def _reference_states(lm: CausalLM, tokens: Tensor, action: Tensor, batch: SharedPrefixBatch | None) -> Tensor:
    return lm.hold(lambda: _states(lm, tokens, action, batch))  # its logits come later, chunk by chunk


def _wants_more(details: Details) -> bool:
    others = details.reference is not None or details.distillation is not None
    return details.entropy_gradient or details.num_top > 0 or others


def _taught(
    distillation: DistillationTarget, tokens: Tensor, action: Tensor, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """What a chunk compares with: the teacher's states [A, D], where it computes, or tokens and their logp [A, K]."""
    if distillation.teacher is not None:
        lm = distillation.teacher
        with torch.no_grad():
            return lm.hold(lambda: _states(lm, tokens, action, _packed_rows(lm, tokens, action))), None
    if distillation.top is None or distillation.top_logp is None:
        raise ValueError("a distillation target without a teacher needs teacher_top and teacher_top_logp")
    top, logp = (
        to_device(tensor[:, 1:][action[:, 1:]], device) for tensor in (distillation.top, distillation.top_logp)
    )
    return top.long(), logp


@dataclass(frozen=True)
class _Head:
    lm: CausalLM
    temperature: float
    details: Details

    def logits(self, lm: CausalLM, states: Tensor, support: Tensor | None) -> Tensor:
        return _among(_tempered(lm.logits(states), self.temperature), support)


def _among(logits: Tensor, support: Tensor | None) -> Tensor:
    """Logits [A, V], -inf where the support [A, S] says that nothing could be drawn."""
    if support is None:
        return logits
    nowhere = logits.shape[-1]
    ids = torch.where(support >= 0, support, torch.where(support < -1, -2 - support, nowhere)).long()
    named = torch.zeros(len(logits), nowhere + 1, dtype=torch.bool, device=logits.device).scatter_(1, ids, True)
    allowed = named[:, :-1] == (support >= 0).any(-1, keepdim=True)  # those that are named, or all others
    return logits.masked_fill(~allowed, float("-inf"))


def _scores(
    head: _Head,
    states: Tensor,
    targets: Tensor,
    support: Tensor | None,
    others: Tensor | None,
    taught: tuple[Tensor, Tensor | None] | None = None,
) -> tuple[Tensor, ...]:
    rows = chunk_rows(head.lm.vocabulary, states.device)
    parts = []
    for start in range(0, max(len(targets), 1), rows):
        window = slice(start, start + rows)
        chunk = [
            None if tensor is None else tensor[window]
            for tensor in (states, targets, support, others, *(taught or (None, None)))
        ]
        if len(targets) > rows and torch.is_grad_enabled():
            parts.append(checkpoint(_chunk, head, *chunk, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(_chunk(head, *chunk))  # type: ignore[arg-type]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _chunk(
    head: _Head,
    states: Tensor,
    targets: Tensor,
    support: Tensor | None,
    others: Tensor | None,
    taught: Tensor | None = None,
    taught_logp: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """logp, entropy, the likeliest tokens' logp, whether the target is one of them, KL, how far from the teacher; empty
    where not wanted."""
    # memory bounds this: every step more over the vocabulary costs
    whole = _tempered(head.lm.logits(states), head.temperature).log_softmax(-1)
    scored, logp = whole.gather(-1, targets[:, None])[:, 0], whole
    if support is not None:
        among = _among(whole, support)
        norm = among.logsumexp(-1)
        scored, logp = scored - norm, among - norm[:, None]
    if head.details.entropy_gradient:
        entropy = _entropy(logp)
    else:
        with torch.no_grad():
            entropy = _entropy(logp)
    top = logp.topk(head.details.num_top, dim=-1).values
    chose_top = scored >= logp.amax(-1)
    divergence = distance = scored.new_zeros(len(scored))
    if others is not None and head.details.reference is not None:
        with torch.no_grad():
            reference = head.logits(head.details.reference, others, support).log_softmax(-1)
        gap = (logp - reference).masked_fill(logp == float("-inf"), 0.0)
        # the 1 in its derivative log p - log q + 1 sums to 0, and would leave rounding where both are equal
        divergence = (logp.exp() * gap.detach()).sum(-1)
    if taught is not None and head.details.distillation is not None:
        distance = _distance(head.details.distillation, whole, taught, taught_logp)
    return scored, entropy, top, chose_top, divergence, distance


def _distance(distillation: DistillationTarget, logp: Tensor, taught: Tensor, taught_logp: Tensor | None) -> Tensor:
    """[A]. Both distributions are of the whole vocabulary, whatever part of it was sampled from. Two heads may be
    padded differently: rows that one of them lacks are no tokens."""
    if distillation.teacher is None:
        assert taught_logp is not None
        own = logp.gather(-1, taught)
        return distillation.divergence(with_rest(own), with_rest(taught_logp.to(own.dtype)))
    with torch.no_grad():
        theirs = _tempered(distillation.teacher.logits(taught), distillation.temperature)
        width = min(logp.shape[-1], theirs.shape[-1])
        theirs = theirs[:, :width].log_softmax(-1).to(logp.device, logp.dtype)
    return distillation.divergence(logp if width == logp.shape[-1] else logp[:, :width].log_softmax(-1), theirs)


def _tempered(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1.0 else logits / temperature


def with_rest(logp: Tensor) -> Tensor:
    """[A, K + 1]: log-probabilities of some tokens, and of all others together."""
    held = logp.logsumexp(-1, keepdim=True).clamp(max=ALMOST_ALL)
    return torch.cat([logp, torch.log(-torch.expm1(held))], dim=-1)


def _entropy(logp: Tensor) -> Tensor:
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)  # 0 times -inf is no number
