"""The simulator: cases whose answer is known by hand, and what must follow when a constant changes."""

from dataclasses import replace

import pytest

from whet.tools.planner.cluster_simulation import ClusterModel, Lengths, simulate
from whet.types import WhetError

# 4 engines, 8 rows each; a token takes 10 ms whatever the rows; a step is 8 groups of 4
PLAIN = ClusterModel(
    engines=4, rows_per_engine=8, prompts_per_step=8, group_size=4, lengths=Lengths(100, 100, 0.0),
    token_seconds=lambda rows: 0.01, train_seconds=1.0,
)  # fmt: skip


def test_the_synchronous_case_is_a_sum():
    found = simulate(PLAIN)
    assert found.seconds_per_step == pytest.approx(1.0 + 100 * 0.01, rel=1e-6)
    assert found.tokens_per_second == pytest.approx(32 * 100 / 2.0, rel=1e-6)
    assert found.trainer_idle == pytest.approx(0.5) and found.engine_idle == pytest.approx(0.5)
    assert (found.staleness_mean, found.staleness_most) == (0, 0) and "nobody writes" in found.limit


def test_ahead_the_slower_side_is_the_limit():
    train_bound = simulate(replace(PLAIN, max_staleness=1, train_seconds=3.0))
    assert train_bound.seconds_per_step == pytest.approx(3.0, rel=1e-6) and train_bound.limit == "training"
    write_bound = simulate(replace(PLAIN, max_staleness=1, train_seconds=0.25))
    assert write_bound.seconds_per_step == pytest.approx(1.0, rel=0.05) and write_bound.limit == "writing"
    assert write_bound.staleness_most == 1


def test_on_one_device_time_in_turns_gains_nothing_and_bounds_enclose():
    """One engine of a device that training needs too: work is conserved at 0.5, the slower side is the limit at 1."""
    alone = replace(PLAIN, engines=1, rows_per_engine=96)  # 1 s of writing and 1 s of training
    waits = simulate(alone).seconds_per_step
    turns, between, free = (
        simulate(replace(alone, max_staleness=1, both_busy=share), 20).seconds_per_step for share in (0.5, 0.75, 1.0)
    )
    assert waits == pytest.approx(2.0, rel=1e-6) and turns == pytest.approx(waits, rel=0.02)
    assert free == pytest.approx(1.0, rel=0.02) and free < between < turns
    assert simulate(replace(alone, both_busy=0.5)) == simulate(alone)  # with staleness 0 nobody works at once
    slow = simulate(replace(alone, max_staleness=2, both_busy=0.5, train_seconds=3.0), 20)
    assert slow.seconds_per_step == pytest.approx(4.0, rel=0.02) and slow.staleness_most <= 2
    with pytest.raises(WhetError, match="both_busy is 0"):
        replace(alone, both_busy=0.0)


def test_staleness_is_never_more_than_promised():
    ragged = replace(PLAIN, lengths=Lengths(100, 1000, 1.0), prompts_per_step=16)
    for most in (0, 1, 2, 4):
        found = simulate(replace(ragged, max_staleness=most), 8)
        assert found.staleness_most <= most
    times = [simulate(replace(ragged, max_staleness=most), 20).seconds_per_step for most in (0, 1, 4)]
    assert times[0] > times[1] >= 0.98 * times[2]


def test_stragglers_are_passed_within_the_window():
    ragged = replace(PLAIN, lengths=Lengths(100, 3000, 1.3), max_staleness=4, train_seconds=0.1)
    strict, loose = (simulate(replace(ragged, window=share), 20) for share in (0.0, 0.8))
    assert strict.passed_most == 0 < loose.passed_most
    assert loose.staleness_mean < 0.5 * strict.staleness_mean  # places for passing are places that nobody waits in
    assert loose.seconds_per_step == pytest.approx(strict.seconds_per_step, rel=0.1)


def test_what_costs_time_costs_time():
    base = replace(PLAIN, max_staleness=1, train_seconds=0.25)
    plain = simulate(base).seconds_per_step
    assert simulate(replace(base, sync_seconds=0.5)).seconds_per_step > plain + 0.4
    assert simulate(replace(base, reread_seconds=1e-3)).seconds_per_step > plain
    scored = simulate(replace(base, reward_seconds=0.5, reward_workers=2))
    assert scored.seconds_per_step == pytest.approx(32 * 0.5 / 2, rel=0.05) and scored.limit == "rewards"
    crowded = simulate(replace(base, rows_per_engine=4)).seconds_per_step
    assert crowded == pytest.approx(2 * plain, rel=0.1)


def test_more_engines_write_more_until_the_trainer_is_the_limit():
    wide = replace(PLAIN, max_staleness=2, prompts_per_step=64, train_seconds=2.0)
    rates = [simulate(replace(wide, engines=count), 6).tokens_per_second for count in (2, 4, 8, 16, 64)]
    assert rates == sorted(rates) and rates[1] == pytest.approx(2 * rates[0], rel=0.15)
    assert rates[-1] == pytest.approx(64 * 4 * 100 / 2.0, rel=0.05)


def test_the_same_seed_gives_the_same_numbers():
    ragged = replace(PLAIN, lengths=Lengths(100, 1000, 1.0), max_staleness=1)
    assert simulate(ragged) == simulate(ragged) != simulate(replace(ragged, seed=1))


def test_lengths_have_the_mean_that_is_asked_for():
    import random

    stream = random.Random(0)
    drawn = [Lengths(300, 10**6, 0.7).draw(stream) for _ in range(20000)]
    assert sum(drawn) / len(drawn) == pytest.approx(300, rel=0.03)


def test_an_empty_cluster_is_refused():
    with pytest.raises(WhetError, match="a cluster of 0 engines"):
        replace(PLAIN, engines=0)


def test_layouts_of_a_cluster_are_compared():
    from whet.tools.planner.cluster_simulation import ClusterOptions, cluster_plan, cluster_record, cluster_text
    from whet.tools.planner.shapes import NAMED
    from whet.tools.planner.workload import Workload, devices

    work = Workload(NAMED["qwen2.5-1.5b"], prompts_per_step=32, group_size=4, completion_tokens=1024)
    found = cluster_plan(work, devices("8xH100"), ClusterOptions(steps=3))
    text, record = cluster_text(found), cluster_record(found)
    assert [each.max_staleness for each in found.layouts] == [0, 0, 1, 4]
    assert all(each.engines + each.trainers == 8 for each in found.layouts[1:]) and "assumed:" in text
    assert record["sync"]["bytes"] == 2 * NAMED["qwen2.5-1.5b"].weights and len(record["layouts"]) == 4
    assert found.layouts[2].simulated.tokens_per_second > found.layouts[1].simulated.tokens_per_second
    # the same load per device on more of them is the same work, in a part of the cluster
    more = cluster_plan(replace(work, prompts_per_step=256), devices("64xH100"), ClusterOptions(steps=3))
    rate = more.layouts[2].simulated.tokens_per_second / found.layouts[2].simulated.tokens_per_second
    assert rate == pytest.approx(8, rel=0.35)
    for broken, wishes, line in (
        (replace(work, draws=False, method="x"), ClusterOptions(), "draws no completions"),
        (work, ClusterOptions(engines=8), "leave no device to train on"),
    ):
        with pytest.raises(WhetError, match=line):
            cluster_plan(broken, devices("8xH100"), wishes)
    with pytest.raises(WhetError, match="whose rates were measured"):
        cluster_plan(work, devices("cpu:8GB"), ClusterOptions())
