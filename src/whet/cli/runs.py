"""`whet runs`, `compare`, `report` and `watch`: what there is to look at. Heavy imports happen inside the commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from whet.cli.options import (
    APP_SETTINGS,
    AsJson,
    Config,
    Data,
    Model,
    Rewards,
    Settings,
    command_line,
    exit_if_interrupted,
    number,
    print_json,
    print_result,
)
from whet.settings.bounds import MOST_REPEATS, MOST_STEPS

commands = typer.Typer(**APP_SETTINGS)
LEAST_PAUSE, MOST_PAUSE = 0.2, 3600.0
READING_SHARE = 0.1  # at most this share of the time goes into reading a long log


@commands.command()
def runs(
    folder: Annotated[str, typer.Argument(help="Folder to search, subfolders included.")] = "runs",
    as_json: AsJson = False,
) -> None:
    """List runs, newest first: method, model, steps, status, the main metric before and after, and age."""
    from dataclasses import asdict

    from whet.api.listing import listed_runs, listing_text

    rows = listed_runs(folder)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    typer.echo(listing_text(rows) if rows else f"no run under {folder}; `whet train METHOD` makes one")


@commands.command()
def compare(
    run: Annotated[list[str] | None, typer.Argument(help="Finished runs to compare.")] = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help="Methods to train and compare, separated by commas.")
    ] = None,
    seeds: Annotated[
        int,
        typer.Option("--seeds", min=1, max=MOST_REPEATS, help="Runs per method; use 3 or more to measure noise."),
    ] = 3,
    model: Model = None,
    data: Data = None,
    reward: Rewards = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, max=MOST_STEPS, help="Training steps of every run.")
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option("--folder", help="Folder of the comparison. With --methods, finished runs there are kept."),
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Compare finished runs, or train several methods under equal conditions. Marks differences within noise.

    Examples:

      whet compare runs/grpo-001 runs/grpo-002

      whet compare --methods grpo,gspo,cispo --seeds 3 --set batch.updates_per_step=4

    --methods also writes compare.html. After Ctrl-C, the same command with the same --folder continues.
    """
    from whet.types import WhetError

    if (methods is None) == (not run):
        raise WhetError("give runs to compare (whet compare RUN RUN), or methods to train (--methods FIRST,SECOND)")
    options = {"--model": model, "--data": data, "--reward": reward, "--steps": steps, "--config": config}
    options |= {"--set": settings}
    if run:
        idle = [flag for flag, value in options.items() if value]
        if idle:
            raise WhetError(f"{idle[0]} has no effect on runs that are finished; drop it, or train with --methods")
        _compare_runs(run, folder, as_json)
        return
    from whet.settings.layers import from_settings, merged, read_toml
    from whet.tools.studies import comparison

    flags: dict[str, Any] = {
        key: value
        for key, value in (("steps", steps), ("model", model), ("data", data), ("reward", reward))
        if value is not None
    }
    values = merged(read_toml(config) if config else {}, from_settings(settings or []))
    compared = comparison.compare(methods or "", seeds, folder=folder, config=values, command=command_line(), **flags)
    exit_if_interrupted(compared)
    if compared.status == "unfinished":
        raise typer.Exit(1)


def _compare_runs(runs: list[str], folder: str | None, as_json: bool) -> None:
    from whet.tools.studies.run_comparison import compare as compare_finished

    comparison = compare_finished(list(runs), command=command_line())
    page = comparison.save(folder) if folder is not None else None
    if as_json:
        print_json(comparison.values())
        return
    typer.echo(comparison.text())
    if page is not None:
        typer.echo(f"\n  report     {page}")


@commands.command()
def doctor(
    run: Annotated[str, typer.Argument(help="A run folder, finished or not.")],
    step: Annotated[
        int | None, typer.Option("--step", min=1, max=MOST_STEPS, help="Diagnose the run as of this step.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Diagnose a run, finished or not: what is wrong, since when, why, and which setting to change.

    Examples:

      whet doctor runs/grpo-001

      whet doctor runs/grpo-001 --step 40 --json

    Exits with 0 if the run is healthy and with 1 if there is a problem. docs/doctor.md lists the rules.
    """
    from whet.record.doctor import doctor_report, doctor_text

    report = doctor_report(run, step)
    print_result(as_json, report.values(), doctor_text(report))
    if not report.is_healthy:
        raise typer.Exit(1)


@commands.command()
def export(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    what: Annotated[
        str,
        typer.Option(
            "--what",
            help="metrics (one row per step), evals or samples; model, adapter or merged (a LoRA run's model).",
        ),
    ] = "metrics",
    form: Annotated[
        str | None, typer.Option("--format", help="csv or parquet (default: by the file's ending).")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File, or a new folder for a model. Without a file, CSV is printed."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="With a model: float32, bfloat16 or float16 (default: as trained).")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--from", help="With a model: best, final or step-000020 (default: the newest).")
    ] = None,
) -> None:
    """Write a run's numbers or completions as CSV or Parquet, or its model as a folder to publish.

    Examples:

      whet export runs/grpo-001 -o metrics.csv

      whet export runs/grpo-001 --what samples -o samples.parquet

      whet export runs/grpo-001 --what model --dtype bfloat16 -o my-model

      whet export runs/grpo-001 --what adapter --from best -o my-adapter

    A model folder has weights, tokenizer, chat template and a model card, and loads in transformers, vLLM or PEFT.
    In CSV, text that a spreadsheet would run as a formula gets a leading apostrophe.
    """
    from whet import api
    from whet.api.exported_model import PARTS
    from whet.api.run import WHAT
    from whet.api.tables import FORMATS, csv_text, write_table
    from whet.types import WhetError, did_you_mean

    if what in PARTS:
        if form is not None:
            raise WhetError("--format is for tables; a model is a folder: drop it")
        if output is None:
            raise WhetError(f"give the {what} a folder: -o my-model")
        typer.echo(api.load(run).save_model(output, dtype, what, checkpoint))
        return
    if what not in WHAT:
        known = (*WHAT, *PARTS)
        raise WhetError(f"a run has no {what!r}{did_you_mean(what, known)}; give one of {', '.join(known)}")
    for flag, value in (("--dtype", dtype), ("--from", checkpoint)):
        if value is not None:
            raise WhetError(f"{flag} is for a model; drop it, or give --what model")
    if form is not None and form not in FORMATS:
        raise WhetError(f"--format is {form!r}{did_you_mean(form, FORMATS)}; give csv or parquet")
    rows = api.load(run).rows(what)
    if output is not None:
        typer.echo(f"{write_table(rows, output, form)}  {len(rows)} rows")
    elif form == "parquet":
        raise WhetError("Parquet is not printed; give a file: -o metrics.parquet")
    else:
        typer.echo(csv_text(rows), nl=False)


@commands.command()
def report(run: Annotated[str, typer.Argument(help="A run folder.")]) -> None:
    """Rewrite report.html of a run, finished or not."""
    from pathlib import Path

    from whet.pages.run_report import write_report
    from whet.training.saved_config import read_config

    read_config(Path(run))
    typer.echo(write_report(run))


@commands.command()
def watch(
    run: Annotated[str, typer.Argument(help="A run folder, or that of a pipeline.")],
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame and exit (the default without a terminal).")
    ] = False,
    every: Annotated[float, number("--every", "Seconds between updates.", LEAST_PAUSE, MOST_PAUSE)] = 1.0,
) -> None:
    """Follow a run in the terminal: progress, curves, evaluation, health with remedies, speed, best and worst sample.

    It only reads the run's files: start and stop it as you like. It ends when the run does; Ctrl-C ends it sooner.
    """
    import sys
    from pathlib import Path

    from rich.console import Console

    from whet.api.watching import watched_run
    from whet.record.run import verdict
    from whet.record.watch import frame_lines

    terminal = Console(highlight=False, markup=False, emoji=False)
    unicode = "utf" in terminal.encoding.lower()
    folder = Path(run)

    def lines(frame: Any) -> list[Any]:
        height = terminal.height - 2 if live else 200
        return frame_lines(frame, max(20, terminal.width), max(1, height), unicode)

    live = not once and sys.stdout.isatty() and not terminal.is_dumb_terminal
    frame = watched_run(folder)
    if not live:
        for line in lines(frame):
            terminal.print(line, soft_wrap=True)
        if frame.status != "running":
            terminal.print(verdict(frame.run))
        return
    try:
        frame = _followed(terminal, folder, frame, lines, every)
    except KeyboardInterrupt:
        return
    terminal.print(verdict(frame.run))


def _followed(terminal: Any, folder: Any, frame: Any, lines: Any, every: float) -> Any:
    """Draw until the run has ended; its last frame."""
    import time

    from rich.console import Group
    from rich.live import Live

    from whet.api.watching import watched_run

    with Live(Group(*lines(frame)), console=terminal, auto_refresh=False, transient=False) as display:
        while frame.status == "running":
            began = time.monotonic()
            frame = watched_run(folder)
            display.update(Group(*lines(frame)), refresh=True)
            took = time.monotonic() - began
            if frame.status == "running":
                time.sleep(max(every, took / READING_SHARE - took))
    return frame
