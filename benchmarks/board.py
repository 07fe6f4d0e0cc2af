"""A run of 100,000 steps and 50,000 samples, and how soon the board shows it.

    python benchmarks/board.py make FOLDER
    python benchmarks/board.py measure FOLDER --out results/board.json

`make` writes the run. `measure` starts `whet board` anew for each repeat and opens the run in Chromium: the time until
the first byte of the page, until the first chart is drawn, and until all of the log was read. The page cache of the
system is warm or, where it may be dropped (root), cold.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

STEPS, SAMPLES = 100_000, 50_000
METRICS = (
    *("entropy", "gradient_norm", "kl", "kl_completion", "kl_old", "learning_rate", "loss", "ratio"),
    *("reward_length_correlation", "reward_reference_correlation", "reweighted", "sampler_gap", "sampler_gap_max"),
    *("surrogate", "uniform_groups", "updates"),
)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def make(folder: Path, steps: int = STEPS, samples: int = SAMPLES, seed: int = 0) -> None:
    """A finished run folder of that size, with the fields that a policy run records."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('method = "grpo"\nsteps = %d\n[model]\nname = "whetstone"\n' % steps)
    with (folder / "metrics.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            log.write(json.dumps(step_line(step, steps, draw)) + "\n")
            if step % 1000 == 0:
                result = {"accuracy": rise(step, steps), "reward": rise(step, steps)}
                log.write(
                    json.dumps({"step": step, "eval": "eval", "result": result, "seconds": {"evaluate": 1.0}}) + "\n"
                )
    words = "so the sum of both numbers is and we carry one to the next place of it".split()
    with (folder / "samples.jsonl").open("w") as log:
        for number in range(samples):
            step = 1 + number * steps // samples
            text = " ".join(draw.choice(words) for _ in range(150))
            right = draw.random() < rise(step, steps)
            line = {"step": step, "prompt_id": f"prompt-{draw.randrange(1024)}", "question": "What is 17 + 25?"}
            line |= {"answer": "42", "completion": text, "stop": "end", "parts": {"exact_answer": float(right)}}
            line |= {"reward": float(right), "tokens": 150, "versions": [step - 1, step - 1], "reward_hash": "0" * 12}
            log.write(json.dumps(line) + "\n")
    summary = {"status": "finished", "title": "GRPO", "method": "grpo", "total_steps": steps, "started": 1.7e9}
    summary |= {"finished": 1.7e9 + 4.0 * steps, "objective": ["GRPO"], "facts": {"model": "made by a script"}}
    (folder / "run.json").write_text(json.dumps(summary))


def rise(step: int, steps: int) -> float:
    return 0.1 + 0.8 * (1 - math.exp(-4 * step / steps))


def step_line(step: int, steps: int, draw: random.Random) -> dict[str, Any]:
    reward = min(1.0, max(0.0, draw.gauss(rise(step, steps), 0.05)))
    if step == steps // 3:
        reward = 0.0  # one bad step that no downsampling may lose
    ends = {"at_max": 0.4, "at_min": 0.6, "flat": 0.0, "max": 1.0, "mean": reward, "median": 0.0, "min": 0.0}
    ends |= {"q1": 0.0, "q3": 1.0}
    return {
        "step": step,
        "policy_version": step - 1,
        "counts": {
            "prompts": 16,
            "samples": 128,
            "tokens": draw.randrange(1800, 5000),
            "truncated": 0,
            "unscorable": 0,
        },
        "reward": {"exact_answer": reward, "total": reward},
        "metrics": {name: draw.random() for name in METRICS},
        "health": ["entropy collapse: the entropy fell: all the same; raise it."] if step > 0.9 * steps else [],
        "spread": {"exact_answer": ends, "total": ends},
        "seconds": {phase: draw.random() for phase in ("reference", "reward", "rollout", "train")},
    }
