"""What a policy's judged completions say beside those of the policy it started from: win rates, length, KL. Pure.

The *reward model* is what a policy may have been trained against; the *judge* is another one, of another seed and of
pairs that neither the policy nor the reward model has seen. Where the first says more than the second, the reward model
was over-optimised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log
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
from whet.record.text import number, percent

REWARD_MODEL, JUDGE, TRUTH = "reward_model", "judge", "truth"
FAR = 10.0  # nats: the start would write such a completion once in e^10 = 22,000 times
Row = Mapping[str, Any]


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


def measures(rows: Sequence[Row], start: Sequence[Row], slope: float) -> PolicyMeasures:
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


def with_known_scores(rows: Sequence[Row], start: Sequence[Row]) -> list[dict[str, Any]]:
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


def length_slope(start: Sequence[Row]) -> float:
    """What the judge gives a completion of the start policy for one token more, within prompts."""
    from whet.reward.learned import length_fit

    known = [
        (length, score, row["id"])
        for row in start
        for length, score in zip(row["tokens"], row[JUDGE], strict=True)
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

    def gap(row: Row, other: Row, name: str) -> float | None:
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


def _column(rows: Sequence[Row], name: str) -> list[list[Any]]:
    return [row[name] for row in rows]


def _without_length(rows: Sequence[Row], slope: float) -> list[list[float | None]]:
    return [
        [
            None if score is None else score - slope * length
            for score, length in zip(row[JUDGE], row["tokens"], strict=True)
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
