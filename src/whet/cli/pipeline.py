"""`whet pipeline ...`: runs made of stages. Heavy imports happen inside the command."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from whet.cli.options import APP_SETTINGS, Config, command_line, exit_if_interrupted
from whet.settings.bounds import MOST_REPEATS, MOST_SEED

pipeline_app = typer.Typer(**{**APP_SETTINGS, "no_args_is_help": False})


@pipeline_app.command()
def pipeline(
    name: Annotated[
        str | None, typer.Argument(help="Pipeline, or a TOML file with stages; without it, pipelines are listed.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, max=MOST_REPEATS, help="Number of rounds.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Policy to start from, as in `whet train`.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="task:NAME, a file, or hub:owner/name.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, max=MOST_SEED, help="Random seed.")] = None,
    folder: Annotated[
        str | None, typer.Option("--folder", help="Pipeline folder (default: the next free one under runs/).")
    ] = None,
    config: Config = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any setting that --show lists. Repeatable.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the plan and every setting as TOML, and do nothing.")
    ] = False,
) -> None:
    """Run stages one after another: completions, pairs, training and evals by round, with one page at the end.

    Ctrl-C loses nothing: `whet resume FOLDER` continues.
    """
    from whet.record.text import listing
    from whet.registry import load_plugins
    from whet.settings.layers import from_settings, merged, read_toml
    from whet.tools.pipelines.registry import NAME, PIPELINES, is_pipeline_file, read_pipeline_file
    from whet.tools.pipelines.runner import planned_text, run_pipeline

    if name is None:
        load_plugins()
        typer.echo(listing({entry.name: entry.about for entry in PIPELINES.values()}))
        typer.echo("\n`whet pipeline NAME` runs one; with --show it prints every setting.")
        return
    flags: dict[str, Any] = {
        key: value
        for key, value in (("rounds", rounds), ("seed", seed), ("folder", folder), ("model", model), ("data", data))
        if value is not None
    }
    for section, key in (("model", "name"), ("data", "source")):
        if section in flags:
            flags[section] = {key: flags[section]}
    base: dict[str, Any] = {}
    if is_pipeline_file(name):
        base, name = read_pipeline_file(name), NAME
    base = merged(base, read_toml(config) if config else {})
    layer = merged(merged(base, from_settings(settings or [])), flags)
    if show:
        typer.echo(planned_text(name, layer), nl=False)
        return
    run = run_pipeline(name, layer, command=command_line())
    exit_if_interrupted(run)
