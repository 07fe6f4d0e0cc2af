"""The over-optimisation study: its settings, its scores, its stages and its command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.support.for_every import for_every
from whet.cli import app
from whet.tools.pipelines.stages import FinishedStage, Interrupted
from whet.tools.studies.overoptimization.proxies import (
    GoldReward,
    ProxyReward,
    ScoreRecorder,
    combined,
    completion_logp,
    read_scores,
)
from whet.tools.studies.overoptimization.settings import QUICK, learning_config, settings_text, study_settings
from whet.tools.studies.overoptimization.stages import (
    gold_labelled_pairs,
    read_curves,
    study_overoptimization,
    study_stages,
)
from whet.types import Prompt, Sample, StepReport, StopReason, WhetError

TINY: dict[str, Any] = {
    **{"seeds": 1, "sizes": [8], "gold_steps": 1, "proxy_steps": 1, "pool_prompts": 2, "pool_completions": 4},
    **{"steps": 8, "prompts_per_step": 2, "group_size": 2, "eval_every": 4, "max_new_tokens": 12},
    **{"betas": [0.1], "members": 2, "ensembles": ["worst"]},
}


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
    raw = GoldReward("whetstone", 0.0, 1.0)([Prompt("a", ())] * 2, samples)
    assert raw == pytest.approx([float(sums[0]) / 3, float(sums[1]) / 1], rel=1e-5)
    assert raw[0] < -0.1
    moved = GoldReward("whetstone", 2.0, 4.0)([Prompt("a", ())] * 2, samples)
    assert moved == pytest.approx([(each - 2.0) / 4.0 for each in raw])


def test_completion_logp_against_the_model_itself() -> None:
    from whet.model.load import load_model

    tokens = [5, 6, 7, 8]
    model = load_model("whetstone").model
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1)
    expected = sum(float(logp[at - 1, tokens[at]]) for at in (2, 3))
    assert float(completion_logp("whetstone", 1.0)([sample(tokens, 2)])[0]) == pytest.approx(expected, abs=1e-4)


def test_survey_is_the_kl_of_a_completion(tmp_path: Path) -> None:
    file = tmp_path / "survey.jsonl"
    one, two = sample([5, 6, 7, 8], 2), sample([5, 6, 9], 2)
    scored = [each.scored({"gold": gold, "proxy": 2.0}, 2.0) for each, gold in ((one, 1.0), (two, 3.0))]
    report = StepReport(1, 0, {}, {}, {})
    watcher = ScoreRecorder(file, "whetstone", 1.0)
    watcher.stepped(report, [(Prompt("a", ()), each) for each in scored])
    watcher.stepped(report, [(Prompt("a", ()), each) for each in scored])  # done again after a break
    (row,) = read_scores(file)
    theirs = completion_logp("whetstone", 1.0)([one, two])
    assert row["kl"] == pytest.approx(((-2.0 - float(theirs[0])) + (-1.0 - float(theirs[1]))) / 2, abs=1e-5)
    assert (row["gold"], row["proxy"], row["completion_tokens"]) == (2.0, 2.0, 1.5)


def test_labels_hard_and_sampled() -> None:
    rows = [{"messages": [], "completions": [f"worse {at}", f"better {at}"], "gold": [0.0, 1.0]} for at in range(400)]
    hard = gold_labelled_pairs(rows, 1.0, "hard", 0)
    assert all(pair["chosen"].startswith("better") for pair in hard)
    drawn = gold_labelled_pairs(rows, 0.5, "sampled", 0)
    share = sum(pair["chosen"].startswith("better") for pair in drawn) / len(drawn)
    assert share == pytest.approx(1 / (1 + math.exp(-2)), abs=0.04)
    equal = [{"messages": [], "completions": ["same", "same"], "gold": [0.0, 0.0]}]
    assert gold_labelled_pairs(equal, 1.0, "hard", 0) == []


@for_every(
    [
        ({"betaz": 1}, "betaz"),
        ({"sizes": [64, 32]}, "ascending"),
        ({"sizes": [64, 8192]}, "raise proxy_steps"),
        ({"studied_size": 100}, "none of the sizes"),
        ({"betas": [0.0]}, "drop it"),
        ({"task": "poetry"}, "there are arithmetic"),
        ({"method": "sft"}, "learns from no reward"),
        ({"labels": "soft"}, "labels"),
    ]
)
def test_settings_that_cannot_work_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(WhetError, match=said) as caught:
        study_settings(values)
    assert "\n" not in str(caught.value)


def test_settings_are_listed_with_their_meaning() -> None:
    text = settings_text(study_settings(dict(QUICK), {"betas": 0.3}))
    assert "betas = [0.3]" in text and "KL penalties to try" in text
    assert text.count("#") == text.count("\n") + 1


def test_stages_cover_every_plan_once() -> None:
    settings = study_settings({"seeds": 2, "sizes": [64, 1024], "restrained_seeds": 2})
    names = [stage.name for stage in study_stages(settings)]
    assert len(set(names)) == len(names)
    assert names.index("learn-1024-seed0") < names.index("proxy-64-seed1")
    assert {"kl-0.1-seed1", "ensemble-worst-seed1", "member3-64-seed0"} <= set(names)
    fewer = [stage.name for stage in study_stages(study_settings({"seeds": 2, "restrained_seeds": 1}))]
    second = [name for name in fewer if name.endswith("seed1")]
    assert "kl-0.1-seed0" in fewer
    assert second and not [name for name in second if name.startswith(("kl", "ensemble", "member"))]
    plain = learning_config(settings, 0, 0.0, {})["objective"]["kl"]
    assert plain == "none"
    assert learning_config(settings, 0, 0.2, {})["objective"]["kl"] == {"kind": "k1_reward", "beta": 0.2}


def test_the_defaults_are_the_settings_of_the_published_study() -> None:
    settings = study_settings()
    assert settings.sizes == (32, 256, 4096) and settings.betas == (0.02, 0.1)
    assert (settings.gold_steps, settings.proxy_steps, settings.steps, settings.eval_every) == (60, 128, 80, 5)
    assert (settings.pool_prompts, settings.pool_completions, settings.max_new_tokens) == (48, 128, 48)
    assert (settings.members, settings.variance_penalty, settings.least_d, settings.least_d_best_of) == (4, 0.1, 1, 0.3)
    assert settings.prompts_per_step * settings.group_size == 128 and settings.learning_rate == 8e-5


def test_every_proxy_has_a_seed_of_its_own() -> None:
    """The studied proxy is the first member of its ensemble; the others are trained from other seeds."""
    stages = {stage.name: stage.work for stage in study_stages(study_settings({"sizes": [32], "seeds": 2}))}
    places = {name: work.args[1:] for name, work in stages.items() if name.startswith(("proxy", "member"))}  # type: ignore[attr-defined]
    assert places["proxy-32-seed0"] == (32, 0, 0) and places["proxy-32-seed1"] == (32, 1, 0)
    assert [places[f"member{at}-32-seed0"] for at in (1, 2, 3)] == [(32, 0, 1), (32, 0, 2), (32, 0, 3)]


def test_a_proxy_is_the_checkpoint_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import whet.tools.studies.overoptimization.stages as study

    (tmp_path / "drawn").mkdir()
    rows = [{"messages": "2+2?", "completions": [f"{at}", "x"], "gold": [float(at), 0.5]} for at in range(6)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "drawn" / study.COMPARISONS).write_text(text, encoding="utf-8")
    checkpoint = tmp_path / "proxy" / study.RUN / "checkpoints" / "step-000001"
    checkpoint.mkdir(parents=True)
    monkeypatch.setattr(study, "NUM_HELD_OUT", 2)
    monkeypatch.setattr(study, "train_run", lambda *_: {"after": {"accuracy": 0.75}})
    monkeypatch.setattr(study, "_prompt", lambda row: row["messages"])
    monkeypatch.setattr(ProxyReward, "opinions", lambda self, prompts, completions: [[1.0] * len(completions)])
    drawn = FinishedStage(tmp_path / "drawn", {"spread": 1.0})
    result = study.train_proxy(study_settings({"sizes": [4]}), 4, 0, 0, tmp_path / "proxy", {study.COMPLETIONS: drawn})
    assert result["model"] == str(checkpoint.resolve()) and result["mean"] == 1.0 and "75" in result["summary"]


@pytest.mark.slow
def test_a_tiny_study_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import whet.tools.studies.overoptimization.stages as study

    monkeypatch.setattr(study, "NUM_HELD_OUT", 10)
    monkeypatch.setattr(study, "NUM_STANDARD", 20)
    folder = tmp_path / "study"
    before = study.choose_best

    def broken(*given: Any) -> Any:
        raise Interrupted

    monkeypatch.setattr(study, "choose_best", broken)
    assert study_overoptimization(TINY, folder=folder).status == "interrupted"
    monkeypatch.setattr(study, "choose_best", before)
    stamp = (folder / "01-gold" / "stage.json").stat().st_mtime_ns
    done = study_overoptimization(folder=folder)  # goes on with the folder's own settings
    assert done.status == "finished"
    assert (folder / "01-gold" / "stage.json").stat().st_mtime_ns == stamp
    groups = {finding.group for finding in done.findings}
    assert groups == {"best_of_n", "best_of_n_ensemble", "rl", "kl", "ensemble"}
    learning = next(finding for finding in done.findings if finding.group == "rl")
    assert len(learning.mean) == 2 and learning.end.d > 0
    values = json.loads((folder / "overoptimization.json").read_text())
    assert values["settings"]["steps"] == 8 and len(values["findings"]) == 5
    assert "<svg" in done.page.read_text()
    with pytest.raises(WhetError, match="other settings"):
        study_overoptimization({**TINY, "steps": 9}, folder=folder)
    proxy = json.loads(next(folder.glob("*-proxy-8-seed0/stage.json")).read_text())["result"]
    scorer = ProxyReward([(proxy["model"], proxy["mean"], proxy["spread"])], "single", 0.0)
    prompt = Prompt("a", ({"role": "user", "content": "Make 9 from 4 5"},))
    scores = scorer.opinions([prompt] * 3, ["4+5", "45", "4+5"])[0]
    assert scores[0] == scores[2] != scores[1]


def test_curves_come_from_results() -> None:
    row = {"name": "a", "kind": "rl", "group": "rl", "seed": 1, "points": [[0.5, 0.1, 0.2]]}
    (curve,) = read_curves({"learn": FinishedStage(Path(), {"curves": [row]}), "gold": FinishedStage(Path(), {})})
    assert (curve.seed, curve.points[0].proxy) == (1, 0.2)


def test_command_lists_and_refuses(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["study", "overoptimization", "--quick", "--show"])
    assert listed.exit_code == 0 and "seeds = 1 " in listed.output
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(WhetError, match="is not a study"):
        CliRunner().invoke(
            app, ["study", "overoptimization", "--folder", str(tmp_path)], catch_exceptions=False, standalone_mode=False
        )
