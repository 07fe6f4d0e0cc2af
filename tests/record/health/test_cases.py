"""Each rule speaks about its run, at the step it says, and not about runs in which the same numbers are normal."""

from __future__ import annotations

from dataclasses import replace

from tests.support.for_every import for_every
from tests.support.health_cases import CASES, UNPAID, Course, after, pairs
from whet.record.health.diagnosis import RULES, findings
from whet.record.health.finding import HealthFinding
from whet.record.health.history import history_of


def found(name: str, course: Course, num_steps: int | None = None) -> HealthFinding | None:
    steps = course.reports(course.steps if num_steps is None else num_steps)
    return RULES[name].find(history_of(steps, settings=course.settings, evals=course.evaluations()))


def test_every_rule_has_its_run() -> None:
    assert set(CASES) == set(RULES)


@for_every(CASES)
def test_it_speaks_about_its_run_with_evidence_cause_and_remedy(name: str) -> None:
    finding = found(name, CASES[name].ill)
    assert finding is not None and finding.name == name and finding.is_problem != RULES[name].is_note
    assert finding.evidence and finding.cause and "\n" not in finding.text and "None" not in finding.text
    assert bool(finding.remedy) == finding.is_problem and finding.normal_when


def test_a_part_that_is_only_measured_cannot_be_made_to_count_the_policy_is_tied_tighter() -> None:
    """No gate and no weight helps where the reward stands for something that is not known in earnest."""
    parts = CASES["reward hacked"].ill
    paid, unpaid = (found("reward hacked", replace(parts, settings=settings)) for settings in ({}, UNPAID))
    assert paid is not None and "gate" in paid.remedy
    assert unpaid is not None and unpaid.settings == (("objective.kl.beta", "1"),) and "gate" not in unpaid.remedy


WELL = [(name, why) for name, case in CASES.items() for why in case.well]


@for_every(WELL)
def test_it_is_silent_where_the_same_numbers_are_normal(name: str, why: str) -> None:
    course = CASES[name].well[why]
    for num_steps in range(1, course.steps + 1):
        finding = found(name, course, num_steps)
        assert finding is None or not (finding.is_problem or RULES[name].is_note), (why, num_steps, finding)


@for_every(CASES)
def test_it_speaks_no_earlier_than_it_says_and_can_do_so_then(name: str) -> None:
    spoke = [step for step in range(1, CASES[name].ill.steps + 1) if found(name, CASES[name].ill, step) is not None]
    rule = RULES[name]
    assert spoke[: rule.lasting + 1] == list(range(spoke[0], spoke[0] + rule.lasting + 1))
    assert spoke[rule.lasting] == rule.earliest


# what is only counted where it happens; a run that could have counted it is known by something else
COUNTED = ("failing rewards", "malformed calls", "failing tools", "failing environment", "episodes cut off")
COUNTED += ("slow environment",)


@for_every([name for name, rule in RULES.items() if rule.reads])
def test_without_what_it_reads_it_is_silent(name: str) -> None:
    course = CASES[name].ill
    for quantity in RULES[name].reads:
        part, _, key = quantity.partition(".")
        steps = course.reports(course.steps)
        assert not RULES[name].missing(steps[-1])
        blind = [
            replace(step, **{part: {each: value for each, value in getattr(step, part).items() if not _is(each, key)}})
            for step in steps
        ]
        assert quantity in RULES[name].missing(blind[-1])
        if name not in COUNTED:
            assert RULES[name].find(history_of(blind, settings=course.settings)) is None


def _is(each: str, key: str) -> bool:
    return not key or each == key or (key.startswith("*") and each.endswith(key[1:]))


def test_a_run_is_asked_about_its_kind_alone() -> None:
    for name, case in CASES.items():
        steps = case.ill.reports(case.ill.steps)
        names = {each.name for each in findings(steps, settings=case.ill.settings, evals=case.ill.evaluations())}
        hidden = {"flat reward"} if "no reward signal" in names else set()
        assert name in names | hidden, (name, names)


def names(course: Course) -> set[str]:
    steps = course.reports(course.steps)
    found = findings(steps, settings=course.settings, evals=course.evaluations())
    return {each.name for each in found if each.is_problem}


def test_a_dip_of_a_run_that_won_is_no_fall_and_a_lost_half_is() -> None:
    def course(low: float) -> Course:
        return Course(
            {"total": lambda step: 0.2 + 0.05 * step if step < 15 else (0.95 if step < 26 else low)}, steps=38
        )

    assert names(course(0.82)) == set() and "falling reward" in names(course(0.4))


def test_a_kl_that_leaps_is_told_long_before_it_is_large() -> None:
    for kl, ill in ((1.5, True), (9.0, True), (0.9, False)):
        assert ("KL runaway" in names(Course(metrics={"kl": after(28, 0.1, kl)}))) == ill, kl


def test_completions_near_their_limit_are_long_whatever_they_were() -> None:
    def course(limit: int) -> Course:
        metrics = {"reward_length_correlation": 0.8}
        return Course(
            metrics=metrics, counts={"tokens": after(6, 2000, 3600)}, settings={"sampling.max_new_tokens": limit}
        )

    assert "reward follows length" in names(course(39)) and "reward follows length" not in names(course(100))


def test_a_critic_that_forgot_and_one_that_never_learned() -> None:
    for explains, ill in ((after(15, 0.5, -0.2), True), (0.02, True), (0.2, False), (after(15, 0.5, 0.02), False)):
        assert ("critic misfit" in names(Course(metrics={"critic_explains": explains}))) == ill


def test_lengths_of_pairs_that_hardly_differ_are_no_bias() -> None:
    assert "chosen is longer" not in names(pairs(chosen_is_longer=0.9, longer=2.0))
    assert "chosen is shorter" not in names(pairs(chosen_is_longer=0.1, longer=-2.0))
