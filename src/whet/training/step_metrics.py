"""What a step of reinforcement learning reports: counts, mean rewards, and how far sampler and trainer are apart.

How the experts of a mixture are used, and how far two passes over the same tokens disagree about them. Pure.

A table of experts is [N, T, layers, k], -1 where nothing is known of a token. The order of the k is no difference.

What became of the tokens of the samples that a run records: their advantage, weight and log-probability.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from statistics import fmean

import torch
from torch import Tensor

from whet.model.token_logp import TokenScores
from whet.objective import Objective
from whet.record.metrics.distribution import pearson
from whet.reward.answer import final_answer, normal_form
from whet.rollout.buffer import RolloutBatch
from whet.rollout.episode_runner import PlayNotes
from whet.types import Group, Prompt, Sample, StopReason, TokenBatch, TokenTrace


def used_experts(chosen: Tensor, replay: Tensor | None) -> Tensor:
    """The experts that a pass used: replayed ones, else its own choice; -1 for tokens it did not compute."""
    return chosen if replay is None else torch.where((replay < 0) | (chosen < 0), chosen, replay.to(chosen.dtype))


def expert_counts(used: Tensor, num_experts: int) -> Tensor:
    """int64 [layers, num_experts]: how many tokens each expert was given."""
    layers = used.shape[2]
    chosen = used[(used >= 0).all(-1).all(-1)].long()  # [tokens, layers, k]
    flat = chosen + torch.arange(layers)[None, :, None] * num_experts
    return torch.bincount(flat.flatten(), minlength=layers * num_experts).view(layers, num_experts)


def load_metrics(counts: Tensor) -> dict[str, float]:
    """Expert load, averaged over layers: the busiest expert's load relative to the mean, the evenness (entropy over its
    greatest value, 1 is even), and the share of all experts that got no token."""
    total = counts.sum(-1, keepdim=True)
    if not bool(total.all()):
        return {}
    share = counts.double() / total
    evenness = torch.special.entr(share).sum(-1) / torch.log(torch.tensor(float(counts.shape[-1])))
    return {
        "expert_load_max": float((share.amax(-1) * counts.shape[-1]).mean()),
        "expert_load_evenness": float(evenness.mean()),
        "dead_experts": float((counts == 0).double().mean()),
    }


def disagreement(first: Tensor, second: Tensor) -> tuple[float, float] | None:
    """The share of tokens with other experts in at least one layer, and that of (token, layer); of tokens that both
    tables know. None where there are none."""
    known = ((first >= 0) & (second >= 0)).all(-1).all(-1)
    if not bool(known.any()):
        return None
    differs = (first[known].sort(-1).values != second[known].sort(-1).values).any(-1)  # [tokens, layers]
    return float(differs.any(-1).double().mean()), float(differs.double().mean())


def drift_metrics(name: str, first: Tensor | None, second: Tensor | None) -> dict[str, float]:
    """`name`: share of tokens whose experts differ somewhere; `name_layers`: share of (token, layer)."""
    if first is None or second is None:
        return {}
    drift = disagreement(first, second)
    return {} if drift is None else {name: drift[0], f"{name}_layers": drift[1]}


def replayed_share(chosen: Tensor, replay: Tensor | None) -> dict[str, float]:
    """The share of computed tokens whose experts were replayed; nothing without a replay."""
    if replay is None:
        return {}
    computed, replayed = (chosen >= 0).all(-1).all(-1), (replay >= 0).all(-1).all(-1)
    return {"replayed_experts": float((replayed & computed).sum() / computed.sum().clamp(min=1))}


class TokenTraces:
    """The token traces of some rows of a step's batch, gathered over its updates. It changes no value of the batch."""

    def __init__(self, batch: TokenBatch, rows: Sequence[int]) -> None:
        """`batch` as `Objective.advantage` left it; `rows` are places of its samples."""
        self._rows = list(rows)
        self._advantage = self._old = None
        if self._rows:
            chosen = torch.tensor(self._rows)
            self._advantage = None if batch.advantage is None else batch.advantage[chosen].float()
            self._old = None if batch.old_logp is None else batch.old_logp[chosen].float()
        self._weight: dict[int, Tensor] = {}
        self._logp: dict[int, Tensor] = {}

    def add(
        self, objective: Objective, batch: TokenBatch, rows: Sequence[int], logp: Tensor, only_critic: bool = False
    ) -> None:
        """An update on these rows of the step, `batch` and the `logp` it saw; in a critic's warm-up no token counts."""
        number_of = {row: number for number, row in enumerate(rows)}
        concerned = [row for row in self._rows if row in number_of]
        if not concerned or batch.advantage is None:
            return
        chosen = torch.tensor([number_of[row] for row in concerned])
        light = replace(batch, support=None, routed_experts=None, old_experts=None)  # wide, and no rule looks at them
        part, seen = light.select(chosen), logp[chosen]
        weight = torch.zeros_like(seen) if only_critic else objective.token_weight(part, seen)
        for row, row_weight, row_logp in zip(concerned, weight.float(), seen.float(), strict=True):
            self._weight[row] = row_weight
            self._logp.setdefault(row, row_logp)

    def on(self, samples: Sequence[tuple[Prompt, Sample]]) -> list[tuple[Prompt, Sample]]:
        """The step's samples, those with a trace carrying it."""
        traced = list(samples)
        if self._advantage is None:
            return traced
        for number, row in enumerate(self._rows):
            if row not in self._weight:
                continue
            prompt, sample = traced[row]
            logp = self._logp[row] if self._old is None else self._old[number]
            known = [
                torch.where(sample.action, values[: len(sample.tokens)], 0.0)
                for values in (self._advantage[number], self._weight[row], logp)
            ]
            traced[row] = (prompt, replace(sample, trace=TokenTrace(*known)))
        return traced


RUN = 4  # tokens that are compared with the rest of their completion
FEWEST_COMPARED = 12  # tokens of a completion in which something can repeat
MOST_COMPARED = 64  # completions of a step: the device waits meanwhile
FEWEST_VOTES, MOST_VOTED = 4, 16  # completions of a group, and groups of a step, that vote on an answer
AGREED = 0.75  # of a group's completions that give one answer


def group_counts(groups: Sequence[Group]) -> dict[str, int]:
    """Counts of prompts, samples and tokens, and how many samples were cut off or unscorable. A token that several
    leaves of an episode share was written once."""
    samples = [sample for group in groups for sample in group.samples]
    shared = tree_counts(samples).get("shared_tokens", 0)
    return {
        "prompts": len(groups),
        "samples": len(samples),
        "tokens": sum(sample.num_actions for sample in samples) - shared,
        "truncated": sum(sample.stop.is_limit for sample in samples),
        "unscorable": sum(sample.reward is None for sample in samples),
    }


def episode_counts(groups: Sequence[Group], played: PlayNotes) -> dict[str, int]:
    """Turns, calls and ends of the step's episodes; nothing where every sample is one completion."""
    samples = [sample for group in groups for sample in group.samples if sample.turns]
    counts: Counter[str] = Counter(played.counts)
    for sample in samples:
        counts["turns"] += sum(turn.role == "assistant" for turn in sample.turns)
        for turn in sample.turns:
            counts.update(turn.counts)
        if sample.stop.is_limit or sample.stop is StopReason.FAILED:
            counts[f"ended_by_{sample.stop}"] += 1
    counts.update(tree_counts(samples))
    if samples:
        counts["observed_tokens"] = sum(
            len(episode.tokens) - _first(episode) - episode.num_actions for episode in samples
        )
    return dict(sorted(counts.items()))


def tree_counts(samples: Sequence[Sample]) -> dict[str, int]:
    """Of episodes that branch: how many there are, and the tokens of turns that leaves share, counted for each leaf
    after the first: what as many separate episodes would have written in addition. Nothing where none branches."""
    turns = [(sample.episode, turn) for sample in samples for turn in sample.turns if turn.node is not None]
    if not turns:
        return {}
    written = {(episode, turn.node): turn.stop - turn.start for episode, turn in turns}
    tokens = sum(turn.stop - turn.start for _, turn in turns)
    return {"episodes": len({sample.episode for sample in samples}), "shared_tokens": tokens - sum(written.values())}


def _first(sample: Sample) -> int:
    """The index of the policy's first token."""
    return int(sample.action.int().argmax()) if sample.num_actions else len(sample.tokens)


def environment_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """What environments measured in their episodes, on average."""
    samples = [sample for group in groups for sample in group.samples]
    names = sorted({name for sample in samples for name in sample.metrics})
    return {
        f"env_{name}": fmean([sample.metrics[name] for sample in samples if name in sample.metrics]) for name in names
    }


def role_rewards(groups: Sequence[Group]) -> dict[str, float]:
    """The mean reward of each role that the policy played; nothing where it played none."""
    earned: dict[str, list[float]] = {}
    for sample in (sample for group in groups for sample in group.samples):
        if sample.role and sample.reward is not None:
            earned.setdefault(sample.role, []).append(sample.reward)
    return {f"reward_as_{role}": fmean(earned[role]) for role in sorted(earned)}


def collection_counts(rollout: RolloutBatch, groups: Sequence[Group]) -> dict[str, int]:
    """What it took to collect the groups, where that is more than the groups themselves."""
    trained = sum(len(group.samples) for group in groups)
    if rollout.num_samples == trained:
        return {}
    return {"prompts_spent": len(rollout.outcomes), "samples_spent": rollout.num_samples, "rounds": rollout.rounds}


def mean_rewards(groups: Sequence[Group]) -> dict[str, float]:
    """`total` and each part: means over the scored samples that it applies to; the leaves of a tree count as one."""
    samples = [sample for group in groups for sample in group.samples if sample.reward is not None]
    if not samples:
        return {"total": float("nan")}
    weights = leaf_weights(samples)

    def mean(values: Sequence[float | None]) -> float:
        known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
        return fmean([value for value, _ in known], [weight for _, weight in known])

    names = dict.fromkeys(name for sample in samples for name in sample.parts)
    parts = {name: mean([sample.parts.get(name) for sample in samples]) for name in names}
    return {"total": mean([sample.reward for sample in samples]), **parts}


def leaf_weights(samples: Sequence[Sample]) -> list[float]:
    """What each sample counts: the leaves of a tree by the draws on their way (`whet.objective.tree`), others 1."""
    ways = [
        (sample.episode, *(turn.node for turn in sample.turns if turn.node is not None)) if sample.turns else ()
        for sample in samples
    ]
    following: dict[tuple[object, ...], set[object]] = {}
    for number, path in enumerate(ways):
        for length in range(1, len(path) + 1):
            following.setdefault(path[:length], set()).add(path[length] if length < len(path) else ("end", number))
    has_tree = [len(path) > 1 for path in ways]
    return [
        math.prod(1 / len(following[path[:length]]) for length in range(1, len(path) + 1)) if of_tree else 1.0
        for path, of_tree in zip(ways, has_tree, strict=True)
    ]


def reward_company(batch: TokenBatch) -> dict[str, float]:
    """The correlation of the reward with length and with the reference's log-probability per token, within groups.

    Near 1 with length: the reward pays for length. Near -1 with the reference: it pays for what the starting model
    would hardly write.
    """
    tokens, reward, group = batch.action.sum(1).cpu(), batch.reward.double().cpu(), batch.group.cpu()
    known = torch.isfinite(reward) & (tokens > 0)
    columns = {"reward_length_correlation": tokens.double()}
    if batch.ref_logp is not None:
        logp = torch.where(batch.action, batch.ref_logp, torch.zeros_like(batch.ref_logp)).double().sum(1).cpu()
        columns["reward_reference_correlation"] = logp / tokens.clamp(min=1)
    correlations = {name: _within_groups(reward, column, group, known) for name, column in columns.items()}
    return {name: value for name, value in correlations.items() if value is not None}


def outcome_lengths(groups: Sequence[Group]) -> dict[str, float]:
    """Mean tokens of the right and of the wrong completions; nothing where the reward's first part is not 0 or 1."""
    tokens: dict[float, list[int]] = {1.0: [], 0.0: []}
    for sample in (sample for group in groups for sample in group.samples):
        if sample.outcome is None:
            continue
        if sample.outcome not in tokens:
            return {}
        tokens[sample.outcome].append(sample.num_actions)
    named = {"right_tokens": tokens[1.0], "wrong_tokens": tokens[0.0]}
    return {name: fmean(counts) for name, counts in named.items() if counts}


def deciding_parts(batch: TokenBatch, groups: Sequence[Group], weights: Mapping[str, float]) -> dict[str, float]:
    """Each reward part's share of the total reward's variance within groups: cov(w part, total) / var.

    The shares of plainly weighted parts add up to 1. Nothing where there is one part, or no group differs.
    """
    samples = [sample for group in groups for sample in group.samples]
    names = [name for name in weights if all(name in sample.parts for sample in samples if sample.reward is not None)]
    if len(names) < 2:
        return {}
    known = torch.tensor([sample.reward is not None for sample in samples])
    if not bool(known.any()):
        return {}
    total = _centred(
        torch.tensor([sample.reward or 0.0 for sample in samples], dtype=torch.float64), batch.group.cpu(), known
    )
    variance = float(total.square().sum())
    if variance <= 1e-12 * len(samples):
        return {}
    shares = {}
    for name in names:
        part = torch.tensor([weights[name] * sample.parts.get(name, 0.0) for sample in samples], dtype=torch.float64)
        shares[f"{name}_decides"] = float((_centred(part, batch.group.cpu(), known) * total).sum()) / variance
    return shares


def _centred(values: Tensor, group: Tensor, known: Tensor) -> Tensor:
    """Less the mean of its group, over the rows that are known; 0 elsewhere."""
    size = int(group.max()) + 1
    counts = torch.zeros(size).double().index_add(0, group, known.double())
    sums = torch.zeros(size).double().index_add(0, group, torch.where(known, values, 0.0))
    return torch.where(known, values - (sums / counts.clamp(min=1))[group], 0.0)


def repetition(groups: Sequence[Group]) -> dict[str, float]:
    """The share of a completion's runs of four tokens that it has written before, on average; of up to 64 completions.

    Nothing where all are too short to tell.
    """
    samples = [sample for group in groups for sample in group.samples]
    chosen = samples[:: -(-len(samples) // MOST_COMPARED)]
    written = (list(compress(sample.tokens.tolist(), sample.action.tolist())) for sample in chosen)
    shares = [share for tokens in written if (share := _repeated(tokens)) is not None]
    return {"repetition": fmean(shares)} if shares else {}


def refused_majorities(groups: Sequence[Group]) -> dict[str, float]:
    """The share of groups that mostly agree on one answer, and how often that answer is wrong.

    A model that is sure and refused either errs the same way each time, or the gold answer does.
    """
    agreed, refused = 0, 0
    compared = [group for group in groups if len(group.samples) >= FEWEST_VOTES][:MOST_VOTED]
    for group in compared:
        answers = [(final_answer(sample.completion), sample.outcome) for sample in group.samples if not sample.episode]
        votes = Counter(normal_form(answer) for answer, outcome in answers if answer and outcome is not None)
        winner, count = votes.most_common(1)[0] if votes else ("", 0)
        if count < AGREED * len(group.samples):
            continue
        agreed += 1
        outcomes = [outcome for answer, outcome in answers if answer and normal_form(answer) == winner]
        refused += fmean(outcome or 0.0 for outcome in outcomes) <= 0
    if not compared or not agreed:
        return {}
    return {"agreed_groups": agreed / len(compared), "refused_majorities": refused / agreed}


def _repeated(tokens: list[int]) -> float | None:
    if len(tokens) < FEWEST_COMPARED:
        return None
    distinct = set(zip(*(tokens[start:] for start in range(RUN)), strict=False))
    return 1 - len(distinct) / (len(tokens) - RUN + 1)


def _within_groups(first: Tensor, second: Tensor, group: Tensor, known: Tensor) -> float | None:
    return pearson(*(_centred(values, group, known)[known].tolist() for values in (first, second)))


def uniform_share(groups: Sequence[Group]) -> float:
    """Share of groups whose scored samples all have the same reward, role by role: they teach nothing."""
    return fmean([float(all(len(rewards) <= 1 for rewards in _rewards_by_role(group).values())) for group in groups])


def _rewards_by_role(group: Group) -> dict[str, set[float]]:
    by_role: dict[str, set[float]] = {}
    for sample in group.samples:
        if sample.reward is not None:
            by_role.setdefault(sample.role, set()).add(sample.reward)
    return by_role


def group_staleness(group: Group, version: int) -> int:
    """Policy versions between the oldest weights that wrote the group and those that train on it."""
    return version - min(sample.versions[0] for sample in group.samples)


def sampler_metrics(batch: TokenBatch, scores: TokenScores, is_stale: bool) -> dict[str, float]:
    """How far the trainer's log-probabilities are from the sampler's, before the first update of the step."""
    action = batch.action
    if not action.any() or batch.behavior_logp is None:
        return {}
    gap = (scores.logp - batch.behavior_logp)[action].abs()
    name = "staleness" if is_stale else "sampler_gap"  # an older policy is meant to differ, an engine is not
    return {
        "entropy": float(scores.entropy[action].double().mean()),
        name: float(gap.double().mean()),
        f"{name}_max": float(gap.max()),
    }


def critic_metrics(batch: TokenBatch) -> dict[str, float]:
    """The share of the targets' variance that the critic explains: 1 is perfect, below 0 worse than a constant."""
    if batch.target is None or batch.value is None or int(batch.action.sum()) < 2:
        return {}
    target, value = batch.target[batch.action], batch.value[batch.action].to(batch.target.dtype)
    variance = target.var()
    return {"critic_explains": float(1 - (target - value).var() / variance)} if variance > 0 else {}


def teacher_metrics(batch: TokenBatch) -> dict[str, float]:
    """How far the policy is from its teacher, in nats per token of its own: an estimate of KL(policy, teacher)."""
    sampled = batch.old_logp if batch.old_logp is not None else batch.behavior_logp
    if batch.teacher_logp is None or sampled is None or not bool(batch.action.any()):
        return {}
    return {"teacher_kl": float((sampled - batch.teacher_logp)[batch.action].double().mean())}
