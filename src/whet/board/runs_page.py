"""The first page: every run below the folder."""

from __future__ import annotations

from whet.board.folders import RUN
from whet.board.server import Board, BoardApp, BoardRequest, BoardResponse, json_response


def add_routes(app: BoardApp, board: Board) -> None:
    def page(request: BoardRequest) -> BoardResponse:
        runs = [each for each in board.look().values() if each.kind == RUN]
        return board.page("board_runs.html", title="Runs", here="/", runs=runs)

    def listed(request: BoardRequest) -> BoardResponse:
        found = board.look().values()
        return json_response(
            [{"id": each.id, "kind": each.kind, "place": each.place, "parent": each.parent} for each in found]
        )

    app.get("/", page)
    app.get("/api/runs", listed)
