"""Runs that end before their last step although nothing broke: finished, evaluated, saved, and ready to go on."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import whet
from tests.training.test_run import Adding, Diary, Weights, command, saved_steps, timeless
from whet.data.benchmarks import REASON
from whet.data.seeds import seed_prompts
from whet.model.checkpoint import load_checkpoint
from whet.model.run_models import about_model, complete_checkpoints
from whet.protocols import Callback
from whet.record.log import RunRecorder, read_metrics, read_summary
from whet.record.sections import HealthSection, ReportSection
from whet.tools.studies.comparison import compare_runs
from whet.training.assembly.rows import overlap_facts
from whet.training.run_loop import run_training
from whet.training.stopping import EarlyEnd, TimeBudget
from whet.types import RunFailed, WhetError


class Scripted(Adding):
    """A trainer whose evaluations are given, by step; each is of 200 prompts, the first of which are right."""

    def __init__(self, accuracies: dict[int, float], **during: object) -> None:
        super().__init__(**during)
        self.accuracies = accuracies

    def evaluate(self):
        share = self.accuracies.get(self.done, list(self.accuracies.values())[-1])
        right = round(200 * share)
        self.prompt_scores = {"accuracy": [1.0] * right + [0.0] * (200 - right)}
        return {"accuracy": share}


def run(trainer, folder, *, steps=9, eval_every=1, callbacks=(), checkpoint=None, **how):
    saving = ReportSection(save_every=100, keep_checkpoints=9)
    how = {"eval_size": 200, **how}
    return run_training(
        trainer,
        folder,
        RunRecorder(folder),
        callbacks,
        {},
        steps=steps,
        eval_every=eval_every,
        saving=saving,
        checkpoint=checkpoint,
        **how,
    )


def newest(folder: Path) -> Path:
    return complete_checkpoints(folder / "checkpoints")[-1]


# by evaluations


def test_a_run_ends_after_so_many_evaluations_without_a_new_best(tmp_path) -> None:
    rises = {0: 0.2, 1: 0.4, 2: 0.4, 3: 0.41, 4: 0.4, 5: 0.4}
    outcome = run(Scripted(rises), tmp_path / "a", stop_after=3)
    assert (outcome.status, outcome.steps, outcome.ended.by) == ("finished", 4, "evaluations")
    assert outcome.ended.text == "the last 3 evaluations were no new best beyond noise (eval.stop_after=3)"
    assert saved_steps(tmp_path / "a") == [4] and outcome.evaluations.best.step == 3
    assert [line["step"] for line in read_metrics(tmp_path / "a") if "eval" in line] == [0, 1, 2, 3, 4]
    assert about_model(tmp_path / "a" / "best")["step"] == 3 and about_model(tmp_path / "a" / "final")["step"] == 4
    for looks in (0, 9):  # off, and more than there are
        outcome = run(Scripted(rises), tmp_path / str(looks), stop_after=looks)
        assert (outcome.steps, outcome.ended) == (9, None)
    last = run(Scripted(rises), tmp_path / "last", steps=4, stop_after=3)  # no reason is needed at the last step
    assert (last.status, last.ended) == ("finished", None)


def test_looks_before_a_kill_count(tmp_path) -> None:
    flat = dict.fromkeys(range(9), 0.3)
    run(Scripted(flat), tmp_path, steps=2)
    outcome = run(Scripted(flat), tmp_path, checkpoint=newest(tmp_path), stop_after=4)
    assert (outcome.steps, outcome.ended.by) == (4, "evaluations")


def test_a_run_that_is_killed_before_it_says_its_end_ends_there(tmp_path) -> None:
    """Only one that has said it goes on."""
    flat = dict.fromkeys(range(9), 0.3)
    first = run(Scripted(flat), tmp_path, stop_after=2)
    again = Scripted(flat)
    outcome = run(again, tmp_path, checkpoint=newest(tmp_path), stop_after=2)
    assert (outcome.steps, outcome.ended) == (first.steps, first.ended) and outcome.steps == 2
    assert again.model.total.item() == 3 and outcome.after == first.after
    record = RunRecorder(tmp_path)
    record.started({})
    record.finished({})
    assert run(Scripted(flat), tmp_path, checkpoint=newest(tmp_path)).steps == 9


def test_a_significant_fall_is_said_and_done_about_what_was_asked_for(tmp_path) -> None:
    falls = {0: 0.3, 1: 0.4, 2: 0.26, 3: 0.26, 4: 0.26, 5: 0.26, 6: 0.5}
    outcome = run(Scripted(falls), tmp_path / "say", steps=8)
    assert outcome.steps == 8 and about_model(tmp_path / "say" / "best")["step"] == 6
    said = {line["step"]: line["health"] for line in read_metrics(tmp_path / "say") if "eval" not in line}
    spoke = [step for step, texts in said.items() if any(text.startswith("evaluation falls: ") for text in texts)]
    assert spoke == [3, 4, 5, 6], "from the step after the look on, until it has recovered"
    assert "beyond noise: accuracy 40.0% (33.5-46.9) at step 1, 26.0%" in " ".join(said[3])

    def acted(action: str, **how: object) -> object:
        problems = HealthSection(on_problem={"evaluation falls": action})
        return run(Scripted(falls), tmp_path / action, steps=8, problems=problems, **how)

    stopped = acted("stop")
    assert (stopped.status, stopped.steps, stopped.ended.by) == ("finished", 3, "health")
    assert stopped.evaluations.values()["fell"] and "significantly below it" in stopped.evaluations.text
    assert about_model(tmp_path / "stop" / "best")["step"] == 1
    acted("lower_rate")
    texts = [line["health"] for line in read_metrics(tmp_path / "lower_rate") if "eval" not in line]
    assert sum("rate lowered" in text for step in texts for text in step) == 4, "once for each look that confirms it"


def test_between_two_evaluations_nothing_new_is_known_and_nothing_is_done(tmp_path) -> None:
    falls = {0: 0.4, 4: 0.2, 8: 0.2}
    problems = HealthSection(on_problem={"evaluation falls": "lower_rate"})
    run(Scripted(falls), tmp_path, steps=14, eval_every=4, problems=problems)
    texts = {line["step"]: line["health"] for line in read_metrics(tmp_path) if "eval" not in line}
    lowered = [step for step, health in texts.items() if any("rate lowered" in text for text in health)]
    assert lowered == [5, 9, 13]
    said = [step for step, health in texts.items() if any(text.startswith("evaluation falls") for text in health)]
    assert said == list(range(5, 15))


# by the clock


def test_a_budget_is_spent_when_the_next_step_the_last_evaluation_and_save_no_longer_fit() -> None:
    now = time.monotonic()
    assert TimeBudget(0.0, 1e9, now - 1e9).end(1e9) is None
    assert TimeBudget(1.0, 0.0, now - 3000).end(500) is None
    assert TimeBudget(1.0, 0.0, now - 3000).end(700).text == "its budget of 1 hour is spent"
    assert TimeBudget(2.0, 5000, now - 3000).end(0).text == "its budget of 2 hours is spent"  # of two processes
    assert TimeBudget(2.0, 3000, now - 3000).end(0) is None


def test_a_run_that_its_budget_ended_is_evaluated_and_goes_on_to_the_same_bytes(tmp_path, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("whet.training.stopping.time", SimpleNamespace(monotonic=lambda: now[0]))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    rises = {step: 0.1 + 0.03 * step for step in range(9)}
    run(Scripted(rises), whole, steps=8, eval_every=2)
    third = Scripted(rises, during={3: lambda: now.__setitem__(0, 3600.0)})
    outcome = run(third, broken, steps=8, eval_every=2, hours=1)
    assert (outcome.status, outcome.steps, outcome.ended.by) == ("finished", 3, "hours")
    assert outcome.after == {"accuracy": rises[3]} and saved_steps(broken) == [3]
    trainer = Scripted(rises)
    outcome = run(trainer, broken, steps=8, eval_every=2, checkpoint=newest(broken), hours=1)
    assert (outcome.status, outcome.ended) == ("finished", None)
    extra = [line for line in timeless(broken) if not ("eval" in line and line["step"] == 3)]
    assert extra == timeless(whole) != timeless(broken), "but for the evaluation at its first end"
    one, two = Weights(), Weights()
    _, state = load_checkpoint(newest(whole), one)
    _, other = load_checkpoint(newest(broken), two)
    assert one.total.item() == two.total.item() == 36 and state["run"] == other["run"]
    spent = run(Scripted(rises), broken, steps=20, checkpoint=newest(broken), hours=1e-9)
    assert (spent.steps, spent.ended.by) == (9, "hours"), "what earlier processes took counts"


# by a callback


class StopAt:
    def __init__(self, step: int, event: str) -> None:
        self.step, self.event = step, event

    def stepped(self, report, samples):
        return "stop" if self.event == "stepped" and report.step == self.step else None

    def evaluated(self, step, name, result, seconds):
        return "stop" if self.event == "evaluated" and step == self.step else None


def test_a_callback_ends_the_run(tmp_path) -> None:
    for event in ("stepped", "evaluated"):
        diary, folder = Diary(), tmp_path / event
        outcome = run(Scripted({0: 0.1, 9: 0.2}), folder, eval_every=2, callbacks=[StopAt(4, event), diary])
        assert (outcome.status, outcome.steps) == ("finished", 4) and saved_steps(folder) == [4]
        assert (outcome.ended.by, outcome.ended.text) == ("callback", "the callback StopAt asked for it")
        assert diary.events[-2:] == [4, (4, 0.2)], "evaluated once, whoever asked"
    before = run(Scripted({0: 0.1}), tmp_path / "before", callbacks=[StopAt(0, "evaluated")])
    assert (before.status, before.steps) == ("finished", 0)


def test_a_callback_that_returns_another_word_is_told_what_to_return(tmp_path) -> None:
    class Halt(Callback):
        def stepped(self, report, samples):
            return "halt"

    with pytest.raises(RunFailed, match=r"the callback Halt returned 'halt' from stepped; return 'stop'"):
        run(Adding(), tmp_path / "halt", callbacks=[Halt()])

    class Early(Callback):
        def started(self, summary):
            return "stop"

    with pytest.raises(RunFailed, match=r"returned 'stop' from started"):
        run(Adding(), tmp_path / "early", callbacks=[Early()])


# the whole program

SMALL = {
    "model": {"device": "cpu", "threads": 1},
    "data": {"count": 40, "difficulty": [2]},
    "eval": {"prompts": 4, "every": 2},
    "report": {"save_every": 100},
}
KINDS = {
    "reinforce": {"batch": {"prompts_per_step": 2, "group_size": 2}, "sampling": {"max_new_tokens": 8}},
    "sft": {"batch": {"rows_per_step": 4}, "sampling": {"max_new_tokens": 8}},
    "dpo": {"batch": {"rows_per_step": 4}, "sampling": {"max_new_tokens": 8}},
    "rm": {"batch": {"rows_per_step": 4}},
}


def settings(method: str) -> dict[str, object]:
    return {**SMALL, **KINDS[method]}


@pytest.mark.parametrize("method", KINDS)
def test_every_kind_of_run_has_a_budget_and_goes_on_with_more(method: str, tmp_path, monkeypatch) -> None:
    """Stopped after some step by its hours, it goes on to the weights and lines of a run that was not."""
    whole = whet.train(method, config=settings(method), steps=3, folder=str(tmp_path / "whole"), console=False)
    ends, real = iter([None, EarlyEnd("hours", "its budget of 1 hour is spent")]), TimeBudget.end
    monkeypatch.setattr(TimeBudget, "end", lambda self, reserve: next(ends))
    first = whet.train(method, config=settings(method), steps=3, hours=1, folder=str(tmp_path / "run"), console=False)
    monkeypatch.setattr(TimeBudget, "end", real)
    summary = read_summary(first.folder)
    assert (first.status, first.steps, summary["ended_by"]) == ("finished", 2, "hours")
    assert first.evaluations.last.step == 2 and (first.folder / "final").is_dir() and (first.folder / "best").is_dir()
    assert "it ended early" in first.report.read_text()
    with pytest.raises(WhetError, match=r"its 1 hours are spent; .*`whet resume .*` with a larger total: hours=2"):
        whet.resume(first.folder, console=False)
    longer = whet.resume(first.folder, hours=2, console=False)
    assert (longer.status, longer.steps) == ("finished", 3) and "ended" not in read_summary(longer.folder)

    def lines(folder: Path) -> list[dict[str, object]]:
        return [line for line in timeless(folder) if not ("eval" in line and line["step"] == 2)]

    assert lines(longer.folder) == lines(whole.folder)
    weights = [(run.folder / "final" / "model.safetensors").read_bytes() for run in (longer, whole)]
    assert weights[0] == weights[1]


def test_runs_that_ended_early_are_compared_listed_and_told(tmp_path, capsys) -> None:
    config = settings("reinforce")
    one = whet.train(
        "reinforce", config=config, steps=9, folder=str(tmp_path / "one"), callbacks=[StopAt(2, "stepped")]
    )
    console = capsys.readouterr().out
    stop = {**config, "eval": {**SMALL["eval"], "stop_after": 1, "every": 1}}
    two = whet.train("reinforce", config=stop, steps=9, seed=1, folder=str(tmp_path / "two"), console=False)
    assert one.status == two.status == "finished" and two.steps < 9
    assert read_summary(two.folder)["ended_by"] == "evaluations"
    assert len(compare_runs([one.folder, two.folder]).results) == 2
    for text in (console, one.report.read_text()):
        assert "the callback StopAt asked for it" in text
    assert one.evaluations.text in console and one.evaluations.text
    assert read_summary(one.folder)["evaluations"]["text"] == one.evaluations.text
    assert one.evaluations.best.value == max(
        line["result"]["accuracy"] for line in read_metrics(one.folder) if "eval" in line
    )


def test_impossible_values_get_one_line(monkeypatch, capsys, tmp_path) -> None:
    no_prompts = ["--set", "eval.stop_after=2", "--set", "eval.prompts=0"]
    for words, message in (
        (["--hours", "0"], "invalid value for '--hours': Input should be greater than or equal to 0.001"),
        (["--hours", "nan"], "invalid value for '--hours'"),
        (["--set", "hours=-1"], "hours is -1"),
        (["--set", "eval.stop_after=-1"], "eval.stop_after is -1"),
        (["--set", "eval.stop_after=2", "--set", "eval.every=0"], "eval.stop_after has no effect"),
        (no_prompts, "eval.stop_after has no effect"),
        (["--data", "t.jsonl", *no_prompts, "--set", "eval.source=e.jsonl"], "eval.stop_after has no effect"),
    ):
        code, error = command(monkeypatch, capsys, "train", "grpo", "--folder", str(tmp_path / "run"), *words)
        assert code != 0 and message in " ".join(error.split()), (words, error)
    assert not (tmp_path / "run").exists() and sys.argv[0] == "whet"


def test_eval_prompts_that_are_trained_on_are_counted(tmp_path) -> None:
    rows = [{"prompt": f"What is {place} + 1?", "answer": str(place + 1)} for place in range(8)]
    seen = [{"prompt": " What is  3 + 1? ", "answer": "4"}, {"prompt": "What is 90 + 1?", "answer": "91"}, rows[5]]
    config = {**KINDS["reinforce"], "model": SMALL["model"], "eval": {"every": 0}, "report": SMALL["report"]}

    def overlap(method: str, rows: object, seen: object, **how: object) -> str:
        folder = tmp_path / f"{method}{len(list(tmp_path.iterdir()))}"
        run = whet.train(
            method, data=rows, eval_data=seen, config=config | how, steps=1, folder=str(folder), console=False
        )
        return run.summary["facts"].get("overlap", "")

    assert overlap("reinforce", rows, seen, reward={"parts": [{"reward": "exact_answer"}]}).startswith(
        "2 of 3 eval prompts are also trained on; "
    )
    assert overlap("reinforce", rows, seen[1:2], reward={"parts": [{"reward": "exact_answer"}]}) == ""
    # the same question in another form: as a message, and as a benchmark puts it to a chat model
    forms = [f"{row['prompt']}{end}" for row, end in zip(rows, ("", f"\n{REASON}"), strict=False)]
    asked = [{"messages": [{"role": "user", "content": form}], "answer": "1"} for form in forms]
    assert overlap("reinforce", rows, asked, reward={"parts": [{"reward": "exact_answer"}]}).startswith("2 of 2 ")
    # tasks of an environment have no words of their own, and are told apart by their names
    tasks = [seed_prompts("100", 50, 0, split) for split in ("train", "eval")]
    assert overlap_facts(*tasks) == {} and "1 of 1" in overlap_facts(tasks[0], tasks[0][:1])["overlap"]
    pairs = [{"prompt": row["prompt"], "chosen": "yes", "rejected": "no"} for row in rows]
    others = [{"prompt": "new", "chosen": "yes", "rejected": "no"}, {**pairs[0], "chosen": "oh"}]
    rows_only = {"batch": {"rows_per_step": 2}}
    bare = {name: value for name, value in config.items() if name not in ("batch", "sampling")}
    config = {**bare, **rows_only}
    for method in ("dpo", "rm"):
        assert overlap(method, pairs, others).startswith("1 of 2 eval prompts is also trained on"), method
    shown = [{"prompt": row["prompt"], "completion": "yes"} for row in rows]
    assert overlap("sft", shown, shown[:1]).startswith("1 of 1 eval prompt is also trained on")
