"""The stage that measures a model: one greedy completion per held-out prompt, and several drawn ones where wanted;
and one that reads what a training sampled again, for its length and its re-checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from pydantic import Field

from whet.data.usable import evenly
from whet.record.log import SAMPLES
from whet.record.metrics.intervals import IntervalEstimate, mean_estimate, share_estimate
from whet.record.metrics.pass_at_k import pass_curve, vote_curve
from whet.record.text import count_of, percent
from whet.reward.majority import voted_answer
from whet.tools.pipelines.library import takes
from whet.tools.pipelines.library.entry import OUTPUT_FILES, Composition, StageEntry, StageInput, StageWork
from whet.tools.pipelines.library.sampler import ModelSampler, Row, chunk_size, prompt_row, sampled_rows
from whet.tools.pipelines.settings import PipelineSettings, answer_reward, can_evaluate, sampling_config
from whet.tools.pipelines.stages import Stage, StageCost, read_json_lines, stage_result
from whet.training.config import EvaluationConfig
from whet.types import Prompt, Sampling, WhetError

ALL = "all"  # the eval prompts together
# words with which a text goes back over what it has said; counted, never paid for
RECHECK = re.compile(
    r"\b(?:wait|hmm|actually|re-?check(?:ing)?|double[- ]check(?:ing)?|let me (?:check|verify|re-?think|see again)"
    r"|let's (?:check|verify)|check(?:ing)? again|on second thought|that(?:'s| is) (?:wrong|not right)|correction)\b",
    re.IGNORECASE,
)
Measured = tuple[float, float, float]  # the value, and its 95% interval
POLICY = "the policy"
NOBODY = "none"  # an eval that is compared with no other
GREEDY_AT_ONCE = 2048  # greedy completions that are drawn together


def rechecks(text: str) -> int:
    """How often a text goes back over what it has said."""
    return len(RECHECK.findall(text))


def set_measures(rows: Sequence[Row]) -> dict[str, Measured]:
    """Each metric with its interval; every interval takes a prompt as one observation."""
    measured: dict[str, Measured] = {}
    known = [row["right"] for row in rows if row["right"] is not None]
    if known and all(right in (0.0, 1.0) for right in known):
        measured["accuracy"] = _bounds(share_estimate(known))
        measured |= _sampled(rows)
    else:
        measured["reward"] = _mean([row["reward"] for row in rows if row["reward"] is not None])
    measured["completion_tokens"] = _mean([float(row["tokens"]) for row in rows])
    measured["truncated"] = _bounds(share_estimate([float(not row["finished"]) for row in rows]))
    measured["rechecks"] = _mean([float(row["rechecks"]) for row in rows])
    return measured


def _sampled(rows: Sequence[Row]) -> dict[str, Measured]:
    """pass@k, and the vote of all attempts."""
    drawn = [row for row in rows if row.get("sample_right")]
    if not drawn:
        return {}
    outcomes = [[right or 0.0 for right in row["sample_right"]] for row in drawn]
    count = len(outcomes[0])
    measured = {f"pass@{estimate.n}": _bounds(estimate) for estimate in pass_curve(outcomes)}
    (vote,) = vote_curve(outcomes, [list(row["sample_answers"]) for row in drawn], [count])
    return {**measured, f"majority@{count}": _bounds(vote)}


def _mean(values: Sequence[float]) -> Measured:
    """JSON has no infinity: without an interval the bounds are the value itself."""
    return _bounds(mean_estimate(values)) if len(values) > 1 else (sum(values), sum(values), sum(values))


def _bounds(estimate: IntervalEstimate) -> Measured:
    return estimate.value, estimate.low, estimate.high


class EvalEntry(StageEntry, kind="eval", gives=("metrics",), uses=("seed", "model", "sampling", "eval")):
    """A model on the held-out prompts."""

    says: ClassVar[str] = "evaluate {model}"

    cosmetic: ClassVar[frozenset[str]] = frozenset({"name", "against", "who"})

    model: takes.Model = Field("", description="the stage or model that is measured; empty: the pipeline's model")
    against: str = Field(
        "", description="the eval that it is compared with, where stages branch; empty: the one before; none: nobody"
    )
    who: str = Field(POLICY, description="whose metrics these are, where two are trained side by side")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        settings = composition.settings
        if not can_evaluate(settings):
            raise WhetError(
                f"stage {self.name!r}: nothing to measure by; give eval.source (a file of prompts with answers) and "
                "eval.reward.parts or reward.parts"
            )
        if self.against not in ("", NOBODY) and not isinstance(composition.entries.get(self.against), EvalEntry):
            raise WhetError(f"stage {self.name!r}: against={self.against!r} is no earlier stage of kind eval; name one")
        inputs, prompts = super().find_inputs(composition), eval_input(self, composition)
        count = len(eval_prompts(settings, eval_config(settings, "")))
        return {**inputs, "prompts": replace(prompts, count=count)}

    def depends_on(self, run: StageWork) -> dict[str, Any]:
        values = super().depends_on(run)
        values["eval"]["reward"] = answer_reward(run.settings).model_dump(mode="json")
        return {**values, "data": run.settings.data.model_dump(mode="json", exclude={"count", "limit"})}

    def cost(self, run: StageWork) -> StageCost:
        settings = run.settings
        prompts = eval_prompts(settings, eval_config(settings, ""))
        completions = len(prompts) + len(sampled_prompts(settings, prompts)) * settings.eval.samples
        return StageCost(completions=completions, sampled_tokens=completions * settings.sampling.max_new_tokens)

    def measures(self, composition: Composition) -> tuple[str, int]:
        """The policy's evals are numbered; another's has the number of the policy's before it."""
        before = [entry for entry in composition.entries.values() if isinstance(entry, EvalEntry)]
        return self.who, sum(entry.who == POLICY for entry in before) - (self.who != POLICY)

    def stage(self, composition: Composition) -> Stage:
        return replace(super().stage(composition), against=self.against)

    def work(self, run: StageWork) -> Mapping[str, Any]:
        return measured(run, "model")


def eval_input(entry: StageEntry, composition: Composition) -> StageInput:
    """The held-out prompts."""
    source = composition.settings.eval.source or composition.settings.data.source
    return composition.find(entry, "eval.source", source, takes.InputRule(("rows",)))


def eval_config(settings: PipelineSettings, model: str) -> EvaluationConfig:
    """How a model is measured."""
    return sampling_config(settings, model)


def eval_prompts(settings: PipelineSettings, config: EvaluationConfig) -> list[Prompt]:
    """The held-out prompts: at most eval.prompts of them, of a file evenly from each eval set."""
    from whet.training.assembly.prompts import load_prompts

    prompts = load_prompts(config, evaluation=True)
    if not prompts:
        raise WhetError("there are no held-out prompts; give eval.source, or a task as data.source")
    if len(prompts) <= settings.eval.prompts:
        return prompts
    num_sets = len({set_of(prompt, settings) for prompt in prompts})
    return _evenly_of_each(prompts, settings, -(-settings.eval.prompts // num_sets))


def sampled_prompts(settings: PipelineSettings, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Those that several completions are drawn for; none where a single one would be."""
    most = settings.eval.sampled_prompts or len(prompts)
    return _evenly_of_each(prompts, settings, most) if settings.eval.samples > 1 else []


def set_of(prompt: Prompt, settings: PipelineSettings) -> str:
    """The eval set that a prompt belongs to: by its column, of several tasks by its task."""
    if settings.eval.by:
        return str(prompt.meta[settings.eval.by])
    return prompt.id.partition("/")[0] if settings.data.parsed_source.is_task and not settings.eval.source else ALL


def _evenly_of_each(prompts: Sequence[Prompt], settings: PipelineSettings, most: int) -> list[Prompt]:
    by_set: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        by_set.setdefault(set_of(prompt, settings), []).append(number)
    return [prompts[number] for number in sorted(number for each in by_set.values() for number in evenly(each, most))]


def measured(run: StageWork, model: str) -> dict[str, Any]:
    """Write completions.jsonl with a row per prompt to the model of that input, and sum it up."""
    rows = write_eval_rows(run, eval_config(run.settings, run.model(model)))
    by_set = {ALL: rows}
    for row in rows:
        if row["set"] != ALL:
            by_set.setdefault(row["set"], []).append(row)
    if len(by_set) == 2:  # one set is all there is
        by_set = {ALL: rows}
    sets = {name: set_measures(set_rows) for name, set_rows in by_set.items()}
    metrics = {name: value for name, (value, _, _) in sets[ALL].items()}
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    metrics |= {"reward": fmean(rewards)} if rewards else {}
    for name, set_rows in by_set.items():
        if name != ALL and "accuracy" in sets[name]:
            metrics[f"accuracy_{name}"] = sets[name]["accuracy"][0]
        elif name != ALL:
            metrics[f"reward_{name}"] = fmean(row["reward"] or 0.0 for row in set_rows)
    drawn = sum(len(row.get("sample_right", ())) for row in rows)
    tokens = sum(row["tokens"] + sum(row.get("sample_tokens", ())) for row in rows)
    return stage_result(
        _summary(sets, len(rows)),
        metrics,
        eval_prompts=len(rows),
        sets={name: {"prompts": len(by_set[name]), **values} for name, values in sets.items()},
        cost={"completions": len(rows) + drawn, "sampled_tokens": tokens},
    )


def _summary(sets: Mapping[str, Mapping[str, Measured]], count: int) -> str:
    shown = []
    for name, values in sets.items():
        main = "accuracy" if "accuracy" in values else "reward"
        value, low, high = values[main]
        text = f"{percent(value)} ({percent(low)} to {percent(high)})" if main == "accuracy" else f"{value:.3g}"
        shown.append(f"{main if name == ALL else name} {text}")
    votes = [f"{name} {percent(value)}" for name, (value, _, _) in sets[ALL].items() if "@" in name]
    last = [votes[index] for index in (len(votes) // 2 - 1, -1)] if len(votes) > 2 else votes
    return f"{', '.join([*shown, *last])} on {count_of(count, 'held-out prompt')}"


def write_eval_rows(run: StageWork, config: EvaluationConfig) -> list[Row]:
    """One row per held-out prompt: its greedy completion, and what the drawn ones came to."""
    from whet.training.assembly.runtime import sampling_from

    settings, prompts = run.settings, eval_prompts(run.settings, config)
    base = sampling_from(config.sampling)
    greedy = Sampling(base.max_new_tokens, 0.0, stop=base.stop, stop_tokens=base.stop_tokens)
    drawn = sampling_from(config.sampling.model_copy(update={"temperature": settings.eval.temperature}))

    def greedy_rows(sampler: ModelSampler, number: int, chunk: Sequence[Prompt]) -> list[Row]:
        written = sampler.scored(None, chunk, sampler.completions(chunk, 1, greedy, (config.seed, number)))
        return [
            {
                **prompt_row(prompt),
                "set": set_of(prompt, settings),
                "answer": prompt.answer,
                "completion": sample.completion,
                "right": sample.outcome,
                "reward": sample.reward,
                "tokens": sample.num_actions,
                "finished": not sample.stop.is_limit,
                "rechecks": rechecks(sample.completion),
            }
            for prompt, (sample,) in zip(chunk, written, strict=True)
        ]

    def drawn_rows(sampler: ModelSampler, number: int, chunk: Sequence[Prompt]) -> list[Row]:
        written = sampler.completions(chunk, settings.eval.samples, drawn, (config.seed, number))
        return [
            {
                "id": prompt.id,
                "sample_right": [sample.outcome for sample in samples],
                "sample_answers": [voted_answer(sample.completion) for sample in samples],
                "sample_tokens": [sample.num_actions for sample in samples],
                "sample_rechecks": [rechecks(sample.completion) for sample in samples],
            }
            for prompt, samples in zip(chunk, sampler.scored(None, chunk, written), strict=True)
        ]

    loaded: list[ModelSampler] = []
    file = run.folder / OUTPUT_FILES["completions"]
    rows = sampled_rows(file, config, prompts, GREEDY_AT_ONCE, greedy_rows, loaded)
    asked = sampled_prompts(settings, prompts)
    if not asked:
        return rows
    file, size = run.folder / "samples.jsonl", chunk_size(settings.eval.samples)
    samples = {row["id"]: row for row in sampled_rows(file, config, asked, size, drawn_rows, loaded)}
    return [{**row, **samples.get(row["id"], {})} for row in rows]


def with_evals(settings: PipelineSettings, entries: Sequence[StageEntry]) -> list[StageEntry]:
    """The entries with an eval before the first, and one behind every stage that leaves a policy."""
    with_measures: list[StageEntry] = evals(settings, "eval-base")
    for entry in entries:
        with_measures.append(entry)
        if "model" in entry.gives:
            with_measures += evals(settings, f"eval-{entry.name}", entry.name)
    return with_measures


def evals(settings: PipelineSettings, name: str, model: str = "", **more: Any) -> list[StageEntry]:
    """An eval of a model, where there is something to measure by."""
    return [EvalEntry(name=name, model=model, **more)] if can_evaluate(settings) else []


STRETCHES = 5  # of the training
FEWEST = 20  # completions on either side, below which two shares are not compared


class RecheckEntry(StageEntry, kind="recheck", gives=("metrics",)):
    """The completions that a stage of RL was trained on: their length and their re-checks, early and late."""

    says: ClassVar[str] = "length and re-checks of the completions that {training} was trained on"

    training: takes.Model = Field("", description="the stage of kind rl whose completions are read")

    def work(self, run: StageWork) -> Mapping[str, Any]:
        return recheck_result(read_json_lines(Path(run.model("training")) / SAMPLES))


def recheck_result(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row per stretch of the training, and what can honestly be said of re-checking."""
    steps = sorted({int(line["step"]) for line in lines})
    if not steps:
        return stage_result("no completion was recorded; raise report.samples_per_step of the training")
    count = min(STRETCHES, len(steps))
    edges = [steps[len(steps) * at // count] for at in range(count)] + [steps[-1] + 1]
    stretches = [
        (f"{start} to {stop - 1}", [line for line in lines if start <= int(line["step"]) < stop])
        for start, stop in pairwise(edges)
    ]
    table = [["steps", "completions", "tokens", "re-checks", "right", "right with", "right without"]]
    for name, inside in stretches:
        right, right_with, right_without = map(_share, outcomes_by_recheck(inside))
        means = (f"{mean_tokens(inside):.1f}", f"{mean_rechecks(inside):.3f}")
        shares = ("" if right is None else percent(right), percent(right_with), percent(right_without))
        table.append([name, str(len(inside)), *means, *shares])
    (_, early), (_, late) = stretches[0], stretches[-1]
    metrics = {
        "first_tokens": mean_tokens(early),
        "last_tokens": mean_tokens(late),
        "first_rechecks": mean_rechecks(early),
        "last_rechecks": mean_rechecks(late),
    }
    findings = [
        f"length: {metrics['first_tokens']:.0f} tokens in the first stretch, {metrics['last_tokens']:.0f} in the last",
        _said(lines, metrics),
    ]
    return stage_result("; ".join(findings), metrics, table=table, findings=findings)


def mean_tokens(lines: Sequence[Mapping[str, Any]]) -> float:
    """Tokens of recorded completions, on average."""
    return fmean(int(line["tokens"]) for line in lines)


def mean_rechecks(lines: Sequence[Mapping[str, Any]]) -> float:
    """Re-checks of recorded completions, on average."""
    return fmean(rechecks(line["completion"]) for line in lines)


def outcomes_by_recheck(lines: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float], list[float]]:
    """Whether recorded completions are right, by the first part of their reward: all, with a re-check, without."""
    rights: dict[bool, list[float]] = {True: [], False: []}
    both = []
    for line in lines:
        right = next(iter(line.get("parts", {}).values()), None)
        if right is not None and line.get("reward") is not None:
            both.append(float(right))
            rights[rechecks(line["completion"]) > 0].append(float(right))
    return both, rights[True], rights[False]


def _share(outcomes: Sequence[float]) -> float | None:
    return fmean(outcomes) if outcomes else None


def _said(lines: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]) -> str:
    known, having, lacking = outcomes_by_recheck(lines)
    if not having:
        return f"re-checks: none in {len(known)} recorded completions, so nothing can be said of them"
    text = (
        f"re-checks: {metrics['first_rechecks']:.3f} per completion in the first stretch and "
        f"{metrics['last_rechecks']:.3f} in the last; {len(having)} of {len(known)} have one"
    )
    if min(len(having), len(lacking)) < FEWEST:
        return f"{text}, too few to compare"
    return (
        f"{text}; right in {percent(fmean(having))} with and {percent(_share(lacking))} without one, "
        "which says what goes together and not what causes what"
    )
