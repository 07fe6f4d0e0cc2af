"""Specs of live charts: what the browser draws is what was measured."""

import json
import math
import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

from whet.pages.chart_specs import MOST_CELLS, chart, curve, line
from whet.pages.chart_svg import chart_svg, figure_file
from whet.pages.render import ASSETS, Figure
from whet.pages.run_charts import columns_of, drawn_charts, held_out_lines, planned_charts
from whet.record.log import EvalRecord
from whet.record.run import RunRecord
from whet.types import StepReport


def test_a_short_line_is_given_point_by_point():
    lines = [line("reward", [(1, 0.25), (2, 0.123456789)]), line("eval", [(0, 1.0)], 1, marked=True, dashed=False)]
    spec = chart(lines, unit=True)
    first, second = spec["series"]
    assert first == {"name": "reward", "tone": 0, "x": [1, 2], "y": [0.25, 0.12346]}
    assert second == {"name": "eval", "tone": 1, "x": [0], "y": [1.0], "marked": True}
    assert (spec["y"]["min"], spec["y"]["max"]) == (0, 1)


def test_a_long_line_keeps_its_extremes_in_a_band():
    points = [(float(step), 100.0 if step == 70_001 else step % 2) for step in range(100_000)]
    long = line("spiky", points, 9)
    assert len(long["x"]) == MOST_CELLS == len(long["low"]) and max(long["high"]) == 100 and max(long["y"]) < 2
    assert min(long["low"]) == 0 and long["tone"] == 1


def test_what_is_not_finite_is_a_gap():
    spec = chart([line("a", [(1, math.nan)], low=[0.0], high=[math.inf])])
    (drawn,) = json.loads(json.dumps(spec, allow_nan=False))["series"]
    assert drawn["y"] == [None] and drawn["high"] == [None] and drawn["low"] == [0]


def test_a_curve_keeps_every_digit_and_the_gaps_between_its_stretches():
    drawn = curve("a", ([(0.0, 1.00000001), (1.0, 2.0)], [(1.0, 3.0)]))
    assert drawn["x"] == [0.0, 1.0, 1.0, 1.0] and drawn["y"] == [1.00000001, 2.0, None, 3.0]


@pytest.mark.skipif(which("node") is None, reason="needs node (Debian: apt-get install nodejs)")
def test_smoothing_starts_at_the_first_value_and_leaves_gaps():
    stand_in = "const matchMedia = () => ({addEventListener() {}});"
    script = f"{stand_in}\n{(ASSETS / 'charts.js').read_text()}\n"
    script += (
        "console.log(JSON.stringify([whet.smooth([4, null, 8], 0.5), whet.number(12345), whet.number(0.5, true)]))"
    )
    found = json.loads(subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True).stdout)
    # weights 1/3 and 2/3: the mean of what came, without a pull towards 0
    assert found[0] == [4, None, pytest.approx(4 / 3 + 16 / 3)] and found[1:] == ["12.3k", "50%"]


def test_held_out_curves_have_intervals_and_the_best_is_marked():
    right = {0: 12, 10: 48, 20: 30}  # of 60 prompts
    evals = [
        EvalRecord(
            step, "eval", {"accuracy": n / 60}, 1.0, 60, {"accuracy": [float(i < n) for i in range(60)]} if step else {}
        )
        for step, n in right.items()
    ]
    (drawn,) = held_out_lines(evals, "accuracy")
    assert drawn["best"] == [10, 0.8] and drawn["y"] == [0.2, 0.8, 0.5]
    # Wilson's interval of 48 of 60
    assert (drawn["low"][1], drawn["high"][1]) == pytest.approx((0.682, 0.882), abs=1e-3)
    assert drawn["low"][0] < 0.2 < drawn["high"][0], "without scores by the number of prompts"
    picture = chart_svg(chart([drawn]), "a")
    assert picture.count('class="line s0 best"') == 1 and "best: 0.8" in picture and 'class="band s0"' in picture
    assert 'class="line s0 best"' in figure_file([chart([drawn])])

    losses = [EvalRecord(step, "eval", {"loss": loss}, 1.0) for step, loss in ((0, 2.0), (5, 1.0), (10, 1.5))]
    (drawn,) = held_out_lines(losses, "loss")
    assert drawn["best"] == [5, 1.0] and "low" not in drawn, "the lowest loss, of which no interval is known"
    sized = held_out_lines([EvalRecord(0, "eval", {"accuracy": 0.5}, 1.0, 20)], "accuracy")
    assert sized[0]["low"][0] == pytest.approx(0.299, abs=1e-3) and "best" not in sized[0]
    assert [
        each["name"] for each in held_out_lines([*evals, EvalRecord(0, "hard", {"accuracy": 0.1}, 1.0)], "accuracy")
    ] == [
        "held-out accuracy",
        "held-out hard accuracy",
    ]


def test_a_legend_names_what_is_drawn():
    lines = [line("a", [(1, 0.5), (2, 0.25)]), line("b", [(1, 1.0)], 1), line("", [(1, 2.0)], 2), line("empty", [], 3)]
    legend = Figure("rewards", "", chart(lines)).legend
    assert [(entry.name, entry.value) for entry in legend] == [("a", "0.250"), ("b", "1.00")]
    assert Figure("rewards", "", chart(lines[:1])).legend == [], "of a single one the caption says enough"


def test_an_interval_is_drawn_from_its_low_end_to_its_high_one():
    rows = [("a", 0.5, 0.4, 0.7, "50%"), ("b", 0.2, None, None, "20%"), ("c", 0.3, 0.1, None, "30%")]
    rows += [("d", 0.4, -math.inf, math.inf, "40%")]
    picture = chart_svg({"intervals": rows}, "accuracy")
    assert picture.count("<circle") == 4 and picture.count('class="reach') == 1
    (reach,) = re.findall(r'class="reach s0" d="M([\d.]+) .*?H([\d.]+)', picture)
    dots = [float(x) for x in re.findall(r'<circle[^>]* cx="([\d.]+)"', picture)]
    assert float(reach[0]) < dots[0] < float(reach[1])
    tenth = (dots[0] - dots[1]) / 3
    assert (float(reach[0]), float(reach[1])) == pytest.approx((dots[0] - tenth, dots[0] + 2 * tenth), abs=0.2)


def test_a_note_names_the_first_step_of_each_extreme():
    lows = {3: 1.5, 8: 1.5, 5: 4.0, 9: 4.0}
    steps = tuple(StepReport(n, n, {}, {"total": 1.0}, {"entropy": lows.get(n, 2.0)}) for n in range(1, 13))
    columns = columns_of(steps)
    plans = planned_charts(RunRecord(Path(), {}, "", steps, (), (), ()), columns.names).by_key()
    (figure,) = drawn_charts(
        [plans["entropy"]], {name: columns.points(name, None, None, 100) for name in columns.names}
    )
    assert figure.note == "min 1.50 at step 3 · max 4.00 at step 5"


def test_bars_stand_on_zero():
    spec = chart([curve("advantage", [[(1, 2.0), (2, -1.0), (3, 0.5)]], bars=True)], smooth=False, lines=[{"y": 0}])
    picture = chart_svg(spec, "advantages")
    bars = [part.partition('"')[0] for part in picture.split('class="band s0" d="')[1:]]
    heights = [[float(corner.split()[1]) for corner in bar[1:-1].split("L")] for bar in bars]
    assert len(bars) == 3 and len({ends[0] for ends in heights}) == 1  # all from one ground
    assert heights[0][1] < heights[0][0] < heights[1][1] and '<path class="line' not in picture


def test_a_figure_is_called_by_its_title_and_by_the_axes_that_have_a_name() -> None:
    series = [line("right", [(0, 0.1), (1, 0.9)])]
    assert 'aria-label="Gain"' in figure_file([chart(series)], "Gain")
    assert 'aria-label="Gain: reward against step"' in figure_file([chart(series, y="reward")], "Gain")
