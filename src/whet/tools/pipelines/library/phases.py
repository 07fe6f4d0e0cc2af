"""Stages that tell what one phase of training leaves of another: preferences and verifiable rewards of each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from whet.record.metrics.intervals import share_interval, shares_apart
from whet.record.metrics.win_rate import WinRate, change_with_interval, mean_with_interval, win_shares
from whet.record.text import headline, number, percent
from whet.tools.pipelines.library import takes
from whet.tools.pipelines.library.entry import Composition, StageEntry, StageInput, StageWork
from whet.tools.pipelines.library.evaluation import eval_input, measured
from whet.tools.pipelines.library.judged import (
    JUDGE,
    JUDGED,
    JudgedEntry,
    kl_words,
    length_slope,
    measures,
    plain_metrics,
    rate_cell,
    rate_of,
    sample_pairs,
    with_known_scores,
)
from whet.tools.pipelines.library.sampler import Row, model_sampler, row_prompt
from whet.tools.pipelines.settings import PipelineSettings, can_evaluate
from whet.tools.pipelines.stages import stage_result
from whet.types import WhetError

PAIR_WINS = "pair_wins.jsonl"
NOISE = 2.0  # standard errors
SAMPLES = 6


class MeasuredEntry(JudgedEntry, kind="measured"):
    """Both metrics of a policy: preferences, by a judge and by held-out pairs, and the verifiable reward."""

    says: ClassVar[str] = "{policy}: held-out pairs, the judge and the reward"

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        if not can_evaluate(composition.settings):
            raise WhetError(
                "phased measures what rewards teach on held-out prompts: give eval.source and eval.reward.parts, or a "
                "task as data"
            )
        return {**super().find_inputs(composition), "eval": eval_input(self, composition)}

    def work(self, run: StageWork) -> Mapping[str, Any]:
        rows = self.write(run, self.completions)
        wins = pair_wins(run)
        run.write(PAIR_WINS, [{"win": win} for win in wins])
        start = run.file_rows(self.against, JUDGED) if self.against else rows
        judged, scored = measures(rows, start, length_slope(start)), measured(run, "policy")
        metrics, preferred, main = plain_metrics(judged), rate_of(wins), headline(scored["metrics"]) or ""
        words = [
            scored["summary"],
            f"pair accuracy {rate_cell(preferred)}",
            f"win rate {rate_cell(judged['win_rate'])} by the judge, {kl_words(judged)}",
        ]
        task = {name: value for name, value in scored["metrics"].items() if name not in metrics}
        return stage_result(
            "; ".join(words),
            {**task, **metrics, "pair_accuracy": fmean(wins)},
            eval_prompts=scored["eval_prompts"],
            measured={**judged, "pair_accuracy": preferred},
            task_metric=main,
            task_value=scored["metrics"].get(main),
        )


def pair_wins(run: StageWork) -> list[float]:
    """For each held-out pair, 1 where the policy prefers the chosen completion more than the first policy did, else 0;
    1/2 for a tie.

    (log pi(chosen) - log pi(rejected)) - the same of the first policy > 0: the implicit reward of preference methods.
    """
    rows = run.rows("pairs")
    if run.model("policy") == run.model("start"):
        return [0.5] * len(rows)
    policy, first = (_margins(run.settings, run.model(key), rows) for key in ("policy", "start"))
    return [0.5 if one == two else float(one > two) for one, two in zip(policy, first, strict=True)]


def _margins(settings: PipelineSettings, model: str, rows: Sequence[Row]) -> list[float]:
    logp = model_sampler(settings, model).pair_logp(
        [(row_prompt(row), (row["chosen"], row["rejected"])) for row in rows]
    )
    return [float(chosen.double().sum() - rejected.double().sum()) for chosen, rejected in logp]


def kept_verdict(what: str, before: float, after: float, change: WinRate, tolerance: float) -> str:
    """Kept: the loss is within the tolerance for sure. Lost: it is a loss for sure, and may be beyond the tolerance."""
    words = (
        f"{what} {percent(before)} to {percent(after)}, a change of {100 * change.value:+.1f} points "
        f"({100 * change.low:+.1f} to {100 * change.high:+.1f})"
    )
    if change.low >= -tolerance:
        return f"kept: {words}"
    if change.high < 0:
        return f"LOST: {words}"
    return f"cannot be told: {words}, on {change.prompts}; measure on more"


class PhaseCheckEntry(StageEntry, kind="phase_check", gives=("metrics",)):
    """What each later phase left of the first, with intervals."""

    says: ClassVar[str] = "what each phase left of the one before it, with intervals"

    start: takes.Result = Field(description="the stage of kind measured of the first policy")
    phases: Annotated[dict[str, str], takes.RESULT] = Field(
        min_length=2, description="phase = its stage of kind measured, in order"
    )
    taught: Literal["preference", "rl"] = Field(description="what the first phase teaches")
    tolerance: float = Field(0.05, ge=0, lt=1, description="share of the first phase's metric that may be lost")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        inputs = super().find_inputs(composition)
        return {self.start: inputs.pop("start"), **inputs}

    def work(self, run: StageWork) -> Mapping[str, Any]:
        table = [["", "pair accuracy", "win rate by the judge", "KL", run.result(self.start)["task_metric"]]]
        for name, stage in {"the first policy": self.start, **self.phases}.items():
            result = run.result(stage)
            rates = [rate_cell(result["measured"][key]) for key in ("pair_accuracy", "win_rate")]
            low, high = share_interval(result["task_value"], result["eval_prompts"])
            task = {"value": result["task_value"], "low": low, "high": high}
            table.append([name, *rates, number(result["measured"]["kl"]["value"]), rate_cell(task)])
        first, second, *_ = self.phases
        verdicts = {name: self.verdicts(run, first, name) for name in list(self.phases)[1:]}
        words = [f"{name}: {verdict}" for name, stage_verdicts in verdicts.items() for verdict in stage_verdicts]
        summary = f"what {first} taught, after {second}: {'; '.join(verdicts[second])}"
        rows, start_rows = (run.file_rows(stage, JUDGED) for stage in (self.phases[second], self.start))
        samples = [{"way": second, **pair} for pair in sample_pairs(rows, start_rows, SAMPLES)]
        return stage_result(summary, table=table, findings=words, samples=samples)

    def verdicts(self, run: StageWork, first: str, phase: str) -> list[str]:
        """Whether what the first phase taught is still there after this one."""
        both = (self.phases[first], self.phases[phase])
        if self.taught == "rl":
            one, two = (float(run.result(stage)["task_value"]) for stage in both)
            count = run.result(both[1])["eval_prompts"]
            error = abs(two - one) / abs(shares_apart(two, one, count)) if two != one else 0.0
            change = WinRate(two - one, two - one - NOISE * error, two - one + NOISE * error, count)
            return [kept_verdict(str(run.result(both[1])["task_metric"]), one, two, change, self.tolerance)]
        start = run.file_rows(self.start, JUDGED)
        columns = {
            "pair accuracy": [[row["win"] for row in run.file_rows(stage, PAIR_WINS)] for stage in both],
            "win rate by the judge": [_shares(run.file_rows(stage, JUDGED), start) for stage in both],
        }
        judgements = []
        for what, values in columns.items():
            moved, before, after = change_with_interval(*values), *(mean_with_interval(column) for column in values)
            if moved is not None and before is not None and after is not None:
                judgements.append(kept_verdict(what, before.value, after.value, moved, self.tolerance))
        return judgements


def _shares(rows: Sequence[Row], start: Sequence[Row]) -> list[float | None]:
    start = with_known_scores(start, start)
    known = with_known_scores(rows, start)
    return win_shares([row[JUDGE] for row in known], [row[JUDGE] for row in start])
