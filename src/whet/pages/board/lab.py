"""The lab: experiments on the losses, computed by this installation for whatever is asked.

What one table may cost is bounded by the experiments: finite ranges of every number, and a cap on the updates of a
simulated run. One table is computed at a time, so that nobody takes more than one core; tables are kept for a while.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

from whet.pages.board.board_app import Board, BoardApp, BoardRequest, BoardResponse, json_response

API = "/api/lab"
_one_at_a_time = threading.Lock()


def add_routes(app: BoardApp, board: Board) -> None:
    """The page of the lab, and its tables."""

    def page(request: BoardRequest) -> BoardResponse:
        return board.page("lab.html", title="The lab", here="/lab", experiments=_experiments(), api=API)

    def listed(request: BoardRequest) -> BoardResponse:
        return json_response([experiment.record() for experiment in _experiments()])

    def table(request: BoardRequest) -> BoardResponse:
        from whet.pages.lab.page import experiment_named

        _experiments()
        experiment = experiment_named(request.path["experiment"])
        settings = experiment.settings(request.query)
        return json_response(_table(experiment.name, tuple(settings.items())))

    app.get("/lab", page)
    app.get(API, listed)
    app.get(f"{API}/{{experiment}}", table)


def _experiments() -> tuple[Any, ...]:
    from whet.pages.lab.page import experiments

    with _one_at_a_time:
        return experiments()


@lru_cache(maxsize=512)
def _table(name: str, settings: tuple[tuple[str, float | str], ...]) -> dict[str, Any]:
    from whet.pages.lab.page import experiment_named

    with _one_at_a_time:
        return experiment_named(name).table(dict(settings)).record()
