"""Findings about a preference run: each appears for the run that has it, with its numbers, and for no healthy one."""

import math

import pytest
import torch

from tests.support.for_every import for_every
from whet.objective.axes import with_changes
from whet.objective.preference.batch import PairBatch, pair_totals
from whet.objective.presets.preference import PAIR_PRESETS
from whet.record.health.diagnosis import RULES
from whet.record.health.history import history_of
from whet.record.run_kinds import PREFERENCE
from whet.types import StepReport

STEPS = 12
ROWS = {name: preset.objective for name, preset in PAIR_PRESETS.items()}


def diagnosis(metrics, beta=None):
    """The texts of the kind's checks alone."""
    if not metrics:
        return []
    steps = [StepReport(number, number - 1, {}, {}, values) for number, values in enumerate(metrics, 1)]
    usual = {"objective.score": "log_ratio", "objective.curve": "logistic", "objective.curve.beta": beta}
    history = history_of(steps, settings={} if beta is None else usual)
    rules = [rule for rule in RULES.values() if PREFERENCE in rule.kinds]
    return [finding.text for rule in rules if (finding := rule.find(history)) is not None]


def healthy(step):
    """A step of a run that goes well: the chosen completion rises, the rejected sinks, accuracy climbs."""
    share = step / (STEPS - 1)
    return {
        "loss": 0.69 - 0.3 * share,
        "chosen_logp": -50.0 + 4 * share,
        "rejected_logp": -52.0 - 4 * share,
        "chosen_mean_logp": -1.0 + 0.08 * share,
        "rejected_mean_logp": -1.1 - 0.08 * share,
        "chosen_length": 50.0,
        "rejected_length": 48.0,
        "drift": 4 * share,
        "margin": 0.8 * share,
        "margin_square": (0.8 * share) ** 2 + 0.1,
        "longer": 2.0,
        "longer_square": 104.0,
        "longer_margin": 1.6 * share + 0.3,
        "accuracy": 0.5 + 0.25 * share,
        "chosen_is_longer": 0.55,
        "alike": 0.0,
    }


def run_with(times=1, **changes):
    """The healthy run with some metrics replaced; a function is asked for each step's share of the run.

    Each step comes so many `times`.
    """
    history = []
    for place in range(times * STEPS):
        step = place // times
        share = step / (STEPS - 1)
        told = {name: each(share) if callable(each) else each for name, each in changes.items()}
        history.append({**healthy(step), **told})
    return history


def test_a_healthy_run_has_no_findings():
    assert diagnosis(run_with()) == [] and diagnosis(run_with(), 0.1) == []
    assert diagnosis([]) == [] and diagnosis([{}] * STEPS) == []


FINDINGS = {
    "likelihood displacement": (
        {"chosen_logp": lambda x: -50 - 80 * x, "rejected_logp": lambda x: -52 - 60 * x},
        ["-57.27", "-122.7", "-57.45", "-106.5"],
    ),
    "The margin goes from": (
        {"chosen_mean_logp": lambda x: -1 - 2 * x},
        ["-1.18", "-2.82", "0.0727", "0.727"],
    ),
    "reference mismatch": ({"drift": 5.0}, ["5 nats", "another model"]),
    "no reference is being subtracted": ({"drift": 51.0}, ["51"]),
    "not learning": ({"accuracy": 0.5, "margin": 0.0, "loss": math.log(2)}, ["0.50 -> 0.50", "0.6931"]),
    "too easy": ({"accuracy": 1.0}, ["step 2 of 12"]),
    "hardly different": ({"alike": 0.3}, ["30%"]),
    "longer in only 10%": ({"chosen_is_longer": 0.1, "longer": -30.0, "longer_square": 1000.0}, ["-30", "swapped"]),
    "longer in 90%": ({"chosen_is_longer": 0.9, "longer": 30.0, "longer_square": 1000.0}, ["30 tokens", "length"]),
    "not a number": ({"loss": lambda x: float("nan") if x > 0.5 else 0.6}, ["loss of step 12 is not a number"]),
}


@for_every(FINDINGS)
def test_a_finding_names_its_numbers(name):
    changes, numbers = FINDINGS[name]
    said = [each for each in diagnosis(run_with(4 if name == "not learning" else 1, **changes)) if name in each]
    assert len(said) == 1 and all(number in said[0] for number in numbers), said
    assert "\n" not in said[0]


def test_a_loss_that_does_not_fall_is_named_with_what_is_ruled_out():
    """Accuracy may be high from the start: what the run should change is the margin and the loss."""
    stuck = {"accuracy": 0.8, "margin": 0.4, "loss": 0.55, "drift": lambda x: 0.1 * x}
    (said,) = diagnosis(run_with(4, **stuck))
    assert said.startswith("not learning: accuracy 0.80 -> 0.80, margin 0.4 -> 0.4, loss 0.55 -> 0.55")
    assert (
        "not the cause: the reference (|log pi/ref| 0 at the first step) and completions that are alike (0% of" in said
    )
    assert diagnosis(run_with(4, **{**stuck, "loss": lambda x: 0.55 - 0.1 * x})) == []
    foreign = diagnosis(run_with(4, **{**stuck, "drift": 5.0, "alike": 0.3}))
    (said,) = [each for each in foreign if each.startswith("not learning")]
    assert "not the cause" not in said


def test_labelled_completions_have_a_gap_instead_of_a_margin():
    def labelled(gap):
        keys = ("loss", "chosen_logp", "rejected_logp", "chosen_length", "rejected_length", "drift")
        history = [{name: healthy(step)[name] for name in keys} for step in range(STEPS)]
        return [
            {
                **each,
                "loss": 0.5 - gap(step / (STEPS - 1)),
                "chosen_reward": gap(step / (STEPS - 1)),
                "rejected_reward": 0.0,
            }
            for step, each in enumerate(history)
            for _ in range(4)
        ]

    assert diagnosis(labelled(lambda share: 0.2 * share)) == []
    (said,) = diagnosis(labelled(lambda share: 0.0))
    assert said.startswith("not learning: margin 0 -> 0, loss 0.5 -> 0.5")


def test_displacement_is_told_apart_from_a_sinking_rejected_completion():
    sinking = diagnosis(run_with(rejected_logp=lambda x: -52 - 200 * x))
    assert sinking == []


def test_swapped_pairs_need_both_signs():
    for changes in ({"chosen_is_longer": 0.1}, {"longer": -2.0}):
        assert not any(text.startswith("chosen is shorter") for text in diagnosis(run_with(**changes)))


def test_too_little_history_has_no_trends():
    falling = {"chosen_logp": lambda x: -50 - 100 * x, "rejected_logp": lambda x: -52 - 200 * x}
    assert diagnosis(run_with(**falling)[:3]) == []
    assert diagnosis(run_with(**falling)) != []


@pytest.mark.parametrize(("beta", "words"), [(0.001, "below 0.01"), (2.0, "above 1")])
def test_beta_out_of_range_is_named(beta, words):
    (text,) = diagnosis(run_with(), beta)
    assert text.startswith("beta out of range: ") and words in text
    assert f"{beta:g}" in text and "log 2 = 0.6931" in text
    assert diagnosis(run_with(), 0.01) == [] == diagnosis(run_with(), 1.0)


def descended(name, steps=60, rate=12.0, **changes):
    """Six prompts with a softmax over three completions, chosen, rejected and one nobody judged, moved by the grad.

    Chosen and rejected share their features, the rejected completion has more of them: what pushes it down pulls both.
    """
    objective = with_changes(ROWS[name], changes)
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3, generator=draw, dtype=torch.float64).requires_grad_()
    features = torch.tensor([[1.0, 1.3, 0.0], [1.3, 2.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    batch, history = PairBatch(torch.full((6, 2), 4), logits.detach().log_softmax(-1)[:, :2]), []
    for _ in range(steps):
        loss = objective.loss(batch, logits.log_softmax(-1)[:, :2], pair_totals(batch))
        history.append(loss.metrics)
        (grad,) = torch.autograd.grad(loss.value, logits)
        with torch.no_grad():
            logits -= rate * grad @ features
    return history, objective


def test_a_run_that_displaces_is_found_and_imitation_fixes_it():
    history, _ = descended("dpo", **{"curve.beta": 1.0})
    assert history[0]["drift"] == 0 and history[0]["accuracy"] == 0.5
    assert history[-1]["accuracy"] == 1.0 and history[-1]["chosen_logp"] < history[0]["chosen_logp"] - 1
    said = diagnosis(history)
    assert any(each.startswith("likelihood displacement") for each in said)
    assert not any("mismatch" in each for each in said)
    fixed, _ = descended("rpo_iterative", **{"curve.beta": 1.0})
    assert fixed[-1]["chosen_logp"] > fixed[0]["chosen_logp"] and fixed[-1]["margin"] > 0.5
    assert not any("displacement" in each for each in diagnosis(fixed))
