"""`whet study ...`: experiments that show a known effect on your machine. Heavy imports happen inside the commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from whet.cli.options import APP_SETTINGS, Config, command_line, exit_if_interrupted
from whet.settings.bounds import MOST_REPEATS

study_app = typer.Typer(
    name="study", help="Run experiments that show a known effect on your own machine.", **APP_SETTINGS
)


@study_app.callback()
def root() -> None:
    pass


@study_app.command()
def overoptimization(
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, max=MOST_REPEATS, help="Repetitions with other data and runs."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything: about two minutes.")] = False,
    folder: Annotated[
        str | None, typer.Option("--folder", help="Study folder; what is finished there is not done again.")
    ] = None,
    config: Config = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting that --show lists. Repeatable.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="List every setting with its value, and do nothing.")] = False,
) -> None:
    """Measure the true score while a reward model is optimised: best of n, learning, KL, ensembles.

    Leaves a table, overoptimization.html with the figure, and overoptimization.json. Ctrl-C loses nothing: the same
    command with its --folder continues.
    """
    from whet.settings.layers import from_settings, read_toml
    from whet.tools.studies.overoptimization.settings import QUICK, settings_text, study_settings

    flags: dict[str, Any] = {} if seeds is None else {"seeds": seeds}
    layers = [dict(QUICK) if quick else {}, read_toml(config) if config else {}, from_settings(settings or []), flags]
    if show:
        typer.echo(settings_text(study_settings(*layers)))
        return
    from whet.tools.studies.overoptimization.stages import study_overoptimization

    done = study_overoptimization(*layers, folder=folder, command=command_line())
    exit_if_interrupted(done)
