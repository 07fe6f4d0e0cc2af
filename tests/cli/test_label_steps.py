"""`whet label steps`: the file it leaves, going on after a break, and what it says of mistakes."""

import json

import pytest
from typer.testing import CliRunner

from whet.cli import app
from whet.types import WhetError

SMALL = ("--rollouts", "2", "--count", "20", "--set", "sampling.max_new_tokens=48")


def whet(*words):
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, WhetError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def label(out, *words):
    return whet("label", "steps", *SMALL, "--out", str(out), *words)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """The model's own solutions, labelled without a break."""
    out = tmp_path_factory.mktemp("labels") / "steps.jsonl"
    return out, label(out, "--truth", "working_steps", "--each", "2")


def rows_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_row_says_who_completed_and_what_it_cost(labelled):
    out, told = labelled
    rows = rows_of(out)
    assert len(rows) == 40 and len({row["id"] for row in rows}) == 40
    for row in rows:
        assert len(row["steps"]) == len(row["labels"]) == len(row["shares"]) == len(row["truth"])
        assert row["labels"] == [float(share > 0) for share in row["shares"]]
        assert row["cost"]["completions"] == 2 * (len(row["steps"]) - 1)
        provenance = row["labelled"]
        assert (provenance["model"], provenance["rollouts"], provenance["temperature"], provenance["seed"]) == (
            "whetstone",
            2,
            1.0,
            0,
        )
    assert {0.0, 1.0} <= {label for row in rows for label in row["labels"]}
    assert max(len(row["steps"]) for row in rows) >= 5
    completions = sum(row["cost"]["completions"] for row in rows)
    assert f"{completions:,} completions" in told and "tokens per label" in told and "known steps agree" in told


def test_a_torn_file_is_gone_on_with_to_the_same_bytes(labelled, tmp_path):
    whole = labelled[0].read_bytes()
    torn = tmp_path / "steps.jsonl"
    torn.write_bytes(whole[: len(whole) - 200])
    label(torn, "--truth", "working_steps", "--each", "2")
    assert torn.read_bytes() == whole
    label(torn, "--truth", "working_steps", "--each", "2")
    assert torn.read_bytes() == whole


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--rollouts", "3"), "steps.jsonl:40: was labelled with rollouts 2, and now it is 3"),
        (("--set", "sampling.temperature=0"), "all completions of a step would be equal"),
        (("--solutions", "task:arithmetic", "--data", "task:lists"), "give one of them"),
        (("--solutions", "task:arithmetic", "--each", "2"), "--each 2"),
        (("--solutions", "task:arithmetic", "--truth", "working_steps"), "--truth judges the model's own solutions"),
        (("--truth", "exact_answer"), "judges no steps"),
    ],
)
def test_mistakes_are_told_in_one_line(labelled, tmp_path, words, told):
    out = tmp_path / "new.jsonl"
    if "rollouts" in told:
        out = tmp_path / "steps.jsonl"
        out.write_bytes(labelled[0].read_bytes())
    with pytest.raises(WhetError) as error:
        label(out, *(("--each", "2") if "rollouts" in told else ()), *words)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_file_of_another_kind_is_left_alone(tmp_path):
    out = tmp_path / "mine.jsonl"
    out.write_text('{"prompt": "a"}\n')
    with pytest.raises(WhetError, match=r"mine.jsonl:1: was not written by `whet label steps`"):
        label(out)
    assert out.read_text() == '{"prompt": "a"}\n'
    with pytest.raises(WhetError, match=r"ends in .jsonl"):
        label(tmp_path / "steps.txt")


def test_given_solutions_are_labelled_and_compared_with_their_labels(tmp_path):
    out = tmp_path / "given.jsonl"
    found = json.loads(label(out, "--solutions", "task:arithmetic", "--json", "--set", "data.difficulty=1"))
    rows = rows_of(out)
    assert found["solutions"] == 20 and found["completions"] == 2 * found["steps"] == 120
    # the built-in model works out three steps without a slip, so an error in a step cannot be provenance good
    assert found["truth"]["agreement"] > 0.9 and found["truth"]["wrong_found"] > 0.8
    assert all(len(row["shares"]) == 3 for row in rows) and rows[0]["separator"] == ";"
    # a file of given steps needs no labels
    bare = tmp_path / "bare.jsonl"
    kept = [{key: row[key] for key in ("id", "prompt", "answer", "steps", "separator")} for row in rows]
    bare.write_text("".join(json.dumps(row) + "\n" for row in kept))
    again = tmp_path / "again.jsonl"
    told = json.loads(label(again, "--solutions", str(bare), "--reward", "exact_answer", "--json"))
    assert told["truth"] == {} and [row["shares"] for row in rows_of(again)] == [row["shares"] for row in rows]


def test_labels_that_do_not_match_the_steps_are_told_with_file_line_and_fix(labelled, tmp_path):
    rows = rows_of(labelled[0])
    rows[3]["labels"] = [*rows[3]["labels"][:-1], 1.0, 1.0]
    bad = tmp_path / "bad.jsonl"
    bad.write_text("".join(json.dumps(row) + "\n" for row in rows))
    count = len(rows[3]["steps"])
    with pytest.raises(WhetError, match=rf"bad.jsonl:4: labels has {count + 1} entries for {count} steps; .*correct"):
        whet("train", "prm", "--data", str(bad), "--folder", str(tmp_path / "run"))
    with pytest.raises(WhetError, match=r"bad.jsonl:1: 'gold' is missing; .*give reward_model.labels=labels"):
        whet("train", "prm", "--data", str(bad), "--set", "reward_model.labels=gold", "--folder", str(tmp_path / "run"))
    with pytest.raises(WhetError, match=r"reward_model.labels=shares has no effect"):
        whet("train", "prm", "--set", "reward_model.labels=shares", "--folder", str(tmp_path / "run"))
