"""Other diagnosers on the same corpus: rldoctor and rlwatch from PyPI, at their default settings.

    python -m venv rivals && rivals/bin/pip install rldoctor==0.2.0 rlwatch==0.5.1 pydantic
    PYTHONPATH=src rivals/bin/python benchmarks/doctor/rivals.py --out rivals.json    # needs no torch
    python benchmarks/doctor/measure.py --rivals rivals.json --results

Both are about reinforcement learning, so they get the RL runs alone. Metrics are handed over under the names that TRL
logs (rldoctor maps those) or as the arguments of `log_step` (rlwatch); `GIVEN` says which of ours each one is.
rldoctor reads the finished run, which is when it knows most; rlwatch is told step by step. A detector that names the
kind of a fault is counted as naming it (`NAMED_BY`).
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from split_corpus import HALVES, part_of, read_runs

Run = Mapping[str, Any]
Alarms = list[tuple[str, str, int]]  # detector, warning or critical, step
CLIPS = frozenset(("ppo_clip", "dual_clip", "cap"))

# by our rules' words: which faults a detector of theirs names when it speaks
NAMED_BY: dict[str, dict[str, frozenset[str]]] = {
    "rldoctor": {
        "advantage_collapse": frozenset(("reward always 0", "reward per prompt", "no exploration")),
        "entropy_collapse": frozenset(("rate too high", "batch too small", "no exploration")),
        "kl_drift": frozenset(("rate too high", "batch too small", "rate too low")),
        "plateau": frozenset(("rate too low", "reward always 0", "dominant noise")),
        "gradient_pathology": frozenset(("rate too high", "one huge reward", "reward always 0", "reward per prompt")),
        "length_pathology": frozenset(("pays for length", "pays for brevity", "too few tokens")),
        "clip_saturation": frozenset(("too many updates", "stale rollouts")),
        "reward_composition": frozenset(("dominant noise", "pays for format")),
        "reward_hacking": frozenset(("proxy reward", "careless check", "pays for format", "sign error")),
    },
    "rlwatch": {
        "entropy_collapse": frozenset(("rate too high", "batch too small", "no exploration")),
        "kl_explosion": frozenset(("rate too high", "batch too small")),
        "reward_hacking": frozenset(
            ("proxy reward", "careless check", "pays for format", "pays for length", "pays for repetition")
        ),
        "loss_nan": frozenset(("rate too high",)),
        "gradient_norm_spike": frozenset(("one huge reward", "rate too high")),
        "reward_mean_drift": frozenset(("sign error", "rate too high", "batch too small")),
    },
}
GIVEN = {
    "rldoctor": "reward, reward_std, rewards/PART/mean, frac_reward_zero_std, entropy, kl, clip_ratio (where the clip "
    "rule cuts), grad_norm, loss, learning_rate, completions/mean_length, completions/clipped_ratio, eval_score (where "
    "the run was evaluated), step_time, explained_variance; not given: advantage statistics: whet does not record them",
    "rlwatch": "entropy, kl_divergence, reward_mean, reward_std, rewards (one per completion), loss, grad_norm; not "
    "given: advantage_std, which whet does not record",
}
HANDICAPS = {
    "rldoctor": "its check of reward parts says nothing below 150 steps",
    "rlwatch": "warm-ups of 20 to 50 steps, and 50 steps in a row below an entropy of 1, outlast many runs here; "
    "its threshold of entropy is that of large models",
}


def is_rl(run: Run) -> bool:
    return any(line.get("reward") and line["counts"].get("samples") for line in run["lines"] if "eval" not in line)


def trl_rows(run: Run) -> list[dict[str, Any]]:
    """The steps under the names that TRL logs."""
    evals = {line["step"]: line["result"] for line in run["lines"] if "eval" in line}
    rows = []
    for line in run["lines"]:
        if "eval" in line:
            continue
        metrics, counts = line["metrics"], line["counts"]
        samples = counts.get("samples") or 1
        row: dict[str, Any] = {
            "step": line["step"],
            "reward": line["reward"].get("total"),
            "reward_std": line.get("seen", {}).get("reward_std"),
            "frac_reward_zero_std": metrics.get("uniform_groups"),
            "entropy": metrics.get("entropy"),
            "kl": metrics.get("kl"),
            "grad_norm": metrics.get("gradient_norm", math.nan),
            "loss": metrics.get("loss", math.nan),
            "learning_rate": metrics.get("learning_rate"),
            "completions/mean_length": counts.get("tokens", 0) / samples,
            "completions/clipped_ratio": counts.get("truncated", 0) / samples,
            "step_time": sum(each for each in line["seconds"].values() if each is not None),
            "explained_variance": metrics.get("critic_explains"),
        }
        if run["health_settings"].get("objective.clip") in CLIPS:
            row["clip_ratio/region_mean"] = metrics.get("reweighted")
        parts = {name: value for name, value in line["reward"].items() if name != "total"}
        row |= {f"rewards/{name}/mean": value for name, value in parts.items()}
        if line["step"] in evals:
            score = evals[line["step"]]
            row["eval_score"] = score.get("accuracy", score.get("reward"))
        rows.append({name: value for name, value in row.items() if value is not None})
    return rows


def rldoctor(run: Run) -> Alarms:
    from rl_doctor import Severity, diagnose, run_from_records

    told = run["health_settings"]
    config = {
        "algorithm": "ppo" if "ppo" in run["method"] else "grpo",
        "group_size": told.get("batch.group_size"),
        "max_response_length": told.get("sampling.max_new_tokens"),
        "learning_rate": told.get("optimizer.learning_rate"),
    }
    rows = trl_rows(run)
    found = diagnose(run_from_records(rows, config=config, name=run["name"]))
    return [
        (finding.detector, "critical" if finding.severity >= Severity.CRITICAL else "warning", rows[-1]["step"])
        for finding in found.findings
        if finding.severity >= Severity.WARNING
    ]


def rlwatch(run: Run) -> Alarms:
    import numpy
    from rlwatch.config import RLWatchConfig
    from rlwatch.detectors import DetectorSuite

    suite = DetectorSuite(RLWatchConfig())
    alarms: Alarms = []
    for line in run["lines"]:
        if "eval" in line:
            continue
        metrics = line["metrics"]
        rewards = [each for each in line.get("seen", {}).get("rewards", ()) if each is not None]
        said = suite.check_step(
            line["step"],
            entropy=metrics.get("entropy"),
            kl_divergence=metrics.get("kl"),
            reward_mean=line["reward"].get("total"),
            reward_std=line.get("seen", {}).get("reward_std"),
            rewards=numpy.asarray(rewards, dtype=float) if rewards else None,
            advantage_std=None,
            # null is what was not finite
            loss=math.nan if "loss" in metrics and metrics["loss"] is None else metrics.get("loss"),
            grad_norm=metrics.get("gradient_norm"),
        )
        alarms += [(alert.detector, alert.severity, line["step"]) for alert in said]
    return alarms


RIVALS: dict[str, Callable[[Run], Alarms]] = {"rldoctor": rldoctor, "rlwatch": rlwatch}


def judged(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Counts over runs: alarms on healthy ones, on faulty ones from the fault's step on, and right names."""
    healthy = faulty = alarmed = critical = found = critically = named = 0
    by: dict[str, int] = {}
    for run in runs:
        alarms = RIVALS[name](run)
        if run["kind"] == "healthy":
            healthy += 1
            alarmed += bool(alarms)
            critical += any(severity == "critical" for _, severity, _ in alarms)
            for detector in {detector for detector, _, _ in alarms}:
                by[detector] = by.get(detector, 0) + 1
            continue
        faulty += 1
        late = [(detector, severity) for detector, severity, step in alarms if step >= run["start"]]
        found += bool(late)
        critically += any(severity == "critical" for _, severity in late)
        named += any(run["kind"] in NAMED_BY[name].get(detector, frozenset()) for detector, _ in late)
    return {
        "version": version(name),
        "healthy": {"runs": healthy, "alarmed": alarmed, "critical": critical, "by": by},
        "faulty": {"runs": faulty, "alarmed": found, "critical": critically, "named": named},
        "given": GIVEN[name],
        "handicap": HANDICAPS[name],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--half", choices=HALVES, action="append")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found: dict[str, Any] = {}
    for half in options.half or HALVES:
        runs = read_runs(options.corpus / f"corpus-{half}.jsonl.xz")
        runs = [run for run in runs if is_rl(run) and part_of(run) == "corpus"]  # those whose kinds `NAMED_BY` knows
        found[half] = {}
        for name in RIVALS:
            try:
                found[half][name] = judged(name, runs)
            except (ImportError, PackageNotFoundError) as error:
                print(f"{name} is left out: {error}; install it as the first lines of this script say")
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
