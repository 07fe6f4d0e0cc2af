"""Stages of AI feedback: a judge compares two completions in both orders. It is a server, a model, or trained here.

A verdict is the probability that the completion shown first is the better one: 1, 0, 1/2 for a tie, anything between
for a judge whose log-probabilities are read, None where its answer could not be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from whet.record.text import count_of, percent
from whet.settings.sections import Section, Table
from whet.tools.pipelines.library import takes
from whet.tools.pipelines.library.entry import Composition, StageEntry, StageInput, StageWork
from whet.tools.pipelines.library.pairs import PairRow, pair_row
from whet.tools.pipelines.library.sampler import ModelSampler, Row, chunk_size, model_sampler, row_prompt
from whet.tools.pipelines.stages import read_json_lines, stage_result, write_in_chunks
from whet.types import Message, Prompt, WhetError

FIRST, SECOND = "A", "B"
Preference = float | None  # of the completion shown first; None: unreadable
LABELS, EVAL_PAIRS = "labels.jsonl", "eval_pairs.jsonl"
MOST_HELD_OUT = 128  # pairs that a trained judge is evaluated on; a quarter where there are few
WORDS = {"first": 1.0, "second": 0.0, "tie": 0.5}
# settings of the reward `judge` that do not apply to two whole completions
IDLE = ("compare", "opponents", "reference", "show_reference", "show_thinking", "longest_completion", "alone")
Comparison = tuple[Prompt, str, str]
Ask = Callable[[int, Sequence[Comparison]], Sequence[Preference]]  # number of the chunk; which one is better


class CandidatePair(NamedTuple):
    """Two different completions to one prompt."""

    row: Mapping[str, Any]  # id and prompt, as pairs have them
    one: str
    other: str
    truth: float | None = None  # 1: `one` is better, 0: `other`, 1/2: neither; None: unknown

    @property
    def has_winner(self) -> bool:
        """True where the truth says that one of them is better."""
        return self.truth not in (None, 0.5)

    def ordered(self, one_wins: bool, **more: Any) -> PairRow:
        """The pair with its winner chosen."""
        return pair_row(self.row, *((self.one, self.other) if one_wins else (self.other, self.one)), **more)


class PairLabel(NamedTuple):
    """What both orders came to."""

    preference: float | None  # of `one` over `other`; None: no verdict
    flipped: bool = False  # the judge preferred a position, not a completion


def short_question(prompt: Prompt, first: str, second: str) -> tuple[Message, ...]:
    """A comparison that fits a small model: no rubric, no fences."""
    return ({"role": "user", "content": f"{prompt.question()}\n{FIRST}:{first}\n{SECOND}:{second}\n?"},)


def candidate_pairs(rows: Sequence[Mapping[str, Any]]) -> tuple[list[CandidatePair], dict[str, int]]:
    """The first two completions to each prompt that differ, with the truth where they were scored."""
    candidates: list[CandidatePair] = []
    for row in rows:
        first = row["completions"][0]
        at = next((at for at, completion in enumerate(row["completions"]) if completion != first), None)
        if at is None or not first.strip() or not row["completions"][at].strip():
            continue
        known = [] if row.get("scores") is None else [row["scores"][0], row["scores"][at]]
        truth = None
        if known and None not in known:
            truth = 0.5 if known[0] == known[1] else float(known[0] > known[1])
        named = {key: row.get(key) for key in ("id", "prompt", "answer")}
        candidates.append(CandidatePair(named, first, row["completions"][at], truth))
    return candidates, {"prompts": len(rows), "same_completions": len(rows) - len(candidates)}


def normalised(first: float, second: float) -> float:
    """P(first) from the log-probabilities of naming the first or the second: e^a / (e^a + e^b)."""
    gap = second - first
    return 1 / (1 + math.exp(gap)) if gap < 700 else 0.0


def combine_orders(forth: Preference, back: Preference) -> PairLabel:
    """The mean over both orders; `back` had the completions exchanged. Orders that contradict each other tie.

    Lee 2023 (2309.00267) averages the two; here a contradiction is counted as a flip and teaches nothing.
    """
    if forth is None or back is None:
        return PairLabel(None)
    turned = 1 - back
    if (forth - 0.5) * (turned - 0.5) < 0:
        return PairLabel(0.5, flipped=True)
    return PairLabel((forth + turned) / 2)


def judged_pairs(
    candidates: Sequence[CandidatePair], labels: Sequence[PairLabel], least: float = 0.0, soft: bool = True
) -> tuple[list[PairRow], dict[str, int]]:
    """Pairs of those with a winner, at least `least` from 1/2; and what was counted on the way. Only `soft` ones
    carry how sure the judge was; the loss then weights them by it."""
    pairs: list[PairRow] = []
    names = ("compared", "pairs", "unreadable", "flips", "ties", "unsure", "truth_known", "truth_met")
    counts = {**dict.fromkeys(names, 0), "compared": len(candidates)}
    for candidate, label in zip(candidates, labels, strict=True):
        if label.preference is None:
            counts["unreadable"] += 1
        elif label.preference == 0.5:
            counts["flips" if label.flipped else "ties"] += 1
        elif abs(label.preference - 0.5) < least:
            counts["unsure"] += 1
        else:
            first_wins = label.preference > 0.5
            sure = {"preference": max(label.preference, 1 - label.preference)} if soft else {}
            pairs.append(candidate.ordered(first_wins, **sure))
            if candidate.has_winner:
                counts["truth_known"] += 1
                counts["truth_met"] += first_wins == (candidate.truth == 1)
    counts["pairs"] = len(pairs)
    return pairs, counts


def judge_metrics(candidates: Sequence[CandidatePair], labels: Sequence[PairLabel]) -> dict[str, float]:
    """A judge where the truth is known: `judge_accuracy` counts flips, ties and unreadable answers as wrong."""
    counts, known = judged_pairs(candidates, labels)[1], sum(candidate.has_winner for candidate in candidates)
    total = max(1, len(labels))
    return {
        "judge_accuracy": counts["truth_met"] / known if known else math.nan,
        "flip_rate": counts["flips"] / total,
        "tie_rate": counts["ties"] / total,
        "unreadable": counts["unreadable"] / total,
    }


def judge_examples(candidates: Sequence[CandidatePair], prompts: Mapping[str, Prompt]) -> list[Row]:
    """Demonstrations of judging: the letter of the better completion, each candidate in both orders."""
    rows = []
    for row, one, other, truth in candidates:
        for order, first, second in (("straight", one, other), ("turned", other, one)):
            messages = [dict(message) for message in short_question(prompts[row["id"]], first, second)]
            letter = FIRST if (truth == 1) == (order == "straight") else SECOND
            rows.append({"id": f"{row['id']}/{order}", "prompt": messages, "completion": letter})
    return rows


def true_pairs(pairs: Sequence[PairRow], candidates: Sequence[CandidatePair]) -> list[PairRow]:
    """Eval pairs that the truth orders, as it does; as the judge does where no truth is known at all."""
    known = {candidate.row["id"]: candidate for candidate in candidates if candidate.truth is not None}
    if not known:
        return list(pairs)
    compared = [known[pair["id"]] for pair in pairs if pair["id"] in known]
    return [candidate.ordered(candidate.truth == 1) for candidate in compared if candidate.has_winner]


class JudgeExamplesEntry(StageEntry, kind="judge_examples", gives=("rows",)):
    """Demonstrations of judging, of scored completions: the letter of the better one, in both orders."""

    says: ClassVar[str] = "two completions of {completions} to each prompt, compared by their scores"

    completions: takes.Completions = Field(
        "", description="the stage of kind sample whose completions are compared by their scores"
    )

    def work(self, run: StageWork) -> Mapping[str, Any]:
        rows = run.rows("completions")
        candidates, counts = candidate_pairs(rows)
        held_out = min(MOST_HELD_OUT, len(candidates) // 4)
        shown = candidates[: len(candidates) - held_out]
        decided = [candidate for candidate in shown if candidate.has_winner]
        if not decided:
            raise WhetError(
                f"{len(rows)} prompts gave {len(shown)} pairs of completions to learn from, and none with a winner; "
                "raise judge.examples"
            )
        examples = judge_examples(decided, {str(row["id"]): row_prompt(row) for row in rows})
        run.write("rows", examples)
        counts |= {"without_winner": len(shown) - len(decided), "examples": len(examples), "held_out": held_out}
        summary = f"{count_of(len(examples), 'example')}: both orders of each pair with a winner"
        return stage_result(summary, counts=counts)


class JudgeForm(Section):
    """How a judge is asked, and how its verdict is read."""

    question: Literal["short", "full"] = Field(
        "full", description="the rubric with fences around the completions, or only the completions, for a small model"
    )
    verdict: Literal["text", "logp"] = Field(
        "text", description="read from its answer, or soft: the log-probabilities of naming either; no server has them"
    )
    settings: Table = Field(
        {}, description="settings of the reward `judge`: base_url, model, key_variable, rubric, cache, max_calls, ..."
    )


class ComparingEntry(StageEntry, JudgeForm, uses=("seed", "model", "sampling")):
    """What every stage has that asks a judge which of two completions is better."""

    completions: takes.Completions = Field(
        "", description="the stage of kind sample whose completions are compared, two per prompt"
    )
    judge: takes.Model = Field(
        "", description="the stage or model that judges; empty: the pipeline's, or settings.base_url"
    )

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        from whet.reward.judge.ask import JudgeSettings

        try:
            server = JudgeSettings(**self.settings).base_url
        except TypeError as error:
            raise WhetError(f"judge.settings: {error}; `whet reward list` shows the settings of judge") from error
        for key in IDLE:
            if key in self.settings:
                raise WhetError(f"judge.settings.{key} has no effect: here two whole completions are compared; drop it")
        if server and self.judge:
            raise WhetError("judge.name and judge.settings.base_url both name a judge; give one of them")
        if server and self.verdict == "logp":
            raise WhetError("judge.verdict=logp needs a model in this process; a server is read as text")
        inputs = super().find_inputs(composition)
        if server:
            del inputs["judge"]
        return inputs

    def ask(self, run: StageWork) -> Ask:
        """The judge, ready to be asked."""
        from whet.reward.combine import RewardPart
        from whet.reward.judge.ask import JudgeSettings
        from whet.reward.judge.questions import JudgeQuestion, comparison_question
        from whet.reward.judge.reward import Judge
        from whet.training.assembly.rewards import bind_judges

        judge: Any = Judge(JudgeSettings(**self.settings))

        def question(prompt: Prompt, first: str, second: str) -> JudgeQuestion:
            if self.question == "short":
                return JudgeQuestion(short_question(prompt, first, second))
            return comparison_question(prompt, first, second, judge.rubric)

        if judge.needs_ask:
            sampler = model_sampler(run.settings, run.model("judge"))
            if self.verdict == "logp":
                return lambda _, rows: letter_preferences(sampler, [question(*row).messages for row in rows])
            runtime = sampler.runtime
            (bound,) = bind_judges([RewardPart(judge)], runtime.engine, runtime.loaded.tokenizer)
            judge = bound.resolved_reward
        return lambda _, rows: [
            None if answer is None else WORDS[answer] for answer in judge.preferences([question(*row) for row in rows])
        ]

    def notes(self, run: StageWork, prompt: Prompt) -> dict[str, Any]:
        """What else is kept of a comparison."""
        return {}

    def label(self, run: StageWork, candidates: Sequence[CandidatePair]) -> list[PairLabel]:
        """Every pair judged in both orders, kept in labels.jsonl."""
        judges: list[Ask] = []

        def rows_of(number: int, chunk: Sequence[CandidatePair]) -> list[Row]:
            if not judges:  # a stage that had only its result left to write needs no model
                judges.append(self.ask(run))
            prompts = [row_prompt(candidate.row) for candidate in chunk]
            orders = [
                order
                for prompt, (_, one, other, _) in zip(prompts, chunk, strict=True)
                for order in ((prompt, one, other), (prompt, other, one))
            ]
            both = judges[0](number, orders)
            return [
                {**self.notes(run, prompt), "forth": forth, "back": back}
                for prompt, forth, back in zip(prompts, both[::2], both[1::2], strict=True)
            ]

        lines = read_json_lines(write_in_chunks(run.folder / LABELS, candidates, chunk_size(32), rows_of))
        return [combine_orders(line["forth"], line["back"]) for line in lines]


def letter_preferences(sampler: ModelSampler, conversations: Sequence[Sequence[Message]]) -> list[float]:
    """The probability that a model names the first completion, normalised over naming either."""
    questions = [(Prompt("judge", tuple(messages)), (FIRST, SECOND)) for messages in conversations]
    return [normalised(float(first.sum()), float(second.sum())) for first, second in sampler.pair_logp(questions)]


class JudgeEvalEntry(ComparingEntry, kind="judge_eval", gives=("metrics",)):
    """A trained judge on the pairs that it did not learn from, in both orders."""

    says: ClassVar[str] = "evaluate the judge on pairs it has not seen, in both orders"

    examples: takes.Rows = Field("", description="the stage of kind judge_examples that the judge learned from")

    def work(self, run: StageWork) -> Mapping[str, Any]:
        candidates = candidate_pairs(run.rows("completions"))[0]
        candidates = candidates[len(candidates) - run.result("examples")["counts"]["held_out"] :]
        labels = self.label(run, candidates)
        metrics = judge_metrics(candidates, labels)
        if not candidates:
            return stage_result("not evaluated: too few pairs; raise judge.examples", metrics)
        right = f"right in {percent(metrics['judge_accuracy'])} of those with a winner"
        if math.isnan(metrics["judge_accuracy"]):
            right = "no pair has a winner to name"
        flips = f"it flips {percent(metrics['flip_rate'])} of {count_of(len(candidates), 'pair')}"
        return stage_result(f"{right}; {flips}", metrics)


class PairLabels(Section):
    """Which verdicts make a pair, and what it counts."""

    min_margin: float = Field(0.0, ge=0, lt=0.5, description="how far from 1/2 a preference must be, or it is left out")
    soft_labels: bool = Field(
        True, description="a pair counts as far as the judge is sure of it: the loss weights it by the preference"
    )


class JudgedPairsEntry(ComparingEntry, PairLabels, kind="judged_pairs", gives=("pairs",)):
    """Pairs that a judge ordered; an eighth of them is held out, in the order of the truth where that is known."""

    def about(self, run: StageWork) -> str:
        who = run.labels.get("judge") or self.settings["base_url"]
        return f"{who} compares two completions of {run.labels['completions']} to each prompt, in both orders"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        candidates, dropped = candidate_pairs(run.rows("completions"))
        labels = self.label(run, candidates)
        pairs, counts = judged_pairs(candidates, labels, self.min_margin, self.soft_labels)
        num_eval = len(pairs) // 8
        run.write("pairs", pairs[num_eval:])
        run.write(EVAL_PAIRS, true_pairs(pairs[:num_eval], candidates))
        compared = max(1, counts["compared"])
        known, met = counts["truth_known"], counts["truth_met"]
        metrics = {"flip_rate": counts["flips"] / compared, "tie_rate": counts["ties"] / compared}
        summary = [
            f"{len(pairs)} of {counts['compared']} pairs have a winner",
            f"flips {percent(metrics['flip_rate'])}, ties {percent(metrics['tie_rate'])}",
            *([f"the winner is right in {percent(met / known)} of {known}"] if known else []),
        ]
        metrics |= {"truth_accuracy": met / known} if known else {}
        stop = "" if len(pairs) > num_eval else "no pair has a winner"
        return stage_result("; ".join(summary), metrics, {**dropped, **counts, "eval_pairs": num_eval}, stop)
