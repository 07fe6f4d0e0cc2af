"""TensorBoard: event files below the run folder. `tensorboard --logdir runs` shows every run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from whet.record.trackers.tracker import TrackedRun, TrackedStep, histogram, messages, sample_facts

FOLDER = "tensorboard"


class TensorBoardTracker:
    """Events carry their step; those that a resumed run makes again replace the earlier ones (`purge_step`)."""

    name: ClassVar[str] = "tensorboard"
    packages: ClassVar[tuple[str, ...]] = ("tensorboard",)
    extra: ClassVar[str] = "track"

    def __init__(self, *, folder: str = "") -> None:
        """`folder`: where the event files go; empty: tensorboard/ below the run folder."""
        self._folder = folder
        self._writer: Any = None
        self._place = folder or f"RUN/{FOLDER}"

    @property
    def place(self) -> str:
        return f"tensorboard --logdir {self._place}"

    def open(self, run: TrackedRun, saved: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        from torch.utils.tensorboard.writer import SummaryWriter

        folder = Path(self._folder) / run.name if self._folder else run.folder / FOLDER
        self._place = str(folder)
        had = int(saved.get("lines") or 0) if list(folder.glob("events.out.tfevents.*")) else 0
        # steps that the run has not made (again) yet are void
        purge = run.last_step + 1 if had > run.lines else None
        self._writer = writer = SummaryWriter(str(folder), purge_step=purge, max_queue=10_000)
        if not had:
            writer.add_text("run", _verbatim({"title": run.title, **run.facts}), 0)
            writer.add_text("config", _verbatim(run.settings), 0)
        writer.flush()
        return {"folder": str(folder)}, min(had, run.lines)

    def step(self, step: TrackedStep) -> None:
        writer = self._writer
        for name, value in step.scalars.items():
            writer.add_scalar(name, value, step.step)
        count = int(step.scalars.get("samples", 1))
        for name, quantiles in step.spread.items():
            counts, edges = histogram(quantiles, count)
            low, high = quantiles["min"], quantiles["max"]
            total = quantiles.get("mean", quantiles["median"]) * count
            writer.add_histogram_raw(
                f"spread/{name}", low, high, count, total, 0.0, edges, [0.0, *counts], global_step=step.step
            )
        for finding in step.findings:
            writer.add_text("health", finding, step.step)
        if step.samples:
            texts = []
            for sample in step.samples:
                transcript = "\n\n".join(
                    f"**{message['role']}**\n\n{_indented(message['content'])}" for message in messages(sample)
                )
                texts.append(f"{_facts_line(sample_facts(sample))}\n\n{transcript}")
            writer.add_text("completions", "\n\n---\n\n".join(texts), step.step)
        writer.flush()

    def evaluation(self, step: int, scalars: Mapping[str, float]) -> None:
        writer = self._writer
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def close(self, status: str, summary: Mapping[str, str]) -> None:
        writer = self._writer
        writer.add_text("summary", _verbatim(summary), 0)
        writer.close()


def _verbatim(values: Mapping[str, Any]) -> str:
    return _indented("\n".join(f"{name} = {value}" for name, value in values.items()))


def _indented(text: str) -> str:
    """The text as a Markdown code block, so that it is shown verbatim."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _facts_line(facts: Mapping[str, Any]) -> str:
    return _indented("  ".join(f"{name} {value}" for name, value in facts.items() if value is not None))
