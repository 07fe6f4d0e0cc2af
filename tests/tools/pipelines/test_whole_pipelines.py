"""Three pipelines run whole on the built-in model, as small as they get: rounds, a comparison, and phases."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tests.support.for_every import for_every
from whet.cli import app
from whet.data.pairs import preferences_from
from whet.data.source import read_rows
from whet.record.metrics.win_rate import WinRate
from whet.tools.pipelines.library.pairs import prompt_key
from whet.tools.pipelines.library.phases import kept_verdict
from whet.tools.pipelines.registry import PIPELINES
from whet.tools.pipelines.rlhf import RLHFSettings, rlhf_entries
from whet.tools.pipelines.runner import resume_pipeline, run_pipeline
from whet.tools.pipelines.stages import read_json_lines
from whet.tools.pipelines.training import train_run, trained_result
from whet.types import WhetError

ROWS = {"batch": {"rows_per_step": 4}}
GROUPS = {"batch": {"prompts_per_step": 2, "group_size": 2}}
COMMON = {
    "model": {"threads": 1},
    "data": {"difficulty": [1]},
    "sampling": {"max_new_tokens": 24},
    "eval": {"prompts": 4},
}
PAIRS = {"prompts": 24, "held_out_share": 0.3, "judged_prompts": 4, "judged_completions": 2, "reward_model": ROWS}
TINY = {
    "spin": {"rounds": 1, "epochs": 1, "data": {"count": 8}, "train": ROWS, "imitate": ROWS},
    "rlhf": {
        **PAIRS,
        "completions": 4,
        "steps": 1,
        "most_n": 3,
        "sft": ROWS,
        "compare": ["ppo", "dpo", "best_of_n"],
        "train": {"ppo": GROUPS, "dpo": ROWS},
    },
    "phased": {**PAIRS, "steps": 1, "epochs": 1, "preference": ROWS, "train": GROUPS, "guard_kl": 0},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Each pipeline, run once."""
    runs = {}

    def run(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp(name) / "run"
            runs[name] = run_pipeline(
                name, COMMON, TINY[name], {"folder": str(folder)}, command=f"whet pipeline {name}"
            )
        return runs[name]

    return run


def rows_of(run, stage, file):
    return read_json_lines(run.stages[stage].folder / file)


def config(run, stage):
    return (run.stages[stage].folder / "run" / "config.toml").read_text()


# --- rounds ---


def test_the_demonstrations_are_chosen_and_own_completions_rejected(made):
    run = made("spin")
    assert run.status == "finished" and run.page.is_file()
    shown = {row["id"]: row["completion"] for row in rows_of(run, "demonstrations", "rows.jsonl")}
    pairs = rows_of(run, "round1-pairs", "pairs.jsonl")
    assert pairs and all(pair["chosen"] == shown[pair["id"]] != pair["rejected"] for pair in pairs)
    counts = run.stages["round1-pairs"].result["counts"]
    assert counts["pairs"] + counts["identical"] + counts["empty"] == 8
    assert run.stages["round1-imitate"].result["steps"] == run.stages["round1-train"].result["steps"] == 2
    path = str(run.stages["round1-pairs"].folder / "pairs.jsonl")
    assert len(preferences_from(read_rows(path))) == len(pairs)
    assert {"accuracy", "reward", "completion_tokens"} <= set(run.stages["round1-eval"].result["metrics"])
    assert not list(run.folder.glob("*/run/checkpoints/*/optimizer.safetensors"))


def test_what_is_finished_is_told_and_not_done_again_and_more_rounds_go_on(made, capsys):
    run = made("spin")
    page = run.page.read_text()
    assert "05-round1-train/run/report.html" in page and "whet pipeline spin" in page
    toml = run.folder / "pipeline.toml"
    text = toml.read_text()
    before = (run.stages["round1-train"].folder / "stage.json").stat().st_mtime_ns
    try:
        toml.write_text(text.replace("rounds = 1", "rounds = 2"))
        more = resume_pipeline(run.folder)
    finally:
        toml.write_text(text)
    assert (run.stages["round1-train"].folder / "stage.json").stat().st_mtime_ns == before
    assert capsys.readouterr().out.count("done before") == len(run.stages) == 8
    assert more.status == "finished" and list(more.stages)[8:] == [
        *("round2-completions", "round2-pairs", "round2-train", "round2-eval", "round2-imitate", "round2-imitate-eval"),
    ]
    for stage, start in (("round2-train", "round1-train"), ("round2-imitate", "round1-imitate")):
        assert str(run.stages[start].folder / "run") in config(more, stage)


def test_own_completions_that_equal_the_data_end_it(made, tmp_path):
    """The pairs of a round whose completions are the demonstrations themselves."""
    from whet.tools.pipelines.library.entry import StageInput, StageWork
    from whet.tools.pipelines.library.pairs import PairsEntry

    run = made("spin")
    shown = rows_of(run, "demonstrations", "rows.jsonl")
    own = tmp_path / "completions.jsonl"
    own.write_text(
        "".join(json.dumps({"completions": [row["completion"]], "finished": [True]}) + "\n" for row in shown)
    )
    demonstrations = str(run.stages["demonstrations"].folder / "rows.jsonl")
    inputs = {"completions": StageInput(source=str(own)), "demonstrations": StageInput(source=demonstrations)}
    entry = PairsEntry(name="pairs", completions="c", demonstrations="d", stop_share=0.9)
    result = entry.work(StageWork(None, inputs, tmp_path, {}))
    assert result["stop_reason"] == "8 of 8 own completions equal the data"


def test_a_folder_is_never_mixed_and_a_mistake_leaves_nothing_behind(made, tmp_path):
    run = made("spin")
    with pytest.raises(WhetError, match="already holds a pipeline 'spin'; `whet resume"):
        run_pipeline("iterative_dpo", COMMON, {"folder": str(run.folder)})
    with pytest.raises(WhetError, match="--steps has no effect"):
        resume_pipeline(run.folder, steps=3)
    with pytest.raises(WhetError, match="nowhere"):
        run_pipeline("iterative_dpo", COMMON, {"folder": str(tmp_path / "new"), "model": {"name": "nowhere"}})
    assert not (tmp_path / "new").exists()
    (tmp_path / "own").write_text("mine")
    with pytest.raises(WhetError, match="is not a pipeline"):
        run_pipeline("spin", COMMON, {"folder": str(tmp_path)})


def test_the_command_lists_shows_and_resumes(made):
    said = CliRunner().invoke(app, ["pipeline"])
    assert said.exit_code == 0 and all(f"{name} " in said.output for name in PIPELINES)
    shown = CliRunner().invoke(
        app, ["pipeline", "spin", "--show", "--rounds", "7", "--set", "train.optimizer.beta1=0.5"]
    )
    assert "rounds = 7" in shown.output and "beta1 = 0.5" in shown.output and "round7-imitate-eval" in shown.output
    again = CliRunner().invoke(app, ["resume", str(made("spin").folder)])
    assert again.exit_code == 0 and "finished: Held-out accuracy" in again.output


# --- the comparison ---


def test_no_prompt_is_on_two_sides_and_the_judged_ones_are_held_out(made):
    run = made("rlhf")
    assert run.status == "finished" and run.page.is_file()
    sides = {
        name: {row["id"] for row in rows_of(run, "pairs", f"{name}.jsonl")}
        for name in ("own", "other_half", "held_out")
    }
    assert not sides["own"] & sides["other_half"]
    assert not sides["held_out"] & (sides["own"] | sides["other_half"])
    assert {row["id"] for row in rows_of(run, "pairs", "prompts.jsonl")} == sides["own"]
    judged = rows_of(run, "pairs", "judged_prompts.jsonl")
    assert {row["id"] for row in judged} <= sides["held_out"] and len(judged) <= 4
    assert all(row["id"] == prompt_key(row) and row["answer"] for row in judged)


def test_policies_and_their_critic_start_from_what_the_plan_says(made):
    run = made("rlhf")
    assert "seed = 0\n" in config(run, "reward-model") and "seed = 1000\n" in config(run, "judge-model")
    for way in ("ppo", "dpo"):
        text = config(run, f"{way}-train")
        assert str(run.stages["sft"].folder / "run") in text and "judge-model" not in text
        assert ("reward-model" in text) == (way != "dpo")
    assert "reward-model" in config(run, "ppo-train").partition("[critic]")[2].partition("[")[0]
    measured = run.stages["reward-model"].result
    assert 0 <= measured["metrics"]["accuracy"] <= 1 and len(measured["interval"]) == 2


def test_the_budget_is_one_and_what_was_spent_is_counted(made):
    run = made("rlhf")
    start, plan = run.stages["sft-judged"].result, run.stages["compare"].result
    sequence, budget = start["sequence"], plan["budget"]
    # one step of 4 completions: sampled, read by reference, reward model, critic and (4 updates) the policy, both learn
    assert budget == pytest.approx(4 * 11 * sequence)
    most = max(1, -(-2 * run.stages["pairs"].result["counts"]["own_pairs"] // 4))
    steps = min(most, max(1, round(budget / (4 * 4 * start["pair_tokens"]))))
    assert plan["steps"] == {"ppo": 1, "dpo": steps, "best_of_n": 3}
    lines = [
        json.loads(line) for line in (run.stages["ppo-train"].folder / "run/metrics.jsonl").read_text().splitlines()
    ]
    counts = [line["counts"] for line in lines if "counts" in line]
    tokens = sum(each["tokens"] for each in counts) + start["prompt"] * sum(each["samples"] for each in counts)
    assert run.stages["ppo-train"].result["spent"] == pytest.approx(11 * tokens)
    assert run.stages["best_of_n-judged"].result["spent"] == pytest.approx(3 * start["eval_prompts"] * 2 * sequence)


def test_completions_are_scored_by_both_and_their_distance_is_measured(made):
    run = made("rlhf")
    for stage, count in (("sft-judged", 2), ("ppo-judged", 2), ("best_of_n-judged", 3)):
        for row in rows_of(run, stage, "judged.jsonl"):
            for name in ("completions", "tokens", "kl", "judge", "reward_model", "truth"):
                assert len(row[name]) == count, (stage, name)
            assert row["prompt_tokens"] > 5
    assert all(gap == 0 for row in rows_of(run, "sft-judged", "judged.jsonl") for gap in row["kl"])
    assert any(gap != 0 for row in rows_of(run, "ppo-judged", "judged.jsonl") for gap in row["kl"])
    texts = [
        [row["completions"] for row in rows_of(run, stage, "judged.jsonl")]
        for stage in ("sft-judged", "best_of_n-judged")
    ]
    assert texts[0] != [each[:2] for each in texts[1]]  # the pool is not what the start is measured by


def test_training_against_the_reward_model_is_tied_and_ends_by_kl_unless_the_user_says_how():
    def controls(axis="control", **given):
        entries = rlhf_entries(RLHFSettings(pipeline="rlhf", **given))
        return {
            entry.name: (entry.train.get("objective") or {}).get(axis)
            for entry in entries
            if entry.name.endswith("-train")
        }

    assert controls(most_kl=2.0) == {
        "ppo-train": {"kind": "budget", "nats": 2.0, "decay": 0.8},
        "grpo-train": {"kind": "budget", "nats": 2.0, "decay": 0.8},
        "dpo-train": None,
    }
    own = {"train": {"grpo": {"objective": {"control": "proportional"}}}, "most_kl": 2.0}
    assert controls(**own)["grpo-train"] == "proportional"
    assert controls(most_kl=0.0)["ppo-train"] is None
    assert controls(compare=["ppo_penalty"], most_kl=2.0)["ppo_penalty-train"] is None  # it has a control of its own

    tied = {"compare": ["ppo", "grpo", "dpo", "dr_grpo"], "train": {"grpo": {"objective": {"kl": "none"}}}}
    assert controls("kl", **tied) == {
        **{"ppo-train": {"beta": 1.0}, "grpo-train": "none"},
        **{"dpo-train": None, "dr_grpo-train": None},  # a loss that pairs tie, and a method without a KL
    }
    assert controls("kl", compare=["grpo"], kl_beta=0.0) == {"grpo-train": None}


def test_steps_are_those_that_were_taken(made, tmp_path):
    run = made("rlhf").stages["ppo-train"]
    assert run.result["steps"] == 1
    folder = tmp_path / "stage"
    values = {**COMMON, **GROUPS, "data": {"count": 4, "difficulty": [1]}, "eval": {"every": 0, "prompts": 0}}
    values["objective"] = {"control": {"kind": "budget", "nats": 1e-9}}
    train_run(folder, "grpo", {**values, "steps": 5, "optimizer": {"learning_rate": 1e-2}})
    assert trained_result(folder)["steps"] < 5


@pytest.mark.parametrize(
    ("finished", "steps", "resumed"), [(True, 3, []), (True, 5, [5]), (False, 3, [None]), (False, 5, [5])]
)
def test_a_stage_goes_on_with_a_run_that_is_not_over_or_too_short(tmp_path, monkeypatch, finished, steps, resumed):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    asked = []

    def resume(folder, *, steps, **settings):
        asked.append(steps)
        return SimpleNamespace(status="finished", before={}, after={})

    for name, found in (("total_steps", 3), ("is_finished", finished), ("read_summary", {})):
        monkeypatch.setattr(f"whet.tools.pipelines.training.{name}", lambda folder, found=found: found)
    monkeypatch.setattr("whet.api.resume", resume)
    assert train_run(tmp_path, "grpo", {"steps": steps}) == {"before": {}, "after": {}} and asked == resumed


def test_judgements_without_a_winner_end_the_pipeline(tmp_path, monkeypatch):
    from whet.tools.pipelines.library.entry import StageInput, StageWork
    from whet.tools.pipelines.library.judging import JudgedPairsEntry

    (tmp_path / "drawn.jsonl").write_text("")
    monkeypatch.setattr(JudgedPairsEntry, "label", lambda entry, run, candidates: [])
    work = StageWork(None, {"completions": StageInput(source=str(tmp_path / "drawn.jsonl"))}, tmp_path, {})
    assert JudgedPairsEntry(name="pairs", completions="c").work(work)["stop_reason"] == "no pair has a winner"


def test_the_comparison_names_every_way_with_what_it_spent(made):
    result = made("rlhf").stages["compare"].result
    assert [line[0] for line in result["table"]] == ["", "sft", "ppo", "dpo", "best_of_n (n = 3)"]
    assert all(len(line) == len(result["table"][0]) for line in result["table"])
    assert sorted(result["ranked"]) == ["best_of_n", "dpo", "ppo"]
    assert {each["way"] for each in result["samples"]} == {"ppo", "dpo"}


def test_the_recipe_sums_the_seeds_up(made, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "recipes"))
    import rlhf_smollm2
    from run_stages import WholePipeline

    run = made("rlhf")
    seed = WholePipeline("seed 0", run.folder, "compare", ())
    assert seed.is_finished() and seed.command() == ["resume", str(run.folder)]
    values = rlhf_smollm2.outcome({"train": 9, "held_out": 3}, [seed])
    assert list(values["ways"]) == ["ppo", "dpo", "best_of_n"] and list(values["seeds"]) == ["0"]
    measured = run.stages["ppo-judged"].result["measured"]
    assert values["ways"]["ppo"]["win_rate"]["mean"] == measured["win_rate"]["value"]
    assert values["seeds"]["0"]["ways"]["best_of_n"]["curve"].keys() == {"1", "2"}
    text = rlhf_smollm2.summary_text(values)
    assert "| ppo | " in text and "seed 0: accuracy on held-out pairs: reward model " in text
    assert json.loads(json.dumps(values, allow_nan=False)) == values


# --- phases ---


def test_each_phase_is_measured_and_starts_where_it_says(made):
    run = made("phased")
    measured = [name for phase in ("preference", "rl") for name in (phase, f"{phase}-measured")]
    assert list(run.stages) == ["pairs", "judge-model", "start-measured", *measured, "check"]
    assert 'name = "whetstone"' in config(run, "preference")
    assert str(run.stages["preference"].folder / "run") in config(run, "rl") and 'kl = "none"' in config(run, "rl")


def test_pairs_are_even_before_and_moved_after(made):
    run = made("phased")
    wins = {
        name: [row["win"] for row in rows_of(run, f"{name}-measured", "pair_wins.jsonl")]
        for name in ("start", "preference")
    }
    assert set(wins["start"]) == {0.5} and len(wins["preference"]) == len(wins["start"]) > 2
    assert set(wins["preference"]) <= {0.0, 1.0}
    result = run.stages["preference-measured"].result
    assert result["measured"]["kl"]["value"] != 0 and "accuracy" in result["metrics"]
    assert result["metrics"]["pair_accuracy"] == pytest.approx(sum(wins["preference"]) / len(wins["preference"]))


def test_the_check_says_what_the_later_phase_kept(made):
    result = made("phased").stages["check"].result
    assert [line[0] for line in result["table"]] == ["", "the first policy", "preference", "rl"]
    assert [words.partition(":")[0] for words in result["findings"]] == ["rl", "rl"]
    assert all("pair accuracy" in words or "win rate" in words for words in result["findings"])


@for_every(
    [
        (0.01, -0.02, 0.04, "kept"),
        (-0.02, -0.04, -0.001, "kept"),  # a loss for sure, and within the tolerance for sure
        (-0.2, -0.3, -0.1, "LOST"),
        (-0.06, -0.12, -0.01, "LOST"),
        (-0.04, -0.12, 0.04, "cannot be told"),
    ]
)
def test_kept_lost_or_neither(value, low, high, said):
    verdict = kept_verdict("pair accuracy", 0.9, 0.9 + value, WinRate(value, low, high, 100), tolerance=0.05)
    assert verdict.startswith(said)


@pytest.mark.slow
def test_pairs_that_work_against_the_reward_are_found_to_undo_it(tmp_path):
    """The task needs the working; the pairs prefer completions that answer at once."""
    from whet.data.tasks import TASKS, gold_completion
    from whet.data.tasks.item import distinct

    lines = [
        {
            "prompt": [{"role": "user", "content": item.question}],
            "chosen": gold_completion(item, worked=False),
            "rejected": gold_completion(item),
        }
        for item in distinct(TASKS["arithmetic"], "train", 512, 77, 3)
    ]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sizes = {"judged_prompts": 10, "eval": {"prompts": 60}, "model": {"threads": 1}}
    run = run_pipeline("phased", sizes, {"pairs": str(pairs), "order": "rl_first", "folder": str(tmp_path / "run")})
    assert run.stages["rl-measured"].result["task_value"] > 0.9
    (words,) = run.stages["check"].result["findings"]
    assert words.startswith("preference: LOST: accuracy ")
