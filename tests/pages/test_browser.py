"""The report in a real browser: live charts, nothing overflows, nothing is fetched, no script but the charts' own."""

from pathlib import Path

import pytest

import whet
from tests.support.browsing import MISSING, opened_page

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "run"
    few = {
        "batch": {"prompts_per_step": 2, "group_size": 4},
        "eval": {"prompts": 8},
        "model": {"threads": 1},
    }
    return whet.train("grpo", steps=6, folder=str(folder), config=few, console=False).report


@pytest.mark.parametrize("width", [400, 1200, 2000])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_renders_and_nothing_sticks_out(report, width, scheme):
    with opened_page(width, color_scheme=scheme) as (page, complaints, addresses):
        page.goto(report.as_uri())
        seen = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        charts = page.locator("figure.is-live canvas").count()
        assert seen[0] <= seen[1] and charts >= 8
        assert complaints == [] and addresses == [report.as_uri()]


def test_the_keyboard_points_zooms_and_hides(report):
    with opened_page() as (page, complaints, _):
        page.goto(report.as_uri())
        figure = page.locator("figure.wide[data-chart]").first
        figure.locator(".plot").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        assert figure.locator(".spoken").inner_text().startswith("step 1, ")
        measured = page.evaluate("document.querySelector('figure.wide').chart.spec.series.at(-1).y[0]")
        said = figure.locator(".spoken").inner_text()
        assert said.split()[-1] == page.evaluate("value => whet.number(value)", measured)
        scale = (
            "(() => { const x = document.querySelector('figure.wide').chart.plot.scales.x; return x.max - x.min })()"
        )
        whole = page.evaluate(scale)
        page.keyboard.press("+")
        assert page.evaluate(scale) == pytest.approx(whole / 2)
        page.keyboard.press("0")
        assert page.evaluate(scale) == pytest.approx(whole)
        button = figure.locator(".live-legend button").first
        button.click()
        assert figure.locator(".live-legend button").first.get_attribute("aria-pressed") == "false"
        assert complaints == []


def test_smoothing_moves_the_line_and_not_what_was_measured(report):
    with opened_page() as (page, _, _):
        page.goto(report.as_uri())
        column = "document.querySelector('figure.wide').chart.data.columns.at(-1).filter(each => each !== null)"
        page.evaluate("whet.smoothing(0)")
        raw = page.evaluate(column)
        page.locator("input[data-smoothing]").fill("0.9")
        calm = page.evaluate(column)
        assert calm[0] == raw[0] and calm[1:] != raw[1:]
        assert max(calm) - min(calm) <= max(raw) - min(raw)


def test_charts_go_by_tokens_and_time_and_on_a_log_scale(report):
    with opened_page() as (page, complaints, _):
        page.goto(report.as_uri())
        chart = "document.querySelector('figure.wide').chart"
        steps = page.evaluate(f"{chart}.spec.series.at(-1).x")
        course = page.evaluate("JSON.parse(document.getElementById('course').textContent)")
        page.select_option("select[data-across]", "tokens")
        assert page.evaluate(f"{chart}.spec.x.label") == "tokens"
        assert page.evaluate(f"{chart}.spec.series.at(-1).x") == [
            course["tokens"][course["step"].index(step)] for step in steps
        ]
        page.evaluate(f"{chart}.plot.setScale('x', {{min: {course['tokens'][2]}, max: {course['tokens'][4]}}})")
        assert page.evaluate(f"{chart}.zoom") == {"min": 2, "max": 4}, "a zoom is one of steps"
        page.select_option("select[data-across]", "time")
        assert page.evaluate(f"{chart}.spec.x.label") == "seconds"
        assert page.evaluate(f"{chart}.plot.scales.x.min") == pytest.approx(course["seconds"][2])
        page.check("input[data-log]")
        assert page.evaluate(f"{chart}.plot.scales.y.distr") == 3
        assert complaints == []


def test_a_chart_is_saved_as_it_is_drawn_and_its_numbers_as_they_were_measured(report, tmp_path):
    with opened_page() as (page, complaints, _):
        page.goto(report.as_uri())
        figure = page.locator("figure.wide[data-chart]").first
        files = {}
        for kind in ("SVG", "PNG", "CSV"):
            figure.locator(".save summary").click()
            with page.expect_download() as download:
                figure.locator(".save button", has_text=kind).click()
            files[kind] = tmp_path / download.value.suggested_filename
            download.value.save_as(files[kind])
        head, *rows = files["CSV"].read_text().splitlines()
        series = page.evaluate("document.querySelector('figure.wide').chart.spec.series")
        assert head.startswith('"step",') and all(f'"{line["name"]}"' in head for line in series)
        first = series[-1]
        row = next(row.split(",") for row in rows if row.split(",")[0] == str(first["x"][0]))
        assert float(row[-1]) == first["y"][0], "smoothing is no measurement"
        drawn = files["SVG"].read_text()
        assert drawn.startswith("<svg xmlns=") and all(line["name"] in drawn for line in series)
        assert drawn.count("<path") > 8 and "script" not in drawn
        assert files["PNG"].read_bytes().startswith(b"\x89PNG") and files["PNG"].stat().st_size > 5000
        assert complaints == []


def test_print_and_readers_without_scripts_get_what_python_drew(report):
    drawn = "figure[data-chart] .drawn svg >> visible=true"
    with opened_page() as (page, _, _):
        page.goto(report.as_uri())
        assert page.locator(drawn).count() == 0
        page.emulate_media(media="print")
        assert page.locator(drawn).count() >= 8
    with opened_page(java_script_enabled=False) as (page, _, _):
        page.goto(report.as_uri())
        assert page.locator(drawn).count() >= 8


def test_hostile_text_in_names_runs_nothing(tmp_path):
    from whet.pages.run_report import write_report
    from whet.record.log import RunRecorder
    from whet.types import StepReport

    record = RunRecorder(tmp_path)
    record.started({"title": HOSTILE, "facts": {HOSTILE: HOSTILE}})
    for step in (1, 2):
        record.stepped(StepReport(step, step, {HOSTILE: 1}, {"total": 1.0, HOSTILE: 1.0 / step}, {HOSTILE: 0.5}), [])
    record.close()
    with opened_page() as (page, complaints, addresses):
        path = write_report(tmp_path)
        page.goto(path.as_uri())
        page.locator("details").first.evaluate("each => { each.open = true }")
        assert page.locator("figure.is-live").count() >= 2 and complaints == [] and addresses == [path.as_uri()]
        assert HOSTILE in page.locator("body").inner_text()


def test_a_screenshot_is_not_blank(report, tmp_path):
    with opened_page(1200, 1600) as (page, _, _):
        page.goto(report.as_uri())
        assert len(page.screenshot()) > 40_000
