"""The two loops of self-improvement, tiny ones on the built-in model: whole, broken off and resumed, and mistaken."""

import hashlib
import json
import shutil

import pytest

from whet.data import demonstrations_from, read_rows
from whet.data.pairs import preferences_from
from whet.tools.pipelines import read_json_lines
from whet.tools.pipelines.judging import PairLabel
from whet.tools.pipelines.runner import resume_pipeline, run_pipeline
from whet.tools.pipelines.self_scores import mixed_scores
from whet.types import WhetError

COMMON = {
    "model": {"threads": 1},
    "data": {"difficulty": [1]},
    "sampling": {"max_new_tokens": 24},
    "eval": {"prompts": 6},
    "report": {"save_every": 1},
    "epochs": 1,
    "train": {"batch": {"rows_per_step": 4}},
}
BRIEF = {"steps": 2, "batch": {"rows_per_step": 4}}
TINY = {
    "self_rewarding": {
        "rounds": 2,
        "prompts_per_round": 6,
        "completions": 4,
        "anchor": {"parts": [{"reward": "exact_answer"}]},
        "teach": {"count": 4, "train": {**BRIEF, "steps": 12}},
        "judge": {"examples": 4, "eval_prompts": 2, "times": 2, "max_new_tokens": 30},
        "stop": False,
    },
    "constitutional": {
        "prompts": 6,
        "critiques": 2,
        "critique_tokens": 8,
        "examples": 4,
        "preference_prompts": 8,
        "teach": BRIEF,
        "revise": {"batch": {"rows_per_step": 4}},
    },
}
# a judge of 12 updates is silent: the anchor alone would leave no pair, so scores are given in its place
SCORED_BY = "whet.tools.pipelines.self_rewarding.score_in"
# and one of 2 updates contradicts itself: without a winner nothing would be trained
COMBINED_BY = "whet.tools.pipelines.constitutional.combine_orders"


def by_length(answer):
    """A stand-in for a judge that can spell; some of its answers cannot be read."""
    return None if len(answer) % 5 == 4 else float(len(answer) % 5)


def with_a_winner(forth, back):
    """A stand-in for feedback that does not contradict itself."""
    return PairLabel(0.5 + 0.1 * (1 + forth) * (1 if forth > back else -1))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    runs = {}

    def run(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp(name) / "run"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(SCORED_BY, by_length)
                patch.setattr(COMBINED_BY, with_a_winner)
                runs[name] = run_pipeline(name, COMMON, TINY[name], {"folder": str(folder)})
        return runs[name]

    return run


def rows_of(run, stage, file):
    return read_json_lines(run.stages[stage].folder / file)


def content(folder):
    """Everything two equal pipelines share."""
    found = {}
    for pattern in ("*/*.jsonl", "*/run/checkpoints/*/*.safetensors"):
        for path in sorted(folder.glob(pattern)):
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.glob("*/stage.json")):
        found[str(path.relative_to(folder))] = json.dumps(json.loads(path.read_text()) | {"seconds": 0})
    return found


def test_the_policy_judges_its_own_completions_and_the_next_one_judges_the_next(made):
    run = made("self_rewarding")
    assert run.status == "finished"
    for at in (1, 2):
        rows = rows_of(run, f"round{at}-pairs", "judged.jsonl")
        assert len(rows) == 6
        assert all(len(row["judgments"]) == len(row["truth"]) == len(row["anchor"]) == 4 for row in rows)
        assert all(len(each) == 2 for row in rows for each in row["judgments"])
        scores = {row["id"]: dict(zip(row["completions"], mixed_scores(row, 0.5), strict=True)) for row in rows}
        pairs = rows_of(run, f"round{at}-pairs", "pairs.jsonl")
        assert all(pair["chosen_score"] > pair["rejected_score"] for pair in pairs)
        assert all(pair["chosen"] in scores[pair["id"]] for pair in pairs)
        counts = run.stages[f"round{at}-pairs"].result["counts"]
        assert counts["pairs"] + counts["ties"] + counts["cut_off"] == 6 and counts["pairs"] == len(pairs) > 0
    config = (run.stages["round2-train"].folder / "run" / "config.toml").read_text()
    assert str(run.stages["round1-train"].folder / "run") in config
    first = (run.stages["round1-train"].folder / "run" / "config.toml").read_text()
    assert str(run.stages["teach"].folder / "run") in first


def test_every_round_has_its_signals(made):
    run = made("self_rewarding")
    for at in (1, 2):
        metrics = run.stages[f"round{at}-collapse"].result["metrics"]
        expected = {"length", "own_score", "spread", "ties", "unreadable", "distinct", "judge_accuracy", "accuracy"}
        assert expected <= set(metrics) and metrics["length"] > 0 and 0 < metrics["distinct"] <= 1
        assert run.stages[f"round{at}-collapse"].result["summary"]
    taught = demonstrations_from(read_rows(str(run.stages["examples"].folder / "demonstrations.jsonl")))
    assert len(taught) == 4 + 4 * 4 and sum("Score:" in row.completion for row in taught) == 16


def test_completions_are_criticised_revised_learnt_and_compared(made):
    run = made("constitutional")
    assert run.status == "finished"
    rows = rows_of(run, "revisions", "revisions.jsonl")
    assert len(rows) == 6 and all(len(row["critiques"]) == len(row["revisions"]) == 2 for row in rows)
    learnt = {row["id"]: row["completion"] for row in rows_of(run, "revise", "demonstrations.jsonl")}
    assert learnt and all(learnt[row["id"]] == row["revisions"][-1] for row in rows if row["id"] in learnt)
    counts = run.stages["revisions"].result["counts"]
    assert counts["changed"] == sum(row["revisions"][-1] != row["completion"] for row in rows)
    assert len(learnt) == 6 - counts["cut_off_or_empty"]
    labels = rows_of(run, "pairs", "labels.jsonl")
    assert labels and all(0 <= line["forth"] <= 1 and line["principle"] == "right steps" for line in labels)
    pairs = preferences_from(read_rows(str(run.stages["pairs"].folder / "pairs.jsonl")))
    assert len(pairs) == run.stages["pairs"].result["train_pairs"] > 0
    assert all(0.5 < pair.preference < 1 for pair in pairs)
    start = (run.stages["train"].folder / "run" / "config.toml").read_text()
    assert str(run.stages["revise"].folder / "run") in start and "eval2" in run.stages
    assert "principle" in (run.stages["revisions"].folder / "constitution.toml").read_text()


@pytest.mark.parametrize(
    ("name", "stage", "half_done"),
    [("self_rewarding", "round2-pairs", "judged.jsonl"), ("constitutional", "completions", "completions.jsonl")],
)
def test_broken_off_and_resumed_comes_to_the_same_bytes(made, tmp_path, monkeypatch, name, stage, half_done):
    monkeypatch.setattr(SCORED_BY, by_length)
    monkeypatch.setattr(COMBINED_BY, with_a_winner)
    whole, again = made(name), tmp_path / "run"
    shutil.copytree(whole.folder, again)
    folders = sorted(path for path in again.iterdir() if path.is_dir())
    at = next(number for number, path in enumerate(folders) if path.name.endswith(f"-{stage}"))
    for path in folders[at + 1 :]:
        shutil.rmtree(path)
    (folders[at] / "stage.json").unlink()
    (folders[at] / half_done).unlink()
    resumed = resume_pipeline(again)
    assert resumed.status == "finished" and len(resumed.stages) == len(whole.stages)
    assert content(again) == content(whole.folder)


def test_feedback_may_reason_and_a_preference_model_may_be_trained_against(tmp_path, monkeypatch):
    monkeypatch.setattr(COMBINED_BY, with_a_winner)
    layer = {
        "prompts": 4,
        "critiques": 1,
        "examples": 2,
        "teach": {**BRIEF, "steps": 1},
        "eval": {"prompts": 0},
        "learn": "reward_model",
        "steps": 1,
        "train": {"batch": {"prompts_per_step": 2, "group_size": 2}},
        "reward_model": {"batch": {"rows_per_step": 4}},
        "feedback": {"reason": True, "reason_tokens": 4},
        "folder": str(tmp_path / "run"),
    }
    common = {key: value for key, value in COMMON.items() if key != "train"}
    run = run_pipeline("constitutional", common, TINY["constitutional"], layer)
    labels = rows_of(run, "pairs", "labels.jsonl")
    assert labels and all(0.4 <= line[side] <= 0.6 for line in labels for side in ("forth", "back"))
    assert run.stages["reward-model"].result["steps"] > 0
    config = (run.stages["train"].folder / "run" / "config.toml").read_text()
    assert "learned" in config and str(run.stages["reward-model"].folder / "run" / "checkpoints") in config


@pytest.mark.parametrize(
    ("name", "layer", "said"),
    [
        ("self_rewarding", {"anchor_weight": 0.3}, "anchor_weight has no effect without anchor.parts"),
        ("self_rewarding", {"judge": {"tmies": 3}}, "did you mean 'judge.times'"),
        ("self_rewarding", {"method": "grpo"}, "does not learn from pairs"),
        ("self_rewarding", {"teach": {"train": {"model": {"name": "a"}}}}, "set by the pipeline"),
        (
            "self_rewarding",
            {"data": {"source": "a.jsonl"}, "judge": {"eval_prompts": 3}},
            "judge.eval_prompts has no effect",
        ),
        ("constitutional", {"constitution": "nowhere.toml"}, "nowhere.toml cannot be read"),
        ("constitutional", {"helpful": "absent.jsonl"}, "absent.jsonl"),
        ("constitutional", {"data": {"source": "absent.jsonl"}}, "absent.jsonl"),
        ("constitutional", {"forbidden": "unsafe"}, "give COLUMN=VALUE"),
        ("constitutional", {"feedback": {"reason_tokens": 3}}, "has no effect without feedback.reason"),
        ("constitutional", {"learn": "pairs", "steps": 3}, "steps has no effect"),
        ("constitutional", {"method": "ppo"}, "does not learn from pairs"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_done(tmp_path, monkeypatch, name, layer, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WhetError) as error:
        run_pipeline(name, layer)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
