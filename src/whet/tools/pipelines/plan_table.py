"""What a pipeline is going to do, as lines of text: its stages, what each reads and writes, and what it may cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from whet.record.text import aligned, duration, quantity
from whet.tools.pipelines.stages import Stage, StageCost, StagePlan

HEAD = ["stage", "reads", "writes", "updates", "completions", "tokens sampled"]


def plan_lines(stages: Sequence[Stage], unchanged: Collection[str] = ()) -> list[str]:
    """A line per stage, the sum, and what the numbers mean."""
    costs = [(stage.plan or StagePlan()).cost for stage in stages]
    timed = any(cost.seconds for cost in costs)
    rows = [[*HEAD, "time"] if timed else HEAD]
    for number, (stage, cost) in enumerate(zip(stages, costs, strict=True), 1):
        plan = stage.plan or StagePlan()
        named = (where if where == what else f"{what}: {where}" for what, where in plan.inputs.items())
        reads = "; ".join(named) or stage.about
        mark = " (done)" if stage.name in unchanged else ""
        cells = [f"{number}. {stage.name}{mark}", reads, plan.writes, *_amounts(cost)]
        rows.append([*cells, duration(cost.seconds) if cost.seconds else ""] if timed else cells)
    total = StageCost(
        sum(cost.updates for cost in costs),
        sum(cost.trained_rows for cost in costs),
        sum(cost.completions for cost in costs),
        sum(cost.sampled_tokens for cost in costs),
        sum(cost.seconds or 0.0 for cost in costs),
    )
    last = ["in all", "", "", *_amounts(total)]
    rows.append([*last, duration(total.seconds)] if timed else last)
    lines = _left_aligned(rows)
    lines += [f"{stage.name}: {cost.note}" for stage, cost in zip(stages, costs, strict=True) if cost.note]
    if any(cost.sampled_tokens for cost in costs):
        lines.append("tokens sampled are at most: every completion as long as its budget")
    if timed:
        lines.append("time: of the trainings alone, by the rates of `whet plan`; sampling and evals come on top")
    else:
        lines.append("no time is given: nothing was measured on a device like this one that it could be told by")
    if unchanged:
        lines.append("(done): finished in the folder with these settings and inputs; it is skipped")
    return lines


def _amounts(cost: StageCost) -> list[str]:
    numbers = (cost.updates, cost.completions, cost.sampled_tokens)
    return [quantity(number) if number else "" for number in numbers]


def _left_aligned(rows: list[list[str]]) -> list[str]:
    """Three columns of words to the left, then numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    words = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
    return aligned([[text, *row[3:]] for text, row in zip(words, rows, strict=True)])
