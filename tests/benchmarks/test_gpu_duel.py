"""What the duels print and hand to the sides; the sides themselves run in processes of their own."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from duel import case_record, ratio_names, ratio_table
from gpu_duel import GIVEN, SMALL, Sizes, named, sizes_of, worded
from sft_cpu import rate_lines

PHASES = ("step", "rollout", "forward", "backward", "optimizer")


def side(seconds: float, peak: float, rate: float) -> dict:
    return {
        **dict.fromkeys(PHASES, seconds),
        **{"peak_bytes": peak, "contended": False, "trained_per_second": rate},
    }


def test_rows_keep_their_pieces_and_no_piece_is_unknown():
    rows = [{"messages": [{"role": "user", "content": "The cat, the dog"}, {"role": "assistant", "content": "cat"}]}]
    ((question, answer),) = [[turn["content"].split() for turn in row["messages"]] for row in worded(rows, 512)]
    # the same piece is the same word in every turn; a comma is a piece; letter case counts
    assert len(question) == 5 and answer == [question[1]]
    assert len(set(question)) == 5
    assert all(0 <= int(word.removeprefix("w")) < 512 - 3 for word in question)


def test_a_long_word_is_several_tokens_and_an_empty_turn_is_one():
    rows = [{"messages": [{"role": "user", "content": "incomprehensible"}, {"role": "assistant", "content": ""}]}]
    (row,) = worded(rows, 512)
    assert [len(turn["content"].split()) for turn in row["messages"]] == [3, 1]
    assert [turn["role"] for turn in row["messages"]] == ["user", "assistant"]


def test_whet_is_compared_with_each_choice_of_the_peer():
    sides = {"whet": side(1.0, 1e9, 40.0), "trl padded": side(3.0, 4e9, 10.0), "trl packed": side(2.0, 2e9, 20.0)}
    lines = ratio_table("title", sides).splitlines()
    found = {label: line for line in lines for label in ratio_names(sides).values() if line.startswith(label)}
    assert "3.00x" in found["ratio, trl padded"] and "4.00x" in found["ratio, trl padded"]
    assert found["ratio, trl packed"].count("2.00x") == 6
    rates = rate_lines(sides, 2.0).splitlines()
    assert [line.split()[-1] for line in rates[3:]] == ["4.00x", "2.00x"]
    assert sides["whet"]["useful_tokens_per_second"] == 80.0


@pytest.mark.parametrize(
    ("sides", "names"),
    [(["whet", "trl"], {"trl": "ratio"}), (["trl"], {}), (["whet"], {}), (["trl padded", "trl packed"], {})],
)
def test_a_ratio_needs_both_sides(sides, names):
    assert ratio_names(sides) == names


def test_only_unusual_choices_are_named():
    assert named("trl", {"writing": ("plain", "plain"), "weights": ("bfloat16", "float32")}) == "trl bfloat16"
    assert named("trl", {"writing": ("plain", "plain")}) == "trl"


def test_flags_change_the_sizes_and_nothing_else():
    flags = dict.fromkeys(GIVEN)
    given = argparse.Namespace(**{**flags, "batch_rows": 64}, tiny=False, pack_tokens="2048,4096")
    found = sizes_of(given)
    assert (found.batch_rows, found.pack_tokens) == (64, (2048, 4096))
    assert (found.model, found.shape, found.micro_batch_tokens) == (Sizes.model, Sizes.shape, Sizes.micro_batch_tokens)
    plain = argparse.Namespace(**flags, tiny=True, pack_tokens=None)
    assert sizes_of(plain) == SMALL


def test_a_results_file_holds_ratios_with_every_other_side():
    sides = {"whet": side(1.0, 1e9, 40.0), "trl padded": side(3.0, 4e9, 10.0), "trl packed": side(2.0, 2e9, 20.0)}
    rate_lines(sides, 2.0)
    found = case_record("title", sides)["sides"]
    assert found["trl padded"]["times"]["step"] == 3.0 and found["trl packed"]["times"]["peak_GB"] == 2.0
    assert found["trl padded"]["times"]["useful_tokens_per_second"] == 4.0
    assert found["whet"]["peak_GB"] == found["whet"]["times"]["step"] == 1.0
    assert "trained_per_second" not in found["whet"]
    assert case_record("title", {"trl": sides["trl padded"]})["sides"]["trl"]["times"] == {}


@pytest.mark.slow
def test_whet_runs_every_part(tmp_path):
    """The flags of the script, the jobs and whet's side of them, in processes of their own."""
    rows, pairs = tmp_path / "rows.jsonl", tmp_path / "pairs.jsonl"
    rows.write_text(40 * (json.dumps({"instruction": "Say two words.", "input": "", "output": "one two"}) + "\n"))
    pairs.write_text(40 * (json.dumps({"prompt": "Say one word.", "chosen": "one", "rejected": "one two"}) + "\n"))
    script = Path(__file__).parents[2] / "benchmarks" / "gpu_duel.py"
    options = ["--tiny", "--only", "whet", "--patience", "0", "--work", tmp_path, "--rows", rows, "--pairs", pairs]
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split(",")[0] for line in done.stdout.splitlines() if ", tiny: " in line] == [
        "grpo",
        "sft",
        "dpo",
        "rm",
        "rollout",
    ]
