"""What the duel on pairs hands to its sides; the sides themselves run in processes of their own."""

import argparse
import json
from pathlib import Path

import pytest
from bench_models import tokenizer_of, words_of
from preference_cpu import encoded, peer_row, told_pairs

LINE = {"prompt": [{"role": "user", "content": "w5 w6"}], "chosen": "w7 w8 w9", "rejected": "w7 w4"}


def test_the_peer_gets_the_tokens_that_whet_trains_on():
    tokenizer = tokenizer_of(64)
    row = peer_row(tokenizer, "dpo", LINE)
    prompt = row["prompt_ids"]
    assert list(prompt)[-2:] == tokenizer("w5 w6")["input_ids"]
    # this template opens a completion with its role, which no prompt holds
    assert list(row["chosen_ids"])[1:4] == tokenizer("w7 w8 w9")["input_ids"]
    assert row["lengths"] == [len(prompt) + len(row["chosen_ids"]), len(prompt) + len(row["rejected_ids"])]
    judged = peer_row(tokenizer, "rm", LINE)
    # a classifier's completions may share their opening beyond the prompt
    assert judged["chosen_ids"][: judged["shared"]] == judged["rejected_ids"][: judged["shared"]]
    assert judged["shared"] > len(prompt) and judged["length"] == max(judged["lengths"])


@pytest.mark.parametrize("part", ["dpo", "rm"])
def test_both_sides_take_the_same_pairs_in_every_step(tmp_path, part):
    from whet.data.cursor import Cursor

    tokenizer_of(64).save_pretrained(tmp_path / "model")
    lines = [{**LINE, "rejected": " ".join(["w4"] * (2 + number))} for number in range(5)]
    lines.append({**LINE, "chosen": " ".join(["w3"] * 60)})  # too long
    source = tmp_path / "pairs.jsonl"
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    chosen = argparse.Namespace(
        encode=(part, str(tmp_path / "model")), pairs=source, target=tmp_path / "pairs.json", vocabulary=0,
        most_tokens=40, rows_per_step=2, most=3, seed=1,
    )  # fmt: skip
    facts = encoded(chosen)
    assert facts["pairs"] == 5 and len(Path(facts["kept"]).read_text().splitlines()) == 5
    rows = json.loads(Path(facts["encoded"]).read_text())
    order, _ = Cursor(5, 1).take(6)
    assert [row["lengths"][1] for row in rows] == [rows[order.index(number)]["lengths"][1] for number in order]
    assert len({row["lengths"][1] for row in rows}) == 5
    assert facts["step_tokens"] == [sum(map(sum, (row["lengths"] for row in rows[at : at + 2]))) for at in (0, 2, 4)]
    assert f"{facts['longest']}, median" in told_pairs(facts)


def test_words_stand_for_the_pieces_of_a_text():
    first, second = words_of("a dog, a cat", 64), words_of("", 64)
    assert len(first.split()) == 5 and first.split()[0] == first.split()[3] and second == "w0"
