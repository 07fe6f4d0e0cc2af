"""What the docs pages say was measured is what a run without settings does."""

import pytest

from whet.tools.pipelines.registry import PIPELINES
from whet.tools.pipelines.rlaif import _policy_config, _true_pairs
from whet.tools.pipelines.settings import resolve_settings
from whet.tools.pipelines.training import steps_for


def built_in(name, **layer):
    return resolve_settings(PIPELINES[name], layer)


@pytest.mark.parametrize("name", list(PIPELINES))
def test_the_built_in_model_writes_short_completions_and_learns_from_few_rows(name):
    settings = built_in(name)
    assert settings.sampling.max_new_tokens == 64 and settings.eval.prompts == 200
    assert getattr(settings, "epochs", 2) == 2


def test_the_sizes_of_the_published_rounds():
    rounds = built_in("iterative_dpo")
    assert (rounds.prompts_per_round, rounds.completions, rounds.rounds) == (128, 8, 2)
    # docs/pipelines.md: 8 updates per round
    assert steps_for(rounds.prompts_per_round, rounds.epochs, rounds.train["batch"]["rows_per_step"]) == 8
    spin = built_in("spin")
    assert spin.data.count == 512 and spin.train == spin.imitate == {"batch": {"rows_per_step": 32}}
    judged = built_in("self_rewarding")
    assert (judged.prompts_per_round, judged.completions, judged.train["batch"]["rows_per_step"]) == (128, 8, 32)
    assert (judged.judge.question, judged.judge.max_new_tokens, judged.judge.times) == ("short", 60, 3)
    assert judged.teach.train["steps"] == 200 and judged.teach.train["batch"]["rows_per_step"] == 64


def test_the_sizes_of_the_published_feedback():
    rlaif = built_in("rlaif")
    assert (rlaif.prompts, rlaif.steps, rlaif.judge.examples, rlaif.judge.verdict) == (384, 20, 640, "logp")
    assert rlaif.judge.train == {"steps": 120, "batch": {"rows_per_step": 32}}
    assert rlaif.reward_model == {"batch": {"rows_per_step": 32}}
    written = built_in("constitutional")
    assert (written.prompts, written.preference_prompts, written.critiques, written.critique_tokens) == (
        256,
        256,
        1,
        24,
    )
    assert written.learn == "pairs" and written.teach["steps"] == 200 and written.teach["batch"]["rows_per_step"] == 64
    assert written.revise == written.reward_model == {"batch": {"rows_per_step": 32}}


def test_the_sizes_of_the_published_comparison():
    rlhf = built_in("rlhf")
    assert (rlhf.prompts, rlhf.completions, rlhf.steps, rlhf.most_n) == (1024, 4, 12, 16)
    assert (rlhf.judged_prompts, rlhf.judged_completions, rlhf.sft_epochs) == (80, 4, 0.5)
    phased = built_in("phased")
    assert (phased.pairs, phased.prompts, phased.steps, phased.guard_kl) == ("task:lists", 1024, 15, 0.04)


def test_a_larger_model_gets_the_numbers_of_the_papers():
    large = {name: built_in(name, model={"name": "smollm2"}) for name in PIPELINES}
    assert large["iterative_dpo"].prompts_per_round == large["self_rewarding"].prompts_per_round == 1024
    assert large["rlaif"].prompts == large["constitutional"].prompts == 1024
    assert (large["rlaif"].judge.examples, large["rlaif"].judge.verdict, large["rlaif"].steps) == (1024, "text", 100)
    assert large["constitutional"].critiques == 4 and large["constitutional"].learn == "reward_model"
    assert large["self_rewarding"].judge.question == "rubric" and large["self_rewarding"].judge.max_new_tokens == 200


def test_a_policy_without_eval_prompts_is_not_evaluated_on_the_way():
    judge = {"settings": {"base_url": "http://localhost:1/v1", "model": "any"}, "verdict": "text"}
    settings = built_in("rlaif", data={"source": "rows.jsonl"}, judge=judge)
    assert _policy_config(settings, "pairs.jsonl", "model", 1)["eval"] == {"prompts": 0, "every": 0}
    assert _policy_config(built_in("rlaif"), "pairs.jsonl", "model", 1)["eval"] == {"prompts": 200, "every": 5}


def test_eval_pairs_whose_truth_is_unknown_are_left_out():
    from whet.tools.pipelines.judging import CandidatePair

    truths = {"right": 1.0, "wrong": 0.0, "even": 0.5, "unknown": None}
    candidates = [CandidatePair({"id": name, "prompt": "p"}, "one", "other", truth) for name, truth in truths.items()]
    judged = [{"id": name, "prompt": "p", "chosen": "one", "rejected": "other"} for name in truths]
    shown = _true_pairs(judged, candidates)
    assert [(pair["id"], pair["chosen"]) for pair in shown] == [("right", "one"), ("wrong", "other")]
    assert _true_pairs(judged, candidates[3:]) == judged
