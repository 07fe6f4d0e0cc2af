"""Stages as values: inputs found by name, refused in one line where they are missing; what a pipeline file composes."""

import json
from functools import partial

import pytest
from typer.testing import CliRunner

from tests.support.for_every import for_every
from whet.cli import app
from whet.tools.pipelines.library import (
    STAGE_KINDS,
    EvalEntry,
    MixEntry,
    PairsEntry,
    PreferenceEntry,
    RejectionEntry,
    RewardModelEntry,
    RLEntry,
    SampleEntry,
    SFTEntry,
)
from whet.tools.pipelines.library.entry import compose
from whet.tools.pipelines.library.sampling import MixSource, kept_rows, shared_runs
from whet.tools.pipelines.library.trainings import training_seconds
from whet.tools.pipelines.registry import FilePipelineSettings, entry_of, file_entries
from whet.tools.pipelines.runner import plan_lines, run_pipeline
from whet.tools.pipelines.settings import PipelineSettings, answer_reward
from whet.tools.pipelines.stages import Stage, StageCost, StagePlan, read_json_lines, stage_fingerprints
from whet.tools.planner.workload import devices
from whet.training.config import resolved
from whet.types import WhetError


def settings(**values):
    return PipelineSettings(pipeline="mine", **values)


def files(folder):
    rows = {
        "train.jsonl": [{"prompt": f"what is {at} and one", "answer": str(at + 1)} for at in range(6)],
        "demos.jsonl": [{"prompt": f"say {at}", "completion": str(at)} for at in range(4)],
        "test.jsonl": [
            {"prompt": f"what is {at} and two", "answer": str(at + 2), "set": "ab"[at % 2]} for at in range(4)
        ],
    }
    for name, each in rows.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in each))
    return {name: str(folder / name) for name in rows}


def test_a_stage_reads_the_stages_and_files_that_it_names(tmp_path):
    named = files(tmp_path)
    given = settings(data={"source": named["train.jsonl"]}, reward={"parts": [{"reward": "exact_answer"}]})
    stages = compose(
        given,
        [
            SFTEntry(name="cold", data=named["demos.jsonl"], epochs=2, train={"batch": {"rows_per_step": 4}}),
            RLEntry(name="rl", start="cold", steps=3),
            SampleEntry(name="drawn", model="rl", completions=2),
            RejectionEntry(name="kept", completions="drawn"),
            MixEntry(name="mixed", sources=(MixSource(data="kept"), MixSource(data=named["demos.jsonl"]))),
            SFTEntry(name="again", data="mixed"),
            PairsEntry(name="paired", completions="drawn"),
            PreferenceEntry(name="aligned", data="paired", start="again"),
        ],
    )
    assert {stage.name: stage.reads for stage in stages} == {
        "cold": (),
        "rl": ("cold",),
        "drawn": ("rl",),
        "kept": ("drawn",),
        "mixed": ("kept",),
        "again": ("mixed",),
        "paired": ("drawn",),
        "aligned": ("paired", "again"),
    }
    cold, rl, drawn = (stage.plan.cost for stage in stages[:3])
    assert cold.updates == 2 and rl.updates == 3 and drawn.completions == 12
    assert stages[1].plan.inputs == {"prompts": "train.jsonl (6 rows)", "start": "cold"}


@for_every(
    [
        ([SFTEntry(name="a")], "stage 'a' (sft) has no data; give the name of an earlier stage or a file"),
        ([RejectionEntry(name="a")], "stage 'a' (rejection) has no completions"),
        ([MixEntry(name="a")], "stage 'a' (mix) has no sources"),
        ([SFTEntry(name="a", data="nowhere.jsonl")], "data='nowhere.jsonl' is no earlier stage"),
        ([SFTEntry(name="a", data="b"), RejectionEntry(name="b", completions="c")], "data='b' comes later"),
        ([EvalEntry(name="a"), SFTEntry(name="b", data="a")], "is a stage of kind eval, which leaves metrics"),
        ([RLEntry(name="a"), RLEntry(name="a")], "two stages are called 'a'"),
        ([RLEntry(name="a", method="dpo")], "draws no completions"),
        ([RLEntry(name="a", train={"batch": {"gruop_size": 4}})], "did you mean 'batch.group_size'"),
        ([RLEntry(name="a", train={"data": {"count": 4}})], "train.data is set by the stage itself"),
        ([RLEntry(name="a", reward_model="nowhere")], "not the folder of a reward model"),
        ([SampleEntry(name="a", temperature=0)], "at temperature 0 are all equal"),
    ]
)
def test_a_stage_without_its_input_is_refused_in_one_line(entries, said):
    with pytest.raises(WhetError) as error:
        compose(settings(), entries)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_setting_changes_the_stages_that_use_it_and_those_behind_them():
    def prints(**changed):
        given = settings(**changed.pop("shared", {}))
        return stage_fingerprints(
            compose(
                given,
                [
                    EvalEntry(name="base"),
                    SFTEntry(name="cold", data="task:arithmetic", rows=32),
                    RLEntry(name="rl", start="cold", steps=changed.pop("steps", 2)),
                    EvalEntry(name="after", model="rl"),
                ],
            )
        )

    def differing(**changed):
        one, two = prints(), prints(**changed)
        return [name for name in one if one[name] != two[name]]

    assert differing() == []
    assert differing(steps=3) == ["rl", "after"]
    assert differing(shared={"eval": {"samples": 4}}) == ["base", "after"]
    assert differing(shared={"reward": {"parts": [{"reward": "exact_answer", "weight": 2.0}]}}) == ["rl", "after"]
    assert differing(shared={"seed": 1}) == ["base", "cold", "rl", "after"]
    assert differing(shared={"model": {"threads": 1}, "report": {"save_every": 3}}) == []


def test_an_eval_set_inside_the_training_data_is_refused_unless_told(tmp_path):
    named = files(tmp_path)
    with open(named["train.jsonl"], "a") as stream:
        stream.write(json.dumps({"prompt": "What is  3 and two", "answer": "5"}) + "\n")
    given = {
        "data": {"source": named["train.jsonl"]},
        "reward": {"parts": [{"reward": "exact_answer"}]},
        "eval": {"source": named["test.jsonl"]},
    }
    with pytest.raises(
        WhetError,
        match=r"stage 'rl': .*train.jsonl: 1 of its 7 prompts stand in the test set.*allow_contamination=true",
    ):
        compose(settings(**given), [RLEntry(name="rl", steps=1)])
    assert len(compose(settings(**given, allow_contamination=True), [RLEntry(name="rl", steps=1)])) == 1


def row(completions, scores, tokens=None, finished=None, **more):
    count = len(completions)
    return {
        "id": "1",
        "prompt": "q",
        "completions": completions,
        "scores": scores,
        "tokens": tokens or [5] * count,
        "finished": finished or [True] * count,
        **more,
    }


rule = partial(RejectionEntry, name="kept")


def test_every_completion_is_kept_or_counted_once():
    texts = ["a b c d", "a  b c d", "a b c d e", "wrong", "cut", "x y z", "long", "none"]
    scores = [1, 1, 1, 0, 1, 1, 1, None]
    tokens = [4, 4, 5, 1, 4, 3, 99, 2]
    finished = [True, True, True, True, False, True, True, True]
    rows, counts = kept_rows([row(texts, scores, tokens, finished)], rule(most_per_prompt=2, most_tokens=50, near=0.6))
    assert [each["completion"] for each in rows] == ["a b c d", "x y z"]
    assert len({each["id"] for each in rows}) == 2
    assert {name: count for name, count in counts.items() if count} == {
        "completions": 8, "kept": 2, "wrong": 1, "unscorable": 1, "cut_off": 1, "too_long": 1, "equal": 1,
        "near_equal": 1,
    }  # fmt: skip
    assert sum(counts.values()) - counts["completions"] == 8


def test_all_but_equal_completions_may_be_kept():
    texts = ["a b a b a b", "a b a b a b a b", "a b a  b a b"]  # the same runs of words in all of them
    for near, kept in ((1.0, 2), (0.9, 1)):
        rows, _ = kept_rows([row(texts, [1, 1, 1])], rule(most_per_prompt=3, near=near))
        assert len(rows) == kept, near


def test_prompts_that_are_solved_other_languages_and_hints():
    solved = row(["a", "b"], [1, 1])
    assert kept_rows([solved], rule(skip_solved=True))[0] == []
    german = row(["Das ist die richtige Antwort und sie ist nicht lang."], [1])
    assert kept_rows([german], rule(language="en"))[1]["other_language"] == 1
    assert kept_rows([german], rule(language="de"))[1]["kept"] == 1
    hinted = row(["wrong"], [0], hinted="right")
    kept, counts = kept_rows([hinted], rule())
    assert [each["completion"] for each in kept] == ["right"] and counts["hinted"] == 1


def test_a_training_has_a_time_where_rates_were_measured_and_none_on_a_cpu():
    config = resolved("grpo", {"model": {"name": "smollm2"}})
    assert training_seconds(config, 10, devices("1xH200")) == pytest.approx(
        10 * training_seconds(config, 1, devices("1xH200"))
    )
    assert training_seconds(resolved("grpo", {"model": {"device": "cpu"}}), 10) is None
    timed = Stage("rl", "", print, plan=StagePlan({"start": "base"}, "model", StageCost(updates=10, seconds=90.0)))
    assert any(line.endswith("1 min 30 s") for line in plan_lines([timed])) and "time" in plan_lines([timed])[0]
    sampling = Stage("draw", "", print, plan=StagePlan({}, "rows", StageCost(completions=2, sampled_tokens=64)))
    at_most = "tokens sampled are at most: every completion as long as its budget"
    assert at_most in plan_lines([timed, sampling]) and at_most not in plan_lines([timed])


def test_runs_of_words_in_common():
    assert shared_runs("a b c d", "a b c d") == 1.0 and shared_runs("a b c", "d e f") == 0.0
    assert shared_runs("a b c d", "a b c e") == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kind": "sfft", "name": "a"}, "there is no stage of kind 'sfft' (did you mean 'sft'?)"),
        ({"name": "a"}, "stage 'a' has no kind; give one of sft, rl"),
        ({"kind": "sft", "name": "a", "dta": "x"}, "stage 'a' (sft): no key is called 'dta'"),
        ({"kind": "sft", "data": "x"}, "stage 'number 1' (sft): name is"),
    ],
)
def test_a_stage_of_a_file_that_cannot_be_read_is_one_line(values, said):
    with pytest.raises(WhetError) as error:
        entry_of(1, values)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_every_kind_of_stage_can_be_written_in_a_file():
    assert set(STAGE_KINDS) >= {
        "sft",
        "rl",
        "preference",
        "reward_model",
        "sample",
        "rejection",
        "pairs",
        "mix",
        "eval",
    }
    with pytest.raises(WhetError, match="has no stages"):
        file_entries(FilePipelineSettings(pipeline="file"))


FILE = """
[data]
count = 8
difficulty = 1

[sampling]
max_new_tokens = 40

[eval]
prompts = 4
samples = 2

[model]
threads = 1

[[stages]]
kind = "sample"
name = "drawn"
completions = 4

[[stages]]
kind = "rejection"
name = "kept"
completions = "drawn"
most_per_prompt = 2

[[stages]]
kind = "sft"
name = "learn"
data = "kept"
[stages.train]
steps = 1
batch = {rows_per_step = 2}

[[stages]]
kind = "eval"
name = "measure"
model = "learn"
"""


def test_a_file_is_planned_run_and_run_again_where_it_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(FILE)
    shown = CliRunner().invoke(app, ["pipeline", "my.toml", "--show"])
    assert shown.exit_code == 0 and "# 2. kept" in shown.output and 'kind = "rejection"' in shown.output
    assert not (tmp_path / "runs").exists()
    ran = CliRunner().invoke(app, ["pipeline", "my.toml", "--folder", "run"])
    assert ran.exit_code == 0, ran.output
    rows = read_json_lines(tmp_path / "run" / "02-kept" / "rows.jsonl")
    drawn = read_json_lines(tmp_path / "run" / "01-drawn" / "completions.jsonl")
    right = {text for each in drawn for text, score in zip(each["completions"], each["scores"], strict=True) if score}
    assert rows and {each["completion"] for each in rows} <= right
    measured = json.loads((tmp_path / "run" / "04-measure" / "stage.json").read_text())["result"]
    assert {"accuracy", "pass@2", "majority@2"} <= set(measured["sets"]["all"]) and measured["eval_prompts"] == 4
    checkpoint = next((tmp_path / "run" / "03-learn" / "run" / "checkpoints").iterdir())
    assert (checkpoint / "model.safetensors").is_file() and not (checkpoint / "optimizer.safetensors").exists()

    again = CliRunner().invoke(app, ["pipeline", "my.toml", "--folder", "run", "--set", "eval.samples=3"])
    assert again.exit_code == 0, again.output
    assert again.output.count("done before") == 3 and "measure was made of other inputs and runs again" in again.output
    (tmp_path / "my.toml").write_text(FILE.replace('"rejection"', '"rejektion"'))
    refused = CliRunner().invoke(app, ["pipeline", "my.toml"])
    assert refused.exit_code != 0 and not (tmp_path / "runs").exists()


def test_a_file_of_a_benchmark_is_asked_and_judged_by_its_own_reward(tmp_path):
    rows = [{"question": f"{at} + 1?", "answer": f"#### {at + 1}"} for at in range(6)]
    for name, part in (("train", rows[:4]), ("test", rows[4:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    train, test = (f"gsm8k:{tmp_path / name}.jsonl" for name in ("train", "test"))
    small = {"model": {"device": "cpu", "threads": 1}, "sampling": {"max_new_tokens": 4}, "rounds": 1}
    ran = run_pipeline(
        "rejection", {**small, "data": {"source": train}, "eval": {"source": test}, "folder": str(tmp_path / "run")}
    )
    drawn = read_json_lines(ran.stages["round1-completions"].folder / "completions.jsonl")
    assert {row["answer"] for row in drawn} == {"1", "2", "3", "4"}
    assert ran.stages["eval-base"].result["eval_prompts"] == 2
    shown = (tmp_path / "run" / "pipeline.html").read_text()
    assert "each prompt of gsm8k:train.jsonl<" in shown
    mixed = f"mix:{train},{tmp_path / 'lost.jsonl'}"
    with pytest.raises(WhetError, match=r"lost.jsonl' is no earlier stage and not a file, BENCHMARK:FILE"):
        compose(settings(), [SFTEntry(name="sft", data=mixed)])
    own = {"eval": {"source": test, "reward": {"parts": [{"reward": "exact_answer"}]}}}
    assert [part.reward for part in answer_reward(settings(**own)).parts] == ["exact_answer"]
    assert [part.reward for part in answer_reward(settings(eval={"source": test})).parts] == ["math_answer"]


def test_r1_needs_demonstrations_and_a_reward_for_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = files(tmp_path)
    data = {"data": {"source": named["train.jsonl"]}}
    reward = {"reward": {"parts": [{"reward": "exact_answer"}]}}
    with pytest.raises(WhetError, match="no reward: data from a file needs one"):
        run_pipeline("r1", data)
    with pytest.raises(WhetError, match="the cold start has no demonstrations"):
        run_pipeline("r1", data, reward)
    with pytest.raises(WhetError, match=r"stage 'cold-start': data='lost.jsonl' is no earlier stage"):
        run_pipeline("r1", data, reward, {"demonstrations": "lost.jsonl"})
    assert not (tmp_path / "runs").exists()


def test_a_teacher_with_a_short_context_does_not_stop_a_plan():
    # on a GPU every training of a pipeline is planned, for prompts of a length that nobody knows yet
    config = resolved("opd", {"teacher": {"name": "whetstone"}})
    assert training_seconds(config, 2, devices("1xH200")) > 0


def test_a_reward_model_without_held_out_pairs_is_trained_and_not_measured(tmp_path):
    pairs, nothing = tmp_path / "pairs.jsonl", tmp_path / "nothing.jsonl"
    pairs.write_text("".join(json.dumps({"prompt": f"{at}", "chosen": "a", "rejected": "b"}) + "\n" for at in range(4)))
    nothing.write_text("")
    entry = RewardModelEntry(
        name="scorer", data=str(pairs), held_out=str(nothing), seed_offset=7, train={"batch": {"rows_per_step": 4}}
    )
    (stage,) = compose(settings(model={"threads": 1}), [entry])
    (tmp_path / "stage").mkdir()
    result = stage.work(tmp_path / "stage", {})
    assert result["steps"] == 1 and "accuracy" not in result["metrics"] and "held-out" not in result["summary"]
    config = (tmp_path / "stage" / "run" / "config.toml").read_text()
    assert "seed = 7" in config and "nothing.jsonl" not in config


def test_a_reward_model_is_measured_on_all_held_out_pairs_and_its_training_says_why_it_ended_early(tmp_path):
    pairs, held_out = tmp_path / "pairs.jsonl", tmp_path / "held_out.jsonl"
    for file, count in ((pairs, 4), (held_out, 205)):
        row = {"chosen": "a", "rejected": "b"}
        file.write_text("".join(json.dumps({"prompt": f"{file.stem} {at}", **row}) + "\n" for at in range(count)))
    entry = RewardModelEntry(name="scorer", data=str(pairs), held_out=str(held_out), steps=400, train={"hours": 0.001})
    (stage,) = compose(settings(model={"threads": 1}), [entry])
    (tmp_path / "stage").mkdir()
    result = stage.work(tmp_path / "stage", {})
    assert "on 205 held-out pairs" in result["summary"]
    assert '"size": 205' in (tmp_path / "stage" / "run" / "metrics.jsonl").read_text()
    assert result["steps"] < 400 and "ended early: its budget of 0.001 hours is spent" in result["summary"]
