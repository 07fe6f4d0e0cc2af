"""Multiple choice without writing a word: the model chooses what it finds likeliest after the question.

As lm-evaluation-harness has it: `acc` goes by the log-likelihood of a choice, `acc_norm` by that of each of its
characters. The log-probabilities are those of the trainer's forward pass, which reads a question once for all of its
choices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from whet.data.multiple_choice import choice_questions
from whet.data.source import parse_source
from whet.data.usable import chosen_facts, evenly
from whet.record.metrics.eval_summary import Attempt, summarized
from whet.tools.evaluation.measure import EvalPlan, EvalProgress, MeasuredModel
from whet.training.assembly.forms import is_served
from whet.training.assembly.prompts import require_column
from whet.training.assembly.runtime import Runtime, load_runtime
from whet.training.completion_logp import choice_logp
from whet.training.config import EvaluationConfig
from whet.types import Group, Prompt, WhetError

ACC, ACC_NORM = "acc", "acc_norm"
CHUNK = 1024  # questions between two lines of progress


def asks_choices(config: EvaluationConfig) -> bool:
    """True where the task is multiple choice, scored by log-likelihood."""
    return parse_source(config.eval.source or config.data.source).choices is not None


def check_choices(config: EvaluationConfig, plan: EvalPlan) -> None:
    """Refuse what is for completions: none is written."""
    unused = {
        "--samples": plan.samples > 1,
        "--budget": bool(plan.budgets),
        "--refusals": plan.refusals,
        "--confidence": bool(plan.confidence),
        "--rerank": config.rerank != type(config.rerank)(),
        "--reward": bool(config.reward.parts or config.reward.template),
        "--shots-from": bool(plan.style.shots_from),
        "data.as_chat": config.data.as_chat is True,
        "data.columns": bool(config.data.columns),
        "--env": not config.env.is_single,
    }
    names = [name for name, is_given in unused.items() if is_given]
    if names:
        raise WhetError(
            f"{names[0]} has no effect on {config.eval.source}: its choices are scored as plain text by their "
            "log-likelihood, and nothing is written; drop it"
        )
    if is_served(config):
        raise WhetError(
            f"{config.eval.source}: log-likelihoods need a model that runs here, and sampling.engine="
            f"{config.sampling.engine} asks a server; give the model itself"
        )


def measured_choices(
    config: EvaluationConfig,
    plan: EvalPlan,
    runtime: Runtime | None = None,
    on_progress: Callable[[EvalProgress], None] = lambda progress: None,
) -> tuple[MeasuredModel, Runtime]:
    """The verdicts on every question, and the model that gave them; `runtime` is that of the same model."""
    check_choices(config, plan)
    source = parse_source(config.eval.source)
    form = source.choices
    assert form is not None  # asks_choices says so
    known = choice_questions(form, source.name, plan.style.shots)
    if not config.eval.prompts:
        raise WhetError("eval.prompts is 0; give the number of questions to ask, such as eval.prompts=1000")
    questions = evenly(known, config.eval.prompts)
    require_column(questions, config.eval.by, config.eval.source)
    runtime = runtime or load_runtime(config)
    scores: list[list[float]] = []
    started = time.monotonic()
    for start in range(0, len(questions), CHUNK):
        part = questions[start : start + CHUNK]
        scores += choice_logp(runtime.policy, runtime.tokenizer, part, runtime.loaded.context)
        if len(questions) > CHUNK:
            right = [right_choice(*pair, form.by_length) for pair in zip(questions, scores, strict=False)]
            seconds = time.monotonic() - started
            on_progress(EvalProgress(len(scores), len(questions), 0, seconds, sum(right) / len(right)))
    verdicts = {
        name: [right_choice(question, row, by_length) for question, row in zip(questions, scores, strict=True)]
        for name, by_length in ((ACC, False), (ACC_NORM, True))
    }
    headline = ACC_NORM if form.by_length else ACC
    attempts = [(Attempt(outcome=right, tokens=0, finished=True),) for right in verdicts[headline]]
    by = config.eval.by
    summary = summarized(attempts, [str(question.meta[by]) for question in questions] if by else [], readings=verdicts)
    rows = [
        _row(question, row, {name: values[number] for name, values in verdicts.items()})
        for number, (question, row) in enumerate(zip(questions, scores, strict=True))
    ]
    measured = MeasuredModel(
        model=config.model.name,
        task=config.eval.source,
        groups=tuple(Group(question, ()) for question in questions),
        attempts=tuple(attempts),
        metrics={
            "prompts": float(len(questions)),
            "accuracy": summary.value.value,
            **{f"accuracy_{name}": value.value for name, value in summary.tasks.items()},
            **{name: value.value for name, value in summary.readings.items()},
        },
        summary=summary,
        facts={
            "scoring": f"log-likelihood of each choice behind plain text; accuracy is {headline}",
            **chosen_facts(questions),
        },
        temperature=0.0,
        rows=tuple(rows),
    )
    return measured, runtime


def right_choice(question: Prompt, logp: Sequence[float], by_length: bool) -> float:
    """1 where the likeliest choice is the right one, else 0; of equal ones the first counts."""
    values = [
        value / len(choice) if by_length else value
        for value, choice in zip(logp, question.meta["choices"], strict=True)
    ]
    return float(values.index(max(values)) == question.meta["right"])


def _row(question: Prompt, logp: Sequence[float], verdicts: dict[str, float]) -> dict[str, Any]:
    return {
        "prompt_id": question.id,
        "prompt": question.text,
        "choices": question.meta["choices"],
        "right": question.meta["right"],
        "logp": list(logp),
        **verdicts,
    }
