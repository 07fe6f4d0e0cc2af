"""Runs on one chart: seeds of one config as a band, and tables of what differs in config and in outcome."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whet.pages.board.board_app import Board, BoardApp, BoardRequest, BoardResponse, json_response
from whet.pages.board.files import RUN
from whet.pages.board.reader import RunReader, RunView
from whet.pages.board.run_page import POINTS, chart_record, num_points
from whet.pages.chart_specs import NUM_TONES, chart, reaches
from whet.pages.render import Figure
from whet.pages.run_charts import STEP_METRICS, TALL, evaluation_line
from whet.pages.run_report import setting_text
from whet.record.run import ending_of
from whet.record.text import ABSENT, duration, metric_text, number, quantity, words
from whet.settings.layers import flattened

MOST_COMPARED = 24
AXES = {"step": "steps", "tokens": "tokens", "time": "time"}
TIME_UNITS = ((10_800, ("hours", 3600.0)), (300, ("minutes", 60.0)), (0, ("seconds", 1.0)))  # from how many seconds on
OWN_KEYS = ("seed", "folder")  # in which runs of one config may differ
FIRST_CHARTS = (
    "reward",
    "loss",
    "accuracy",
    "entropy",
    "kl",
    "completion_length",
    "gradient_norm",
    "tokens_per_second",
)


@dataclass(frozen=True)
class ComparedRun:
    """A run that was chosen, and what is known of it."""

    id: str
    name: str
    reader: RunReader
    view: RunView
    settings: Mapping[str, Any]  # by dotted name

    @property
    def config(self) -> str:
        """The settings of the run without its seed: runs that differ in nothing else are a group."""
        return json.dumps({k: v for k, v in sorted(self.settings.items()) if k not in OWN_KEYS}, default=str)


def add_routes(app: BoardApp, board: Board) -> None:
    """The pages of runs side by side."""

    def page(request: BoardRequest) -> BoardResponse:
        runs = _chosen(board, request)
        values: dict[str, Any] = {
            "title": "Compare",
            "here": "/compare",
            "about": (f"{len(runs)} runs",) if runs else (),
        }
        every = [
            {"id": folder.id, "place": folder.place, "is_chosen": folder.id in {run.id for run in runs}}
            for folder in board.look().values()
            if folder.kind == RUN
        ]
        metrics, axis = common_metrics(runs), compared_axis(runs, request.query.get("across", ""))
        keys = [*(["evals"] if any(run.view.record.evals for run in runs) else ()), *metrics[:9]]
        charts = [drawn for key in keys if (drawn := compared_chart(runs, key, axis)) is not None]
        return board.page(
            "board_compare.html",
            **values,
            runs=runs,
            every=every,
            charts=charts,
            across=axis.name,
            axes=AXES,
            others=[(key, words(key)) for key in metrics[9:]],
            differences=differences(runs),
            outcomes=outcomes(runs),
        )

    def charts(request: BoardRequest) -> BoardResponse:
        runs = _chosen(board, request)
        start, end, most = request.real("from"), request.real("to"), num_points(request)
        keys = request.query.get("keys", "").split(",")[:60]
        axis = compared_axis(runs, request.query.get("across", ""))
        drawn = [compared_chart(runs, key, axis, start, end, most) for key in keys]
        return json_response({"charts": chart_record([figure for figure in drawn if figure is not None])})

    app.get("/compare", page)
    app.get("/api/compare", charts)


def _chosen(board: Board, request: BoardRequest) -> list[ComparedRun]:
    ids = list(dict.fromkeys(run for run in request.query.get("runs", "").split(",") if run))[:MOST_COMPARED]
    readers = [(board.find(run_id, RUN), board.reader(run_id)) for run_id in ids]
    return [
        ComparedRun(folder.id, folder.place, reader, reader.view(), flattened(reader.settings()))
        for folder, reader in readers
    ]


def common_metrics(runs: Sequence[ComparedRun]) -> list[str]:
    """Columns that any of the runs has; what is looked at first, first."""
    names = {name for run in runs for name in run.reader.names() if not name.startswith(("spread/", "seconds/"))}
    return [*(name for name in FIRST_CHARTS if name in names), *sorted(names - set(FIRST_CHARTS))]


def seed_groups(runs: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """Runs of one config together."""
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault(run.config, []).append(run)
    return list(groups.values())


def group_names(groups: Sequence[Sequence[ComparedRun]]) -> list[str]:
    """The name of each group: the method, the settings in which it differs, or its folder."""
    differing = [name for name in _differing([group[0] for group in groups]) if name not in OWN_KEYS]
    names = []
    for group in groups:
        first = group[0].settings
        parts = [str(first.get("method", ""))] if "method" in differing else []
        parts += [f"{name}={setting_text(first.get(name))}" for name in differing if name != "method"][: 2 - len(parts)]
        name = ", ".join(part for part in parts if part) or group[0].name
        names.append(f"{name} ({len(group)} seeds)" if len(group) > 1 else name)
    if len(set(names)) < len(names):
        return [f"{group[0].name} ({len(group)} seeds)" if len(group) > 1 else group[0].name for group in groups]
    return names


@dataclass(frozen=True)
class ComparedAxis:
    """What runs are drawn by. Equal steps need not have cost the same, so tokens and time are looked up run by run."""

    name: str = "step"
    label: str = "step"
    size: float = 1.0  # seconds of a unit

    def place(self, run: ComparedRun) -> Callable[[float], float] | None:
        """A function from a run's step to its x coordinate; None where it is not known, or not yet."""
        if self.name == "step":
            return float
        course = self.of(run)
        return None if course is None else lambda step: float(np.interp(step, *course))

    def of(self, run: ComparedRun) -> tuple[list[float], list[float]] | None:
        """Steps of a run and where they are on the axis; None where that is not known, or not yet."""
        course = run.view.record.totals.course_values() if run.view.is_complete else None
        if course is None:
            return None
        return course["step"], [value / self.size for value in course["tokens" if self.name == "tokens" else "seconds"]]


def compared_axis(runs: Sequence[ComparedRun], name: str) -> ComparedAxis:
    """The axis that an address asks for; steps where it asks for none."""
    if name == "tokens":
        return ComparedAxis(name, name)
    if name != "time":
        return ComparedAxis()
    seconds = ComparedAxis(name, "seconds")
    longest = max((places[1][-1] for run in runs if (places := seconds.of(run)) is not None), default=0.0)
    return next(ComparedAxis(name, *unit) for least, unit in TIME_UNITS if longest >= least)


def compared_chart(
    runs: Sequence[ComparedRun],
    key: str,
    axis: ComparedAxis | None = None,
    start: float | None = None,
    end: float | None = None,
    most: int = POINTS,
) -> Figure | None:
    """One quantity of all runs; None where no run has it."""
    groups, lines, axis = seed_groups(runs), [], axis or ComparedAxis()
    is_eval = key == "evals"
    for tone, (group, name) in enumerate(zip(groups, group_names(groups), strict=True)):
        curves = [curve for run in group if (curve := _curve(run, key, axis, start, end, most))]
        if not curves:
            continue
        drawn = _points(curves[0]) if len(curves) == 1 else banded(curves)
        if is_eval and len(group) == 1:
            x_of_step = axis.place(group[0]) or float
            drawn = evaluation_line(name, group[0].view.record.evaluations(), tone, x_of_step)
        lines.append(drawn | {"name": name, "tone": tone % NUM_TONES, "dashed": tone >= NUM_TONES, "marked": is_eval})
    values = [value for line in lines for value in line["y"] if value is not None]
    if not values:
        return None
    log = not is_eval and reaches(values)
    height = TALL if key in ("evals", "reward") else 210
    across = {"label": axis.label, "log": False, "steps": axis.name == "step"}
    spec = chart(lines, x=across, log=log, smooth=key != "learning_rate", named=True, height=height)
    known = STEP_METRICS[key].title if key in STEP_METRICS else ""
    title = "Held-out evaluation" if is_eval else known or words(key).replace("reward/", "reward: ")
    unit = "headline metric; of single runs with 95% intervals" if is_eval else "log scale" if log else ""
    return Figure(f"{title[:1].upper()}{title[1:]}", unit, spec, key=key, is_wide=is_eval)


def _points(curve: Sequence[tuple[float, float]]) -> dict[str, Any]:
    return {"x": [x for x, _ in curve], "y": [y for _, y in curve]}


def _curve(
    run: ComparedRun, key: str, axis: ComparedAxis, start: float | None, end: float | None, most: int
) -> list[tuple[float, float]]:
    x_of, course = axis.place(run), axis.of(run)
    if x_of is None:
        return []
    if axis.name != "step" and course is not None:  # a stretch of the axis is another stretch of steps in each run
        start, end = (None if edge is None else float(np.interp(edge, course[1], course[0])) for edge in (start, end))
    if key == "evals":
        curve = [(float(point.step), point.value) for point in run.view.record.evaluations().measured]
    else:
        points = run.reader.points([key], start, end, most)[key]
        curve = [(x, y) for x, y in zip(points.x, points.y, strict=True) if y is not None]
    return [(x_of(x), y) for x, y in curve]


def banded(curves: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Mean and range over runs, at the places of the one with the most points; a run that ended no longer counts."""
    places = np.array([x for x, _ in max(curves, key=len)])
    rows = []
    for curve in curves:
        x, y = np.array(curve).T
        rows.append(np.interp(places, x, y, left=np.nan, right=np.nan))
    table = np.vstack(rows)
    there = ~np.isnan(table).all(axis=0)
    table = table[:, there]
    ends = {"y": np.nanmean(table, axis=0), "low": np.nanmin(table, axis=0), "high": np.nanmax(table, axis=0)}
    return {"x": places[there].tolist(), **{name: [float(f"{v:.6g}") for v in row] for name, row in ends.items()}}


def _differing(runs: Sequence[ComparedRun]) -> list[str]:
    names = dict.fromkeys(name for run in runs for name in run.settings)
    return [name for name in names if len({json.dumps(run.settings.get(name), default=str) for run in runs}) > 1]


def differences(runs: Sequence[ComparedRun]) -> list[tuple[str, list[str]]]:
    """The settings in which runs differ, a value per run."""
    names = [name for name in _differing(runs) if name != "folder"]
    return [(name, [setting_text(run.settings.get(name)) for run in runs]) for name in sorted(names)]


def outcomes(runs: Sequence[ComparedRun]) -> list[tuple[str, list[str]]]:
    """What became of each run, a value per run."""
    rows: list[tuple[str, list[str]]] = [("status", []), ("steps", []), ("held-out", []), ("last reward", [])]
    rows += [("tokens", []), ("time", []), ("health", [])]
    for run in runs:
        record, view = run.view.record, run.view
        gain = record.gain()
        main = record.kind.main[0]
        last = run.reader.last_values(main.name, 8)
        ending = ending_of(record.folder, record.summary, record.num_steps).problem
        held = [span.finding.name for span in view.spans if span.finding.is_problem and span.holds]
        texts = {
            "status": view.status,
            "steps": f"{record.num_steps:,}",
            "held-out": f"{words(gain[0])} {metric_text(gain[0], gain[1])} → {metric_text(gain[0], gain[2])}"
            if gain
            else ABSENT,
            "last reward": number(sum(last) / len(last)) if last else ABSENT,
            "tokens": quantity(record.tokens()) if view.is_complete and record.tokens() else ABSENT,
            "time": duration(record.wall_seconds()) if view.is_complete else ABSENT,
            "health": ", ".join(filter(None, (ending, *held))) or "no problem",
        }
        for name, values in rows:
            values.append(texts[name])
    return rows if runs else []
