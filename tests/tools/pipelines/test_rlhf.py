"""RLHF from pairs to the comparison, tiny: halves that never meet, one budget, two judges, one-line refusals."""

import json
from pathlib import Path

import pytest

from whet.record.metrics.win_rate import WinRate
from whet.tools.pipelines import read_json_lines
from whet.tools.pipelines.judged_policies import (
    length_slope,
    measures,
    sample_pairs,
    selected_measures,
    with_known_scores,
)
from whet.tools.pipelines.pair_split import prompt_key
from whet.tools.pipelines.rlhf import RLHF, compared, memory_of_models, optimised_words, spending
from whet.tools.pipelines.runner import resume_pipeline, run_pipeline
from whet.tools.pipelines.settings import resolve_settings
from whet.types import WhetError

TINY = {
    "model": {"threads": 1},
    "data": {"difficulty": [1]},
    "prompts": 24,
    "completions": 4,
    "held_out_share": 0.3,
    "judged_prompts": 4,
    "judged_completions": 2,
    "steps": 1,
    "most_n": 3,
    "sampling": {"max_new_tokens": 24},
    "sft": {"batch": {"rows_per_step": 4}},
    "reward_model": {"batch": {"rows_per_step": 4}},
    "train": {
        "ppo": {"batch": {"prompts_per_step": 2, "group_size": 2}},
        "grpo": {"batch": {"prompts_per_step": 2, "group_size": 2}},
        "dpo": {"batch": {"rows_per_step": 4}},
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_pipeline("rlhf", TINY, {"folder": str(tmp_path_factory.mktemp("rlhf") / "run")})


def rows(run, stage, file):
    return read_json_lines(run.stages[stage].folder / file)


def test_all_stages_are_done_and_the_page_is_written(run):
    assert run.status == "finished" and run.page.is_file()
    assert list(run.stages) == [
        *("pairs", "sft", "reward-model", "judge-model", "sft-judged"),
        *("ppo-train", "ppo-judged", "dpo-train", "dpo-judged", "grpo-train", "grpo-judged", "best_of_n-judged"),
        "compare",
    ]


def test_no_prompt_is_on_two_sides_and_the_judged_ones_are_held_out(run):
    sides = {
        name: {row["id"] for row in rows(run, "pairs", f"{name}.jsonl")} for name in ("own", "other_half", "held_out")
    }
    assert not sides["own"] & sides["other_half"]
    assert not sides["held_out"] & (sides["own"] | sides["other_half"])
    assert {row["id"] for row in rows(run, "pairs", "prompts.jsonl")} == sides["own"]
    judged = rows(run, "pairs", "judged_prompts.jsonl")
    assert {row["id"] for row in judged} <= sides["held_out"] and len(judged) <= 4
    assert all(row["id"] == prompt_key(row) and row["answer"] for row in judged)


def test_the_judge_has_other_pairs_another_seed_and_another_start(run):
    config = {
        name: (run.stages[name].folder / "run" / "config.toml").read_text() for name in ("reward-model", "judge-model")
    }
    assert "own.jsonl" in config["reward-model"] and "other_half.jsonl" in config["judge-model"]
    assert "seed = 0\n" in config["reward-model"] and "seed = 1000\n" in config["judge-model"]
    assert str(run.stages["sft"].folder / "run") in config["reward-model"]
    assert 'name = "whetstone"' in config["judge-model"]


def test_policies_start_from_the_imitating_one_and_learn_from_the_reward_model_alone(run):
    for way in ("ppo", "dpo", "grpo"):
        config = (run.stages[f"{way}-train"].folder / "run" / "config.toml").read_text()
        assert str(run.stages["sft"].folder / "run") in config
        assert "judge-model" not in config
        assert ("reward-model" in config) == (way != "dpo")
    critic = (run.stages["ppo-train"].folder / "run" / "config.toml").read_text().partition("[critic]")[2]
    assert "reward-model" in critic.partition("[")[0]


def test_the_budget_is_one_and_what_was_spent_is_counted(run):
    plan = {**run.stages["sft-judged"].result, **run.stages["compare"].result}
    sequence, budget = plan["sequence"], plan["budget"]
    # one step of 4 completions: sampled, read by reference, reward model, critic and (4 updates) the policy, both learn
    assert budget == pytest.approx(4 * 11 * sequence)
    assert plan["steps"] == {
        "ppo": 1,
        "dpo": max(1, round(budget / (4 * 4 * plan["pair_tokens"]))),
        "grpo": 2,
        "best_of_n": 3,
    }
    steps = [
        json.loads(line) for line in (run.stages["ppo-train"].folder / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    counts = [line["counts"] for line in steps if "counts" in line]
    tokens = sum(each["tokens"] for each in counts) + plan["prompt"] * sum(each["samples"] for each in counts)
    assert run.stages["ppo-train"].result["spent"] == pytest.approx(11 * tokens)
    assert run.stages["best_of_n-judged"].result["spent"] == pytest.approx(3 * plan["eval_prompts"] * 2 * sequence)


def test_completions_are_scored_by_both_and_their_distance_is_measured(run):
    for stage, count in (("sft-judged", 2), ("ppo-judged", 2), ("best_of_n-judged", 3)):
        for row in rows(run, stage, "judged.jsonl"):
            for name in ("completions", "lengths", "kl", "judge", "reward_model", "truth"):
                assert len(row[name]) == count, (stage, name)
            assert row["prompt_tokens"] > 5
    assert all(gap == 0 for row in rows(run, "sft-judged", "judged.jsonl") for gap in row["kl"])
    assert any(gap != 0 for row in rows(run, "ppo-judged", "judged.jsonl") for gap in row["kl"])


def test_the_comparison_names_every_way_with_what_it_spent(run):
    result = run.stages["compare"].result
    assert [line[0] for line in result["table"]] == ["", "sft", "ppo", "dpo", "grpo", "best_of_n (n = 3)"]
    assert all(len(line) == len(result["table"][0]) for line in result["table"])
    assert sorted(result["ranked"]) == sorted(("ppo", "dpo", "grpo", "best_of_n"))
    assert {each["way"] for each in result["samples"]} == {"ppo", "dpo", "grpo"}


def test_it_resumes_to_the_same_result(run, capsys):
    again = resume_pipeline(run.folder)
    assert again.stages["compare"].result == run.stages["compare"].result
    assert capsys.readouterr().out.count("done before") == len(run.stages)


# --- what rows say ---


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
            "lengths": [(lengths or [3] * count)[at]],
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
    assert measures(policy, start, 0.0).win_rate.value == 0.75


SCORES = {"judge": [1.0, 2.0], "reward_model": [1.0, 2.0]}


def test_a_policy_against_itself_is_even_though_one_text_scored_twice():
    start = judged([1.0], texts=["same"])
    start[0] |= {"completions": ["same", "same", "b"], "lengths": [3, 3, 3], "finished": [True] * 3, "kl": [0.0] * 3}
    start[0] |= {"judge": [1.0, 1.0 + 1e-6, 2.0], "reward_model": [1.0, 1.0 - 1e-6, 0.0]}
    found = measures(start, start, 0.0)
    assert found.win_rate.value == found.win_rate_reward_model.value == 0.5


def test_what_length_earns_is_taken_off():
    start = [
        {
            **judged([0.0])[0],
            "id": str(at),
            "completions": ["a", "b"],
            "lengths": [10, 20],
            "judge": [1.0, 2.0],
            "reward_model": [1.0, 2.0],
        }
        for at in range(3)
    ]
    assert length_slope(start) == pytest.approx(0.1)
    longer = judged([2.4] * 3, lengths=[30] * 3)
    found = measures(longer, start, length_slope(start))
    # 2.4 - 0.1 * 30 is below 1 - 0.1 * 10 and 2 - 0.1 * 20
    assert (found.win_rate.value, found.win_rate_same_length.value) == (1.0, 0.0)
    assert found.win_rate_longer.value == 1.0 and found.win_rate_shorter is None
    assert (found.tokens, found.start_tokens) == (30, 15)


def test_best_of_n_chooses_by_the_reward_model_and_is_judged_by_the_judge():
    start = judged([0.5])
    pool = [
        {**judged([0.0])[0], "completions": list("abc"), "finished": [True] * 3, "lengths": [3, 6, 9], "kl": [0.0] * 3}
    ]
    pool[0] |= {"judge": [1.0, 0.0, 1.0], "reward_model": [1.0, 3.0, 2.0]}
    one, three = (selected_measures(pool, start, 0.0, n) for n in (1, 3))
    assert one.win_rate.value == pytest.approx(2 / 3) and three.win_rate.value == 0.0
    assert three.win_rate_reward_model.value == 1.0 and three.tokens == 6
    assert one.kl.value == 0.0 and three.kl.value == pytest.approx(1.0986123 - 2 / 3)


def test_over_optimisation_and_length_are_said():
    def rate(value, width=0.02):
        return {"value": value, "low": value - width, "high": value + width, "prompts": 9}

    even = {"win_rate": rate(0.6), "win_rate_reward_model": rate(0.61), "win_rate_same_length": rate(0.59)}
    assert optimised_words("way", even, {}) == []
    assert "over-optimised" in optimised_words("way", {**even, "win_rate_reward_model": rate(0.9)}, {})[0]
    assert "length may be the gain" in optimised_words("way", {**even, "win_rate_same_length": rate(0.5)}, {})[0]
    assert "worse than where it started" in optimised_words("way", {**even, "win_rate": rate(0.4)}, {})[-1]
    fell = optimised_words("way", {**even, "accuracy": rate(0.4)}, {"accuracy": rate(0.8)})
    assert len(fell) == 1 and "accuracy fell from 80.0%" in fell[0]


def test_samples_run_from_the_least_liked_to_the_most():
    start, policy = judged([0.0] * 9), judged([float(at) for at in range(9)])
    shown = sample_pairs(policy, start, 3)
    assert [each["judge_gap"] for each in shown] == [0.0, 4.0, 8.0]
    assert shown[0]["prompt"] == "p0" and shown[-1]["completion"] == "8.0" and shown[-1]["start"] == "0.0"


# --- settings ---


def test_a_method_on_pairs_makes_no_more_passes_than_allowed():
    settings = resolve_settings(RLHF, {"steps": 50})
    few, free = (
        spending(resolve_settings(RLHF, {"steps": 50, "most_epochs": epochs}), 50.0, 70.0, 128, 80) for epochs in (2, 0)
    )
    assert few["steps"]["dpo"] == 2 * 128 // 64 and free["steps"]["dpo"] > 50
    assert few["budget"] == free["budget"] and few["steps"]["grpo"] == free["steps"]["grpo"] > settings.steps


def test_the_memory_of_all_four_models_is_said():
    found = memory_of_models(resolve_settings(RLHF, {"model": {"name": "smollm2", "device": "cpu"}}))
    assert [word.split(" ")[0] for word in found["ppo"].split(", ")] == ["policy", "reference", "critic", "reward"]
    assert "critic" not in found["grpo"] and "reward model" not in found["dpo"]
    assert "policy 2.15 GB" in found["ppo"]  # 134.5M weights x 16 bytes: weights, gradients, two moments


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ({"data": {"source": "prompts.jsonl"}}, "has no preferences; give --set pairs=FILE"),
        ({"pairs": "missing.jsonl"}, "pairs: missing.jsonl is not there"),
        ({"compare": ["ppoo"]}, "did you mean 'ppo'"),
        ({"compare": ["sft"]}, "learns neither from a reward nor from pairs"),
        ({"compare": ["dpo", "dpo"]}, "names dpo twice"),
        ({"train": {"rloo": {"batch": {"group_size": 2}}}}, "train.rloo: no method of compare is called that"),
        ({"train": {"ppo": {"batch": {"grup_size": 2}}}}, "train.ppo: "),
        ({"train": {"dpo": {"steps": 2}}}, "train.dpo.steps is set by the pipeline"),
        ({"train": {"dpo": {"preference": {"online": 4}}}}, "drop online"),
        ({"sft_epochs": 0, "sft": {"batch": {"rows_per_step": 2}}}, "sft has no effect"),
        ({"compare": ["dpo"], "most_n": 3}, "most_n has no effect"),
        ({"allow_overlap": True}, "allow_overlap has no effect"),
        ({"held_out": "more.jsonl"}, "held_out has no effect"),
        ({"as_chat": True}, "as_chat has no effect"),
        ({"reward_model": {"optimizer": {"learning_rat": 1}}}, "reward_model: "),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_done(tmp_path, monkeypatch, layer, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WhetError) as error:
        run_pipeline("rlhf", layer)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_pairs_of_a_file_and_the_words_of_a_rate(tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    lines = [
        {"prompt": f"Left to right mod 10: {at}+1", "chosen": "<answer>1</answer>", "rejected": f"no {at}"}
        for at in range(40)
    ]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    layer = {
        "pairs": str(pairs),
        "as_chat": True,
        "compare": ["dpo"],
        "sft_epochs": 0,
        "folder": str(tmp_path / "run"),
    }
    tiny = {
        key: value
        for key, value in TINY.items()
        if key not in ("prompts", "completions", "most_n", "sft", "train", "data")
    }
    run = run_pipeline("rlhf", tiny, layer)
    assert list(run.stages) == [
        "pairs",
        "reward-model",
        "judge-model",
        "sft-judged",
        "dpo-train",
        "dpo-judged",
        "compare",
    ]
    assert rows(run, "pairs", "own.jsonl")[0]["prompt"][0]["role"] == "user"
    assert "truth" not in rows(run, "dpo-judged", "judged.jsonl")[0]
    assert compared(resolve_settings(RLHF, tiny, layer), run.stages)["ranked"] == ["dpo"]
    assert not WinRate(0.5, 0.4, 0.6, 3).differs


def test_the_recipe_sums_the_seeds_up(run, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "recipes"))
    import rlhf_smollm2
    from run_stages import WholePipeline

    seed = WholePipeline("seed 0", run.folder, "compare", ())
    assert seed.is_finished() and seed.command() == ["resume", str(run.folder)]
    values = rlhf_smollm2.outcome({"train": 9, "held_out": 3}, [seed])
    assert list(values["ways"]) == ["ppo", "dpo", "grpo", "best_of_n"] and list(values["seeds"]) == ["0"]
    measured = run.stages["ppo-judged"].result["measured"]
    assert values["ways"]["ppo"]["win_rate"]["mean"] == measured["win_rate"]["value"]
    assert values["seeds"]["0"]["ways"]["best_of_n"]["curve"].keys() == {"1", "2"}
    text = rlhf_smollm2.summary_text(values)
    assert "| ppo | " in text and "seed 0: accuracy on held-out pairs: reward model " in text
    assert json.loads(json.dumps(values, allow_nan=False)) == values
