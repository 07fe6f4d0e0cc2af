"""`whet board`: run folders as live web pages. Heavy imports happen inside the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from whet.cli.options import APP_SETTINGS

commands = typer.Typer(**APP_SETTINGS)


@commands.command()
def board(
    folder: Annotated[str, typer.Argument(help="Folder to search, subfolders included.")] = "runs",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port (0: a free one).")] = 8300,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Watch runs in a browser: curves, health, samples, comparisons, pipelines, evaluations and the lab.

    Only this machine is listened to unless --host says otherwise. Reading is free on this machine; writing (marks of a
    review) needs the token that is printed.
    """
    from pathlib import Path

    from whet.envs.serve.web import is_loopback, require_server
    from whet.pages.board.serve import BoardServer
    from whet.pages.board.server import Board
    from whet.types import WhetError

    require_server("the board", "board")
    if not Path(folder).is_dir():
        raise WhetError(f"{folder}: no such folder; `whet train METHOD` makes a run under runs, or give another folder")
    server = BoardServer(Board(folder), host, port)
    if not is_loopback(host):
        typer.echo(
            f"warning: {host} lets other machines in: whoever has the token reads every run below {folder}, and "
            "nothing is encrypted",
            err=True,
        )
    server.start()
    entries = server.board.found()
    typer.echo(f"{sum(entry.kind == 'run' for entry in entries.values())} runs below {folder}; stop with Ctrl-C")
    token = server.board.token
    if is_loopback(host):
        typer.echo(f"read   {server.address}/\nwrite  {server.address}/#token={token}")
    else:
        typer.echo(f"open   {server.address}/?token={token}")
    if open_browser:
        import webbrowser

        mark = "#" if is_loopback(host) else "?"
        webbrowser.open(f"{server.address}/{mark}token={token}")
    _wait(server.stop)


def _wait(stop: Callable[[], None]) -> None:
    """Until Ctrl-C."""
    import threading

    try:
        threading.Event().wait()
    except KeyboardInterrupt as error:
        error.add_note("the board is closed; the runs go on")
        raise
    finally:
        stop()
