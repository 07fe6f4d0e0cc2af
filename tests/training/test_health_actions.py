"""What a run does about its problems: after how many steps, how often, and the same after a resume or on any rank."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import whet
from whet.pages.run_report import html_report
from whet.record.console import Console
from whet.record.doctor import doctor_report
from whet.record.health.diagnosis import RULES
from whet.record.log import read_metrics
from whet.record.run import read_run
from whet.record.sections import HealthSection
from whet.training.assembly.health import health_policy
from whet.training.config import resolved
from whet.training.health_actions import HealthWatch
from whet.types import StepReport, WhetError

MOST_ALARMS = 0.02  # of healthy runs
ILL = ("KL runaway: it ran.", "flat reward: it stays.")


def test_what_a_run_may_act_on_rarely_alarms_healthy_runs() -> None:
    """Each rule that can be named in health.on_problem was measured, on healthy runs that it was not tuned on."""
    results = json.loads((Path(__file__).parents[2] / "results" / "doctor.json").read_text())
    measured = results["values"]["sealed"]["rules"]
    able = [rule.name for rule in RULES.values() if not rule.is_timed and not rule.is_note]
    assert able and not (unmeasured := [name for name in able if name not in measured]), unmeasured
    assert not (loud := [name for name in able if measured[name]["healthy"]["share"] > MOST_ALARMS]), loud


def test_a_problem_must_hold_for_some_steps_and_is_acted_on_again_after_as_many() -> None:
    watch = HealthWatch(HealthSection(on_problem={"KL runaway": "lower_rate", "clipping": "stop"}))
    taken = [watch.look(ILL) for _ in range(7)]
    assert [step for step, each in enumerate(taken, 1) if each] == [3, 6] and watch.rate_factor == 0.25
    assert taken[2] == {
        "lower_rate": "rate lowered: KL runaway has held for 3 steps; the learning rate is now 0.5 times what the "
        "schedule says."
    }
    watch = HealthWatch(HealthSection(on_problem={"KL runaway": "stop"}, after_steps=2))
    assert [bool(watch.look(each)) for each in (ILL, (), ILL, ILL)] == [False, False, False, True]
    assert HealthWatch(HealthSection()).look(ILL) == {}
    several = HealthWatch(
        HealthSection(on_problem={"KL runaway": "lower_rate", "flat reward": "lower_rate"}, after_steps=1)
    )
    assert len(several.look(ILL)) == 1 and several.rate_factor == 0.5  # once in a step, whatever ails it


def test_names_are_those_of_rules_that_can_find_a_problem_in_such_a_run() -> None:
    def policy(method: str, **on_problem: str) -> HealthSection:
        return health_policy(resolved(method, {"health": {"on_problem": on_problem}}))

    usual = {"evaluation falls": "lower_rate"}
    assert policy("grpo").on_problem == policy("sft").on_problem == usual
    assert policy("grpo", kl_runaway="stop").on_problem == {"KL runaway": "stop", **usual}
    assert policy("grpo", evaluation_falls="stop").on_problem == {"evaluation falls": "stop"}
    assert policy("grpo", **{"Evaluation falls": "report"}).on_problem == {"evaluation falls": "report"}
    assert HealthWatch(policy("grpo", evaluation_falls="report")).look(("evaluation falls: it fell.",), True) == {}
    assert health_policy(resolved("grpo", {"health": {"on_problem": {"entropy collapse": "checkpoint"}}})).on_problem
    for method, name in (
        ("grpo", "too_easy"),
        ("grpo", "throughput_loss"),
        ("grpo", "entropy_falls"),
        ("sft", "clipping"),
    ):
        with pytest.raises(WhetError, match=f"health.on_problem.{name}: no rule of such a run"):
            policy(method, **{name: "stop"})
    for idle in (
        {"after_steps": 5},
        {"after_steps": 5, "on_problem": {"kl_runaway": "report", "Evaluation falls": "lower_rate"}},
        {"rate_factor": 0.1, "on_problem": {"evaluation_falls": "report"}},
        {"rate_factor": 0.1, "on_problem": {"clipping": "stop", "evaluation falls": "stop"}},
    ):
        with pytest.raises(WhetError, match="no effect"):
            resolved("grpo", {"health": idle})
    with pytest.raises(WhetError):
        policy("grpo", clipping="pray")


SMALL = {
    "model": {"threads": 1, "device": "cpu"},
    "data": {"count": 24},
    "sampling": {"max_new_tokens": 4},
    "batch": {"prompts_per_step": 2, "group_size": 2},
    "eval": {"prompts": 0},
    "report": {"save_every": 100, "review_every": 0},
}


def same(completion: str) -> float:
    return 0.0


def trained(folder: Path, action: str, steps: int, after: int = 2, save_every: int = 100, **more: object) -> whet.Run:
    """A run without any signal, which is found from its fifth step on."""
    health = {"on_problem": {"no_reward_signal": action}, "after_steps": after, **more}
    config = {**SMALL, "health": health, "report": {**SMALL["report"], "save_every": save_every, "keep_checkpoints": 9}}
    return whet.train("grpo", reward=same, steps=steps, config=config, folder=str(folder), console=False)


def rates(folder: Path) -> list[float]:
    return [line["metrics"]["learning_rate"] for line in read_metrics(folder) if "eval" not in line]


def test_a_run_stops_and_says_why_in_its_record_on_its_page_and_to_the_doctor(tmp_path: Path, capsys) -> None:
    trained(tmp_path / "run", "stop", 20)
    summary = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (read_run(tmp_path / "run").num_steps, summary["status"]) == (6, "finished")
    why = "run stopped: no reward signal has held for 2 steps."
    assert summary["ended"] == why and read_metrics(tmp_path / "run")[-1]["health"][-1] == why
    assert "no reward signal has held for 2 steps" in html_report(tmp_path / "run")
    assert doctor_report(tmp_path / "run").actions == (f"step 6: {why}",)
    assert (tmp_path / "run" / "checkpoints" / "step-000006").exists()
    console = Console(seconds_between_lines=0)
    for step in (1, 2):
        console.stepped(StepReport(step, step, {}, {"total": 0.0}, {}, (f"rate lowered: {step}.", "clipping: x.")), [])
    said = capsys.readouterr().out
    assert said.count("rate lowered") == 2 and said.count("clipping") == 1


def test_a_lowered_rate_and_what_has_held_survive_a_resume(tmp_path: Path) -> None:
    trained(tmp_path / "whole", "lower_rate", 12, save_every=7)
    assert rates(tmp_path / "whole") == pytest.approx([1e-4] * 6 + [5e-5] * 2 + [2.5e-5] * 2 + [1.25e-5] * 2)
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    whet.resume(tmp_path / "parts", steps=12, checkpoint="step-000007", console=False)
    assert rates(tmp_path / "parts") == rates(tmp_path / "whole")
    health = [[line["health"] for line in read_metrics(tmp_path / name)] for name in ("whole", "parts")]
    assert health[0] == health[1]


def test_a_checkpoint_is_saved_where_a_problem_holds(tmp_path: Path) -> None:
    trained(tmp_path / "run", "checkpoint", 7)
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == ["step-000006", "step-000007"]


def test_every_rank_does_what_the_first_one_decides() -> None:
    from whet.training.run_loop import _actions, _Progress

    class Second:
        """The second of two ranks: of what is asked of the first it hears the answer."""

        size, is_first = 2, False

        def first(self, work: object) -> tuple[str, ...]:
            return ILL

    watch, progress = HealthWatch(HealthSection(on_problem={"KL runaway": "lower_rate"}, after_steps=1)), _Progress()
    trainer = SimpleNamespace(rate_factor=1.0)
    taken = _actions(watch, (), False, progress, trainer, Second())  # its own numbers, by the clock say, show nothing
    assert list(taken) == ["lower_rate"] and trainer.rate_factor == progress.rate_factor == 0.5
    assert progress.streaks == {"KL runaway": 1}


def test_a_run_that_falls_goes_on_at_a_lower_rate_or_ends_and_names_the_better_model(tmp_path: Path) -> None:
    """Which may be the model that it began with."""
    held_out, asked = 40, [{"prompt": f"{number}?", "answer": "eval"} for number in range(40)]
    rows = [{"prompt": f"{number}!", "answer": "train"} for number in range(8)]

    def ending(scores: tuple[float, ...], name: str, **config: object) -> dict[str, object]:
        calls = iter(score for score in (*scores, *[0.0] * 9) for _ in range(held_out))
        summaries: list[dict[str, object]] = []

        def scored(completion: str, answer: str) -> float:
            return next(calls) if answer == "eval" else 0.0

        told = SimpleNamespace(finished=summaries.append)
        whet.train(
            "grpo",
            data=rows,
            eval_data=asked,
            reward=scored,
            steps=4,
            config={**SMALL, "data": {}, "eval": {"prompts": held_out, "every": 1}, **config},
            folder=str(tmp_path / name),
            callbacks=[told],
            console=False,
        )
        return {"steps": read_run(tmp_path / name).num_steps, **summaries[0]}

    stop = {"health": {"on_problem": {"evaluation_falls": "stop"}}}
    fallen = ending((0.0, 1.0), "risen", **stop)
    assert fallen["steps"] == 3 and fallen["status"] == "finished" and fallen["ended_by"] == "health"
    assert fallen["ended"].endswith("to go on, resume with health.on_problem.evaluation_falls=report.")
    assert fallen["next"] == f"whet sample {tmp_path / 'risen' / 'best'}"
    assert "best (step 1" in fallen["models"] and "began with" not in fallen["models"]
    worse = ending((1.0,), "worse", **stop)
    assert worse["steps"] == 2 and worse["next"] == f"whet sample {tmp_path / 'worse'}"
    assert worse["models"].endswith("loads final; the model it began with evaluated as well or better")
    usual = ending((0.0, 1.0), "usual")
    assert usual["steps"] == 4 and "ended" not in usual and usual["next"].endswith("best")
    assert usual["eval_questions"] == fallen["eval_questions"] != ""
    assert rates(tmp_path / "usual") == pytest.approx(
        [1e-4, 1e-4, 1e-4, 5e-5]
    )  # what is seen after step 2 is known in 3
    assert ending((0.0, 1.0), "reported", health={"on_problem": {"evaluation_falls": "report"}})["steps"] == 4
    assert rates(tmp_path / "reported") == pytest.approx([1e-4] * 4)
