"""Stages that judge policies beside the one they started from, choose the best of n, and lay several ways side by side.

The *reward model* is what a policy may have been trained against; the *judge* is another one, of another seed and of
pairs that neither the policy nor the reward model has seen. Where the first says more than the second, the reward model
was over-optimised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from math import log
from statistics import fmean
from typing import Annotated, Any, ClassVar

from pydantic import Field

from whet.pages.pipeline_page import question
from whet.record.metrics.win_rate import (
    best_of_shares,
    completion_wins,
    mean_with_interval,
    win_shares,
    win_shares_by_length,
)
from whet.record.text import count_of, number, percent
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library import takes
from whet.tools.pipelines.library.entry import Composition, StageEntry, StageInput, StageWork
from whet.tools.pipelines.library.pairs import SplitPairsEntry
from whet.tools.pipelines.library.sampler import (
    Measure,
    ModelSampler,
    Row,
    WrittenChunk,
    chunk_size,
    completion_rows,
    model_sampler,
    row_prompt,
    summed_logp,
)
from whet.tools.pipelines.library.trainings import SELECTION, choices_within
from whet.tools.pipelines.settings import can_evaluate, sampling_config
from whet.tools.pipelines.stages import StageCost, stage_result
from whet.training.config import EvaluationConfig
from whet.types import Sample

REWARD_MODEL, JUDGE, TRUTH = "reward_model", "judge", "truth"
FAR = 10.0  # nats: the start would write such a completion once in e^10 = 22,000 times
JudgedRow = Mapping[str, Any]
# of a policy against the start: rates with intervals over prompts, None where there is nothing to measure by
Measures = dict[str, Any]
JUDGED = "judged.jsonl"
SAMPLES = 4  # completions of each policy that the page shows
COLUMNS = {
    "win_rate": "win rate by the judge",
    "win_rate_same_length": "at equal length",
    "win_rate_reward_model": "by the reward model",
}


def rate_of(values: Sequence[float | None]) -> dict[str, Any] | None:
    """The mean over prompts with its interval, as JSON."""
    rate = mean_with_interval(values)
    return None if rate is None else asdict(rate)


def measures(rows: Sequence[JudgedRow], start: Sequence[JudgedRow], slope: float) -> Measures:
    """A policy's judged rows against those of the start; `slope` is what the judge gives for one token more.

    At the same length, what length alone earns is taken off; shorter and longer are the comparisons in which the policy
    wrote less or more; the KL is in nats per completion.
    """
    start = with_known_scores(start, start)
    rows = with_known_scores(rows, start)
    lengths = (_column(rows, "tokens"), _column(start, "tokens"))
    by_length = win_shares_by_length(_column(rows, JUDGE), _column(start, JUDGE), *lengths)

    def win_rate(name: str) -> dict[str, Any] | None:
        return rate_of(win_shares(_column(rows, name), _column(start, name)))

    return {
        "win_rate": win_rate(JUDGE),
        "win_rate_reward_model": win_rate(REWARD_MODEL) if REWARD_MODEL in rows[0] else None,
        "win_rate_same_length": rate_of(win_shares(_without_length(rows, slope), _without_length(start, slope))),
        "win_rate_shorter": rate_of(by_length["shorter"]),
        "win_rate_longer": rate_of(by_length["longer"]),
        "kl": rate_of([fmean(row["kl"]) for row in rows]),
        "tokens": _mean_of(rows, "tokens"),
        "start_tokens": _mean_of(start, "tokens"),
        "truncated": 1 - _mean_of(rows, "finished"),
        "accuracy": rate_of([_known_mean(row[TRUTH]) for row in rows]) if TRUTH in rows[0] else None,
    }


def selected_measures(pool: Sequence[JudgedRow], start: Sequence[JudgedRow], slope: float, n: int) -> Measures:
    """Best of n by the reward model, expected over every subset of n of a pool that the start policy wrote.

    KL(best of n || start) = log n - (n - 1) / n, an upper bound where completions repeat. Beirami et al. 2024
    (2401.01879).
    """
    start = with_known_scores(start, start)
    pool = with_known_scores(pool, start)

    def expected(outcomes: Sequence[Sequence[float | None]]) -> list[float | None]:
        return best_of_shares(outcomes, _column(pool, REWARD_MODEL), n)

    def win_rate(ours: Sequence[Sequence[Any]], theirs: Sequence[Sequence[Any]]) -> dict[str, Any] | None:
        return rate_of(expected([completion_wins(*outcomes) for outcomes in zip(ours, theirs, strict=True)]))

    bound, finished = log(n) - (n - 1) / n, [[float(whole) for whole in row["finished"]] for row in pool]
    return {
        "win_rate": win_rate(_column(pool, JUDGE), _column(start, JUDGE)),
        "win_rate_reward_model": win_rate(_column(pool, REWARD_MODEL), _column(start, REWARD_MODEL)),
        "win_rate_same_length": win_rate(_without_length(pool, slope), _without_length(start, slope)),
        "win_rate_shorter": None,
        "win_rate_longer": None,
        "kl": {"value": bound, "low": bound, "high": bound, "prompts": len(pool)},
        "tokens": _known_mean(expected(_column(pool, "tokens"))),
        "start_tokens": _mean_of(start, "tokens"),
        "truncated": 1 - (_known_mean(expected(finished)) or 0.0),
        "accuracy": rate_of(expected(_column(pool, TRUTH))) if TRUTH in pool[0] else None,
    }


def plain_metrics(measured: Measures) -> dict[str, float]:
    """Plain numbers of measures, for the tables of a pipeline."""
    rates = {name: rate for name, rate in measured.items() if isinstance(rate, Mapping)}
    metrics = {name: rate["value"] for name, rate in rates.items()}
    for name in ("win_rate", "accuracy"):
        if name in rates:
            metrics |= {f"{name}_low": rates[name]["low"], f"{name}_high": rates[name]["high"]}
    return metrics | {"completion_tokens": measured["tokens"], "truncated": measured["truncated"]}


def with_known_scores(rows: Sequence[JudgedRow], start: Sequence[JudgedRow]) -> list[Row]:
    """The rows with the start's scores for completions that it wrote too.

    A model's score of one text depends on its batch in the last digits: without this, equal completions would not tie.
    """
    scored = []
    for row, other in zip(rows, start, strict=True):
        known_row = dict(row)
        for name in (JUDGE, REWARD_MODEL):
            if name in row and name in other:
                known = dict(zip(other["completions"], other[name], strict=True))
                known_row[name] = [known.get(*pair) for pair in zip(row["completions"], row[name], strict=True)]
        scored.append(known_row)
    return scored


def length_slope(start: Sequence[JudgedRow]) -> float:
    """What the judge gives a completion of the start policy for one token more, within prompts."""
    from whet.reward.learned.outcome import length_slope as slope_of

    known = [
        (length, score, row["id"])
        for row in start
        for length, score in zip(row["tokens"], row[JUDGE], strict=True)
        if score is not None
    ]
    return slope_of(*zip(*known, strict=True)) if known else 0.0


def rate_cell(rate: Mapping[str, float] | None) -> str:
    """`61.5% (57.0 to 66.1)`."""
    return "" if rate is None else f"{percent(rate['value'])} ({100 * rate['low']:.1f} to {100 * rate['high']:.1f})"


def sample_pairs(rows: Sequence[JudgedRow], start: Sequence[JudgedRow], count: int) -> list[dict[str, Any]]:
    """Completions of both to the same prompts, evenly spread from where the judge likes the policy least to most."""

    def gap(row: JudgedRow, other: JudgedRow, name: str) -> float | None:
        one, two = (source.get(name, [None])[0] for source in (row, other))
        return None if one is None or two is None else one - two

    scored = [(gap(row, other, JUDGE), row, other) for row, other in zip(rows, start, strict=True)]
    known = sorted([pair for pair in scored if pair[0] is not None], key=lambda pair: float(pair[0] or 0.0))
    chosen = sorted({round(at * (len(known) - 1) / max(1, count - 1)) for at in range(count)}) if known else []
    return [
        {
            "prompt": question(row),
            "completion": row["completions"][0],
            "start": other["completions"][0],
            "judge_gap": judge_gap,
            "reward_model_gap": gap(row, other, REWARD_MODEL),
        }
        for judge_gap, row, other in (known[at] for at in chosen)
    ]


def _column(rows: Sequence[JudgedRow], name: str) -> list[list[Any]]:
    return [row[name] for row in rows]


def _without_length(rows: Sequence[JudgedRow], slope: float) -> list[list[float | None]]:
    return [
        [
            None if score is None else score - slope * length
            for score, length in zip(row[JUDGE], row["tokens"], strict=True)
        ]
        for row in rows
    ]


def _mean_of(rows: Sequence[JudgedRow], name: str) -> float:
    return fmean(value for row in rows for value in row[name])


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def over_optimised(measured: Mapping[str, Any], start: Mapping[str, Any]) -> list[str]:
    """Why this policy must not be called the best, whatever its win rate: it gained by the reward model alone."""
    before, after, strayed = start.get("accuracy"), measured.get("accuracy"), measured["kl"]
    reasons = []
    if before and after and after["high"] < before["low"]:
        reasons.append(f"accuracy fell from {rate_cell(before)} to {rate_cell(after)}")
    if strayed and strayed["value"] > FAR:
        reasons.append(f"KL is {number(strayed['value'])} nats, above {FAR:g}")
    return reasons


def optimised_words(name: str, measured: Mapping[str, Any], start: Mapping[str, Any]) -> list[str]:
    """What a win rate alone would hide: over-optimisation, and length."""
    judge, own, even = (measured[key] for key in ("win_rate", "win_rate_reward_model", "win_rate_same_length"))
    remarks = [f"{name}: over-optimised, {reason}" for reason in over_optimised(measured, start)]
    if judge and own and own["low"] > judge["high"]:
        remarks.append(f"{name}: its reward model sees {rate_cell(own)} and the judge {rate_cell(judge)}")
    if judge and even and judge["low"] > 0.5 >= even["low"]:
        remarks.append(f"{name}: at equal length its win rate is {rate_cell(even)}: length may be the gain")
    if judge and judge["high"] < 0.5:
        remarks.append(f"{name}: worse than where it started by the judge, {rate_cell(judge)}")
    return remarks


def headline(measured: Mapping[str, Mapping[str, Any]], start: Mapping[str, Any], first: str) -> tuple[list[str], str]:
    """The ways from the best to the worst, and the best in words: by accuracy where the truth is known, else by the
    judge; what was over-optimised comes last and is named."""
    by_truth = bool(start["accuracy"]) and all(values["accuracy"] for values in measured.values())
    key = "accuracy" if by_truth else "win_rate"
    spoiled = [way for way, values in measured.items() if over_optimised(values, start)]
    ranked = sorted(measured, key=lambda way: (way in spoiled, -(measured[way][key] or {"value": 0})["value"]))
    best = measured[ranked[0]]
    words = f"none is better than {first}: every way was over-optimised"
    if ranked[0] not in spoiled:
        came_from = f" ({first} {rate_cell(start[key])})" if by_truth else ""
        words = f"best by {'accuracy' if by_truth else 'the judge'}: {ranked[0]}, {rate_cell(best[key])}{came_from}"
        words += f", KL {number(best['kl']['value'])}"
    for way in ranked:
        if way in spoiled and ranked[0] not in spoiled:
            words += f"; {way} was over-optimised: {', '.join(over_optimised(measured[way], start))}"
    return ranked, words


class JudgedEntry(StageEntry, kind="judged", gives=("metrics",), uses=("seed", "model", "sampling", "data", "eval")):
    """Completions of a policy to held-out prompts, with the scores of reward models and the KL to where it started."""

    unplanned: ClassVar[frozenset[str]] = frozenset({"start", "judge", "reward model", "against", "pairs", "cost of"})
    cosmetic: ClassVar[frozenset[str]] = frozenset({"name", "who", "number"})

    policy: takes.Model = Field("", description="the stage or model that is judged; empty: the pipeline's model")
    start: takes.Model = Field(
        "", description="the stage or model that the KL is measured from; empty: the pipeline's model"
    )
    prompts: takes.Rows = Field(description="an earlier stage or a file; an answer makes the truth known")
    judge: takes.RewardModel = Field(description="a stage or folder of a reward model that nothing is trained against")
    reward_model: takes.OptionalRewardModel = Field(
        "", description="one that policies are trained against; empty: none"
    )
    against: takes.OptionalResult = Field(
        "", description="the stage in which the start was judged; empty: this one judges the start"
    )
    pairs: takes.OptionalPairs = Field(
        "", description="pairs whose tokens are counted, for the cost of learning from them"
    )
    completions: amounts.Samples = Field(4, description="that the policy writes to each prompt")
    seed_offset: amounts.Seed = Field(0, description="sets its samples apart from those of other stages")
    who: str = Field("", description="whose metrics these are; empty: the policy's name")
    number: int = Field(0, ge=0, le=1000, description="after which round")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        inputs = super().find_inputs(composition)
        split = composition.entries.get(inputs["prompts"].stage)
        if isinstance(split, SplitPairsEntry):
            inputs["prompts"] = replace(inputs["prompts"], count=split.judged_prompts)
        return inputs

    def about(self, run: StageWork) -> str:
        if self.says:
            return super().about(run)
        text = f"{run.labels['policy']} answers the held-out prompts"
        if not self.against:
            return f"{text}: what the others are compared with"
        return f"{text}, and is judged against {run.labels['start']}"

    def measures(self, composition: Composition) -> tuple[str, int]:
        return self.who or self.policy or composition.settings.model.name, self.number

    def most_completions(self) -> int:
        """Completions per prompt, at most."""
        return self.completions

    def cost(self, run: StageWork) -> StageCost:
        completions = run.inputs["prompts"].count * self.most_completions()
        return StageCost(completions=completions, sampled_tokens=completions * run.settings.sampling.max_new_tokens)

    def write(self, run: StageWork, count: int) -> list[Row]:
        """`count` completions to each prompt, with scores, lengths and KL: rows of judged.jsonl."""
        prompts = [row_prompt(row) for row in run.rows("prompts")]
        knows_truth = can_evaluate(run.settings) and any(prompt.answer is not None for prompt in prompts)
        config = sampling_config(run.settings, run.model("policy"))
        measure = judged_columns(run, config, knows_truth)
        seed = (config.seed, 2, self.seed_offset)
        file = run.folder / JUDGED
        return completion_rows(file, config, prompts, count, lambda at: (*seed, at), measure, chunk_size(32))

    def work(self, run: StageWork) -> Mapping[str, Any]:
        rows = self.write(run, self.completions)
        if self.against:
            start = run.file_rows(self.against, JUDGED)
            return judged_result(measures(rows, start, length_slope(start)), rows)
        prompt, completion = fmean(row["prompt_tokens"] for row in rows), _mean_of(rows, "tokens")
        measured = measures(rows, rows, 0.0)
        return stage_result(
            f"{number(completion)} tokens per completion, {percent(measured['truncated'])} cut off",
            plain_metrics(measured),
            {"truncated_completions": sum(not finished for row in rows for finished in row["finished"])},
            measured=measured,
            sequence=prompt + completion,
            prompt=prompt,
            pair_tokens=pair_tokens(run) if self.pairs else None,
            eval_prompts=len(rows),
        )


def judged_result(measured: Measures, rows: Sequence[Row]) -> dict[str, Any]:
    """What a policy came to against the start."""
    own = measured["win_rate_reward_model"]
    words = [
        f"win rate {rate_cell(measured['win_rate'])} by the judge",
        *([f"{rate_cell(own)} by the reward model"] if own else []),
        kl_words(measured),
        f"{number(measured['tokens'])} tokens ({number(measured['start_tokens'])} before)",
    ]
    return stage_result(", ".join(words), plain_metrics(measured), eval_prompts=len(rows), measured=measured)


def kl_words(measured: Measures) -> str:
    """The KL to the start."""
    return f"KL {number(measured['kl']['value'] if measured['kl'] else None)}"


def pair_tokens(run: StageWork) -> float:
    """Tokens of a pair, its prompt counted with each completion."""
    from whet.data.families import completion_families

    tokenizer = model_sampler(run.settings, run.model("start")).runtime.loaded.tokenizer
    pairs = ((row_prompt(row), (row["chosen"], row["rejected"])) for row in run.rows("pairs"))
    families = completion_families(tokenizer, pairs)
    return fmean(sum(len(completion.tokens) for completion in family) for family in families)


def _prompt_tokens(sample: Sample) -> int:
    """Tokens before the first that the policy chose."""
    return int(sample.action.int().argmax()) if sample.num_actions else len(sample.tokens)


def judged_columns(run: StageWork, config: EvaluationConfig, knows_truth: bool) -> Measure:
    """The columns of judged.jsonl: lengths, KL and scores; each model is read when it is first asked."""
    from whet.reward.learned.outcome import learned

    names = {name: name.replace("_", " ") for name in (REWARD_MODEL, JUDGE)}
    networks = {
        name: learned(folder=run.weights(key), device=config.model.device)
        for name, key in names.items()
        if key in run.inputs
    }
    started_as = cache(lambda: model_sampler(run.settings, run.model("start")))

    def log_ratios(sampler: ModelSampler, samples: Sequence[Sample]) -> list[float]:
        """SUM_t log pi / pi_start of each completion: its mean over the policy's own completions estimates the KL."""
        if run.model("policy") == run.model("start"):
            return [0.0] * len(samples)
        temperature = config.sampling.temperature
        own, start = (summed_logp(model.runtime.policy, samples, temperature) for model in (sampler, started_as()))
        return [one - other for one, other in zip(own, start, strict=True)]

    def measure(chunk: WrittenChunk) -> dict[str, Sequence[Any]]:
        prompts, samples = zip(*chunk.pairs, strict=True)
        return {
            "prompt_tokens": [_prompt_tokens(group[0]) for group in chunk.written],
            "kl": chunk.by_prompt(log_ratios(chunk.sampler, samples)),
            **{name: chunk.by_prompt(network(prompts, samples)) for name, network in networks.items()},
            **({TRUTH: chunk.scores()} if knows_truth else {}),
        }

    return measure


class BestOfEntry(JudgedEntry, kind="best_of_n"):
    """No training: the reward model chooses among n completions of the start policy to each prompt."""

    says: ClassVar[str] = "{policy} writes n completions to each held-out prompt; the reward model chooses"

    most_n: amounts.Samples = Field(64, description="at most this n; less where the budget is spent before")
    cost_of: takes.OptionalResult = Field(
        "", description="the training whose budget n spends on these prompts; empty: n is most_n"
    )

    def most_completions(self) -> int:
        return self.most_n

    def work(self, run: StageWork) -> Mapping[str, Any]:
        start, lengths = run.file_rows(self.against, JUDGED), run.result("against")
        slope, sequence, prompts = length_slope(start), lengths["sequence"], lengths["eval_prompts"]
        budget = self.most_n * prompts * sequence * SELECTION.cost
        if self.cost_of:
            budget = float(run.result("cost of")["budget"])
        n = choices_within(budget, prompts, sequence, self.most_n)
        rows = self.write(run, n)
        sizes = [2**power for power in range(n.bit_length())]
        return {
            **judged_result(selected_measures(rows, start, slope, n), rows),
            "spent": n * len(rows) * sequence * SELECTION.cost,
            "budget": budget,
            "n": n,
            "curve": {str(size): selected_measures(rows, start, slope, size) for size in sizes},
        }


class WaysEntry(StageEntry, kind="compare_ways", gives=("metrics",)):
    """Several ways to optimise one reward side by side: win rates, KL, length, what each spent."""

    says: ClassVar[str] = "all ways side by side: win rates, KL, length, what each spent"

    start: takes.Result = Field(description="the stage in which the start was judged")
    trainings: Annotated[dict[str, str], takes.RESULT] = Field(
        description="way = the stage that trained it, or chose; its cost is compared"
    )
    judged: Annotated[dict[str, str], takes.RESULT] = Field(description="way = the stage in which it was judged")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        inputs = super().find_inputs(composition)
        return {self.start: inputs.pop("start"), **inputs}

    def work(self, run: StageWork) -> Mapping[str, Any]:
        start = run.result(self.start)["measured"]
        start_rows, first = run.file_rows(self.start, JUDGED), self.start.removesuffix("-judged")
        columns = {**COLUMNS, **({"accuracy": "accuracy"} if start["accuracy"] else {})}
        table = [["", "spent", *columns.values(), "KL", "tokens", "cut off"], [first, "", *_cells(start, columns)]]
        words, shown, measured, steps, budget = [], [], {}, {}, 0.0
        for way, stage in self.judged.items():
            result, training = run.result(stage), run.result(self.trainings[way])
            measured[way], budget = result["measured"], training["budget"]
            steps[way] = training.get("n") or training["steps"]
            name = f"{way} (n = {result['n']})" if "n" in result else way
            table.append([name, percent(training["spent"] / budget), *_cells(measured[way], columns)])
            words += optimised_words(name, measured[way], start)
            if "n" not in result:
                shown += [
                    {"way": way, **pair} for pair in sample_pairs(run.file_rows(stage, JUDGED), start_rows, SAMPLES)
                ]
        ranked, summary = headline(measured, start, first)
        summary += f"; {count_of(len(words), 'warning')}" if words else "; no sign of over-optimisation"
        summary += f"; the budget is {budget:,.0f} forward tokens"
        said: dict[str, Any] = {"table": table, "findings": words, "samples": shown, "ranked": ranked}
        return stage_result(summary, **said, budget=budget, steps=steps)


def _cells(measured: Measures, columns: Mapping[str, str]) -> list[str]:
    rates = [rate_cell(measured[key]) for key in columns]
    return [*rates, number(measured["kl"]["value"]), number(measured["tokens"]), percent(measured["truncated"])]
