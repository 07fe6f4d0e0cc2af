"""tokens.jsonl: what is written is read back, a long step is cut and says so, and the log goes back with the others."""

import json
import math
from dataclasses import replace

import torch

from tests.support.for_every import for_every
from whet.record.log import RunRecorder, cut_back
from whet.record.recorded_tokens import RecordedToken, TokenSettings, equal_shares, recorded_tokens, token_lines
from whet.types import Prompt, Sample, StepReport, StopReason, TokenTrace, Turn

LETTERS = TokenSettings(1000, lambda tokens: [chr(97 + token) for token in tokens])


def traced(action, **values):
    length = len(action)
    numbers = torch.arange(length, dtype=torch.float32)
    action = torch.tensor(action, dtype=torch.bool)
    sample = Sample(torch.arange(length), action, -numbers / 3 * action, (0, 0), StopReason.END, "x")
    known = {"advantage": torch.full((length,), 0.70710678), "weight": numbers / 7, "logp": -numbers / 3 + 1e-3}
    known |= {name: torch.tensor(value) for name, value in values.items()}
    return replace(sample, trace=TokenTrace(**{name: each * action for name, each in known.items()}))


def test_a_line_starts_at_the_first_choice_and_comes_back():
    (line,) = token_lines(7, [traced([0, 0, 1, 1, 0, 1])], LETTERS)
    assert line == {
        "step": 7,
        "place": 0,
        "ids": [2, 3, 4, 5],
        "pieces": ["c", "d", "e", "f"],
        "action": [2, 1, 1],
        "advantage": 0.7071,
        "weight": [0.2857, 0.4286, 0.7143],
        "logp": [-0.6667, -1.0, -1.667],
        "gap": 0.001,
    }
    assert recorded_tokens(json.loads(json.dumps(line))) == [
        RecordedToken("c", True, 0.7071, 0.2857, -0.6667, 0.001),
        RecordedToken("d", True, 0.7071, 0.4286, -1.0, 0.001),
        RecordedToken("e", False, None, None, None, None),
        RecordedToken("f", True, 0.7071, 0.7143, -1.667, 0.001),
    ]


def test_what_is_not_finite_is_null():
    (line,) = token_lines(1, [traced([1, 1], advantage=[math.nan, 1.0], weight=[math.inf, math.inf])], LETTERS)
    assert (line["advantage"], line["weight"]) == ([None, 1.0], None)


def test_values_have_four_digits_and_at_most_six_decimals():
    values = [
        1e-3,
        -1e-3,
        0.00100049,
        9.99951e-4,
        -1.23456e-5,
        4e-7,
        -4e-7,
        -0.0,
        123456.0,
        -7.77777,
        math.inf,
        math.nan,
    ]
    (line,) = token_lines(1, [traced([1] * len(values), weight=values)], LETTERS)
    expected = [0.001, -0.001, 0.001, 0.001, -1.2e-5, 0.0, 0.0, 0.0, 123500.0, -7.778, None, None]
    assert str(line["weight"]) == str(expected)  # told apart: 0.0 and -0.0


def test_turns_are_placed_from_the_first_choice():
    sample = traced([0, 0, 1, 1, 0, 1])
    turns = (Turn("prompt", "", 0, 2), Turn("assistant", "", 2, 4), Turn("tool", "", 4, 5), Turn("assistant", "", 5, 6))
    (line,) = token_lines(1, [replace(sample, turns=turns)], LETTERS)
    assert line["turns"] == [[0, 0], [0, 2], [2, 3], [3, 4]]
    (cut,) = token_lines(1, [replace(sample, turns=turns)], replace(LETTERS, most=2))
    assert cut["turns"] == [[0, 0], [0, 2], [2, 2], [2, 2]]


def test_samples_without_a_trace_or_a_choice_have_no_line():
    with_trace = traced([0, 1])
    samples = [replace(with_trace, trace=None), with_trace, traced([0, 0])]
    assert [line["place"] for line in token_lines(1, samples, LETTERS)] == [1]


def test_a_long_step_is_shared_out_and_says_what_is_missing():
    samples = [traced([1] * 10), traced([1] * 2), traced([1] * 8)]
    lines = token_lines(1, samples, replace(LETTERS, most=11))
    assert [len(line["pieces"]) for line in lines] == [5, 2, 4] or [len(line["pieces"]) for line in lines] == [4, 2, 4]
    assert [line.get("left_out", 0) + len(line["pieces"]) for line in lines] == [10, 2, 8]
    assert "left_out" not in lines[1]


@for_every(
    [
        ([3, 4], 100, [3, 4]),
        ([10, 10], 8, [4, 4]),
        ([1, 10], 8, [1, 7]),
        ([0, 10], 8, [0, 8]),
        ([5, 5, 5], 2, [0, 0, 0]),
        ([], 8, []),
        ([2, 9, 4], 12, [2, 6, 4]),
    ]
)
def test_shares(wanted, most, given):
    assert equal_shares(wanted, most) == given


def step(number):
    return StepReport(number, 0, {"samples": 1}, {"total": 0.0}, {})


def test_the_log_is_kept_and_cut_back_with_the_others(tmp_path):
    record = RunRecorder(tmp_path, tokens=LETTERS)
    samples = [(Prompt("a", (), "q"), traced([0, 1, 1]))]
    record.stepped(step(1), samples)
    position = record.position()
    before = (tmp_path / "tokens.jsonl").read_bytes()
    assert before.count(b"\n") == 1 and position["tokens.jsonl"]["lines"] == 1
    record.stepped(step(2), samples)
    record.close()
    cut_back(tmp_path, position)
    assert (tmp_path / "tokens.jsonl").read_bytes() == before


def test_a_checkpoint_from_before_the_log_goes_on(tmp_path):
    record = RunRecorder(tmp_path)
    record.stepped(step(1), [(Prompt("a", (), "q"), traced([0, 1, 1]))])
    position = {name: each for name, each in record.position().items() if name != "tokens.jsonl"}
    cut_back(tmp_path, position)
    assert not (tmp_path / "tokens.jsonl").exists()
