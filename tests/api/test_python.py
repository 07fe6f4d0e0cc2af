"""whet as a Python user meets it: functions in, values out, and a folder that can be resumed."""

import importlib.util
import json
import tomllib

import pytest
import torch

import whet
from whet.model.load import BUILTIN
from whet.model.run_models import complete_checkpoints
from whet.record.log import read_metrics, read_summary
from whet.training.run_loop import RunFailed
from whet.types import WhetError

SMALL = {
    "model": {"device": "cpu", "threads": 1},
    "sampling": {"max_new_tokens": 10},
    "batch": {"prompts_per_step": 3, "group_size": 2},
    "eval": {"prompts": 0},
    "report": {"save_every": 2, "keep_checkpoints": 9},
}
ROWS = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1), "id": f"row-{n}", "extra": n} for n in range(6)]

REWARD_FILE = """
def length(prompt, completion, answer, extra):
    assert prompt == f"What is {extra} + 1?" and answer == str(extra + 1)
    return len(completion) / 10


def stumbling(completion, extra):
    if extra == 4:
        raise KeyError("no such thing")
    return 1.0
"""


def batched(prompts, completions, answer, **columns):
    """In TRL's signature."""
    assert len(prompts) == len(completions) == len(answer) == len(columns["extra"]) == len(columns["completion_ids"])
    assert all(prompt.startswith("What is") for prompt in prompts)
    return [float("1" in completion) for completion in completions]


def train(folder, method="reinforce", **changes):
    settings = {"data": ROWS, "config": SMALL, "steps": 2, "console": False, **changes}
    return whet.train(method, folder=str(folder), **settings)


def steps_of(run):
    return [line for line in read_metrics(run.folder) if "eval" not in line]


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reward_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "mine.py"
    path.write_text(REWARD_FILE)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory, reward_file):
    """Two steps on rows as dictionaries, by a function that lives in a file."""
    return train(tmp_path_factory.mktemp("runs") / "first", reward=loaded(reward_file).length)


def test_the_function_stays_the_function():
    """The package has a room of that name; importing it must not stand in front of the function."""
    import whet.training.update
    from whet.training import rl_trainer

    assert whet.train is whet.api.train and rl_trainer.RLTrainer


def test_a_run_has_its_numbers(run):
    assert (run.status, run.steps, run.before, run.after) == ("finished", 2, {}, {})
    assert [step["step"] for step in steps_of(run)] == [1, 2]
    for step in steps_of(run):
        assert step["counts"] == {**step["counts"], "prompts": 3, "samples": 6, "unscorable": 0}
        assert step["reward"]["total"] == step["reward"]["length"] > 0
        assert step["metrics"]["gradient_norm"] > 0 and step["metrics"]["sampler_gap"] < 1e-4
    assert run.report == run.folder / "report.html" and run.report.is_file()
    assert read_summary(run.folder)["status"] == "finished"


def test_a_run_keeps_its_rows_and_samples(run):
    assert [json.loads(line) for line in (run.folder / "data.jsonl").read_text().splitlines()] == ROWS
    samples = run.samples()
    assert {sample["step"] for sample in samples} == {1, 2}
    for sample in samples:
        assert (
            sample["parts"] == {"length": sample["reward"]} == {"length": pytest.approx(len(sample["completion"]) / 10)}
        )
        assert sample["prompt_id"].startswith("row-") and sample["question"].startswith("What is")


def test_a_run_is_asked_and_looked_at(run):
    assert run.checkpoints and [path.name for path in run.checkpoints] == sorted(path.name for path in run.checkpoints)
    greedy = run.sample("What is 3 + 1?")
    assert greedy == run.sample("What is 3 + 1?") and len(greedy) == 1
    assert len(run.sample("What is 3 + 1?", samples=3)) == 3
    report = run.doctor()
    assert report.is_healthy in (True, False) and str(run.folder) in str(report)


def test_the_model_is_a_folder_transformers_loads(run):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert run.model == run.folder / "final"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(run.model), AutoTokenizer.from_pretrained(run.model)
    first = AutoModelForCausalLM.from_pretrained(BUILTIN / "whetstone")
    moved = [not torch.equal(one, two) for one, two in zip(model.parameters(), first.parameters(), strict=True)]
    assert all(moved) and tokenizer.encode("What is 3 + 1?")


def test_resume_finds_the_reward_in_its_file(run, reward_file):
    stated = tomllib.loads((run.folder / "config.toml").read_text())
    assert stated["reward"]["parts"] == [{"reward": f"{reward_file}:length", "weight": 1.0}]
    resumed = whet.resume(run.folder, steps=3, console=False)
    assert (resumed.status, resumed.steps) == ("finished", 3)
    assert [step["step"] for step in steps_of(resumed)] == [1, 2, 3]
    assert steps_of(resumed)[2]["reward"].keys() == {"length", "total"}


def test_a_batched_function_in_trls_signature(tmp_path):
    found = train(tmp_path / "run", reward=batched, steps=1)
    assert {sample["reward"] for sample in found.samples()} <= {0.0, 1.0}
    assert steps_of(found)[0]["reward"].keys() == {"batched", "total"}


def test_tasks_with_a_reward_each_and_what_they_log(tmp_path):
    """TRL's multi-task pattern: each function returns None for the rows of the other task."""

    def evens(completions, extra, trainer_state, log_metric, log_extra, **kwargs):
        log_metric("progress", trainer_state.global_step / trainer_state.max_steps)
        log_extra("letters", [len(text) for text in completions])
        return [0.5 if number % 2 == 0 else None for number in extra]

    async def odds(completions, extra, **kwargs):
        return [None if number % 2 == 0 else 0.25 for number in extra]

    run = train(tmp_path / "run", reward=[evens, odds], steps=4)
    lines = steps_of(run)
    assert [line["metrics"]["logged/progress"] for line in lines] == [0.0, 0.25, 0.5, 0.75]
    assert {line["reward"].get("evens", 0.5) for line in lines} == {0.5}
    assert {line["reward"].get("odds", 0.25) for line in lines} == {0.25}
    assert all(line["counts"].get("unscorable", 0) == 0 for line in lines)
    for line in run.samples():
        number = int(line["question"].split()[2])
        part, value = ("evens", 0.5) if number % 2 == 0 else ("odds", 0.25)
        assert line["parts"] == {part: value} and line["reward"] == value
        assert line["extra"] == {"letters": len(line["completion"])}


def test_a_step_without_a_row_that_a_reward_is_for_teaches_nothing(tmp_path):
    def third(completions, extra, trainer_state, **kwargs):
        return [0.5 if trainer_state.global_step == 2 else None for _ in extra]

    run = train(tmp_path / "run", reward=third, steps=3)
    assert [line["counts"]["unscorable"] == line["counts"]["samples"] for line in steps_of(run)] == [True, True, False]

    def never(completions, **kwargs):
        return [None] * len(completions)

    with pytest.raises(RunFailed, match="step 10: not one of its samples and of the 9 before could be scored"):
        train(tmp_path / "never", reward=never, steps=12)


def test_named_rewards_have_weights(tmp_path):
    parts = {"short": (lambda completion: 10.0 - len(completion), 0.5), "exact_answer": ("exact_answer", 3.0)}
    found = train(tmp_path / "run", reward=parts, steps=1)
    for sample in found.samples():
        assert sample["parts"]["short"] == 10.0 - len(sample["completion"])
        assert sample["reward"] == pytest.approx(0.5 * sample["parts"]["short"] + 3.0 * sample["parts"]["exact_answer"])
    stated = tomllib.loads((found.folder / "config.toml").read_text())["reward"]["parts"]
    assert [part["weight"] for part in stated] == [0.5, 3.0]


def test_a_reward_that_only_python_has_must_be_given_again(tmp_path):
    class Fixed:
        name = "fixed"

        def __call__(self, prompts, samples):
            return [0.25 for _ in samples]

    found = train(tmp_path / "run", reward=Fixed(), steps=1)
    assert steps_of(found)[0]["reward"] == {"fixed": 0.25, "total": 0.25}
    with pytest.raises(WhetError, match=r"'fixed' was given from Python .* whet\.resume\(folder, reward=\.\.\.\)"):
        whet.resume(found.folder, steps=2, console=False)
    assert whet.resume(found.folder, steps=2, reward=Fixed(), console=False).steps == 2


def test_a_reward_that_raises_stops_the_run_and_names_the_sample(tmp_path, reward_file):
    folder = tmp_path / "run"
    with pytest.raises(WhetError) as error:
        train(folder, reward=f"{reward_file}:stumbling", steps=9, config={**SMALL, "reward": {"on_error": "stop"}})
    message = str(error.value)
    assert "\n" not in message and "'row-4'" in message and "KeyError" in message
    assert f"{reward_file}:{REWARD_FILE[: REWARD_FILE.index('raise')].count(chr(10)) + 1}" in message
    assert "reward.on_error=exclude" in message
    summary = read_summary(folder)
    assert (summary["status"], summary["error"], summary["title"]) == ("failed", message, "REINFORCE")
    # six rows, three a step: the first pass over the data meets it in step 1 or 2
    done = steps_of(whet.load(folder))
    assert len(done) <= 1 and (folder / "report.html").is_file()
    resumed = whet.resume(folder, steps=3, reward=f"{reward_file}:length", console=False)
    assert resumed.status == "finished" and complete_checkpoints(folder / "checkpoints")


def test_failing_samples_can_be_left_out(tmp_path, reward_file):
    config = {**SMALL, "reward": {"on_error": "exclude"}}
    found = train(tmp_path / "run", reward=f"{reward_file}:stumbling", config=config)
    # row 4 comes once in the first two steps of three prompts; both of its completions are unscorable
    assert sum(step["counts"]["unscorable"] for step in steps_of(found)) == 2
    assert all(step["reward"]["total"] == 1.0 for step in steps_of(found))


class Watcher:
    def __init__(self):
        self.events, self.summaries, self.seen = [], [], []

    def started(self, summary):
        self.events.append("started")
        self.summaries.append(summary)

    def stepped(self, report, samples):
        self.events.append(f"step {report.step}")
        self.seen.append(samples)

    def evaluated(self, step, name, result, seconds):
        self.events.append(f"{name} {step}")
        assert 0 <= result["accuracy"] <= 1 and seconds > 0

    def finished(self, summary):
        self.events.append("finished")
        self.summaries.append(summary)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    watcher = Watcher()
    config = {**SMALL, "eval": {"prompts": 6, "every": 1}, "report": {**SMALL["report"]}}
    folder = tmp_path_factory.mktemp("runs") / "watched"
    found = train(folder, "grpo", data="task:arithmetic", config=config, callbacks=[watcher])
    return found, watcher


def test_a_watcher_sees_everything(watched):
    found, watcher = watched
    assert watcher.events == [
        "started",
        "eval 0",
        *("step 1", "eval 1", "step 2", "eval 2"),
        "finished",
    ]
    begin, end = watcher.summaries
    assert (begin["title"], begin["method"], begin["total_steps"]) == ("GRPO", "grpo", 2)
    assert any("log(pi/ref)" in line for line in begin["objective"])
    assert (end["status"], end["after"], end["report"]) == ("finished", found.after, str(found.report))
    for samples in watcher.seen:
        assert len(samples) == 6
        assert all(sample.reward is not None and prompt.question() for prompt, sample in samples)


def test_a_run_is_asked_about_its_own_task(watched):
    found, _ = watched
    marks = whet.evaluate(found)
    assert {name: marks[name] for name in found.after} == found.after
    assert marks["prompts"] == 6


def test_evaluate_with_several_samples_gives_pass_at_k():
    settings = {**{key: SMALL[key] for key in ("model",)}, "sampling": {"max_new_tokens": 40}}
    settings["eval"] = {"prompts": 12}
    settings["data"] = {"difficulty": [1]}
    result = whet.evaluate("whetstone", samples=4, settings=settings)
    marks = result.metrics
    for name in ("accuracy", "pass@4"):
        low, high = result[name].interval
        assert low < result[name] < high or low <= result[name] == high == 1, name
    assert result["completion_tokens"].interval is None
    assert marks["pass@1"] == pytest.approx(marks["accuracy"]) and 0 < marks["accuracy"] < 1
    assert marks["pass@1"] < marks["pass@2"] < marks["pass@4"] <= 1
    assert marks == whet.evaluate("whetstone", samples=4, settings=settings).metrics
    with pytest.raises(WhetError, match="temperature 0 are all equal"):
        whet.evaluate("whetstone", samples=2, settings={**settings, "sampling": {"temperature": 0.0}})
    with pytest.raises(WhetError, match="samples is 0"):
        whet.evaluate("whetstone", samples=0, settings=settings)


DEMONSTRATIONS = [{"prompt": f"Say {word}!", "completion": word * 2} for word in ("ab", "ce", "di", "fo")]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("kind", ["completion", "messages"])
def test_imitation_of_rows(tmp_path, kind, packed):
    rows = DEMONSTRATIONS
    if kind == "messages":
        turns = [(row["prompt"], row["completion"]) for row in rows]
        rows = [
            {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": say}]}
            for ask, say in turns
        ]
    config = {"model": {"device": "cpu", "threads": 1}, "batch": {"rows_per_step": 4, "packed": packed}}
    found = train(tmp_path / "run", "sft", data=rows, config=config, steps=12)
    losses = [step["metrics"]["loss"] for step in steps_of(found)]
    assert losses[-1] < 0.5 * losses[0]
    assert steps_of(found)[0]["counts"]["rows"] == 4
    written = tomllib.loads((found.folder / "config.toml").read_text())
    assert "sampling" not in written and "reward" not in written


def test_imitation_measures_its_loss_on_held_out_demonstrations(tmp_path):
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text("".join(json.dumps(row) + "\n" for row in DEMONSTRATIONS[:2]))
    config = {
        "model": {"device": "cpu", "threads": 1},
        "batch": {"rows_per_step": 4},
        "eval": {"source": str(held_out)},
    }
    found = train(tmp_path / "run", "sft", data=DEMONSTRATIONS, config=config, steps=8)
    assert found.before.keys() == found.after.keys() == {"loss"}
    assert found.after["loss"] < 0.7 * found.before["loss"]


def test_settings_win_over_the_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'steps = 7\nseed = 5\n[model]\ndevice = "cpu"\nthreads = 1\n[sampling]\nmax_new_tokens = 6\ntemperature = 0.9\n'
    )
    changes = {"sampling": {"max_new_tokens": 5}, "eval": {"prompts": 0}, "batch": SMALL["batch"]}
    found = train(tmp_path / "run", config=file, steps=1, reward="exact_answer", **changes)
    stated = tomllib.loads((found.folder / "config.toml").read_text())
    assert (stated["steps"], stated["seed"], stated["model"]["threads"]) == (1, 5, 1)
    assert (stated["sampling"]["max_new_tokens"], stated["sampling"]["temperature"]) == (5, 0.9)
    assert stated["batch"]["group_size"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"no reward: .*give one: exact_answer"),
        ({"reward": "exact_anser"}, r"did you mean 'exact_answer'\?"),
        ({"reward": {"short": len}}, r"give a pair, as in \{'short': \(reward, 1\.0\)\}"),
        ({"reward": [batched, batched]}, r"two rewards are called 'batched'"),
        ({"reward": batched, "data": [{"prompt": "a", "answer": {1}}]}, r"data: row 0 .*JSON"),
        ({"reward": batched, "data": ["What is 1 + 1?"]}, r"data: row 0 is not a dictionary"),
        ({"reward": batched, "data": []}, r"holds no rows"),
        ({"reward": batched, "data": [{"promt": "a"}]}, r"did you mean 'promt'\?"),
        ({"reward": batched, "method": "grop"}, r"did you mean 'grpo'\?"),
        ({"reward": batched, "batch": {"group_sizes": 2}}, r"did you mean 'batch\.group_size'\?"),
        ({"reward": batched, "model": {"lora": 8}}, r"give those as config=\{'model': \{'lora': 8\}\}"),
        ({"reward": batched, "train_dataset": []}, r"no argument 'train_dataset'; in whet it is data="),
        ({"reward": batched, "args": 3}, r"whet\.from_trl\(args, \.\.\.\)"),
        ({"reward": batched, "config": "nowhere.toml"}, r"nowhere\.toml: no such file"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_folder(tmp_path, changes, message):
    with pytest.raises(WhetError, match=message) as error:
        train(tmp_path / "run", **changes)
    assert "\n" not in str(error.value) and " --" not in str(error.value)
    assert not (tmp_path / "run").exists()


class Interrupts:
    def __init__(self, event):
        setattr(self, event, self)

    def __call__(self, *_):
        raise KeyboardInterrupt


def broken(completions, **_):
    raise ZeroDivisionError("in the reward")


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": batched, "callbacks": [Interrupts("started")]},
        {"reward": batched, "callbacks": [Interrupts("evaluated")], "eval": {"prompts": 2}, "eval_data": ROWS},
        {"reward": broken, "config": {**SMALL, "reward": {"on_error": "stop"}}},
    ],
    ids=["at the start", "evaluating", "in the first step"],
)
def test_a_run_that_ends_before_its_first_step_is_done_leaves_nothing(tmp_path, changes):
    folder = tmp_path / "runs" / "run"
    with pytest.raises((KeyboardInterrupt, WhetError, RunFailed)):
        train(folder, **changes)
    assert not list(tmp_path.iterdir())  # no folder, and no ledger beside it
    assert train(folder, reward=batched).folder == folder


def test_a_run_that_ends_after_its_first_step_is_kept(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", reward=batched, callbacks=[Interrupts("stepped")])
    assert read_summary(tmp_path / "run")["status"] == "interrupted" and len(read_metrics(tmp_path / "run")) == 1


def test_a_folder_is_never_used_twice(run):
    with pytest.raises(WhetError, match=r"already holds a run \(.*whet resume .*, or give exist=replace or"):
        train(run.folder, reward="exact_answer")


def test_a_run_of_the_builtin_model_keeps_its_defaults(run):
    from whet.training.config import origin_of, resolved

    assert origin_of(str(run.folder)) == origin_of(str(run.model)) == "whetstone" == origin_of("whetstone")
    assert origin_of("some/folder") == "some/folder"
    built_in = resolved("grpo").optimizer.learning_rate
    assert resolved("grpo", {"model": {"name": str(run.folder)}}).optimizer.learning_rate == built_in
    assert resolved("grpo", {"model": {"name": "some/folder"}}).optimizer.learning_rate != built_in
