"""Who the members of a learned reward are, what they agree on, and what is said where their scales differ."""

import json
import statistics
from typing import ClassVar

import pytest

from whet.record.metrics.reward_model import disagreement, ensemble_score, standardized
from whet.reward.learned.members import head_scales, model_folders, warn_of_scales
from whet.reward.learned.outcome import learned
from whet.types import WhetError


def checkpoint(run, step, complete=True):
    folder = run / "checkpoints" / f"step-{step:06d}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if complete:
        (folder / "manifest.json").write_text("{}")
    return str(folder)


def test_variance_is_the_populations_and_weighed():
    scores = [1.0, 2.0, 6.0]
    assert ensemble_score(scores, "mean_minus_variance", variance_weight=0.5) == pytest.approx(
        3 - 0.5 * statistics.pvariance(scores)
    )
    assert ensemble_score(scores, "mean_minus_variance") == pytest.approx(3 - 0.1 * 14 / 3)
    assert ensemble_score([4.0], "mean_minus_variance", variance_weight=0.5) == 4.0
    assert disagreement(scores) == pytest.approx(statistics.pstdev(scores))
    assert standardized(scores, [(1.0, 2.0), (0.0, 4.0), (6.0, 1.0)]) == [0.0, 0.5, 0.0]


def test_a_run_stands_for_its_newest_whole_checkpoint(tmp_path):
    checkpoint(tmp_path / "run", 90)
    newest = checkpoint(tmp_path / "run", 1_000_000)
    checkpoint(tmp_path / "run", 1_000_010, complete=False)
    assert model_folders(str(tmp_path / "run")) == [newest]
    assert model_folders([newest, str(tmp_path / "none")]) == [newest, str(tmp_path / "none")]


def test_a_folder_of_runs_by_seed_stands_for_all_of_them(tmp_path):
    wanted = [checkpoint(tmp_path / f"seed-{seed}", 5) for seed in (2, 10)]
    assert model_folders(str(tmp_path)) == wanted
    assert learned(folder=str(tmp_path)).made_of["folder"] == wanted
    (tmp_path / "seed-11").mkdir()
    with pytest.raises(WhetError, match=r"seed-11: this member has no checkpoint yet"):
        model_folders(str(tmp_path))


class Config:  # of a model
    num_labels = 2
    score_members: ClassVar = [[0.5, 2.0], None]


def test_heads_are_known_by_the_models_config():
    assert head_scales(Config()) == [(0.5, 2.0), None]
    Config.num_labels = 3
    assert head_scales(Config()) is None and head_scales(object()) is None


def test_members_on_different_scales_are_named(caplog):
    alike = [(value, value + 0.1) for value in range(10)]
    assert warn_of_scales(alike, "learned") and not caplog.text
    assert not warn_of_scales([(0.0, 9.0)], "learned")
    assert warn_of_scales([(value, 5.0 * value) for value in range(10)], "learned")
    assert "members score on different scales" in caplog.text and "held-out rows" in caplog.text


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ensemble": "worst", "variance_weight": 0.5}, "which ensemble=worst does not look at"),
        ({"ensemble": "mean_minus_variance", "deviations": 2.0}, "give ensemble=mean_minus_std, or drop it"),
        ({"ensemble": "mean_minus_variance", "variance_weight": -1.0}, "give 0 or more"),
        ({"scale": "own"}, "give one of auto, plain"),
    ],
)
def test_settings_without_effect_or_sense_are_refused(settings, told):
    with pytest.raises(WhetError, match=told):
        learned(folder="a", **settings)


def test_what_is_no_model_is_still_an_error(tmp_path):
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(WhetError, match=r"has no config\.json"):
        learned(folder=str(tmp_path)).prepare()
    assert json.dumps(dict(learned(folder="x", ensemble="worst").made_of)).count("worst") == 1
