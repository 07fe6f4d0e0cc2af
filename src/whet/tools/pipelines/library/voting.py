"""Labels from a model's own votes, and how good they are where gold answers exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pydantic import Field

from whet.record.text import count_of, percent
from whet.reward.majority import voted_answer, winner
from whet.tools.pipelines.library.entry import Composition, Inputs, StageEntry, StageInput, StageWork
from whet.tools.pipelines.settings import PipelineSettings
from whet.tools.pipelines.stages import stage_result


class VoteEntry(StageEntry, kind="vote", gives=("rows",)):
    """Prompts labelled by the majority of the completions to them."""

    completions: str = Field("", description="the stage of kind sample whose completions vote")
    least_share: float = Field(
        0.0, ge=0, le=1, description="share of the votes that a label must have; others are left out"
    )

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
