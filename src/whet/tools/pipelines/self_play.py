"""Self-play (SPIN): demonstrations against the policy's own completions, round by round; compared with imitation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from whet.data.sections import DemonstrationSection
from whet.record.text import count_of
from whet.settings.sections import Table
from whet.tools.pipelines.evaluation import POLICY, eval_stage, evaluation_config, has_eval
from whet.tools.pipelines.generation import DEMONSTRATIONS, write_completions, write_rows
from whet.tools.pipelines.pairs import prompt_row, shown_against_own
from whet.tools.pipelines.rounds import (
    RoundSettings,
    check_method,
    last_model,
    policy_after,
    train_stages,
    write_round_pairs,
)
from whet.tools.pipelines.settings import TRAIN_KEYS, Pipeline
from whet.tools.pipelines.stages import FinishedStage, Stage, read_json_lines, stage_result
from whet.tools.pipelines.training import check_training, run_summary, stage_settings, train_run, training_config
from whet.training.config import SUPERVISED, SFTConfig

IMITATION = "plain imitation"


class SelfPlaySettings(RoundSettings):
    """Demonstrations against the policy's own completions."""

    data: DemonstrationSection = DemonstrationSection()
    compare: bool = Field(True, description="imitate the same demonstrations for as many updates, to see which wins")
    imitate: Table = Field({}, description=f"of that imitation: {TRAIN_KEYS}")
    stop_share: float = Field(
        1.0, gt=0, le=1, description="of own completions that equal the demonstrations: from there on nothing is learnt"
    )

    small_run: ClassVar[Mapping[str, Any]] = {
        "data": {"count": 512},
        "sampling": {"max_new_tokens": 64},
        "train": {"batch": {"rows_per_step": 32}},
        "imitate": {"batch": {"rows_per_step": 32}},
    }


def self_play_stages(settings: SelfPlaySettings) -> list[Stage]:
    reference = check_method(settings)
    if settings.compare:
        check_training(SUPERVISED, imitation_config(settings, settings.model.name, "rows.jsonl", 1), "imitate")
    stages = [
        Stage("demonstrations", "the completions to learn from", _demonstrations(settings), stage_settings(settings))
    ]
    stages += [eval_stage(settings, POLICY, 0, None)] if has_eval(settings) else []
    for number in range(1, settings.rounds + 1):
        stages.append(_pairs_stage(settings, number))
        stages += train_stages(settings, number, reference)
        stages += _imitation_stages(settings, number) if settings.compare else []
    return stages


def imitation_config(settings: SelfPlaySettings, model: str, rows: str, steps: int) -> dict[str, Any]:
    own = {"data": {"source": rows, "every_completion": settings.data.every_completion}, "steps": steps}
    return training_config(settings, model, own, settings.imitate, "imitate")


def _demonstrations(settings: SelfPlaySettings) -> Any:
    def work(folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
        from whet.training.assembly.sft import load_demonstrations

        data = settings.data
        rows, _ = load_demonstrations(SFTConfig(method=SUPERVISED, seed=settings.seed, data=data))
        demonstrations = [{**prompt_row(row.prompt), "completion": row.completion} for row in rows]
        write_rows(folder / DEMONSTRATIONS, demonstrations)
        return stage_result(
            f"{count_of(len(demonstrations), 'demonstration')} in {DEMONSTRATIONS}",
            counts={"demonstrations": len(demonstrations)},
        )

    return work


def _pairs_stage(settings: SelfPlaySettings, number: int) -> Stage:
    def work(folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
        from whet.data import prompts_from, read_rows

        source = done["demonstrations"].folder / DEMONSTRATIONS
        shown = read_json_lines(source)
        chosen = prompts_from(read_rows(str(source)))
        config = evaluation_config(settings, last_model(settings, done, number))
        rows = write_completions(folder, config, chosen, 1, (settings.seed, number))
        pairs, counts = shown_against_own(shown, rows)
        result = write_round_pairs(
            folder, pairs, counts, f"{count_of(counts['identical'], 'completion')} dropped, equal to the demonstration"
        )
        if counts["identical"] >= settings.stop_share * counts["demonstrations"]:
            result["stop_reason"] = (
                f"{counts['identical']} of {counts['demonstrations']} own completions equal the data"
            )
        return result

    about = (
        f"{policy_after(number - 1)} answers the prompt of every demonstration before it trains; "
        "its own completion is rejected"
    )
    return Stage(f"round{number}-pairs", about, work, stage_settings(settings))


def _imitation_stages(settings: SelfPlaySettings, number: int) -> list[Stage]:
    """The same demonstrations and as many updates without self-play."""

    def work(folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
        rows = (done["demonstrations"].folder / DEMONSTRATIONS).resolve()
        steps = done[f"round{number}-train"].result["steps"]
        model = last_model(settings, done, number, "imitate")
        train_run(folder, SUPERVISED, imitation_config(settings, model, str(rows), steps))
        return stage_result(run_summary(folder))

    about = (
        f"to compare: {SUPERVISED} on the demonstrations for as many updates; starts from "
        f"{f'what it had learnt by round {number - 1}' if number > 1 else 'the first policy'}"
    )
    stages = [Stage(f"round{number}-imitate", about, work, stage_settings(settings))]
    if has_eval(settings):
        stages.append(eval_stage(settings, IMITATION, number, f"round{number}-imitate", f"round{number}-imitate-eval"))
    return stages


SELF_PLAY = Pipeline(
    "spin",
    "self-play: demonstrations against the policy's own completions, round by round; compared with imitation",
    SelfPlaySettings,
    self_play_stages,
)
