"""A model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from whet.api.evaluation import evaluation_config
from whet.types import WhetError

ROWS = 16  # conversations at once
LOOPBACK = "127.0.0.1"


def serve(
    model: str = "whetstone",
    *,
    host: str = LOOPBACK,
    port: int = 8000,
    token: str | None = None,
    rows: int = ROWS,
    settings: Mapping[str, Any] | None = None,
    on_start: Callable[[str, str, Mapping[str, str]], None] | None = None,
) -> None:
    """Serve a model or a run's policy until the process is interrupted: docs/serve.md.

    Only this machine is listened to unless `host` says otherwise. Without a `token` one is drawn; `on_start` gets the
    address, the token and the facts of the model once the server answers.
    """
    from whet.training.assembly.serving import build_server

    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token and token):
        raise WhetError("the token is empty or holds something a header cannot; give printable ASCII without blanks")
    drawn = token or secrets.token_urlsafe(24)
    config = evaluation_config(model, None, settings)
    server, facts = build_server(config, drawn, host=host, port=port, rows=rows)
    server.start()
    if on_start is not None:
        on_start(server.address, drawn, facts)
    server.run()
