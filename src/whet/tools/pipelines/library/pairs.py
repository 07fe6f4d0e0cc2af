"""Stages that make preference pairs: of a policy's own completions, and of pairs that are split by prompt."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.data.sections import DataSection
from whet.record.text import count_of, number, percent
from whet.settings.bounds import MOST_ROWS
from whet.tools.pipelines.library.entry import (
    OUTPUT_FILES,
    Composition,
    Inputs,
    Output,
    StageEntry,
    StageInput,
    StageWork,
)
from whet.tools.pipelines.library.pair_rows import (
    PairRow,
    best_against_worst,
    check_split,
    is_longer,
    prompt_key,
    prompt_row,
    read_pairs,
    shown_against_own,
    split_by_prompt,
)
from whet.tools.pipelines.library.sampler import write_rows
from whet.tools.pipelines.settings import PipelineSettings
from whet.tools.pipelines.stages import stage_result

# files of a split: pairs of the policy and its reward model, of the judge, of nobody; then what is made of them
OWN, OTHER_HALF, HELD_OUT = "own.jsonl", "other_half.jsonl", "held_out.jsonl"
PROMPTS, JUDGED_PROMPTS, CHOSEN = "prompts.jsonl", "judged_prompts.jsonl", "chosen.jsonl"
TASK = "task:"


class PairsEntry(StageEntry):
    """Pairs from completions: the best of each prompt against the worst, or a demonstration against each."""

    kind: ClassVar[str] = "pairs"
    gives: ClassVar[tuple[Output, ...]] = ("pairs",)

    completions: str = Field("", description="the stage of kind sample whose completions are paired")
    demonstrations: str = Field(
        "", description="the stage whose demonstrations were asked again: they are chosen, own completions rejected"
    )
    stop_share: float = Field(
        1.0, gt=0, le=1, description="of own completions that equal the demonstrations: from there on nothing is learnt"
    )

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        inputs = {"completions": composition.rows(self, "completions", self.completions, ("completions",))}
        if self.demonstrations:
            inputs["demonstrations"] = composition.rows(self, "demonstrations", self.demonstrations)
        return inputs

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        label = inputs["completions"].label
        if self.demonstrations:
            return f"the demonstrations of {inputs['demonstrations'].label} against the completions of {label}"
        return f"the best completion of each prompt of {label} against the worst"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        rows = run.rows("completions")
        if self.demonstrations:
            pairs, counts = shown_against_own(run.rows("demonstrations"), rows)
            dropped = f"{count_of(counts['identical'], 'completion')} dropped, equal to the demonstration"
        else:
            pairs, counts = best_against_worst(rows)
            scores = [score for row in rows for score in row["scores"] if score is not None]
            mean = f"; the completions score {number(fmean(scores))} on average" if scores else ""
            dropped = f"{count_of(counts['ties'], 'prompt')} dropped where all completions score the same{mean}"
        stop = "" if pairs else "no pair is left to learn from"
        if self.demonstrations and counts["identical"] >= self.stop_share * counts["demonstrations"]:
            stop = f"{counts['identical']} of {counts['demonstrations']} own completions equal the data"
        return pairs_result(run, pairs, counts, dropped, stop)


def pairs_result(
    run: StageWork, pairs: list[PairRow], counts: Mapping[str, int], dropped: str, stop: str
) -> dict[str, Any]:
    """Write the pairs and sum them up; `stop` says why the stages after it are not worth doing."""
    write_rows(run.folder / OUTPUT_FILES["pairs"], pairs)
    summary = f"{count_of(len(pairs), 'pair')} in {OUTPUT_FILES['pairs']}; {dropped}"
    return stage_result(summary, counts=counts, stop_reason=stop)


class SplitPairsEntry(StageEntry):
    """Pairs split by prompt: one half for the policy and its reward model, one for a judge, and held-out ones."""

    kind: ClassVar[str] = "split_pairs"
    gives: ClassVar[tuple[Output, ...]] = ("pairs", "rows")
    uses: ClassVar[tuple[str, ...]] = ("seed", "data")

    data: str = Field("", description="the pairs: an earlier stage, a file, or task:NAME for its right and wrong ones")
    rows: int = Field(1024, ge=8, le=MOST_ROWS, description="pairs that a task writes")
    held_out: str = Field("", description="file of pairs to measure on; empty: held_out_share of the prompts of data")
    held_out_share: float = Field(0.2, gt=0, lt=1, description="of the prompts of data, to measure on")
    allow_overlap: bool = Field(False, description="measure on held_out though prompts of it are in data too")
    judged_prompts: int = Field(200, ge=2, le=MOST_ROWS, description="held-out prompts that policies are judged on")
    as_chat: bool = Field(False, description="a plain text prompt of the pairs is a user message")
    columns: dict[str, str] = Field({}, description="of the pairs: your name = whet's name")
    unusable: Literal["stop", "drop"] = Field("stop", description="rows that cannot be used: an error, or left out")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        inputs = {"pairs": composition.rows(self, "pairs", self.data, ("pairs",))}
        if self.held_out:
            inputs["held out"] = composition.rows(self, "held_out", self.held_out, ("pairs",))
        return inputs

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return f"preference pairs of {inputs['pairs'].label}, split by prompt: two halves, and held-out ones"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        section = DataSection(as_chat=self.as_chat, columns=self.columns, unusable=self.unusable)
        if self.data.startswith(TASK):
            pairs = self._task_pairs(run.settings)
        elif run.inputs["pairs"].stage:
            pairs = [{**row, "id": prompt_key(row)} for row in run.rows("pairs")]
        else:
            pairs = read_pairs(self.data, section)
        measured = read_pairs(self.held_out, section) if self.held_out else None
        split = split_by_prompt(pairs, measured, self.held_out_share, run.settings.seed)
        check_split(split, self.data, self.held_out, self.allow_overlap)
        judged = _prompts(split.held_out)[: self.judged_prompts]
        files = {
            OWN: split.own,
            OTHER_HALF: split.judge,
            HELD_OUT: split.held_out,
            PROMPTS: _prompts(split.own),
            JUDGED_PROMPTS: judged,
            CHOSEN: [{"prompt": row["prompt"], "completion": row["chosen"]} for row in split.own],
        }
        for name, rows in files.items():
            write_rows(run.folder / name, rows)
        longer = fmean(is_longer(row) for row in (*split.own, *split.judge))
        sides = {"own_pairs": len(split.own), "judge_pairs": len(split.judge), "held_out_pairs": len(split.held_out)}
        return stage_result(
            f"{count_of(len(split.own), 'pair')} for the policy and its reward model, {len(split.judge)} for the "
            f"judge, {len(split.held_out)} held out; the chosen one is the longer in {percent(longer)}",
            {"chosen_is_longer": longer},
            {**sides, "judged_prompts": len(judged)},
        )

    def _task_pairs(self, settings: PipelineSettings) -> list[PairRow]:
        from whet.data.source import TRAIN, parse_source
        from whet.data.tasks.contrast import task_preferences

        pairs = parse_source(self.data).from_tasks(
            lambda task, share, difficulty: task_preferences(task, TRAIN, share, settings.seed, difficulty),
            self.rows,
            settings.data.difficulty,
        )
        rows = [{**prompt_row(pair.prompt), "chosen": pair.chosen, "rejected": pair.rejected} for pair in pairs]
        return [{**row, "id": prompt_key(row)} for row in rows]


def _prompts(pairs: list[PairRow]) -> list[PairRow]:
    """The different prompts of the pairs, in their order."""
    prompts: dict[str, PairRow] = {}
    for pair in pairs:
        prompts.setdefault(str(pair["id"]), {name: pair[name] for name in ("id", "prompt", "answer") if name in pair})
    return list(prompts.values())
