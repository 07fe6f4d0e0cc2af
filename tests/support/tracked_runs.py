"""A run as a tracker meets it: recorded on disk and followed, killed, cut back and resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from whet.record.log import RunRecorder, cut_back
from whet.record.trackers.find import trackers_of
from whet.record.trackers.tracking import Trackers
from whet.types import Prompt, Sample, StepReport, StopReason, Turn

HOSTILE = "=cmd|' /C calc'!A0 <script>alert(1)</script>\n\x1b[31mred **bold** \x00"
CONFIG = {"method": "grpo", "steps": 9, "optimizer": {"learning_rate": 1e-4}, "model": {"name": "tiny"}}


def report(step: int, reward: float | None = None) -> StepReport:
    value = 0.1 * step if reward is None else reward
    spread = {"total": {"min": 0.0, "q1": 0.0, "median": 0.5, "q3": 1.0, "max": 1.0, "mean": 0.5}}
    health = ("entropy collapse: the entropy fell to 0.01 nats",) if step in (2, 3) else ()
    metrics = {"kl": 0.01 * step, "entropy": float("nan"), "gradient_norm": 1.0}
    rewards = {"total": value, "exact": value / 2}
    return StepReport(step, step, {"samples": 8, "tokens": 80}, rewards, metrics, health, {"train": 0.5}, spread)


def samples(step: int) -> list[tuple[Prompt, Sample]]:
    turns = (
        Turn("assistant", f"call at step {step}", 0, 2),
        Turn("tool", "42 <b>", 2, 3),
        Turn("assistant", "it is 42", 3, 5),
    )
    question = Prompt(f"p{step}", (), f"what is {step}?", "42")
    tokens, action, logp = torch.arange(5), torch.tensor([True, True, False, True, True]), torch.zeros(5)
    plain = Sample(tokens, action, logp, (0, 0), StopReason.END, HOSTILE, parts={"exact": 0.0}, reward=0.0)
    played = replace(plain, completion="it is 42", parts={"exact": 1.0}, reward=1.0, turns=turns)
    return [(question, plain), (question, played)]


class Followed:
    """A run of one session after another, each step recorded first and then sent, as `run_training` does."""

    def __init__(self, folder: Path, names: list[str], settings: Mapping[str, Any] | None = None) -> None:
        self.folder, self.names, self.settings = folder, names, settings or {}
        self.positions: dict[int, Any] = {}
        self.trackers: Trackers | None = None

    def session(self, first: int, last: int, *, ends: bool = True, reward: float | None = None) -> Trackers:
        """Steps `first` to `last`, evaluated at 0 and at the last; without `ends` the process is killed."""
        cut_back(self.folder, self.positions.get(first - 1, {}))
        record = RunRecorder(self.folder)
        trackers = trackers_of(self.names, self.settings, self.folder, CONFIG, 1)
        assert trackers is not None
        everyone = [record, trackers]
        for each in everyone:
            each.started({"title": "GRPO tiny", "facts": {"device": "cpu"}, "total_steps": 9})
        if first == 1:
            for each in everyone:
                each.evaluated(0, "eval", {"accuracy": 0.25}, 0.1)
        self.positions[first - 1] = record.position()
        for step in range(first, last + 1):
            for each in everyone:
                each.stepped(report(step, reward), samples(step))
            self.positions[step] = record.position()
        if ends:
            trackers.close("finished", {"after": {"accuracy": 0.75}, "seconds": {"train": 3.0}})
            record.finished({})
        record.close()
        return trackers
