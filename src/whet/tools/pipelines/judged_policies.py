"""A policy beside the one it started from: completions to held-out prompts, the scores of two reward models, the KL.

The *reward model* is what a policy may have been trained against; the *judge* is another one, of another seed and of
pairs that neither the policy nor the reward model has seen. Where the first says more than the second, the reward model
was over-optimised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

from whet.record.metrics.win_rate import (
    WinRate,
    best_of_shares,
    completion_wins,
    mean_with_interval,
    win_shares,
    win_shares_by_length,
)
from whet.record.text import percent
from whet.tools.pipelines.generation import CHUNK, ModelSampler, Row, completion_row, sampled_rows
from whet.training.config import EvaluationConfig
from whet.types import Group, Prompt, Sample

JUDGED = "judged.jsonl"
REWARD_MODEL, JUDGE, TRUTH = "reward_model", "judge", "truth"
MICRO_BATCH_TOKENS = 16_384


@dataclass(frozen=True)
class Judgment:
    """What completions of one policy are measured with."""

    start: str  # the model that KL is measured from
    reward_models: Mapping[str, str]  # REWARD_MODEL and JUDGE -> folder; the first may be missing
    knows_truth: bool = False  # the prompts have answers that the reward of the eval can check


def write_judged(
    folder: Path,
    config: EvaluationConfig,
    prompts: Sequence[Prompt],
    count: int,
    seed: tuple[int, ...],
    judgment: Judgment,
) -> list[Row]:
    """`count` completions of the config's model to each prompt, with scores, lengths and KL: rows of judged.jsonl."""
    from whet.training.assembly.runtime import sampling_from

    sampling, judges = sampling_from(config.sampling), _Judges(config, judgment)

    def rows_of(sampler: ModelSampler, number: int, chunk: Sequence[Prompt]) -> list[Row]:
        written = sampler.completions(chunk, count, sampling, (*seed, number))
        rows = []
        truth = sampler.scores(None, chunk, written) if judgment.knows_truth else None
        gaps = judges.log_ratios(sampler, written)
        scores = {name: judge(chunk, written) for name, judge in judges.scorers.items()}
        for place, (prompt, samples) in enumerate(zip(chunk, written, strict=True)):
            row = {**completion_row(prompt, samples), "lengths": [each.num_actions for each in samples]}
            row |= {"prompt_tokens": _prompt_tokens(samples[0]), "kl": gaps[place]}
            row |= {name: given[place] for name, given in scores.items()}
            rows.append({**row, TRUTH: truth[place]} if truth is not None else row)
        return rows

    return sampled_rows(folder / JUDGED, config, prompts, CHUNK, rows_of)


def _prompt_tokens(sample: Sample) -> int:
    """Tokens before the first that the policy chose."""
    return int(sample.action.int().argmax()) if sample.num_actions else len(sample.tokens)


class _Judges:
    """The models that completions are measured with, each read when it is first asked."""

    def __init__(self, config: EvaluationConfig, judgment: Judgment) -> None:
        self._config, self._judgment = config, judgment

    @cached_property
    def scorers(self) -> dict[str, Callable[[Sequence[Prompt], Sequence[Sequence[Sample]]], list[list[float | None]]]]:
        from whet.reward.learned import learned

        device = self._config.model.device

        def scorer(folder: str) -> Any:
            network = learned(folder=folder, device=device)

            def scores(prompts: Sequence[Prompt], written: Sequence[Sequence[Sample]]) -> list[list[float | None]]:
                flat = [prompt for prompt, samples in zip(prompts, written, strict=True) for _ in samples]
                given = iter(network(flat, [sample for samples in written for sample in samples]))
                return [[next(given) for _ in samples] for samples in written]

            return scores

        return {name: scorer(folder) for name, folder in self._judgment.reward_models.items()}

    @cached_property
    def _start(self) -> ModelSampler:
        model = self._config.model.model_copy(update={"name": self._judgment.start})
        return ModelSampler(self._config.model_copy(update={"model": model}))

    def log_ratios(self, sampler: ModelSampler, written: Sequence[Sequence[Sample]]) -> list[list[float]]:
        """SUM_t log pi / pi_start of each completion: its mean over the policy's own completions estimates the KL."""
        if self._config.model.name == self._judgment.start:
            return [[0.0] * len(samples) for samples in written]
        samples = [sample for each in written for sample in each]
        own, start = (self._logp(each, samples) for each in (sampler, self._start))
        gaps = iter([one - other for one, other in zip(own, start, strict=True)])
        return [[next(gaps) for _ in each] for each in written]

    def _logp(self, sampler: ModelSampler, samples: Sequence[Sample]) -> list[float]:
        from whet.data.packing import token_batch
        from whet.training.update import token_scores

        batch = token_batch([Group(Prompt("", ()), tuple(samples))])
        temperature = self._config.sampling.temperature
        logp = token_scores(sampler.runtime.policy, batch, temperature, MICRO_BATCH_TOKENS).logp
        return [float(each) for each in (logp.double() * batch.action).sum(-1)]


def judged_prompts(rows: Sequence[Mapping[str, Any]], count: int) -> list[Row]:
    """The first `count` different prompts of the pairs."""
    found: dict[str, Row] = {}
    for row in rows:
        kept = {name: row[name] for name in ("id", "prompt", "answer") if name in row}
        found.setdefault(str(row["id"]), kept)
    return list(found.values())[:count]


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
        return asdict(self)

    def metrics(self) -> dict[str, float]:
        """Plain numbers, for the tables of a pipeline."""
        rates = {name: value for name, value in vars(self).items() if isinstance(value, WinRate)}
        found = {name: rate.value for name, rate in rates.items()}
        for name in ("win_rate", "accuracy"):
            if name in rates:
                found |= {f"{name}_low": rates[name].low, f"{name}_high": rates[name].high}
        return found | {"completion_tokens": self.tokens, "truncated": self.truncated}


def measures(rows: Sequence[Row], start: Sequence[Row], slope: float) -> PolicyMeasures:
    """A policy's judged rows against those of the start; `slope` is what the judge gives for one token more."""
    start = with_known_scores(start, start)
    rows = with_known_scores(rows, start)
    by_length = win_shares_by_length(
        _column(rows, JUDGE), _column(start, JUDGE), _column(rows, "lengths"), _column(start, "lengths")
    )
    lengthless = (_without_length(rows, slope), _without_length(start, slope))
    return PolicyMeasures(
        mean_with_interval(win_shares(_column(rows, JUDGE), _column(start, JUDGE))),
        mean_with_interval(win_shares(_column(rows, REWARD_MODEL), _column(start, REWARD_MODEL)))
        if REWARD_MODEL in rows[0]
        else None,
        mean_with_interval(win_shares(*lengthless)),
        mean_with_interval(by_length["shorter"]),
        mean_with_interval(by_length["longer"]),
        mean_with_interval([fmean(row["kl"]) for row in rows]),
        _mean_of(rows, "lengths"),
        _mean_of(start, "lengths"),
        1 - _mean_of(rows, "finished"),
        mean_with_interval([_known_mean(row[TRUTH]) for row in rows]) if TRUTH in rows[0] else None,
    )


def selected_measures(pool: Sequence[Row], start: Sequence[Row], slope: float, n: int) -> PolicyMeasures:
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
        ours, theirs = (_without_length(each, slope) if adjust else _column(each, name) for each in (pool, start))
        return mean_with_interval(expected([completion_wins(*each) for each in zip(ours, theirs, strict=True)]))

    bound = log(n) - (n - 1) / n
    return PolicyMeasures(
        rate(JUDGE),
        rate(REWARD_MODEL),
        rate(JUDGE, adjust=True),
        None,
        None,
        WinRate(bound, bound, bound, len(pool)),
        fmean(_known(expected(_column(pool, "lengths")))),
        _mean_of(start, "lengths"),
        1 - fmean(_known(expected([[float(each) for each in row["finished"]] for row in pool]))),
        mean_with_interval(expected(_column(pool, TRUTH))) if TRUTH in pool[0] else None,
    )


def with_known_scores(rows: Sequence[Row], start: Sequence[Row]) -> list[Row]:
    """The rows with the start's scores for completions that it wrote too.

    A model's score of one text depends on its batch in the last digits: without this, equal completions would not tie.
    """
    names = [name for name in (JUDGE, REWARD_MODEL) if name in rows[0] and name in start[0]]
    found = []
    for row, other in zip(rows, start, strict=True):
        known = {name: dict(zip(other["completions"], other[name], strict=True)) for name in names}
        found.append(
            {
                **row,
                **{
                    name: [known[name].get(*each) for each in zip(row["completions"], row[name], strict=True)]
                    for name in names
                },
            }
        )
    return found


def length_slope(start: Sequence[Row]) -> float:
    """What the judge gives a completion of the start policy for one token more, within prompts."""
    from whet.reward.learned import length_fit

    known = [
        (length, score, row["id"])
        for row in start
        for length, score in zip(row["lengths"], row[JUDGE], strict=True)
        if score is not None
    ]
    return length_fit(*zip(*known, strict=True)).slope if known else 0.0


def rate_text(rate: WinRate | None) -> str:
    """`61.5% (57.0 to 66.1)`."""
    return rate_cell(None if rate is None else asdict(rate))


def rate_cell(rate: Mapping[str, float] | None) -> str:
    """The same of a rate as JSON."""
    return "" if rate is None else f"{percent(rate['value'])} ({100 * rate['low']:.1f} to {100 * rate['high']:.1f})"


def sample_pairs(rows: Sequence[Row], start: Sequence[Row], count: int) -> list[dict[str, Any]]:
    """Completions of both to the same prompts, evenly spread from where the judge likes the policy least to most."""
    gaps: list[tuple[float, int, Row, Row]] = []
    for row, other in zip(rows, start, strict=True):
        if row[JUDGE][0] is not None and other[JUDGE][0] is not None:
            gaps.append((row[JUDGE][0] - other[JUDGE][0], len(gaps), row, other))
    gaps.sort(key=lambda each: each[:2])
    places = sorted({round(at * (len(gaps) - 1) / max(1, count - 1)) for at in range(count)}) if gaps else []
    return [
        {
            "prompt": _prompt_text(gaps[place][2]),
            "completion": gaps[place][2]["completions"][0],
            "start": gaps[place][3]["completions"][0],
            "judge_gap": gaps[place][0],
            "reward_model_gap": _gap(gaps[place][2], gaps[place][3]),
        }
        for place in places
    ]


def _gap(row: Row, other: Row) -> float | None:
    one, two = (each.get(REWARD_MODEL, [None])[0] for each in (row, other))
    return None if one is None or two is None else one - two


def _prompt_text(row: Row) -> str:
    content = row["prompt"]
    return content if isinstance(content, str) else str(content[-1]["content"])


def _column(rows: Sequence[Row], name: str) -> list[list[Any]]:
    return [row[name] for row in rows]


def _without_length(rows: Sequence[Row], slope: float) -> list[list[float | None]]:
    return [
        [
            None if score is None else score - slope * length
            for score, length in zip(row[JUDGE], row["lengths"], strict=True)
        ]
        for row in rows
    ]


def _mean_of(rows: Sequence[Row], name: str) -> float:
    return fmean(value for row in rows for value in row[name])


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return fmean(known) if known else None


def mean_sequence(rows: Sequence[Row]) -> tuple[float, float]:
    """Tokens of a prompt and of a completion, on average over the completions."""
    prompt = fmean(row["prompt_tokens"] for row in rows)
    return prompt, _mean_of(rows, "lengths")
