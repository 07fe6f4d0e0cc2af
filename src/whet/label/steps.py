"""Labels for the steps of a solution by what comes of them. Wang 2023 (2312.08935), Math-Shepherd.

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
from whet.metrics.reward_model import area_under_curve
from whet.protocols import Engine
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
    completion: Sample | None = None  # scored, where the last step ended it; None: nobody knows how it ends
    truth: tuple[float | None, ...] = ()  # of each step, where somebody knows


@dataclass(frozen=True)
class Completer:
    """Who writes the completions and who judges them."""

    engine: Engine
    score: Score
    decode: Decode  # without special tokens
    sampling: Sampling
    rollouts: int  # completions from the end of each step
    context: int  # tokens
    right_from: float = 1.0  # the outcome from which on a completion is right


@dataclass(frozen=True)
class StepLabels:
    """What was found out about a solution, and what it took."""

    shares: tuple[float | None, ...]  # of right completions; None where none could be judged
    completions: int
    tokens: int  # generated

    @property
    def hard(self) -> tuple[float | None, ...]:
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
    known = _known(truth(prompt, completion.completion), cuts) if truth is not None else ()
    return Solution(
        prompt, opening, tuple(step_texts(completion.completion, cuts, separator)), prefixes, completion, known
    )


def given_solution(tokenizer: Any, row: LabelledSteps, separator: str) -> Solution:
    """Steps behind one another, the separator between them."""
    tokens = prompt_tokens(tokenizer, row.prompt)
    opening, prefixes = len(tokens), []
    mark = text_tokens(tokenizer, separator)
    for number, step in enumerate(row.steps):
        is_last = number == len(row.steps) - 1
        tokens = (*tokens, *text_tokens(tokenizer, step.strip()), *(() if is_last else mark))
        prefixes.append(tokens)
    return Solution(row.prompt, opening, row.steps, tuple(prefixes), None, row.labels)


def step_labels(solutions: Sequence[Solution], completer: Completer, seed: tuple[int, ...]) -> list[StepLabels]:
    """All completions of all solutions, written and judged together; `seed` belongs to these solutions alone.

    The last step of a finished completion is judged by the completion itself: there is nothing left to write.
    """
    asked = [
        (row, step, Request(tokens, request_seed(*seed, row, step, number)))
        for row, solution in enumerate(solutions)
        for step, tokens in enumerate(_open(solution))
        for number in range(completer.rollouts)
        if len(tokens) < completer.context
    ]
    written = _written([request for _, _, request in asked], completer)
    whole = [
        _whole(sample, solutions[row].opening, completer.decode)
        for (row, _, _), sample in zip(asked, written, strict=True)
    ]
    judged = completer.score([solutions[row].prompt for row, _, _ in asked], whole) if whole else []
    outcomes: dict[tuple[int, int], list[float]] = {}
    cost = [[0, 0] for _ in solutions]
    for (row, step, _), alone, sample in zip(asked, written, judged, strict=True):
        cost[row][0] += 1
        cost[row][1] += alone.num_actions
        if sample.outcome is not None:
            outcomes.setdefault((row, step), []).append(float(sample.outcome >= completer.right_from))
    found = []
    for row, solution in enumerate(solutions):
        shares: list[float | None] = [
            fmean(outcomes[row, step]) if (row, step) in outcomes else None for step in range(len(_open(solution)))
        ]
        if solution.completion is not None and solution.steps:
            end = solution.completion.outcome
            shares.append(None if end is None else float(end >= completer.right_from))
        found.append(StepLabels(tuple(shares), *cost[row]))
    return found


def agreement(labels: Sequence[StepLabels], truth: Sequence[Sequence[float | None]]) -> dict[str, float]:
    """How labels compare with the truth, over the steps that have both; nothing where there are none.

    `right_confirmed` and `wrong_found` are the shares of right and of wrong steps whose hard label says so;
    `area_under_curve` is that of the shares.
    """
    pairs = [
        (share, known > 0.5)
        for label, row in zip(labels, truth, strict=True)
        if row
        for share, known in zip(label.shares, row, strict=True)
        if share is not None and known is not None
    ]
    if not pairs:
        return {}
    found = {"steps": float(len(pairs)), "agreement": fmean([float((share > 0) == known) for share, known in pairs])}
    for name, side in (("right_confirmed", True), ("wrong_found", False)):
        hits = [float((share > 0) == side) for share, known in pairs if known == side]
        if hits:
            found[name] = fmean(hits)
    area = area_under_curve([share for share, _ in pairs], [known for _, known in pairs])
    return found if area is None else {**found, "area_under_curve": area}


def labelled_row(
    solution: Solution, labels: StepLabels, separator: str, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """As `whet.data.step_rows` reads it; `provenance` says who completed, and how."""
    prompt = solution.prompt
    said: Any = prompt.text if prompt.text is not None else [dict(message) for message in prompt.messages]
    known = {} if prompt.answer is None else {"answer": prompt.answer}
    return {
        **{"id": prompt.id, "prompt": said, **known, "steps": list(solution.steps)},
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


def _written(requests: Sequence[Request], completer: Completer) -> list[Sample]:
    """In one call where all have room for the whole budget; one that has less gets what there is."""
    rooms: dict[int, list[int]] = {}
    for number, request in enumerate(requests):
        room = min(completer.sampling.max_new_tokens, completer.context - len(request.tokens))
        rooms.setdefault(room, []).append(number)
    found: dict[int, Sample] = {}
    for room, numbers in rooms.items():
        samples = completer.engine.generate(
            [requests[number] for number in numbers], replace(completer.sampling, max_new_tokens=room)
        )
        found.update(zip(numbers, samples, strict=True))
    return [found[number] for number in range(len(requests))]


def _whole(sample: Sample, opening: int, decode: Decode) -> Sample:
    """The completion with what it completes, as one completion."""
    action = torch.arange(len(sample.tokens)) >= opening
    return replace(sample, action=action, completion=decode(sample.tokens[opening:].tolist()), support=None)


def _known(steps: Sequence[tuple[int, float]], cuts: Sequence[int]) -> tuple[float | None, ...]:
    """The least score of what ends inside each step; None where nothing does."""
    found, start = [], 0
    for cut in cuts:
        inside = [score for end, score in steps if start < end <= cut]
        found.append(min(inside) if inside else None)
        start = cut
    return tuple(found)
