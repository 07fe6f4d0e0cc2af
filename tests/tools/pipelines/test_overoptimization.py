"""The over-optimisation pipeline: its settings, its scores and its stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.for_every import for_every
from whet.tools.pipelines.overoptimization import (
    OVEROPTIMIZATION,
    Condition,
    gold_labelled_pairs,
    learning_config,
    overoptimization_stages,
    read_curves,
)
from whet.tools.pipelines.proxies import ProxyReward, combined, completion_logp, gold_score, moved_score
from whet.tools.pipelines.runner import resume_pipeline, run_pipeline
from whet.tools.pipelines.settings import resolve_settings
from whet.tools.pipelines.stages import FinishedStage, Interrupted
from whet.types import Prompt, Sample, StopReason, WhetError

TINY: dict[str, Any] = {
    **{"sizes": [8], "gold_steps": 1, "proxy_steps": 1, "pool_prompts": 2, "pool_completions": 4},
    **{"rl": {"steps": 8, "batch": {"prompts_per_step": 2, "group_size": 2}}, "sampling": {"max_new_tokens": 12}},
    **{"members": 2, "ensembles": ["worst"]},
}


def stages_of(values: dict[str, Any]) -> dict[str, Any]:
    stages = overoptimization_stages(resolve_settings(OVEROPTIMIZATION, values))  # type: ignore[arg-type]
    assert len({stage.name for stage in stages}) == len(stages)
    return {stage.name: stage for stage in stages}


def sample(tokens: list[int], start: int, logp: float = -1.0) -> Sample:
    action = torch.arange(len(tokens)) >= start
    return Sample(torch.tensor(tokens), action, logp * action, (0, 0), StopReason.END, "completion")


def test_agreement_by_hand() -> None:
    assert combined([1.0, 3.0], "mean", 9.0) == 2.0
    assert combined([1.0, 3.0], "worst", 9.0) == 1.0
    assert combined([1.0, 3.0], "mean_minus_variance", 0.5) == pytest.approx(2.0 - 0.5 * 1.0)
    assert combined([1.0], "single", 9.0) == 1.0


def test_gold_is_a_standardised_mean_of_log_probabilities() -> None:
    samples = [sample([5, 6, 7, 8, 9], 2), sample([5, 6, 7], 2)]
    sums = completion_logp("whetstone", 1.0)(samples)
    raw = gold_score(model="whetstone")([Prompt("a", ())] * 2, samples)
    assert raw == pytest.approx([float(sums[0]) / 3, float(sums[1]) / 1], rel=1e-5)
    assert raw[0] < -0.1
    moved = gold_score(model="whetstone", mean=2.0, spread=4.0)([Prompt("a", ())] * 2, samples)
    assert moved == pytest.approx([(each - 2.0) / 4.0 for each in raw])


def test_completion_logp_against_the_model_itself() -> None:
    from whet.model.load import load_model

    tokens = [5, 6, 7, 8]
    model = load_model("whetstone").model
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1)
    expected = sum(float(logp[at - 1, tokens[at]]) for at in (2, 3))
    assert float(completion_logp("whetstone", 1.0)([sample(tokens, 2)])[0]) == pytest.approx(expected, abs=1e-4)


def test_how_far_a_completion_has_moved_is_its_log_ratio_to_the_start() -> None:
    one, two = sample([5, 6, 7, 8], 2), sample([5, 6, 9], 2)
    theirs = completion_logp("whetstone", 1.0)([one, two])
    moved = moved_score(model="whetstone", temperature=1.0)([Prompt("a", ())] * 2, [one, two])
    assert moved == pytest.approx([-2.0 - float(theirs[0]), -1.0 - float(theirs[1])], abs=1e-5)


def test_gold_says_which_is_chosen() -> None:
    rows = [{"prompt": "?", "completions": ["worse", "better"], "gold": [0.0, 1.0]}]
    assert gold_labelled_pairs(rows) == [{"prompt": "?", "chosen": "better", "rejected": "worse"}]
    assert gold_labelled_pairs([{"prompt": "?", "completions": ["same", "same"], "gold": [0.0, 0.0]}]) == []


@for_every(
    [
        ({"betaz": 1}, "betaz"),
        ({"sizes": [64, 32]}, "ascending"),
        ({"sizes": [64, 8192]}, "raise proxy_steps"),
        ({"betas": [0.0]}, "greater than 0"),
        ({"data": {"source": "task:arithmetic+countdown"}}, "give one task"),
        ({"data": {"difficulty": [2, 3]}}, "give one"),
        ({"rl": {"method": "sft"}}, "learns from no reward"),
        ({"eval": {"prompts": 3}}, "eval has no effect"),
    ]
)
def test_settings_that_cannot_work_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(WhetError, match=said) as caught:
        stages_of(values)
    assert "\n" not in str(caught.value)


def test_every_seed_has_every_condition_and_its_own_proxies() -> None:
    stages = stages_of({"seeds": 2, "sizes": [64, 1024], "betas": [0.1], "ensembles": ["worst"], "members": 3})
    names = list(stages)
    assert names.index("learn-1024-seed0") < names.index("proxy-64-seed1")
    assert {"kl-0.1-seed1", "ensemble-worst-seed1", "member2-64-seed0"} <= set(names)
    places = {name: stage.work.args[1:] for name, stage in stages.items() if name.startswith(("proxy", "member"))}
    assert places["proxy-64-seed0"] == (64, 0, 0) and places["proxy-64-seed1"] == (64, 1, 0)
    assert [places[f"member{at}-64-seed0"] for at in (1, 2)] == [(64, 0, 1), (64, 0, 2)]
    assert stages["ensemble-worst-seed1"].reads[2:] == ("proxy-64-seed1", "member1-64-seed1", "member2-64-seed1")
    assert stages["kl-0.1-seed0"].reads[2:] == ("proxy-64-seed0",)


def test_a_run_trains_on_the_task_and_the_penalty_is_in_the_reward() -> None:
    settings: Any = resolve_settings(OVEROPTIMIZATION, {})
    plain, tied = (learning_config(settings, Condition(0, 32, beta), []) for beta in (0.0, 0.2))
    assert plain["data"]["source"] == "task:countdown" and plain["objective"]["kl"] == "none"
    assert tied["objective"]["kl"] == {"kind": "k1_reward", "beta": 0.2}
    assert plain["batch"]["prompts_per_step"] * plain["batch"]["group_size"] == 128


@pytest.mark.slow
def test_a_tiny_study_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import whet.tools.pipelines.overoptimization as study

    monkeypatch.setattr(study, "NUM_HELD_OUT", 10)
    monkeypatch.setattr(study, "NUM_STANDARD", 20)
    folder = tmp_path / "study"
    before = study.choose_best

    def broken(*given: Any) -> Any:
        raise Interrupted

    monkeypatch.setattr(study, "choose_best", broken)
    assert run_pipeline("overoptimization", TINY, {"folder": str(folder)}).status == "interrupted"
    monkeypatch.setattr(study, "choose_best", before)
    stamp = (folder / "01-gold" / "stage.json").stat().st_mtime_ns
    assert resume_pipeline(folder).status == "finished"
    assert (folder / "01-gold" / "stage.json").stat().st_mtime_ns == stamp
    (curves,) = folder.glob("*-curves")
    findings = json.loads((curves / "overoptimization.json").read_text())["findings"]
    assert [each["group"] for each in findings] == ["best_of_n", "rl", "kl", "best_of_n_ensemble", "ensemble"]
    assert len(findings[1]["mean"]) == 2 and findings[1]["end"]["d"] > 0
    assert "<svg" in (curves / "overoptimization.svg").read_text()
    assert "learning, 8 pairs" in (folder / "pipeline.html").read_text()
    proxy = json.loads(next(folder.glob("*-proxy-8-seed0/stage.json")).read_text())["result"]
    scorer = ProxyReward([(proxy["model"], proxy["mean"], proxy["spread"])], "single", 0.0)
    prompt = Prompt("a", ({"role": "user", "content": "Make 9 from 4 5"},))
    scores = scorer.opinions([prompt] * 3, ["4+5", "45", "4+5"])[0]
    assert scores[0] == scores[2] != scores[1]


def test_curves_come_from_results() -> None:
    row = {"name": "a", "kind": "rl", "group": "rl", "seed": 1, "points": [[0.5, 0.1, 0.2]]}
    (curve,) = read_curves({"learn": FinishedStage(Path(), {"curves": [row]}), "gold": FinishedStage(Path(), {})})
    assert (curve.seed, curve.points[0].proxy) == (1, 0.2)
