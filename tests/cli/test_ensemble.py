"""An ensemble of reward models by seed, from the command line: trained, continued, and used."""

import json
import re

import pytest
from typer.testing import CliRunner

from whet import api
from whet.cli import app
from whet.record.log import read_metrics, read_summary
from whet.record.text import percent
from whet.reward.learned.outcome import learned
from whet.tools.studies.ensemble import train_ensemble
from whet.types import WhetError

SMALL = [
    *("--set", "data.difficulty=1", "--set", "data.count=40", "--set", "batch.rows_per_step=8"),
    *("--set", "eval.prompts=12", "--set", "eval.every=0"),
]


def run(*words):
    found = CliRunner().invoke(app, ["train", "rm", *SMALL, *words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.output


def page_words(folder):
    """The words of a run's page, without its markup."""
    page = (folder / "report.html").read_text()
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"(?s)<(style|script).*?</\1>", "", page)).split())


def test_members_are_trained_once_and_evaluated_together(tmp_path):
    folder = tmp_path / "members"
    printed = run("--seeds", "2", "--steps", "1", "--folder", str(folder))
    assert "all members together" in printed and "accuracy_worst" in printed and f"folder={folder}" in printed
    saved = json.loads((folder / "ensemble.json").read_text())
    assert len(saved["members"]) == 2 and {"accuracy", "member/2/accuracy"} <= set(saved["eval"])
    judge = learned(folder=str(folder), ensemble="worst", device="cpu")
    judge.prepare()
    assert len(judge.made_of["folder"]) == 2 and judge._scales is not None and len(judge._scales) == 2
    again = run("--seeds", "3", "--steps", "1", "--folder", str(folder))
    assert again.count("already finished") == 2
    with pytest.raises(WhetError, match=r"seed-0 was trained otherwise \(steps\)"):
        run("--seeds", "2", "--steps", "3", "--folder", str(folder))
    summary, words = read_summary(folder / "seed-2"), page_words(folder / "seed-2")
    before, after = summary["before"], summary["after"]
    assert summary["eval_size"] == 12
    for name in ("accuracy", "calibration_error"):
        assert f"{name.replace('_', ' ')} {percent(before[name])} {percent(after[name])}" in words
    assert re.search(rf"Calibration share right .*error {percent(after['calibration_error'])}", words)
    bins = sorted(name.split("/")[1] for name in after if name.startswith("calibration/") and name.endswith("/rows"))
    assert bins and sum(after[f"calibration/{each}/rows"] for each in bins) == 36  # three pairs of each row
    for each in bins:
        sure, right, rows = (after[f"calibration/{each}/{what}"] for what in ("sure", "right", "rows"))
        assert f"{percent(sure)} sure, {percent(right)} right, {rows:.0f} rows" in words


def test_a_policy_trained_on_members_reports_how_far_they_are_apart(tmp_path):
    run("--set", "reward_model.heads=3", "--steps", "1", "--folder", str(tmp_path / "heads"))
    learnt = {"reward": "learned", "settings": {"folder": str(tmp_path / "heads"), "ensemble": "mean_minus_variance"}}
    small = {
        "reward": {"parts": [{"reward": "exact_answer", "weight": 0.0}, learnt]},
        "batch": {"prompts_per_step": 2, "group_size": 2},
        "sampling": {"max_new_tokens": 8},
        "eval": {"prompts": 4},
    }
    trained = api.train("grpo", steps=2, folder=str(tmp_path / "policy"), config=small, console=False)
    apart = [line["metrics"]["learned_disagreement"] for line in read_metrics(trained.folder) if "metrics" in line]
    assert len(apart) == 2 and all(0 < each < 10 for each in apart) and apart[0] != apart[1]


def test_heads_and_tokens_are_named_before_the_first_step(tmp_path):
    printed = run("--set", "reward_model.heads=2", "--steps", "1", "--folder", str(tmp_path / "heads"))
    assert "2 heads on one trunk, each from its own draw of the rows" in printed
    assert "scored at the last token of the conversation" in printed and "disagreement finds errors" in printed


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--set", "reward_model.bootstrap=false"), "reward_model.bootstrap has no effect on a single head"),
        (
            ("--set", "reward_model.outcome_at=every_token"),
            "reward_model.outcome_at has no effect: rm learns from no outcomes",
        ),
        (("--seeds", "2", "--reward", "exact_answer"), "reward has no effect"),
    ],
)
def test_what_has_no_effect_is_refused(words, complaint, tmp_path):
    with pytest.raises(WhetError, match=complaint):
        run(*words, "--folder", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_policy_has_no_members():
    with pytest.raises(WhetError, match="--seeds makes an ensemble of reward models"):
        train_ensemble("sft", 2)
