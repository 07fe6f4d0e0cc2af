"""Pipelines of rounds: the policy writes, pairs are made of it, and it is trained on them against what it was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from pydantic import Field

from whet.build.preference import preference_objective
from whet.config.config import SUPERVISED, PreferenceConfig, SFTConfig, config_kind
from whet.config.sections import DemonstrationSection, RewardSection
from whet.objective.presets.preference import PAIR_PRESETS
from whet.pipeline import Done, Recipe, Stage, found, read_json_lines
from whet.pipeline.pairs import best_against_worst, prompt_row, shown_against_own
from whet.pipeline.parts import (
    PAIRS,
    ROWS,
    check_training,
    evaluation,
    is_marked,
    marks_stage,
    model_of,
    run_told,
    stage_settings,
    trained,
    training,
    write_completions,
    write_rows,
)
from whet.pipeline.sections import TRAIN_KEYS, PipelineSettings
from whet.report.text import number as number_text
from whet.types import Prompt, WhetError

PLAIN = next(iter(PAIR_PRESETS))  # the first row is the one that the others are measured against
POLICY, IMITATION = "the policy", "plain imitation"


class RoundSettings(PipelineSettings):
    """What pipelines of rounds share."""

    rounds: int = Field(2, ge=1, description="how often pairs are written and trained on")
    method: str = Field(PLAIN, description="a preference method of `whet algorithms`")
    epochs: float = Field(2.0, gt=0, description="passes over a round's pairs: few pairs get few updates")
    train: dict[str, Any] = Field({}, description=f"of each round's training: {TRAIN_KEYS}")


class OwnPairSettings(RoundSettings):
    """The policy's best completions against its worst."""

    prompts_per_round: int = Field(1024, ge=1, description="new ones in every round")
    completions: int = Field(8, ge=2, description="that the policy writes to each prompt")
    reward: RewardSection = Field(
        RewardSection(),
        description="what scores the completions: a rule, a learned model, a judge; empty: the task's own",
    )

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts_per_round": 128,
        "sampling": {"max_new_tokens": 64},
        "train": {"batch": {"rows_per_step": 32}},
    }


class SelfPlaySettings(RoundSettings):
    """Demonstrations against the policy's own completions."""

    data: DemonstrationSection = DemonstrationSection()
    compare: bool = Field(True, description="imitate the same demonstrations for as many updates, and say who wins")
    imitate: dict[str, Any] = Field({}, description=f"of that imitation: {TRAIN_KEYS}")
    stop_share: float = Field(
        1.0, gt=0, le=1, description="of own completions that equal the demonstrations: from there on nothing is learnt"
    )

    small_run: ClassVar[Mapping[str, Any]] = {
        "data": {"count": 512},
        "sampling": {"max_new_tokens": 64},
        "train": {"batch": {"rows_per_step": 32}},
        "imitate": {"batch": {"rows_per_step": 32}},
    }


def own_pair_stages(settings: OwnPairSettings) -> list[Stage]:
    reference = checked_method(settings)
    stages = [marks_stage(settings, POLICY, 0, None)] if is_marked(settings) else []
    for number in range(1, settings.rounds + 1):
        stages.append(_own_pairs(settings, number))
        stages += _learnt(settings, number, reference)
    return stages


def self_play_stages(settings: SelfPlaySettings) -> list[Stage]:
    reference = checked_method(settings)
    if settings.compare:
        check_training(SUPERVISED, imitation(settings, settings.model.name, "rows.jsonl", 1), "imitate")
    stages = [
        Stage("demonstrations", "the completions to learn from", _demonstrations(settings), stage_settings(settings))
    ]
    stages += [marks_stage(settings, POLICY, 0, None)] if is_marked(settings) else []
    for number in range(1, settings.rounds + 1):
        stages.append(_self_play_pairs(settings, number))
        stages += _learnt(settings, number, reference)
        stages += _imitated(settings, number) if settings.compare else []
    return stages


def checked_method(settings: RoundSettings) -> str:
    """What each round's policy is compared with, in words; refuses a training that could not start."""
    if config_kind(settings.method) is not PreferenceConfig:
        raise WhetError(f"method is {settings.method!r}, which learns from no pairs; give one such as {PLAIN!r}")
    config = check_training(settings.method, pair_training(settings, settings.model.name, "pairs.jsonl", 1))
    if config.preference.online or config.preference.labels:
        raise WhetError("train.preference: the pairs are written before each training; drop online and labels")
    return "the policy of round {}" if "ref_logp" in preference_objective(config).needs() else "none"


def pair_training(settings: RoundSettings, model: str, pairs: str, steps: int) -> dict[str, Any]:
    return training(settings, model, {"data": {"source": pairs}, "steps": steps}, settings.train, "train")


def imitation(settings: SelfPlaySettings, model: str, rows: str, steps: int) -> dict[str, Any]:
    own = {"data": {"source": rows, "every_completion": settings.data.every_completion}, "steps": steps}
    return training(settings, model, own, settings.imitate, "imitate")


def steps_for(num_rows: int, epochs: float, rows_per_step: int) -> int:
    """Updates that go `epochs` times over the rows."""
    return max(1, math.ceil(epochs * num_rows / rows_per_step))


def last_model(settings: PipelineSettings, done: Mapping[str, Done], number: int, stage: str = "train") -> str:
    """The model that a round begins with."""
    return settings.model.name if number == 1 else model_of(done[f"round{number - 1}-{stage}"])


def _own_pairs(settings: OwnPairSettings, number: int) -> Stage:
    def work(folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
        config = evaluation(settings, last_model(settings, done, number), settings.reward)
        chosen = round_prompts(config, number, settings.prompts_per_round)
        rows = write_completions(folder, config, chosen, settings.completions, (settings.seed, number), is_scored=True)
        pairs, counts = best_against_worst(rows)
        scores = [score for row in rows for score in row["scores"] if score is not None]
        mean = f"; the completions score {number_text(fmean(scores))} on average" if scores else ""
        return paired(
            folder, pairs, counts, f"{counts['ties']} prompts dropped: their completions score the same{mean}"
        )

    about = (
        f"the policy of round {number - 1} writes {settings.completions} completions to each of {settings.prompts_per_round} "
        "new prompts; the best against the worst"
    )
    return Stage(f"round{number}-pairs", about, work, stage_settings(settings))


def round_prompts(config: Any, number: int, count: int) -> list[Prompt]:
    """The prompts of a round: never those of another round."""
    from whet.build.prompts import load_prompts

    needed = number * count
    if config.data.parsed_source.is_generated and config.data.count < needed:
        config = config.model_copy(update={"data": config.data.model_copy(update={"count": needed})})
    chosen = load_prompts(config, held_out=False)
    if len(chosen) < needed:
        raise WhetError(
            f"{config.data.source} has {len(chosen)} prompts and round {number} needs {needed} in all; "
            "lower prompts_per_round or rounds"
        )
    return chosen[needed - count : needed]


def paired(folder: Path, pairs: Sequence[Mapping[str, Any]], counts: Mapping[str, int], dropped: str) -> dict[str, Any]:
    """Write the pairs and tell about them; without one the pipeline is over."""
    write_rows(folder / PAIRS, pairs)
    over = "" if pairs else "no pair is left to learn from"
    return found(f"{len(pairs)} pairs in {PAIRS}; {dropped}", counts=counts, over=over)


def _demonstrations(settings: SelfPlaySettings) -> Any:
    def work(folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
        from whet.build.sft import load_demonstrations

        data = settings.data
        rows, _ = load_demonstrations(SFTConfig(method=SUPERVISED, seed=settings.seed, data=data))
        told = [{**prompt_row(row.prompt), "completion": row.completion} for row in rows]
        write_rows(folder / ROWS, told)
        return found(f"{len(told)} in {ROWS}", counts={"demonstrations": len(told)})

    return work


def _self_play_pairs(settings: SelfPlaySettings, number: int) -> Stage:
    def work(folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
        from whet.data import prompts_from, read_rows

        source = done["demonstrations"].folder / ROWS
        shown = read_json_lines(source)
        chosen = prompts_from(read_rows(str(source)))
        config = evaluation(settings, last_model(settings, done, number))
        rows = write_completions(folder, config, chosen, 1, (settings.seed, number))
        pairs, counts = shown_against_own(shown, rows)
        result = paired(
            folder, pairs, counts, f"{counts['identical']} own completions dropped: equal to the demonstration"
        )
        if counts["identical"] >= settings.stop_share * counts["demonstrations"]:
            result["over"] = f"{counts['identical']} of {counts['demonstrations']} own completions equal the data"
        return result

    about = (
        f"the policy of round {number - 1} answers every demonstration's prompt, before it trains; its own is rejected"
    )
    return Stage(f"round{number}-pairs", about, work, stage_settings(settings))


def _learnt(settings: RoundSettings, number: int, reference: str) -> list[Stage]:
    """Training on a round's pairs, and marks of what it made."""

    def work(folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
        pairs = done[f"round{number}-pairs"]
        model, file = last_model(settings, done, number), str((pairs.folder / PAIRS).resolve())
        config = check_training(settings.method, pair_training(settings, model, file, 1))
        steps = steps_for(pairs.result["counts"]["pairs"], settings.epochs, config.batch.rows_per_step)
        trained(folder, settings.method, pair_training(settings, model, file, steps))
        return found(run_told(folder), steps=steps)

    against = reference.format(number - 1)
    about = f"{settings.method} on these pairs; begins with the policy of round {number - 1}, reference: {against}"
    stages = [Stage(f"round{number}-train", about, work, stage_settings(settings))]
    if is_marked(settings):
        stages.append(marks_stage(settings, POLICY, number, f"round{number}-train", f"round{number}-marks"))
    return stages


def _imitated(settings: SelfPlaySettings, number: int) -> list[Stage]:
    """The same demonstrations and as many updates without self-play."""

    def work(folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
        rows, steps = (done["demonstrations"].folder / ROWS).resolve(), done[f"round{number}-train"].result["steps"]
        model = last_model(settings, done, number, "imitate")
        trained(folder, SUPERVISED, imitation(settings, model, str(rows), steps))
        return found(run_told(folder))

    about = f"to compare: {SUPERVISED} on the demonstrations for as many updates, from the one of round {number - 1}"
    stages = [Stage(f"round{number}-imitate", about, work, stage_settings(settings))]
    if is_marked(settings):
        stages.append(
            marks_stage(settings, IMITATION, number, f"round{number}-imitate", f"round{number}-imitate-marks")
        )
    return stages


OWN_PAIRS = Recipe(
    "iterative_dpo",
    "round by round, the best of the policy's own completions to new prompts against the worst; any scorer",
    OwnPairSettings,
    own_pair_stages,
)
SELF_PLAY = Recipe(
    "spin",
    "self-play: demonstrations against the policy's own completions, round by round; compared with imitation",
    SelfPlaySettings,
    self_play_stages,
)
