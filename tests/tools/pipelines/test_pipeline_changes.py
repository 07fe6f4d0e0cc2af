"""What a stage changed, paired by prompt: a real fall is told, noise is not, and lost prompts are shown."""

from whet.pages.pipeline_page import (
    MeasuredPolicy,
    PipelineSummary,
    StageSummary,
    cost_table,
    fallen,
    lost_prompts,
    pipeline_html,
    set_changes,
    sets_table,
    side_by_side,
    verdict,
)


def policy(label, rights, drawn=None, sets=None):
    rows = {}
    for at, right in enumerate(rights):
        rows[str(at)] = {
            "prompt": [{"role": "user", "content": f"question {at}"}],
            "answer": "7",
            "right": right,
            "completion": f"{label} says {at}",
            "set": sets[at] if sets else "all",
        }
        if drawn:
            rows[str(at)]["sample_right"] = drawn[at]
    return MeasuredPolicy(label, rows)


def test_a_fall_beyond_noise_is_told_and_a_small_one_is_not():
    before = policy("sft", [1.0] * 40)
    assert fallen([before, policy("rl", [0.0] * 2 + [1.0] * 38)]) == []
    (said,) = fallen([before, policy("rl", [0.0] * 12 + [1.0] * 28)])
    assert said.startswith("accuracy from sft to rl: -30.0 points") and "0 of 40 prompts gained, 12 lost" in said


def test_sets_and_drawn_completions_are_looked_at_on_their_own():
    sets = ["easy", "hard"] * 20
    before = policy("a", [1.0] * 40, [[1.0, 1.0]] * 40, sets)
    after = policy("b", [1.0] * 40, [[0.0, 1.0] if each == "hard" else [1.0, 1.0] for each in sets], sets)
    assert {(each.set, each.metric) for each in set_changes(before, after)} == {
        (name, metric) for name in ("all", "easy", "hard") for metric in ("accuracy", "pass@1")
    }
    assert [each.split(":")[0] for each in fallen([before, after])] == ["pass@1 from a to b"]
    uneven = policy(
        "b",
        [1.0] * 40,
        [[0.0, float(at % 4 > 1)] if each == "hard" else [1.0, 1.0] for at, each in enumerate(sets)],
        sets,
    )
    assert [each.split(":")[0] for each in fallen([before, uneven])] == [
        "pass@1 from a to b",
        "pass@1 on hard from a to b",
    ]


def test_prompts_once_right_and_now_wrong_are_shown_with_both_completions():
    policies = [policy("a", [1.0, 0.0, 0.0]), policy("b", [1.0, 1.0, 0.0]), policy("c", [1.0, 0.0, 0.0])]
    (lost,) = lost_prompts(policies)
    assert (lost["prompt"], lost["before"], lost["right"], lost["wrong"]) == ("question 1", "b", "b says 1", "c says 1")
    shown = side_by_side(policies)
    assert shown[0]["prompt"] == "question 1"
    assert shown[0]["written"] == [("a", "wrong", "a says 1"), ("b", "right", "b says 1"), ("c", "wrong", "c says 1")]
    assert lost_prompts(policies[:1]) == [] and side_by_side([]) == []


def test_the_page_has_intervals_cost_and_what_got_worse():
    def measured(label, at, value):
        sets = {"all": {"prompts": 40, "accuracy": (value, value - 0.1, value + 0.1), "pass@4": (0.5, 0.4, 0.6)}}
        cost = {"completions": 200, "sampled_tokens": 12345}
        return StageSummary(
            f"eval-{label}", "about", "said", 2.0, {"accuracy": value}, {}, ("the policy", at), 40,
            label=label, sets=sets, cost=cost,
        )  # fmt: skip

    stages = (
        measured("sft", 0, 0.9),
        StageSummary("rl", "trains", "done", 60.0, cost={"updates": 20}),
        measured("rl", 1, 0.6),
    )
    policies = (policy("sft", [1.0] * 36 + [0.0] * 4), policy("rl", [0.0] * 12 + [1.0] * 24 + [0.0] * 4))
    summary = PipelineSummary("mine", "about", "finished", stages, policies=policies)
    assert sets_table(summary)[0] == ["after", "accuracy, 40", "pass@4", "tokens"]
    assert sets_table(summary)[1][:2] == ["sft", "90.0% (80.0 to 100.0)"]
    assert cost_table(summary)[-1] == ["in all", "1 min 04 s", "20", "400", "24.7 k"]
    assert "Worse: accuracy from sft to rl: -30.0 points" in verdict(summary)
    page = pipeline_html(summary)
    assert "What got worse" in page and "12 prompts that an earlier stage had right are wrong at the end" in page
    assert "question 0" in page and "rl says 0" in page and "12.3 k" in page
