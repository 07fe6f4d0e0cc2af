"""The held-out evaluation on a run's page: before and after, calibration and length."""

from pathlib import Path

from whet.pages.chart_svg import chart_svg
from whet.pages.run_report import calibration_figure, calibration_tenths, evaluation_section, length_figure
from whet.record.log import EvalRecord
from whet.record.run import RunRecord
from whet.record.text import plain_metrics

BEFORE = {"accuracy": 0.5, "loss": 0.7}
AFTER = {
    "accuracy": 0.84,
    "loss": 0.3,
    "accuracy_when_longer": 0.9,
    "accuracy_when_shorter": 0.61,
    "longer_correlation": 0.4,
    "calibration_error": 0.03,
    "member/1/accuracy": 0.83,
    **{"calibration/5/rows": 12.0, "calibration/5/sure": 0.56, "calibration/5/right": 0.5},
    **{"calibration/9/rows": 88.0, "calibration/9/sure": 0.97, "calibration/9/right": 0.95},
}


def run(*results):
    evals = tuple(EvalRecord(20 * place, "eval", result, 1.0) for place, result in enumerate(results))
    return RunRecord(Path("."), {}, "", (), evals, (), ())


def test_metrics_are_shown_before_and_after_with_calibration_and_length():
    section = evaluation_section(run(BEFORE, AFTER))
    assert section["table"].head == ("", "step 0", "step 20")
    rows = {row[0]: row[1:] for row in section["table"].rows}
    assert rows["accuracy"] == ("50.0%", "84.0%") and rows["member 1 accuracy"] == ("-", "83.0%")
    assert rows["calibration error"] == ("-", "3.0%") and not any("calibration 5" in name for name in rows)
    calibration, length = section["figures"]
    drawn = chart_svg(calibration.spec, "")
    assert "97.0% sure, 95.0% right, 88 rows" in drawn and drawn.count("<circle") == 2
    drawn = chart_svg(length.spec, "")
    assert "better completion is longer: 90.0%" in drawn and "better completion is shorter: 61.0%" in drawn


def test_a_dot_is_where_the_model_is_as_sure_and_as_right():
    result = {"calibration/9/rows": 4.0, "calibration/9/sure": 1.0, "calibration/9/right": 0.0}
    drawn = chart_svg(calibration_figure(result).spec, "")
    assert 'cx="332.0" cy="188.0" r="7.5"' in drawn


def test_shares_are_drawn_where_they_are_between_0_and_1():
    drawn = chart_svg(length_figure({"accuracy": 0.5, "accuracy_when_longer": 1.0}).spec, "")
    assert 'cx="230.0" cy="36.0"' in drawn and 'cx="448.0" cy="76.0"' in drawn


def test_nothing_is_shown_of_nothing():
    assert evaluation_section(run()) is None
    assert evaluation_section(run({"accuracy": 0.5})) is None
    assert evaluation_section(run(BEFORE))["figures"] == []


def test_tenths_are_read_back_and_left_out_of_a_line():
    assert calibration_tenths(AFTER) == [(0.56, 0.5, 12), (0.97, 0.95, 88)]
    assert list(plain_metrics(AFTER)) == [name for name in AFTER if "/" not in name]
