"""`whet serve`: a model behind an OpenAI-compatible endpoint. Heavy imports happen inside the command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from whet.cli.options import APP_SETTINGS, Settings

commands = typer.Typer(**APP_SETTINGS)


@commands.command()
def serve(
    model: Annotated[str, typer.Argument(help="Model or run folder.")] = "whetstone",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(envvar="WHET_TOKEN", help="What clients send as API key; default: a new one, printed.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=1024, help="Conversations at once.")] = 16,
    settings: Settings = None,
) -> None:
    """Serve a model: POST /v1/chat/completions and /inference/v1/generate, GET /v1/models.

    Completions come with their exact tokens where a client asks for `return_token_ids`. Only this machine is listened
    to unless --host says otherwise, and every request needs the token.
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
