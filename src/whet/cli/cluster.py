"""`whet cluster-demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from whet.cli.options import APP_SETTINGS
from whet.settings.bounds import MOST_STEPS

commands = typer.Typer(**APP_SETTINGS)


@commands.command("cluster-demo")
def cluster_demo(
    method: Annotated[str, typer.Argument(help="A method of `whet algorithms` that writes completions.")] = "",
    steps: Annotated[int, typer.Option("--steps", min=1, max=MOST_STEPS, help="Training steps.")] = 4,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the head node (0: a free one).")] = 0,
    folder: Annotated[str, typer.Option("--folder", help="Run folder (default: a temporary one).")] = "",
) -> None:
    """Train briefly on a Ray cluster of two nodes on this machine: two engines, two reward workers, two trainer ranks.

    Ends with a table of who did what. `whet train ... --set scale.address=auto` does the same on a cluster of your own.
    """
    from whet.api.cluster_demo import cluster_demo as demo
    from whet.objective import catalogue
    from whet.types import RunFailed

    known = catalogue.methods("policy").items()
    of_groups = next(name for name, method_entry in known if method_entry.components["baseline"].name == "group_mean")
    run, table, left = demo(method or of_groups, steps, port, folder)
    typer.echo(f"\n{table}\nthe same as JSON, under `processes`: {run.folder / 'run.json'}")
    if left:
        raise RunFailed(f"{len(left)} processes of the cluster did not end, such as: {left[0][:200]}; end them by hand")
