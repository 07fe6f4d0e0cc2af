"""What another reward would have given the samples a run saved, as text, JSON and a page; a reward's ledger as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from whet.pages.chart_specs import chart, line
from whet.pages.render import Figure, PageTable, TextCard, Tile, render
from whet.pages.reward_dry_run import shortened
from whet.record.metrics.distribution import TOTAL, is_flat
from whet.record.text import WIDTH, headline, metric_text, number, percent

MOST_CHANGED = 6


def history_text(changes: Sequence[Mapping[str, Any]]) -> str:
    """Each change, oldest first: what it was, why, what was expected and what came of it."""
    blocks, last = [], None
    for change in changes:
        first = f"{change['date'][:16].replace('T', ' ')}  {change['old'] or '(first)':12} -> {change['new']:12}"
        lines = [f"{first}  {change['name']}"]
        lines += _wrapped("reason", change["reason"]) + _wrapped("expected", change["expected"])
        changed = list(change["changed"])
        more = [f"and {len(changed) - MOST_CHANGED} more"] if len(changed) > MOST_CHANGED else []
        lines += _wrapped("changed", "; ".join([*changed[:MOST_CHANGED], *more]))
        for effect in change["effects"]:
            lines += _wrapped("actual", effect_text(effect, last))
        if change["effects"]:
            last = change["effects"][-1]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def effect_text(effect: Mapping[str, Any], before: Mapping[str, Any] | None) -> str:
    """The outcome of one run; next to the held-out mark, that of the last run under the reward before."""
    texts = []
    metrics = effect["evaluation"]
    name = headline(metrics)
    if name is not None:
        start, end = metrics[name]
        texts.append(f"held-out {name} {metric_text(name, start)} -> {metric_text(name, end)}")
        if before is not None and name in before["evaluation"]:
            texts[-1] += f" (the reward before: {metric_text(name, before['evaluation'][name][1])})"
    parts = ", ".join(f"{part} {number(start)} -> {number(end)}" for part, (start, end) in effect["parts"].items())
    texts += [parts] if parts else []
    return f"{effect['run']}, {effect['steps']} steps: {'; '.join(texts) or 'nothing was measured'}"


def _wrapped(label: str, text: str) -> list[str]:
    if not text:
        return []
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {label:9} ", subsequent_indent=" " * 12)


SHOWN = 5
MOST_STEPS = 20  # lines of the terminal's table


@dataclass(frozen=True)
class RescoredSample:
    """A saved sample with the scores it was trained on and those of the other reward."""

    step: int
    prompt_id: str
    question: str
    answer: str
    completion: str
    old_parts: Mapping[str, float | None]
    old: float | None
    new_parts: Mapping[str, float | None]
    new: float | None

    @property
    def difference(self) -> float | None:
        """New less old; None where either could not score it."""
        return None if self.old is None or self.new is None else self.new - self.old


@dataclass(frozen=True)
class Rescore:
    """A run's saved samples under two rewards."""

    run: str
    old_title: str
    old_hash: str  # "unknown" for a run that did not record one
    new_title: str
    new_hash: str
    changed: tuple[str, ...]  # what differs between the rewards, where that is known
    notes: tuple[str, ...]
    rows: tuple[RescoredSample, ...]

    @property
    def compared(self) -> list[RescoredSample]:
        """Samples that both rewards could score."""
        return [row for row in self.rows if row.difference is not None]

    def by_step(self) -> list[tuple[int, float, float]]:
        """(step, mean of the old reward, mean of the new one) over the samples that both could score."""
        by_step: dict[int, list[RescoredSample]] = {}
        for row in self.compared:
            by_step.setdefault(row.step, []).append(row)
        return [
            (step, fmean(row.old or 0.0 for row in rows), fmean(row.new or 0.0 for row in rows))
            for step, rows in sorted(by_step.items())
        ]

    def part_means(self) -> dict[str, tuple[float | None, float | None]]:
        """The mean of the total and of each part of either reward, old and new; None where one has no such part."""
        olds = [{TOTAL: row.old, **row.old_parts} for row in self.rows]
        news = [{TOTAL: row.new, **row.new_parts} for row in self.rows]
        names = dict.fromkeys(name for parts in (*olds, *news) for name in parts)
        return {
            name: (_mean(parts.get(name) for parts in olds), _mean(parts.get(name) for parts in news)) for name in names
        }

    def groups(self) -> list[list[RescoredSample]]:
        """The samples of one prompt in one step, where two or more were saved and compared."""
        by_prompt: dict[tuple[int, str], list[RescoredSample]] = {}
        for row in self.compared:
            by_prompt.setdefault((row.step, row.prompt_id), []).append(row)
        return [group for group in by_prompt.values() if len(group) > 1]

    def flipped_share(self) -> float | None:
        """The share of grouped samples that change places with another of their group: better becomes worse."""
        grouped = self.groups()
        if not grouped:
            return None
        flips = sum(_is_flipped(row, group) for group in grouped for row in group)
        return flips / sum(map(len, grouped))

    def gained_spread(self) -> list[list[RescoredSample]]:
        """Groups that taught nothing under the old reward and would under the new one."""
        return [group for group in self.groups() if is_flat(_olds(group)) and not is_flat(_news(group))]

    def lost_spread(self) -> list[list[RescoredSample]]:
        """Groups that taught something under the old reward and would not under the new one."""
        return [group for group in self.groups() if not is_flat(_olds(group)) and is_flat(_news(group))]

    def largest(self, count: int = SHOWN) -> list[RescoredSample]:
        """The samples whose score changes most."""
        changed = [row for row in self.compared if row.difference]
        return sorted(changed, key=lambda row: -abs(row.difference or 0.0))[:count]

    def num_newly(self, unscorable: bool) -> int:
        """Samples that only the old reward could score, or only the new one."""
        lost = [row for row in self.rows if row.new is None and row.old is not None]
        won = [row for row in self.rows if row.old is None and row.new is not None]
        return len(lost if unscorable else won)


def rescore_record(rescore: Rescore) -> dict[str, Any]:
    """The comparison as JSON."""
    return {
        "run": rescore.run,
        "old": {"title": rescore.old_title, "hash": rescore.old_hash},
        "new": {"title": rescore.new_title, "hash": rescore.new_hash},
        "changed": list(rescore.changed),
        "notes": list(rescore.notes),
        "samples": len(rescore.rows),
        "compared": len(rescore.compared),
        "newly_unscorable": rescore.num_newly(unscorable=True),
        "newly_scorable": rescore.num_newly(unscorable=False),
        "means": {name: {"old": old, "new": new} for name, (old, new) in rescore.part_means().items()},
        "by_step": [{"step": step, "old": old, "new": new} for step, old, new in rescore.by_step()],
        "groups": len(rescore.groups()),
        "flipped_share": rescore.flipped_share(),
        "gained_spread": len(rescore.gained_spread()),
        "lost_spread": len(rescore.lost_spread()),
        "largest": [
            {name: value for name, value in asdict(row).items() if name != "question"} for row in rescore.largest(20)
        ],
    }


def rescore_text(rescore: Rescore) -> str:
    """The comparison for a terminal."""
    lines = [
        f"{rescore.run}: {len(rescore.rows)} saved samples, none trained on again",
        f"old  {rescore.old_title}  {rescore.old_hash}",
        f"new  {rescore.new_title}  {rescore.new_hash}",
        *(f"  {text}" for text in (*rescore.changed, *rescore.notes)),
        "",
        f"{'mean':16} {'old':>8} {'new':>8}",
        *(f"  {name:14} {number(old):>8} {number(new):>8}" for name, (old, new) in rescore.part_means().items()),
        "",
        verdict(rescore),
    ]
    for title, unscorable in (("only the old reward can score", True), ("only the new reward can score", False)):
        if count := rescore.num_newly(unscorable):
            lines.append(f"{title} {count} samples")
    lines += ["", f"{'step':>6} {'old':>8} {'new':>8}"]
    lines += [f"{step:6} {number(old):>8} {number(new):>8}" for step, old, new in thinned_steps(rescore.by_step())]
    if rescore.largest():
        lines += ["", "largest differences"]
    for row in rescore.largest():
        lines.append(
            f"  step {row.step}, {row.prompt_id}: {number(row.old)} -> {number(row.new)}, "
            f"gold {shortened(row.answer, 30)}"
        )
        lines.append(f"    {shortened(row.completion, 100)}")
    return "\n".join(lines)


def verdict(rescore: Rescore) -> str:
    """The comparison in two sentences."""
    same = sum(row.difference == 0 for row in rescore.compared)
    sentence = f"{same} of {len(rescore.compared)} samples keep their score."
    flipped = rescore.flipped_share()
    if flipped is None:
        return f"{sentence} No group has two saved samples, so nothing can be said about their order."
    gained, lost = len(rescore.gained_spread()), len(rescore.lost_spread())
    return (
        f"{sentence} Within the {len(rescore.groups())} groups, {percent(flipped)} of the samples change places with "
        f"another; {gained} groups gain a spread and {lost} lose it."
    )


def thinned_steps(steps: Sequence[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """At most as many steps as fit on a terminal, with the first and the last among them."""
    if len(steps) <= MOST_STEPS:
        return list(steps)
    places = sorted({round(index * (len(steps) - 1) / (MOST_STEPS - 1)) for index in range(MOST_STEPS)})
    return [steps[index] for index in places]


def _is_flipped(row: RescoredSample, group: Sequence[RescoredSample]) -> bool:
    return any(
        ((row.old or 0.0) - (other.old or 0.0)) * ((row.new or 0.0) - (other.new or 0.0)) < 0
        and not is_flat([row.old or 0.0, other.old or 0.0])
        and not is_flat([row.new or 0.0, other.new or 0.0])
        for other in group
    )


def _olds(group: Sequence[RescoredSample]) -> list[float]:
    return [row.old for row in group if row.old is not None]


def _news(group: Sequence[RescoredSample]) -> list[float]:
    return [row.new for row in group if row.new is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    scored = [value for value in values if value is not None]
    return fmean(scored) if scored else None


def rescore_page(rescore: Rescore) -> str:
    """A run's saved samples under two rewards."""
    old, new = rescore.part_means()[TOTAL]
    return render(
        "reward_rescore.html",
        title=rescore.new_title,
        eyebrow="whet reward rescore",
        about=(rescore.run, f"{rescore.old_hash} → {rescore.new_hash}"),
        verdict=verdict(rescore),
        tiles=[
            Tile("mean reward", number(new), number(old)),
            Tile("samples", f"{len(rescore.rows):,}"),
            Tile("change places", percent(rescore.flipped_share())),
            Tile("groups that gain spread", str(len(rescore.gained_spread()))),
            Tile("groups that lose it", str(len(rescore.lost_spread()))),
        ],
        figure=rescore_figure(rescore),
        means=PageTable(
            ("", "old", "new"),
            tuple((name, number(before), number(after)) for name, (before, after) in rescore.part_means().items()),
        ),
        changed=(*rescore.changed, *rescore.notes),
        cards=[rescored_card(row) for row in rescore.largest(12)],
    )


def rescore_figure(rescore: Rescore) -> Figure | None:
    """Both rewards by step; None where no sample was scored by both."""
    steps = rescore.by_step()
    if not steps:
        return None
    titles = (rescore.old_title, rescore.new_title)
    lines = [
        line(title, [(float(step), means[index]) for step, *means in steps], index, marked=True)
        for index, title in enumerate(titles)
    ]
    return Figure("Old and new", "by step", chart(lines), is_wide=True)


def rescored_card(row: RescoredSample) -> TextCard:
    """A sample with both of its scores."""
    names = dict.fromkeys((*row.old_parts, *row.new_parts))
    chips = tuple((name, f"{number(row.old_parts.get(name))} → {number(row.new_parts.get(name))}") for name in names)
    texts = [("Prompt", row.question), ("Completion", row.completion), ("Gold answer", row.answer)]
    return TextCard(
        f"step {row.step}",
        f"{number(row.old)} → {number(row.new)}",
        chips,
        tuple((name, text) for name, text in texts if text),
        f"prompt {row.prompt_id}",
    )
