"""Saving behind the steps: what is written is one moment of the run, however late, broken off or refused."""

import errno
import json
import os
import re
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import whet
from tests.support.commands import finished, started
from tests.training.test_run import SMALL, Adding, Diary, Weights, command, interrupt, run, saved_steps, timeless
from whet import threads
from whet.model import snapshot, tensor_files
from whet.model.checkpoint import load_checkpoint, verify_checkpoint
from whet.model.load import load_model, local_folder
from whet.model.run_models import about_model, complete_checkpoints, run_model
from whet.record.log import RunRecorder, read_summary
from whet.record.sections import ReportSection
from whet.record.text import saving_text
from whet.training import saving
from whet.training.distributed.ranks import ALONE
from whet.training.run_loop import run_training
from whet.types import StepReport, WhetError

ROOT = Path(__file__).parents[2]


def total_in(folder):
    return load_file(folder / "model.safetensors")["total"].item()


class Listener(Diary):
    """Notes what became of saves, too."""

    def saved(self, step, path):
        self.events.append(f"saved {step}")

    def save_failed(self, step, reason):
        self.events.append(f"failed {step}: {reason}")


def held_writer(monkeypatch, opened):
    """Let every write wait until `opened` says so."""
    write = tensor_files._write

    def waiting(parts, file, wanted):
        while not opened():
            time.sleep(0.001)
            tensor_files._go_on(wanted)
        return write(parts, file, wanted)

    monkeypatch.setattr(tensor_files, "_write", waiting)


def full_disk(monkeypatch, steps, name="optimizer.safetensors"):
    """Refuse to write one file of the checkpoints of these steps, half of it being written."""
    write = tensor_files._write

    def refusing(parts, file, wanted):
        if file.name == name and any(f"step-{step:06d}" in str(file) for step in steps):
            file.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(file))
        return write(parts, file, wanted)

    monkeypatch.setattr(tensor_files, "_write", refusing)


# behind the steps


def test_a_checkpoint_is_the_moment_it_was_due_though_training_went_on(tmp_path, monkeypatch):
    reached = threading.Event()
    held_writer(monkeypatch, reached.is_set)  # step 2 is written while steps 3 and 4 change the weights
    listener = Listener()
    run(Adding(during={4: reached.set}), tmp_path, steps=6, save_every=2, diary=listener)
    assert listener.events.index("saved 2") > listener.events.index(4) > listener.events.index(2)
    for path in complete_checkpoints(tmp_path / "checkpoints"):
        model, step = Weights(), int(path.name[-2:])
        tensors, state = load_checkpoint(path, model)
        total = step * (step + 1) / 2
        assert model.total.item() == total and tensors["optimizer"]["moment"].item() == 2 * total
        assert state["trainer"] == {"done": step} and state["run"]["step"] == step
        assert state["logs"]["metrics.jsonl"]["lines"] == 1 + step + (step == 6)  # two evaluations
    assert saved_steps(tmp_path) == [2, 4, 6] and total_in(tmp_path / "final") == 21


def test_the_last_checkpoint_is_written_while_the_last_evaluation_runs(tmp_path):
    """And says what that measured, as one that was written afterwards does."""
    partial_folder, seen = tmp_path / "checkpoints" / ".step-000003.partial", []

    def look():
        end = time.monotonic() + 20
        while not (partial_folder / "optimizer.safetensors").exists() and time.monotonic() < end:
            time.sleep(0.001)
        seen.extend(path.name for path in partial_folder.iterdir())

    run(Adding(evaluating={3: look}), tmp_path, steps=3)
    assert {"model.safetensors", "optimizer.safetensors"} <= set(seen) and "state.json" not in seen
    _, state = load_checkpoint(tmp_path / "checkpoints" / "step-000003", Weights())
    assert state["run"]["evaluated_at"] == 3 and state["logs"]["metrics.jsonl"]["lines"] == 5  # two evaluations
    assert about_model(tmp_path / "final")["evaluation"]


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_an_evaluation_that_breaks_leaves_nothing_of_the_checkpoint_that_waited_for_it(tmp_path, error):
    def fail():
        raise error

    with pytest.raises(type(error)):
        run(Adding(evaluating={3: fail}), tmp_path, steps=3, save_every=2)
    assert saved_steps(tmp_path) == [2] and not list((tmp_path / "checkpoints").glob(".*"))
    assert not [thread for thread in threading.enumerate() if thread.name == "whet-save"]
    run(Adding(), tmp_path, steps=3, save_every=2, checkpoint=tmp_path / "checkpoints" / "step-000002")
    run(Adding(), tmp_path / "whole", steps=3, save_every=2)
    assert timeless(tmp_path) == timeless(tmp_path / "whole")


def test_what_goes_on_during_the_last_evaluation_is_in_the_checkpoint(tmp_path, monkeypatch):
    """As completions that are written ahead: then tensors and state are of one moment, the later one."""
    copies, take = [], saving.take_snapshot
    monkeypatch.setattr(saving, "take_snapshot", lambda *arguments: copies.append(arguments[0]) or take(*arguments))

    class Ahead(Adding):
        ahead = 0

        def evaluate(self):
            self.ahead += self.done == 3
            return super().evaluate()

        def state(self):
            return {**super().state(), "ahead": self.ahead}

        def tensors(self):
            return {**super().tensors(), "ahead": {"count": torch.tensor([float(self.ahead)])}}

    run(Ahead(), tmp_path, steps=3)
    tensors, state = load_checkpoint(tmp_path / "checkpoints" / "step-000003", Weights())
    assert tensors["ahead"]["count"].item() == state["trainer"]["ahead"] == 1 and copies.count(3) == 2
    copies.clear()
    run(Adding(), tmp_path / "still", steps=3)
    assert copies.count(3) == 1


def test_by_steps_the_next_save_waits_and_by_cost_it_is_not_due(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(saving.time, "perf_counter", lambda: clock[0])
    settings = {"save_every": 3}, {}
    counted, costed = (saving.Saver(tmp_path, ReportSection(**each), ALONE, 0, print, print) for each in settings)
    assert [step for step in range(1, 8) if counted.due(step)] == [3, 6]
    assert costed.due(1), "a first save early"
    costed.counts["saves"], costed.seconds = 1, {"held": 0.25, "behind": 4.0}
    costed._next_held, costed._next_writing = 0.25, 4.0
    when_due = [second for second in range(0, 200, 10) if (clock.__setitem__(0, float(second)), costed.due(second))[1]]
    assert when_due[0] == 80, "writing has 10% of the wall time: 8 s in 80 s"
    costed.seconds["held"] = 0.75
    clock[0] = 90.0
    assert not costed.due(90), "and steps wait 1% of it: 1 s in 100 s"
    clock[0] = 100.0
    assert costed.due(100)
    costed._writing = saving._Writing(99, tmp_path)
    assert not costed.due(100)


def test_a_run_says_what_saving_cost_and_a_kill_would_have(tmp_path):
    outcome = run(Adding(), tmp_path, steps=7, save_every=3)
    account = outcome.saving
    assert (account["saves"], account["failed"], account["most_lost"]) == (3, 0, account["most_lost"])
    assert 3 <= account["most_lost"] <= 6 and 0 < account["held"] < account["wall"] and account["behind"] > 0
    text = saving_text({**account, "most_lost": 5, "held": 1.0, "wall": 50.0})
    assert "3 saved;" in text and "2.0% of the time since start-up" in text and "at most 5 steps" in text


# refused and broken off


def test_a_full_disk_behind_a_step_is_told_and_the_run_goes_on(tmp_path, monkeypatch):
    full_disk(monkeypatch, [2, 4])
    listener = Listener()
    outcome = run(Adding(), tmp_path, steps=7, save_every=2, diary=listener)
    told = [event for event in listener.events if str(event).startswith("failed")]
    assert len(told) == 2 and "\n" not in "".join(told)
    assert told[0].startswith("failed 2: not saved (OSError: [Errno 28] No space left on device")
    assert told[0].endswith("the run continues and tries again; no checkpoint is whole yet")
    assert (outcome.status, outcome.saving["failed"], saved_steps(tmp_path)) == ("finished", 2, [6, 7])
    assert outcome.saving["most_lost"] >= 6
    assert [line[:7] for line in read_summary(tmp_path)["save_failures"]] == ["step 2:", "step 4:"]
    assert not list((tmp_path / "checkpoints").glob(".*"))
    monkeypatch.undo()
    run(Adding(), tmp_path / "whole", steps=7, save_every=2)
    assert timeless(tmp_path) == timeless(tmp_path / "whole")


def test_a_full_disk_names_the_last_whole_checkpoint_and_at_the_end_it_is_an_error(tmp_path, monkeypatch):
    full_disk(monkeypatch, [4, 5])
    listener = Listener()
    with pytest.raises(WhetError, match=r"cannot write checkpoint .*step-000005 .*No space left.*then resume the run"):
        run(Adding(), tmp_path, steps=5, save_every=2, diary=listener)
    assert [event for event in listener.events if str(event).startswith("failed")] == [
        listener.events[-2 if listener.events[-1] == (5, 0.15) else -1]
    ]
    assert any("the last whole checkpoint is step-000002" in str(event) for event in listener.events)
    assert saved_steps(tmp_path) == [2] and not list((tmp_path / "checkpoints").glob(".*"))
    verify_checkpoint(tmp_path / "checkpoints" / "step-000002")
    assert not (tmp_path / "final").exists()


def test_a_mistake_in_the_background_ends_the_run(tmp_path, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(snapshot, "weight_files", broken)
    with pytest.raises(ZeroDivisionError):
        run(Adding(), tmp_path, steps=9, save_every=2)
    assert saved_steps(tmp_path) == []


def test_a_step_that_fails_waits_for_the_save_under_way(tmp_path, monkeypatch):
    began = []

    def fail():
        began.append(time.monotonic())
        raise RuntimeError("the step broke")

    held_writer(monkeypatch, lambda: began and time.monotonic() > began[0] + 0.05)
    with pytest.raises(RuntimeError, match="the step broke"):
        run(Adding(during={3: fail}), tmp_path, steps=9, save_every=2)
    assert saved_steps(tmp_path) == [2]


def test_a_second_signal_gives_up_a_save_that_takes_long(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "GRACE", 0.05)
    with monkeypatch.context() as patched:
        held_writer(patched, lambda: False)
        with pytest.raises(KeyboardInterrupt):
            run(Adding(during={3: interrupt(times=2)}), tmp_path, steps=9, save_every=2)
    assert not [thread for thread in threading.enumerate() if thread.name == "whet-save"]
    assert saved_steps(tmp_path) == [] and not list((tmp_path / "checkpoints").iterdir())


def test_a_folder_that_is_deleted_is_not_made_again(tmp_path, monkeypatch):
    import shutil

    reached = threading.Event()
    held_writer(monkeypatch, reached.is_set)
    folder = tmp_path / "run"

    def delete():
        while folder.exists():  # the save under way may be making its own folder in it
            shutil.rmtree(folder, ignore_errors=True)
        reached.set()

    with pytest.raises(whet.types.RunFailed, match="was deleted, moved or replaced"):
        run(Adding(during={3: delete}), folder, steps=9, save_every=2)
    assert not folder.exists()


# the best and the final model


class UpAndDown(Adding):
    """Its accuracy is best at step 4."""

    def evaluate(self):
        return {"accuracy": 1.0 - abs(self.done - 4) / 10, "loss": float(self.done)}


def test_the_best_and_the_final_model_are_kept_whatever_is_pruned(tmp_path):
    run(UpAndDown(), tmp_path, steps=9, eval_every=2, save_every=3, keep=1)
    best, final = (about_model(tmp_path / name) for name in ("best", "final"))
    assert best == {"step": 4, "metric": "accuracy", "value": 1.0, "evaluation": {"accuracy": 1.0, "loss": 4.0}}
    assert final["step"] == 9 and final["evaluation"]["loss"] == 9.0
    assert total_in(tmp_path / "best") == 10 and total_in(tmp_path / "final") == 45
    assert saved_steps(tmp_path) == [9]
    for name in ("best", "final"):
        verify_checkpoint(tmp_path / name)
        assert not {"optimizer.safetensors", "state.json"} & {file.name for file in (tmp_path / name).iterdir()}
    one, other = (tmp_path / name / "model.safetensors" for name in ("final", "checkpoints/step-000009"))
    assert one.samefile(other), "equal bytes are on the disk once"


def test_lower_is_better_for_a_loss_and_what_is_not_a_number_never_is(tmp_path):
    saver = saving.Saver(tmp_path, ReportSection(), ALONE, 0, print, print)
    report = StepReport(1, 0, {"tokens": 1}, {}, {"loss": 1.0})  # imitation: its headline is the loss
    assert saver.new_best(report, {"loss": 2.0, "accuracy": 0.5})["metric"] == "loss"
    saver._best = {"metric": "loss", "value": 2.0}
    assert saver.new_best(report, {"loss": 1.9}) and not saver.new_best(report, {"loss": 2.0})
    assert not saver.new_best(report, {"loss": float("nan")}) and not saver.new_best(report, {})


def test_the_best_is_found_by_what_all_evaluations_measured(tmp_path):
    """A reward in fractions is an accuracy where every completion happens to get all or nothing."""
    saver = saving.Saver(tmp_path, ReportSection(), ALONE, 0, print, print)
    report = StepReport(1, 0, {"tokens": 1}, {"total": 0.5}, {})
    saver._best = {"metric": "reward", "value": 0.8, "evaluation": {"reward": 0.8}}
    assert not saver.new_best(report, {"accuracy": 0.7, "reward": 0.7}), "0.7 is below 0.8, whatever it is called"
    assert saver.new_best(report, {"accuracy": 0.9, "reward": 0.9})["metric"] == "reward"
    saver._best = {"metric": "accuracy", "value": 0.7, "evaluation": {"accuracy": 0.7, "reward": 0.7}}
    assert not saver.new_best(report, {"reward": 0.6}) and saver.new_best(report, {"reward": 0.75})
    assert saver.new_best(report, {"accuracy": 0.8, "reward": 0.8})["metric"] == "accuracy"


def test_going_back_gives_up_a_best_model_of_a_later_step(tmp_path):
    run(UpAndDown(), tmp_path, steps=9, eval_every=2, save_every=2)
    checkpoint = tmp_path / "checkpoints" / "step-000002"
    run(UpAndDown(during={3: interrupt()}), tmp_path, steps=9, eval_every=2, save_every=2, checkpoint=checkpoint)
    assert not (tmp_path / "best").exists() and about_model(tmp_path / "final")["step"] == 3
    run(UpAndDown(), tmp_path, steps=9, eval_every=2, save_every=2, checkpoint=tmp_path / "checkpoints" / "step-000003")
    assert about_model(tmp_path / "best")["step"] == 4


def test_a_best_model_that_was_being_replaced_is_put_back(tmp_path):
    run(UpAndDown(), tmp_path, steps=5, eval_every=2, save_every=2)
    os.replace(tmp_path / "best", tmp_path / ".best.removed")
    (tmp_path / ".final.partial").mkdir()
    saving.Saver(tmp_path, ReportSection(), ALONE, 5, print, print)
    assert about_model(tmp_path / "best")["step"] == 4 and not list(tmp_path.glob(".*"))


@pytest.fixture(scope="module")
def weights_only(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "weights"
    report = {"save": "weights", "save_every": 2, "weights_dtype": "bf16"}
    config = {**SMALL, "report": report, "eval": {"prompts": 4, "every": 1}}
    return whet.train("reinforce", config=config, steps=3, folder=str(folder), console=False)


def test_weights_alone_in_the_number_type_that_was_asked_for(weights_only, monkeypatch, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = weights_only.folder
    assert complete_checkpoints(folder / "checkpoints") == [] and weights_only.model == folder / "final"
    model = AutoModelForCausalLM.from_pretrained(folder / "final", dtype="auto")
    assert model.dtype == torch.bfloat16 and AutoTokenizer.from_pretrained(folder / "final").chat_template
    assert local_folder(str(folder)) == folder / "final" == run_model(folder)
    assert local_folder(str(folder / "best")) == folder / "best" == weights_only.best
    assert about_model(folder / "final")["step"] == 3 and about_model(folder / "best")["step"] >= 1
    code, error = command(monkeypatch, capsys, "resume", str(folder))
    assert code == 2 and error.count("\n") == 0
    assert "report.save=weights" in error and f"model {folder / 'final'}" in error


def test_the_same_weights_in_either_number_type(weights_only, tmp_path):
    config = {**SMALL, "report": {"save_every": 2}, "eval": {"prompts": 4, "every": 1}}
    run_of_all = whet.train("reinforce", config=config, steps=3, folder=str(tmp_path / "run"), console=False)
    wide = load_file(run_of_all.folder / "final" / "model.safetensors")
    narrow = load_file(weights_only.folder / "final" / "model.safetensors")
    assert wide.keys() == narrow.keys() and all(value.dtype == torch.float32 for value in wide.values())
    assert all(torch.equal(value.to(torch.bfloat16), narrow[name]) for name, value in wide.items())
    assert (
        "final"
        in whet.train(
            "reinforce", model=run_of_all, config=SMALL, steps=1, folder=str(tmp_path / "next"), console=False
        ).summary["facts"]["model"]
    )
    (run_of_all.folder / "best" / "manifest.json").unlink()
    with pytest.raises(WhetError, match="no best model"):
        _ = run_of_all.best


def test_a_checkpoint_of_0_2_is_loaded_and_gone_on_from(tmp_path):
    """Laid out by the libraries, as that version did it, in a run without best and final."""
    from safetensors.torch import save_file

    from whet.model.checkpoint import content_digest, file_digest

    loaded = load_model("whetstone")
    folder = tmp_path / "run" / "checkpoints" / "step-000007"
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    save_file({"moment": torch.arange(3.0)}, folder / "optimizer.safetensors")
    (folder / "state.json").write_text(json.dumps({"step": 7, "state": {"trainer": {"done": 7}}}, indent=1) + "\n")
    files = {path.name: {"size": path.stat().st_size, "sha256": file_digest(path)} for path in folder.iterdir()}
    content = {"step": 7, "tensors": ["optimizer"], "files": files}
    (folder / "manifest.json").write_text(json.dumps({**content, "sha256": content_digest(content)}))
    assert local_folder(str(tmp_path / "run")) == folder
    fresh = load_model(str(tmp_path / "run")).model
    with torch.no_grad():
        fresh.get_input_embeddings().weight.zero_()
    tensors, state = load_checkpoint(folder, fresh)
    assert torch.equal(tensors["optimizer"]["moment"], torch.arange(3.0)) and state == {"trainer": {"done": 7}}
    assert torch.equal(fresh.get_input_embeddings().weight, loaded.model.get_input_embeddings().weight)


# killed

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.training.test_saving import UpAndDown, one_run
from whet.model import checkpoint, snapshot, tensor_files
import huggingface_hub, transformers.core_model_loading, transformers.modeling_utils  # once, for all children

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def at(module, name, number, before):
    real, calls = getattr(module, name), []
    def wrapped(*arguments):
        calls.append(arguments)
        if len(calls) == number and before:
            die()
        result = real(*arguments)
        if len(calls) == number:
            die()
        return result
    setattr(module, name, wrapped)

def half(name, number):
    real, calls = tensor_files._write, []
    def wrapped(parts, file, wanted):
        if file.name == name:
            calls.append(file)
            if len(calls) == number:
                file.write_bytes(b"".join(parts)[:40])
                die()
        return real(parts, file, wanted)
    tensor_files._write = wrapped

POINTS = {
    "in a write": lambda: half("optimizer.safetensors", 2),
    "in the weights of the best": lambda: half("model.safetensors", 3),
    "before the manifest": lambda: at(snapshot, "write_manifest", 4, True),
    "between write and move": lambda: at(snapshot, "publish", 4, True),
    "between best and checkpoint": lambda: at(snapshot, "publish", 2, False),
    "as the old best is hidden": lambda: at(checkpoint, "hide", 1, False),
    "in the pruning": lambda: at(checkpoint, "hide", 2, False),
    "after the pruning": lambda: at(checkpoint, "remove_folder", 12, False),
}
for point, inject in POINTS.items():
    child = os.fork()
    if child == 0:
        inject()
        one_run(Path(sys.argv[1]) / point)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(point if os.WIFSIGNALED(status) else f"{point} was never reached")
"""


def one_run(folder, checkpoint=None):
    folder.mkdir(exist_ok=True)
    return run_training(
        UpAndDown(),
        folder,
        RunRecorder(folder),
        [],
        {"title": "adding"},
        steps=9,
        eval_every=2,
        saving=ReportSection(save_every=2, keep_checkpoints=2),
        checkpoint=checkpoint,
    )


def everything(folder):
    """All that a run leaves, without its wall-clock times."""
    logs = ("metrics.jsonl", "samples.jsonl", "run.json")
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in logs]
    return {"log": timeless(folder), **{str(path.relative_to(folder)): path.read_bytes() for path in paths}}


def test_killed_at_every_point_of_a_save_it_goes_on_to_the_same_bytes(tmp_path):
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    done = finished(str(program), str(tmp_path), folder=ROOT)
    assert done.returncode == 0, done.stderr
    points = done.stdout.splitlines()
    assert len(points) == 8 and not [point for point in points if "never" in point]
    one_run(tmp_path / "unbroken")
    expected = everything(tmp_path / "unbroken")
    complaints = []
    for point in points:
        folder = tmp_path / point
        whole = complete_checkpoints(folder / "checkpoints")
        for path in whole:
            verify_checkpoint(path)  # raises: none is half a checkpoint
        one_run(folder, whole[-1] if whole else None)
        found = everything(folder)
        different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        complaints += [f"{point}: {', '.join(different)}"] if different else []
    assert not complaints, "\n".join(complaints)


@pytest.mark.slow
def test_killed_at_random_moments_with_the_cadence_by_cost(tmp_path):
    """When it is saved depends on the clock; what a run comes to does not."""
    import random

    def arguments(folder):
        settings = [
            f"{section}.{key}={json.dumps(value)}"
            for section in ("model", "data", "sampling", "batch")
            for key, value in SMALL[section].items()
        ]
        settings += ["eval.prompts=4", "eval.every=5", "steps=40"]
        return ["train", "grpo", "--folder", str(folder), *(word for text in settings for word in ("--set", text))]

    def outcome(folder):
        names = ("best/model.safetensors", "best/saved.json", "final/model.safetensors", "samples.jsonl")
        last = "checkpoints/step-000040/optimizer.safetensors"
        return {"log": timeless(folder), **{name: (folder / name).read_bytes() for name in (*names, last)}}

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert finished(*arguments(whole)).returncode == 0

    def written():
        return (broken / "metrics.jsonl").stat().st_mtime_ns if (broken / "metrics.jsonl").exists() else 0

    stream, process, kills, before = random.Random(7), started(*arguments(broken)), 0, 0
    while kills < 6:
        deadline = time.monotonic() + 120
        while written() == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(stream.uniform(0.0, 0.6))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        for path in complete_checkpoints(broken / "checkpoints"):
            verify_checkpoint(path)
        before, process = written(), started("resume", str(broken))
    process.wait()
    assert process.returncode == 0, process.stderr
    assert kills >= 2 and outcome(broken) == outcome(whole)


# no memory for another thread


def die_at_birth(monkeypatch, name):
    """Threads of this name end before their first line, as a full memory ends them (python/cpython issue 140746)."""
    plain = threading.Thread._bootstrap

    def bootstrap(self):
        if self.name.startswith(name):
            raise SystemExit  # ended in silence; a MemoryError is printed, and the start waits just the same
        plain(self)

    monkeypatch.setattr(threading.Thread, "_bootstrap", bootstrap)
    monkeypatch.setattr(threads, "START_SECONDS", 0.05)


def test_a_save_is_whole_where_its_writers_cannot_begin(tmp_path, monkeypatch):
    die_at_birth(monkeypatch, "whet-save ")
    run(Adding(), tmp_path, steps=2, save_every=1)
    for folder in complete_checkpoints(tmp_path / "checkpoints"):
        verify_checkpoint(folder)
    assert saved_steps(tmp_path) == [1, 2]


def test_a_save_that_cannot_begin_is_out_of_memory_and_no_endless_wait(tmp_path, monkeypatch):
    die_at_birth(monkeypatch, "whet-save")
    with pytest.raises(MemoryError, match="ended before it began"):
        run(Adding(), tmp_path, steps=2, save_every=1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("whet-save")]


def test_memory_that_cannot_be_reserved_hides_no_cause(monkeypatch):
    memory = snapshot.HostMemory()
    die_at_birth(monkeypatch, "whet-reserve")
    with pytest.raises(MemoryError, match="ended before it began"):
        memory.reserve({})
    assert memory.is_ready
    memory.release()


def test_jobs_side_by_side_come_back_in_order_and_the_first_error_stops_the_rest():
    assert threads.side_by_side([lambda number=number: number for number in range(20)], 4) == list(range(20))
    stopped, done = threading.Event(), []

    def fail():
        raise OSError("full")

    def wait():
        stopped.wait(20)
        done.append(1)

    with pytest.raises(OSError, match="full"):
        threads.side_by_side([wait, fail, *[wait] * 50], 2, stopped.set)
    assert len(done) == 1


def test_jobs_in_threads_are_done_by_those_that_begin(monkeypatch):
    squares = [partial(pow, number, 2) for number in range(20)]
    assert [future.result() for future in threads.in_threads(squares, 4, "pool")] == [n * n for n in range(20)]
    assert threads.in_threads([], 4, "pool") == []
    (failed,) = threads.in_threads([partial(int, "x")], 0, "pool")
    with pytest.raises(ValueError, match="invalid literal"):
        failed.result()
    die_at_birth(monkeypatch, "pool 2")
    assert [future.result() for future in threads.in_threads(squares, 4, "pool")] == [n * n for n in range(20)]
    die_at_birth(monkeypatch, "pool 1")
    with pytest.raises(MemoryError, match="ended before it began"):
        threads.in_threads(squares, 4, "pool")


def test_no_thread_is_started_that_could_be_waited_for_for_ever():
    """`whet.threads` is the one way to have threads; a pool of Python's hangs where memory is full."""
    wild = re.compile(r"ThreadPoolExecutor|threading\.(Thread|Timer)\(|\(threading\.Thread\)|to_thread|run_in_executor")
    package = Path(threads.__file__).parent
    assert [str(file) for file in package.rglob("*.py") if wild.search(file.read_text())] == [threads.__file__]
