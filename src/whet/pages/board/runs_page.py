"""The first page: the runs below the folder, with how they are going; pipelines and comparisons above them.

What is shown is in the address: words to search for, a status, the order, what runs are grouped by, the columns and
the page. So a list can be kept as a bookmark, and it follows its runs in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

from whet.pages.board.board_app import LIST_SECONDS, Board, BoardApp, BoardRequest, BoardResponse, json_response
from whet.pages.board.files import COMPARISON, PIPELINE, RUN
from whet.pages.board.glance import RunGlance
from whet.record.text import duration

PER_PAGE = 100  # runs
SPARK_WIDTH, SPARK_HEIGHT = 96, 26
STATUSES = ("running", "finished", "interrupted", "failed", "damaged")
NEWEST = "-started"


@dataclass(frozen=True)
class ListColumn:
    """A column of the list: what it is called, what it is sorted by, and whether the largest comes first."""

    title: str
    key: Callable[[RunGlance], Any]
    falls: bool = False
    shown: bool = True  # unless somebody chooses


COLUMNS = {
    "name": ListColumn("Run", lambda run: run.name.lower()),
    "status": ListColumn("Status", lambda run: run.status),
    "method": ListColumn("Method and model", lambda run: (run.method, run.model)),
    "data": ListColumn("Data", lambda run: run.data, shown=False),
    "curve": ListColumn("Curve", lambda run: run.last, falls=True),
    "eval": ListColumn("Held-out", lambda run: run.held_out, falls=True),
    "health": ListColumn("Health", lambda run: len(run.problems), falls=True),
    "steps": ListColumn("Steps", lambda run: run.step, falls=True, shown=False),
    "took": ListColumn("Took", lambda run: run.seconds, falls=True, shown=False),
    "seed": ListColumn("Seed", lambda run: run.seed, shown=False),
    "started": ListColumn("Started", lambda run: run.started or None, falls=True),
}
GROUPS: dict[str, Callable[[RunGlance], str]] = {
    "folder": lambda run: run.group,
    "method": lambda run: run.method,
    "model": lambda run: run.model,
    "data": lambda run: run.data,
    "status": lambda run: run.status,
    "tags": lambda run: ", ".join(run.tags),
    "nothing": lambda run: "",
}


@dataclass(frozen=True)
class ListQuery:
    """What a list shows, by its address."""

    search: str = ""
    status: str = ""
    sort: str = NEWEST
    group: str = "folder"
    columns: tuple[str, ...] = ()
    page: int = 1

    def address(self, **changes: str) -> str:
        """The list with something changed, from its first page on."""
        values = {
            "search": self.search,
            "status": self.status,
            "sort": "" if self.sort == NEWEST else self.sort,
            "group": "" if self.group == "folder" else self.group,
            "columns": "" if self.columns == shown_at_first() else ",".join(self.columns),
            **changes,
        }
        stated = {name: value for name, value in values.items() if value}
        return f"/?{urlencode(stated)}" if stated else "/"

    def head(self) -> list[dict[str, str]]:
        """The heads of the columns: each sorts by its own, and the other way round where that is so already."""
        heads = []
        for name in ("name", *self.columns):
            column, by = COLUMNS[name], self.sort.lstrip("-")
            first = f"-{name}" if column.falls else name
            other = name if column.falls else f"-{name}"
            order = "" if by != name else "descending" if self.sort.startswith("-") else "ascending"
            wanted = other if self.sort == first else first
            heads.append({"name": name, "title": column.title, "order": order, "address": self.address(sort=wanted)})
        return heads

    def orders(self) -> list[tuple[str, str]]:
        """Orders to choose from where there are no heads: each column's own, and the one that is shown."""
        own = [(f"-{name}" if column.falls else name, column.title) for name, column in COLUMNS.items()]
        if self.sort not in dict(own):
            own.append((self.sort, f"{COLUMNS[self.sort.removeprefix('-')].title}, reversed"))
        return [("" if sort == NEWEST else sort, title) for sort, title in own]


def shown_at_first() -> tuple[str, ...]:
    """The columns of a list until the user chooses others."""
    return tuple(name for name, column in COLUMNS.items() if column.shown and name != "name")


def list_query(request: BoardRequest) -> ListQuery:
    """What an address asks for; a name that the list does not know counts as none."""
    query = request.query
    columns = tuple(name for name in COLUMNS if name in query.get("columns", "").split(",") and name != "name")
    sort, group = query.get("sort", ""), query.get("group", "")
    return ListQuery(
        search=query.get("search", "")[:200],
        status=query.get("status", "") if query.get("status") in STATUSES else "",
        sort=sort if sort.removeprefix("-") in COLUMNS else NEWEST,
        group=group if group in GROUPS else "folder",
        columns=columns or shown_at_first(),
        page=request.number("page", 1, 1, 10**6),
    )


def add_routes(app: BoardApp, board: Board) -> None:
    """Add the list of runs."""

    def page(request: BoardRequest) -> BoardResponse:
        runs, num_unread = board.runs(LIST_SECONDS)
        query, folders = list_query(request), board.found().values()
        wanted = ordered_runs(runs, query)
        num_pages = max(1, -(-len(wanted) // PER_PAGE))
        at = min(query.page, num_pages)
        return board.page(
            "board_runs.html",
            title="Runs",
            heading=board.folder.name or "Runs",
            eyebrow="whet board",
            here="/",
            verdict=runs_verdict(runs, num_unread),
            has_runs=bool(runs or num_unread),
            query=query,
            statuses=STATUSES,
            group_names=tuple(GROUPS),
            usual=shown_at_first(),
            all_columns={name: column.title for name, column in COLUMNS.items() if name != "name"},
            groups=grouped(wanted[(at - 1) * PER_PAGE : at * PER_PAGE], GROUPS[query.group]),
            shown=shown_text(len(wanted), len(runs), num_unread),
            page=at,
            pages=num_pages,
            before=query.address(page=str(at - 1)) if at > 1 else "",
            behind=query.address(page=str(at + 1)) if at < num_pages else "",
            above=[folder for folder in folders if folder.kind in (PIPELINE, COMPARISON)],
        )

    def listed(request: BoardRequest) -> BoardResponse:
        runs, _ = board.runs()
        folders = board.found().values()
        others = [{"id": f.id, "kind": f.kind, "place": f.place, "parent": f.parent} for f in folders if f.kind != RUN]
        return json_response({"runs": [asdict(run) for run in runs], "others": others})

    app.get("/", page)
    app.get("/api/runs", listed)


def runs_verdict(runs: Sequence[RunGlance], num_unread: int = 0) -> str:
    """How many runs there are in which state."""
    if not runs:
        return ""
    counts = {status: sum(run.status == status for run in runs) for status in dict.fromkeys(run.status for run in runs)}
    parts = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    ill = sum(bool(run.problems) for run in runs if run.status == "running")
    warned = f"; {ill} of the running ones {'has' if ill == 1 else 'have'} a health problem" if ill else ""
    more = f"; {num_unread:,} more are being read" if num_unread else ""
    return f"{parts}{warned}{more}."


def shown_text(num_wanted: int, num_runs: int, num_unread: int) -> str:
    """How many runs the list holds, where that is not all of them."""
    if num_wanted < num_runs and num_unread:
        return f"{num_wanted:,} of the {num_runs:,} runs that were read so far, of {num_runs + num_unread:,}"
    return f"{num_wanted:,} of {num_runs:,} runs" if num_wanted < num_runs else ""


def ordered_runs(runs: Iterable[RunGlance], query: ListQuery) -> list[RunGlance]:
    """The runs that a query asks for, group by group, each group in its order; runs without a value come last."""
    words = query.search.lower().split()
    wanted = [
        run
        for run in runs
        if (not query.status or run.status == query.status) and all(word in searched(run) for word in words)
    ]
    key, falls = COLUMNS[query.sort.removeprefix("-")].key, query.sort.startswith("-")
    known = sorted((run for run in wanted if key(run) is not None), key=key, reverse=falls)
    sorted_runs = [*known, *(run for run in wanted if key(run) is None)]
    group, ranks = GROUPS[query.group], dict[str, int]()
    for run in sorted_runs:
        ranks.setdefault(group(run), len(ranks))
    return sorted(sorted_runs, key=lambda run: ranks[group(run)])


def searched(run: RunGlance) -> str:
    """The text that a search looks through."""
    return " ".join(
        (run.place, run.method, run.model, run.data, run.status, *run.problems, *run.tags, run.note)
    ).lower()


def grouped(runs: Sequence[RunGlance], group: Callable[[RunGlance], str]) -> list[dict[str, Any]]:
    """Runs by their group, in the order they come in."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(group(run), []).append(row(run))
    return [{"name": name, "rows": rows} for name, rows in groups.items()]


def row(run: RunGlance) -> dict[str, Any]:
    """A run as the list shows it."""
    share = min(1.0, run.step / run.total_steps) if run.total_steps else 0.0
    return {
        "run": run,
        "progress": f"{100 * share:.1f}",
        "steps": f"{run.step:,} / {run.total_steps:,}" if run.total_steps else f"{run.step:,}",
        "spark": spark(run.spark),
        "started": time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.started)) if run.started else "",
        "started_at": f"{run.started:.0f}" if run.started else "",
        "took": duration(run.seconds) if run.seconds is not None else "",
    }


def spark(values: Sequence[float]) -> str:
    """The points of a small curve."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    size = high - low or 1.0
    across = (SPARK_WIDTH - 4) / (len(values) - 1)
    down = SPARK_HEIGHT - 6
    return " ".join(
        f"{2 + index * across:.1f},{3 + down * (1 - (value - low) / size):.1f}" for index, value in enumerate(values)
    )
