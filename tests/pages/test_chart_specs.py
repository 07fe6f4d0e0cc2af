"""Specs of live charts: what the browser draws is what was measured."""

import json
import math
import subprocess
from shutil import which

import pytest

from whet.pages.chart_specs import MOST_CELLS, band_spec, line_spec, spread_spec
from whet.pages.charts import BandSeries, Series
from whet.pages.render import ASSETS


def test_a_short_line_is_given_point_by_point():
    lines = [Series("reward", ((1, 0.25), (2, 0.123456789))), Series("eval", ((0, 1.0),), marked=True)]
    spec = line_spec(lines, unit=True)
    first, second = spec["series"]
    assert first == {"name": "reward", "tone": 0, "x": [1, 2], "y": [0.25, 0.12346]}
    assert second["marked"] and second["tone"] == 1 and (spec["y"]["min"], spec["y"]["max"]) == (0, 1)


def test_a_long_line_keeps_its_extremes_in_a_band():
    points = tuple((float(step), 100.0 if step == 70_001 else step % 2) for step in range(100_000))
    (line,) = line_spec([Series("spiky", points)])["series"]
    assert len(line["x"]) == MOST_CELLS == len(line["low"]) and max(line["high"]) == 100 and max(line["y"]) < 2
    assert min(line["low"]) == 0


def test_bands_and_spreads_are_drawn_around_their_lines():
    (line,) = band_spec([BandSeries("a", (1, 2), (0.5, 0.6), (0.4, 0.5), (0.6, 0.9), "s3 dashed")])["series"]
    assert line["tone"] == 3 and line["dashed"] and line["high"] == [0.6, 0.9] and line["y"] == [0.5, 0.6]
    values = {"min": 0, "q1": 1, "median": 2, "q3": 3, "max": 4, "mean": 2.5}
    mean, median = spread_spec([(1.0, values)], 9)["series"]
    assert (mean["low"], mean["y"], mean["high"]) == ([0], [2.5], [4]) and median["low"] == [1] and mean["tone"] == 1


def test_what_is_not_finite_is_a_gap():
    spec = band_spec([BandSeries("a", (1,), (math.nan,), (0.0,), (math.inf,), "s0")])
    (line,) = json.loads(json.dumps(spec, allow_nan=False))["series"]
    assert line["y"] == [None] and line["high"] == [None] and line["low"] == [0]


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
