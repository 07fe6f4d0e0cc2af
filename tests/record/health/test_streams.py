"""Whole runs as users have them, slow and noisy: real ones are diagnosed rightly, healthy ones are left in peace."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.doctor.streams import MOVING, PAIRS, SCORES, SETTINGS, Stream, row_reports
from benchmarks.run_archive import ARCHIVES, read_archive
from whet.record.evaluations import evaluations_of
from whet.record.health.diagnosis import findings
from whet.record.health.finding import FindingSpan
from whet.record.health.story import Story, story_of
from whet.record.log import eval_records, step_reports
from whet.training.assembly.health import health_settings
from whet.training.config import resolved


class LookedAtStream(Stream):
    """A stream, and what the rules say of it."""

    def looks(self, seed: int, every: int = 1) -> list[tuple[FindingSpan, ...]]:
        """What is found after each step, the last one included."""
        reports, first, seen = self.reports(seed), {}, []
        for count in range(1, self.steps + 1):
            if count % every and count != self.steps:
                continue
            known = [record for record in self.evaluations() if record.step < count or count == self.steps]
            now = [
                found for found in findings(reports[:count], settings=self.settings, evals=known) if found.is_problem
            ]
            spans = (FindingSpan(found, first.setdefault(found.name, count), count, 1, True) for found in now)
            seen.append(tuple(spans))
        return seen

    def story(self, seed: int) -> Story:
        return story_of(self.looks(seed, self.steps)[-1], evaluations_of(self.evaluations(), ("accuracy",)))


def raised(looks: Sequence[Sequence[FindingSpan]]) -> list[str]:
    """Settings that any look advised to raise."""
    return [advice.setting for look in looks for span in look for advice in span.finding.advice if advice.direction > 0]


MBPP = LookedAtStream(((1, 0.27), (40, 0.40)), 40, ((0, 0.29), (40, 0.385)), metrics=MOVING)
HARMED = {
    "truncated": ((1, 0.10), (50, 0.30)),
    "metrics": {"entropy": ((1, 0.27), (50, 0.15)), "uniform_groups": ((1, 0.4), (50, 0.4))},
    "eval_size": 500,
}
GSM8K = LookedAtStream(((1, 0.18), (25, 0.30), (50, 0.21)), 50, ((0, 0.284), (50, 0.216)), **HARMED)
LOOKED_AT = LookedAtStream(((1, 0.18), (25, 0.30), (50, 0.21)), 50, ((0, 0.284), (25, 0.27), (50, 0.216)), **HARMED)
SLOW = LookedAtStream(
    ((1, 0.2), (200, 0.5)), 200, [(step, 0.2 + 0.3 * step / 200) for step in range(0, 201, 25)], metrics=MOVING
)


def test_real_runs_are_told_by_their_own_metrics() -> None:
    """The runs that README shows, MBPP and GSM8K on 0.5B: what they logged, not a stream of their shape."""
    for record in read_archive(ARCHIVES / "real_run.jsonl.xz"):
        reports = step_reports([{**line, "health": []} for line in record["lines"] if "eval" not in line])
        evals = eval_records([line for line in record["lines"] if "eval" in line])
        found = [each for each in findings(reports, record["facts"]["dtype"], evals=evals) if each.is_problem]
        assert not found, (record["name"], found)
        story = story_of((), evaluations_of(evals, ("accuracy",)))
        assert story.state == "well" and story.headline.startswith("Accuracy rose"), story.headline


def test_a_real_run_that_fell_is_told_to_lower_its_rate() -> None:
    """200 steps of 0.5B at three times the default rate: docs/defaults.md quotes the advice."""
    archive = read_archive(ARCHIVES / "defaults_longer.jsonl.xz")
    record = next(each for each in archive if each["tags"]["other"] == "200 steps")
    reports = step_reports([{**line, "health": []} for line in record["lines"] if "eval" not in line])
    evals = eval_records([line for line in record["lines"] if "eval" in line])
    known = {key: value for key, value in record["settings"].items() if key != "model"}
    settings = health_settings(resolved(record["method"], known))
    found = findings(reports, record["facts"]["dtype"], settings, evals=evals)
    fallen = next(each for each in found if each.name == "evaluation falls")
    assert "optimizer.learning_rate=9e-07" in fallen.changes, fallen.changes
    assert not any(change.startswith("optimizer.learning_rate") and "9e-07" not in change for change in fallen.changes)


def test_a_real_run_that_rises_is_told_as_one() -> None:
    for seed in range(5):
        assert not any(MBPP.looks(seed)), seed
        story = MBPP.story(seed)
        assert story.state == "well" and "rose from 29.0%" in story.headline and "38.5%" in story.headline


def test_a_real_run_whose_rate_is_too_high_is_told_to_lower_it() -> None:
    for stream in (GSM8K, LOOKED_AT):
        for seed in range(5):
            looks, story = stream.looks(seed, 5), stream.story(seed)
            assert story.state == "problem" and "optimizer.learning_rate=1.5e-06" in story.cause.finding.changes, story
            assert not {"optimizer.learning_rate", "sampling.max_new_tokens"} & set(raised(looks)), seed
    assert "Evaluation fell" in GSM8K.story(0).headline and "ran out of tokens" in " ".join(GSM8K.story(0).evidence)


def test_slow_healthy_runs_are_left_in_peace_at_every_look() -> None:
    alarmed = {seed: [span.finding.name for look in SLOW.looks(seed, 4) for span in look] for seed in range(6)}
    assert not any(alarmed.values()), alarmed


def test_a_plateau_is_told_and_what_rose_and_fell_is_not_taken_for_it() -> None:
    evals = [(step, 0.3) for step in range(0, 201, 25)]
    plateau = LookedAtStream(((1, 0.3), (200, 0.3)), 200, evals, metrics=MOVING).story(0)
    assert plateau.cause.finding.name == "flat reward"
    assert all("learning_rate" not in change for change in plateau.cause.finding.changes)  # the policy moves
    fell = LookedAtStream(
        ((1, 0.1), (60, 0.8), (100, 0.5)), 100, ((0, 0.1), (50, 0.9), (100, 0.6)), metrics=MOVING
    ).story(0)
    assert fell.cause.finding.name == "evaluation falls" and "90.0%" in fell.headline


def test_slow_runs_on_rows_are_left_in_peace_too() -> None:
    kinds = {
        "sft": {"loss": ((1, 1.4), (60, 1.1), (200, 1.05))},
        "sft at its plateau": {"loss": ((1, 1.0), (200, 1.0))},
        "dpo": PAIRS,
        "reward model": SCORES,
    }
    alarmed = {
        (kind, seed, count): finding.name
        for kind, courses in kinds.items()
        for seed in range(4)
        for count in range(8, 201, 8)
        for finding in findings(row_reports(seed, **courses)[:count], settings=SETTINGS)
        if finding.is_problem
    }
    assert not alarmed, alarmed
