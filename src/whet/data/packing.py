"""Samples and demonstrations as padded tensors, and the cutting of a batch into micro-batches.

How a batch is cut is a question of memory only: the objective's shares come from the whole step. An episode is one row,
its turns and what the environment wrote between them; each branch of an episode is a row.

The turns of an episode and the sentences of a completion, counted on its tokens, and which of them start alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from whet.data.prefix_tree import (
    LEAST_SHARED,
    Integers,
    SharedTokens,
    TreeOrder,
    is_worthwhile,
    num_flat_tokens,
    tree_order,
)
from whet.data.reference_rewards import reference_rewards
from whet.types import TOKEN_FIELDS, Encoded, Group, Sample, StopReason, TokenBatch, Turn

SENTENCE_ENDS = (".", "!", "?", ";", "\n", *"\u3002\uff01\uff1f\uff1b")  # the last four: full-width marks


def sentence_ends(tokenizer: Any, vocabulary: int) -> Tensor:
    """bool [V]: tokens whose text ends a sentence."""
    known = min(vocabulary, len(tokenizer))
    texts = tokenizer.batch_decode([[token] for token in range(known)], skip_special_tokens=False)
    ends = torch.zeros(vocabulary, dtype=torch.bool)
    ends[:known] = torch.tensor([text.rstrip(" ").endswith(SENTENCE_ENDS) for text in texts])
    return ends


def segments(tokens: Tensor, action: Tensor, ends: Tensor) -> Tensor:
    """int64 [N, T]: the number of the sentence each action belongs to, from 0; -1 elsewhere.

    A token that ends a sentence belongs to it. What is not an action (a tool's answer) ends one too: a turn is over.
    """
    closing = action & ends[tokens]
    resumed = action.clone()
    resumed[:, 1:] &= ~action[:, :-1]
    first = action & (action.cumsum(-1) == 1)
    after_close = torch.zeros_like(closing)
    after_close[:, 1:] = closing[:, :-1]
    opening = action & (after_close | resumed) & ~first
    return torch.where(action, opening.cumsum(-1), -1)


@dataclass(frozen=True)
class PolicyTurn:
    """A turn that the policy wrote, and its first and last action in the tokens of the sample."""

    turn: Turn
    first: int
    last: int


def policy_turns(sample: Sample) -> list[PolicyTurn]:
    """The turns with at least one action, in order."""
    turns = []
    for turn in sample.turns:
        actions = sample.action[turn.start : turn.stop].nonzero()[:, 0]
        if len(actions):
            turns.append(PolicyTurn(turn, turn.start + int(actions[0]), turn.start + int(actions[-1])))
    return turns


def with_turns(segment: Tensor, samples: Sequence[Sample]) -> Tensor:
    """int64 [N, T]: the rows of episodes have the number of the turn instead of the sentence."""
    numbered = segment.clone()
    for row, sample in zip(numbered, samples, strict=True):
        turns = policy_turns(sample)
        if turns:
            starts = torch.zeros(len(row), dtype=torch.long)
            for turn in turns[1:]:
                starts[turn.first] = 1
            row[:] = torch.where(row >= 0, starts.cumsum(0), -1)
    return numbered


def with_states(anchor: Tensor, samples: Sequence[Sample]) -> Tensor:
    """int64 [N, T]: turns whose state the environment names have that name's number instead of the text's."""
    anchored = anchor.clone()
    for row, sample in zip(anchored, samples, strict=True):
        for turn in policy_turns(sample):
            if turn.turn.state is not None:
                inside = torch.zeros(len(row), dtype=torch.bool)
                inside[turn.first : turn.last + 1] = sample.action[turn.first : turn.last + 1]
                row[inside] = number_of(turn.turn.state)
    return anchored


def number_of(name: str) -> int:
    """A number per name, the same in every process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")


def anchors(tokens: Tensor, group: Tensor, segment: Tensor) -> Tensor:
    """int64 [N, T]: equal where sentences of one group start after the same tokens; 0 where there is no sentence."""
    # int64 arithmetic wraps: a running hash of all tokens before each position
    position = torch.arange(1, tokens.shape[1] + 1)
    # scrambled one by one before they are added: a sum of small multiples would meet itself
    scrambled = _scrambled(tokens * 0x100003 + position * 0x5851F42D4C957F2D)
    mixed = scrambled.cumsum(-1)
    before = torch.zeros_like(mixed)
    before[:, 1:] = mixed[:, :-1]
    before = _scrambled(before + group[:, None] * 0x14057B7EF767814F)
    starts = torch.ones_like(segment, dtype=torch.bool)
    starts[:, 1:] = segment[:, 1:] != segment[:, :-1]
    column = torch.where(starts, torch.arange(tokens.shape[1])[None].expand_as(tokens), 0).cummax(-1).values
    return torch.where(segment >= 0, before.gather(1, column), 0)


def _scrambled(values: Tensor) -> Tensor:
    """Map each int64 to another that looks random, by two rounds of shift and multiply."""
    for shift, factor in ((33, 0x2545F4914F6CDD1D), (29, 0x14057B7EF767814F)):
        values = (values ^ (values >> shift)) * factor
    return values ^ (values >> 32)


ENVIRONMENT = "environment"  # the reward that an environment's own, turn by turn, add up to


def token_batch(
    groups: Sequence[Group],
    part_weights: Mapping[str, float] | None = None,
    max_new_tokens: int | None = None,
    needs: frozenset[str] = frozenset(),
) -> TokenBatch:
    """All samples of the groups as one right-padded batch; an unscored sample has reward NaN.

    `needs` are an objective's: of the fields that few objectives look at, those are filled.
    """
    samples = [sample for group in groups for sample in group.samples]
    width = max(len(sample.tokens) for sample in samples)

    def padded(values: Sequence[Tensor]) -> Tensor:
        return pad_sequence(list(values), batch_first=True)

    rewards = [_number(sample.reward) for sample in samples]
    names = (
        list(part_weights)
        if part_weights is not None
        else sorted({name for sample in samples for name in sample.parts})
    )
    weights = [1.0 if part_weights is None else part_weights[name] for name in names]
    wide = torch.float64
    action = padded([sample.action for sample in samples])
    step_reward, returned = _earned(samples, width, dict(zip(names, weights, strict=True)).get(ENVIRONMENT))
    if step_reward is None and "step_reward" in needs:
        step_reward = torch.full(action.shape, float("nan"), dtype=wide)
    return TokenBatch(
        tokens=padded([sample.tokens for sample in samples]),
        action=action,
        group=torch.tensor([number for number, group in enumerate(groups) for _ in group.samples]),
        reward=torch.tensor(rewards, dtype=wide),
        behavior_logp=padded([sample.behavior_logp for sample in samples]),
        support=_supports(samples, width),
        routed_experts=_routed_experts(samples, width),
        parts=torch.tensor([_parts(sample, names) for sample in samples], dtype=wide) if names else None,
        part_weight=torch.tensor(weights, dtype=wide).expand(len(samples), -1) if names else None,
        finished=torch.tensor([not sample.stop.is_limit for sample in samples]),
        greedy_reward=_greedy(groups),
        drawn=_drawn(groups),
        reference_rewards=_reference_rewards(groups) if "reference_rewards" in needs else None,
        prompt=torch.tensor(
            [number for group in groups for number in [number_of(group.prompt.id)] * len(group.samples)]
        ),
        step_reward=step_reward,
        returned=returned,
        observed=_observed(action) if "observed" in needs else None,
        truncated=padded([_truncated(sample) for sample in samples]) if "truncated" in needs else None,
        episode=_episodes(groups),
        node=_nodes(samples, width),
        role=_roles(samples) if "role" in needs or any(sample.role for sample in samples) else None,
        max_new_tokens=max_new_tokens,
    )


def _parts(sample: Sample, names: Sequence[str]) -> list[float]:
    """Each part, 0 where it does not apply; the first place has the first that does: it says what is right."""
    missing = float("nan") if sample.reward is None else 0.0
    return [
        _number(sample.outcome) if i == 0 and sample.reward is not None else sample.parts.get(name, missing)
        for i, name in enumerate(names)
    ]


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _greedy(groups: Sequence[Group]) -> Tensor | None:
    if any(group.greedy is None for group in groups):
        return None
    rewards = [_number(group.greedy.reward) for group in groups if group.greedy is not None for _ in group.samples]
    return torch.tensor(rewards, dtype=torch.float64)


def _drawn(groups: Sequence[Group]) -> Tensor | None:
    """count, mean and Bessel's std of every reward drawn for the prompt."""
    if not all(group.drawn for group in groups):
        return None
    rows = [
        (len(group.drawn), fmean(group.drawn), stdev(group.drawn) if len(group.drawn) > 1 else 0.0)
        for group in groups
        for _ in group.samples
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _reference_rewards(groups: Sequence[Group]) -> Tensor:
    """[N, R], NaN after the last of each row."""
    known = [
        (torch.tensor(reference_rewards(group.prompt), dtype=torch.float64), len(group.samples)) for group in groups
    ]
    return pad_sequence([rewards for rewards, count in known for _ in range(count)], True, float("nan"))


def _earned(samples: Sequence[Sample], width: int, weight: float | None) -> tuple[Tensor | None, Tensor | None]:
    """[N, T], process rewards and rewards of turns where they were earned, and [N], what of it is in the reward.

    `weight` is what the environment's rewards count in the reward; None: they are no part of it, and nothing is earned.
    """
    if not any(sample.steps or sample.turns for sample in samples):
        return None, None
    rows = torch.full((len(samples), width), float("nan"), dtype=torch.float64)
    returned = torch.zeros(len(samples), dtype=torch.float64)
    for number, sample in enumerate(samples):
        turns = [(turn.last, turn.turn.reward) for turn in policy_turns(sample) if turn.turn.reward is not None]
        scores = [step for step in sample.steps if step not in turns]
        paid = [] if weight is None else [(last, weight * reward) for last, reward in turns]
        for position, score in scores + paid:
            rows[number, position] = score + float(rows[number, position].nan_to_num())
        returned[number] = fsum(reward for _, reward in paid)
    if rows.isnan().all():
        return None, None
    return rows, returned if bool(returned.any()) else None


def _observed(action: Tensor) -> Tensor:
    """What stands between the first and the last action of a row and is none: an environment wrote it."""
    begun, ahead = action.cumsum(-1) > 0, action.flip(-1).cumsum(-1).flip(-1) > 0
    return begun & ahead & ~action


def _truncated(sample: Sample) -> Tensor:
    """The actions of turns that their token budget cut off; a single completion is one turn."""
    if not sample.turns:
        return sample.action & (sample.stop is StopReason.LENGTH)
    cut = torch.zeros_like(sample.action)
    for turn in policy_turns(sample):
        if turn.turn.ended is StopReason.LENGTH:
            cut[turn.turn.start : turn.turn.stop] = True
    return cut & sample.action


def _episodes(groups: Sequence[Group]) -> Tensor | None:
    """A number for each episode; None where no two samples are branches of one."""
    names = [
        (number, sample.role, sample.episode or f"sample {index}")
        for number, group in enumerate(groups)
        for index, sample in enumerate(group.samples)
    ]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return None if len(numbers) == len(names) else torch.tensor([numbers[name] for name in names])


def _nodes(samples: Sequence[Sample], width: int) -> Tensor | None:
    """[N, T], the numbers of turns in the trees of their episodes; None where no episode has a tree."""
    if not any(turn.node is not None for sample in samples for turn in sample.turns):
        return None
    rows = torch.zeros(len(samples), width, dtype=torch.long)
    for row, sample in zip(rows, samples, strict=True):
        for turn in sample.turns:
            if turn.node is not None:
                row[turn.start : turn.stop] = turn.node
    return rows


def _roles(samples: Sequence[Sample]) -> Tensor:
    return torch.tensor([number_of(sample.role) for sample in samples])


def _supports(samples: Sequence[Sample], width: int) -> Tensor | None:
    if all(sample.support is None for sample in samples):
        return None
    largest = max(int(sample.support.counts.max()) for sample in samples if sample.support is not None)
    rows = torch.full((len(samples), width, max(largest, 1)), -1, dtype=torch.int32)
    for row, sample in enumerate(samples):
        if sample.support is None:
            continue
        positions = sample.action.nonzero()[:, 0].tolist()
        pieces = sample.support.ids.split(sample.support.counts.tolist())
        for position, ids in zip(positions, pieces, strict=True):
            rows[row, position, : len(ids)] = ids
    return rows


def _routed_experts(samples: Sequence[Sample], width: int) -> Tensor | None:
    """The sampler's experts, -1 after a row's last token and in rows of which none are known."""
    known = [sample.routed_experts for sample in samples if sample.routed_experts is not None]
    if not known:
        return None
    rows = known[0].new_full((len(samples), width, *known[0].shape[1:]), -1)
    for row, sample in zip(rows, samples, strict=True):
        if sample.routed_experts is not None:
            row[: len(sample.routed_experts)] = sample.routed_experts
    return rows


# what a field says of a row without actions, where that is not 0
UNKNOWN_VALUES = {"reward": float("nan"), "step_reward": float("nan"), "row_weight": 1.0}
UNKNOWN_VALUES |= dict.fromkeys(("support", "routed_experts", "old_experts", "segment", "anchor", "prompt"), -1)


def with_demonstrations(batch: TokenBatch, rows: Sequence[Encoded]) -> TokenBatch:
    """The batch with a row for each demonstration after its own, a group each. Such a row has no action and no reward:
    it is in no statistic, no advantage and no denominator but its own."""
    shown = padded_rows(rows) if rows else None
    width = max(batch.tokens.shape[1], 0 if shown is None else shown.tokens.shape[1])

    def wide(values: Tensor, fill: float) -> Tensor:
        more = width - values.shape[1]
        return torch.cat([values, values.new_full((len(values), more, *values.shape[2:]), fill)], 1) if more else values

    fields: dict[str, Tensor] = {}
    for name in batch.__dataclass_fields__:
        value = getattr(batch, name)
        if not isinstance(value, Tensor):
            continue
        fill = UNKNOWN_VALUES.get(name, 0)
        value = wide(value, fill) if name in TOKEN_FIELDS else value
        new = value.new_full((len(rows), *value.shape[1:]), fill)
        if name in ("group", "episode"):
            new = value.max() + 1 + torch.arange(len(rows))
        elif name == "part_weight":
            new = value[:1].expand(len(rows), -1)
        fields[name] = torch.cat([value, new])
    fields["demonstrated"] = torch.zeros_like(fields["action"])
    if shown is not None:
        fields["tokens"][batch.num_sequences :] = wide(shown.tokens, 0)
        fields["demonstrated"][batch.num_sequences :] = wide(shown.action, False)
    return replace(batch, **fields)  # type: ignore[arg-type]


@dataclass(frozen=True)
class BlockSize:
    """Rows that stay together in one micro-batch, and what they cost."""

    num_rows: int
    width: int  # tokens of the widest row
    computed: int  # tokens computed where a shared prompt is computed once and padding is left out


def micro_batches(blocks: Sequence[BlockSize], micro_batch_tokens: int, packed: bool) -> list[list[int]]:
    """The numbers of the blocks in each micro-batch: similar widths together, at most `micro_batch_tokens` tokens, or
    one block. Packed, a block costs what it computes; else every row costs as much as the widest.

    Everything that is cut by tokens is cut here.
    """
    if micro_batch_tokens < 1:
        raise ValueError(f"micro_batch_tokens is {micro_batch_tokens}: a device has to be known first (`sized_passes`)")
    batches: list[list[int]] = []
    rows = computed = 0
    for number in sorted(range(len(blocks)), key=lambda number: blocks[number].width):
        block = blocks[number]
        cost = computed + block.computed if packed else (rows + block.num_rows) * block.width
        if not batches or cost > micro_batch_tokens:
            batches.append([])
            rows = computed = 0
        batches[-1].append(number)
        rows, computed = rows + block.num_rows, computed + block.computed
    return batches


def token_micro_batches(
    batch: TokenBatch, micro_batch_tokens: int, shared: SharedTokens = "nothing", scored: Tensor | None = None
) -> list[list[int]]:
    """The rows of each micro-batch. Padding is computed, unless rows share something: then those that start with the
    same prompt, or prefix, compute it once per micro-batch, and stay together where they fit. `scored` [N, T] are the
    tokens whose log-probability is wanted; None: the actions."""
    scored = batch.action if scored is None else scored
    widths = _widths(scored)
    if shared == "nothing":
        return micro_batches([BlockSize(1, width, width) for width in widths], micro_batch_tokens, packed=False)
    prompts, tokens = scored.int().argmax(-1).numpy(), batch.tokens.cpu().numpy()
    order = _tree_rows(tokens, prompts, widths) if shared == "prefixes" else None
    blocks = _prompt_blocks(tokens, prompts, widths, micro_batch_tokens) if order is None else []
    if order is not None:
        blocks = _tree_blocks(order, widths, micro_batch_tokens)
    cut = micro_batches([size for _, size in blocks], micro_batch_tokens, packed=True)
    return [[row for number in numbers for row in blocks[number][0]] for numbers in cut]


_Block = tuple[list[int], BlockSize]


def _prompt_blocks(tokens: Integers, prompts: Integers, widths: Sequence[int], micro_batch_tokens: int) -> list[_Block]:
    """Rows with equal prompts together, where they fit."""
    families: dict[bytes, list[int]] = {}
    for row in sorted(range(len(widths)), key=lambda row: widths[row]):
        families.setdefault(tokens[row, : prompts[row]].tobytes(), []).append(row)
    blocks: list[_Block] = []
    for family in families.values():
        prompt = int(prompts[family[0]])
        for row in family:
            size = max(widths[row] - 1 - prompt, 0)  # nothing is predicted from a row's last action
            if row == family[0] or blocks[-1][1].computed + size > micro_batch_tokens:
                blocks.append(([], BlockSize(0, 0, prompt)))
            rows, computed = [*blocks[-1][0], row], blocks[-1][1].computed + size
            blocks[-1] = (rows, BlockSize(len(rows), widths[row], computed))
    return blocks


def _tree_rows(tokens: Integers, prompts: Integers, widths: Sequence[int]) -> TreeOrder | None:
    """Rows in the order of their tree, where that saves enough over prompts alone."""
    lengths = np.maximum(np.array(widths, dtype=np.int64) - 1, 0)
    order = tree_order(tokens, lengths)
    return order if is_worthwhile(order.num_tokens, num_flat_tokens(tokens, prompts, lengths)) else None


def _tree_blocks(order: TreeOrder, widths: Sequence[int], micro_batch_tokens: int) -> list[_Block]:
    """Rows with common prefixes together, where they fit: a row costs what it does not share with the one before."""
    blocks: list[_Block] = []
    for row, length, shared in zip(order.rows.tolist(), order.lengths.tolist(), order.shared.tolist(), strict=True):
        if shared < LEAST_SHARED or blocks[-1][1].computed + length - shared > micro_batch_tokens:
            blocks.append(([], BlockSize(0, 0, 0)))
            shared = 0
        rows, size = [*blocks[-1][0], row], blocks[-1][1]
        blocks[-1] = (rows, BlockSize(len(rows), max(size.width, widths[row]), size.computed + length - shared))
    idle = [row for row, width in enumerate(widths) if width < 2]
    return [*blocks, (idle, BlockSize(len(idle), 0, 0))] if idle else blocks


def trimmed(batch: TokenBatch, scored: Tensor | None = None) -> TokenBatch:
    """The batch without the columns after the last action of all rows, or the last that is `scored`: nothing there can
    change a gradient."""
    return batch.narrowed(max([*_widths(batch.action if scored is None else scored), 1]))


def _widths(action: Tensor) -> list[int]:
    column = torch.arange(1, action.shape[1] + 1, device=action.device)
    return (action * column).amax(-1).tolist()


@dataclass(frozen=True)
class PaddedRows:
    """Rows of tokens as tensors, right-padded."""

    tokens: Tensor  # int64 [N, T]
    action: Tensor  # bool [N, T]


def padded_rows(rows: Sequence[Encoded]) -> PaddedRows:
    """Rows padded on the right with token 0 to the longest of them; padding is never an action."""
    # numpy reads tuples ten times as fast as torch, and a device waits for this
    width = max(len(row.tokens) for row in rows)
    tokens = np.zeros((len(rows), width), np.int64)
    action = np.zeros((len(rows), width), np.bool_)
    for number, row in enumerate(rows):
        tokens[number, : len(row.tokens)] = row.tokens
        action[number, : len(row.tokens)] = row.action
    return PaddedRows(torch.from_numpy(tokens), torch.from_numpy(action))


def row_micro_batches(rows: Sequence[Encoded], micro_batch_tokens: int, packed: bool) -> list[list[int]]:
    """Row numbers in micro-batches of at most `micro_batch_tokens` tokens, padding counted where not packed."""
    sizes = [BlockSize(1, len(row.tokens), len(row.tokens)) for row in rows]
    return micro_batches(sizes, micro_batch_tokens, packed)
