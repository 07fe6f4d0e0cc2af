"""The command line. Heavy imports happen inside the commands, so that help is instant."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from whet import __version__
from whet.cli import bench, evaluate, runs, text, train
from whet.cli.label import label_app
from whet.cli.options import APP_SETTINGS
from whet.cli.pipeline import pipeline_app
from whet.cli.reward import reward_app
from whet.cli.study import study_app

app = typer.Typer(
    name="whet",
    help="Sharpen language models with reinforcement learning.\n\n"
    "Try `whet train grpo`: the built-in model learns a built-in task in a minute, without GPU, hub or network.",
    **APP_SETTINGS,
)
app.add_typer(label_app)
app.add_typer(reward_app)
app.add_typer(study_app)
for _commands in (train.commands, evaluate.commands, runs.commands, text.commands, bench.commands, pipeline_app):
    app.registered_commands += _commands.registered_commands


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whet {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: exit code 2 and one line for a mistake of the user's, 1 for a run that failed."""
    try:
        app()
    except KeyboardInterrupt:
        print("whet: interrupted; `whet resume RUN` goes on from the last checkpoint", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        from whet.types import WhetError

        # a run that failed has imported its trainer; a typo must not pay for that
        trainer = sys.modules.get("whet.train.run")
        if not isinstance(error, WhetError) and not (trainer and isinstance(error, trainer.RunFailed)):
            raise
        print(f"whet: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, WhetError) else 1) from None
