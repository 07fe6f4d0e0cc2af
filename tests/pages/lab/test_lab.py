"""The lab's tables against formulas written here by hand."""

import json
import math
import random
from dataclasses import replace

import pytest
import torch

from whet.objective import AXES, PAIR_PRESETS, PRESETS
from whet.objective.clip import PPOClip
from whet.pages.lab import bandit, groups, kl_estimates, lookahead, preferences, ratio_noise, shares
from whet.pages.lab.experiment import Experiment, LabChart, LabTable, Selector, Slider, applies, chart_spec, line
from whet.pages.lab.page import experiment_named, experiments, packed, static_page, unpacked, written_tables
from whet.pages.lab.rare_token import TOKENS, lifted
from whet.types import WhetError


def drawn(name, chart=0, **given):
    """The series of a chart by their names, for these settings and the defaults."""
    experiment = experiment_named(name)
    table = experiment.table(experiment.settings(given)).record()
    assert not table["refused"], table["refused"]
    return {each["name"]: each for each in table["charts"][chart]["spec"]["series"]}


def at(series, x):
    """The value of a series at a place, or between two."""
    for low, high, left, right in zip(series["x"], series["x"][1:], series["y"], series["y"][1:], strict=False):
        if low <= x <= high:
            return left + (right - left) * (x - low) / (high - low)
    raise AssertionError(f"{series['name']} is not drawn at {x}")


# ---- groups


def test_advantages_without_and_with_the_std():
    plain = drawn("groups", group_size="4", pattern="one_right", scale="none")["advantage"]
    assert plain["y"] == [0.75, -0.25, -0.25, -0.25]
    scaled = drawn("groups", group_size="4", pattern="one_right", scale="group_std")["advantage"]
    assert scaled["y"] == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-3)  # Bessel's std of 1, 0, 0, 0 is 1/2
    others = drawn("groups", group_size="4", pattern="one_right", scale="none", baseline="leave_one_out")["advantage"]
    assert others["y"] == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3], rel=1e-3)
    assert set(drawn("groups", pattern="equal")["advantage"]["y"]) == {0}


def test_rewards_of_a_group_are_best_first():
    assert groups.rewards("graded", 5) == (1.0, 0.75, 0.5, 0.25, 0.0)
    assert groups.rewards("outlier", 4) == pytest.approx((3.0, 0.6, 0.5, 0.4))
    assert groups.rewards("one_wrong", 3) == (1.0, 1.0, 0.0)


def test_the_share_of_groups_that_teach_is_the_binomial_one():
    for size in (2, 8):
        signal = drawn("groups", 2, group_size=str(size))["groups with a signal"]
        expected = [1 - rate**size - (1 - rate) ** size for rate in signal["x"]]
        assert signal["y"] == pytest.approx(expected, rel=1e-3)


def test_a_baseline_that_cannot_judge_the_rewards_says_so():
    experiment = experiment_named("groups")
    refused = experiment.table(experiment.settings({"baseline": "pass_at_k", "pattern": "graded"})).refused
    assert "0 or 1" in refused
    assert "4 or more" in experiment.table(experiment.settings({"baseline": "pass_at_k", "group_size": "2"})).refused


# ---- clip rules


def test_every_clip_rule_is_offered_with_its_own_numbers():
    (rule,) = [each for each in experiment_named("clip").controls if each.name == "rule"]
    assert set(rule.choices) == set(AXES["clip"])
    for slider in experiment_named("clip").controls[1:-1]:
        name, _, number = slider.name.partition(".")
        assert slider.default in slider.values and slider.default == getattr(AXES["clip"][name](), number)
        for value in slider.values:
            AXES["clip"][name](**{number: value})


def test_a_clipped_token_weighs_nothing_outside_its_band():
    curves = drawn("clip", rule="ppo_clip", **{"ppo_clip.low": "0.1", "ppo_clip.high": "0.28"})
    good, bad = curves["A > 0"], curves["A < 0"]
    assert at(good, 1.3) == 0 and at(good, 2.5) == 0 and at(bad, 0.85) == 0
    assert at(good, 1.27) == pytest.approx(1.27, rel=1e-3) and at(good, 0.4) == pytest.approx(0.4, rel=1e-3)
    assert at(bad, 0.91) == pytest.approx(0.91, rel=1e-3) and at(bad, 2.5) == pytest.approx(2.5, rel=1e-3)
    capped = drawn("clip", rule="cap", **{"cap.ceiling": "2.5"})["A > 0"]
    assert at(capped, 2.9) == 2.5 and at(capped, 2.0) == pytest.approx(2, rel=1e-3)


def test_a_combination_that_a_rule_refuses_is_told_and_not_drawn():
    given = {"rule": "dual_clip", "dual_clip.high": "0.4", "dual_clip.ceiling": "1.5"}
    assert experiment_named("clip").table(experiment_named("clip").settings(given)).refused == ""
    wide = {**experiment_named("clip").settings(given), "dual_clip.high": 0.6}
    assert "ceiling" in experiment_named("clip").table(wide).refused


# ---- a rare token


def test_the_first_update_of_the_rare_token_by_hand():
    """The logits move by rate A_i / 8: the advantages sum to 0, so nothing is left of the softmax's other term."""
    start, rate = 0.01, 0.2
    spread = math.sqrt((7 / 8) ** 2 + 7 * (1 / 8) ** 2) / math.sqrt(7)
    good, bad = (7 / 8) / (spread + 1e-6), (-1 / 8) / (spread + 1e-6)
    logits = [math.log(start) + rate * good / TOKENS] + [math.log((1 - start) / 7) + rate * bad / TOKENS] * 7
    expected = math.exp(logits[0]) / sum(math.exp(each) for each in logits) / start
    assert lifted(PPOClip(0.2, 0.28), start, 1, rate, steps=1).ratio[0] == pytest.approx(expected, rel=1e-9)


def test_a_higher_edge_lifts_the_rare_token_sooner_and_one_update_knows_no_edge():
    narrow, wide = (lifted(PPOClip(0.2, high), 0.01, 6, 0.2).probability for high in (0.2, 0.5))
    assert all(low <= high for low, high in zip(narrow, wide, strict=True)) and wide[10] > 1.5 * narrow[10]
    first = lifted(PPOClip(0.2, 0.2), 0.01, 6, 0.2).ratio
    stopped = next(place for place, ratio in enumerate(first) if ratio > 1.2)
    assert first[stopped + 1] - first[stopped] < 0.1 * (first[stopped] - first[stopped - 1])
    once = [lifted(rule, 0.01, 1, 0.2).probability for rule in (PPOClip(0.2, 0.2), AXES["clip"]["unclipped"]())]
    assert once[0] == once[1]


# ---- noise


def test_the_noise_of_each_ratio_is_that_of_normal_numbers():
    spread, length = 0.1, 256
    logs = {name: ratio_noise.ratios(name, spread, 0.0, length).log() for name in ratio_noise.ratio_names()}
    assert float(logs["token"].std()) == pytest.approx(spread, rel=0.02)
    assert float(logs["sequence"][:, 0].std()) == pytest.approx(spread / length**0.5, rel=0.2)
    assert float(logs["sequence_product"][:, 0].std()) == pytest.approx(spread * length**0.5, rel=0.2)


def test_the_share_that_is_cut_follows_the_width():
    cut = drawn("noise", 1, spread="0.1", width="0.2")
    # half of the tokens are good: P(log r > log 1.2) / 2 + P(log r < log 0.8) / 2
    tail = sum(0.5 * math.erfc(abs(math.log(edge)) / 0.1 / 2**0.5) for edge in (1.2, 0.8)) / 2
    assert cut["token"]["y"][-1] == pytest.approx(tail, rel=0.05)
    assert cut["sequence"]["y"][-1] == 0 and cut["sequence_product"]["y"][-1] > 0.4


# ---- biases


def test_length_and_difficulty_by_hand():
    lengths = drawn("bias", 0)
    for name, series in lengths.items():
        for x, y in zip(series["x"], series["y"], strict=True):
            q = 8 / x
            by_length = {"sequence_mean": (1 + 2 * q) / 3, "turn_mean": (1 + 2 * q) / 3}
            if name != "inverse_length":
                assert y == pytest.approx(by_length.get(name, 1), rel=1e-3), name
    assert set(lengths) == set(AXES["aggregate"])
    weights = drawn("bias", 1)
    assert set(weights["none"]["y"]) == {0.875}
    by_mean = [(1 - (1 - p) ** 7) / p for p in weights["group_mean"]["x"]]
    assert weights["group_mean"]["y"] == pytest.approx(by_mean, rel=1e-3)
    spread = dict(zip(weights["group_std"]["x"], weights["group_std"]["y"], strict=True))
    assert spread[0.01] == spread[0.99] > spread[0.5]
    assert set(shares.group_scales()) == {"none", "group_std", "group_mean"}


# ---- KL


def test_what_the_estimators_say_and_where_they_pull():
    logp, reference = kl_estimates.bells(0.7, 1.25)
    truth = float((logp.exp() * (logp - reference)).sum())
    u = logp - reference
    for name, exact in (("k1_reward", u), ("k3", u.neg().exp() - 1 + u), ("k2", u**2 / 2)):
        mean, std = kl_estimates.moments(name, logp, reference)
        assert mean == pytest.approx(float((logp.exp() * exact).sum()), rel=1e-9)
        assert std == pytest.approx(float((logp.exp() * (exact - mean) ** 2).sum()) ** 0.5, rel=1e-9)
    assert kl_estimates.moments("k3", logp, reference)[0] == pytest.approx(truth, rel=1e-9)
    assert kl_estimates.moments("k2", logp, reference)[0] != pytest.approx(truth, rel=0.05)
    policy_first = (logp.exp() * (u - truth)).tolist()  # of KL(policy, reference) on the logits
    reference_first = (logp.exp() - reference.exp()).tolist()
    close = {"rel": 1e-9, "abs": 1e-12}
    for name in ("k2", "k1_reward", "k3_corrected"):
        assert kl_estimates.pull(name, logp, reference) == pytest.approx(policy_first, **close)
    assert kl_estimates.pull("k3", logp, reference) == pytest.approx(reference_first, **close)
    assert kl_estimates.pull("k3_reward", logp, reference) != pytest.approx(policy_first, rel=0.05, abs=1e-3)
    assert min(drawn("kl", 3)["k3"]["y"]) >= 0


# ---- GAE


def test_lambda_one_is_the_return_less_the_value_and_lambda_zero_one_step():
    batch = lookahead.episodes(0.2, lookahead.all_tokens()[::37], critic=3)
    full = lookahead.estimates(batch, 1.0, 1.0)
    torch.testing.assert_close(full, batch.reward[:, None] - batch.value)
    discount = 0.9 ** torch.arange(lookahead.TOKENS - 1, -1, -1, dtype=torch.float64)
    torch.testing.assert_close(lookahead.estimates(batch, 1.0, 0.9), batch.reward[:, None] * discount - batch.value)
    ahead = torch.cat([batch.value[:, 1:], batch.reward[:, None]], 1)
    torch.testing.assert_close(lookahead.estimates(batch, 0.0, 1.0), ahead - batch.value)


def test_bias_and_scatter_trade_places():
    perfect, wrong = lookahead.by_lambda(0.0, 1.0), lookahead.by_lambda(0.2, 1.0)
    assert all(bias == pytest.approx(0, abs=1e-12) for bias, _ in perfect)
    assert perfect[0][1] == pytest.approx(0, abs=1e-12) and perfect[-1][1] > 0.4
    assert wrong[0][0] > 0.1 and wrong[-1][0] == pytest.approx(0, abs=1e-12)
    assert [bias for bias, _ in wrong] == sorted((bias for bias, _ in wrong), reverse=True)
    # two states one good token apart differ in value by the chance that it decides
    decides = math.comb(lookahead.TOKENS - 1, lookahead.WANTED - 1) / 2 ** (lookahead.TOKENS - 1)
    assert float(lookahead.true_values()[1, 1] - lookahead.true_values()[1, 0]) == pytest.approx(decides)
    assert lookahead.by_lambda(0.0, 0.9)[-1][0] > 0.01


# ---- preferences


def test_preference_curves_by_hand():
    margins = [-7.0, 0.0, 3.0, 12.0]
    logistic = PAIR_PRESETS["dpo"].objective
    loss, chosen, rejected = preferences.curves(logistic, margins, "both", 20)
    assert loss == pytest.approx([math.log1p(math.exp(-0.1 * m)) for m in margins])
    assert chosen == pytest.approx([-0.1 / (1 + math.exp(0.1 * m)) for m in margins])
    assert rejected == pytest.approx([-each for each in chosen])
    sharper = preferences.with_factor(logistic, 10)
    assert preferences.curves(sharper, margins, "chosen", 20)[0] == pytest.approx(
        [math.log1p(math.exp(-m)) for m in margins]
    )
    squared, _, _ = preferences.curves(PAIR_PRESETS["ipo"].objective, margins, "rejected", 20)
    assert squared == pytest.approx([(m - 5) ** 2 for m in margins])
    loss, chosen, _ = preferences.curves(PAIR_PRESETS["hinge"].objective, margins, "both", 20)
    assert loss == pytest.approx([max(0, 1 - 0.1 * m) for m in margins]) and chosen[-1] == 0


def test_a_mean_score_sees_the_length_of_the_rejected_completion():
    def loss(tokens):
        return preferences.curves(PAIR_PRESETS["simpo"].objective, [6.0], "rejected", tokens)[0][0]

    # s_w = -1, s_l = -1 - 6/n, beta 2, gamma 1
    for tokens in (10, 40):
        assert loss(tokens) == pytest.approx(math.log1p(math.exp(-(2 * 6 / tokens - 1))))


def test_methods_that_need_more_than_a_pair_are_left_out():
    left = set(PAIR_PRESETS) - set(preferences.drawn_methods())
    assert left == {"wpo", "pairwise_cringe"}


# ---- the bandit


def test_the_bandit_learns_and_the_same_seed_gives_the_same_run():
    objective = PRESETS["grpo"].objective
    run = bandit.trained(objective, 12, 8, 2, 0.1, seed=1)
    assert run == bandit.trained(objective, 12, 8, 2, 0.1, seed=1)
    assert run != bandit.trained(objective, 12, 8, 2, 0.1, seed=2)
    assert run.right[0] == pytest.approx(bandit.START)
    assert sum(run.right[-1]) > 1.3 * sum(run.right[0])
    even = (1 - bandit.START[0]) / 4
    first = -(bandit.START[0] * math.log(bandit.START[0]) + 4 * even * math.log(even))
    assert first == pytest.approx(float(-(_start(0).exp() * _start(0)).sum()))
    assert run.entropy[-1] < run.entropy[0]


def _start(prompt):
    return bandit.BanditPolicy(0.1).logp().detach()[prompt]


def test_one_step_of_the_bandit_by_hand():
    """Without clip, KL and scale the gradient on a logit is the mean of A over the completions that chose it, less its
    probability times the sum; Adam's first step is the rate times its sign."""
    objective = PRESETS["rloo"].objective
    objective = replace(objective, kl=AXES["kl"]["none"]())
    draw = random.Random(5)
    policy = bandit.BanditPolicy(0.1)
    old = policy.logp().detach()
    prompts, arms = bandit._collected(objective, old.exp().tolist(), random.Random(5), 8)
    bandit._step(objective, policy, draw, {}, 8, 1)
    moved = (policy.logits.detach() - old) / 0.1
    for prompt, drawn_arms in zip(prompts, arms, strict=True):
        earned = [bandit.REWARDS[arm] for arm in drawn_arms]
        pull = [0.0] * len(bandit.REWARDS)
        for arm, reward in zip(drawn_arms, earned, strict=True):
            pull[arm] += reward - (sum(earned) - reward) / 7
        push = [each - float(old[prompt, arm].exp()) * sum(pull) for arm, each in enumerate(pull)]
        for arm, each in enumerate(push):
            if abs(each) > 1e-6:
                assert float(moved[prompt, arm]) == pytest.approx(math.copysign(1, each), rel=1e-3)
    assert any(sum(bandit.REWARDS[arm] for arm in each) not in (0, 8) for each in arms)


def test_the_bandit_offers_what_it_can_feed_and_says_where_it_differs():
    offered = bandit.offered()
    assert len(offered) > 40 and {"ppo", "dapo", "gspo", "rloo"} <= set(offered)
    assert not {"opd", "gdpo", "rloo_turns", "chord"} & set(offered)
    table = bandit._table({"method": "rloo", "group_size": 4, "updates": 4, "steps": 2, "seeds": 1, "rate": 0.1})
    assert dict(table.facts)["updates per step: 1"].startswith("updates_per_step is 4")
    assert len(table.charts[0].spec["series"][0]["x"]) == 3


def test_a_table_of_the_bandit_is_cut_to_a_fixed_amount_of_work(monkeypatch):
    counted = []
    kept = bandit.BanditRun(((0.0,) * 4,), ((0.0,) * 3,), (0.0,), (0.0,))

    def trained(objective, steps, group_size, updates, rate, seed):
        counted.append(steps * updates)
        return replace(kept, **{name: getattr(kept, name) * (steps + 1) for name in vars(kept)})

    monkeypatch.setattr(bandit, "trained", trained)
    bandit._table({"method": "grpo", "group_size": 8, "updates": 8, "steps": 100, "seeds": 5, "rate": 0.1})
    assert 0 < sum(counted) <= bandit.LIMIT


# ---- what all have in common


@pytest.mark.parametrize("given", [{"group_size": "nan"}, {"group_size": "1e9"}, {"group_size": "3.5"}, {"nope": "1"}])
def test_settings_outside_their_bounds_are_refused_in_one_line(given):
    with pytest.raises(WhetError) as told:
        experiment_named("groups").settings(given)
    assert "\n" not in str(told.value) and next(iter(given)) in str(told.value)


def test_an_unknown_experiment_or_option_is_refused_with_the_nearest():
    with pytest.raises(WhetError, match="did you mean 'bandit'"):
        experiment_named("bandits")
    with pytest.raises(WhetError, match="did you mean 'group_std'"):
        experiment_named("groups").settings({"scale": "group_sdt"})


def test_a_control_that_does_not_apply_is_not_a_setting():
    chosen = experiment_named("clip").settings({"rule": "cap", "ppo_clip.low": "0.1"})
    assert "ppo_clip.low" not in chosen and "cap.ceiling" in chosen and "probability" not in chosen
    assert all(applies(control, chosen) == (control.name in chosen) for control in experiment_named("clip").controls)


def test_every_experiment_has_a_default_on_its_grid_and_papers_with_addresses():
    for experiment in experiments():
        usual = experiment.settings({})
        assert usual in list(experiment.grid())
        assert experiment.see and all(len(each) == 2 for each in experiment.papers)
        for control in experiment.controls:
            assert control.default in control.choices
            if isinstance(control, Slider):
                low, high = control.span
                assert low <= control.values[0] and control.values[-1] <= high and math.isfinite(low + high)
        experiment.settings(experiment.compared)


def _toy():
    band = LabChart("span", chart_spec("x", "y", [line("mean", [1, 2], [3.0, 4.0], 0, band=([2.0, 3.0], [5.0, 6.0]))]))

    def table(settings):
        return LabTable(
            (
                band,
                *groups.experiment().table(groups.experiment().settings({"group_size": str(settings["size"])})).charts,
            ),
            (("said", "</script>" if settings["kind"] == "b" else "fine"),),
        )

    controls = (
        Selector("kind", "kind", (("a", "A"), ("b", "B")), "a"),
        Slider("size", "size", (2, 4), 2, whole=True, when={"kind": ("b",)}),
    )
    return Experiment("toy", "Toy", "?", "see", (), controls, lambda chosen: table({"size": 2, **chosen}))


def test_packing_loses_nothing_and_stores_nothing_twice():
    toy = _toy()
    record = json.loads(json.dumps(packed([toy])))
    (kept,) = record["experiments"]
    grid = list(toy.grid())
    assert [len(each) for each in grid] == [1, 2, 2] and len(kept["tables"]) == 3
    for settings, table in zip(grid, kept["tables"], strict=True):
        assert unpacked(record, table) == json.loads(json.dumps(toy.table(settings).record()))
    assert kept["tables"][0][1:] == kept["tables"][1][1:] and len(record["notes"]) == 2
    page = static_page(record)
    assert (
        written_tables(page) == record
        and "<" not in page.split('id="lab-data" type="text/plain">')[1].split("</script>")[0]
    )
