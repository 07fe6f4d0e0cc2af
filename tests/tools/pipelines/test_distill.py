"""A teacher into a smaller student: what it costs, who is compared with whom, and the whole on a tiny scale."""

import json
from pathlib import Path

import pytest
import torch

from whet.data.distillation_target import TEMPLATES
from whet.model.load import load_model
from whet.pages.pipeline_page import MeasuredPolicy, branched, compared, fallen, lost_prompts
from whet.tools.pipelines.distill import DistillSettings, distill_entries
from whet.tools.pipelines.library.distilling import MatchedEntry, StudentEntry, against_first, operations
from whet.tools.pipelines.library.trainings import Passes
from whet.tools.pipelines.runner import run_pipeline
from whet.training.config import resolved
from whet.types import WhetError

TINY = {
    "teacher": "whetstone",
    "student": {"layers": 1},
    "data": {"count": 8},
    "sampling": {"max_new_tokens": 8},
    "warm_rows": 8,
    "warm": {"epochs": 1.0},
    "traces": {"completions": 2},
    "imitate": {"epochs": 1.0},
    "eval": {"prompts": 4},
}


def entries(**given):
    return distill_entries(DistillSettings(pipeline="distill", **given))


def test_operations_count_each_weight_and_token():
    traces = operations(30, 5, Passes(sampled=1)) + operations(10, 7, Passes(trained=1))
    assert traces == 2 * 30 * 5 + 6 * 10 * 7

    def passes(method, teacher="", **batch):
        entry = MatchedEntry(name="m", teacher=teacher, student="s", traces="t", imitation="i")
        return entry.passes(resolved(method, {"batch": batch, **({"teacher": {"name": teacher}} if teacher else {})}))

    # a teacher reads each completion that the student wrote and learns from; or the student grades its own
    assert passes("opd_full", "whetstone") == (Passes(1, 0, 1), Passes(scored=1))
    assert passes("sdft") == (Passes(1, 1, 1), Passes())
    # before several updates it reads its completions again, and it learns from them twice
    plain, again = passes("grpo", updates_per_step=1)[0], passes("grpo", updates_per_step=2, epochs_per_batch=2)[0]
    assert again == Passes(1, plain.scored + 1, 2)


def test_the_ways_branch_from_one_student_and_each_is_measured():
    found = entries(**TINY)
    starts = {entry.name: entry.start for entry in found if hasattr(entry, "start")}
    assert {starts[name] for name in ("traces-sft", "on_policy", "self", "rl")} == {"warm-student"}
    against = {entry.name: entry.against for entry in found if entry.kind == "eval"}
    assert against["eval-rl"] == against["eval-on_policy"] == "eval-warm-student"
    assert found[-1].evals == ("eval-traces-sft", "eval-on_policy", "eval-self", "eval-rl")
    assert [entry.teacher for entry in found if entry.name == "on_policy"] == ["whetstone"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"compare": "traces,offpolicy"}, "no way is called 'offpolicy'.*on_policy"),
        ({"compare": "rl,traces"}, "traces comes first"),
        (
            {"teacher": "", "data": {"source": "rows.jsonl"}, "reward": {"parts": [{"reward": "exact_answer"}]}},
            "teacher=",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(given, words):
    with pytest.raises(WhetError, match=words):
        entries(**{**TINY, **given})


def test_a_student_that_is_given_is_not_cut():
    from whet.tools.pipelines.library.entry import compose

    given = DistillSettings(pipeline="distill")
    with pytest.raises(WhetError, match="drop them, or source"):
        compose(given, [StudentEntry(name="student", teacher="whetstone", source="whetstone", layers=1)])


def test_each_model_is_tested_against_the_first():
    outcomes = {"one": [1.0, 0.0, 0.0, 0.0] * 10, "same": [1.0, 0.0, 0.0, 0.0] * 10, "two": [1.0, 1.0, 1.0, 0.0] * 10}
    found = against_first(outcomes)
    assert found["same"]["difference"] == 0 and found["same"]["p"] == 1
    assert found["two"]["difference"] == 0.5 and found["two"]["p"] < 1e-4
    assert found["two"]["low"] < 0.5 < found["two"]["high"]


def policy(label, right, against=""):
    rows = {str(at): {"right": each, "completion": label, "prompt": "?", "answer": 1} for at, each in enumerate(right)}
    return MeasuredPolicy(label, rows, f"eval-{label}", against)


def test_a_branch_is_compared_with_where_it_began_and_not_with_its_neighbour():
    start = policy("start", [0] * 30, "none")
    good = policy("good", [1] * 20 + [0] * 10, "eval-start")
    poor = policy("poor", [0] * 29 + [1], "eval-start")
    teacher = policy("teacher", [1] * 30, "none")
    policies = [teacher, start, good, poor]
    assert [(one.label, two.label) for one, two in compared(policies)] == [("start", "good"), ("start", "poor")]
    assert fallen(policies) == []  # worse than its neighbour and the teacher, not than its start
    assert lost_prompts(policies) == []
    text = branched(policies)
    assert "good 66.7% (+66.7 points on start" in text and "poor 3.3%" in text
    assert branched([policy("a", [0]), policy("b", [1])]) == ""
    assert fallen([policy("a", [1] * 30), policy("b", [0] * 30)])


def test_all_ways_run_for_about_the_same_arithmetic(tmp_path):
    reward = Path(__file__).parents[2] / "support" / "always_right.py"
    assert reward.is_file()
    tiny = {**TINY, "reading_rows": 8, "reward": {"parts": [{"reward": f"{reward}:always_right"}]}}
    ran = run_pipeline("distill", {**tiny, "folder": str(tmp_path / "run")})
    assert ran.status == "finished"
    student = load_model(str(ran.stages["student"].folder / "run")).model
    assert student.config.num_hidden_layers == 1
    for way in ("on_policy", "self", "rl"):
        result = ran.stages[way].result
        assert result["budget"] == ran.stages["rl"].result["budget"] > 0
        # at least one step, else within what a step costs of the budget
        per_step = result["operations"] / result["steps"]
        assert result["steps"] == 1 or abs(result["operations"] - result["budget"]) <= 2 * per_step
    trained = load_model(str(ran.stages["on_policy"].folder / "run")).model
    warm = load_model(str(ran.stages["warm-student"].folder / "run")).model
    assert any(not torch.equal(one, two) for one, two in zip(trained.parameters(), warm.parameters(), strict=True))
    saved = json.loads((ran.stages["comparison"].folder / "stage.json").read_text())
    assert set(saved["result"]["tests"]) == {"eval-on_policy", "eval-self", "eval-rl"}
    page = (tmp_path / "run" / "pipeline.html").read_text()
    assert "points on warm-student" in page


def test_a_student_reads_demonstrations_in_the_form_in_which_it_teaches_itself():
    found = {entry.name: entry for entry in entries(**TINY, reading_rows=8)}
    plain, shown = found["demonstrations"].sources
    assert (plain.template, found["warm-student"].data) == ("", "demonstrations")
    assert shown.template == TEMPLATES["demonstration"]
    own = {"self_teaching": {"train": {"teacher": {"template": "{prompt} {text}"}}}}
    [mixed] = [entry for entry in entries(**TINY, **own, reading_rows=8) if entry.name == "demonstrations"]
    assert mixed.sources[1].template == "{prompt} {text}"
    assert "demonstrations" not in {entry.name for entry in entries(**TINY)}


def test_a_given_student_begins_as_it_is_where_there_are_no_demonstrations(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    source = {"source": str(file)}
    given = {"teacher": "whetstone", "reward": {"parts": [{"reward": "exact_answer"}]}, "data": source}
    given |= {"eval": {"source": str(file), "prompts": 1}, "compare": ["traces", "on_policy"]}
    student = {"student": {"name": "whetstone"}}
    found = {entry.name: entry for entry in entries(**given, **student)}
    assert "warm-student" not in found and "eval-student" in found
    assert found["traces-sft"].start == found["on_policy"].start == "student"
    assert found["eval-on_policy"].against == "eval-student"
    assert found["comparison"].evals == ("eval-traces-sft", "eval-on_policy")
    assert "warm-student" in {entry.name for entry in entries(**given, **student, demonstrations=str(file))}
    with pytest.raises(WhetError, match="made out of the teacher is warmed up first"):
        entries(**given)
    with pytest.raises(WhetError, match="self shows the student demonstrations"):
        entries(**{**given, "compare": ["traces", "self"]}, **student)
    idle = DistillSettings(pipeline="distill", **given, **student).idle()
    assert set(idle) >= {"warm", "warm_rows", "reading_rows"}
    assert "warm" not in DistillSettings(pipeline="distill", **given, **student, demonstrations=str(file)).idle()


def test_a_choice_of_a_way_keeps_its_method():
    settings = DistillSettings(pipeline="distill", on_policy={"steps": 3}, self_teaching={"steps": 3})
    assert (settings.on_policy.method, settings.self_teaching.method) == ("opd_full", "sdft")


def test_in_the_small_run_the_ways_make_updates_of_the_same_size_and_the_warm_up_as_many():
    small = DistillSettings.small_run
    sizes = {name: small[name]["train"]["batch"] for name in ("warm", "imitate", "on_policy", "self_teaching")}
    assert {size for batch in sizes.values() for size in batch.values()} == {32}
    settings = DistillSettings(pipeline="distill")
    groups = [resolved(choice.method, {}).batch.group_size for choice in (settings.on_policy, settings.self_teaching)]
    assert groups == [1, 1]
    passes = {name: small[name]["epochs"] for name in ("warm", "imitate")}
    assert passes["warm"] * (small["warm_rows"] + small["reading_rows"]) == passes["imitate"] * small["data"]["count"]


def test_the_student_teaches_itself_over_distributions_unless_told_otherwise():
    def own(**choice):
        return next(entry.train for entry in entries(**TINY, self_teaching=choice) if entry.name == "self")

    assert own()["objective"] == {"baseline": "none", "teacher": "reverse_kl"} and own()["teacher"] == {"top_k": 100}
    assert own(train={"objective": {"scale": "none"}}) == {"objective": {"scale": "none"}}
    assert own(method="sdpo") == {}
