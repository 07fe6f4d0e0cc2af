"""Several models on several tasks: each measured on the same prompts, then compared pair by pair."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.pages.eval_report import EvalReport, ModelEval
from whet.pages.rerank import Reranking
from whet.record.metrics.intervals import paired_tests
from whet.tools.evaluation.likelihood import asks_choices, check_choices, measured_choices
from whet.tools.evaluation.measure import (
    PARTIAL,
    CompletionFile,
    EvalPlan,
    EvalProgress,
    MeasuredModel,
    measured,
    prepared,
)
from whet.tools.evaluation.reranking import RerankPlan, rerank_groups, rerank_plan
from whet.training.assembly.forms import PromptForm, prompt_form
from whet.training.assembly.runtime import Runtime
from whet.training.config import EvaluationConfig
from whet.types import WhetError


@dataclass(frozen=True)
class EvalCell:
    """One model on one task, and the file of its completions."""

    config: EvaluationConfig
    out: Path

    @property
    def model(self) -> str:
        """The model's name, as given."""
        return self.config.model.name

    @property
    def task(self) -> str:
        """The task or file that the prompts come from."""
        return self.config.eval.source or self.config.data.source


OnCell = Callable[[EvalCell, EvalProgress], None]


def evaluate_cells(
    cells: Sequence[EvalCell], plan: EvalPlan, on_progress: OnCell, tell: Callable[[str], None]
) -> EvalReport:
    """Measure every model on every task; the completions are in their files when this returns.

    The cells of one model should stand next to each other: it is read once.
    """
    reranks = _check(cells, plan)
    results: list[tuple[EvalCell, MeasuredModel, Reranking | None]] = []
    runtime: Runtime | None = None
    try:
        for number, cell in enumerate(cells):
            if number and cell.model != cells[number - 1].model:
                runtime = None
                gc.collect()  # one model at a time in memory
            result, reranking, runtime = _measured(cell, plan, reranks[number], runtime, on_progress, tell)
            results.append((cell, result, reranking))
            _require_same_prompts([result for _, result, _ in results])
    except KeyboardInterrupt as stopped:
        unfinished = [cell for cell in cells if cell.out.with_name(cell.out.name + PARTIAL).exists()]
        if unfinished:
            stopped.add_note(
                f"the completions so far are kept next to {unfinished[-1].out}; run the same command to continue"
            )
        raise
    for cell, result, _ in results:
        _write(cell.out, result)
    for cell in cells:
        CompletionFile.discard(cell.out)
    return _report(results)


def _measured(
    cell: EvalCell,
    plan: EvalPlan,
    rerank: RerankPlan | None,
    runtime: Runtime | None,
    on_progress: OnCell,
    tell: Callable[[str], None],
) -> tuple[MeasuredModel, Reranking | None, Runtime]:
    """One cell; `runtime` is that of the cell before it, where the model is the same."""
    if asks_choices(cell.config):
        result, runtime = measured_choices(cell.config, plan, runtime, lambda now: on_progress(cell, now))
        return result, None, runtime
    setup = prepared(cell.config, plan, runtime)
    result = measured(setup, cell.out, lambda now: on_progress(cell, now), tell)
    reranking = None
    if rerank is not None:
        parts = (setup.runtime, setup.evaluator)
        reranking = rerank_groups(setup.config, rerank, parts, result.groups, result.summary.measure)
    return result, reranking, setup.runtime


def _check(cells: Sequence[EvalCell], plan: EvalPlan) -> list[RerankPlan | None]:
    """Refuse before the first model is read what would fail at the last; the scorers of each cell."""
    for cell in cells:
        plan.check(cell.config)
        if asks_choices(cell.config):
            check_choices(cell.config, plan)
    tasks: dict[str, list[str]] = {}
    for cell in cells:
        tasks.setdefault(cell.model, []).append(cell.task)
    first, *others = tasks
    for other in others:
        if tasks[other] != tasks[first]:
            raise WhetError(
                f"{first} is evaluated on {', '.join(tasks[first])} and {other} on {', '.join(tasks[other])}, which "
                "cannot be compared; give --data for all of them"
            )
    _require_same_form(cells, plan)
    places = [cell.out for cell in cells]
    keys = [(cell.model, cell.task) for cell in cells]
    for key, path in zip(keys, places, strict=True):
        if keys.count(key) > 1:
            raise WhetError(f"{key[0]} on {key[1]} is given twice; drop one of them")
        if places.count(path) > 1:
            raise WhetError(f"two models would write their completions to {path}; give --out FOLDER")
    chosen = cells[0].config.rerank  # the same for all: it is what the command line says
    scorers = rerank_plan(cells[0].config, plan.samples) if chosen != type(chosen)() else None
    return [scorers if cell.config.rerank == chosen else rerank_plan(cell.config, plan.samples) for cell in cells]


def _require_same_form(cells: Sequence[EvalCell], plan: EvalPlan) -> None:
    """A benchmark is asked as each model knows it: two that know different forms are told before one is measured."""
    asked: dict[str, tuple[EvalCell, PromptForm]] = {}
    for cell in cells:
        if asks_choices(cell.config) or plan.style.plain:
            continue
        form = prompt_form(cell.config, cell.task)
        other, known = asked.setdefault(cell.task, (cell, form))
        if (form.as_chat, form.says_answer_form) != (known.as_chat, known.says_answer_form):
            raise WhetError(
                f"{other.model} would be asked {cell.task} as {known.words or 'plain text'}, and {cell.model} as "
                f"{form.words or 'plain text'}, which cannot be compared; give --set data.as_chat=false"
            )


def _require_same_prompts(results: Sequence[MeasuredModel]) -> None:
    newest = results[-1]
    for other in results[:-1]:
        if other.model == newest.model or other.task != newest.task:
            continue
        theirs, ours = other.prompt_keys(), newest.prompt_keys()
        if theirs != ours:
            apart = next((one for one, two in zip(theirs, ours, strict=False) if one != two), (theirs + ours)[-1])[0]
            raise WhetError(
                f"{other.model} and {newest.model} were asked different prompts ({len(theirs)} and {len(ours)}; the "
                f"first that differs is {apart!r}), and can only be compared on the same; give --data for all of them, "
                "and --set data.unusable=stop if one leaves out prompts"
            )


def _write(path: Path, result: MeasuredModel) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in result.rows), encoding="utf-8")
    except OSError as error:
        raise WhetError(f"--out {path}: cannot write the completions there ({error.strerror})") from error


def _report(results: Sequence[tuple[EvalCell, MeasuredModel, Reranking | None]]) -> EvalReport:
    evals = tuple(
        ModelEval(
            model=result.model,
            task=result.task,
            metrics=result.metrics,
            summary=result.summary,
            temperature=result.temperature,
            facts=result.facts,
            reranking=reranking,
            completions=str(cell.out),
        )
        for cell, result, reranking in results
    )
    pairs = {}
    for task in dict.fromkeys(model_eval.task for model_eval in evals):
        outcomes = {result.model: result.outcomes for _, result, _ in results if result.task == task}
        if len(outcomes) > 1:
            pairs[task] = paired_tests(outcomes)
    return EvalReport(evals, pairs)
