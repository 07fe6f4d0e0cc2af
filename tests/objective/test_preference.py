"""Preference components, metrics and tables on numbers that fit on a napkin."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.for_every import for_every
from tests.support.real_data import data_rows
from whet.objective.axes import (
    PREFERENCE,
    description,
    differences,
    preset_named,
    title,
    with_changes,
)
from whet.objective.preference.batch import PairBatch, PairExtras, PairTotals, pair_totals
from whet.objective.presets.preference import LEFT_OUT, PAIR_PRESETS
from whet.pages.methods import axes_table, component_table, explanation, markdown_page, overview
from whet.record.metrics.distribution import length_correlation
from whet.types import WhetError

METHODS = {name: preset.objective for name, preset in PAIR_PRESETS.items()}


def pairs(chosen, rejected, ref=(0.0, 0.0), lengths=(2, 4)):
    """One pair as a batch and its logp."""
    batch = PairBatch(torch.tensor([lengths]), torch.tensor([ref], dtype=torch.float64))
    return batch, torch.tensor([[chosen, rejected]], dtype=torch.float64)


def value(name, *arguments, changes=None, **given):
    batch, logp = pairs(*arguments, **given)
    return float(with_changes(METHODS[name], changes or {}).loss(batch, logp, pair_totals(batch)).value)


def test_losses_by_hand():
    # d_w = -1 + 3 = 2, d_l = -4 + 2 = -2, so m = 4; q_w = -0.5, q_l = -1
    given = (-1.0, -4.0, (-3.0, -2.0))
    assert value("dpo", *given) == pytest.approx(math.log1p(math.exp(-0.4)))
    assert value("ipo", *given) == pytest.approx((4 - 5) ** 2)
    assert value("ipo_mean", *given) == pytest.approx((1 + 0.5 - 5) ** 2)
    assert value("hinge", *given) == pytest.approx(0.6)
    assert value("slic", *given) == pytest.approx(0.1)  # 3 apart: only the imitation is left
    assert value("simpo", *given) == pytest.approx(math.log1p(math.exp(0.0)))  # 2 * 0.5 - 1 = 0
    assert value("sppo", *given) == pytest.approx((2 - 500) ** 2 + (-2 + 500) ** 2)
    assert value("dpo_shift", *given) == pytest.approx(math.log1p(math.exp(-0.01 * (2 + 0.95 * 2))))
    assert value("cpo", *given) == pytest.approx(math.log1p(math.exp(-0.3)) + 1)
    assert value("rpo", *given) == pytest.approx(math.log1p(math.exp(-0.5 * 4)) + 0.2 * 0.5)


def test_both_sides_of_a_pair_are_pulled_with_the_same_weight():
    batch, logp = pairs(-1.0, -4.0, (-3.0, -2.0))
    grad, _ = METHODS["dpo"].grad(batch, logp, pair_totals(batch))
    weight = 0.1 / (1 + math.exp(0.4))
    assert grad.tolist() == [[pytest.approx(-weight), pytest.approx(weight)]]


def test_a_larger_beta_ties_tighter():
    """The margin at which a smoothed label is satisfied is logit(1 - e) / beta."""
    for beta in (0.1, 0.5):
        margin = math.log(9) / beta
        batch, logp = pairs(margin, 0.0)
        method = with_changes(METHODS["cdpo"], {"curve.beta": beta})
        grad, _ = method.grad(batch, logp, pair_totals(batch))
        assert abs(float(grad[0, 0])) < 1e-12
        assert float(method.grad(batch, logp - torch.tensor([[0.5, 0.0]]), pair_totals(batch))[0][0, 0]) < -1e-4


def test_unflipped_is_the_clean_loss_on_average():
    given = (-1.0, -4.0, (-3.0, -2.0))
    swapped = (-4.0, -1.0, (-2.0, -3.0))
    average = 0.9 * value("robust_dpo", *given) + 0.1 * value("robust_dpo", *swapped)
    assert average == pytest.approx(value("dpo", *given))


def test_a_blend_pushes_a_margin_of_zero_the_wrong_way():
    batch, logp = pairs(0.0, 0.0)
    grad, _ = METHODS["discopop"].grad(batch, logp, pair_totals(batch))
    assert float(grad[0, 0]) > 0


def test_shift_moves_over_the_run():
    method = with_changes(METHODS["dpo_shift"], {"contrast.factor": 0.8, "contrast.final": 1.0})
    assert [method.tuned(progress).contrast.factor for progress in (0, 0.5, 1, 2)] == pytest.approx([0.8, 0.9, 1, 1])
    assert METHODS["dpo"].tuned(0.5) == METHODS["dpo"] and METHODS["dpo_shift"].tuned(0.7) == METHODS["dpo_shift"]


def test_a_completion_as_likely_as_its_distribution_has_weight_one():
    """Uniform over v tokens: log p = log SUM p^2 = -log v."""
    logp = torch.full((1, 2, 3), -math.log(8), dtype=torch.float64)
    action = torch.ones(1, 2, 3, dtype=torch.bool)
    batch = PairBatch(action.sum(-1), logp, action=action)
    plain = METHODS["dpo"].loss(batch, logp, pair_totals(batch)).value
    assert METHODS["wpo"].loss(batch, logp, pair_totals(batch), PairExtras(logp)).value == pytest.approx(plain)
    less = METHODS["wpo"].loss(batch, logp - 1.0, pair_totals(batch), PairExtras(logp)).value
    assert less == pytest.approx(plain * math.exp(-2))


def test_reference_rules_say_when():
    soft, hard = METHODS["tr_dpo"].reference, METHODS["tr_dpo_hard"].reference
    assert [soft.kept_after(step) for step in (511, 512, 1024)] == [1.0, 0.4, 0.4]
    assert [hard.kept_after(step) for step in (511, 512, 513)] == [1.0, 0.0, 1.0]


def test_metrics_by_hand():
    lengths = torch.tensor([[2, 4], [6, 3], [5, 0]])
    ref = torch.tensor([[-3.0, -2.0], [-5.0, -6.0], [0.0, 0.0]])
    logp = torch.tensor([[-1.0, -4.0], [-6.0, -3.0], [-9.0, -9.0]])
    batch = PairBatch(lengths, ref)
    assert pair_totals(batch) == PairTotals(2, 2, 2, 8, 7)
    found = METHODS["dpo"].loss(batch, logp, pair_totals(batch)).metrics
    expected = {
        "chosen_logp": -3.5,
        "rejected_logp": -3.5,
        "chosen_mean_logp": (-0.5 - 1) / 2,
        "rejected_mean_logp": -1.0,
        "chosen_ratio": (2 - 1) / 2,
        "rejected_ratio": (-2 + 3) / 2,
        "chosen_reward": 0.05,
        "rejected_reward": 0.05,
        "chosen_length": 4.0,
        "rejected_length": 3.5,
        "drift": (2 + 2 + 1 + 3) / 4,
        "margin": (0.4 - 0.4) / 2,
        "margin_square": 0.16,
        "accuracy": 0.5,
        "longer": (-2 + 3) / 2,
        "longer_square": 6.5,
        "longer_margin": (-2 * 0.4 + 3 * -0.4) / 2,
        "chosen_is_longer": 0.5,
        "alike": 0.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert set(found) == {*expected, "loss"}
    assert length_correlation(found) == pytest.approx(-1.0, abs=1e-6)


def test_length_correlation_is_pearsons():
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 50, (40, 2), generator=draw)
    logp = -torch.rand(40, 2, generator=draw, dtype=torch.float64) * lengths
    batch = PairBatch(lengths, torch.zeros(40, 2, dtype=torch.float64))
    found = length_correlation(METHODS["dpo"].loss(batch, logp, pair_totals(batch)).metrics)
    both = torch.stack([(lengths[:, 0] - lengths[:, 1]).double(), logp[:, 0] - logp[:, 1]])
    assert found == pytest.approx(float(torch.corrcoef(both)[0, 1]), rel=1e-9) and found < -0.3
    same = replace(batch, lengths=torch.full((40, 2), 3))
    alike = METHODS["dpo"].loss(same, logp, pair_totals(same)).metrics
    assert length_correlation(alike) is None and alike["chosen_is_longer"] == 0
    assert length_correlation({"margin": 1.0}) is None


@for_every(
    [
        ("dpo", {"curvy": "hinge"}, "no axis is called 'curvy' .did you mean 'curve'"),
        ("dpo", {"curve": "logistics"}, "did you mean 'logistic'"),
        ("dpo", {"curve.bta": 1}, "logistic has no such number .did you mean 'beta'"),
        ("dpo", {"curve.beta": "high"}, "give a number"),
        ("dpo", {"curve.beta": 0}, "objective.curve.beta is 0; give a number above 0"),
        ("dpo", {"curve.smoothing": 0.5}, "give a share in"),
        ("dpo", {"anchor": "mismatched"}, "has no effect: logistic compares two completions"),
        ("kto", {"contrast": "shifted"}, "has no effect: prospect judges completions one by one"),
        ("simpo", {"reference": "reset"}, "has no effect: mean_logp does not look at a reference"),
        ("dpo_shift", {"contrast.factor": 1.2}, "give a share in"),
        ("rpo", {"imitate.coefficient": 0}, "imitate=none"),
        ("ld_dpo", {"score.tail": 2}, "give a share in"),
        ("dpop", {"contrast.penalty": 0}, "contrast=difference"),
        ("discopop", {"curve.temperature": 1}, "give a share in"),
        ("bco", {"anchor.decay": 2}, "give a share in"),
        ("pairwise_cringe", {"weigh.temperature": 0}, "above 0"),
        ("robust_dpo", {"curve.flipped": 0.5}, "give a share in"),
    ]
)
def test_what_has_no_effect_or_no_meaning_is_refused(method, changes, said):
    with pytest.raises(WhetError, match=said) as error:
        with_changes(METHODS[method], changes)
    assert "\n" not in str(error.value)


def test_columns_that_a_curve_does_not_look_at_are_refused():
    batch, logp = pairs(-1.0, -2.0)
    for name, method in (("preference", "ipo"), ("margin", "apo_zero"), ("preference", "robust_dpo")):
        with pytest.raises(WhetError, match=f"states a {name} for each pair"):
            METHODS[method].loss(replace(batch, **{name: torch.ones(1)}), logp, pair_totals(batch))


def test_what_a_method_needs_is_asked_for():
    batch, logp = pairs(-1.0, -2.0)
    totals = pair_totals(batch)
    for method, missing in (("ld_dpo", "of each token"), ("wpo", "log_square"), ("pairwise_cringe", "rival_logp")):
        with pytest.raises(ValueError, match=missing):
            METHODS[method].loss(batch, logp, totals)
    with pytest.raises(ValueError, match="no ref_logp"):
        METHODS["dpo"].loss(replace(batch, ref_logp=None), logp, totals)
    with pytest.raises(ValueError, match="needs pairs"):
        METHODS["dpo"].loss(replace(batch, label=torch.ones(1, 2)), logp, totals)
    with pytest.raises(ValueError, match="rows of 2 completions"):
        METHODS["dpo"].loss(batch, logp[:, :1], totals)
    assert METHODS["dpo"].needs() == {"pairs", "ref_logp"} and METHODS["simpo"].needs() == {"pairs"}
    assert METHODS["kto"].needs() == {"ref_logp", "mismatched_logp"}
    assert METHODS["pairwise_cringe"].needs() == {"pairs", "token_logp", "rival_logp"}


def test_names():
    with pytest.raises(WhetError, match="did you mean 'simpo'"):
        preset_named("sinpo")
    for name in LEFT_OUT:
        assert name not in PAIR_PRESETS
        with pytest.raises(WhetError, match="is not built"):
            preset_named(name)


def test_a_changed_method_says_so():
    method = with_changes(METHODS["dpo"], {"curve": "hinge", "curve.beta": 0.5, "imitate": "per_completion"})
    assert differences(method) == {"curve": "logistic -> hinge", "imitate": "none -> per_completion"}
    assert title(method) == "DPO*" and title(METHODS["dpo"]) == "DPO"
    said = "\n".join(description(method))
    assert "changed: curve logistic -> hinge" in said and "max(0, 1 - 0.5 (s_w - s_l)) - 1/n_w log pi(y_w)" in said


@for_every(METHODS)
def test_every_method_is_explained(name):
    said = explanation(name)
    preset = PAIR_PRESETS[name]
    assert all(each in said for each in (preset.title, preset.paper, preset.formula, preset.fixes, preset.breaks))
    assert "L = mean" in said and said.endswith(f"whet train {name}")
    assert differences(preset.objective) == {}
    assert (preset.unverified in said) and name in component_table("preference")
    assert preset.fixes in " ".join(overview("preference").split())


def test_the_page_holds_every_method_and_axis():
    page = markdown_page("preference")
    assert all(f"## {preset.title}" in page for preset in PAIR_PRESETS.values())
    assert all(axis.question in axes_table("preference") for axis in PREFERENCE.axes.values())


def test_real_pairs_have_both_lengths_and_a_score_of_sums_prefers_the_shorter():
    """One nat a word: what a policy without an opinion says about pairs that people have judged."""
    rows = data_rows("preference/human_pairs_unified")
    rows = [row for row in rows if isinstance(row["chosen"], str) and isinstance(row["rejected"], str)]
    lengths = torch.tensor([[len(row[side].split()) for side in ("chosen", "rejected")] for row in rows])
    batch, logp = PairBatch(lengths), -lengths.double()
    totals = pair_totals(batch)
    assert totals.pairs == int((lengths > 0).all(-1).sum()) > 4000
    assert totals.desirable_tokens == int(lengths[(lengths > 0).all(-1), 0].sum())
    summed = METHODS["cpo"].loss(batch, logp, totals).metrics
    assert length_correlation(summed) == pytest.approx(-1.0, abs=1e-9)
    assert summed["accuracy"] < 0.5 < summed["chosen_is_longer"] + 0.05
    assert METHODS["simpo"].loss(batch, logp, totals).metrics["accuracy"] == 0.5


def test_the_page_of_methods_is_current():

    page = Path(__file__).parents[2] / "docs" / "preference-methods.md"
    assert page.read_text() == markdown_page("preference"), "refresh it: python -m whet.pages.methods"
