"""Seconds of phases, and when they were."""

from whet.record.metrics.timer import PhaseTimer


def test_spans_count_from_the_first_phase_and_join_where_they_nearly_touch():
    timer = PhaseTimer()
    timer.add({"rollout": 1.0}, [("rollout", 100.0, 101.0)])
    timer.add({"train": 2.0}, [("train", 101.5, 103.5)])
    behind = [("reward_behind", 100.2, 100.3), ("reward_behind", 100.31, 100.9), ("reward_behind", 99.0, 99.5)]
    timer.add({}, [*behind, ("reward_behind", 102.0, 102.00001)])
    assert timer.seconds == {"rollout": 1.0, "train": 2.0}  # what ran beside a phase took no time of the step
    assert timer.timeline() == (
        ("reward_behind", -1.0, -0.5),
        ("reward_behind", 0.2, 0.9),
        ("rollout", 0.0, 1.0),
        ("train", 1.5, 3.5),
    )
    with timer.phase("save"):
        pass
    assert timer.spans[-1][0] == "save" and timer.seconds["save"] == timer.spans[-1][2] - timer.spans[-1][1]
    assert PhaseTimer().timeline() == ()
