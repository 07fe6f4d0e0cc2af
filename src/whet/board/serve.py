"""A board behind an address, with every family of pages."""

from __future__ import annotations

import contextlib
import socket

from whet import web
from whet.board import compare_page, comparisons_page, evals_page, lab, pipeline_page, run_page, runs_page
from whet.board.access import BoardAccess
from whet.board.server import Board, BoardApp, serve_asset

FAMILIES = (
    runs_page,
    run_page,
    compare_page,
    comparisons_page,
    pipeline_page,
    evals_page,
    lab,
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
        return self._server.address

    def start(self) -> None:
        app = BoardApp(self.access)
        app.get("/static/{digest}/{name}", serve_asset)
        for family in FAMILIES:
            family.add_routes(app, self.board)
        app.stream("/events", self.board.watcher.events)
        self.board.watcher.start()
        self._server.start(app.made())

    def stop(self) -> None:
        self.board.watcher.stop()
        self._server.stop()


def _own_names() -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        return tuple(dict.fromkeys((socket.gethostname(), socket.getfqdn())))
    return ()
