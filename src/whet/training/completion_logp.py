"""The log-probabilities of completions, token by token, under a model and under its reference; choices after a
question too.

A reference is asked live, or was asked once: the policy itself before its first step, so that no second copy is kept.
What it said is stored with a fingerprint of its weights and of the rows, and never taken for another model's.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from whet.data.chat import prompt_tokens
from whet.data.families import IDLE, Family, family_cost, family_micro_batches, family_rows
from whet.data.packing import BlockSize, PaddedRows, micro_batches, padded_rows
from whet.model.causal_lm import CausalLM
from whet.model.checkpoint import weights_digest
from whet.model.fused_weights import unchanged_weights
from whet.model.head import VocabularyHead, chunk_rows, chunked_logp
from whet.model.reference import CopiedReference, ReferencePolicy
from whet.model.shared_prefix import to_device
from whet.model.token_logp import Details, packs, token_logp
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.row_trainer import rank_batches
from whet.types import Encoded, Prompt, WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


RIVALS = 5  # likeliest tokens that one is drawn from, to stand against the token of a completion
EXTRAS = frozenset({"log_square", "rival_logp"})


@dataclass(frozen=True)
class CompletionScores:
    """All [N, T], 0 where not an action; logp and rival_logp with gradient."""

    rows: PaddedRows
    logp: Tensor
    log_square: Tensor | None = None  # log SUM_v p(v)^2
    rival_logp: Tensor | None = None  # of another likely token


def score_completions(
    lm: CausalLM, families: Sequence[Family], packed: bool, wanted: frozenset[str], seeds: Sequence[int] = ()
) -> CompletionScores:
    """One forward pass over whole families. `wanted` names the extras; `seeds` draw the rivals of each family."""
    rows = family_rows(families)
    return CompletionScores(rows, *lm.one_pass(lambda: _scores(lm, rows, families, packed, wanted & EXTRAS, seeds)))


def _scores(
    lm: CausalLM,
    rows: PaddedRows,
    families: Sequence[Family],
    packed: bool,
    extras: frozenset[str],
    seeds: Sequence[int],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    scores = token_logp(lm, rows.tokens, rows.action, details=Details(packed=packed, states=bool(extras)))
    if not extras or scores.states is None:
        return scores.logp, None, None
    placed = to_device(rows.action, scores.logp.device)

    def table(values: Tensor) -> Tensor:
        return torch.zeros_like(scores.logp, dtype=values.dtype).masked_scatter(placed, values)

    square = table(_log_square(lm, scores.states)) if "log_square" in extras else None
    rival = None
    if "rival_logp" in extras:
        own = rows.tokens[rows.action].to(lm.device)
        rival = table(_other_logp(lm, scores.states, _rivals(lm, scores.states, own, _draws(families, seeds))))
    return scores.logp, square, rival


@torch.no_grad()
def _log_square(lm: CausalLM, states: Tensor) -> Tensor:
    parts = []
    for chunk in states.split(chunk_rows(lm.vocabulary, states.device)):
        logits = lm.logits(chunk)
        parts.append((2 * logits).logsumexp(-1) - 2 * logits.logsumexp(-1))
    return torch.cat(parts)


@torch.no_grad()
def _rivals(lm: CausalLM, states: Tensor, own: Tensor, draws: Tensor) -> Tensor:
    """One token a place, drawn from the likeliest that are not the completion's: int64 [A]."""
    parts = []
    size = chunk_rows(lm.vocabulary, states.device)
    for chunk, token, draw in zip(states.split(size), own.split(size), draws.to(own.device).split(size), strict=True):
        logits = lm.logits(chunk).scatter(-1, token[:, None], float("-inf"))
        likely, ids = logits.topk(min(RIVALS, lm.vocabulary - 1), dim=-1)
        reached = likely.softmax(-1).cumsum(-1) < draw[:, None]
        parts.append(ids.gather(-1, reached.sum(-1, keepdim=True).clamp(max=ids.shape[1] - 1))[:, 0])
    return torch.cat(parts)


def _draws(families: Sequence[Family], seeds: Sequence[int]) -> Tensor:
    """A number in [0, 1) for each action, from its family's own stream: how a step is cut must not change it."""
    drawn = []
    for family, seed in zip(families, seeds, strict=True):
        stream = torch.Generator().manual_seed(seed)
        drawn += [torch.rand(sum(row.action), generator=stream) for row in family]
    return torch.cat(drawn)


def _other_logp(lm: CausalLM, states: Tensor, targets: Tensor) -> Tensor:
    if isinstance(lm.head, VocabularyHead) and not lm.head.softcap:
        return chunked_logp(lm.head, states, targets, dtype=lm.dtype)[0]
    return lm.logits(states).log_softmax(-1).gather(-1, targets[:, None])[:, 0]


class ReferenceLogp(Protocol):
    """What the reference thinks of completions."""

    def logp(self, families: Sequence[Family]) -> list[tuple[Tensor, ...]]:
        """Per family and completion, the log-probabilities of its trained tokens: float32 [n], on one device."""
        ...


@torch.no_grad()
def families_logp(
    lm: CausalLM, families: Sequence[Family], micro_batch_tokens: int, packed: bool, ranks: Ranks = ALONE
) -> list[tuple[Tensor, ...]]:
    """`ReferenceLogp.logp` of any model."""
    packed = packed and packs(lm)
    by_family: dict[int, tuple[Tensor, ...]] = {}

    def cut(some: Sequence[Family]) -> list[list[int]]:
        return family_micro_batches(some, micro_batch_tokens, packed)

    for numbers in rank_batches(ranks, families, family_cost, cut):
        if not numbers:
            score_completions(lm, [IDLE], packed, frozenset())
            continue
        scores = score_completions(lm, [families[number] for number in numbers], packed, frozenset())
        # the places are found on the host, so that nothing waits for the device
        action = scores.rows.action
        places = to_device(action.flatten().nonzero()[:, 0], scores.logp.device)
        completions = iter(scores.logp.float().flatten()[places].split(action.sum(-1).tolist()))
        for number in numbers:
            by_family[number] = tuple(next(completions) for _ in families[number])
    if ranks.size > 1:
        by_family = {number: tuple(logp.cpu() for logp in values) for number, values in by_family.items()}
        by_family = {number: values for part in ranks.gather(by_family) for number, values in part.items()}
    return [by_family[number] for number in range(len(families))]


@dataclass(frozen=True)
class LiveReference:
    """Asked in every step. It may follow the policy."""

    reference: ReferencePolicy
    micro_batch_tokens: int
    packed: bool = True
    ranks: Ranks = ALONE

    def logp(self, families: Sequence[Family]) -> list[tuple[Tensor, ...]]:
        with self.reference.open() as lm:
            return families_logp(lm, families, self.micro_batch_tokens, self.packed, self.ranks)

    def follow(self, policy: CausalLM, share: float) -> None:
        """Move the reference towards the policy; `share` of its old weights stays."""
        if not isinstance(self.reference, CopiedReference):
            raise WhetError("this reference moves with the policy; give model.reference=memory")
        self.reference.follow(policy, share)


@dataclass(frozen=True)
class StoredReference:
    """Asked once, before the first step."""

    known: dict[bytes, Tensor]  # by `_key`

    def logp(self, families: Sequence[Family]) -> list[tuple[Tensor, ...]]:
        """The log-probabilities as they were noted before the first step; a row that was not noted is an error."""
        try:
            return [tuple(self.known[_key(row)] for row in family) for family in families]
        except KeyError:
            raise WhetError(
                "a completion is not among those the reference scored before the run; completions that are put "
                "together in every step need a live reference: give preference.reference_logp=live"
            ) from None


def stored_reference(
    policy: CausalLM,
    families: Sequence[Family],
    micro_batch_tokens: int,
    file: Path | None = None,
    packed: bool = True,
    ranks: Ranks = ALONE,
) -> StoredReference:
    """What the policy thinks of all rows now; read from `file` where it is there, else asked and written to it.

    The policy's weights must be whole.
    """
    rows = list(dict.fromkeys(row for family in families for row in family))
    fingerprint = {"model": f"{weights_digest(policy.model)} {policy.dtype}", "rows": _digest(rows)}
    if file is not None and ranks.gather(file.exists())[0]:
        values = _read(file, fingerprint)
    else:
        logp = families_logp(policy, families, micro_batch_tokens, packed, ranks)
        by_key = {
            _key(row): values.cpu()
            for family, completions in zip(families, logp, strict=True)
            for row, values in zip(family, completions, strict=True)
        }
        values = torch.cat([by_key[_key(row)] for row in rows])
        if file is not None and ranks.is_first:
            _write(file, values, fingerprint)
    counts = [sum(row.action) for row in rows]
    return StoredReference(dict(zip(map(_key, rows), values.split(counts), strict=True)))


def _read(file: Path, fingerprint: dict[str, str]) -> Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), "pt") as stored:
            stored_fingerprint: dict[str, Any] = json.loads((stored.metadata() or {}).get("fingerprint", "{}"))
            values: Tensor = stored.get_tensor("logp")
    except (OSError, SafetensorError, ValueError) as error:
        raise WhetError(
            f"{file}: not readable as stored reference log-probabilities ({type(error).__name__}); delete it, and it "
            "is made again"
        ) from error
    wrong = {
        "model": "by another model, not by this run's first policy",
        "rows": "of other rows than this run's, or of another chat template",
    }
    for name, reason in wrong.items():
        if stored_fingerprint.get(name) != fingerprint[name]:
            raise WhetError(
                f"{file}: the stored reference log-probabilities are {reason}; delete it, or give another "
                "preference.store"
            )
    return values


def _write(file: Path, values: Tensor, fingerprint: dict[str, str]) -> None:
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    save_file(
        {"logp": values.contiguous()}, str(partial), metadata={"fingerprint": json.dumps(fingerprint, sort_keys=True)}
    )
    os.replace(partial, file)


def _key(row: Encoded) -> bytes:
    total = hashlib.sha256(torch.tensor(row.tokens, dtype=torch.int64).numpy().tobytes())
    total.update(bytes(row.action))
    return total.digest()


def _digest(rows: Sequence[Encoded]) -> str:
    total = hashlib.sha256()
    for row in rows:
        total.update(_key(row))
    return total.hexdigest()


MICRO_BATCH_TOKENS = 16_384


def choice_logp(
    policy: CausalLM, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Prompt], context: int
) -> list[list[float]]:
    """[questions][choices]: the log-probability of each choice after the question and a space."""
    rows = [_encoded(tokenizer, question, context) for question in questions]
    packed = packs(policy)
    sizes = [_size(choices) for choices in rows]
    scores: list[list[float]] = [[] for _ in questions]
    with torch.no_grad(), unchanged_weights():
        for numbers in micro_batches(sizes, MICRO_BATCH_TOKENS, packed):
            batch = padded_rows([row for number in numbers for row in rows[number]])
            logp = token_logp(policy, batch.tokens, batch.action).logp.double().sum(-1).tolist()
            for number in numbers:
                scores[number], logp = logp[: len(rows[number])], logp[len(rows[number]) :]
    return scores


def _encoded(tokenizer: PreTrainedTokenizerBase, question: Prompt, context: int) -> list[Encoded]:
    """For each choice, the question's own tokens and those that the choice adds.

    A question that is too long loses its beginning.
    """
    text, rows = question.text or "", []
    before = prompt_tokens(tokenizer, Prompt(question.id, (), text.rstrip()))  # blanks at its end belong to the choice
    for choice in question.meta["choices"]:
        added = prompt_tokens(tokenizer, Prompt(question.id, (), f"{text} {choice}"))[len(before) :]
        if not added or len(added) >= context:
            raise WhetError(
                f"{question.id}: the choice {choice[:40]!r} has {len(added)} tokens; expected 1 to {context - 1}; use "
                "a model with a longer context"
            )
        fitting = before[-(context - len(added)) :]
        rows.append(Encoded(fitting + added, (False,) * len(fitting) + (True,) * len(added)))
    return rows


def _size(rows: Sequence[Encoded]) -> BlockSize:
    """The choices of a question stay together: what they share is computed once."""
    added = [sum(row.action) for row in rows]
    width = max(len(row.tokens) for row in rows)
    return BlockSize(len(rows), width, width - max(added) + sum(added))
