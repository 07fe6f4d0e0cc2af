"""Reward models that differ by their seed alone: trained one after another in one folder, and evaluated together.

Every member is an ordinary run below the ensemble's folder, `seed-0`, `seed-1`, and so on. What is finished there is
never trained again, and what was interrupted continues: the same call twice is the same as once. The folder itself is
what the rewards `learned` and `learned_steps` take.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet import api
from whet.api.ranks import refuse_ranks
from whet.record.log import is_finished
from whet.record.run_folder import CONFIG, next_free_folder, write_atomically
from whet.record.text import metric_text, plain_metrics
from whet.settings.layers import merged
from whet.tools.studies.comparison import named_settings
from whet.training.config import RewardModelConfig, config_class, differing_keys, learns_steps, resolved
from whet.training.saved_config import read_config
from whet.types import WhetError

VALUES = "ensemble.json"


@dataclass(frozen=True)
class EnsembleRun:
    """An ensemble's folder after (or during) the training of its members."""

    folder: Path
    status: str  # finished or interrupted
    runs: tuple[Path, ...]
    metrics: Mapping[str, float]  # of all members together, on the held-out rows; empty without any


def train_ensemble(
    method: str,
    seeds: int,
    *,
    folder: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    command: str = "",
    **settings: Any,
) -> EnsembleRun:
    """Train `seeds` reward models that differ by their seed, or continue them, and evaluate them together.

    `config` are nested values, `settings` are top-level keys that win over it; `model`, `data` and `reward` may be
    given by name, as on the command line. `seed` is that of the first member.
    """
    if config_class(method) is not RewardModelConfig:
        raise WhetError(
            f"--seeds makes an ensemble of reward models, and {method} trains a policy; drop it, or see several seeds "
            f"of a method side by side with `whet compare --methods {method} --seeds {seeds}`"
        )
    refuse_ranks("an ensemble")
    out_folder = Path(folder) if folder else next_free_folder(f"{method}-seeds")
    values = merged(config or {}, named_settings(settings))
    first = int(values.pop("seed", 0))
    members = [_member(method, values, out_folder, first + number) for number in range(seeds)]
    for number, member in enumerate(members, 1):
        run = Path(member.folder)
        print(f"\n[{number}/{seeds}] {run}", flush=True)
        if not (run / CONFIG).exists():
            status = api.train(method, config=values, seed=member.seed, folder=str(run), command=command).status
        elif is_finished(run):
            print("  already finished", flush=True)
            continue
        else:
            status = api.resume(run, command=command).status
        if status != "finished":
            print(f"\ninterrupted; to continue, repeat the command with --folder {out_folder}")
            return EnsembleRun(out_folder, status, tuple(Path(member_config.folder) for member_config in members), {})
    metrics = ensemble_metrics(members)
    values_json = {"members": [member_config.folder for member_config in members], "eval": metrics}
    write_atomically(out_folder / VALUES, json.dumps(values_json, indent=2) + "\n")
    _print_summary(out_folder, method, metrics)
    return EnsembleRun(out_folder, "finished", tuple(Path(member_config.folder) for member_config in members), metrics)


def ensemble_metrics(members: list[RewardModelConfig]) -> dict[str, float]:
    """The metrics of all members together, each with the weights of its newest checkpoint."""
    from whet.model.checkpoint import load_checkpoint
    from whet.model.run_models import complete_checkpoints
    from whet.training.assembly.assembly import assemble
    from whet.training.reward_model_trainer import RewardModelTrainer, members_metrics

    scores: list[Any] = []
    held_out: Any = ()
    for config in members:
        trainer = assemble(config).trainer
        assert isinstance(trainer, RewardModelTrainer)
        if not trainer.eval_rows:
            return {}
        load_checkpoint(complete_checkpoints(Path(config.folder) / "checkpoints")[-1], trainer.model)
        held_out = trainer.eval_rows
        scores.append(trainer.eval_scores()[1])
    together = [
        [[value for member_scores in by_member for value in member_scores] for by_member in zip(*row, strict=True)]
        for row in zip(*scores, strict=True)
    ]
    return members_metrics(held_out, together)


def _member(method: str, values: Mapping[str, Any], folder: Path, seed: int) -> RewardModelConfig:
    run = folder / f"seed-{seed}"
    config = resolved(method, values, {"seed": seed, "folder": str(run)})
    assert isinstance(config, RewardModelConfig)
    if (run / CONFIG).exists():
        differing = differing_keys(config, read_config(run))
        if differing:
            raise WhetError(f"{run} was trained otherwise ({', '.join(differing[:3])}); give another --folder")
    return config


def _print_summary(folder: Path, method: str, metrics: Mapping[str, float]) -> None:
    print("\nall members together, on the held-out rows\n" if metrics else "\nno held-out rows: nothing was measured")
    for name, value in plain_metrics(metrics).items():
        print(f"  {name:28} {metric_text(name, value)}")
    kind = "learned_steps" if learns_steps(method) else "learned"
    print(f"\n  next  whet reward test {kind} --set folder={folder} --data FILE\n")
