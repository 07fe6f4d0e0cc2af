"""Run folders as a trainer leaves them, made without training."""

from __future__ import annotations

import json
import math
from pathlib import Path

from whet.pages.compare import MethodComparison, MethodRun, comparison_values
from whet.record.log import RunRecorder
from whet.types import Prompt, Sample, StepReport, StopReason

CONFIG = """method = "grpo"
seed = {seed}
steps = {total}

[model]
name = "whetstone"

[optimizer]
learning_rate = {rate}
"""


def report(step: int, total: int = 40, health: tuple[str, ...] = (), seed: int = 0) -> StepReport:
    reward = 0.2 + 0.6 * step / total + 0.05 * math.sin(7 * step + seed)
    ends = {"min": 0.0, "q1": 0.0, "median": 0.0, "q3": 1.0, "max": 1.0, "mean": reward, "flat": 0.1}
    return StepReport(
        step,
        step - 1,
        {"prompts": 4, "samples": 16, "tokens": 400 + step, "truncated": 1, "unscorable": 0},
        {"exact_answer": reward, "total": reward},
        {
            "entropy": 1.0 - 0.5 * step / total,
            "kl": 0.001 * step,
            "gradient_norm": 0.5,
            "loss": -0.1,
            "odd": float(step),
        },
        health,
        {"rollout": 1.0, "reward": 0.2, "train": 1.5},
        {"exact_answer": ends, "total": ends},
    )


def sample(step: int, text: str = "the answer is 42", reward: float = 1.0) -> tuple[Prompt, Sample]:
    import torch

    prompt = Prompt(f"p{step % 5}", ({"role": "user", "content": "What is 17 + 25?"},), None, "42")
    tokens = torch.tensor([1, 2, 3, 4])
    action = torch.tensor([False, False, True, True])
    return prompt, Sample(
        tokens=tokens,
        action=action,
        behavior_logp=torch.zeros(4),
        versions=(step - 1, step - 1),
        stop=StopReason.END,
        completion=text,
        parts={"exact_answer": reward},
        reward=reward,
    )


class MadeRun:
    """A run folder that can be appended to."""

    def __init__(self, folder: Path, total: int = 40, seed: int = 0, rate: float = 1e-4, **summary: object) -> None:
        self.folder, self.total, self.seed, self.last = folder, total, seed, 0
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(CONFIG.format(seed=seed, total=total, rate=rate))
        self.recorder = RunRecorder(folder)
        about = {"title": "GRPO", "method": "grpo", "total_steps": total, "started": 1.79e9, "seed": seed}
        about |= {
            "objective": ["GRPO", "  A = R - mean_g(R)"],
            "facts": {"dtype": "float32"},
            "command": "whet train grpo",
        }
        self.recorder.started({**about, **summary})
        self.recorder.evaluated(0, "eval", {"accuracy": 0.1, "reward": 0.1}, 0.5)

    def step(self, count: int = 1, health: tuple[str, ...] = (), text: str = "the answer is 42") -> MadeRun:
        for _ in range(count):
            self.last += 1
            self.recorder.stepped(report(self.last, self.total, health, self.seed), [sample(self.last, text)])
            if self.last % 10 == 0:
                self.recorder.evaluated(self.last, "eval", {"accuracy": self.last / self.total, "reward": 0.5}, 0.5)
        return self

    def finish(self) -> MadeRun:
        self.recorder.finished({"finished": 1.79e9 + 100, "before": {"accuracy": 0.1}, "after": {"accuracy": 0.9}})
        return self


def make_pipeline(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "pipeline.toml").write_text('pipeline = "r1_zero"\n')
    stage = folder / "01-train"
    MadeRun(stage / "run").step(5).finish()
    result = {"summary": "trained for 5 steps", "metrics": {"accuracy": 0.5}, "counts": {"steps": 5}}
    (stage / "stage.json").write_text(json.dumps({"name": "train", "result": result, "seconds": 12.0}))
    (folder / "02-eval").mkdir()
    (folder / "02-eval" / "started.json").write_text("{}")
    return folder


def make_comparison(folder: Path) -> Path:
    for seed in range(3):
        MadeRun(folder / f"grpo-seed{seed}", seed=seed).step(40).finish()
    MadeRun(folder / "high-seed0", rate=1e-3).step(40).finish()
    finals = {"grpo": (0.8, 0.9, 1.0), "high": (0.4,)}
    results = tuple(
        MethodRun(
            name,
            seed,
            {"accuracy": 0.1},
            {"accuracy": final},
            ((1.0, 0.2), (2.0, 0.4)),
            1000,
            100.0,
            f"{name}-seed{seed}",
        )
        for name, marks in finals.items()
        for seed, final in enumerate(marks)
    )
    comparison = MethodComparison(("grpo", "high"), (0, 1, 2), results, {"steps": "40"}, planned={"grpo": 3, "high": 1})
    (folder / "compare.json").write_text(json.dumps(comparison_values(comparison)))
    return folder


def make_evaluation(folder: Path) -> Path:
    folder.mkdir(parents=True)
    summary = {"prompts": 100, "samples": 1, "measure": "accuracy"}
    evals = [
        {
            "model": name,
            "task": "task:arithmetic",
            "metrics": {"accuracy": value, "completion_tokens": 12.0},
            "summary": {**summary, "value": {"value": value, "low": value - 0.1, "high": value + 0.1}},
        }
        for name, value in (("whetstone", 0.2), ("runs/grpo-001", 0.8))
    ]
    pair = {
        "first": "whetstone",
        "second": "runs/grpo-001",
        "difference": 0.6,
        "low": 0.5,
        "high": 0.7,
        "corrected_p": 0.001,
    }
    (folder / "eval.json").write_text(json.dumps({"evals": evals, "pairs": {"task:arithmetic": [pair]}}))
    return folder
