"""What a resume calls a change: other digests and decisive settings, not where things lie."""

from dataclasses import replace

from whet.training.run_inputs import RunInputs, decisive_changes, free_changes

BEFORE = RunInputs(
    config={"data.source": "/old/rows.jsonl", "batch.group_size": 4, "steps": 3},
    digests={"data": "rows#1", "model": "whetstone"},
)


def test_the_same_rows_elsewhere_are_no_change():
    moved = replace(BEFORE, config={**BEFORE.config, "data.source": "/new/rows.jsonl"})
    assert decisive_changes(BEFORE, moved) == decisive_changes(BEFORE, BEFORE) == []


def test_other_rows_another_model_and_a_decisive_setting_are():
    now = replace(
        BEFORE,
        config={**BEFORE.config, "model.name": "other", "batch.group_size": 8, "steps": 9},
        digests={"data": "rows#2", "model": "other"},
    )
    assert decisive_changes(BEFORE, now) == [
        "config batch.group_size 4 -> 8",
        "data /old/rows.jsonl changed",
        "model whetstone -> other",
    ]
    assert free_changes(BEFORE, now) == ["steps 3 -> 9"]


def test_what_is_not_read_any_more_has_no_digest_to_change():
    assert decisive_changes(BEFORE, replace(BEFORE, digests={"model": "whetstone"})) == []


def test_a_file_that_is_gone_has_not_changed():
    now = replace(BEFORE, digests={**BEFORE.digests, "data": "/old/rows.jsonl"})
    assert decisive_changes(BEFORE, now) == ["data /old/rows.jsonl is gone"]


def test_what_a_run_does_about_a_fall_may_change_unless_it_lowers_the_rate() -> None:
    """A run of a version without the setting goes on, and so does one that it stopped."""
    falls = "health.on_problem.evaluation_falls"
    stops, reports, lowers = (
        replace(BEFORE, config={**BEFORE.config, falls: action}) for action in ("stop", "report", "lower_rate")
    )
    for before, now in ((BEFORE, stops), (BEFORE, lowers), (stops, reports)):
        assert decisive_changes(before, now) == [] and before.identity == now.identity
        assert len(free_changes(before, now)) == 1
    for before, now in ((stops, lowers), (lowers, reports)):
        was, will = before.config[falls], now.config[falls]
        assert decisive_changes(before, now) == [f"config {falls} {was} -> {will}"] and free_changes(before, now) == []
    other = replace(BEFORE, config={**BEFORE.config, "health.on_problem.KL_runaway": "lower_rate"})
    assert decisive_changes(BEFORE, other) == ["config health.on_problem.KL_runaway none -> lower_rate"]
