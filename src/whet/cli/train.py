"""`whet train` and `whet resume`. Heavy imports happen inside the commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from whet.cli.options import (
    APP_SETTINGS,
    DATA_HELP,
    Agent,
    Config,
    Environment,
    Imports,
    Model,
    Rewards,
    Settings,
    Tools,
    command_line,
    environment_settings,
    exit_if_interrupted,
    number,
)
from whet.settings.bounds import LEAST_HOURS, MOST_EPOCHS, MOST_HOURS, MOST_REPEATS, MOST_SEED, MOST_STEPS

commands = typer.Typer(**APP_SETTINGS)


@commands.command()
def train(
    method: Annotated[str, typer.Argument(help="Method: sft, or one that `whet algorithms` lists.")],
    model: Model = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", help=f"{DATA_HELP} Repeatable, each with =WEIGHT if you like.")
    ] = None,
    reward: Rewards = None,
    env: Environment = None,
    tool: Tools = None,
    agent: Agent = None,
    teacher: Annotated[
        str | None, typer.Option("--teacher", help="Teacher of a distillation method: a model or a run folder.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, max=MOST_STEPS, help="Training steps.")] = None,
    epochs: Annotated[
        float | None, number("--epochs", "Passes over the data, instead of --steps.", 1 / MOST_EPOCHS, MOST_EPOCHS)
    ] = None,
    hours: Annotated[
        float | None,
        number("--hours", "Wall-clock limit in hours; the run then ends evaluated and saved.", LEAST_HOURS, MOST_HOURS),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, max=MOST_SEED, help="Random seed.")] = None,
    folder: Annotated[
        str | None, typer.Option("--folder", help="Run folder (default: the next free one under runs/).")
    ] = None,
    exist: Annotated[
        str | None, typer.Option("--exist", help="If --folder holds a run: resume or replace it (default: an error).")
    ] = None,
    imports: Imports = None,
    config: Config = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=MOST_REPEATS, help="Train an ensemble of reward models, one per seed.")
    ] = 1,
    settings: Settings = None,
) -> None:
    """Train a model. The run folder gets checkpoints, samples, metrics and report.html.

    Examples:

      whet train grpo

      whet train gspo --set batch.updates_per_step=4

      whet train dr_grpo --model smollm2 --data train.jsonl --reward math_answer

      whet train sft --data chats.jsonl --epochs 2

      whet train grpo --model smollm2 --data train.jsonl --reward math_answer --tool calculator

      whet train opd --teacher runs/grpo-1

      whet train grpo --data a.jsonl=3 --data b.jsonl=1 --reward math_answer@a.jsonl --reward code_tests@b.jsonl

    `whet config METHOD` lists every key that --set takes, with its default.
    """
    from whet import api
    from whet.api.inputs import mixed_source
    from whet.settings.layers import from_settings, merged, read_toml
    from whet.types import WhetError

    flags: dict[str, Any] = {
        key: value
        for key, value in (
            *(("steps", steps), ("epochs", epochs), ("hours", hours), ("seed", seed), ("folder", folder)),
            ("imports", imports or None),
        )
        if value is not None
    }
    values = merged(read_toml(config) if config else {}, from_settings(settings or []))
    values = merged(values, environment_settings(env, tool, agent))
    values = merged(values, {"teacher": {"name": teacher}} if teacher is not None else {})
    if seeds > 1:
        if exist is not None:
            raise WhetError("--exist is for one run; an ensemble continues what its folder holds: drop it")
        from whet.tools.studies.ensemble import train_ensemble

        flags |= {"model": model, "data": mixed_source(data or ()), "reward": reward or None}
        return exit_if_interrupted(train_ensemble(method, seeds, config=values, command=command_line(), **flags))
    run = api.train(
        method,
        model=model,
        data=mixed_source(data or ()),
        reward=list(reward) if reward else None,
        config=values,
        exist=exist,
        command=command_line(),
        **flags,
    )
    exit_if_interrupted(run)


@commands.command()
def resume(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, max=MOST_STEPS, help="New total number of steps, to train longer.")
    ] = None,
    hours: Annotated[
        float | None, number("--hours", "New wall-clock limit in hours, to train longer.", LEAST_HOURS, MOST_HOURS)
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--from", help="Checkpoint to continue from, e.g. step-000020 (default: the newest).")
    ] = None,
    settings: Settings = None,
    accept_changes: Annotated[
        bool,
        typer.Option("--accept-changes", help="Continue although data, model, reward or config changed; recorded."),
    ] = False,
) -> None:
    """Continue a run from its newest complete checkpoint, or a pipeline from where it stopped.

    --set changes settings that do not affect what is learned: steps, hours, report.*, eval.every,
    batch.micro_batch_tokens, ... Other settings need --accept-changes.
    """
    from whet import api
    from whet.settings.layers import from_settings
    from whet.tools.pipelines.runner import is_pipeline, resume_pipeline

    if is_pipeline(run):
        exit_if_interrupted(resume_pipeline(run, steps, checkpoint, settings, accept_changes, hours))
        return
    run_on = api.resume(
        run,
        steps=steps,
        hours=hours,
        checkpoint=checkpoint,
        settings=from_settings(settings or []),
        accept_changes=accept_changes,
        command=command_line(),
    )
    exit_if_interrupted(run_on)
