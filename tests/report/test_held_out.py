"""Held-out marks on a run's page, and the finding about members that part."""

from whet.report.eval_section import held_out_section, tenths, told_marks
from whet.report.parted import parted
from whet.report.record import Evaluation
from whet.types import StepReport

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


def test_marks_are_shown_before_and_after_with_calibration_and_length():
    page = held_out_section([Evaluation(0, "held_out", BEFORE, 1.0), Evaluation(20, "held_out", AFTER, 1.0)])
    for words in (
        "<td>step 0</td><td>step 20</td>",
        "<th>accuracy</th><td>50.0%</td><td>84.0%</td>",
        "<th>member 1 accuracy</th>",
        "97.0% sure, 95.0% right, 88 rows",
        "better completion is longer: 90.0%",
        "better completion is shorter: 61.0%",
    ):
        assert words in page, words
    assert "calibration 5" not in page and page.count("<circle") == 2


def test_nothing_is_shown_of_nothing():
    assert held_out_section([]) == ""
    assert held_out_section([Evaluation(0, "held_out", {"accuracy": 0.5}, 1.0)]) == ""
    plain = held_out_section([Evaluation(0, "held_out", BEFORE, 1.0)])
    assert "Calibration" not in plain and "by length" not in plain and "50.0%" in plain


def test_tenths_are_read_back_and_not_told_in_a_line():
    assert tenths(AFTER) == [(0.56, 0.5, 12), (0.97, 0.95, 88)]
    assert list(told_marks(AFTER)) == [name for name in AFTER if "/" not in name]


def steps(values, rewards):
    return [
        StepReport(number, number - 1, {}, {"total": reward, "learned": reward}, {"learned_disagreement": value})
        for number, (value, reward) in enumerate(zip(values, rewards, strict=True), 1)
    ]


def test_members_that_part_are_named_with_the_numbers():
    (finding,) = parted(steps([0.1] * 5 + [0.3] * 5, range(10)))
    assert "members of learned were 0.1 apart" in finding and "0.3 apart now while it went from 1.00 to 8.00" in finding
    assert parted(steps([0.1] * 5 + [0.15] * 5, range(10))) == []
    assert parted(steps([0.01] * 5 + [0.03] * 5, range(10))) == []
    assert parted(steps([0.1, 0.1, 0.1, 0.4, 0.4], range(5))) == []
