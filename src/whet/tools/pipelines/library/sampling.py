"""Stages that draw completions, and what is made of them: demonstrations kept by rejection, labels by
vote, and mixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean
from typing import Any, ClassVar

from pydantic import Field

from whet.data.distillation_target import with_text
from whet.record.text import count_of, percent
from whet.reward.language import language
from whet.reward.majority import voted_answer, winner
from whet.reward.sections import RewardSection
from whet.settings.bounds import MOST_ROWS, MOST_SAMPLES, MOST_TOKENS
from whet.settings.sections import Section, Temperature
from whet.tools.pipelines.library.entry import (
    OUTPUT_FILES,
    Composition,
    Inputs,
    StageEntry,
    StageInput,
    StageWork,
)
from whet.tools.pipelines.library.pairs import prompt_row
from whet.tools.pipelines.library.sampler import (
    ModelSampler,
    Row,
    Scores,
    chunk_size,
    completion_row,
    sampled_rows,
    training_prompts,
)
from whet.tools.pipelines.library.trainings import row_source
from whet.tools.pipelines.settings import PipelineSettings, answer_reward, is_scored, own_data, sampling_config
from whet.tools.pipelines.stages import StageCost, stage_result
from whet.training.config import SUPERVISED, EvaluationConfig, SFTConfig
from whet.types import Prompt, WhetError

RUN_WORDS = 3  # words of a run, when two completions are compared
MOSTLY = 0.9  # share of a completion's letters that must be in the language
HINT = "{question}\n\nThe answer is {answer}. Work out how to get there."


def kept_rows(rows: Sequence[Mapping[str, Any]], rule: RejectionEntry) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Demonstrations, and how many completions went for which reason; every completion is counted once."""
    names = ("completions", "kept", "wrong", "unscorable", "cut_off", "too_short", "too_long", "other_language")
    counts = dict.fromkeys((*names, "equal", "near_equal", "over_the_limit", "of_solved_prompts", "hinted"), 0)
    chosen_rows: list[dict[str, Any]] = []
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
    whole = list(zip(row["completions"], row["scores"], row["finished"], row["tokens"], strict=True))
    if rule.skip_solved and all(score is not None and score >= rule.least_score for _, score, _, _ in whole):
        counts["of_solved_prompts"] += len(whole)
        return []
    fitting: list[str] = []
    for text, score, finished, tokens in whole:
        reason = _refusal(row, text, score, finished, tokens, rule)
        if reason:
            counts[reason] += 1
        else:
            fitting.append(text)
    chosen: list[str] = []
    # in the order they were drawn: the shortest right completion is often a lucky guess without its working
    for text in fitting:
        plain = " ".join(text.split())
        if any(plain == " ".join(other.split()) for other in chosen):
            counts["equal"] += 1
        elif any(shared_runs(text, other) > rule.near for other in chosen):
            counts["near_equal"] += 1
        elif len(chosen) == rule.most_per_prompt:
            counts["over_the_limit"] += 1
        else:
            chosen.append(text)
    return chosen


def _refusal(
    row: Mapping[str, Any], text: str, score: float | None, finished: bool, tokens: int, rule: RejectionEntry
) -> str:
    """Why a completion is not learned from, "" where it is."""
    if score is None:
        return "unscorable"
    if score < rule.least_score:
        return "wrong"
    if not finished:
        return "cut_off"
    if tokens < rule.least_tokens:
        return "too_short"
    if rule.most_tokens and tokens > rule.most_tokens:
        return "too_long"
    if rule.language and not _is_in_language(row, text, rule.language):
        return "other_language"
    return ""


def _is_in_language(row: Mapping[str, Any], text: str, expected: str) -> bool:
    content = row["prompt"]
    prompt = Prompt(str(row["id"]), (), content) if isinstance(content, str) else Prompt(str(row["id"]), tuple(content))
    share = language(prompt, text, expected=expected)
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

    model: str = Field("", description="the stage or model that writes; empty: the pipeline's model")
    prompts: str = Field("", description="an earlier stage, a file, task:NAME or hub:owner/name; empty: the pipeline's")
    first: int = Field(0, ge=0, le=MOST_ROWS, description="prompts at the beginning that are left out")
    count: int = Field(0, ge=0, le=MOST_ROWS, description="prompts that are asked; 0: all")
    completions: int = Field(4, ge=1, le=MOST_SAMPLES, description="drawn per prompt")
    temperature: Temperature = Field(1.0, description="sampling temperature")
    reward: RewardSection = Field(RewardSection(), description="what scores them; empty: what says that one is right")
    hint: bool = Field(False, description="where no completion is right, tell the model the answer and draw once more")

    def config(self, settings: PipelineSettings, prompts: StageInput, model: str, location: str) -> EvaluationConfig:
        """How the model is sampled and scored."""
        is_own = not self.prompts or self.prompts == settings.data.source
        data = None if is_own else row_source(settings, prompts, 0, location)
        sampling = settings.sampling.model_copy(update={"temperature": self.temperature})
        return sampling_config(settings, model, data, self.scored_by(settings), sampling)

    def scored_by(self, settings: PipelineSettings) -> RewardSection:
        """What scores the completions."""
        return self.reward if is_scored(self.reward) else answer_reward(settings)

    def asked(self, config: EvaluationConfig) -> list[Prompt]:
        """The prompts that are asked."""
        return training_prompts(config, self.first, self.count, f"the prompts of stage {self.name!r}")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        settings, prompts = composition.settings, composition.prompts(self, "prompts", self.prompts)
        config = self.config(settings, prompts, "", prompts.source or "rows.jsonl")
        if config.sampling.temperature == 0 and self.completions > 1:
            raise WhetError(f"stage {self.name!r}: several completions at temperature 0 are all equal; give 1.0")
        if prompts.source:
            prompts = replace(prompts, count=len(self.asked(config)))
        return {"model": composition.model(self, "model", self.model), "prompts": prompts}

    def depends_on(self, settings: PipelineSettings, inputs: Inputs) -> dict[str, Any]:
        config = self.config(settings, inputs["prompts"], "", inputs["prompts"].source or "rows.jsonl")
        read = {"scored_by": config.reward.model_dump(mode="json"), "data": config.data.model_dump(mode="json")}
        return {**super().depends_on(settings, inputs), **read}

    def rewards(self, settings: PipelineSettings) -> Sequence[RewardSection]:
        return (self.scored_by(settings),)

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        written = count_of(self.completions, "completion")
        asked = f"{self.count} prompts" if self.count else "each prompt"
        return f"{inputs['model'].label} writes {written} to {asked} of {inputs['prompts'].label}"

    def cost(self, settings: PipelineSettings, inputs: Inputs) -> StageCost:
        completions = (inputs["prompts"].count or self.count) * self.completions
        note = "hints draw some more" if self.hint else ""
        if not completions:
            note = f"as many completions as {inputs['prompts'].stage} has prompts, times {self.completions}"
        return StageCost(
            completions=completions, sampled_tokens=completions * settings.sampling.max_new_tokens, note=note
        )

    def work(self, run: StageWork) -> Mapping[str, Any]:
        from whet.training.assembly.runtime import sampling_from

        config = self.config(run.settings, run.inputs["prompts"], run.model("model"), run.location("prompts"))
        sampling, seed = sampling_from(config.sampling), config.seed + self.first

        def rows_of(sampler: ModelSampler, number: int, prompts: Sequence[Prompt]) -> list[Row]:
            written = sampler.completions(prompts, self.completions, sampling, (seed, number))
            scores: Scores = [[None] * len(samples) for samples in written]
            # completions to a file without a reward are drawn, and nobody says which are right
            if is_scored(config.reward) or config.data.parsed_source.is_generated:
                scores = sampler.scores(None, prompts, written)
            rows = [
                {**completion_row(prompt, samples), "scores": scored}
                for prompt, samples, scored in zip(prompts, written, scores, strict=True)
            ]
            return with_hints(sampler, sampling, (seed, number, 1), prompts, rows) if self.hint else rows

        file, size = run.folder / OUTPUT_FILES["completions"], chunk_size(self.completions)
        rows = sampled_rows(file, config, self.asked(config), size, rows_of)
        scores = [score for row in rows for score in row["scores"]]
        right = sum(score is not None and score >= 1 for score in scores)
        solved = sum(any(score is not None and score >= 1 for score in row["scores"]) for row in rows)
        counts = {"prompts": len(rows), "completions": len(scores), "right": right, "prompts_with_a_right_one": solved}
        if self.hint:
            counts["hinted_and_right"] = sum(row["hinted"] is not None for row in rows)
        outcome = "which nobody scores"
        if any(score is not None for score in scores):
            outcome = (
                f"{percent(right / len(scores))} right; a right one for {solved} of {count_of(len(rows), 'prompt')}"
            )
        tokens = sum(sum(row["tokens"]) for row in rows)
        return stage_result(
            f"{count_of(len(scores), 'completion')}, {outcome}",
            counts=counts,
            cost={"completions": len(scores), "sampled_tokens": tokens},
        )


def with_hints(
    sampler: Any, sampling: Any, seed: tuple[int, ...], prompts: Sequence[Prompt], rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows with a completion that was written knowing the answer, where no other is right (STaR, 2203.14465).

    It is kept for the prompt without the hint, and only where it is right.
    """
    missed = [
        index
        for index, row in enumerate(rows)
        if row["answer"] is not None and not any(score is not None and score >= 1 for score in row["scores"])
    ]
    rows = [{**row, "hinted": None} for row in rows]
    if not missed:
        return rows
    hinted = [hinted_prompt(prompts[index]) for index in missed]
    written = sampler.completions(hinted, 1, sampling, seed)
    scores = sampler.scores(None, [prompts[index] for index in missed], written)
    for number, (sample,), (score,) in zip(missed, written, scores, strict=True):
        if score is not None and score >= 1 and not sample.stop.is_limit:
            rows[number]["hinted"] = sample.completion
    return rows


def hinted_prompt(prompt: Prompt) -> Prompt:
    """The prompt with its answer told."""
    text = HINT.format(question=prompt.question(), answer=prompt.answer)
    if prompt.text is not None:
        return Prompt(prompt.id, (), text, prompt.answer, prompt.meta)
    last = {**prompt.messages[-1], "content": text}
    return Prompt(prompt.id, (*prompt.messages[:-1], last), None, prompt.answer, prompt.meta)


class RejectionRule(Section):
    """What a completion must be to be learned from."""

    most_per_prompt: int = Field(1, ge=1, le=MOST_SAMPLES, description="right completions kept for one prompt at most")
    most_tokens: int = Field(0, ge=0, le=MOST_TOKENS, description="longest completion that is kept; 0: any that ended")
    language: str = Field("", description="language that completions must be in: a code, prompt, or empty: any")
    near: float = Field(
        0.9, ge=0, le=1, description="share of word runs that two kept completions may have in common; 1: all but equal"
    )
    skip_solved: bool = Field(False, description="leave out prompts whose completions are all right")


class RejectionEntry(StageEntry, RejectionRule, kind="rejection", gives=("rows",)):
    """Demonstrations from completions: the right ones, each once, of fitting length and language."""

    completions: str = Field("", description="the stage of kind sample whose completions are sorted")
    least_score: float = Field(1.0, ge=-1e6, le=1e6, description="score of a completion that is kept")
    least_tokens: int = Field(1, ge=1, le=MOST_TOKENS, description="shortest completion that is kept")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        return {"completions": composition.rows(self, "completions", self.completions, ("completions",))}

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        label = inputs["completions"].label
        return f"keep the right completions of {label}: each once, at most {self.most_per_prompt} per prompt"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        rows, counts = kept_rows(run.rows("completions"), self)
        run.write("rows", rows)
        stop = "" if rows else "no completion is left to learn from"
        dropped = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
        return stage_result(f"{count_of(len(rows), 'row')} kept ({dropped})", counts=counts, stop_reason=stop)


class MixSource(Section):
    """One source of a mixture."""

    data: str = Field("", description="an earlier stage, a file, task:NAME or hub:owner/name")
    rows: int = Field(0, ge=0, le=MOST_ROWS, description="how many a task writes, or of others only the first; 0: all")
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
        inputs = [composition.rows(self, "data", source.data, ("rows",)) for source in self.sources]
        return {"rows" if len(inputs) == 1 else f"rows {position}": rows for position, rows in enumerate(inputs, 1)}

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return f"{self.of} of {' and '.join(rows.label for rows in inputs.values())} in one file"

    def data_of(self, settings: PipelineSettings, source: MixSource, rows: StageInput, location: str) -> dict[str, Any]:
        """How the rows of a source are read: the pipeline's own data as its section says."""
        if rows.source == settings.data.source and not source.rows:
            return own_data(settings)
        return row_source(settings, rows, source.rows, location)

    def depends_on(self, settings: PipelineSettings, inputs: Inputs) -> dict[str, Any]:
        read_as = [
            self.data_of(settings, source, rows, rows.source) if rows.source else {}
            for source, rows in zip(self.sources, inputs.values(), strict=True)
        ]
        return {**super().depends_on(settings, inputs), "data": read_as}

    def work(self, run: StageWork) -> Mapping[str, Any]:
        mixed: list[Row] = []
        counts = {}
        for position, (source, rows) in enumerate(zip(self.sources, run.inputs.values(), strict=True), 1):
            read = self._rows(run.settings, self.data_of(run.settings, source, rows, rows.location(run.done)), source)
            counts[f"{rows.label}, beside its prompt" if source.template else rows.label] = len(read)
            mixed += [{**row, "id": f"{position}/{row['id']}"} if len(self.sources) > 1 else row for row in read]
        Random(f"mix/{run.settings.seed}").shuffle(mixed)
        run.write("rows", mixed)
        shares = ", ".join(f"{count} of {label}" for label, count in counts.items())
        return stage_result(f"{count_of(len(mixed), 'row')}: {shares}", counts=counts)

    def _rows(self, settings: PipelineSettings, data: Mapping[str, Any], source: MixSource) -> list[Row]:
        if self.of == "demonstrations":
            from whet.training.assembly.sft import load_demonstrations

            config = SFTConfig(method=SUPERVISED, seed=settings.seed, model=settings.model, data=data)  # type: ignore[arg-type]
            shown = source.template or "{prompt}"
            return [
                {**prompt_row(with_text(row.prompt, row.completion, shown)), "completion": row.completion}
                for row in load_demonstrations(config)[0]
            ]
        from whet.training.assembly.prompts import load_prompts

        prompts = load_prompts(sampling_config(settings, "", data), evaluation=False)
        return [
            {
                **prompt_row(prompt),
                **({} if source.drop_answers or prompt.answer is None else {"answer": prompt.answer}),
            }
            for prompt in prompts
        ]


class VoteEntry(StageEntry, kind="vote", gives=("rows",)):
    """Prompts labelled by the majority of the completions to them."""

    completions: str = Field("", description="the stage of kind sample whose completions vote")
    least_share: float = Field(0.0, ge=0, le=1, description="share of the votes a label needs; others are left out")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        return {"completions": composition.rows(self, "completions", self.completions, ("completions",))}

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return f"the majority of the completions of {inputs['completions'].label} becomes the label of each prompt"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        labelled, result = voted_labels(run.rows("completions"), self.least_share)
        run.write("rows", labelled)
        return result


def voted_labels(
    rows: Sequence[Mapping[str, Any]], least_share: float = 0.0
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Prompts with the majority's answer, and what is known of the votes: how sure, and how often right."""
    labelled, shares, rights = [], [], []
    for row in rows:
        answers = [voted_answer(text) for text in row["completions"]]
        label, votes = winner(answers)
        share = votes / max(1, len(answers))
        if label is None or share < least_share:
            continue
        shares.append(share)
        labelled.append({"id": row["id"], "prompt": row["prompt"], "answer": label, "votes": share})
        # the score of a completion that gave the winning answer says whether the majority is right
        scores = [score for answer, score in zip(answers, row["scores"], strict=True) if answer == label]
        if row.get("answer") is not None and scores and scores[0] is not None:
            rights.append(float(scores[0] >= 1))
    metrics = {"agreement": fmean(shares) if shares else 0.0}
    known = f"; right in {percent(fmean(rights))} of {len(rights)} with a gold answer" if rights else ""
    metrics |= {"majority_right": fmean(rights)} if rights else {}
    counts = {"prompts": len(rows), "labelled": len(labelled), "labels_checked": len(rights)}
    summary = f"{count_of(len(labelled), 'label')}, {percent(metrics['agreement'])} of the votes on average{known}"
    return labelled, stage_result(summary, metrics, counts)
