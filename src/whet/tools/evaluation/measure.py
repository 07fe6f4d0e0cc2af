"""A model on held-out prompts, chunk by chunk: completions, their scores, and what they are worth under budgets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

from whet.data.chat import text_tokens
from whet.record.metrics.calibration import token_confidence
from whet.record.metrics.eval_summary import CUT, FORCED, Attempt, EvalSummary, summarized
from whet.reward.answer import final_answer, final_part, normal_form
from whet.reward.refusal import is_refusal
from whet.reward.think_format import is_visible
from whet.rollout.collect import play_ahead, score_groups
from whet.rollout.episode_runner import tell_failures
from whet.tools.evaluation.budget import BudgetForcing, Codec, cut_at, extended_thoughts, forced_answers
from whet.tools.evaluation.evaluation import check_samples, eval_facts, eval_setup, group_metrics
from whet.tools.evaluation.prompting import PromptStyle
from whet.tools.evaluation.saved_completions import CompletionFile, Fingerprint, sample_from, sample_record, text_digest
from whet.training.assembly.fingerprints import model_digest, reward_file_digests
from whet.training.assembly.forms import AUTO
from whet.training.assembly.runtime import Runtime
from whet.training.config import EvaluationConfig
from whet.training.evaluate import Evaluator
from whet.types import Group, Sample, StopReason, WhetError, by_episode

CHUNK = 256  # completions between two saves, where the caller names no number of prompts
SERVER_CHUNK = 64


@dataclass(frozen=True)
class EvalPlan:
    """What is asked of every model."""

    samples: int = 1
    style: PromptStyle = field(default_factory=PromptStyle)
    budgets: tuple[int, ...] = ()
    forcing: BudgetForcing | None = None
    confidence: str = ""  # "tokens": they are needed; "": what there is
    refusals: bool = False
    counts: tuple[int, ...] = ()  # k of pass@k and n of votes; empty: 1, 2, 4, ... and all samples
    chunk: int = 0  # prompts between two saves; 0: as many as make CHUNK completions

    @property
    def longest(self) -> int:
        """Tokens of a completion, where the budgets say it; else 0."""
        if not self.budgets:
            return 0
        return max(self.budgets) + (self.forcing.answer_tokens if self.forcing else 0)

    def check(self, config: EvaluationConfig) -> None:
        """Refuse what cannot be measured, before a model is read."""
        check_samples(self.samples, config.sampling.temperature)
        if self.counts and max(self.counts) > self.samples:
            raise WhetError(
                f"pass@{max(self.counts)} needs {max(self.counts)} completions per prompt, and --samples is "
                f"{self.samples}; give --samples {max(self.counts)}"
            )
        if self.confidence == "votes" and self.samples < 2:
            raise WhetError("--confidence votes is the share of several completions that agree; give --samples 8")
        if self.forcing is not None and not self.budgets:
            raise WhetError("budget forcing ends thoughts at a budget; give --budget 64,128,256")
        if any(budget < 1 for budget in self.budgets):
            raise WhetError(f"--budget {min(self.budgets)}: a budget is a number of tokens; give 1 or more")
        if self.budgets and not config.env.is_single:
            raise WhetError("--budget is for single completions, and an environment has turns; drop one of them")


@dataclass(frozen=True)
class EvalProgress:
    """How far it is."""

    done: int  # prompts
    total: int
    tokens: int  # written since the start of this process
    seconds: float
    value: float | None  # mean outcome so far

    @property
    def tokens_per_second(self) -> float:
        """Tokens written per second so far."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class MeasuredModel:
    """One model on one task."""

    model: str
    task: str
    groups: tuple[Group, ...] = field(repr=False)
    attempts: tuple[tuple[Attempt, ...], ...] = field(repr=False)
    metrics: Mapping[str, float]
    summary: EvalSummary
    facts: Mapping[str, str]
    temperature: float  # 0: greedy
    rows: tuple[Mapping[str, Any], ...] = field(repr=False)  # of the file that is kept

    @property
    def outcomes(self) -> list[list[float]]:
        """[prompts][samples] of outcomes."""
        return [[attempt.outcome for attempt in row] for row in self.attempts]

    def prompt_keys(self) -> list[tuple[str, str]]:
        """Id and text of every prompt: two models are comparable only where these agree."""
        return [(group.prompt.id, group.prompt.question()) for group in self.groups]


def group_summary(groups: Sequence[Group], by: str = "") -> EvalSummary:
    """Summarize groups that were drawn elsewhere: accuracy, curves, calibration and lengths, with intervals."""
    labels = [str(group.prompt.meta[by]) for group in groups] if by else []
    return summarized([_attempts(group, []) for group in groups], labels)


def group_outcomes(groups: Sequence[Group]) -> tuple[tuple[float, ...], ...]:
    """[prompts][samples] of outcomes of groups that were drawn elsewhere."""
    return tuple(tuple(attempt.outcome for attempt in _attempts(group, [])) for group in groups)


def completion_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """What a file of completions holds, one row per completion."""
    return [
        {
            "prompt_id": group.prompt.id,
            "prompt": group.prompt.question(),
            "answer": group.prompt.answer,
            "completion": sample.completion,
            "reward": sample.reward,
            "parts": dict(sample.parts),
            "tokens": sample.num_actions,
            "stop": str(sample.stop),
        }
        for group in groups
        for sample in group.samples
    ]


OnProgress = Callable[[EvalProgress], None]


@dataclass(frozen=True)
class EvalSetup:
    """Everything that is ready before the first completion."""

    config: EvaluationConfig
    plan: EvalPlan
    runtime: Runtime
    evaluator: Evaluator


def prepared(config: EvaluationConfig, plan: EvalPlan, runtime: Runtime | None = None) -> EvalSetup:
    """`runtime` is that of the same model on another task."""
    plan.check(config)
    if plan.longest:
        sampling = config.sampling.model_copy(update={"max_new_tokens": plan.longest})
        config = config.model_copy(update={"sampling": sampling})
    if plan.style.plain and config.data.as_chat == AUTO:
        config = config.model_copy(update={"data": config.data.model_copy(update={"as_chat": False})})
    return EvalSetup(config, plan, *eval_setup(config, style=plan.style, runtime=runtime))


def measured(setup: EvalSetup, out: Path, on_progress: OnProgress, tell: Callable[[str], None]) -> MeasuredModel:
    """Completions to all prompts, from `out` as far as they are there; they stay until the command is over."""
    config, plan, evaluator = setup.config, setup.plan, setup.evaluator
    file = CompletionFile(out, fingerprint(setup))
    if file.restarted:
        tell(file.restarted)
    most = CHUNK if getattr(setup.runtime.engine, "updates", True) else SERVER_CHUNK
    total, size = len(evaluator.prompts), plan.chunk or max(1, most // plan.samples)
    started, tokens, done = time.monotonic(), 0, 0
    records: list[Mapping[str, Any]] = [record for chunk in file.chunks for record in chunk]
    if records:
        done = len(records)
        tell(f"{file.path}: going on after {done} of {total} prompts")
    while done < total:
        chunk = file.add(_chunk(setup, range(done, min(done + size, total))))
        records += chunk
        done += len(chunk)
        tokens += sum(sum(sample["action"][1::2]) for record in chunk for sample in record["samples"])
        _require_confidence(setup, chunk)
        if total > size:
            on_progress(EvalProgress(done, total, tokens, time.monotonic() - started, _running(records)))
    _require_confidence(setup, records)
    groups = [
        Group(prompt, tuple(sample_from(sample) for sample in record["samples"]))
        for prompt, record in zip(evaluator.prompts, records, strict=True)
    ]
    attempts = [_attempts(group, record["budgets"]) for group, record in zip(groups, records, strict=True)]
    by = config.eval.by
    labels = [str(group.prompt.meta[by]) for group in groups] if by else []
    summary = summarized(attempts, labels, plan.refusals, plan.counts)
    return MeasuredModel(
        model=config.model.name,
        task=config.eval.source or config.data.source,
        groups=tuple(groups),
        attempts=tuple(attempts),
        metrics={**group_metrics(groups, 1, by), **_curve_ends(summary)},
        summary=summary,
        facts=eval_facts(config, setup.runtime, evaluator),
        temperature=config.sampling.temperature if plan.samples > 1 else 0.0,
        rows=tuple(completion_rows(groups)),
    )


def fingerprint(setup: EvalSetup) -> Fingerprint:
    """What decides the completions: an interrupted evaluation only goes on where all of it is the same."""
    config, plan, evaluator = setup.config, setup.plan, setup.evaluator
    dumped = config.model_dump(mode="json")
    here = getattr(setup.runtime.engine, "updates", True)
    model = model_digest(config.model.name) if here else setup.runtime.loaded.source
    for name in ("report", "rerank"):
        dumped.pop(name)  # they change nothing about the completions
    threads = dumped["model"].pop("threads", None)
    asked = [[prompt.id, prompt.answer, dict(prompt.meta), list(tokens)] for prompt, tokens in zip(
        evaluator.prompts, evaluator.prompt_tokens, strict=True)]  # fmt: skip
    pieces = {
        "model": model,
        "data": config.eval.source or config.data.source,
        "prompts": text_digest(json.dumps(asked, default=str)),
        "reward": text_digest(json.dumps([dumped.pop("reward"), reward_file_digests([config.reward])])),
        "threads": str(threads),
        **{f"setting {name}": text_digest(json.dumps(value)) for name, value in dumped.items()},
        **{f"option {name}": json.dumps(value) for name, value in asdict(plan).items()},
    }
    return Fingerprint(pieces)


def _curve_ends(summary: EvalSummary) -> dict[str, float]:
    """pass@k and votes among the plain metrics."""
    votes = {f"majority@{point.n}": point.value for point in summary.votes if point.n > 1}
    return {**{f"pass@{point.n}": point.value for point in summary.pass_at}, **votes}


def _chunk(setup: EvalSetup, rows: range) -> list[dict[str, Any]]:
    """The completions to some of the prompts, scored, and what they come to under each budget."""
    config, plan, evaluator = setup.config, setup.plan, setup.evaluator
    prompts = [evaluator.prompts[row] for row in rows]
    tokens = [evaluator.prompt_tokens[row] for row in rows]
    temperature = config.sampling.temperature if plan.samples > 1 else 0.0
    sampling = replace(evaluator.sampling, temperature=temperature)
    runner = setup.runtime.runner
    ahead = getattr(evaluator.score, "ahead", None)
    drawn = play_ahead(runner, prompts, tokens, plan.samples, sampling, (config.seed,), rows, ahead=ahead)
    tell_failures(runner.take_notes())
    groups = score_groups(prompts, drawn, evaluator.score)
    budgets = _budget_outcomes(setup, groups, rows, sampling) if plan.budgets else None
    return [
        {
            "prompt_id": group.prompt.id,
            "samples": [sample_record(sample) for sample in group.samples],
            "budgets": [] if budgets is None else budgets[index],
        }
        for index, group in enumerate(groups)
    ]


def _budget_outcomes(
    setup: EvalSetup, groups: Sequence[Group], rows: range, sampling: Any
) -> list[list[list[tuple[str, int, float, int]]]]:
    """[prompts][samples] of (way, budget, outcome, tokens)."""
    plan, runtime = setup.plan, setup.runtime
    codec = codec_of(runtime)
    flat = [sample for group in groups for sample in group.samples]
    prompts = [group.prompt for group in groups for _ in group.samples]
    seeds = [(setup.config.seed, row, number) for row in rows for number in range(plan.samples)]
    outcomes: list[list[tuple[str, int, float, int]]] = [[] for _ in flat]

    def judge(way: str, budget: int, changed: Sequence[Sample]) -> None:
        fresh = [index for index, sample in enumerate(changed) if sample.reward is None]
        scored = dict(
            zip(
                fresh,
                setup.evaluator.score([prompts[at] for at in fresh], [changed[at] for at in fresh]) if fresh else (),
                strict=True,
            )
        )
        for index, sample in enumerate(changed):
            outcome = scored.get(index, sample).outcome or 0.0
            start = int(sample.action.int().argmax())
            outcomes[index].append((way, budget, outcome, len(sample.tokens) - start))

    for budget in plan.budgets:
        judge(CUT, budget, [cut_at(sample, budget, codec.decode) for sample in flat])
    if plan.forcing is not None:
        thoughts = flat
        if plan.forcing.wait:
            thoughts = extended_thoughts(runtime.engine, flat, seeds, max(plan.budgets), plan.forcing, sampling, codec)
        for budget in plan.budgets:
            forced = forced_answers(runtime.engine, thoughts, seeds, budget, plan.forcing, sampling, codec)
            judge(FORCED, budget, forced)
    sizes = [len(group.samples) for group in groups]
    rest = iter(outcomes)
    return [[next(rest) for _ in range(size)] for size in sizes]


def codec_of(runtime: Runtime) -> Codec:
    """The model's tokenizer as plain functions."""
    tokenizer = runtime.loaded.tokenizer
    return Codec(
        lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True)),
        lambda text: text_tokens(tokenizer, text),
        frozenset(runtime.loaded.end_tokens),
    )


def _attempts(group: Group, budgets: Sequence[Sequence[Sequence[Any]]]) -> tuple[Attempt, ...]:
    """One per completion; branches of an episode are one attempt, right where all of them are."""
    if all(not sample.episode for sample in group.samples):
        rows = budgets or [[] for _ in group.samples]
        return tuple(_attempt([sample], row) for sample, row in zip(group.samples, rows, strict=True))
    return tuple(_attempt(branches, []) for branches in by_episode(group.samples))


def _attempt(branches: Sequence[Sample], budgets: Sequence[Sequence[Any]]) -> Attempt:
    outcomes = [sample.outcome or 0.0 for sample in branches]
    last = branches[-1]
    answer = final_answer(last.completion)
    logp = [
        value
        for sample in branches
        for value in _text_logp(sample.behavior_logp[sample.action].tolist(), str(sample.stop))
    ]
    thinks = "<think>" in last.completion or "</think>" in last.completion
    return Attempt(
        outcome=min(outcomes) if all(outcome in (0.0, 1.0) for outcome in outcomes) else fmean(outcomes),
        tokens=sum(sample.num_actions for sample in branches),
        finished=not any(sample.stop.is_limit for sample in branches),
        answer=None if answer is None else normal_form(answer),
        confidence=token_confidence(logp),
        refused=is_refusal(last.completion),
        in_format=is_visible(final_part(last.completion)) if thinks else None,
        budgets={(way, budget): (outcome, count) for way, budget, outcome, count in budgets},
    )


def _text_logp(logp: Sequence[float], stop: str) -> Sequence[float]:
    """Without that of the token that ends a completion, where a server does not count it among the written ones."""
    return logp[:-1] if len(logp) > 1 and stop == StopReason.END and isnan(logp[-1]) else logp


def _running(records: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean outcome of what has been scored."""
    outcomes = [
        next(iter(sample["parts"].values()), None) if sample["reward"] is not None else None
        for record in records
        for sample in record["samples"]
    ]
    known = [outcome or 0.0 for outcome in outcomes]
    return fmean(known) if any(outcome is not None for outcome in outcomes) else None


def _require_confidence(setup: EvalSetup, records: Sequence[Mapping[str, Any]]) -> None:
    if setup.plan.confidence != "tokens":
        return
    samples = [sample for record in records for sample in record["samples"]]
    if any(isnan(value) for sample in samples for value in _text_logp(sample["logp"], sample["stop"])):
        raise WhetError(
            f"--confidence tokens needs the log-probability of every token, and {setup.config.model.name} "
            f"({setup.config.sampling.engine}) gives none; ask a server that does (vLLM, SGLang, whet serve), or give "
            "--samples 8 --confidence votes"
        )
