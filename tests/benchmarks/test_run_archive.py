"""Many runs side by side, what is kept of them, and what the doctor says about the real ones that were kept."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from benchmarks.run_archive import ARCHIVES, PlannedRun, evaluations, make_one, make_runs, read_archive, write_archive
from whet.record.doctor import doctor_report

TINY = {
    "steps": 2,
    "model": {"device": "cpu", "threads": 1},
    "batch": {"prompts_per_step": 2, "group_size": 2},
    "eval": {"prompts": 4, "every": 1},
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    plans = [PlannedRun("good", "grpo", TINY, {"rate": 1e-4}), PlannedRun("bad", "no_such_method", {})]
    for plan in plans:  # what each process of `make_runs` does
        (folder / f"{plan.name}.plan").write_text(json.dumps(asdict(plan)), "utf-8")
        make_one(folder / f"{plan.name}.plan")
    return plans, folder, make_runs(plans, folder)


@pytest.mark.slow
def test_each_run_is_a_process_of_its_own(tmp_path):
    plans = [PlannedRun(f"seed-{seed}", "grpo", {**TINY, "seed": seed}) for seed in (0, 1)]
    assert [record["status"] for record in make_runs(plans, tmp_path, workers=2)] == ["finished"] * 2
    assert make_runs([PlannedRun("late", "grpo", TINY)], tmp_path, timeout=0.01) == []


def test_a_run_leaves_its_numbers_and_no_weights(records, capsys):
    plans, folder, (good, bad) = records
    assert (good["status"], good["error"], good["tags"]) == ("finished", "", {"rate": 1e-4})
    assert [step for step, _ in evaluations(good)] == [0, 1, 2] and evaluations(good, "no such metric") == []
    assert sum("counts" in line for line in good["lines"]) == 2 and not list(folder.glob("*.run"))
    assert (bad["status"], bad["lines"]) == ("failed", []) and "no_such_method" in bad["error"]
    assert make_runs(plans, folder) == [good, bad]  # nothing is made twice
    assert "2 are there already" in capsys.readouterr().out


def test_an_archive_holds_what_was_written(records, tmp_path):
    write_archive(tmp_path / "runs.jsonl.xz", records[2])
    assert list(read_archive(tmp_path / "runs.jsonl.xz")) == records[2]


def test_real_runs_that_learned_are_left_in_peace(tmp_path):
    """Runs of models of 0.5B and 1.5B, none of which ended below its start: the doctor alarms nobody."""
    alarmed = {}
    records = [record for record in read_archive(ARCHIVES / "defaults.jsonl.xz") if record["facts"]]  # none where cut
    assert len(records) >= 14
    for record in records:
        folder = tmp_path / record["name"]
        folder.mkdir()
        lines = [{**line, "health": []} if "counts" in line else line for line in record["lines"]]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
        size = record["settings"]["eval"]["prompts"]
        summary = {"method": record["method"], "status": "finished", "eval_size": size, "facts": record["facts"]}
        (folder / "run.json").write_text(json.dumps(summary), "utf-8")
        for step in range(2, 51, 4):
            if problems := [span.finding.name for span in doctor_report(folder, step).problems]:
                alarmed[record["name"], step] = problems
    assert not alarmed
    # and the same rules speak where the newest evaluation is a third of its best
    worse = json.loads(json.dumps(lines[-1]))
    worse["result"]["accuracy"] = 0.1
    worse.pop("scores", None)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [*lines[:-1], worse]), "utf-8")
    assert [span.finding.name for span in doctor_report(folder).problems] == ["evaluation falls"]


def test_demonstrations_that_cost_accuracy_are_named_although_their_loss_falls(tmp_path):
    named = {}
    for record in read_archive(ARCHIVES / "defaults_sft.jsonl.xz"):
        folder = tmp_path / record["name"]
        folder.mkdir()
        lines = [{**line, "health": []} if "counts" in line else line for line in record["lines"]]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
        summary = {"method": "sft", "status": "finished", "eval_size": record["settings"]["eval"]["prompts"]}
        (folder / "run.json").write_text(json.dumps({**summary, "facts": record["facts"]}), "utf-8")
        named[record["tags"]["rate"]] = [span.finding.name for span in doctor_report(folder).problems]
    assert set(named) == {2e-5, 9e-5} and all("answers get worse" in names for names in named.values()), named
