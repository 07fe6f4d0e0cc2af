"""The windowed queue: the bounds hold whatever the finishing times, and nothing is dropped or starved."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.rollout.window import GroupWindow

SIZES = st.tuples(st.integers(1, 5), st.integers(1, 4), st.floats(0, 1))  # groups per step, staleness, share
# seconds that groups take: mostly one, some a hundred times that
SECONDS = st.lists(st.one_of(st.floats(0.1, 2), st.floats(20, 300)), min_size=1, max_size=60)
STEPS = 14


def trained_groups(window, per_step, seconds, rejects=frozenset(), train=1.0):
    """Every step's groups as (number, staleness, times passed), from a clock of our own."""
    now, ends, asked_at, passed, found = 0.0, {}, {}, {}, []
    most = 0
    for step in range(STEPS):
        batch = []
        while len(batch) < per_step:
            while window.room > 0:
                number = window.admit()
                asked_at[number], ends[number] = step, now + seconds[number % len(seconds)]
            most = max(most, len(window.in_flight) + len(batch))
            for each in window.in_flight:
                passed[each.number] = each.passed
                if not each.finished and ends[each.number] <= now:
                    window.finish(each.number)
            taken = window.take()
            if taken is None:
                unfinished = [ends[each.number] for each in window.in_flight if not each.finished]
                now = min(unfinished)  # there is always something to wait for
            elif taken.number in rejects:
                window.reject()
                found.append((step, taken.number, None, taken.passed))
            else:
                batch.append(taken.number)
                found.append((step, taken.number, step - asked_at[taken.number], taken.passed))
        window.trained()
        now += train
    return found, most


@settings(max_examples=200, deadline=None)
@given(SIZES, SECONDS, st.floats(0.01, 50), st.sets(st.integers(0, 40), max_size=10))
def test_bounds_hold_for_any_finishing_times(sizes, seconds, train, rejects):
    per_step, max_staleness, share = sizes
    window = GroupWindow(per_step, max_staleness, share)
    found, most = trained_groups(window, per_step, seconds, rejects, train)

    assert max(staleness for _, _, staleness, _ in found if staleness is not None) <= max_staleness
    assert max(passed for *_, passed in found) <= window.passes
    assert most <= window.capacity <= (max_staleness + 1) * per_step
    assert window.passes <= max(0, int(share * (max_staleness + 1) * per_step) - 1)
    numbers = [number for _, number, _, _ in found]
    assert len(numbers) == len(set(numbers)), "a group was trained on twice"
    waiting = {each.number for each in window.in_flight}
    assert set(numbers) | waiting == set(range(len(numbers) + len(waiting))), "a group was dropped"
    if window.passes == 0:
        assert numbers == sorted(numbers)


def test_a_straggler_is_passed_as_often_as_the_window_allows_and_then_waited_for():
    window = GroupWindow(2, 3, 0.5)  # of 8 groups: passed 3 times, 5 in flight
    assert (window.passes, window.capacity) == (3, 5)
    found, _ = trained_groups(window, 2, [1000.0] + [1.0] * 199, train=0.5)
    steps = {number: step for step, number, _, _ in found}
    staleness = {number: each for _, number, each, _ in found}
    assert [number for _, number, _, _ in found[:6]] == [1, 2, 3, 0, 4, 5]
    assert steps[0] == 1 and staleness[0] == 1


def test_without_a_window_the_order_is_strict_and_everything_is_in_flight():
    window = GroupWindow(3, 2, 0.0)
    assert (window.passes, window.capacity) == (0, 9)
    found, most = trained_groups(window, 3, [50.0, 1.0, 7.0, 1.0])
    assert [number for _, number, _, _ in found] == list(range(3 * STEPS))
    assert most == 9 and {each for _, _, each, _ in found[9:]} == {2}


def test_a_step_is_always_written_while_another_is_trained_on():
    for max_staleness in range(1, 6):
        for share in (0.0, 0.3, 0.5, 1.0):
            assert GroupWindow(4, max_staleness, share).capacity >= 8


def test_synchronous_bounds_leave_one_step_in_flight():
    window = GroupWindow(4, 0, 1.0)
    assert (window.passes, window.capacity) == (0, 4)


def test_the_state_is_what_goes_on():
    window = GroupWindow(2, 3, 0.5)
    for _ in range(4):
        window.admit()
    window.finish(1)
    window.finish(3)
    assert window.take().number == 1
    again = GroupWindow(2, 3, 0.5)
    state = window.state()
    again.restore([tuple(each) for each in state["queue"]], state["next"])
    assert again.in_flight == window.in_flight
    assert [(each.number, each.finished, each.passed) for each in again.in_flight] == [
        (0, False, 1), (2, False, 0), (3, True, 0),
    ]  # fmt: skip
    assert again.take().number == 3
    assert again.admit() == 4


def test_more_groups_than_may_be_in_flight_are_refused():
    window = GroupWindow(1, 1, 0.0)
    window.admit()
    window.admit()
    with pytest.raises(ValueError, match="2 groups are in flight"):
        window.admit()
    with pytest.raises(ValueError, match="staleness -1"):
        GroupWindow(1, -1, 0.0)
