"""Preference pairs: of a policy's own completions, and of files, split by prompt. What was dropped is counted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from whet.data.sections import DataSection
from whet.record.text import count_of, number, percent
from whet.settings.bounds import MOST_ROWS
from whet.settings.sections import Section
from whet.tools.pipelines.library import takes
from whet.tools.pipelines.library.entry import OUTPUT_FILES, StageEntry, StageWork
from whet.tools.pipelines.library.sampler import prompt_row
from whet.tools.pipelines.settings import PipelineSettings
from whet.tools.pipelines.stages import stage_result
from whet.types import WhetError

JSONRow = Mapping[str, Any]
PairRow = dict[str, Any]
# files of a split: pairs of the policy and its reward model, of the judge, of nobody; then what is made of them
OWN, OTHER_HALF, HELD_OUT = "own.jsonl", "other_half.jsonl", "held_out.jsonl"
PROMPTS, JUDGED_PROMPTS, CHOSEN = "prompts.jsonl", "judged_prompts.jsonl", "chosen.jsonl"
TASK = "task:"


def pair_row(row: JSONRow, chosen: str, rejected: str, **more: Any) -> PairRow:
    """A pair of two completions to the prompt of a row, with its answer where that is known."""
    answer = {} if row.get("answer") is None else {"answer": row["answer"]}
    return {"id": row["id"], "prompt": row["prompt"], "chosen": chosen, "rejected": rejected, **answer, **more}


def best_against_worst(rows: Sequence[JSONRow]) -> tuple[list[PairRow], dict[str, int]]:
    """The best completion of each prompt against its worst.

    Trap: a completion that was cut off must not be chosen: as text it would teach to end there.
    """
    pairs: list[PairRow] = []
    counts = {"prompts": len(rows), "pairs": 0, "ties": 0, "cut_off": 0, "unscorable_completions": 0}
    for row in rows:
        scored = zip(row["scores"], row["completions"], row["finished"], strict=True)
        known = [completion for completion in scored if completion[0] is not None]
        counts["unscorable_completions"] += len(row["scores"]) - len(known)
        if len({score for score, _, _ in known}) < 2:
            counts["ties"] += 1
            continue
        worst = min(known, key=lambda completion: float(completion[0]))
        wholes = [completion for completion in known if completion[2]]
        best = max(wholes, key=lambda completion: float(completion[0]), default=worst)
        if best[0] <= worst[0]:
            counts["cut_off"] += 1
        elif best[1] == worst[1]:  # a judge may score one text twice, and differently
            counts["ties"] += 1
        else:
            pairs.append(pair_row(row, best[1], worst[1], chosen_score=best[0], rejected_score=worst[0]))
    counts["pairs"] = len(pairs)
    return pairs, counts


def shown_against_own(
    demonstrations: Sequence[JSONRow], rows: Sequence[JSONRow]
) -> tuple[list[PairRow], dict[str, int]]:
    """Each demonstration against the policy's own completion to its prompt; those that are the same teach nothing."""
    pairs: list[PairRow] = []
    counts = {"demonstrations": len(rows), "pairs": 0, "identical": 0, "empty": 0, "cut_off_rejected": 0}
    for shown, row in zip(demonstrations, rows, strict=True):
        (own,), (finished,) = row["completions"], row["finished"]
        if own == shown["completion"]:
            counts["identical"] += 1
        elif not own.strip():
            counts["empty"] += 1
        else:
            counts["cut_off_rejected"] += not finished
            pairs.append(pair_row(shown, shown["completion"], own))
    counts["pairs"] = len(pairs)
    return pairs, counts


class SplitPairs(NamedTuple):
    """Rows with `id`, `prompt`, `chosen` and `rejected`."""

    own: list[PairRow]  # of the policy and its reward model
    judge: list[PairRow]  # of the judge
    held_out: list[PairRow]  # nobody learns from these


def read_pairs(source: str, data: DataSection) -> list[PairRow]:
    """The pairs of a file in any shape that whet reads, prompts as `data` says."""
    from whet.data.pairs import preferences_from
    from whet.training.assembly.rows import read_usable

    pairs = read_usable(data.model_copy(update={"source": source}), source, lambda _: preferences_from)
    return [
        with_key(
            pair_row(prompt_row(pair.prompt), pair.chosen, pair.rejected)
            | {name: value for name in ("margin", "preference") if (value := getattr(pair, name))}
        )
        for pair in pairs
    ]


def prompt_key(row: JSONRow) -> str:
    """What two pairs of one prompt share."""
    return hashlib.sha256(json.dumps(row["prompt"], sort_keys=True).encode()).hexdigest()[:16]


def with_key(row: PairRow) -> PairRow:
    """The row with its prompt's key for an id."""
    return {**row, "id": prompt_key(row)}


def split_by_prompt(rows: Sequence[PairRow], held_out: Sequence[PairRow] | None, share: float, seed: int) -> SplitPairs:
    """Halves by the prompt's text and the seed; without held-out rows of their own, `share` of the prompts.

    Which prompts are held out does not depend on the seed: what several seeds measure can be compared.
    """
    measured, learnt = list(held_out or ()), rows
    if held_out is None:
        measured = [row for row in rows if _place("held out", row) < share]
        learnt = [row for row in rows if _place("held out", row) >= share]
    halves: tuple[list[PairRow], list[PairRow]] = ([], [])
    for row in learnt:
        halves[_place(f"half {seed}", row) >= 0.5].append(row)
    return SplitPairs(*halves, measured)


def _place(salt: str, row: JSONRow) -> float:
    """A number in [0, 1) that the prompt and the salt decide."""
    return int.from_bytes(hashlib.sha256(f"{salt}/{prompt_key(row)}".encode()).digest()[:6], "little") / 2**48


def check_split(split: SplitPairs, source: str, held_out_source: str, allow_overlap: bool) -> None:
    """Refuse a side without pairs, and held-out prompts that are learnt from."""
    learnt = {prompt_key(row) for row in (*split.own, *split.judge)}
    inside = sum(row_key in learnt for row_key in {prompt_key(row) for row in split.held_out})
    if inside and not allow_overlap:
        raise WhetError(
            f"held_out: {count_of(inside, 'prompt')} of {held_out_source or source} are in {source} too, so the test "
            "set is inside the train set; take them out, or say --set allow_overlap=true"
        )
    for name, side in zip(("to learn from", "for the judge", "held out"), split, strict=True):
        if len(side) < 2:
            raise WhetError(
                f"pairs: {source} has {count_of(len(side), 'pair')} {name} after the split by prompt; give more pairs"
                + (", or another held_out_share" if name == "held out" and not held_out_source else "")
            )


def is_longer(row: PairRow) -> float:
    """1 where the chosen completion is the longer one, 0 where it is the shorter, 1/2 for equal lengths."""
    chosen, rejected = len(row["chosen"]), len(row["rejected"])
    return 0.5 if chosen == rejected else float(chosen > rejected)


class PairsEntry(StageEntry, kind="pairs", gives=("pairs",)):
    """Pairs from completions: the best of each prompt against the worst, or a demonstration against each."""

    completions: takes.Completions = Field("", description="the stage of kind sample whose completions are paired")
    demonstrations: takes.OptionalRows = Field(
        "", description="the stage whose demonstrations were asked again: they are chosen, own completions rejected"
    )
    stop_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of own completions that equal the demonstrations: from there on nothing is learned",
    )

    def about(self, run: StageWork) -> str:
        if self.demonstrations:
            return "the demonstrations of {demonstrations} against the completions of {completions}".format(
                **run.labels
            )
        return "the best completion of each prompt of {completions} against the worst".format(**run.labels)

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
    run.write("pairs", pairs)
    summary = f"{count_of(len(pairs), 'pair')} in {OUTPUT_FILES['pairs']}; {dropped}"
    return stage_result(summary, counts=counts, stop_reason=stop)


class PairSplit(Section):
    """How pairs are read, and which of them nobody learns from."""

    held_out: takes.OptionalPairs = Field(
        "", description="file of pairs to measure on; empty: held_out_share of the prompts of pairs"
    )
    held_out_share: float = Field(0.2, gt=0, lt=1, description="share of the prompts of pairs, to measure on")
    allow_overlap: bool = Field(False, description="measure on held_out though prompts of it are in pairs too")
    judged_prompts: int = Field(200, ge=2, le=MOST_ROWS, description="held-out prompts that policies are judged on")
    as_chat: bool = Field(False, description="a plain text prompt of the pairs is a user message")
    columns: dict[str, str] = Field({}, description="columns of the pairs: your name = whet's name")
    unusable: Literal["stop", "drop"] = Field(
        "stop", description="rows of the pairs that cannot be used: an error, or left out"
    )


class SplitPairsEntry(StageEntry, PairSplit, kind="split_pairs", gives=("pairs", "rows"), uses=("seed", "data")):
    """Pairs split by prompt: one half for the policy and its reward model, one for a judge, and held-out ones."""

    says: ClassVar[str] = "preference pairs of {pairs}, split by prompt: two halves, and held-out ones"

    data: Annotated[str, takes.InputRule(("pairs",), key="pairs")] = Field(
        "", description="the pairs: an earlier stage, a file, or task:NAME for its right and wrong ones"
    )
    rows: int = Field(1024, ge=8, le=MOST_ROWS, description="pairs that a task writes")

    def work(self, run: StageWork) -> Mapping[str, Any]:
        section = DataSection(as_chat=self.as_chat, columns=self.columns, unusable=self.unusable)
        if self.data.startswith(TASK):
            pairs = self._task_pairs(run.settings)
        elif run.inputs["pairs"].stage:
            pairs = [with_key(row) for row in run.rows("pairs")]
        else:
            pairs = read_pairs(self.data, section)
        measured = read_pairs(self.held_out, section) if self.held_out else None
        split = split_by_prompt(pairs, measured, self.held_out_share, run.settings.seed)
        check_split(split, self.data, self.held_out, self.allow_overlap)
        judged = _prompts(split.held_out)[: self.judged_prompts]
        run.write(OWN, split.own)
        run.write(OTHER_HALF, split.judge)
        run.write(HELD_OUT, split.held_out)
        run.write(PROMPTS, _prompts(split.own))
        run.write(JUDGED_PROMPTS, judged)
        run.write(CHOSEN, [{"prompt": row["prompt"], "completion": row["chosen"]} for row in split.own])
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
        return [with_key(row) for row in rows]


def _prompts(pairs: Sequence[PairRow]) -> list[PairRow]:
    """The different prompts of the pairs, in their order."""
    prompts: dict[str, PairRow] = {}
    for pair in pairs:
        prompts.setdefault(str(pair["id"]), {name: pair[name] for name in ("id", "prompt", "answer") if name in pair})
    return list(prompts.values())
