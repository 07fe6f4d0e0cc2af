"""Stages of self-improvement: a policy scores its own completions, and is watched for collapse.

A loop that feeds on its own judgment can go wrong while its own scores rise. So what the policy says of itself (scores,
ties, unreadable answers, length, variety) is set beside what is known without it: the truth, an anchor, eval accuracy.
A judged row has for each completion `judgments` (scores, None for one that could not be read), `truth` and `anchor`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from whet.record.metrics.intervals import shares_apart
from whet.record.text import count_of, percent
from whet.reward.sections import RewardSection
from whet.settings.bounds import MOST_REPEATS, MOST_SAMPLES
from whet.settings.sections import Section, Table, Temperature
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library import takes
from whet.tools.pipelines.library.entry import Composition, StageEntry, StageInput, StageWork
from whet.tools.pipelines.library.pairs import PairRow, best_against_worst, pairs_result
from whet.tools.pipelines.library.sampler import (
    ModelSampler,
    Row,
    WrittenChunk,
    chunk_size,
    completion_rows,
    sampled_rows,
    shown_row,
    task_demonstrations,
    task_reviews,
    training_prompts,
)
from whet.tools.pipelines.settings import (
    TRAIN_KEYS,
    PipelineSettings,
    can_evaluate,
    is_scored,
    sampling_config,
)
from whet.tools.pipelines.stages import StageCost, stage_result
from whet.types import Message, Prompt, Sampling

LOW, HIGH = 0.0, 5.0
SCORE = re.compile(r"\bscore\W{0,4}?:\W{0,4}?(\d+(?:\.\d+)?)(?!\.?\d)", re.IGNORECASE)
RUBRIC = (
    "Mark the answer above with 0 to 5 points, one point for each of these that holds:\n"
    "- it is about what was asked;\n"
    "- it settles a good part of it;\n"
    "- it settles all of it, and what it says is true;\n"
    "- it is clear and in good order;\n"
    "- an expert would leave it as it is.\n"
    "First give your reason in at most two sentences. Then end with the line\n"
    "Score: k\n"
    "where k is the number of points."
)
ScoredRow = Mapping[str, Any]
Signals = Mapping[str, float]  # of one round; those that could not be measured are left out
LONGER = 1.5  # times the length of the first round's completions
TOP, FLAT = 0.9, 0.05  # mean score and spread within a prompt, both as shares of the scale
TIED = 0.5  # of the prompts
UNREADABLE = 0.1  # of the judgments
ALIKE = 0.5  # times the distinct completions of the first round
JUDGE_LEAST, JUDGE_FALL = 0.65, 0.1  # of pairs ordered right; a coin has 1/2
AGREEMENT_LEAST = 0.65
NOISE = 2.0  # standard errors

# what `collapse_signals` finds, and after the round, the model as a judge of fixed completions
SIGNALS = (
    *("length", "own_score", "spread", "ties", "unreadable", "distinct", "truth_agreement", "anchor_agreement"),
    "judge_accuracy",
)
Scores = Sequence[float | None]
JUDGED, JUDGE_EVAL = "judged.jsonl", "judge_eval.jsonl"


def rubric_question(prompt: Prompt, completion: str) -> tuple[Message, ...]:
    """The additive rubric of Yuan 2024 (2401.10020) in whet's words: reason first, the score last."""
    asked = f"<question>\n{prompt.question()}\n</question>\n<answer>\n{completion}\n</answer>\n\n{RUBRIC}"
    return ({"role": "user", "content": asked},)


def short_score_question(prompt: Prompt, completion: str) -> tuple[Message, ...]:
    """A question that fits a small model which was taught what it means."""
    return ({"role": "user", "content": f"{prompt.question()}\n{completion}\nScore?"},)


def score_in(answer: str) -> float | None:
    """The "Score: k" of an answer; None where there is none on the scale, or two differ. Never 0 for silence.

    An answer that repeats a score of the completion beside its own cannot be read: which is which is not known.
    """
    stated = {float(score) for score in SCORE.findall(answer)}
    score = stated.pop() if len(stated) == 1 else math.nan
    return score if LOW <= score <= HIGH else None


def mean_score(judgments: Sequence[float | None]) -> float | None:
    """The mean of those that could be read, as a share of the scale."""
    known = [score for score in judgments if score is not None]
    return (fmean(known) - LOW) / (HIGH - LOW) if known else None


def self_scores(row: ScoredRow) -> list[float | None]:
    """The mean score the model gave to each completion of a row; None where no judgment could be read."""
    return [mean_score(judgments) for judgments in row["judgments"]]


def mixed_scores(row: ScoredRow, weight: float) -> list[float | None]:
    """(1 - weight) * own + weight * anchor; a completion that either of them cannot score is unscorable."""
    own = self_scores(row)
    if not weight:
        return own
    return [
        None if one is None or other is None else (1 - weight) * one + weight * other
        for one, other in zip(own, row["anchor"], strict=True)
    ]


def self_scored_pairs(rows: Sequence[ScoredRow], weight: float) -> tuple[list[PairRow], dict[str, int]]:
    """The best completion of each prompt against the worst, by its own scores mixed with the anchor's."""
    return best_against_worst([{**row, "scores": mixed_scores(row, weight)} for row in rows])


def judge_example(prompt: Prompt, completion: str, quality: float, reason: str) -> dict[str, Any]:
    """A demonstration of judging: a reason, then the score; 1 to 5, so that no completion scores nothing."""
    messages = [dict(message) for message in short_score_question(prompt, completion)]
    return {"prompt": messages, "completion": f"{reason} Score: {1 + round(4 * quality)}"}


def collapse_signals(rows: Sequence[ScoredRow], ties: int) -> Signals:
    """What the judged rows of a round show of the completions that it was trained on.

    `length` is in characters, `own_score` and `spread` (within a prompt) are shares of the scale, `ties` a share of the
    prompts, `unreadable` of the judgments, `distinct` of a prompt's completions. An agreement is how often the model
    orders two completions as the truth does, or the anchor.
    """
    scores = [self_scores(row) for row in rows]
    known = [[score for score in row_scores if score is not None] for row_scores in scores]

    def agreement(other: str) -> float:
        return order_accuracy([(own, row[other]) for own, row in zip(scores, rows, strict=True) if row.get(other)])

    signals = {
        "length": _mean([len(completion) for row in rows for completion in row["completions"]]),
        "own_score": _mean([score for row_scores in known for score in row_scores]),
        "spread": _mean([pstdev(row_scores) for row_scores in known if len(row_scores) > 1]),
        "ties": ties / max(1, len(rows)),
        "unreadable": _mean([score is None for row in rows for judgments in row["judgments"] for score in judgments]),
        "distinct": _mean([len(set(row["completions"])) / len(row["completions"]) for row in rows]),
        "truth_agreement": agreement("truth"),
        "anchor_agreement": agreement("anchor"),
    }
    return {name: value for name, value in signals.items() if not math.isnan(value)}


def order_accuracy(groups: Sequence[tuple[Scores, Scores]]) -> float:
    """The share of pairs ordered by the second scores of a group that its first order the same way; ties count half.

    An unscorable completion counts as wrong: a judge must not gain by giving unreadable answers.
    """
    met, total = 0.0, 0
    for own, truth in groups:
        known = [(score, true) for score, true in zip(own, truth, strict=True) if true is not None]
        for at, (one, better) in enumerate(known):
            for other, worse in known[at + 1 :]:
                if better == worse:
                    continue
                total += 1
                if one is not None and other is not None:
                    gap = (one - other) * (better - worse)
                    met += 0.5 if gap == 0 else float(gap > 0)
    return met / total if total else math.nan


def warnings(before: Signals, first: Signals, now: Signals) -> list[str]:
    """The signals past their threshold, each in words with its number. `before` is the first model, as a judge.

    A signal that is not known raises nothing.
    """
    high, low = {**dict.fromkeys(SIGNALS, -math.inf), **now}, {**dict.fromkeys(SIGNALS, math.inf), **now}
    raised = []
    if high["length"] > LONGER * first.get("length", math.inf):
        grew = f"{first['length']:.0f} to {now['length']:.0f}"
        raised.append(f"completions grew from {grew} characters (over {LONGER}x)")
    if high["own_score"] > TOP and low["spread"] < FLAT:
        raised.append(
            f"scores are saturated: mean {now['own_score']:.2f} of 1 (over {TOP}), spread {now['spread']:.3f} "
            f"(under {FLAT})"
        )
    if high["ties"] > TIED:
        raised.append(f"{now['ties']:.0%} of the prompts are ties (over {TIED:.0%})")
    if high["unreadable"] > UNREADABLE:
        raised.append(f"{now['unreadable']:.0%} of the judgments cannot be read (over {UNREADABLE:.0%})")
    if low["distinct"] < ALIKE * first.get("distinct", -math.inf):
        fell = f"{first['distinct']:.0%} to {now['distinct']:.0%}"
        raised.append(f"distinct completions fell from {fell} (under half)")
    if low["judge_accuracy"] < JUDGE_LEAST:
        raised.append(
            f"the judge orders {now['judge_accuracy']:.0%} of the reference pairs right, unreadable answers counted as "
            f"wrong (under {JUDGE_LEAST:.0%})"
        )
    elif low["judge_accuracy"] < before.get("judge_accuracy", -math.inf) - JUDGE_FALL:
        fell = f"{before['judge_accuracy']:.0%} to {now['judge_accuracy']:.0%}"
        raised.append(f"the judge fell from {fell} of the reference pairs (by over {JUDGE_FALL:.0%})")
    if low["truth_agreement"] < JUDGE_LEAST:
        raised.append(
            f"its scores order {now['truth_agreement']:.0%} of its completions as the truth does "
            f"(under {JUDGE_LEAST:.0%})"
        )
    if low["anchor_agreement"] < AGREEMENT_LEAST:
        agreed = f"{now['anchor_agreement']:.0%} (under {AGREEMENT_LEAST:.0%})"
        raised.append(f"its scores agree with the anchor on {agreed}")
    return raised


def collapse_verdict(accuracies: Sequence[float | None], raised: Sequence[str], eval_prompts: int) -> tuple[str, bool]:
    """Where the loop stands, and whether it collapsed: by the accuracy before the first round and after each, where it
    is known; else two signals decide."""
    known = [(accuracy, number) for number, accuracy in enumerate(accuracies) if accuracy is not None]
    if not eval_prompts or len(known) < 2:
        if len(raised) > 1:
            return (f"COLLAPSE is likely, {len(raised)} signals: {'; '.join(raised)}", True)
        return (f"one signal to watch: {raised[0]}" if raised else "no signal of collapse", False)
    (first, _), (last, _) = known[0], known[-1]
    best, number = max(known, key=lambda measured: measured[0])
    if shares_apart(best, last, eval_prompts) > NOISE:
        when = f"after round {number}" if number else "before the first round"
        others = "; ".join(raised) or "no other signal of it"
        fell = f"held-out accuracy fell from {best:.1%} {when} to {last:.1%}"
        return (f"COLLAPSE: {fell}; take the policy {when}; {others}", True)
    what = "better by more than noise" if shares_apart(last, first, eval_prompts) > NOISE else "no gain beyond noise"
    watched = f"to watch: {'; '.join(raised)}" if raised else "no signal of collapse"
    return (f"held-out accuracy {first:.1%} to {last:.1%}, {what}; {watched}", False)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


class TeachSection(Section):
    """The first training: to answer."""

    count: amounts.CountOrNone = Field(1024, description="demonstrations of a task that keep it answering; 0: none")
    share_worked: amounts.Share = Field(0.35, description="share of those that show their working")
    file: str = Field("", description="demonstrations of your own, with prompt and completion")
    train: Table = Field({}, description=f"settings of this first training: {TRAIN_KEYS}")


class SelfJudgeSection(Section):
    """How the policy judges itself."""

    question: Literal["rubric", "short"] = Field(
        "rubric", description="how the policy is asked for a score: by a rubric of 0 to 5, or as the task teaches it"
    )
    times: amounts.Repeats = Field(3, description="that each completion is judged; the mean counts")
    temperature: Temperature = Field(0.7, description="sampling temperature of judging")
    max_new_tokens: amounts.Tokens = Field(200, description="tokens of a judgment: a reason, then the score")
    examples: amounts.CountOrNone = Field(
        512, description="prompts of a task whose completions teach judging; 0: it is not taught"
    )
    file: str = Field("", description="demonstrations of judging of your own, whose completions end in 'Score: k'")
    eval_prompts: amounts.CountOrNone = Field(
        64, description="held-out prompts of a task that the judge is evaluated on in every round"
    )


class SelfExamplesEntry(StageEntry, kind="self_judging_examples", gives=("rows",), uses=("seed", "data")):
    """Examples of answering and of judging: a task's, and files of the user's."""

    says: ClassVar[str] = "examples of answering and of judging"

    learns: ClassVar[bool] = True

    teach: TeachSection = Field(description="settings of answering")
    judge: SelfJudgeSection = Field(description="settings of judging")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        files = {"teach": self.teach.file, "judge": self.judge.file}
        rows = takes.InputRule(("rows",))
        return {key: composition.find(self, f"{key}.file", file, rows) for key, file in files.items() if file}

    def work(self, run: StageWork) -> Mapping[str, Any]:
        from whet.data.prompts import demonstrations_from
        from whet.data.source import read_rows

        own = {key: demonstrations_from(read_rows(run.location(key))) for key in run.inputs}
        answering = task_demonstrations(run.settings, self.teach.count, self.teach.share_worked)
        judging = [
            judge_example(row.prompt, row.completion, row.quality, row.reason)
            for row in task_reviews(run.settings, self.judge.examples)
            if row.is_plain
        ]
        answering += map(shown_row, own.get("teach", ()))
        judging += map(shown_row, own.get("judge", ()))
        run.write("rows", [{**row, "id": str(number)} for number, row in enumerate((*answering, *judging))])
        counts = {"answering": len(answering), "judging": len(judging)}
        return stage_result(f"{len(answering)} of answering and {len(judging)} of judging", counts=counts)


class SelfJudgingEntry(StageEntry, uses=("seed", "model", "sampling", "data", "eval")):
    """What every stage has in which a policy scores completions."""

    model: takes.Model = Field("", description="the stage or model that judges; empty: the pipeline's model")
    judge: SelfJudgeSection = Field(SelfJudgeSection(), description="how it is asked")

    def judgments(
        self, sampler: ModelSampler, asked: Sequence[tuple[Prompt, str]], seed: tuple[int, ...]
    ) -> list[list[float | None]]:
        """Each completion judged `times` times: scores, None where none could be read."""
        question = rubric_question if self.judge.question == "rubric" else short_score_question
        sampling = Sampling(max_new_tokens=self.judge.max_new_tokens, temperature=self.judge.temperature)
        requests = [question(prompt, completion) for prompt, completion in asked]
        answers = sampler.texts(requests, self.judge.times, sampling, seed)
        return [[score_in(answer) for answer in row_answers] for row_answers in answers]


class SelfJudgeEvalEntry(SelfJudgingEntry, kind="self_judge_eval", gives=("metrics",)):
    """A policy as a judge of completions of known quality, the same in every round."""

    says: ClassVar[str] = "evaluate {model} as a judge, on completions of known quality"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        reviewed = [row for row in task_reviews(run.settings, self.judge.eval_prompts, "eval") if row.is_plain]
        if not reviewed:
            return stage_result("the judge is not evaluated: the data has no completions of known quality")

        def rows_of(sampler: ModelSampler, chunk: int, part: Sequence[Any]) -> list[Row]:
            asked = [(row.prompt, row.completion) for row in part]
            judgments = self.judgments(sampler, asked, (run.settings.seed, chunk))
            return [{"id": row.prompt.id, "judgments": scores} for row, scores in zip(part, judgments, strict=True)]

        config = sampling_config(run.settings, run.model("model"))
        lines = sampled_rows(run.folder / JUDGE_EVAL, config, reviewed, chunk_size(self.judge.times), rows_of)
        by_question: dict[str, tuple[list[float | None], list[float | None]]] = {}
        for line, row in zip(lines, reviewed, strict=True):
            own, truth = by_question.setdefault(row.prompt.question(), ([], []))
            own.append(mean_score(line["judgments"]))
            truth.append(row.quality)
        accuracy = order_accuracy(list(by_question.values()))
        unreadable = fmean(score is None for line in lines for score in line["judgments"])
        return stage_result(
            f"the judge orders {percent(accuracy)} of the reference pairs right; {percent(unreadable)} unreadable",
            {"judge_accuracy": accuracy, "judge_unreadable": unreadable},
        )


class SelfScoring(Section):
    """What a policy writes and scores itself, and what its scores are mixed with."""

    completions: int = Field(4, ge=2, le=MOST_SAMPLES, description="that the policy writes to each prompt and judges")
    anchor: RewardSection = Field(
        RewardSection(), description="a reward that is mixed into the policy's own scores; empty: none"
    )
    anchor_weight: float = Field(
        0.5, gt=0, le=1, description="weight of the anchor; the policy's own scores get the rest"
    )


class SelfScoredPairsEntry(SelfJudgingEntry, SelfScoring, kind="self_scored_pairs", gives=("pairs",)):
    """A policy writes completions and scores each itself: the best against the worst, mixed with an anchor's scores."""

    number: amounts.Repeats = Field(1, description="number of the round")
    count: amounts.Count = Field(1024, description="prompts of each round, never those of another")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        prompts = StageInput(source=composition.settings.data.source, count=len(self.asked(composition.settings)))
        return {**super().find_inputs(composition), "prompts": prompts}

    def asked(self, settings: PipelineSettings) -> list[Prompt]:
        """The prompts of the round."""
        first = (self.number - 1) * self.count
        return training_prompts(sampling_config(settings, ""), first, self.count, "prompts_per_round or rounds")

    def about(self, run: StageWork) -> str:
        mixed = f", mixed with {self.anchor_weight:g} of the anchor's" if is_scored(self.anchor) else ""
        times = "once" if self.judge.times == 1 else f"{self.judge.times} times"
        written = f"{self.completions} completions to each of {self.count} new prompts"
        return f"{run.labels['model']} writes {written}, and scores each itself, {times}{mixed}"

    def cost(self, run: StageWork) -> StageCost:
        written = self.count * self.completions
        tokens = written * (run.settings.sampling.max_new_tokens + self.judge.times * self.judge.max_new_tokens)
        return StageCost(completions=written * (1 + self.judge.times), sampled_tokens=tokens)

    def work(self, run: StageWork) -> Mapping[str, Any]:
        seed = (run.settings.seed, self.number)

        def measure(chunk: WrittenChunk) -> dict[str, Sequence[Any]]:
            asked = [(prompt, sample.completion) for prompt, sample in chunk.pairs]
            judgments = self.judgments(chunk.sampler, asked, (*seed, chunk.number, 1))
            nothing: list[list[float | None]] = [[] for _ in chunk.prompts]
            return {
                "judgments": chunk.by_prompt(judgments),
                "truth": chunk.scores() if can_evaluate(run.settings) else nothing,
                "anchor": chunk.scores(self.anchor) if is_scored(self.anchor) else nothing,
            }

        config, size = (
            sampling_config(run.settings, run.model("model")),
            chunk_size(self.completions * self.judge.times),
        )
        prompts, file = self.asked(run.settings), run.folder / JUDGED
        rows = completion_rows(file, config, prompts, self.completions, lambda chunk: (*seed, chunk, 0), measure, size)
        pairs, counts = self_scored_pairs(rows, self.anchor_weight if is_scored(self.anchor) else 0.0)
        signals = collapse_signals(rows, counts["ties"])
        summary = (
            f"{count_of(counts['ties'], 'prompt')} dropped where best and worst score the same; "
            f"mean own score {percent(signals.get('own_score'))}"
        )
        if "truth_agreement" in signals:
            summary += f"; of right and wrong completions it orders {percent(signals['truth_agreement'])} right"
        stop = "" if pairs else "; ".join(warnings({}, signals, signals)) or "every pair is a tie"
        return {**pairs_result(run, pairs, counts, summary, stop), "signals": signals}


class CollapseEntry(SelfJudgeEvalEntry, kind="collapse"):
    """The signals of the rounds so far, and whether they add up to a collapse."""

    pairs: Annotated[tuple[str, ...], takes.RESULT] = Field(
        max_length=MOST_REPEATS, description="stages of kind self_scored_pairs, by round"
    )
    judges: Annotated[tuple[str, ...], takes.RESULT] = Field(
        max_length=MOST_REPEATS, description="the policy as a judge: before the first round, then each earlier collapse"
    )
    evals: Annotated[tuple[str, ...], takes.RESULT] = Field(
        (), max_length=MOST_REPEATS, description="evals before the first round and after each; empty: none"
    )
    stop: bool = Field(True, description="end the pipeline when a round is called a collapse")

    def about(self, run: StageWork) -> str:
        return f"check for collapse after round {len(self.pairs)}"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        judge = super().work(run)
        evals = [run.result(name) for name in self.evals]
        rounds: list[dict[str, float]] = [{}, *(dict(run.result(name)["signals"]) for name in self.pairs)]
        judged = [*(run.result(name) for name in self.judges), judge]
        for signals, result, evaluated in zip(rounds, judged, evals or [judge] * len(judged), strict=True):
            known = {**evaluated["metrics"], **result["metrics"]}
            signals |= {name: known[name] for name in ("judge_accuracy", "accuracy") if name in known}
        before, *rounds = rounds
        raised = warnings(before, rounds[0], rounds[-1])
        accuracies = [signals.get("accuracy") for signals in (before, *rounds)]
        words, is_collapse = collapse_verdict(accuracies, raised, int(evals[0]["eval_prompts"]) if evals else 0)
        return stage_result(
            words,
            {**rounds[-1], **judge["metrics"]},
            {"signals_past_threshold": len(raised)},
            words if is_collapse and self.stop else "",
            warnings=raised,
        )
