"""`whet serve` and `whet board`: a model and run folders behind addresses. Heavy imports happen inside the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from whet.cli.options import APP_SETTINGS, Settings

commands = typer.Typer(**APP_SETTINGS)


@commands.command()
def serve(
    model: Annotated[str, typer.Argument(help="Model or run folder.")] = "whetstone",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port (0: a free one).")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(envvar="WHET_TOKEN", help="API key that clients send (default: a new one, printed).")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=1024, help="Conversations at once.")] = 16,
    settings: Settings = None,
) -> None:
    """Serve a model: POST /v1/chat/completions and /inference/v1/generate, GET /v1/models.

    Completions come with their exact tokens where a client asks for `return_token_ids`. Listens on
    this machine only unless --host says otherwise. Every request needs the token.
    """
    from whet import api
    from whet.settings.layers import from_settings

    def tell(address: str, token: str, facts: Mapping[str, str]) -> None:
        for name in ("model", "device", "decode path"):
            if name in facts:
                typer.echo(f"{name}: {facts[name]}")
        typer.echo(f"listening on {address}; stop with Ctrl-C")
        typer.echo(f"export OPENAI_BASE_URL={address}/v1 OPENAI_API_KEY={token}")

    try:
        api.serve(
            model, host=host, port=port, token=token, rows=rows, settings=from_settings(settings or []), on_start=tell
        )
    except KeyboardInterrupt as error:
        error.add_note("no request is being served any more")
        raise


@commands.command()
def board(
    folder: Annotated[str, typer.Argument(help="Folder to search, subfolders included.")] = "runs",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port (0: a free one).")] = 8300,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Watch runs in a browser: curves, health, samples, comparisons, pipelines, evaluations and the lab.

    Listens on this machine only unless --host says otherwise. Any local user can read; writing (marks of a
    review) needs the token that is printed.
    """
    from pathlib import Path

    from whet.envs.serve.web import is_loopback, require_server
    from whet.pages.board.board_app import Board
    from whet.pages.board.board_server import BoardServer
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
    """Wait until Ctrl-C."""
    import threading

    try:
        threading.Event().wait()
    except KeyboardInterrupt as error:
        error.add_note("the board is closed; the runs go on")
        raise
    finally:
        stop()
