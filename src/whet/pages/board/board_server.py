"""A board behind an address, with every family of pages."""

from __future__ import annotations

import contextlib
import socket
import time

from whet.envs.serve import web
from whet.pages.board import (
    compare_page,
    comparisons_page,
    evals_page,
    folder_page,
    lab,
    pipeline_page,
    review_page,
    run_page,
    runs_page,
    samples_page,
)
from whet.pages.board.access import BoardAccess
from whet.pages.board.board_app import Board, BoardApp, serve_asset
from whet.pages.render import prepare_board

STREAM_SECONDS = 1.0  # that streams get to end when the server is stopped
FAMILIES = (
    runs_page,
    run_page,
    compare_page,
    comparisons_page,
    pipeline_page,
    evals_page,
    lab,
    samples_page,
    review_page,
    folder_page,
)


class BoardServer:
    """Answers in a thread of its own from `start` to `stop`."""

    def __init__(self, board: Board, host: str = web.LOOPBACK, port: int = 0) -> None:
        web.require_server("the board", "board")
        self.board = board
        self._server = web.HttpServer(host, port, "whet-board")
        self.access = BoardAccess(host, self._server.port, board.token, _own_names())

    @property
    def address(self) -> str:
        """The board's URL."""
        return self._server.address

    def start(self) -> None:
        """Start answering requests."""
        app = BoardApp(self.access)
        app.get("/static/{digest}/{name}", serve_asset)
        for family in FAMILIES:
            family.add_routes(app, self.board)
        app.stream("/events", self.board.watcher.events)
        prepare_board()
        self.board.watcher.start()
        self._server.start(app.made())

    def stop(self) -> None:
        """Answer no more; open streams end first."""
        self.board.watcher.stop()  # its streams end by themselves
        until = time.monotonic() + STREAM_SECONDS
        while self.board.watcher.num_listeners > 0 and time.monotonic() < until:
            time.sleep(0.02)
        self._server.stop()


def _own_names() -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        return tuple(dict.fromkeys((socket.gethostname(), socket.getfqdn())))
    return ()
