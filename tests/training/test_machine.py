"""What a step takes of the machine is read, recorded, and drawn on the run page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from whet.pages.run_charts import columns_of, drawn_charts, planned_charts
from whet.record.log import step_line, step_reports
from whet.record.run import RunRecord
from whet.training import run_loop
from whet.training.run_loop import GIB, MachineMeter
from whet.types import StepReport


def test_a_reading_is_of_this_process_and_of_the_time_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([(10.0, 1.0), (14.0, 7.0), (14.0, 7.0)])
    monkeypatch.setattr(MachineMeter, "_clocks", staticmethod(lambda: next(clocks)))
    values = MachineMeter(torch.device("cpu")).read()
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    assert values["cores"] == 1.5 and values["memory"] == pytest.approx(int(resident.split()[1]) * 1024 / GIB, rel=0.1)
    assert set(values) == {"cores", "memory"}


def test_a_gpu_is_asked_for_its_memory_and_where_that_is_possible_for_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 * GIB, 10 * GIB))
    monkeypatch.setattr(torch.cuda, "utilization", lambda _: 85)
    monkeypatch.setattr(run_loop, "find_spec", lambda _: None)
    without = MachineMeter(torch.device("cuda:0")).read()
    assert without["gpu_memory"] == 7 and "gpu_use" not in without
    monkeypatch.setattr(run_loop, "find_spec", lambda name: name)
    assert MachineMeter(torch.device("cuda:0")).read()["gpu_use"] == 0.85


def test_it_is_recorded_with_the_step_and_drawn_with_where_the_time_went() -> None:
    taken = {"cores": 1.5, "memory": 2.0, "gpu_memory": 7.0}
    reports = [StepReport(step, step, {}, {"total": 0.5}, {}, machine=taken) for step in (1, 2, 3)]
    assert [report.machine for report in step_reports([step_line(report) for report in reports])] == [taken] * 3
    columns = columns_of(reports)
    charts = planned_charts(RunRecord(Path("run"), {}, "", tuple(reports), (), (), ()), columns.names)
    points = {name: columns.points(name, None, None, 100) for name in columns.names}
    figures = {figure.title: figure for figure in drawn_charts(charts.times, points)}
    assert {title: [line["name"] for line in figure.spec["series"]] for title, figure in figures.items()} == {
        "Memory": ["this process", "GPU"],
        "Busy cores": ["cores"],
    }
    assert figures["Memory"].spec["series"][1]["y"] == [7.0] * 3
    assert not any("machine" in plan.key for plan in charts.others)
