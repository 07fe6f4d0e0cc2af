"""Finished runs side by side: what is held against what, when that is noise, and which runs must not be ranked."""

from __future__ import annotations

import json
import re

import pytest

import whet
from whet.pages.compare import cells, comparison_from, comparison_values, notes, rows, standings, table_text, verdict
from whet.record.log import RunRecorder, read_summary, replace_summary
from whet.tools.studies.comparison import compare_runs, write_comparison
from whet.training.config import resolved
from whet.training.saved_config import write_config
from whet.types import WhetError


@pytest.fixture
def run(tmp_path):
    """Writes a finished run folder as training leaves it, without training."""

    def write(name, method="grpo", accuracy=0.5, size=200, status="finished", metric="accuracy", **config):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        write_config(folder, resolved(method, {**config, "folder": str(folder)}))
        after = {} if accuracy is None else {metric: accuracy, "reward": 0.1}
        replace_summary(
            folder, {"status": status, "eval_size": size, "before": {metric: 0.1}, "after": after, "tokens": 100}
        )
        return folder

    return write


def test_single_runs_are_told_apart_by_their_eval_prompts(run):
    one, other, far = run("one", accuracy=0.5), run("other", accuracy=0.53, steps=7), run("far", accuracy=0.8, steps=9)
    near = compare_runs([one, other])
    assert near.methods == ("one", "other") and near.unequal == {"steps": "one 40, other 7"}
    found = standings(near)
    assert found["other"].words == "highest, within noise" and found["one"].words == "within noise of other (p = 0.62)"
    assert standings(compare_runs([one, far]))["one"].words == "below far beyond noise (p < 0.001)"
    # Wilson, 100 of 200: 43.1% to 56.9%
    assert rows(near)[0].after.interval == pytest.approx((0.4314, 0.5686), abs=1e-4)
    assert cells(near)[0][3] == "50.0% (43.1% to 56.9%)"
    (note,) = notes(near)
    assert "single run" in note and "200 eval prompts" in note and "another seed" in note


def test_single_runs_that_say_what_each_prompt_scored_are_compared_prompt_by_prompt(run):
    folders = [run("worse", accuracy=0.25, size=20), run("better", accuracy=0.5, size=20, steps=7)]
    for folder, right in zip(folders, (range(5), range(10)), strict=True):
        scores = [float(prompt in right) for prompt in range(20)]
        RunRecorder(folder).evaluated(7, "eval", {"accuracy": sum(scores) / 20}, 0.1, 20, {"accuracy": scores})
    comparison = compare_runs(folders)
    # five prompts gained, none lost: McNemar's exact p is 2 / 2^5; two shares apart from their prompts give 0.19
    assert standings(comparison)["worse"].p == pytest.approx(2 / 2**5)
    assert "prompt by prompt" in notes(comparison)[0]
    again = comparison_from(json.loads(json.dumps(comparison_values(comparison))))
    assert standings(again)["worse"].p == pytest.approx(2 / 2**5)


@pytest.mark.parametrize(("questions", "p"), [(("a", "a"), 2 / 2**5), (("a", "b"), 0.19), ((None, "b"), 0.19)])
def test_scores_are_paired_only_where_the_same_questions_of_a_file_were_asked(run, questions, p):
    """Runs of another version asked the first rows of the file, and say nothing of what they asked."""
    files = {"data": {"source": "train.jsonl"}, "eval": {"source": "eval.jsonl"}}
    folders = [run("worse", accuracy=0.25, size=20, **files), run("better", accuracy=0.5, size=20, steps=7, **files)]
    for folder, asked, right in zip(folders, questions, (range(5), range(10)), strict=True):
        scores = [float(prompt in right) for prompt in range(20)]
        RunRecorder(folder).evaluated(7, "eval", {"accuracy": sum(scores) / 20}, 0.1, 20, {"accuracy": scores})
        replace_summary(folder, {**read_summary(folder), **({"eval_questions": asked} if asked else {})})
    comparison = compare_runs(folders)
    assert standings(comparison)["worse"].p == pytest.approx(p, abs=0.005)
    assert any("not prompt by prompt" in note for note in notes(comparison)) == (p > 0.1)


def test_results_of_evaluate_are_compared_prompt_by_prompt(tmp_path):
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (1, 2) for b in range(8)]
    settings = {"sampling": {"max_new_tokens": 4}, "model": {"threads": 1}}
    seen = []

    def first_half(prompt, completion):
        seen.append(prompt)
        return float(len(seen) > 16 or len(seen) <= 8)

    results = whet.evaluate(["whetstone", "whetstone"], iter(rows), reward=first_half, settings=settings)
    assert [[each["prompt"] for each in result.completions] for result in results] == [
        [row["prompt"] for row in rows]
    ] * 2
    compared = whet.compare(results)
    (test,) = compared.tests
    assert (test.gained, test.lost, test.test) == (8, 0, "McNemar") and test.p == pytest.approx(2 / 2**8)
    assert "whetstone (2)" in str(compared) and compared.values()["pairs"]
    mistakes = {"give two or more": results[:1], "not both": [results[0], "runs/x"]}
    fewer = whet.evaluate("whetstone", rows[:3], reward=first_half, settings=settings)
    for expected, given in {**mistakes, "asked other prompts": [results[0], fewer]}.items():
        with pytest.raises(WhetError, match=expected):
            whet.compare(given)


def test_three_runs_are_corrected_for_two_tests(run):
    folders = [run("a", accuracy=0.5), run("b", accuracy=0.61, steps=7), run("c", accuracy=0.62, steps=9)]
    alone = standings(compare_runs([folders[0], folders[2]]))["a"].p
    assert standings(compare_runs(folders))["a"].p == pytest.approx(2 * alone)


def test_runs_that_differ_by_their_seed_are_one_method(run):
    folders = [run(f"{method}-{seed}", method, 0.4 + at + 0.01 * seed, seed=seed)
               for at, method in ((0.0, "grpo"), (0.3, "rloo")) for seed in (0, 1, 2)]  # fmt: skip
    comparison = compare_runs(folders[:-1])
    assert comparison.methods == ("grpo", "rloo") and comparison.planned == {"grpo": 3, "rloo": 2}
    assert [line[1] for line in cells(comparison)] == ["3", "2"]
    table = rows(comparison)
    assert table[0].after.values == pytest.approx((0.4, 0.41, 0.42)) and table[0].after.interval is None
    assert standings(comparison)["grpo"].relation == "below {} beyond noise"
    assert "Welch" in notes(comparison)[0]


def test_groups_of_one_method_are_named_by_their_folders(run):
    folders = [run("x"), run("y", seed=1), run("z", steps=7)]
    assert compare_runs(folders).methods == ("x and 1 more", "z")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data": {"difficulty": [4]}}, "different data (data.difficulty differs)"),
        ({"reward": {"parts": [{"reward": "numeric_answer"}]}}, "different rewards"),
        ({"size": 100}, "different numbers of prompts (100, 200)"),
        ({"metric": "score"}, ""),  # both have a reward
    ],
)
def test_other_eval_data_cannot_be_ranked(run, change, reason):
    comparison = compare_runs([run("one"), run("other", accuracy=0.9, **change)])
    assert reason in comparison.incomparable and bool(reason) == bool(comparison.incomparable)
    if reason:
        assert verdict(comparison) == f"These runs cannot be ranked: {comparison.incomparable}."
        assert {each.words for each in standings(comparison).values()} == {"not comparable"}
        assert "cannot be ranked" in " ".join(table_text(comparison).split())


def test_an_eval_file_leaves_the_training_data_free(run, tmp_path):
    rows = tmp_path / "eval.jsonl"
    rows.write_text('{"prompt": "1+1", "answer": "2"}\n')
    reward = {"parts": [{"reward": "exact_answer"}]}
    one, other = (
        run(name, data={"source": f"{name}.jsonl"}, eval={"source": str(rows)}, reward=reward)
        for name in ("one", "other")
    )
    assert compare_runs([one, other]).incomparable == ""


def test_without_any_eval_the_reward_is_compared(run):
    folders = [run("one", accuracy=None, size=0), run("other", accuracy=None, size=0, steps=7)]
    line = {"step": 1, "policy_version": 1, "reward": {"total": 0.5}, "metrics": {}, "counts": {}, "seconds": {}}
    for folder in folders:
        (folder / "metrics.jsonl").write_text(json.dumps({**line, "health": []}) + "\n")
    comparison = compare_runs(folders)
    assert comparison.incomparable == "" and "Nothing was held out" in " ".join(notes(comparison))


def test_the_page_links_the_runs_wherever_they_are(run, tmp_path):
    comparison = compare_runs([run("one"), run("other", accuracy=0.9, steps=7)], command="whet compare a b")
    page = write_comparison(tmp_path / "elsewhere" / "compare-001", comparison)
    text = page.read_text()
    assert re.findall(r'href="([^"]*)"', text) == [f"../../runs/{name}/report.html" for name in ("one", "other")]
    assert "2 finished runs" in text and "whet compare a b" in text and "finished</span>" in text
    values = json.loads((page.parent / "compare.json").read_text())
    assert values["status"] == "finished" and values["rows"][1]["p"] is None and values["rows"][0]["p"] < 1e-6
    assert values["unequal"] == {"steps": "one 40, other 7"}


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda run: [run("one")], "1 run to compare; give two or more"),
        (lambda run: [run("one"), run("two", "dpo")], r"one \(grpo\) and .*two \(dpo\) are different kinds"),
        (lambda run: [run("one"), run("two", status="interrupted")], "two is interrupted; finish it with `whet resume"),
        (lambda run: [run("one"), "nowhere"], "nowhere: not a run folder"),
        (lambda run: [folder := run("one"), folder.parent / "." / "one"], "named twice"),
    ],
)
def test_what_cannot_be_compared_is_refused(run, make, fix):
    with pytest.raises(WhetError, match=fix):
        compare_runs(make(run))


def test_runs_that_only_repeat_a_config_stand_side_by_side(run):
    """There is nothing to compare one entry with, and two runs of one seed are no two draws."""
    seeds = compare_runs([run("one", accuracy=0.5), run("two", accuracy=0.8, seed=1)])
    assert seeds.methods == ("one", "two") and standings(seeds)["one"].words.startswith("below two beyond noise")
    repeated = compare_runs([run("a"), run("b"), run("c", accuracy=0.9, steps=7)])
    assert repeated.methods == ("a", "b", "c")


def test_the_lowest_loss_is_the_best(run):
    (low, high) = (run(name, "sft", loss, 0, metric="loss", data={"source": "a.jsonl"}, steps=steps)
                   for name, loss, steps in (("low", 0.5, 3), ("high", 2.0, 4)))  # fmt: skip
    comparison = compare_runs([low, high])
    assert standings(comparison)["low"].words == "lowest"
    assert standings(comparison)["high"].words == "above low, noise unknown"
    assert verdict(comparison).startswith("low has the lowest held-out loss, 0.500.")


def test_runs_without_anything_to_compare_by_say_so(run):
    folders = [run(f"run-{steps}", "sft", None, 0, data={"source": "a.jsonl"}, steps=steps) for steps in (3, 4)]
    comparison = compare_runs(folders)
    assert verdict(comparison) == (
        "Nothing was evaluated on held-out data, and these runs have no reward: nothing can be compared."
    )
    assert notes(comparison) == []


def test_differing_rewards_and_costs_are_put_into_words(run, tmp_path):
    one, other = run("one"), run("other", reward={"parts": [{"reward": "runs/rm", "weight": 2.0}]}, steps=7)
    replace_summary(other, {**json.loads((other / "run.json").read_text()), "tokens": 900})
    comparison = compare_runs([one, other])
    assert comparison.unequal["reward.parts"] == "one the task's own, other 2.0 x runs/rm"
    assert any(note.startswith("The cost differs: other") for note in notes(comparison))  # 40 steps against 7
