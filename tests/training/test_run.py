"""Around the steps: evaluating, saving, stopping politely, and going on where it was."""

import json
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import whet
from tests.support.commands import started
from whet import cli
from whet.model.checkpoint import load_checkpoint, verify_checkpoint
from whet.model.run_models import complete_checkpoints
from whet.record.log import RunRecorder, read_metrics, read_samples, read_summary
from whet.record.sections import ReportSection
from whet.training.run_loop import RunFailed, run_training
from whet.types import StepReport, WhetError

ROOT = Path(__file__).parents[2]


class Weights(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.total = torch.nn.Parameter(torch.zeros(1))

    def save_pretrained(self, path, state_dict):
        pass


class NoTokens:
    def save_pretrained(self, path):
        pass


class Adding:
    """A trainer that adds each step's number to its weight. `during` does something in the middle of a step."""

    def __init__(self, during=None, evaluating=None, held_out=True):
        self.model, self.tokenizer = Weights(), NoTokens()
        self.during, self.evaluating, self.held_out = during or {}, evaluating or {}, held_out
        self.done, self.prompt_scores = 0, {}

    def step(self, number, timer):
        with timer.phase("train"), torch.no_grad():
            self.model.total += number
        self.during.get(number, lambda: None)()
        self.done += 1
        metrics = {"loss": 1.0 / number, "gradient_norm": 1.0}
        return StepReport(number, number - 1, {"tokens": 10}, {"total": 0.5}, metrics), []

    ended_early = None

    def evaluate(self):
        self.evaluating.get(self.done, lambda: None)()
        return {"accuracy": self.model.total.item() / 100} if self.held_out else {}

    def state(self):
        return {"done": self.done}

    def tensors(self):
        return {"optimizer": {"moment": 2 * self.model.total.detach()}}

    def restore(self, state, tensors):
        self.done = state["done"]
        assert torch.equal(tensors["optimizer"]["moment"], 2 * self.model.total)


class Diary:
    """A watcher that notes what it is told."""

    def __init__(self):
        self.events = []

    def started(self, summary):
        self.events.append("started")

    def stepped(self, report, samples):
        self.events.append(report.step)

    def evaluated(self, step, name, result, seconds):
        self.events.append((step, result["accuracy"]))

    def finished(self, summary):
        self.events.append("finished")


def run(trainer, folder, *, steps=5, eval_every=0, save_every=2, keep=9, checkpoint=None, diary=None):
    saving = ReportSection(save_every=save_every, keep_checkpoints=keep)
    return run_training(
        trainer,
        folder,
        RunRecorder(folder),
        [diary or Diary()],
        {"title": "adding"},
        steps=steps,
        eval_every=eval_every,
        saving=saving,
        checkpoint=checkpoint,
    )


def saved_steps(folder):
    return [int(path.name.removeprefix("step-")) for path in complete_checkpoints(folder / "checkpoints")]


def timeless(folder):
    lines = read_metrics(folder)
    for line in lines:
        line.pop("seconds"), line.pop("timeline", None), line.pop("machine", None)
    return lines


def interrupt(number=signal.SIGINT, times=1):
    def now():
        for _ in range(times):
            os.kill(os.getpid(), number)

    return now


# evaluating and saving


def test_it_evaluates_before_on_schedule_and_after(tmp_path):
    diary = Diary()
    outcome = run(Adding(), tmp_path, steps=5, eval_every=2, diary=diary)
    assert diary.events == ["started", (0, 0.0), 1, 2, (2, 0.03), 3, 4, (4, 0.1), 5, (5, 0.15)]
    assert (outcome.status, outcome.steps, outcome.tokens) == ("finished", 5, 50)
    assert (outcome.before, outcome.after) == ({"accuracy": 0.0}, {"accuracy": 0.15})
    assert {"train", "evaluate", "save"} <= outcome.seconds.keys()


def test_evaluate_every_zero_is_before_and_after(tmp_path):
    diary = Diary()
    run(Adding(), tmp_path, steps=4, diary=diary)
    assert diary.events == ["started", (0, 0.0), 1, 2, 3, 4, (4, 0.1)]


def test_nothing_held_out_nothing_evaluated(tmp_path):
    diary = Diary()
    outcome = run(Adding(held_out=False), tmp_path, steps=2, eval_every=1, diary=diary)
    assert diary.events == ["started", 1, 2]
    assert outcome.before == outcome.after == {}


@pytest.mark.parametrize(("keep", "kept"), [(9, [3, 6, 7]), (2, [6, 7]), (1, [7])])
def test_it_saves_on_schedule_and_at_the_end_and_prunes(tmp_path, keep, kept):
    run(Adding(), tmp_path, steps=7, save_every=3, keep=keep)
    assert saved_steps(tmp_path) == kept
    for path in complete_checkpoints(tmp_path / "checkpoints"):
        verify_checkpoint(path)


def test_the_record_has_every_step_once(tmp_path):
    run(Adding(), tmp_path, steps=3)
    lines = read_metrics(tmp_path)
    assert [(line["step"], "eval" in line) for line in lines] == [
        (0, True),
        (1, False),
        (2, False),
        (3, False),
        (3, True),
    ]
    assert all("train" in line["seconds"] for line in lines if "eval" not in line)


# stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_finishes_the_step_and_saves(tmp_path, number):
    stray = []
    before = signal.signal(number, lambda *_: stray.append(number))
    try:
        trainer = Adding(during={3: interrupt(number)})
        outcome = run(trainer, tmp_path, steps=9, save_every=100)
        assert (outcome.status, outcome.steps, trainer.done) == ("interrupted", 3, 3)
        assert saved_steps(tmp_path) == [3] and not stray
        os.kill(os.getpid(), number)  # after the run the earlier handler is back
        assert stray == [number]
    finally:
        signal.signal(number, before)


def test_a_signal_between_two_steps_saves_too(tmp_path):
    """It comes while step 3 is evaluated: that step was reported and must not be lost."""
    outcome = run(Adding(evaluating={3: interrupt()}), tmp_path, steps=9, eval_every=3, save_every=2)
    assert (outcome.status, outcome.steps) == ("interrupted", 3)
    assert saved_steps(tmp_path) == [2, 3]


def test_a_signal_in_the_last_step_changes_nothing(tmp_path):
    outcome = run(Adding(during={3: interrupt()}), tmp_path, steps=3)
    assert outcome.status == "finished" and outcome.after == {"accuracy": 0.06} and saved_steps(tmp_path) == [2, 3]


def test_a_second_signal_interrupts_at_once(tmp_path):
    before, trainer = signal.getsignal(signal.SIGINT), Adding(during={3: interrupt(times=2)})
    with pytest.raises(KeyboardInterrupt):
        run(trainer, tmp_path, steps=9)
    assert trainer.done == 2 and saved_steps(tmp_path) == [2]
    assert signal.getsignal(signal.SIGINT) is before


def test_it_runs_beside_the_main_thread(tmp_path):
    outcomes = []
    worker = threading.Thread(target=lambda: outcomes.append(run(Adding(), tmp_path, steps=2)))
    worker.start()
    worker.join()
    assert outcomes[0].status == "finished"


# going on


def test_an_interrupted_run_goes_on_to_what_an_unbroken_one_has(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = run(Adding(), whole, steps=8, eval_every=3)
    run(Adding(during={3: interrupt()}), broken, steps=8, eval_every=3)
    trainer, diary = Adding(), Diary()
    checkpoint = complete_checkpoints(broken / "checkpoints")[-1]
    outcome = run(trainer, broken, steps=8, eval_every=3, checkpoint=checkpoint, diary=diary)
    assert diary.events[:3] == ["started", 4, 5]
    assert timeless(broken) == timeless(whole)
    assert (outcome.before, outcome.after, outcome.tokens) == (expected.before, expected.after, expected.tokens)
    assert trainer.model.total.item() == 36


def test_what_was_logged_after_the_checkpoint_is_cut_off(tmp_path):
    def fail():
        raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError):
        run(Adding(during={6: fail}), tmp_path, steps=9, save_every=2)
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 2, 3, 4, 5]
    with (tmp_path / "metrics.jsonl").open("ab") as log:
        log.write(b'{"step": 6, "torn')
    run(Adding(), tmp_path, steps=6, checkpoint=tmp_path / "checkpoints" / "step-000004")
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 2, 3, 4, 5, 6, 6]


def test_a_run_without_a_checkpoint_starts_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(Adding(during={1: interrupt(times=2)}), tmp_path)
    run(Adding(), tmp_path, steps=2)
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 2, 2]


def test_going_back_gives_up_the_newer_checkpoints(tmp_path):
    """They belong to logs that are cut off; pruning by number would keep them and drop the new ones."""
    run(Adding(), tmp_path, steps=8, save_every=2)
    checkpoint = tmp_path / "checkpoints" / "step-000002"
    outcome = run(Adding(during={4: interrupt()}), tmp_path, steps=8, save_every=3, keep=2, checkpoint=checkpoint)
    assert outcome.steps == 4 and saved_steps(tmp_path) == [3, 4]
    model = Weights()
    load_checkpoint(tmp_path / "checkpoints" / "step-000004", model)
    assert model.total.item() == 10
    assert not list((tmp_path / "checkpoints").glob(".*"))


# the whole program


SMALL = {
    "model": {"device": "cpu", "threads": 1},
    "data": {"count": 40, "difficulty": [2]},
    "sampling": {"max_new_tokens": 12},
    "batch": {"prompts_per_step": 2, "group_size": 2},
    "eval": {"prompts": 4, "every": 0},
    "report": {"save_every": 2, "keep_checkpoints": 9},
}


def small_arguments(folder, *words):
    settings = [
        f"{section}.{key}={json.dumps(value)}" for section, values in SMALL.items() for key, value in values.items()
    ]
    return ["train", "reinforce", "--folder", str(folder), *(w for each in settings for w in ("--set", each)), *words]


def wait_until(process, happened, seconds=120):
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.stderr
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def command(monkeypatch, capsys, *words):
    """(exit code, standard error) of the command line, in this process."""
    monkeypatch.setattr(sys, "argv", ["whet", *words])
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0, capsys.readouterr().err.strip()


@pytest.fixture(scope="module")
def four_steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "four"
    assert whet.train("reinforce", config=SMALL, steps=4, folder=str(folder), console=False).status == "finished"
    return folder


@pytest.fixture
def copied(four_steps, tmp_path):
    return Path(shutil.copytree(four_steps, tmp_path / "run"))


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights_of(folder, step):
    return (folder / "checkpoints" / f"step-{step:06d}" / "model.safetensors").read_bytes()


def test_resume_extends_a_run(monkeypatch, capsys, copied, tmp_path):
    code, _ = command(monkeypatch, capsys, "resume", str(copied), "--steps", "6")
    assert code == 0 and saved_steps(copied) == [2, 4, 6]
    assert read_summary(copied)["status"] == "finished" and read_summary(copied)["total_steps"] == 6
    whole = tmp_path / "whole"
    whet.train("reinforce", config=SMALL, steps=6, folder=str(whole), console=False)
    assert weights_of(copied, 6) == weights_of(whole, 6)
    assert read_samples(copied) == read_samples(whole)
    code, error = command(monkeypatch, capsys, "resume", str(copied))
    assert code == 2 and "all 6 steps are done" in error


def test_resume_from_an_older_checkpoint(monkeypatch, capsys, copied, four_steps):
    (copied / "checkpoints" / "step-000004" / "model.safetensors").write_bytes(b"broken")
    code, _ = command(monkeypatch, capsys, "resume", str(copied), "--from", "step-000002", "--steps", "5")
    assert code == 0 and saved_steps(copied) == [2, 4, 5]
    assert weights_of(copied, 4) == weights_of(four_steps, 4)
    steps = [line["step"] for line in read_metrics(copied) if "eval" not in line]
    assert steps == [1, 2, 3, 4, 5]


def test_resume_from_a_checkpoint_that_is_not_there(monkeypatch, capsys, copied):
    code, error = command(monkeypatch, capsys, "resume", str(copied), "--from", "step-000003", "--steps", "9")
    assert code == 2 and "step-000003: no complete checkpoint; there are step-000002, step-000004" in error


def test_fewer_steps_than_are_done_is_a_mistake(monkeypatch, capsys, copied):
    summary = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**summary, "status": "interrupted"}))
    before = files(copied)
    code, error = command(monkeypatch, capsys, "resume", str(copied), "--steps", "3")
    assert code == 2 and "step 4" in error and "give steps a larger total" in error and "\n" not in error
    assert files(copied) == before


def test_a_damaged_checkpoint_is_named_with_its_fix_and_nothing_is_deleted(monkeypatch, capsys, copied):
    weights = copied / "checkpoints" / "step-000004" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    before = files(copied)
    code, error = command(monkeypatch, capsys, "resume", str(copied), "--steps", "6")
    assert code == 2 and "\n" not in error
    assert "model.safetensors has changed bytes" in error and "step-000004" in error
    assert error.endswith(f"whet resume {copied} --from step-000002")
    assert files(copied) == before


def test_lost_log_lines_are_a_mistake_that_leaves_the_folder_alone(monkeypatch, capsys, copied):
    log = copied / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:100])
    before = files(copied)
    code, error = command(monkeypatch, capsys, "resume", str(copied), "--steps", "6")
    assert code == 2 and "metrics.jsonl has 0 lines" in error
    assert files(copied) == before


def test_a_config_that_was_cut_is_damaged_and_one_that_was_edited_is_told(monkeypatch, capsys, caplog, copied):
    """Also before the first checkpoint, when the run begins again."""
    shutil.rmtree(copied / "checkpoints")
    (copied / "run.json").write_text(json.dumps({**read_summary(copied), "status": "interrupted"}))
    config = copied / "config.toml"
    whole = config.read_text()
    config.write_text(whole[: whole.index("[batch]")])  # still TOML
    before = files(copied)
    code, error = command(monkeypatch, capsys, "resume", str(copied))
    assert code == 2 and "config.toml is damaged: it has no batch." in error and "\n" not in error
    assert files(copied) == before
    config.write_text(re.sub(r"(?m)^seed = .*", "seed = 77", whole))
    assert command(monkeypatch, capsys, "resume", str(copied))[0] == 0
    assert "begins again from step 1, not as it began: config seed" in caplog.text


@pytest.mark.parametrize(
    "when",
    [
        "training.run_loop.agree_on_step",
        "training.saving.write_snapshot",
        "reward.run_record.record_effect",
        "pages.run_report.write_report",
        "record.log.replace_summary",
    ],
)
def test_a_run_whose_files_are_deleted_does_not_end_as_finished(monkeypatch, tmp_path, when):
    """Whatever it is doing meanwhile, and whatever fails for it; and it puts nothing in their place."""
    module, _, name = f"whet.{when}".rpartition(".")
    plain = getattr(sys.modules[module], name)
    folder = tmp_path / "run"
    is_log, is_last = name != "write_snapshot", name == "replace_summary"

    def delete(*arguments):
        came = plain(*arguments) if is_log else None
        if not is_last or arguments[1]["status"] == "finished":
            for path in [folder / "metrics.jsonl"] if is_log else list(folder.iterdir()):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return came if is_log else plain(*arguments)

    monkeypatch.setattr(f"{module}.{name}", delete)
    with pytest.raises(RunFailed, match=r"was deleted, moved or replaced while the run was writing there"):
        whet.train("reinforce", config=SMALL, steps=1, folder=str(folder), console=False)
    assert not (folder / "metrics.jsonl").exists()
    assert read_summary(folder)["status"] != "finished" or is_last if is_log else not list(folder.glob("*"))


def test_a_folder_that_is_no_run(monkeypatch, capsys, tmp_path):
    code, error = command(monkeypatch, capsys, "resume", str(tmp_path / "nowhere"))
    assert code == 2 and "not a run folder" in error


def test_control_c_ends_with_130_and_a_second_process_is_kept_out(tmp_path):
    folder = tmp_path / "run"
    process = started(*small_arguments(folder, "--steps", "5000", "--set", "eval.prompts=0"))
    try:
        wait_until(process, lambda: len(read_metrics(folder)) >= 3)
        for attempt in (
            lambda: whet.resume(folder, console=False),
            lambda: whet.train("reinforce", config=SMALL, folder=str(folder), console=False),
        ):
            with pytest.raises(WhetError, match=r"another process is training there|already holds a run"):
                attempt()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == 130, process.stderr
    assert "Traceback" not in process.stderr
    summary = read_summary(folder)
    step = saved_steps(folder)[-1]
    assert summary["status"] == "interrupted"
    assert step == read_metrics(folder)[-1]["step"] < 5000
    resumed = whet.resume(folder, steps=step + 1, console=False)
    assert (resumed.status, resumed.steps) == ("finished", step + 1)


def test_a_second_control_c_does_not_wait_for_the_step(tmp_path):
    reward = tmp_path / "slow.py"
    reward.write_text(
        "import pathlib, time\n"
        "def slow(completion):\n"
        "    pathlib.Path(__file__).with_suffix('.called').touch()\n"
        "    time.sleep(60)\n"
        "    return 0.0\n"
    )
    words = ["--reward", f"{reward}:slow", "--set", "eval.prompts=0", "--set", "reward.timeout=100"]
    process = started(*small_arguments(tmp_path / "run", *words))
    try:
        wait_until(process, reward.with_suffix(".called").exists)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.wait(20)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == 130, process.stderr
    assert "Traceback" not in process.stderr
    assert not (tmp_path / "run").exists()  # its first step was not done: there is nothing to resume


@pytest.mark.parametrize("when", ["during", "evaluating"])
def test_a_full_gpu_is_one_line_with_its_way_out(tmp_path, when):
    def fill():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 62.00 MiB. GPU 0 has a total of 1.")

    with pytest.raises(RunFailed) as error:
        run(Adding(**{when: {4: fill}}), tmp_path, steps=8, eval_every=4)
    message = str(error.value)
    assert "step 4: CUDA out of memory. Tried to allocate 62.00 MiB; lower batch.micro_batch_tokens" in message
    assert f"whet resume {tmp_path}" in message and "\n" not in message
    assert saved_steps(tmp_path) == [2]


@pytest.mark.parametrize("method", ["reinforce", "sft"])
def test_weights_that_explode_stop_the_run_and_the_last_checkpoint_stays(tmp_path, method):
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "run"
    batch = {"rows_per_step": 4} if method == "sft" else {"prompts_per_step": 4, "group_size": 4}
    config = {**SMALL, "batch": batch, "optimizer": {"learning_rate": 1e30}}
    config["report"] = {**SMALL["report"], "save_every": 1}
    with pytest.raises(RunFailed) as error:
        whet.train(method, config=config, steps=5, folder=str(folder), console=False)
    message = str(error.value)
    assert message.startswith("step 2: the gradient is not finite") and "optimizer.learning_rate" in message
    assert "last checkpoint are untouched" in message and "\n" not in message
    assert method == "sft" or message.count("arithmetic/train/") == 4
    summary = read_summary(folder)
    assert (summary["status"], summary["error"]) == ("failed", message)
    assert (folder / "report.html").is_file() and saved_steps(folder) == [1]
    verify_checkpoint(folder / "checkpoints" / "step-000001")
    model = AutoModelForCausalLM.from_pretrained(folder / "checkpoints" / "step-000001")
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_failing_step_is_repeated_by_resume(tmp_path, monkeypatch):
    """A loss that is not a number in step 3: the run stops, and goes on from step 2 once the cause is gone."""
    from whet.objective import Objective

    folder, original, calls = tmp_path / "run", Objective.loss, []

    def broken(self, *arguments):
        calls.append(1)
        loss = original(self, *arguments)
        # two calls a step: one for the grad that is known before the pass
        return replace(loss, value=loss.value * math.nan) if len(calls) == 6 else loss

    with monkeypatch.context() as patch:
        patch.setattr(Objective, "loss", broken)
        with pytest.raises(RunFailed, match=r"step 3: the loss is not finite: .*; samples of arithmetic/train/\d+, "):
            whet.train("reinforce", config=SMALL, steps=4, folder=str(folder), console=False)
    assert saved_steps(folder) == [2]
    assert whet.resume(folder, console=False).status == "finished"
    assert [line["step"] for line in read_metrics(folder)] == [0, 1, 2, 3, 4, 4]


def test_a_trainer_that_ends_early_ends_its_run_early_saved_and_evaluated(tmp_path):
    """The KL budget is spent in the second step; resuming finds nothing left to do."""
    changes = {"control": {"kind": "budget", "nats": 1e-4}}
    settings = {
        "model": {"threads": 1, "device": "cpu"},
        "sampling": {"max_new_tokens": 16},
        "batch": {"prompts_per_step": 4, "group_size": 4},
        "optimizer": {"learning_rate": 1e-3},
        "eval": {"prompts": 8, "every": 0},
        "objective": changes,
    }
    run = whet.train("grpo", steps=9, config=settings, folder=str(tmp_path / "run"), console=False)
    assert (run.status, run.steps) == ("finished", 2)
    assert (tmp_path / "run" / "checkpoints" / "step-000002").is_dir() and run.after
    summary = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "the KL budget is spent" in summary["ended"]
    assert "it ended early: the KL budget is spent" in run.report.read_text()
    again = whet.resume(tmp_path / "run", steps=12, console=False)
    assert (again.status, again.steps) == ("finished", 2)


def always_right(completion):
    return 1.0


def test_a_reward_that_never_varies_stops_a_row_that_refills_and_says_why(tmp_path):
    settings = {
        "model": {"threads": 1, "device": "cpu"},
        "sampling": {"max_new_tokens": 8},
        "batch": {"prompts_per_step": 3, "group_size": 2},
        "eval": {"prompts": 0},
        "objective": {"keep": {"rounds": 3}},
    }
    with pytest.raises(RunFailed, match=r"each of 9 prompts had the same outcome, in 3 rounds.*keep=everything"):
        whet.train("dapo", reward=always_right, steps=2, config=settings, folder=str(tmp_path / "run"), console=False)


class Untouchable(dict):
    """Fails whoever reads it."""

    def _refuse(self, *_):
        raise AssertionError("a health check reads what earlier steps no longer have")

    __getitem__ = __iter__ = __contains__ = get = items = values = keys = _refuse


@pytest.mark.parametrize("reward", [{"total": 0.4, "right": 0.4}, {}])
def test_health_checks_read_nothing_that_earlier_steps_no_longer_have(reward):
    from whet.record.health.diagnosis import RULES
    from whet.record.health.history import history_of
    from whet.training.run_loop import _for_checks

    metrics = {"loss": 1.0, "gradient_norm": 1.0, "entropy": 0.1, "kl": 0.1, "accuracy": 0.5, "margin": 0.1}
    metrics |= {"sampler_gap": 0.01, "uniform_groups": 0.9, "chosen_logp": -9.0, "rejected_logp": -9.0}
    counts = {"tokens": 10, "samples": 4, "truncated": 3, "prompts": 2}
    whole = [
        StepReport(
            step, step, counts, reward, metrics, ("old finding: text",), {"train": 1.0}, {"total": {"flat": 1.0}}
        )
        for step in range(1, 61)
    ]
    kept = [replace(_for_checks(each), spread=Untouchable(), seconds=Untouchable()) for each in whole[:-1]]
    thin, full = history_of([*kept, whole[-1]]), history_of(whole)
    for rule in (rule for rule in RULES.values() if not rule.is_timed):
        assert rule.find(thin) == rule.find(full)
    assert not any(each.health for each in kept)


def test_the_failures_of_rewards_are_counted_over_all_processes_of_a_run(tmp_path):
    """A run that must stop after so many failures also stops when it is broken off again and again before that."""
    file = tmp_path / "mine.py"
    file.write_text(
        "calls = 0\ndef failing(completion):\n    global calls\n    calls += 1\n"
        "    if calls % 10 == 1:\n        raise ValueError('no verdict')\n    return float(len(completion))\n"
    )
    config = {**SMALL, "batch": {"prompts_per_step": 5, "group_size": 4}, "eval": {"prompts": 0}}
    options = {"reward": f"{file}:failing", "config": config, "console": False}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    with pytest.raises(WhetError, match="failed on 6 of the last 60 samples"):  # 50 samples are needed to judge
        whet.train("reinforce", steps=9, folder=str(whole), **options)
    whet.train("reinforce", steps=1, folder=str(parts), **options)
    whet.resume(parts, steps=2, console=False)
    with pytest.raises(WhetError, match="failed on 6 of the last 60 samples"):
        whet.resume(parts, steps=9, console=False)
    assert len(read_metrics(whole)) == len(read_metrics(parts)) == 2


def test_equal_runs_have_equal_checkpoints(tmp_path):
    """File by file: a learned reward's version is a digest of its checkpoint."""
    settings = {"model": {"threads": 1}, "data": {"count": 8}, "batch": {"rows_per_step": 2}, "eval": {"prompts": 2}}
    for name in ("one", "two"):
        whet.train("rm", config=settings, steps=1, folder=str(tmp_path / name), console=False)
    one, two = (files(tmp_path / name / "checkpoints") for name in ("one", "two"))
    assert one == two and len(one) > 5


def test_steps_and_settings_of_a_resumed_run(monkeypatch, capsys, copied):
    code, error = command(monkeypatch, capsys, "resume", str(copied), "--set", "steps=6", "--set", "seed=9")
    assert code == 2 and "config seed" in error and "--accept-changes" in error and error.count("\n") == 0
    code, error = command(monkeypatch, capsys, "resume", str(copied), "--set", "steps=6", "--set", "batch.nonsense=1")
    assert code == 2 and "nonsense" in error
    settings = ("--set", "steps=6", "--set", "report.keep_checkpoints=1")
    assert command(monkeypatch, capsys, "resume", str(copied), *settings)[0] == 0
    assert [path.name for path in (copied / "checkpoints").iterdir()] == ["step-000006"]
    changed = read_summary(copied)["facts"]["changed"]
    assert changed == "after step 4: report.keep_checkpoints 9 -> 1, steps 4 -> 6"


def test_a_run_of_before_that_kept_no_inputs_says_so(monkeypatch, capsys, caplog, copied):
    (copied / "inputs.json").unlink()
    assert command(monkeypatch, capsys, "resume", str(copied), "--steps", "6")[0] == 0
    assert "no inputs.json" in caplog.text and (copied / "inputs.json").exists()


def test_a_checkpoint_of_an_earlier_build_is_told(monkeypatch, capsys, copied):
    from whet.model.checkpoint import file_digest, files_written, write_manifest

    newest = complete_checkpoints(copied / "checkpoints")[-1]
    state = json.loads((newest / "state.json").read_text())
    del state["state"]["also"]
    (newest / "state.json").write_text(json.dumps(state))
    tensors = json.loads((newest / "manifest.json").read_text())["tensors"]
    written = {
        **files_written(newest),
        "state.json": ((newest / "state.json").stat().st_size, file_digest(newest / "state.json")),
    }
    write_manifest(newest, 4, tensors, written)
    code, error = command(monkeypatch, capsys, "resume", str(copied), "--steps", "6")
    assert code == 2 and "an earlier build of whet wrote it" in error and "--model" in error
