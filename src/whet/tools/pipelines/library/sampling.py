"""Stages that draw completions, and what is made of them: demonstrations kept by rejection, labels by
vote, and mixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from random import Random
from statistics import fmean
from typing import Any, ClassVar

from pydantic import Field

from whet.data.distillation_target import with_text
from whet.record.text import count_of, percent
from whet.reward.language import language
from whet.reward.majority import voted_answer, winner
from whet.reward.sections import RewardSection
from whet.settings.bounds import MOST_TOKENS
from whet.settings.sections import Section, Temperature
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library import takes
from whet.tools.pipelines.library.entry import OUTPUT_FILES, Composition, StageEntry, StageInput, StageWork
from whet.tools.pipelines.library.sampler import (
    Row,
    Scores,
    WrittenChunk,
    completion_rows,
    prompt_row,
    row_prompt,
    shown_row,
    training_prompts,
)
from whet.tools.pipelines.settings import PipelineSettings, answer_reward, is_scored, own_data, sampling_config
from whet.tools.pipelines.stages import StageCost, stage_result
from whet.training.config import SUPERVISED, EvaluationConfig, SFTConfig
from whet.types import Prompt, WhetError

RUN_WORDS = 3  # words of a run, when two completions are compared
MOSTLY = 0.9  # share of a completion's letters that must be in the language
HINT = "{question}\n\nThe answer is {answer}. Work out how to get there."


def is_right(score: float | None) -> bool:
    """True for the score of a right completion."""
    return score is not None and score >= 1


def kept_rows(rows: Sequence[Mapping[str, Any]], rule: RejectionEntry) -> tuple[list[Row], dict[str, int]]:
    """Demonstrations, and how many completions went for which reason; every completion is counted once."""
    names = ("completions", "kept", "wrong", "unscorable", "cut_off", "too_short", "too_long", "other_language")
    counts = dict.fromkeys((*names, "equal", "near_equal", "over_the_limit", "of_solved_prompts", "hinted"), 0)
    chosen_rows: list[Row] = []
    for row in rows:
        counts["completions"] += len(row["completions"])
        chosen = _chosen(row, rule, counts)
        hinted = row.get("hinted")
        if hinted and not chosen:
            counts["hinted"] += 1
            chosen = [hinted]
        counts["kept"] += len(chosen)
        chosen_rows += [
            {"id": f"{row['id']}#{index}" if index else row["id"], "prompt": row["prompt"], "completion": text}
            for index, text in enumerate(chosen)
        ]
    return chosen_rows, counts


def _chosen(row: Mapping[str, Any], rule: RejectionEntry, counts: dict[str, int]) -> list[str]:
    """The completions of a row that are learned from, in the order they were drawn; the others are counted."""
    whole = list(zip(row["completions"], row["scores"], row["finished"], row["tokens"], strict=True))
    if rule.skip_solved and all(score is not None and score >= rule.least_score for _, score, _, _ in whole):
        counts["of_solved_prompts"] += len(whole)
        return []
    fitting: list[str] = []
    for text, score, finished, tokens in whole:
        refusals = {
            "unscorable": score is None,
            "wrong": score is not None and score < rule.least_score,
            "cut_off": not finished,
            "too_short": tokens < rule.least_tokens,
            "too_long": rule.most_tokens and tokens > rule.most_tokens,
            "other_language": rule.language and not _is_in_language(row, text, rule.language),
        }
        reason = next((name for name, is_refused in refusals.items() if is_refused), "")
        if reason:
            counts[reason] += 1
        else:
            fitting.append(text)
    chosen: list[str] = []
    # in the order they were drawn: the shortest right completion is often a lucky guess without its working
    for text in fitting:
        if any(text.split() == other.split() for other in chosen):
            counts["equal"] += 1
        elif any(shared_runs(text, other) > rule.near for other in chosen):
            counts["near_equal"] += 1
        elif len(chosen) == rule.most_per_prompt:
            counts["over_the_limit"] += 1
        else:
            chosen.append(text)
    return chosen


def _is_in_language(row: Mapping[str, Any], text: str, expected: str) -> bool:
    share = language(row_prompt(row), text, expected=expected)
    return share is None or share >= MOSTLY


def shared_runs(one: str, other: str) -> float:
    """|A and B| / |A or B| of the runs of three words of two texts; 1 where both have the same."""
    first, second = _runs(one), _runs(other)
    return len(first & second) / len(first | second) if first | second else 1.0


def _runs(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[at : at + RUN_WORDS]) for at in range(max(1, len(words) - RUN_WORDS + 1))} if words else set()


class SampleEntry(StageEntry, kind="sample", gives=("completions",), uses=("seed", "model", "sampling")):
    """Completions of a model to prompts, scored by the reward."""

    model: takes.Model = Field("", description="the stage or model that writes; empty: the pipeline's model")
    prompts: takes.Prompts = Field(
        "", description="an earlier stage, a file, task:NAME or hub:owner/name; empty: the pipeline's"
    )
    first: amounts.CountOrNone = Field(0, description="prompts at the beginning that are left out")
    count: amounts.CountOrNone = Field(0, description="prompts that are asked; 0: all")
    completions: amounts.Samples = Field(4, description="drawn per prompt")
    temperature: Temperature = Field(1.0, description="sampling temperature")
    reward: RewardSection = Field(RewardSection(), description="what scores them; empty: what says that one is right")
    hint: bool = Field(False, description="where no completion is right, tell the model the answer and draw once more")

    def config(self, run: StageWork) -> EvaluationConfig:
        """How the model is sampled and scored."""
        is_own = not self.prompts or self.prompts == run.settings.data.source
        sampling = run.settings.sampling.model_copy(update={"temperature": self.temperature})
        data, model = None if is_own else run.data("prompts"), run.located("model")
        return sampling_config(run.settings, model, data, self.scored_by(run.settings), sampling)

    def scored_by(self, settings: PipelineSettings) -> RewardSection:
        """What scores the completions."""
        return self.reward if is_scored(self.reward) else answer_reward(settings)

    def asked(self, config: EvaluationConfig) -> list[Prompt]:
        """The prompts that are asked."""
        return training_prompts(config, self.first, self.count, f"the prompts of stage {self.name!r}")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        inputs = super().find_inputs(composition)
        config = self.config(StageWork(composition.settings, inputs))
        if config.sampling.temperature == 0 and self.completions > 1:
            raise WhetError(f"stage {self.name!r}: several completions at temperature 0 are all equal; give 1.0")
        if inputs["prompts"].source:
            inputs["prompts"] = replace(inputs["prompts"], count=len(self.asked(config)))
        return inputs

    def depends_on(self, run: StageWork) -> dict[str, Any]:
        config = self.config(run)
        read = {"scored_by": config.reward.model_dump(mode="json"), "data": config.data.model_dump(mode="json")}
        return {**super().depends_on(run), **read}

    def rewards(self, settings: PipelineSettings) -> Sequence[RewardSection]:
        return [self.scored_by(settings)]

    def about(self, run: StageWork) -> str:
        written = count_of(self.completions, "completion")
        asked = f"{self.count} prompts" if self.count else "each prompt"
        return f"{run.labels['model']} writes {written} to {asked} of {run.labels['prompts']}"

    def cost(self, run: StageWork) -> StageCost:
        prompts = run.inputs["prompts"]
        completions = (prompts.count or self.count) * self.completions
        note = "hints draw some more" if self.hint else ""
        if not completions:
            note = f"as many completions as {prompts.stage} has prompts, times {self.completions}"
        tokens = completions * run.settings.sampling.max_new_tokens
        return StageCost(completions=completions, sampled_tokens=tokens, note=note)

    def work(self, run: StageWork) -> Mapping[str, Any]:
        config = self.config(run)
        seed = config.seed + self.first

        def measure(chunk: WrittenChunk) -> dict[str, Sequence[Any]]:
            # completions to a file without a reward are drawn, and nobody says which are right
            is_known = is_scored(config.reward) or config.data.parsed_source.is_generated
            scores: Scores = chunk.scores() if is_known else chunk.by_prompt(repeat(None))
            hinted = {"hinted": hinted_completions(chunk, config, seed, scores)} if self.hint else {}
            return {"scores": scores, **hinted}

        file = run.folder / OUTPUT_FILES["completions"]
        rows = completion_rows(
            file, config, self.asked(config), self.completions, lambda number: (seed, number), measure
        )
        marks = [score for row in rows for score in row["scores"]]
        right, solved = sum(map(is_right, marks)), sum(any(map(is_right, row["scores"])) for row in rows)
        counts = {"prompts": len(rows), "completions": len(marks), "right": right, "prompts_with_a_right_one": solved}
        if self.hint:
            counts["hinted_and_right"] = sum(row["hinted"] is not None for row in rows)
        outcome = "which nobody scores"
        if any(score is not None for score in marks):
            outcome = (
                f"{percent(right / len(marks))} right; a right one for {solved} of {count_of(len(rows), 'prompt')}"
            )
        cost = {"completions": len(marks), "sampled_tokens": sum(sum(row["tokens"]) for row in rows)}
        return stage_result(f"{count_of(len(marks), 'completion')}, {outcome}", counts=counts, cost=cost)


def hinted_completions(chunk: WrittenChunk, config: EvaluationConfig, seed: int, scores: Scores) -> list[str | None]:
    """For each prompt without a right completion, one that was written knowing the answer (STaR, 2203.14465).

    It is kept for the prompt without the hint, and only where it is right.
    """
    from whet.training.assembly.runtime import sampling_from

    hinted: list[str | None] = [None] * len(chunk.prompts)
    missed = [
        (at, prompt)
        for at, prompt in enumerate(chunk.prompts)
        if prompt.answer is not None and not any(map(is_right, scores[at]))
    ]
    if not missed:
        return hinted
    asked, sampling = [prompt for _, prompt in missed], sampling_from(config.sampling)
    written = chunk.sampler.completions(list(map(hinted_prompt, asked)), 1, sampling, (seed, chunk.number, 1))
    for (at, _), (sample,), (score,) in zip(missed, written, chunk.sampler.scores(None, asked, written), strict=True):
        if is_right(score) and not sample.stop.is_limit:
            hinted[at] = sample.completion
    return hinted


def hinted_prompt(prompt: Prompt) -> Prompt:
    """The prompt with its answer told."""
    text = HINT.format(question=prompt.question(), answer=prompt.answer)
    if prompt.text is not None:
        return replace(prompt, messages=(), text=text)
    return replace(prompt, messages=(*prompt.messages[:-1], {**prompt.messages[-1], "content": text}))


class RejectionRule(Section):
    """What a completion must be to be learned from."""

    most_per_prompt: amounts.Samples = Field(1, description="right completions kept for one prompt at most")
    most_tokens: int = Field(0, ge=0, le=MOST_TOKENS, description="longest completion that is kept; 0: any that ended")
    language: str = Field("", description="language that completions must be in: a code, prompt, or empty: any")
    near: amounts.Share = Field(
        0.9, description="share of word runs that two kept completions may have in common; 1: all but equal"
    )
    skip_solved: bool = Field(False, description="leave out prompts whose completions are all right")


class RejectionEntry(StageEntry, RejectionRule, kind="rejection", gives=("rows",)):
    """Demonstrations from completions: the right ones, each once, of fitting length and language."""

    says: ClassVar[str] = "keep the right completions of {completions}: each once, at most {most_per_prompt} per prompt"

    completions: takes.Completions = Field("", description="the stage of kind sample whose completions are sorted")
    least_score: float = Field(1.0, ge=-1e6, le=1e6, description="score of a completion that is kept")
    least_tokens: amounts.Tokens = Field(1, description="shortest completion that is kept")

    def work(self, run: StageWork) -> Mapping[str, Any]:
        rows, counts = kept_rows(run.rows("completions"), self)
        run.write("rows", rows)
        stop = "" if rows else "no completion is left to learn from"
        dropped = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
        return stage_result(f"{count_of(len(rows), 'row')} kept ({dropped})", counts=counts, stop_reason=stop)


class MixSource(Section):
    """One source of a mixture."""

    data: str = Field("", description="an earlier stage, a file, task:NAME or hub:owner/name")
    rows: amounts.CountOrNone = Field(0, description="how many a task writes, or of others only the first; 0: all")
    drop_answers: bool = Field(False, description="prompts only: leave the gold answers out")
    template: str = Field(
        "",
        description="demonstrations only: puts the completion, {text}, next to its {prompt}, as teacher.context does",
    )


class MixEntry(StageEntry, kind="mix", gives=("rows",), uses=("seed",)):
    """Rows of several sources in one file, in an order that the seed decides."""

    learns: ClassVar[bool] = True

    sources: tuple[MixSource, ...] = Field((), max_length=100, description="what is mixed: data of each, and rows")
    of: str = Field("demonstrations", pattern="demonstrations|prompts", description="demonstrations or prompts")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        if not self.sources:
            raise WhetError(f"stage {self.name!r} (mix) has no sources; give some, each with its data")
        inputs = [composition.find(self, "data", source.data, takes.InputRule(("rows",))) for source in self.sources]
        return {"rows" if len(inputs) == 1 else f"rows {position}": rows for position, rows in enumerate(inputs, 1)}

    def about(self, run: StageWork) -> str:
        return f"{self.of} of {' and '.join(run.labels.values())} in one file"

    def data_of(self, run: StageWork, source: MixSource, key: str) -> dict[str, Any]:
        """How the rows of a source are read: the pipeline's own data as its section says."""
        if run.inputs[key].source == run.settings.data.source and not source.rows:
            return own_data(run.settings)
        return run.data(key, source.rows)

    def depends_on(self, run: StageWork) -> dict[str, Any]:
        read_as = [
            self.data_of(run, source, key) if rows.source else {}
            for source, (key, rows) in zip(self.sources, run.inputs.items(), strict=True)
        ]
        return {**super().depends_on(run), "data": read_as}

    def work(self, run: StageWork) -> Mapping[str, Any]:
        mixed: list[Row] = []
        counts = {}
        for position, (source, (key, label)) in enumerate(zip(self.sources, run.labels.items(), strict=True), 1):
            read = self._rows(run.settings, self.data_of(run, source, key), source)
            counts[f"{label}, beside its prompt" if source.template else label] = len(read)
            mixed += [{**row, "id": f"{position}/{row['id']}"} if len(self.sources) > 1 else row for row in read]
        Random(f"mix/{run.settings.seed}").shuffle(mixed)
        run.write("rows", mixed)
        shares = ", ".join(f"{count} of {label}" for label, count in counts.items())
        return stage_result(f"{count_of(len(mixed), 'row')}: {shares}", counts=counts)

    def _rows(self, settings: PipelineSettings, data: Mapping[str, Any], source: MixSource) -> list[Row]:
        if self.of == "demonstrations":
            from whet.training.assembly.sft import load_demonstrations

            config = SFTConfig(method=SUPERVISED, seed=settings.seed, model=settings.model, data=data)  # type: ignore[arg-type]
            template = source.template or "{prompt}"
            return [
                shown_row(replace(row, prompt=with_text(row.prompt, row.completion, template)))
                for row in load_demonstrations(config)[0]
            ]
        from whet.training.assembly.prompts import load_prompts

        prompts = load_prompts(sampling_config(settings, "", data), evaluation=False)
        return [
            prompt_row(prompt) | ({} if source.drop_answers or prompt.answer is None else {"answer": prompt.answer})
            for prompt in prompts
        ]


class VoteEntry(StageEntry, kind="vote", gives=("rows",)):
    """Prompts labelled by the majority of the completions to them."""

    says: ClassVar[str] = "the majority of the completions of {completions} becomes the label of each prompt"

    completions: takes.Completions = Field("", description="the stage of kind sample whose completions vote")
    least_share: amounts.Share = Field(0.0, description="share of the votes a label needs; others are left out")

    def work(self, run: StageWork) -> Mapping[str, Any]:
        labelled, result = voted_labels(run.rows("completions"), self.least_share)
        run.write("rows", labelled)
        return result


def voted_labels(rows: Sequence[Mapping[str, Any]], least_share: float = 0.0) -> tuple[list[Row], dict[str, Any]]:
    """Prompts with the majority's answer, and what is known of the votes: how sure, and how often right."""
    labelled, rights = [], []
    for row in rows:
        answers = [voted_answer(text) for text in row["completions"]]
        label, votes = winner(answers)
        share = votes / max(1, len(answers))
        if label is None or share < least_share:
            continue
        labelled.append({"id": row["id"], "prompt": row["prompt"], "answer": label, "votes": share})
        # the score of a completion that gave the winning answer says whether the majority is right
        scores = [score for answer, score in zip(answers, row["scores"], strict=True) if answer == label]
        if row.get("answer") is not None and scores and scores[0] is not None:
            rights.append(float(is_right(scores[0])))
    metrics = {"agreement": fmean(row["votes"] for row in labelled) if labelled else 0.0}
    known = f"; right in {percent(fmean(rights))} of {len(rights)} with a gold answer" if rights else ""
    metrics |= {"majority_right": fmean(rights)} if rights else {}
    counts = {"prompts": len(rows), "labelled": len(labelled), "labels_checked": len(rights)}
    summary = f"{count_of(len(labelled), 'label')}, {percent(metrics['agreement'])} of the votes on average{known}"
    return labelled, stage_result(summary, metrics, counts)
