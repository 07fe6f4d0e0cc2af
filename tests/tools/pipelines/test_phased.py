"""Preferences and rewards one after the other, tiny: what is measured after each, the guard, the verdict."""

import json

import pytest

from whet.data.tasks import TASKS, gold_completion
from whet.data.tasks.item import distinct
from whet.record.metrics.win_rate import WinRate
from whet.tools.pipelines import read_json_lines
from whet.tools.pipelines.phased import PHASED, Phase, _rl_config, kept_verdict, phases
from whet.tools.pipelines.runner import resume_pipeline, run_pipeline
from whet.tools.pipelines.settings import resolve_settings
from whet.types import WhetError

TINY = {
    "model": {"threads": 1},
    "data": {"difficulty": [1]},
    "prompts": 24,
    "held_out_share": 0.3,
    "judged_prompts": 3,
    "judged_completions": 2,
    "steps": 1,
    "epochs": 1,
    "sampling": {"max_new_tokens": 24},
    "eval": {"prompts": 4},
    "preference": {"batch": {"rows_per_step": 4}},
    "reward_model": {"batch": {"rows_per_step": 4}},
    "train": {"batch": {"prompts_per_step": 2, "group_size": 2}},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    layer = {"folder": str(tmp_path_factory.mktemp("phased") / "run"), "replay_epochs": 0.5}
    return run_pipeline("phased", TINY, layer)


def config(run, stage):
    return (run.stages[stage].folder / "run" / "config.toml").read_text()


def test_each_phase_is_measured_and_starts_where_it_says(run):
    names = ["preference", "rl", "replay", "rl-unguarded"]
    measured = [name for phase in names for name in (phase, f"{phase}-measured")]
    assert list(run.stages) == ["pairs", "judge-model", "start-measured", *measured, "check"]
    folder = {name: str(run.stages[name].folder / "run") for name in names}
    assert 'name = "whetstone"' in config(run, "preference")
    assert folder["preference"] in config(run, "rl") and folder["preference"] in config(run, "rl-unguarded")
    assert folder["rl"] in config(run, "replay")


def test_the_guard_is_the_kl_to_the_first_phase_and_is_off_beside_it():
    settings = resolve_settings(PHASED, {"guard_kl": 0.3})
    tied, free = (_rl_config(settings, "model", guard)["objective"]["kl"] for guard in (settings.guard_kl, 0.0))
    assert tied == {"kind": "k3", "beta": 0.3} and free == {"kind": "none"}


def test_the_unguarded_phase_runs_without_a_reference(run):
    assert 'kl = "none"' in config(run, "rl-unguarded") and 'kl = "none"' not in config(run, "rl")


def test_pairs_are_even_before_and_moved_after(run):
    wins = {
        name: [row["win"] for row in read_json_lines(run.stages[f"{name}-measured"].folder / "pair_wins.jsonl")]
        for name in ("start", "preference")
    }
    assert set(wins["start"]) == {0.5} and len(wins["preference"]) == len(wins["start"]) > 2
    assert set(wins["preference"]) <= {0.0, 1.0}
    result = run.stages["preference-measured"].result
    assert result["measured"]["kl"]["value"] != 0 and "accuracy" in result["metrics"]
    assert result["metrics"]["pair_accuracy"] == pytest.approx(sum(wins["preference"]) / len(wins["preference"]))


def test_the_check_says_what_every_later_phase_kept(run):
    result = run.stages["check"].result
    assert [line[0] for line in result["table"]] == [
        "",
        "the first policy",
        "preference",
        "rl",
        "replay",
        "rl-unguarded",
    ]
    assert [words.partition(":")[0] for words in result["findings"]] == [
        "rl",
        "rl",
        "replay",
        "replay",
        "rl-unguarded",
        "rl-unguarded",
    ]
    assert all("pair accuracy" in words or "win rate" in words for words in result["findings"])
    assert resume_pipeline(run.folder).stages["check"].result == result


def change(value, low, high):
    return WinRate(value, low, high, 100)


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        (change(0.01, -0.02, 0.04), "kept"),
        (change(-0.02, -0.04, -0.001), "kept"),  # a loss for sure, and within the tolerance for sure
        (change(-0.2, -0.3, -0.1), "LOST"),
        (change(-0.06, -0.12, -0.01), "LOST"),
        (change(-0.04, -0.12, 0.04), "cannot be told"),
    ],
)
def test_kept_lost_or_neither(moved, said):
    verdict = kept_verdict("pair accuracy", 0.9, 0.9 + moved.value, moved, tolerance=0.05)
    assert verdict.words.startswith(said)
    assert (verdict.is_kept, verdict.is_lost) == (said == "kept", said == "LOST")


def test_the_other_order_checks_the_reward():
    settings = resolve_settings(PHASED, {"order": "rl_first"})
    assert phases(settings) == [Phase("rl", "rl"), Phase("preference", "preference", "rl")]


@pytest.mark.slow
def test_the_other_order_runs(tmp_path):
    run = run_pipeline("phased", TINY, {"order": "rl_first", "folder": str(tmp_path / "run")})
    (words,) = run.stages["check"].result["findings"]
    assert words.startswith("preference: ") and "accuracy" in words


@pytest.mark.slow
def test_pairs_that_work_against_the_reward_are_found_to_undo_it(tmp_path):
    """The task needs the working; the pairs prefer completions that answer at once."""
    items = distinct(TASKS["arithmetic"], "train", 512, 77, 3)
    lines = [
        {"prompt": [{"role": "user", "content": item.question}], "chosen": gold_completion(item, worked=False)}
        | {"rejected": gold_completion(item)}
        for item in items
    ]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sizes = {"judged_prompts": 10, "eval": {"prompts": 60}, "model": {"threads": 1}}
    layer = {"pairs": str(pairs), "order": "rl_first", "folder": str(tmp_path / "run")}
    run = run_pipeline("phased", sizes, layer)
    assert run.stages["rl-measured"].result["task_value"] > 0.9
    (words,) = run.stages["check"].result["findings"]
    assert words.startswith("preference: LOST: accuracy ")


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ({"method": "grpo"}, "does not learn from pairs"),
        ({"rl_method": "dpo"}, "draws no completions"),
        ({"eval": {"prompts": 0}}, "give eval.source"),
        ({"train": {"objective": {"kl": {"beta": 1.0}}}}, "set guard_kl instead"),
        ({"order": "rl_first", "guard_kl": 0.1}, "guard_kl has no effect"),
        ({"guard_kl": 0, "compare_unguarded": True}, "compare_unguarded has no effect"),
        ({"preference": {"preference": {"online": 2}}}, "drop online"),
        ({"pairs": "gone.jsonl"}, "gone.jsonl is not there"),
        ({"completions": 3}, "completions has no effect"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_done(tmp_path, monkeypatch, layer, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WhetError) as error:
        run_pipeline("phased", layer)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
