"""Stages that judge policies beside the one they started from, choose the best of n, and lay several ways side by side.

The *reward model* is what a policy may have been trained against; the *judge* is another one, of another seed and of
pairs that neither the policy nor the reward model has seen. Where the first says more than the second, the reward model
was over-optimised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import log
from statistics import fmean
from typing import Any, ClassVar

from pydantic import Field

from whet.record.metrics.win_rate import (
    WinRate,
    best_of_shares,
    completion_wins,
    mean_with_interval,
    win_shares,
    win_shares_by_length,
)
from whet.record.text import count_of, number, percent
from whet.reward.sections import RewardSection
from whet.settings.bounds import MOST_SAMPLES, MOST_SEED
from whet.tools.pipelines.library.entry import Composition, Inputs, StageEntry, StageInput, StageWork
from whet.tools.pipelines.library.pairs import SplitPairsEntry, row_prompt
from whet.tools.pipelines.library.sampler import (
    ModelSampler,
    Row,
    chunk_size,
    completion_row,
    sampled_rows,
    summed_logp,
)
from whet.tools.pipelines.library.trainings import SELECTION, choices_within
from whet.tools.pipelines.settings import PipelineSettings, answer_reward, can_evaluate, sampling_config
from whet.tools.pipelines.stages import StageCost, read_json_lines, stage_result
from whet.training.config import EvaluationConfig
from whet.types import Prompt, Sample

REWARD_MODEL, JUDGE, TRUTH = "reward_model", "judge", "truth"
FAR = 10.0  # nats: the start would write such a completion once in e^10 = 22,000 times
JudgedRow = Mapping[str, Any]
JUDGED = "judged.jsonl"
SAMPLES = 4  # completions of each policy that the page shows
COLUMNS = {
    "win_rate": "win rate by the judge",
    "win_rate_same_length": "at equal length",
    "win_rate_reward_model": "by the reward model",
}
Scorer = Callable[[Sequence[Prompt], Sequence[Sequence[Sample]]], list[list[float | None]]]


@dataclass(frozen=True)
class PolicyMeasures:
    """One policy against the start. Rates with intervals over prompts; None: nothing to measure it by."""

    win_rate: WinRate | None  # by the judge
    win_rate_reward_model: WinRate | None
    win_rate_same_length: WinRate | None  # by the judge, with what length alone earns taken off
    win_rate_shorter: WinRate | None  # of the comparisons in which it wrote less
    win_rate_longer: WinRate | None
    kl: WinRate | None  # nats per completion
    tokens: float
    start_tokens: float
    truncated: float
    accuracy: WinRate | None = None

    def json(self) -> dict[str, Any]:
        """As a stage's result keeps it."""
        return asdict(self)

    def metrics(self) -> dict[str, float]:
        """Plain numbers, for the tables of a pipeline."""
        rates = {name: value for name, value in vars(self).items() if isinstance(value, WinRate)}
        metrics = {name: rate.value for name, rate in rates.items()}
        for name in ("win_rate", "accuracy"):
            if name in rates:
                metrics |= {f"{name}_low": rates[name].low, f"{name}_high": rates[name].high}
        return metrics | {"completion_tokens": self.tokens, "truncated": self.truncated}


def measures(rows: Sequence[JudgedRow], start: Sequence[JudgedRow], slope: float) -> PolicyMeasures:
    """A policy's judged rows against those of the start; `slope` is what the judge gives for one token more."""
    start = with_known_scores(start, start)
    rows = with_known_scores(rows, start)
    by_length = win_shares_by_length(
        _column(rows, JUDGE), _column(start, JUDGE), _column(rows, "tokens"), _column(start, "tokens")
    )
    lengthless = (_without_length(rows, slope), _without_length(start, slope))
    return PolicyMeasures(
        win_rate=mean_with_interval(win_shares(_column(rows, JUDGE), _column(start, JUDGE))),
        win_rate_reward_model=mean_with_interval(win_shares(_column(rows, REWARD_MODEL), _column(start, REWARD_MODEL)))
        if REWARD_MODEL in rows[0]
        else None,
        win_rate_same_length=mean_with_interval(win_shares(*lengthless)),
        win_rate_shorter=mean_with_interval(by_length["shorter"]),
        win_rate_longer=mean_with_interval(by_length["longer"]),
        kl=mean_with_interval([fmean(row["kl"]) for row in rows]),
        tokens=_mean_of(rows, "tokens"),
        start_tokens=_mean_of(start, "tokens"),
        truncated=1 - _mean_of(rows, "finished"),
        accuracy=mean_with_interval([_known_mean(row[TRUTH]) for row in rows]) if TRUTH in rows[0] else None,
    )


def selected_measures(pool: Sequence[JudgedRow], start: Sequence[JudgedRow], slope: float, n: int) -> PolicyMeasures:
    """Best of n by the reward model, expected over every subset of n of a pool that the start policy wrote.

    KL(best of n || start) = log n - (n - 1) / n, an upper bound where completions repeat. Beirami et al. 2024
    (2401.01879).
    """
    start = with_known_scores(start, start)
    pool = with_known_scores(pool, start)
    chosen_by = _column(pool, REWARD_MODEL)

    def expected(outcomes: Sequence[Sequence[float | None]]) -> list[float | None]:
        return best_of_shares(outcomes, chosen_by, n)

    def rate(name: str, adjust: bool = False) -> WinRate | None:
        ours, theirs = (_without_length(rows, slope) if adjust else _column(rows, name) for rows in (pool, start))
        return mean_with_interval(expected([completion_wins(*outcomes) for outcomes in zip(ours, theirs, strict=True)]))

    bound = log(n) - (n - 1) / n
    return PolicyMeasures(
        win_rate=rate(JUDGE),
        win_rate_reward_model=rate(REWARD_MODEL),
        win_rate_same_length=rate(JUDGE, adjust=True),
        win_rate_shorter=None,
        win_rate_longer=None,
        kl=WinRate(bound, bound, bound, len(pool)),
        tokens=fmean(_known(expected(_column(pool, "tokens")))),
        start_tokens=_mean_of(start, "tokens"),
        truncated=1 - fmean(_known(expected([[float(finished) for finished in row["finished"]] for row in pool]))),
        accuracy=mean_with_interval(expected(_column(pool, TRUTH))) if TRUTH in pool[0] else None,
    )


def with_known_scores(rows: Sequence[JudgedRow], start: Sequence[JudgedRow]) -> list[dict[str, Any]]:
    """The rows with the start's scores for completions that it wrote too.

    A model's score of one text depends on its batch in the last digits: without this, equal completions would not tie.
    """
    names = [name for name in (JUDGE, REWARD_MODEL) if name in rows[0] and name in start[0]]
    scored = []
    for row, other in zip(rows, start, strict=True):
        known = {name: dict(zip(other["completions"], other[name], strict=True)) for name in names}
        scored.append(
            {
                **row,
                **{
                    name: [known[name].get(*pair) for pair in zip(row["completions"], row[name], strict=True)]
                    for name in names
                },
            }
        )
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


def rate_text(rate: WinRate | None) -> str:
    """`61.5% (57.0 to 66.1)`."""
    return rate_cell(None if rate is None else asdict(rate))


def rate_cell(rate: Mapping[str, float] | None) -> str:
    """The same of a rate as JSON."""
    return "" if rate is None else f"{percent(rate['value'])} ({100 * rate['low']:.1f} to {100 * rate['high']:.1f})"


def sample_pairs(rows: Sequence[JudgedRow], start: Sequence[JudgedRow], count: int) -> list[dict[str, Any]]:
    """Completions of both to the same prompts, evenly spread from where the judge likes the policy least to most."""

    def gap(row: JudgedRow, other: JudgedRow, name: str) -> float | None:
        one, two = (source.get(name, [None])[0] for source in (row, other))
        return None if one is None or two is None else one - two

    scored = [(gap(row, other, JUDGE), row, other) for row, other in zip(rows, start, strict=True)]
    known = sorted([pair for pair in scored if pair[0] is not None], key=lambda each: float(each[0] or 0.0))
    chosen = sorted({round(at * (len(known) - 1) / max(1, count - 1)) for at in range(count)}) if known else []
    shown = []
    for judged, row, other in (known[at] for at in chosen):
        content = row["prompt"]
        shown.append(
            {
                "prompt": content if isinstance(content, str) else str(content[-1]["content"]),
                "completion": row["completions"][0],
                "start": other["completions"][0],
                "judge_gap": judged,
                "reward_model_gap": gap(row, other, REWARD_MODEL),
            }
        )
    return shown


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


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return fmean(known) if known else None


def mean_sequence(rows: Sequence[JudgedRow]) -> tuple[float, float]:
    """Tokens of a prompt and of a completion, on average over the completions."""
    prompt = fmean(row["prompt_tokens"] for row in rows)
    return prompt, _mean_of(rows, "tokens")


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

    unplanned: ClassVar[frozenset[str]] = frozenset({"start", JUDGE, REWARD_MODEL, "against", "pairs", "cost of"})
    cosmetic: ClassVar[frozenset[str]] = frozenset({"name", "who", "number"})

    policy: str = Field("", description="the stage or model that is judged; empty: the pipeline's model")
    start: str = Field("", description="the stage or model that the KL is measured from; empty: the pipeline's model")
    against: str = Field("", description="the stage in which the start was judged; empty: this one judges the start")
    judge: str = Field(description="a stage or folder of a reward model that nothing is trained against")
    reward_model: str = Field("", description="one that policies are trained against; empty: none")
    prompts: str = Field(description="an earlier stage or a file; an answer makes the truth known")
    pairs: str = Field("", description="pairs whose tokens are counted, for the cost of learning from them")
    completions: int = Field(4, ge=1, le=MOST_SAMPLES, description="that the policy writes to each prompt")
    seed_offset: int = Field(0, ge=0, le=MOST_SEED, description="sets its samples apart from those of other stages")
    who: str = Field("", description="whose metrics these are; empty: the policy's name")
    number: int = Field(0, ge=0, le=1000, description="after which round")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        prompts = composition.rows(self, "prompts", self.prompts)
        split = composition.entries.get(prompts.stage)
        inputs = {
            "policy": composition.model(self, "policy", self.policy),
            "start": composition.model(self, "start", self.start),
            "prompts": replace(prompts, count=split.judged_prompts if isinstance(split, SplitPairsEntry) else 0),
            JUDGE: composition.reward_model(self, "judge", self.judge),
        }
        if self.reward_model:
            inputs[REWARD_MODEL] = composition.reward_model(self, "reward_model", self.reward_model)
        if self.against:
            inputs["against"] = composition.rows(self, "against", f"{self.against}/{JUDGED}")
        if self.pairs:
            inputs["pairs"] = composition.rows(self, "pairs", self.pairs, ("pairs",))
        return inputs

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        text = f"{inputs['policy'].label} answers the held-out prompts"
        if not self.against:
            return f"{text}: what the others are compared with"
        return f"{text}, and is judged against {inputs['start'].label}"

    def rewards(self, settings: PipelineSettings) -> Sequence[RewardSection]:
        return (answer_reward(settings),)

    def measures(self, composition: Composition) -> tuple[str, int]:
        return self.who or self.policy or composition.settings.model.name, self.number

    def most_completions(self) -> int:
        """Completions per prompt, at most."""
        return self.completions

    def cost(self, settings: PipelineSettings, inputs: Inputs) -> StageCost:
        completions = inputs["prompts"].count * self.most_completions()
        return StageCost(completions=completions, sampled_tokens=completions * settings.sampling.max_new_tokens)

    def write(self, run: StageWork, count: int) -> list[Row]:
        """`count` completions to each prompt, with scores, lengths and KL: rows of judged.jsonl."""
        from whet.training.assembly.runtime import sampling_from

        prompts = [row_prompt(row) for row in run.rows("prompts")]
        knows_truth = can_evaluate(run.settings) and any(prompt.answer is not None for prompt in prompts)
        config = sampling_config(run.settings, run.model("policy"))
        judges = _Judges(config, run)
        sampling, seed = sampling_from(config.sampling), (config.seed, 2, self.seed_offset)

        def rows_of(sampler: ModelSampler, at: int, chunk: Sequence[Prompt]) -> list[Row]:
            written = sampler.completions(chunk, count, sampling, (*seed, at))
            columns: dict[str, list[list[Any]]] = {"kl": judges.log_ratios(sampler, written)}
            columns |= {name: scorer(chunk, written) for name, scorer in judges.scorers.items()}
            if knows_truth:
                columns[TRUTH] = sampler.scores(None, chunk, written)
            return [
                {
                    **completion_row(prompt, samples),
                    "prompt_tokens": _prompt_tokens(samples[0]),
                    **{name: column[index] for name, column in columns.items()},
                }
                for index, (prompt, samples) in enumerate(zip(chunk, written, strict=True))
            ]

        return sampled_rows(run.folder / JUDGED, config, prompts, chunk_size(32), rows_of)

    def work(self, run: StageWork) -> Mapping[str, Any]:
        rows = self.write(run, self.completions)
        if self.against:
            start = run.rows("against")
            return judged_result(measures(rows, start, length_slope(start)), rows)
        prompt, completion = mean_sequence(rows)
        measured = measures(rows, rows, 0.0)
        return stage_result(
            f"{number(completion)} tokens per completion, {percent(measured.truncated)} cut off",
            measured.metrics(),
            {"truncated_completions": sum(not finished for row in rows for finished in row["finished"])},
            measured=measured.json(),
            sequence=prompt + completion,
            prompt=prompt,
            pair_tokens=pair_tokens(run) if self.pairs else None,
            eval_prompts=len(rows),
        )


def judged_result(found: PolicyMeasures, rows: Sequence[Row]) -> dict[str, Any]:
    """What a policy came to against the start."""
    words = [
        f"win rate {rate_text(found.win_rate)} by the judge",
        *([f"{rate_text(found.win_rate_reward_model)} by the reward model"] if found.win_rate_reward_model else []),
        f"KL {number(found.kl.value if found.kl else None)}",
        f"{number(found.tokens)} tokens ({number(found.start_tokens)} before)",
    ]
    return stage_result(", ".join(words), found.metrics(), eval_prompts=len(rows), measured=found.json())


def pair_tokens(run: StageWork) -> float:
    """Tokens of a pair, its prompt counted with each completion."""
    from whet.data.families import completion_families

    tokenizer = ModelSampler(sampling_config(run.settings, run.model("start"))).runtime.loaded.tokenizer
    pairs = ((row_prompt(row), (row["chosen"], row["rejected"])) for row in run.rows("pairs"))
    families = completion_families(tokenizer, pairs)
    return fmean(sum(len(completion.tokens) for completion in family) for family in families)


def _prompt_tokens(sample: Sample) -> int:
    """Tokens before the first that the policy chose."""
    return int(sample.action.int().argmax()) if sample.num_actions else len(sample.tokens)


class _Judges:
    """The models that completions are measured with, each read when it is first asked."""

    def __init__(self, config: EvaluationConfig, run: StageWork) -> None:
        self._config, self._run = config, run

    @cached_property
    def scorers(self) -> dict[str, Scorer]:
        return {
            name: self._scorer(self._run.weights(name)) for name in (REWARD_MODEL, JUDGE) if name in self._run.inputs
        }

    def _scorer(self, folder: str) -> Scorer:
        from whet.reward.learned.outcome import learned

        network = learned(folder=folder, device=self._config.model.device)

        def scores(prompts: Sequence[Prompt], written: Sequence[Sequence[Sample]]) -> list[list[float | None]]:
            flat = [prompt for prompt, samples in zip(prompts, written, strict=True) for _ in samples]
            scored = iter(network(flat, [sample for samples in written for sample in samples]))
            return [[next(scored) for _ in samples] for samples in written]

        return scores

    @cached_property
    def _start(self) -> ModelSampler:
        return ModelSampler(sampling_config(self._run.settings, self._run.model("start")))

    def log_ratios(self, sampler: ModelSampler, written: Sequence[Sequence[Sample]]) -> list[list[float]]:
        """SUM_t log pi / pi_start of each completion: its mean over the policy's own completions estimates the KL."""
        if self._run.model("policy") == self._run.model("start"):
            return [[0.0] * len(samples) for samples in written]
        samples = [sample for group in written for sample in group]
        temperature = self._config.sampling.temperature
        own, start = (summed_logp(model.runtime.policy, samples, temperature) for model in (sampler, self._start))
        gaps = iter([one - other for one, other in zip(own, start, strict=True)])
        return [[next(gaps) for _ in group] for group in written]


class BestOfEntry(JudgedEntry, kind="best_of_n"):
    """No training: the reward model chooses among n completions of the start policy to each prompt."""

    most_n: int = Field(64, ge=1, le=MOST_SAMPLES, description="at most this n; less where the budget is spent before")
    cost_of: str = Field("", description="the training whose budget n spends on these prompts; empty: n is most_n")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        inputs = super().find_inputs(composition)
        if self.cost_of:
            inputs["cost of"] = composition.model(self, "cost_of", self.cost_of)
        return inputs

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return f"{inputs['policy'].label} writes n completions to each held-out prompt; the reward model chooses"

    def most_completions(self) -> int:
        return self.most_n

    def work(self, run: StageWork) -> Mapping[str, Any]:
        start, lengths = run.rows("against"), run.result("against")
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
            "curve": {str(size): selected_measures(rows, start, slope, size).json() for size in sizes},
        }


class WaysEntry(StageEntry, kind="compare_ways", gives=("metrics",)):
    """Several ways to optimise one reward side by side: win rates, KL, length, what each spent."""

    start: str = Field(description="the stage in which the start was judged")
    trainings: dict[str, str] = Field(description="way = the stage that trained it, or chose; its cost is compared")
    judged: dict[str, str] = Field(description="way = the stage in which it was judged")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        names = dict.fromkeys((self.start, *self.trainings.values(), *self.judged.values()))
        return {name: composition.known_stage(self, "judged", name) for name in names}

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return "all ways side by side: win rates, KL, length, what each spent"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        start = run.result(self.start)
        start_rows = read_json_lines(run.done[self.start].folder / JUDGED)
        columns = {**COLUMNS, **({"accuracy": "accuracy"} if start["measured"]["accuracy"] else {})}
        table = [["", "spent", *columns.values(), "KL", "tokens", "cut off"]]
        table.append([self.start.removesuffix("-judged"), "", *_cells(start["measured"], columns)])
        words, shown, measured, steps, budget = [], [], {}, {}, 0.0
        for way, stage in self.judged.items():
            result, training = run.result(stage), run.result(self.trainings[way])
            measured[way], steps[way], budget = (
                result["measured"],
                training.get("n") or training["steps"],
                training["budget"],
            )
            name = f"{way} (n = {result['n']})" if "n" in result else way
            table.append([name, percent(training["spent"] / budget), *_cells(result["measured"], columns)])
            words += optimised_words(name, result["measured"], start["measured"])
            if "n" not in result:
                rows = read_json_lines(run.done[stage].folder / JUDGED)
                shown += [{"way": way, **pair} for pair in sample_pairs(rows, start_rows, SAMPLES)]
        ranked, summary = headline(measured, start["measured"], self.start.removesuffix("-judged"))
        summary += f"; {count_of(len(words), 'warning')}" if words else "; no sign of over-optimisation"
        summary += f"; the budget is {budget:,.0f} forward tokens"
        said: dict[str, Any] = {"table": table, "findings": words, "samples": shown, "ranked": ranked}
        return stage_result(summary, **said, budget=budget, steps=steps)


def _cells(measured: Mapping[str, Any], columns: Mapping[str, str]) -> list[str]:
    rates = [rate_cell(measured[key]) for key in columns]
    return [*rates, number(measured["kl"]["value"]), number(measured["tokens"]), percent(measured["truncated"])]
