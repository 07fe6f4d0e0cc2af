"""What judged completions say of a policy beside its start: ties, length, best of n, over-optimisation."""

import pytest

from whet.tools.pipelines.library.judged import (
    headline,
    length_slope,
    measures,
    optimised_words,
    sample_pairs,
    selected_measures,
    with_known_scores,
)


def judged(scores, own=None, lengths=None, kl=0.0, texts=None):
    """Rows of one completion each."""
    count = len(scores)
    return [
        {
            "id": str(at),
            "prompt": f"p{at}",
            "prompt_tokens": 5,
            "completions": [texts[at] if texts else f"{scores[at]}"],
            "finished": [True],
            "tokens": [(lengths or [3] * count)[at]],
            "kl": [kl],
            "judge": [scores[at]],
            "reward_model": [(own or scores)[at]],
        }
        for at in range(count)
    ]


def test_equal_completions_tie_whatever_the_last_digit_of_their_scores():
    start = judged([1.0, 2.0], texts=["same", "a"])
    policy = judged([1.0 + 1e-6, 3.0], texts=["same", "b"])
    assert with_known_scores(policy, start)[0]["judge"] == [1.0]
    assert measures(policy, start, 0.0)["win_rate"]["value"] == 0.75


def test_a_policy_against_itself_is_even_though_one_text_scored_twice():
    start = judged([1.0], texts=["same"])
    start[0] |= {"completions": ["same", "same", "b"], "tokens": [3, 3, 3], "finished": [True] * 3, "kl": [0.0] * 3}
    start[0] |= {"judge": [1.0, 1.0 + 1e-6, 2.0], "reward_model": [1.0, 1.0 - 1e-6, 0.0]}
    found = measures(start, start, 0.0)
    assert found["win_rate"]["value"] == found["win_rate_reward_model"]["value"] == 0.5


def test_what_length_earns_is_taken_off():
    start = [
        {
            **judged([0.0])[0],
            "id": str(at),
            "completions": ["a", "b"],
            "tokens": [10, 20],
            "judge": [1.0, 2.0],
            "reward_model": [1.0, 2.0],
        }
        for at in range(3)
    ]
    assert length_slope(start) == pytest.approx(0.1)
    longer = judged([2.4] * 3, lengths=[30] * 3)
    found = measures(longer, start, length_slope(start))
    # 2.4 - 0.1 * 30 is below 1 - 0.1 * 10 and 2 - 0.1 * 20
    assert (found["win_rate"]["value"], found["win_rate_same_length"]["value"]) == (1.0, 0.0)
    assert found["win_rate_longer"]["value"] == 1.0 and found["win_rate_shorter"] is None
    assert (found["tokens"], found["start_tokens"]) == (30, 15)


def test_best_of_n_chooses_by_the_reward_model_and_is_judged_by_the_judge():
    start = judged([0.5])
    pool = [
        {**judged([0.0])[0], "completions": list("abc"), "finished": [True] * 3, "tokens": [3, 6, 9], "kl": [0.0] * 3}
    ]
    pool[0] |= {"judge": [1.0, 0.0, 1.0], "reward_model": [1.0, 3.0, 2.0]}
    one, three = (selected_measures(pool, start, 0.0, n) for n in (1, 3))
    assert one["win_rate"]["value"] == pytest.approx(2 / 3) and three["win_rate"]["value"] == 0.0
    assert three["win_rate_reward_model"]["value"] == 1.0 and three["tokens"] == 6
    assert one["kl"]["value"] == 0.0 and three["kl"]["value"] == pytest.approx(1.0986123 - 2 / 3)


def test_over_optimisation_and_length_are_said():
    def rate(value, width=0.02):
        return {"value": value, "low": value - width, "high": value + width, "prompts": 9}

    rates = {"win_rate": rate(0.6), "win_rate_reward_model": rate(0.61), "win_rate_same_length": rate(0.59)}
    even = {**rates, "kl": rate(2.0)}
    assert optimised_words("way", even, {}) == []
    assert "the judge 60.0%" in optimised_words("way", {**even, "win_rate_reward_model": rate(0.9)}, {})[0]
    assert "over-optimised, KL is 19" in optimised_words("way", {**even, "kl": rate(19.0)}, {})[0]
    assert "length may be the gain" in optimised_words("way", {**even, "win_rate_same_length": rate(0.5)}, {})[0]
    assert "worse than where it started" in optimised_words("way", {**even, "win_rate": rate(0.4)}, {})[-1]
    fell = optimised_words("way", {**even, "accuracy": rate(0.4)}, {"accuracy": rate(0.8)})
    assert len(fell) == 1 and "over-optimised, accuracy fell from 80.0%" in fell[0]


def test_the_headline_goes_by_accuracy_and_kl_and_not_by_a_judge_that_was_fooled():
    def rate(value):
        return {"value": value, "low": value - 0.02, "high": value + 0.02, "prompts": 9}

    def way(judge, kl, accuracy=None):
        return {"win_rate": rate(judge), "kl": rate(kl), "accuracy": accuracy and rate(accuracy)}

    start = way(0.5, 0.0, 0.7)
    fooled = {"dpo": way(0.57, 0.2, 0.92), "grpo": way(0.82, 19.2, 0.16), "ppo": way(0.63, 1.2, 0.84)}
    ranked, words = headline(fooled, start, "sft")
    assert ranked == ["dpo", "ppo", "grpo"]
    assert words.startswith("best by accuracy: dpo, 92.0% (90.0 to 94.0) (sft 70.0% (68.0 to 72.0)), KL 0.2")
    assert "grpo was over-optimised: accuracy fell from 70.0%" in words and "ppo" not in words
    unknown = {name: {**values, "accuracy": None} for name, values in fooled.items()}
    ranked, words = headline(unknown, {**start, "accuracy": None}, "sft")
    assert ranked == ["ppo", "dpo", "grpo"] and words.startswith("best by the judge: ppo, 63.0%")
    assert "grpo was over-optimised: KL is 19.2 nats" in words
    assert "none is better than sft" in headline({"grpo": fooled["grpo"]}, start, "sft")[1]


def test_samples_run_from_the_least_liked_to_the_most():
    start, policy = judged([0.0] * 9), judged([float(at) for at in range(9)])
    shown = sample_pairs(policy, start, 3)
    assert [each["judge_gap"] for each in shown] == [0.0, 4.0, 8.0]
    assert shown[0]["prompt"] == "p0" and shown[-1]["completion"] == "8.0" and shown[-1]["start"] == "0.0"
