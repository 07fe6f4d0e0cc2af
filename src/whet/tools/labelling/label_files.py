"""Files that a model labels: steps of solutions, by rollouts that continue them, and completions to imitate.

Wang 2023 (2312.08935), Math-Shepherd: from the end of each step a model writes several completions. The hard label of
the step is 1 where any of them is right, the soft one the share that is. Both say what the completer can make of a step
and not whether it is right: a strong one repairs errors, a weak one fails after a right step, and once the answer
stands it only copies it. Of completions to imitate, `at_least` keeps those of that score: a teacher's mistakes stay
out.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO, NamedTuple

import torch

from whet.data.chat import prompt_tokens, text_tokens
from whet.data.step_rows import LabelledSteps, common_separator, stepped_from
from whet.data.tasks.contrast import STEP, task_stepped
from whet.model.checkpoint import weights_digest
from whet.protocols import Engine
from whet.record.metrics.reward_model import area_under_curve
from whet.reward.combine import RewardPart
from whet.reward.find import find_reward
from whet.reward.learned.process import EMPTY_LINE, step_ends, step_texts
from whet.reward.steps import StepScorer, steps_of, tokens_until
from whet.rollout.collect import Score, draw_and_score
from whet.rollout.episode_runner import EpisodePlan
from whet.rollout.episodes import EnvironmentRunner
from whet.rollout.seed import request_seed
from whet.rollout.session import stream_of
from whet.training.assembly.prompts import load_prompts
from whet.training.assembly.rewards import bind_judges, build_reward_parts, build_scorer, reward_summary
from whet.training.assembly.rows import read_usable
from whet.training.assembly.runtime import Runtime, encode_prompts, load_runtime, sampling_from
from whet.training.config import EvaluationConfig
from whet.types import Group, Prompt, Request, Sample, Sampling, StopReason, WhetError

Decode = Callable[[list[int]], str]
CHUNK_SIZE = 16  # prompts, or given solutions, of one chunk: always the same ones, so that resuming changes nothing

COSTS = ("completions", "tokens", "solution_tokens")


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
    budget = completer.sampling.max_new_tokens
    requests = [
        (row, step, Request(tokens, request_seed(*seed, row, step, number), max_new_tokens=min(budget, room)))
        for row, solution in enumerate(solutions)
        for step, tokens in enumerate(_open(solution))
        for number in range(completer.rollouts)
        if (room := completer.context - len(tokens)) > 0
    ]
    prompts = [solutions[row].prompt for row, _, _ in requests]
    continuations, whole = _completed(requests, prompts, solutions, completer)
    scored = completer.score(prompts, whole) if whole else []
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
    """A row as `whet.data.step_rows` reads it; `provenance` names the model and its settings."""
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


def _completed(
    requests: Sequence[tuple[int, int, Request]],
    prompts: Sequence[Prompt],
    solutions: Sequence[Solution],
    completer: Completer,
) -> tuple[list[Sample], list[Sample]]:
    """The continuations alone, and with what they continue; those are judged as they end, where that can be."""
    whole: dict[int, Sample] = {}
    ahead = getattr(completer.score, "ahead", None)
    hear = None if ahead is None else ahead.begin(prompts)

    def ended(number: int, sample: Sample) -> None:
        row, _, _ = requests[number]
        whole[number] = _whole(sample, solutions[row].opening, completer.decode)
        if hear is not None:
            hear(number, (whole[number],))

    asked = [request for _, _, request in requests]
    if not asked:
        return [], []
    stream = stream_of(completer.engine)
    if stream is not None:
        continuations = stream(asked, completer.sampling, ended)
    else:
        continuations = completer.engine.generate(asked, completer.sampling)
        for number, sample in enumerate(continuations):
            ended(number, sample)
    return continuations, [whole[number] for number in range(len(asked))]


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


@dataclass(frozen=True)
class LabelSpec:
    """What to label, and how."""

    out: Path
    rollouts: int = 8
    count: int = 200  # prompts, or given solutions
    per_prompt: int = 1  # solutions drawn for a prompt
    solutions: str = ""  # file or task whose solutions are labelled; empty: the model's own
    separator: str = ""  # empty: the data's own
    right_from: float = 1.0  # a completion with at least this outcome is right
    truth: str = ""  # reward that judges steps, to compare with


@dataclass(frozen=True)
class LabelProgress:
    """How far a labelling run is."""

    chunks: int  # in the file
    total: int
    done_now: int  # chunks of this call, as all that follows
    completions: int
    tokens: int
    seconds: float


class LabelledChunk(NamedTuple):
    """The rows of one chunk, and what they cost."""

    rows: Sequence[Mapping[str, Any]]
    completions: int
    tokens: int


@dataclass(frozen=True)
class LabelReport:
    """What the file holds and what it cost; only `seconds` is of this call."""

    out: Path
    requested: int  # solutions; a completion without a single step has no row
    rows: tuple[Mapping[str, Any], ...]
    seconds: float

    def record(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        cost = {name: sum(row["cost"][name] for row in self.rows) for name in COSTS}
        labels = [StepLabels(tuple(row["shares"]), 0, 0) for row in self.rows]
        shares = [share for label in labels for share in label.shares if share is not None]
        steps = sum(len(label.shares) for label in labels)
        return {
            **{"file": str(self.out), "solutions": len(self.rows), "without_steps": self.requested - len(self.rows)},
            **{"steps": steps, "unlabelled": steps - len(shares)},
            "right": fmean([float(share > 0) for share in shares]) if shares else None,
            "mean_share": fmean(shares) if shares else None,
            **{**cost, "tokens_per_label": cost["tokens"] / max(len(shares), 1), "seconds": self.seconds},
            "truth": agreement(labels, [row.get("truth", ()) for row in self.rows]),
        }


def label_steps(config: EvaluationConfig, spec: LabelSpec, show: Callable[[LabelProgress], None]) -> LabelReport:
    """Label the steps of solutions by rollouts, into `spec.out`; a file that was started is continued."""
    _check(config, spec)
    config = _with_count(config, spec)
    parts = build_reward_parts(config, wanted=True)
    items: Sequence[Any] = (
        _given_solutions(config) if spec.solutions else load_prompts(config, evaluation=False)[: spec.count]
    )
    runtime = load_runtime(config)
    separator = spec.separator or _own_separator(config, items if spec.solutions else ())
    completer = _completer(config, spec, runtime, bind_judges(parts, runtime.engine, runtime.loaded.tokenizer))
    if not spec.solutions:
        encode_prompts(runtime, items, completer.sampling)  # refuses a prompt that does not fit before the work begins
    provenance = {**_provenance(config, spec, runtime), "reward": reward_summary(parts), "separator": separator}

    def label(chunk: Sequence[Any], seed: tuple[int, int]) -> LabelledChunk:
        if spec.solutions:
            solutions = [given_solution(runtime.loaded.tokenizer, row, separator) for row in chunk]
        else:
            solutions = _draw_solutions(chunk, spec, runtime, completer, seed, separator)
        labels = step_labels(solutions, completer, seed)
        rows = [labelled_row(*both, separator, provenance) for both in zip(solutions, labels, strict=True)]
        return LabelledChunk(
            [row for row in rows if row["steps"]],
            sum(label_set.completions for label_set in labels),
            sum(label_set.tokens for label_set in labels),
        )

    rows, seconds = write_chunks(spec.out, provenance, "whet label steps", items, config.seed, label, show)
    return LabelReport(spec.out, len(items) * spec.per_prompt, rows, seconds)


def write_chunks(
    out: Path,
    provenance: Mapping[str, Any],
    command: str,
    items: Sequence[Any],
    seed: int,
    label: Callable[[Sequence[Any], tuple[int, int]], LabelledChunk],
    show: Callable[[LabelProgress], None],
) -> tuple[tuple[Mapping[str, Any], ...], float]:
    """Label the items chunk by chunk, each with a seed of its own; all rows of the file, and the seconds it took.

    A file that was started is continued after its last whole chunk.
    """
    chunks = [items[start : start + CHUNK_SIZE] for start in range(0, len(items), CHUNK_SIZE)]
    started, completions, tokens = time.monotonic(), 0, 0
    with _open_output(out, provenance, command) as (file, first):
        for number in range(first, len(chunks)):
            chunk = label(chunks[number], (seed, number))
            lines = [json.dumps({**row, "chunk": number}, ensure_ascii=False) + "\n" for row in chunk.rows]
            file.write("".join(lines).encode())
            file.flush()
            completions, tokens = completions + chunk.completions, tokens + chunk.tokens
            done, seconds = number + 1, time.monotonic() - started
            show(LabelProgress(done, len(chunks), done - first, completions, tokens, seconds))
    rows = tuple(json.loads(line) for line in out.read_bytes().split(b"\n") if line)
    return rows, time.monotonic() - started


def _completer(config: EvaluationConfig, spec: LabelSpec, runtime: Runtime, parts: Sequence[RewardPart]) -> Completer:
    tokenizer: Any = runtime.loaded.tokenizer
    return Completer(
        runtime.engine,
        build_scorer(config, parts),
        partial(tokenizer.decode, skip_special_tokens=True),
        sampling_from(config.sampling),
        spec.rollouts,
        runtime.loaded.context,
        spec.right_from,
    )


def _provenance(config: EvaluationConfig, spec: LabelSpec, runtime: Runtime) -> dict[str, Any]:
    """The model and the settings of the completions: the same for every row of a file."""
    return {
        **model_facts(config, runtime),
        **{"rollouts": spec.rollouts, "right_from": spec.right_from},
        **{"solutions": spec.solutions or config.data.source, "each": spec.per_prompt},
    }


def model_facts(config: EvaluationConfig, runtime: Runtime) -> dict[str, Any]:
    """The model that writes the completions and its sampling, as facts."""
    model: Any = runtime.loaded.model
    weights = runtime.loaded.source if model is None else weights_digest(model)[:12]  # a server shows no weights
    return {
        **{"model": config.model.name, "weights": weights, "temperature": config.sampling.temperature},
        **{"seed": config.seed, "max_new_tokens": config.sampling.max_new_tokens},
    }


def _check(config: EvaluationConfig, spec: LabelSpec) -> None:
    if config.sampling.temperature == 0:
        raise WhetError(
            "sampling.temperature is 0: all completions of a step would be equal; give --set sampling.temperature=1.0"
        )
    if spec.solutions and spec.per_prompt != 1:
        raise WhetError(
            f"--each {spec.per_prompt} is how many solutions are drawn for a prompt; drop it with --solutions"
        )
    if spec.solutions and spec.truth:
        raise WhetError("--truth judges the model's own solutions, and given ones bring their labels; drop one of them")
    if spec.out.suffix != ".jsonl":
        raise WhetError(f"--out {spec.out}: the labels are written as JSON lines; give a name that ends in .jsonl")
    if not spec.out.parent.is_dir():
        raise WhetError(f"--out {spec.out}: there is no folder {spec.out.parent}; make it, or give another")


def _with_count(config: EvaluationConfig, spec: LabelSpec) -> EvaluationConfig:
    changed: dict[str, Any] = {"count": spec.count, "limit": spec.count}
    if spec.solutions:
        changed["source"] = spec.solutions
    return config.model_copy(update={"data": config.data.model_copy(update=changed)})


def _given_solutions(config: EvaluationConfig) -> list[LabelledSteps]:
    """Solutions of a file, with or without labels; or of a task, with errors put in."""
    data = config.data
    if not data.parsed_source.is_task:
        return read_usable(data, data.source, lambda _: partial(stepped_from, need_labels=False), data.limit)
    rows = data.parsed_source.from_tasks(
        lambda task, count, difficulty: task_stepped(task, "train", count, config.seed, difficulty),
        data.count,
        data.difficulty,
    )
    return rows[: data.count]


def _own_separator(config: EvaluationConfig, solutions: Sequence[LabelledSteps]) -> str:
    if config.data.parsed_source.is_task:
        return STEP
    return (common_separator(solutions) if solutions else None) or EMPTY_LINE


def _draw_solutions(
    prompts: Sequence[Prompt],
    spec: LabelSpec,
    runtime: Runtime,
    completer: Completer,
    seed: tuple[int, ...],
    separator: str,
) -> list[Solution]:
    """The model's own solutions, cut into steps."""
    tokens = encode_prompts(runtime, prompts, completer.sampling)
    runner = EnvironmentRunner(runtime.engine)
    plan = EpisodePlan(prompts, tokens, spec.per_prompt, completer.sampling, seed)
    groups = draw_and_score(runner, plan, completer.score)
    truth = None
    if spec.truth:
        truth = steps_of(find_reward(spec.truth))
        if truth is None:
            raise WhetError(f"--truth {spec.truth}: that reward judges no steps; give one that does, as working_steps")
    return [
        cut_completion(
            group.prompt if spec.per_prompt == 1 else replace(group.prompt, id=f"{group.prompt.id}/{number}"),
            sample,
            separator,
            completer.decode,
            truth,
        )
        for group in groups
        for number, sample in enumerate(group.samples)
    ]


@contextmanager
def _open_output(out: Path, provenance: Mapping[str, Any], command: str) -> Iterator[tuple[BinaryIO, int]]:
    """The file, cut to its whole chunks, and the number of the chunk that comes next."""
    with open(out, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WhetError(f"{out}: another process writes it; wait for it, or give another --out") from error
        file.seek(0)
        # the last chunk may be torn: it is labelled again, to the same bytes
        lines = file.read().split(b"\n")[:-1]
        last = _chunk(out, len(lines), lines[-1], provenance, command) if lines else 0
        whole_lines = next(
            (at for at, line in enumerate(lines) if _chunk(out, at + 1, line, provenance, command) == last), len(lines)
        )
        file.truncate(sum(len(line) + 1 for line in lines[:whole_lines]))
        file.seek(0, os.SEEK_END)
        yield file, last


def _chunk(out: Path, number: int, line: bytes, provenance: Mapping[str, Any], command: str) -> int:
    """The chunk that a line belongs to; one that this command would not have written is an error."""
    try:
        row = json.loads(line)
        before, chunk = dict(row["labelled"]), int(row["chunk"])
    except (ValueError, KeyError, TypeError) as error:
        raise WhetError(
            f"{out}:{number}: was not written by `{command}`; give another --out, or remove the file"
        ) from error
    other = [name for name in provenance if before.get(name) != provenance[name]]
    if other:
        was, now = before.get(other[0]), provenance[other[0]]
        raise WhetError(
            f"{out}:{number}: was labelled with {other[0]} {was!r}, and now it is {now!r}; give another --out, or what "
            "it was begun with"
        )
    return chunk


@dataclass(frozen=True)
class CompletionSpec:
    """What to write, and how much of it to keep."""

    out: Path
    count: int = 200  # prompts
    per_prompt: int = 1  # completions per prompt
    at_least: float | None = None  # the score of a completion that is kept; None: all are, scored or not


@dataclass(frozen=True)
class CompletionReport:
    """What the file holds; only `seconds` is of this call."""

    out: Path
    written: int
    rows: tuple[Mapping[str, Any], ...]
    seconds: float

    def record(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "file": str(self.out),
            "completions": len(self.rows),
            "left_out": self.written - len(self.rows),
            "tokens": sum(row["tokens"] for row in self.rows),
            "seconds": self.seconds,
        }


def write_completions(
    config: EvaluationConfig, spec: CompletionSpec, show: Callable[[LabelProgress], None]
) -> CompletionReport:
    """Completions to training prompts, into `spec.out`; a file that was started is continued."""
    if spec.out.suffix != ".jsonl" or not spec.out.parent.is_dir():
        raise WhetError(f"--out {spec.out}: give a file that ends in .jsonl, in a folder that exists")
    if spec.per_prompt > 1 and config.sampling.temperature == 0:
        raise WhetError("several completions at temperature 0 are all equal; give --set sampling.temperature=1.0")
    changed = {"count": spec.count, "limit": spec.count}
    config = config.model_copy(update={"data": config.data.model_copy(update=changed)})
    parts = build_reward_parts(config, wanted=True) if spec.at_least is not None else []
    prompts = load_prompts(config, evaluation=False)[: spec.count]
    runtime = load_runtime(config)
    score: Score = unscored
    if parts:
        score = build_scorer(config, bind_judges(parts, runtime.engine, runtime.loaded.tokenizer))
    provenance = {
        **model_facts(config, runtime),
        **{"each": spec.per_prompt, "source": config.data.source, "at_least": spec.at_least},
        "reward": reward_summary(parts) if parts else "",
    }

    def label(chunk: Sequence[Prompt], seed: tuple[int, int]) -> LabelledChunk:
        sampling = sampling_from(config.sampling)
        tokens = encode_prompts(runtime, chunk, sampling)
        runner = EnvironmentRunner(runtime.engine)
        groups = draw_and_score(runner, EpisodePlan(chunk, tokens, spec.per_prompt, sampling, seed), score)
        rows = [{**row, "labelled": provenance} for row in _rows(groups, spec.at_least)]
        written = [sample.num_actions for group in groups for sample in group.samples]
        return LabelledChunk(rows, len(written), sum(written))

    command = "whet label completions"
    rows, seconds = write_chunks(spec.out, provenance, command, prompts, config.seed, label, show)
    return CompletionReport(spec.out, len(prompts) * spec.per_prompt, rows, seconds)


def unscored(prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[Sample]:
    """The samples as they are, where nobody asks what they are worth."""
    return list(samples)


def _rows(groups: Sequence[Group], at_least: float | None) -> list[dict[str, Any]]:
    """One row per completion worth keeping; one that its budget cut off teaches nobody how to end."""
    rows = []
    for group in groups:
        prompt = group.prompt
        for number, sample in enumerate(group.samples):
            if sample.stop is StopReason.LENGTH or not sample.completion.strip():
                continue
            if at_least is not None and (sample.reward is None or sample.reward < at_least):
                continue
            asked: Any = prompt.text if prompt.text is not None else [dict(message) for message in prompt.messages]
            rows.append(
                {
                    "id": prompt.id if len(group.samples) == 1 else f"{prompt.id}/{number}",
                    "prompt": asked,
                    "completion": sample.completion,
                    "tokens": sample.num_actions,
                    **({} if sample.reward is None else {"score": sample.reward}),
                }
            )
    return rows
