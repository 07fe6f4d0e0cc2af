"""What Python has in hand goes in, and what comes out is an object: models, data, runs, callbacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import whet
from tests.support.commands import finished
from whet.api import tables
from whet.api.inputs import data_rows, model_name
from whet.model.load import BUILTIN
from whet.types import WhetError

SMALL = {
    "model": {"device": "cpu", "threads": 1},
    "sampling": {"max_new_tokens": 10},
    "batch": {"prompts_per_step": 3, "group_size": 2},
    "report": {"save_every": 2, "keep_checkpoints": 9},
    "eval": {"prompts": 0},
}
ROWS = [{"prompt": f"Left to right mod 10: {n}+1", "answer": str(n + 1)} for n in range(6)]


def train(folder, **changes):
    settings = {"data": ROWS, "reward": "exact_answer", "config": SMALL, "steps": 2, "console": False, **changes}
    return whet.train("reinforce", folder=str(folder), **settings)


def lines(folder, name="metrics.jsonl"):
    """Without the seconds, which no two runs share."""
    return [
        {**json.loads(line), "seconds": 0, "timeline": 0, "machine": 0}
        for line in (folder / name).read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "first", steps=4)


@pytest.fixture(scope="module")
def loaded():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = BUILTIN / "whetstone"
    return AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)


def test_a_model_object_trains_as_its_files_do_and_is_not_changed(tmp_path, loaded, capfd):
    import torch

    model, tokenizer = loaded
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    shared = {**SMALL, "optimizer": {"learning_rate": 1e-3}}
    given = train(tmp_path / "object", model=model, tokenizer=tokenizer, config=shared)
    named = train(tmp_path / "name", model=BUILTIN / "whetstone", config=shared)
    assert lines(given.folder) == lines(named.folder) and lines(given.folder, "samples.jsonl")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert given.config["model"]["name"] == str(given.folder / "start")
    assert capfd.readouterr() == ("", "")  # no progress bar of transformers'


def test_a_model_object_is_resumed_from_the_shell_to_the_same_bytes(tmp_path, loaded):
    model, tokenizer = loaded
    whole = train(tmp_path / "whole", model=model, tokenizer=tokenizer, steps=4)
    broken = train(tmp_path / "broken", model=model, tokenizer=tokenizer, steps=2)
    done = finished("resume", str(broken.folder), "--steps", "4")
    assert done.returncode == 0, done.stderr
    weights = [(each.model / "model.safetensors").read_bytes() for each in (whole, broken)]
    assert weights[0] == weights[1] and lines(whole.folder)[-1]["reward"] == lines(broken.folder)[-1]["reward"]


def test_a_run_and_a_path_are_models(tmp_path, run):
    assert model_name(run) == model_name(run.folder) == str(run.folder)
    assert train(tmp_path / "next", model=run).config["model"]["name"] == str(run.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": 7}, r"model is an int; give a name, a path, a run"),
        ({"model": "whetstone", "tokenizer": object()}, r"tokenizer has no effect"),
        ({"data": {"train": ROWS, "test": ROWS}}, r"give one split, as data\['train'\]"),
        ({"data": 3}, r"data is an int; give a path, rows"),
        ({"eval_data": 3}, r"data is an int; give a path, rows"),
        ({"reward_funcs": [len]}, r"whet.train has no argument 'reward_funcs'; in whet it is reward=\.\.\."),
        ({"reward": lambda completion: 1.0}, r"give it one: reward=\{'NAME': \(f, 1\.0\)\}"),
        ({"callbacks": print}, r"callbacks is a .*; give a list"),
        ({"callbacks": [dict]}, r"callback dict is a class; give an object of it: dict\(\)"),
        ({"callbacks": [object()]}, r"callback an object has none of the methods a run calls: started, stepped, "),
    ],
)
def test_a_wrong_object_is_one_line(tmp_path, changes, message):
    with pytest.raises(WhetError, match=message) as error:
        train(tmp_path / "run", **changes)
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_a_model_object_needs_its_tokenizer_and_a_mistake_leaves_no_folder(tmp_path, loaded):
    model, tokenizer = loaded
    with pytest.raises(WhetError, match="no tokenizer; give its own"):
        train(tmp_path / "run", model=model)
    with pytest.raises(WhetError, match="no reward is called"):
        train(tmp_path / "run", model=model, tokenizer=tokenizer, reward="nothing_like_it")
    assert not (tmp_path / "run").exists()


def test_rows_of_every_kind_are_the_same_rows(tmp_path):
    pandas = pytest.importorskip("pandas")

    class Dataset:  # as `datasets` has it
        def to_list(self):
            return [dict(row) for row in ROWS]

    class Frame:  # as polars has it
        def to_dicts(self):
            return [dict(row) for row in ROWS]

    for data in (ROWS, tuple(ROWS), pandas.DataFrame(ROWS), Dataset(), Frame(), (row for row in ROWS)):
        assert data_rows(data) == ROWS
    missing = pandas.DataFrame([{"prompt": "a", "level": 1.0}, {"prompt": "b"}])
    assert data_rows(missing) == [{"prompt": "a", "level": 1.0}, {"prompt": "b", "level": None}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    from_file, from_frame = train(tmp_path / "file", data=file), train(tmp_path / "frame", data=pandas.DataFrame(ROWS))
    rewards = [[line["reward"] for line in lines(each.folder)] for each in (from_file, from_frame)]
    assert rewards[0] == rewards[1]


def test_metrics_are_a_table_with_or_without_pandas(run, monkeypatch):
    pandas = pytest.importorskip("pandas")
    frame = run.metrics()
    assert isinstance(frame, pandas.DataFrame) and list(frame["step"]) == [1, 2, 3, 4]
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    rows = run.metrics()
    assert isinstance(rows, list) and rows[2]["reward"] == frame["reward"][2]
    assert set(rows[0]) == set(frame.columns)
    raw = lines(run.folder)[0]
    assert (
        rows[0]["reward"] == raw["reward"]["total"] and rows[0]["reward/exact_answer"] == raw["reward"]["exact_answer"]
    )
    assert (
        rows[0]["samples"] == raw["counts"]["samples"] and rows[0]["gradient_norm"] == raw["metrics"]["gradient_norm"]
    )
    parts = [value for name, value in rows[0].items() if name.startswith("seconds/")]
    assert rows[0]["seconds"] == pytest.approx(sum(parts)) and parts


def test_samples_of_a_step_in_order(run):
    assert {sample["step"] for sample in run.samples(step=2)} == {2}
    assert run.samples(step=-1) == run.samples(step=4) and run.samples(step=9) == []
    tokens = [sample["tokens"] for sample in run.samples(sort="-tokens")]
    assert tokens == sorted(tokens, reverse=True) and tokens[0] > tokens[-1]
    with pytest.raises(WhetError, match="did you mean 'reward'"):
        run.samples(sort="rewards")


def test_a_folder_is_loaded_and_its_status_is_true(run, tmp_path):
    again = whet.load(run.folder)
    assert again == run and (again.status, again.steps, again.total_steps) == ("finished", 4, 4)
    assert repr(again) == f"Run({run.folder}: reinforce, finished, step 4/4)"
    with pytest.raises(WhetError, match="not a run folder"):
        whet.load(tmp_path)
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in ("config.toml", "metrics.jsonl"):
        (killed / name).write_bytes((run.folder / name).read_bytes())
    (killed / "run.json").write_text(json.dumps({**run.summary, "status": "running", "before": None, "after": None}))
    assert whet.load(killed).status == "interrupted"  # nobody holds its lock
    from whet.record.run_folder import locked

    (killed / "lock").touch()
    with locked(killed):
        assert whet.load(killed).status == "running"


def test_callbacks_have_any_of_the_methods_and_the_console_stays(tmp_path, capsys):
    class Steps:
        def __init__(self):
            self.seen = []

        def stepped(self, report, samples):
            self.seen.append(report.step)

    class End:
        def finished(self, summary):
            self.status = summary["status"]

    steps, end = Steps(), End()
    train(tmp_path / "run", callbacks=[steps, end], console=True)
    assert steps.seen == [1, 2] and end.status == "finished" and "step 2/2" in capsys.readouterr().out
    train(tmp_path / "silent")
    assert capsys.readouterr().out == ""


def length(completion):
    return float(len(completion))


def test_evaluate_gives_metrics_and_completions(run):
    result = whet.evaluate(run, ROWS, reward=length, settings={"eval": {"prompts": 6}})
    assert [each["prompt"] for each in result.completions] == [row["prompt"] for row in ROWS]
    assert all(each["reward"] == len(each["completion"]) for each in result.completions)
    mean = sum(each["reward"] for each in result.completions) / 6
    assert result["reward"] == pytest.approx(mean) and result.metrics["prompts"] == 6


def test_tab_completion_knows_the_names():
    assert {"train", "resume", "evaluate", "compare", "load", "register", "Run", "Callback"} <= set(dir(whet))
    assert {"from_trl", "RunFailed", "WhetError"} <= set(dir(whet)) and issubclass(whet.RunFailed, whet.WhetError)
    assert all(getattr(whet, name) is not None for name in dir(whet))


def test_whet_is_not_found_from_the_folder_above_a_clone(tmp_path):
    """A clone is a folder called whet; it must not be imported as a package without its functions."""
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "whet").symlink_to(root)
    program = "import importlib.util as u; spec = u.find_spec('whet'); print(spec.origin if spec else None)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).name == "__init__.py"  # of the installed package, not a namespace
    assert not (root / "__init__.py").exists() and not (root / "whet").exists()


def test_eval_data_is_anything_that_data_is(tmp_path):
    run = train(tmp_path / "run", eval_data=ROWS[:2], config={key: SMALL[key] for key in SMALL if key != "eval"})
    assert [json.loads(line) for line in (run.folder / "eval.jsonl").read_text().splitlines()] == ROWS[:2]
    assert run.before.keys() == run.after.keys() >= {"accuracy", "reward"}
    again = whet.evaluate(run)
    assert again["prompts"] == 2 and {name: again[name] for name in run.after} == run.after
    # what the run keeps in its folder is found there, wherever the folder and the caller are
    moved = run.folder.rename(tmp_path / "moved")
    assert whet.evaluate(moved).metrics == again.metrics
    assert whet.load(moved).config["data"]["source"] == str(moved / "data.jsonl")
    file = tmp_path / "held_out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:3]))
    named = train(tmp_path / "named", eval_data=file, eval={"prompts": 1})
    assert named.config["eval"]["source"] == str(file) and named.config["eval"]["prompts"] == 1


def test_a_mistake_leaves_no_folder_above_the_run_either(tmp_path):
    with pytest.raises(WhetError, match="no reward is called"):
        train(tmp_path / "runs" / "deep" / "run", reward="nothing_like_it")
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import sys
import whet

def mine(prompt, completion):
    return float(len(completion))

print("began")
config = {"model": {"device": "cpu", "threads": 1}, "batch": {"prompts_per_step": 2, "group_size": 2},
          "sampling": {"max_new_tokens": 4}}
rows = [{"prompt": "1+1", "answer": "2"}, {"prompt": "1+2", "answer": "3"}]
run = whet.train("reinforce", data=rows, eval_data=rows, reward=mine, config=config, steps=1, console=False,
                 folder=sys.argv[1])
print(whet.evaluate(run)["prompts"])
"""


def test_a_script_without_a_guard_runs_once(tmp_path):
    """Its reward is found in the running script; from elsewhere importing it would train again, and is refused."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = finished(script.name, str(tmp_path / "run"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["began", "2.0"]
    assert whet.load(tmp_path / "run").config["reward"]["parts"][0]["reward"] == f"{script}:mine"
    done = finished("resume", str(tmp_path / "run"), "--steps", "2")
    assert done.returncode == 2 and '`if __name__ == "__main__":`' in done.stderr and done.stderr.count("\n") == 1
    assert whet.load(tmp_path / "run").steps == 1


def test_the_display_of_a_notebook_draws_the_curve(run):
    from whet.api.notebook import NotebookDisplay

    display = NotebookDisplay()
    display._show = lambda: None  # there is no notebook here
    display.started(run.summary)
    assert "<svg" not in display.html()
    display.finished({"status": "finished"})
    assert display.html().count("<svg") == 1
