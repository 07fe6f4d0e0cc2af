"""Each check fires on its illness, and stays silent on the runs that only look ill."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from whet.record.health.diagnosis import RULES, diagnosis, finding_spans, findings
from whet.record.health.history import history_of
from whet.record.log import EvalRecord
from whet.types import StepReport


def history(
    num_steps: int,
    reward: object = 0.4,
    counts: dict[str, int] | None = None,
    **metrics: object,
) -> list[StepReport]:
    """A run; each argument is a constant or a function of the step."""

    def at(value: object, step: int) -> float:
        return value(step) if callable(value) else value  # type: ignore[return-value]

    return [
        StepReport(
            step,
            step - 1,
            {"samples": 100, "tokens": 2000, "truncated": 0, "unscorable": 0, **(counts or {})},
            {"total": at(reward, step), "accuracy": at(reward, step)},
            {name: at(value, step) for name, value in metrics.items()},
        )
        for step in range(1, num_steps + 1)
    ]


def names(steps: list[StepReport], dtype: str = "float32") -> set[str]:
    return {finding.name for finding in findings(steps, dtype) if finding.is_problem}


def notes(steps: list[StepReport]) -> list[str]:
    """What may look wrong at the last step and is normal."""
    return [finding.text for finding in findings(steps) if not finding.is_problem]


def recorded(steps: list[StepReport]) -> list[StepReport]:
    """The steps as a run records them, each with the problems visible then."""
    return [replace(step, health=diagnosis(steps[:place])) for place, step in enumerate(steps, 1)]


def rising(step: int) -> float:
    return min(1.0, 0.02 * step)


def test_nothing_is_found_without_steps_nor_in_a_run_that_learns() -> None:
    assert diagnosis([]) == () and notes([]) == []
    steps = history(
        40,
        rising,
        loss=0.3,
        entropy=lambda step: 2 * math.exp(-step / 5),
        kl=lambda step: 0.01 * step,
        gradient_norm=lambda step: 1 + 0.3 * (step % 3),
        sampler_gap=1e-6,
        uniform_groups=lambda step: min(1.0, step / 30),
    )
    for length in range(1, 41):
        assert diagnosis(steps[:length]) == ()


def test_all_wrong_asks_for_easier_data() -> None:
    steps = history(5, lambda step: 0.1 if step == 1 else 0.0, uniform_groups=1.0)
    (sentence,) = diagnosis(steps)
    assert "every completion is wrong" in sentence and "easier data" in sentence and "group_size" in sentence
    assert names(steps[:4]) == set()


def test_a_reward_that_never_differed_is_told_as_one() -> None:
    (never,), (always,) = (diagnosis(history(5, value, uniform_groups=1.0)) for value in (0.0, 0.5))
    assert "since step 1" in never and "the reward never pays" in never and "whet reward test" in never
    assert "does not depend on the completion" in always and "easier data" not in always
    steps, evaluated = history(5, 1.0, uniform_groups=1.0), [EvalRecord(0, "eval", {"accuracy": 0.4}, 1.0, 200)]
    assert diagnosis(steps) == () and "does not depend" in diagnosis(steps, evals=evaluated)[0]


def test_all_right_is_a_note_that_asks_for_harder_data() -> None:
    steps = history(30, 1.0, uniform_groups=1.0)
    assert diagnosis(steps) == ()
    assert any("harder data" in note for note in notes(steps))


def test_solved_is_seen_without_an_accuracy_part() -> None:
    solved = [
        StepReport(
            step,
            step,
            {"samples": 8},
            {"total": 1.2, "format": 1.0, "boxed": 1.0, "cost": 0.0},
            {"uniform_groups": 1.0},
        )
        for step in range(1, 31)
    ]
    assert diagnosis(solved) == ()
    assert any("cost" in note for note in notes(solved))


def test_unbounded_scores_never_count_as_solved() -> None:
    steps = [
        StepReport(step, step, {"samples": 8}, {"total": 3.7, "judge": 3.7}, {"uniform_groups": 1.0})
        for step in range(1, 31)
    ]
    assert names(steps) == {"no reward signal"}


def test_rising_accuracy_silences_uniform_groups() -> None:
    assert names(history(12, lambda step: 0.3 + 0.02 * step, uniform_groups=1.0)) == set()
    assert names(history(12, 0.5, uniform_groups=1.0)) == {"no reward signal"}


def test_a_policy_that_broke_is_not_told_to_look_for_easier_data() -> None:
    """A rate that destroys it in one step leaves nothing but zeros, as a task that is too hard does."""
    settings = {"optimizer.learning_rate": 0.03, "batch.group_size": 8}

    def said(first: float) -> str:
        steps = history(8, lambda step: first if step == 1 else 0.0, uniform_groups=1.0)
        (found,) = findings(steps, settings=settings)
        return f"{found.cause}; {found.remedy}"

    assert "updates were too large" in said(0.4) and "lower optimizer.learning_rate from 0.03" in said(0.4)
    assert "easier data" not in said(0.4)
    for rare in (0.0, 0.06):  # an answer that was right by accident
        assert "easier data" in said(rare) and "learning_rate" not in said(rare)


def test_a_policy_that_broke_is_sent_back_to_the_model_that_evaluated_best() -> None:
    """`best/` is the best of what was trained: where the start was better, it may be as broken as the last."""
    steps = history(8, lambda step: 0.4 if step == 1 else 0.0, uniform_groups=1.0)

    ruined = history(30, lambda step: 0.4 if step == 1 else 0.1)

    def said(*accuracies: float) -> list[str]:
        evals = [EvalRecord(3 * look, "eval", {"accuracy": value}, 1.0) for look, value in enumerate(accuracies)]
        return [
            found.remedy.partition("begin again from ")[2]
            for name, run in (("no reward signal", steps), ("falling reward", ruined))
            for found in findings(run, evals=evals)
            if found.name == name
        ]

    assert said(0.1, 0.2, 0.0) == ["best/"] * 2
    for evals in ((0.2, 0.0, 0.0), (0.0, 0.0), ()):
        assert said(*evals) == ["the model it began with"] * 2


def test_steps_that_nothing_scored_are_not_blamed_on_the_data() -> None:
    assert names(history(12, math.nan, {"unscorable": 100}, uniform_groups=1.0)) == {"unscorable completions"}


def test_no_signal_is_not_reported_as_flat_too() -> None:
    assert names(history(30, 0.0, uniform_groups=1.0)) == {"no reward signal"}


def test_a_flat_reward_is_told_once_a_gain_would_have_shown() -> None:
    noise = random.Random(0)
    values = [0.3 + noise.gauss(0, 0.05) for _ in range(220)]
    steps = history(220, lambda step: values[step - 1])
    assert not any("flat reward" in names(steps[:length]) for length in range(1, 154, 3))
    assert sum("flat reward" in names(steps[:length]) for length in range(180, 221)) >= 30


def test_a_higher_rate_is_advised_only_where_nothing_speaks_against_it() -> None:
    def rates(num_steps: int = 50, reward: object = 0.3, evaluated: float = 0.4, **metrics: object) -> list[str]:
        evals = [EvalRecord(step, "eval", {"accuracy": 0.4 if step < 10 else evaluated}, 1.0, 200) for step in (0, 30)]
        steps = history(num_steps, reward, **{"kl": 1e-6, "entropy": 1.0, **metrics})
        advised = findings(steps, settings={"optimizer.learning_rate": 1e-6}, evals=evals)
        return [value for finding in advised for setting, value in finding.settings if "learning_rate" in setting]

    assert rates() == ["3e-06"]
    harmful = {
        "evaluation is lower": rates(evaluated=0.35),
        "the policy has moved": rates(kl=0.01),
        "its entropy is going": rates(entropy=lambda step: 1.0 - 0.01 * step),
        "the reward falls": rates(reward=lambda step: 0.3 - 0.004 * step),
        "evaluation fell": rates(evaluated=0.1),
    }
    assert all(float(value) < 1e-6 for values in harmful.values() for value in values), harmful
    assert harmful["evaluation fell"] == ["3e-07"]


def test_a_policy_that_the_first_update_broke_is_found_though_its_reward_falls_no_further() -> None:
    """Its greedy answers may be right as often as before, and no later step shows a trend."""
    noise = random.Random(0)
    values = [0.1 + noise.gauss(0, 0.06) for _ in range(30)]

    def broken(first: float, learns: float = 0.0) -> list[str]:
        steps = history(30, lambda step: first if step == 1 else values[step - 1] + learns * step)
        return [
            f"{found.evidence}; {found.remedy}"
            for found in findings(steps, settings={"optimizer.learning_rate": 0.003})
            if found.name == "falling reward"
        ]

    (found,) = broken(0.41)
    assert "from 0.410 in the first step to 0.1" in found and "lower optimizer.learning_rate from 0.003" in found
    assert not broken(0.22) and not broken(0.15) and not broken(0.41, learns=0.01)


def test_falling_reward_is_called_falling() -> None:
    (sentence,) = diagnosis(history(24, lambda step: 0.8 - 0.02 * step))
    assert "fell" in sentence and "lower optimizer.learning_rate" in sentence


def test_entropy() -> None:
    collapse = {"entropy": lambda step: 2.0 if step < 10 else 0.1}
    assert "entropy collapse" in names(history(30, **collapse))
    assert "entropy collapse" not in names(history(30, rising, **collapse))
    assert "entropy collapse" not in names(history(30, 1.0, **collapse))
    assert any("Entropy fell from 2.00" in note for note in notes(history(30, 1.0, **collapse)))
    assert "entropy explosion" in names(history(30, entropy=lambda step: 0.5 * step))
    assert names(history(15, entropy=2.0)) == set()


def test_kl_runaway() -> None:
    assert "KL runaway" in names(history(15, kl=lambda step: 0.05 if step < 12 else 3.0))
    assert "KL runaway" not in names(history(15, kl=lambda step: 0.01 * step))
    assert "KL runaway" in names(history(15, rising, kl=50.0))


def test_kl_that_no_reward_pays_for_is_the_learning_rate_s_fault() -> None:
    settings = {"optimizer.learning_rate": 0.003, "objective.kl.beta": 0.02}

    def advised(reward: object) -> list[str]:
        found = findings(history(15, reward, kl=50.0), settings=settings)
        return [name for finding in found if finding.name == "KL runaway" for name, _ in finding.settings]

    tie, slower = "objective.kl.beta", "optimizer.learning_rate"
    assert advised(rising) == [tie, slower]
    assert advised(0.4) == advised(lambda step: 0.4 if step == 1 else 0.0) == [slower, tie]


def test_gradient_spike_is_found_at_its_step_only_and_zero_norms_are_not_typical() -> None:
    def reward(step: int) -> float:
        return -5.0 if step == 12 else 0.4

    steps = history(15, reward, gradient_norm=lambda step: 20.0 if step == 12 else 1.0)
    assert names(steps[:12]) == {"gradient spike"}
    assert names(steps[:11]) == names(steps[:13]) == set()
    (span,) = finding_spans(recorded(steps))
    assert span.finding.name == "gradient spike"
    assert (span.first, span.last, span.num_steps, span.holds) == (12, 12, 1, False)
    assert names(history(12, gradient_norm=lambda step: 1.0 if step > 10 else 0.0)) == set()


def test_a_gradient_is_compared_with_those_of_twenty_steps() -> None:
    def spiked(before: int) -> bool:
        """With one as large so many steps before it."""
        steps = history(
            30, lambda step: -5.0 if step == 30 else 0.4,
            gradient_norm=lambda step: 20.0 if step in (30, 30 - before) else 1.0,
        )  # fmt: skip
        return "gradient spike" in names(steps)

    assert [spiked(20), spiked(21)] == [False, True]


def test_truncation_and_unscorable_shares() -> None:
    (truncated,) = diagnosis(history(6, counts={"truncated": 60}))
    assert "60.0%" in truncated and "max_new_tokens" in truncated
    assert names(history(6, counts={"truncated": 40})) == set()
    assert names(history(6, 1.0, counts={"truncated": 100})) == set()
    (episodes,) = diagnosis(
        history(10, counts={"truncated": 90, "turns": 200, "ended_by_turns": 60, "ended_by_length": 30})
    )
    assert "60.0%" in episodes and "env.max_turns" in episodes
    (unscorable,) = diagnosis(history(6, counts={"unscorable": 20}))
    assert "20.0%" in unscorable and "samples.jsonl" in unscorable


def test_completion_length() -> None:
    assert "length collapse" in names(history(14, completion_length=lambda step: 40.0 if step < 6 else 4.0))
    assert "length blow-up" in names(history(14, completion_length=lambda step: 40.0 if step < 6 else 400.0))
    assert names(history(14, rising, completion_length=lambda step: 40.0 if step < 6 else 4.0)) == set()
    assert names(history(14, completion_length=40.0)) == set()


@pytest.mark.parametrize(
    ("gap", "dtype", "fires"),
    [(2e-3, "float32", True), (5e-4, "float32", False), (2e-3, "torch.bfloat16", False), (0.06, "bf16", True)],
)
def test_sampler_gap_depends_on_the_dtype(gap: float, dtype: str, fires: bool) -> None:
    assert ("sampler gap" in names(history(2, sampler_gap=gap), dtype)) == fires


@pytest.mark.parametrize(
    ("metrics", "fires"),
    [
        ({"router_drift_layers": 0.1}, True),
        ({"router_drift_layers": 0.01}, False),
        ({"router_drift_layers": 0.1, "replayed_experts": 1.0}, False),
        ({"router_drift_layers": 0.1, "staleness": 0.02}, False),
    ],
)
def test_routers_that_drift_apart_unreplayed(metrics, fires):
    assert ("router drift" in names(history(2, **metrics))) == fires


def test_not_a_number() -> None:
    (sentence,) = diagnosis(history(1, loss=math.nan))
    assert sentence.startswith("not a number: loss of step 1 is not a number")


def test_a_surrogate_near_zero_is_called_normal() -> None:
    steps = history(5, surrogate=1e-4)
    assert diagnosis(steps) == ()
    assert any("surrogate objective is near 0" in note and "normal" in note for note in notes(steps))
    assert notes(history(5, surrogate=0.5)) == []


def test_findings_are_one_line_with_a_fix() -> None:
    for sentence in diagnosis(history(30, 0.0, {"truncated": 90}, uniform_groups=1.0, sampler_gap=1.0)):
        assert "\n" not in sentence and ": " in sentence and "; " in sentence and sentence.endswith(".")


def test_a_run_that_won_most_of_its_way_and_holds_is_left_in_peace():
    """A plateau near the top is what a finished run looks like, not a run that learns nothing."""
    course = [0.36, 0.44, 0.5, 0.75, 0.9] + [0.9, 0.94, 0.91, 0.95, 0.88, 0.93] * 5
    history = [steps_of(reward, number) for number, reward in enumerate(course, start=1)]
    assert diagnosis(history) == ()
    stuck = [steps_of(0.3 + 0.02 * (number % 2), number) for number in range(1, 160)]
    assert any("not risen" in finding for finding in diagnosis(stuck))


def steps_of(reward: float, number: int) -> StepReport:
    entropy = max(0.16 / number, 0.008)
    return StepReport(number, number - 1, {"samples": 8, "tokens": 200}, {"total": reward}, {"entropy": entropy})


def test_a_run_that_begins_near_its_top_is_told_so_and_not_alarmed():
    history = [steps_of(0.9 + 0.02 * (number % 2), number) for number in range(1, 31)]
    assert not any("not risen" in finding for finding in diagnosis(history))
    assert any("so near its top" in note for note in notes(history))


def with_parts(pairs: list[tuple[float, float]]) -> list[StepReport]:
    """(first part, total) by step; a second part makes up the difference."""
    return [
        StepReport(step, step - 1, {}, {"exact_answer": part, "short": total - part, "total": total}, {})
        for step, (part, total) in enumerate(pairs, 1)
    ]


def test_a_total_that_holds_while_its_first_part_falls_is_hacked() -> None:
    steps = with_parts([(0.9 - 0.05 * step, 1.0 + 0.01 * step) for step in range(16)])
    (text,) = [text for text in diagnosis(steps) if text.startswith("reward hacked: ")]
    assert "exact_answer fell from 0.82 to 0.22 while the total reward went from 1.02 to 1.14" in text
    assert "gate" in text and "reward hacked" not in names(steps[:11])


def test_honest_rewards_are_not_called_hacked() -> None:
    rising = with_parts([(0.2 + 0.04 * step, 0.3 + 0.05 * step) for step in range(16)])
    falling = with_parts([(0.9 - 0.05 * step, 1.0 - 0.05 * step) for step in range(16)])
    alone = [StepReport(n, n, {}, {"total": 1 - n / 20, "exact_answer": 1 - n / 20}, {}) for n in range(16)]
    for steps in (rising, falling, alone):
        assert "reward hacked" not in names(steps)


def disagreeing(values: list[float], rewards: list[float]) -> list[StepReport]:
    return [
        StepReport(number, number - 1, {}, {"total": reward, "learned": reward}, {"learned_disagreement": value})
        for number, (value, reward) in enumerate(zip(values, rewards, strict=True), 1)
    ]


def test_members_that_part_are_named_with_the_numbers() -> None:
    rewards = [float(step) for step in range(10)]
    (text,) = [text for text in diagnosis(disagreeing([0.1] * 5 + [0.3] * 5, rewards)) if "members" in text]
    assert "members of learned were 0.1 apart" in text and "0.3 apart now while it went from 1.00 to 8.00" in text
    for values in ([0.1] * 5 + [0.15] * 5, [0.01] * 5 + [0.03] * 5):
        assert "members part" not in names(disagreeing(values, rewards))
    assert "members part" not in names(disagreeing([0.1, 0.1, 0.1, 0.4, 0.4], rewards[:5]))


def test_a_run_hacked_in_the_middle_and_fine_at_the_end_still_shows_it() -> None:
    falling = [(0.9 - 0.05 * step, 1.0) for step in range(16)]
    steps = recorded(with_parts(falling + [(0.95, 1.5)] * 16))
    assert "reward hacked" not in names(steps)
    (span,) = [span for span in finding_spans(steps) if span.finding.name == "reward hacked"]
    assert span.first == 12 and 16 <= span.last < 32 and not span.holds
    assert "exact_answer fell" in span.finding.sentence


def test_findings_of_an_old_run_without_names_are_kept_apart_from_their_numbers() -> None:
    old = [StepReport(n, n, {}, {}, {}, (f"exact fell from 0.{n} to 0.1 while it held, see docs",)) for n in (1, 2)]
    (span,) = finding_spans(old)
    assert (span.first, span.last, span.num_steps) == (1, 2, 2) and "0.2 to 0.1" in span.finding.sentence


LEAPS = ((2, 4.0), (6, 4.0), (2, 2.5))  # the step from which the loss is no longer 1, and what it is then


def test_a_loss_that_rises_and_a_model_that_guesses_are_named_for_their_kinds() -> None:
    def steps(**metrics: object) -> list[StepReport]:
        values = {name: value if callable(value) else (lambda _, v=value: v) for name, value in metrics.items()}
        return [
            StepReport(n, n, {"rows": 32}, {}, {name: value(n) for name, value in values.items()}) for n in range(1, 61)
        ]

    assert names(steps(loss=lambda n: 0.1 * n)) == {"loss rises"}
    assert names(steps(loss=lambda n: 3 - 0.1 * n)) == set()
    broken, late, harder = (steps(loss=lambda n, at=at, to=to: 1.0 if n < at else to) for at, to in LEAPS)
    assert [names(broken[:length]) for length in (7, 8, 12)] == [set(), {"loss rises"}, {"loss rises"}]
    assert names(late[:9]) == names(harder[:9]) == set()
    assert names(steps(loss=0.7, score=0.0, accuracy=0.5)) == {"guessing"}
    assert names(steps(loss=0.7, score=0.0, accuracy=0.8)) == set()


def test_a_stricter_check_is_no_member() -> None:
    steps = [
        StepReport(step, step, {"samples": 8}, {"total": 0.5}, {"held_out_disagreement": 0.02 if step < 5 else 0.9})
        for step in range(1, 16)
    ]
    assert "members part" not in names(steps)


def test_a_remark_behind_the_precision_does_not_widen_the_gap() -> None:
    steps = [StepReport(step, step, {"samples": 8}, {"total": 0.5}, {"sampler_gap": 0.01}) for step in range(1, 16)]
    remark = "float32 (on a CPU bf16 matrix products can be 200 times slower)"
    assert "sampler gap" in {each.name for each in findings(steps, remark)}
    assert "sampler gap" not in {each.name for each in findings(steps, "bfloat16")}


def test_a_trend_that_passes_is_noise_and_one_that_stays_is_told() -> None:
    rule = RULES["falling reward"]

    def told(length: int) -> bool:
        return rule.find(history_of(history(length, lambda step: 0.6 if step < 30 else 0.3))) is not None

    first = next(length for length in range(20, 60) if told(length))
    spoken = [
        length
        for length in range(20, 60)
        if "falling reward" in names(history(length, lambda step: 0.6 if step < 30 else 0.3))
    ]
    assert spoken[0] == first + rule.lasting  # it had held in the four steps before


def test_a_spike_of_a_solved_run_is_left_alone() -> None:
    def spiked(reward: float) -> set[str]:
        steps = history(30, reward, gradient_norm=lambda step: 9.0 if step == 30 else 0.1)
        return names([*steps[:-1], replace(steps[-1], reward={**steps[-1].reward, "total": -5.0})])

    assert "gradient spike" in spiked(0.4) and "gradient spike" not in spiked(1.0)
