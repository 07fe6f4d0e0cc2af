"""Labels for the steps of a solution from rollouts that continue them. Wang 2023 (2312.08935), Math-Shepherd.

From the end of each step a model writes several completions. The hard label of the step is 1 where any of them is
right, the soft one the share that is. Both say what the completer can make of a step and not whether it is right: a
strong one repairs errors, a weak one fails after a right step, and once the answer stands it only copies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from whet.data.chat import prompt_tokens, text_tokens
from whet.data.step_rows import LabelledSteps
from whet.protocols import Engine
from whet.record.metrics.reward_model import area_under_curve
from whet.reward.learned.process import step_ends, step_texts
from whet.reward.steps import StepScorer, tokens_until
from whet.rollout.collect import Score
from whet.rollout.seed import request_seed
from whet.types import Prompt, Request, Sample, Sampling

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class Solution:
    """A completion cut into steps, or steps that were given."""

    prompt: Prompt
    opening: int  # tokens of the prompt
    steps: tuple[str, ...]
    prefixes: tuple[tuple[int, ...], ...]  # prompt and completion up to the end of each step, in tokens
    completion: Sample | None = None  # scored; None where the steps were given and the outcome is unknown
    truth: tuple[float | None, ...] = ()  # of each step, where it is known


@dataclass(frozen=True)
class Completer:
    """The engine that writes completions and the reward that scores them."""

    engine: Engine
    score: Score
    decode: Decode  # without special tokens
    sampling: Sampling
    rollouts: int  # completions from the end of each step
    context: int  # tokens
    right_from: float = 1.0  # a completion with at least this outcome is right


@dataclass(frozen=True)
class StepLabels:
    """The labels of one solution, and their cost."""

    shares: tuple[float | None, ...]  # of right completions; None where none could be judged
    completions: int
    tokens: int  # generated

    @property
    def hard(self) -> tuple[float | None, ...]:
        """1 where any completion of the step is right, else 0."""
        return tuple(None if share is None else float(share > 0) for share in self.shares)


def cut_completion(
    prompt: Prompt, completion: Sample, separator: str, decode: Decode, truth: StepScorer | None
) -> Solution:
    """A scored completion as steps, cut between its own tokens; steps that end in one token are one."""
    tokens = completion.tokens.tolist()
    opening = len(tokens) - completion.num_actions
    ends: dict[int, int] = {}
    for end in step_ends(completion.completion, separator):
        ends[tokens_until(tokens[opening:], end, decode)] = end
    if ends:
        # what is left, an end token at least, belongs to the last step
        ends[completion.num_actions] = ends.pop(max(ends))
    cuts = [ends[count] for count in sorted(ends)]
    prefixes = tuple(tuple(tokens[: opening + count]) for count in sorted(ends))
    step_truth = _least_scores(truth(prompt, completion.completion), cuts) if truth is not None else ()
    return Solution(
        prompt, opening, tuple(step_texts(completion.completion, cuts, separator)), prefixes, completion, step_truth
    )


def given_solution(tokenizer: Any, row: LabelledSteps, separator: str) -> Solution:
    """A given solution as tokens: its steps in order, with the separator between them."""
    tokens = prompt_tokens(tokenizer, row.prompt)
    opening, prefixes = len(tokens), []
    separator_tokens = text_tokens(tokenizer, separator)
    for number, step in enumerate(row.steps):
        is_last = number == len(row.steps) - 1
        tokens = (*tokens, *text_tokens(tokenizer, step.strip()), *(() if is_last else separator_tokens))
        prefixes.append(tokens)
    return Solution(row.prompt, opening, row.steps, tuple(prefixes), None, row.labels)


def step_labels(solutions: Sequence[Solution], completer: Completer, seed: tuple[int, ...]) -> list[StepLabels]:
    """Complete and score every step of all solutions in one batch; `seed` belongs to these solutions alone.

    The last step of a finished completion has the completion's own outcome: there is nothing left to write.
    """
    requests = [
        (row, step, Request(tokens, request_seed(*seed, row, step, number)))
        for row, solution in enumerate(solutions)
        for step, tokens in enumerate(_open(solution))
        for number in range(completer.rollouts)
        if len(tokens) < completer.context
    ]
    continuations = _complete([request for _, _, request in requests], completer)
    whole = [
        _whole(sample, solutions[row].opening, completer.decode)
        for (row, _, _), sample in zip(requests, continuations, strict=True)
    ]
    scored = completer.score([solutions[row].prompt for row, _, _ in requests], whole) if whole else []
    outcomes: dict[tuple[int, int], list[float]] = {}
    cost = [[0, 0] for _ in solutions]
    for (row, step, _), alone, sample in zip(requests, continuations, scored, strict=True):
        cost[row][0] += 1
        cost[row][1] += alone.num_actions
        if sample.outcome is not None:
            outcomes.setdefault((row, step), []).append(float(sample.outcome >= completer.right_from))
    labels = []
    for row, solution in enumerate(solutions):
        shares: list[float | None] = [
            fmean(outcomes[row, step]) if (row, step) in outcomes else None for step in range(len(_open(solution)))
        ]
        if solution.completion is not None and solution.steps:
            end = solution.completion.outcome
            shares.append(None if end is None else float(end >= completer.right_from))
        labels.append(StepLabels(tuple(shares), *cost[row]))
    return labels


def agreement(labels: Sequence[StepLabels], truth: Sequence[Sequence[float | None]]) -> dict[str, float]:
    """How labels compare with the truth, over the steps that have both; nothing where there are none.

    `right_confirmed` and `wrong_found` are the shares of right and of wrong steps whose hard label says so;
    `area_under_curve` is that of the shares.
    """
    pairs = [
        (share, is_right > 0.5)
        for label, row in zip(labels, truth, strict=True)
        if row
        for share, is_right in zip(label.shares, row, strict=True)
        if share is not None and is_right is not None
    ]
    if not pairs:
        return {}
    metrics = {
        "steps": float(len(pairs)),
        "agreement": fmean([float((share > 0) == is_right) for share, is_right in pairs]),
    }
    for name, side in (("right_confirmed", True), ("wrong_found", False)):
        hits = [float((share > 0) == side) for share, is_right in pairs if is_right == side]
        if hits:
            metrics[name] = fmean(hits)
    area = area_under_curve([share for share, _ in pairs], [is_right for _, is_right in pairs])
    return metrics if area is None else {**metrics, "area_under_curve": area}


def labelled_row(
    solution: Solution, labels: StepLabels, separator: str, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """As `whet.data.step_rows` reads it; `provenance` names the model and its settings."""
    prompt = solution.prompt
    prompt_value: Any = prompt.text if prompt.text is not None else [dict(message) for message in prompt.messages]
    answer = {} if prompt.answer is None else {"answer": prompt.answer}
    return {
        **{"id": prompt.id, "prompt": prompt_value, **answer, "steps": list(solution.steps)},
        **{"labels": list(labels.hard), "shares": list(labels.shares), "separator": separator},
        **({"truth": list(solution.truth)} if solution.truth else {}),
        "labelled": dict(provenance),
        "cost": {
            **{"completions": labels.completions, "tokens": labels.tokens},
            "solution_tokens": 0 if solution.completion is None else solution.completion.num_actions,
        },
    }


def _open(solution: Solution) -> tuple[tuple[int, ...], ...]:
    """The prefixes that can still be completed."""
    return solution.prefixes if solution.completion is None else solution.prefixes[:-1]


def _complete(requests: Sequence[Request], completer: Completer) -> list[Sample]:
    """Generate, in one call per token budget: a request near the end of the context gets what room there is."""
    rooms: dict[int, list[int]] = {}
    for number, request in enumerate(requests):
        room = min(completer.sampling.max_new_tokens, completer.context - len(request.tokens))
        rooms.setdefault(room, []).append(number)
    samples_by_number: dict[int, Sample] = {}
    for room, numbers in rooms.items():
        samples = completer.engine.generate(
            [requests[number] for number in numbers], replace(completer.sampling, max_new_tokens=room)
        )
        samples_by_number.update(zip(numbers, samples, strict=True))
    return [samples_by_number[number] for number in range(len(requests))]


def _whole(sample: Sample, opening: int, decode: Decode) -> Sample:
    """The completion with what it completes, as one completion."""
    action = torch.arange(len(sample.tokens)) >= opening
    return replace(sample, action=action, completion=decode(sample.tokens[opening:].tolist()), support=None)


def _least_scores(steps: Sequence[tuple[int, float]], cuts: Sequence[int]) -> tuple[float | None, ...]:
    """The least score of what ends inside each step; None where nothing does."""
    least, start = [], 0
    for cut in cuts:
        inside = [score for end, score in steps if start < end <= cut]
        least.append(min(inside) if inside else None)
        start = cut
    return tuple(least)
