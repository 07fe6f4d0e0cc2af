"""What pipelines of rounds share: the policy writes, pairs are made of that, and it is trained on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from whet.objective.presets.preference import PAIR_PRESETS
from whet.record.text import count_of
from whet.settings.bounds import MOST_REPEATS
from whet.settings.sections import Table
from whet.tools.pipelines.evaluation import POLICY, eval_stage, has_eval
from whet.tools.pipelines.generation import PAIRS, train_prompts, write_rows
from whet.tools.pipelines.settings import TRAIN_KEYS, PipelineSettings
from whet.tools.pipelines.stages import FinishedStage, Stage, stage_result
from whet.tools.pipelines.training import (
    check_training,
    run_summary,
    stage_settings,
    steps_for,
    train_run,
    trained_model,
    training_config,
)
from whet.training.assembly.preference import preference_objective
from whet.training.config import PreferenceConfig, config_kind
from whet.types import Prompt, WhetError

PLAIN = next(iter(PAIR_PRESETS))  # the first preset is the one that the others are measured against


class RoundSettings(PipelineSettings):
    """What pipelines of rounds share."""

    rounds: int = Field(2, ge=1, le=MOST_REPEATS, description="how often pairs are written and trained on")
    method: str = Field(PLAIN, description="a preference method of `whet algorithms`")
    epochs: float = Field(2.0, ge=1e-6, le=1000, description="passes over a round's pairs: few pairs get few updates")
    train: Table = Field({}, description=f"of each round's training: {TRAIN_KEYS}")


def check_method(settings: RoundSettings) -> str:
    """The reference of each round's training, in words; refuses a training that could not start."""
    if config_kind(settings.method) is not PreferenceConfig:
        raise WhetError(f"method is {settings.method!r}, which does not learn from pairs; give one such as {PLAIN!r}")
    config = check_training(settings.method, pair_config(settings, settings.model.name, "pairs.jsonl", 1))
    if config.preference.online or config.preference.labels:
        raise WhetError("train.preference: the pairs are written before each training; drop online and labels")
    return "the same policy" if "ref_logp" in preference_objective(config).needs() else "none"


def policy_after(number: int) -> str:
    """The policy that a round left, in words."""
    return f"the policy of round {number}" if number else "the first policy"


def pair_config(settings: RoundSettings, model: str, pairs: str, steps: int) -> dict[str, Any]:
    return training_config(settings, model, {"data": {"source": pairs}, "steps": steps}, settings.train, "train")


def last_model(settings: PipelineSettings, done: Mapping[str, FinishedStage], number: int, stage: str = "train") -> str:
    """The model that a round starts from."""
    return settings.model.name if number == 1 else trained_model(done[f"round{number - 1}-{stage}"])


def round_prompts(config: Any, number: int, count: int) -> list[Prompt]:
    """The prompts of a round: never those of another round."""
    return train_prompts(config, (number - 1) * count, count, "prompts_per_round or rounds")


def write_round_pairs(
    folder: Path, pairs: Sequence[Mapping[str, Any]], counts: Mapping[str, int], dropped: str
) -> dict[str, Any]:
    """Write the pairs and sum them up; without any, the pipeline stops."""
    write_rows(folder / PAIRS, pairs)
    stop_reason = "" if pairs else "no pair is left to learn from"
    summary = f"{count_of(len(pairs), 'pair')} in {PAIRS}; {dropped}"
    return stage_result(summary, counts=counts, stop_reason=stop_reason)


def train_on_pairs(settings: RoundSettings, model: str, folder: Path, pairs: FinishedStage) -> Mapping[str, Any]:
    """Train a model on a round's pairs."""
    file = str((pairs.folder / PAIRS).resolve())
    config = check_training(settings.method, pair_config(settings, model, file, 1))
    steps = steps_for(pairs.result["counts"]["pairs"], settings.epochs, config.batch.rows_per_step)
    train_run(folder, settings.method, pair_config(settings, model, file, steps))
    return stage_result(run_summary(folder), steps=steps)


def train_stages(
    settings: RoundSettings,
    number: int,
    reference: str,
    start: Callable[[Mapping[str, FinishedStage]], str] | None = None,
) -> list[Stage]:
    """Training on a round's pairs, and the eval of what it made. `start` gives the model it starts from."""

    def work(folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
        model = last_model(settings, done, number) if start is None else start(done)
        return train_on_pairs(settings, model, folder, done[f"round{number}-pairs"])

    about = f"{settings.method} on these pairs; starts from {policy_after(number - 1)}, reference: {reference}"
    stages = [Stage(f"round{number}-train", about, work, stage_settings(settings))]
    if has_eval(settings):
        stages.append(eval_stage(settings, POLICY, number, f"round{number}-train", f"round{number}-eval"))
    return stages
