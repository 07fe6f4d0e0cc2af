"""Steps labelled by rollouts: where a completion is cut, what is requested, and what becomes of the completions."""

import re
from dataclasses import replace

import pytest
import torch

from whet.data.rows import Row
from whet.data.step_rows import common_separator, stepped_from
from whet.tools.labelling.label_files import (
    Completer,
    StepLabels,
    agreement,
    cut_completion,
    given_solution,
    labelled_row,
    step_labels,
)
from whet.types import Prompt, Sample, Sampling, StopReason

QUESTION = Prompt("q", (), "12", answer="9")
PIECES = {0: "", 1: "1", 2: "2", 3: "a", 4: ";", 5: "b;c", 6: ";d;", 9: "9", 8: "8", 7: "e"}  # 0 ends a completion


def decode(tokens):
    return "".join(PIECES[token] for token in tokens)


def sample(prompt, completion, **more):
    tokens = torch.tensor([*prompt, *completion])
    action = torch.arange(len(tokens)) >= len(prompt)
    return Sample(tokens, action, torch.zeros(len(tokens)), (0, 0), StopReason.END, decode(completion), **more)


class Engine:
    """Answers 9 where the seed is even and 8 where it is odd, then ends."""

    def __init__(self):
        self.calls = []

    def generate(self, requests, sampling):
        self.calls.append((list(requests), sampling.max_new_tokens))
        ends = [9 if request.seed % 2 == 0 else 8 for request in requests]
        return [sample(request.tokens, (end, 0)) for request, end in zip(requests, ends, strict=True)]


def score(prompts, samples):
    """Right where the completion ends in the answer; a completion with e cannot be judged."""
    return [
        each.scored({"right": float(each.completion.endswith(prompt.answer))}, None if "e" in each.completion else 0.0)
        for prompt, each in zip(prompts, samples, strict=True)
    ]


def completer(engine, **more):
    settings = {"rollouts": 4, "context": 100, **more}
    return Completer(engine, score, decode, Sampling(max_new_tokens=10), **settings)


def solved(*completion):
    drawn = sample((1, 2), completion)
    return cut_completion(QUESTION, score([QUESTION], [drawn])[0], ";", decode, None)


def test_a_completion_is_cut_between_its_own_tokens():
    found = solved(3, 4, 5, 3, 9, 0)  # a ; b;c a 9 end
    assert found.steps == ("a", "b", "ca9") and found.opening == 2
    # the token "b;c" ends the second step, so the prefix holds the whole token
    assert found.prefixes == ((1, 2, 3, 4), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 3, 9, 0))
    assert found.completion is not None and found.completion.outcome == 1.0


def test_steps_that_end_in_one_token_are_one():
    found = solved(3, 6, 9, 0)  # a ;d; 9
    assert found.steps == ("a;d", "9") and found.prefixes == ((1, 2, 3, 6), (1, 2, 3, 6, 9, 0))
    assert solved(0).steps == () and solved(0).prefixes == ()


def test_truth_is_the_worst_of_what_ends_in_a_step():
    def scorer(prompt, completion):
        return [(1, 1.0), (2, 1.0), (4, 0.0), (5, 1.0)]

    found = cut_completion(QUESTION, score([QUESTION], [sample((1, 2), (3, 4, 3, 4, 9, 0))])[0], ";", decode, scorer)
    assert found.steps == ("a", "a", "9") and found.truth == (1.0, 0.0, 1.0)


@pytest.mark.parametrize("inside", [(0.0, 1.0), (1.0, 0.0)])
def test_two_truths_in_one_step_leave_the_lower(inside):
    scored = score([QUESTION], [sample((1, 2), (3, 6, 9, 0))])[0]  # the token ";d;" ends two of the scorer's steps
    ends = [match.end() for match in re.finditer(";", scored.completion)]
    truth = [*zip(ends, inside, strict=True), (len(scored.completion), 1.0)]
    found = cut_completion(QUESTION, scored, ";", decode, lambda prompt, completion: truth)
    assert found.steps == ("a;d", "9") and found.truth == (0.0, 1.0)


def test_completions_continue_the_tokens_and_their_shares_are_the_labels():
    engine = Engine()
    right, wrong = solved(3, 4, 3, 4, 9, 0), solved(3, 4, 8, 0)
    first, second = step_labels([right, wrong], completer(engine), (5,))
    ((requests, budget),) = engine.calls  # all prefixes of both solutions in one call
    assert budget == 10 and len(requests) == 12 and len({request.seed for request in requests}) == 12
    prefixes = [right.prefixes[0]] * 4 + [right.prefixes[1]] * 4 + [wrong.prefixes[0]] * 4
    assert [request.tokens for request in requests] == prefixes
    shares = [sum(request.seed % 2 == 0 for request in requests[start : start + 4]) / 4 for start in range(0, 12, 4)]
    assert 0 < sum(shares) < 3
    # the last step of each is judged by the completion itself, without a completion
    assert first.shares == (shares[0], shares[1], 1.0) and second.shares == (shares[2], 0.0)
    assert first.hard == tuple(float(share > 0) for share in first.shares)
    assert (first.completions, first.tokens) == (8, 16) and (second.completions, second.tokens) == (4, 8)
    again = step_labels([right, wrong], completer(Engine()), (5,))
    assert again == [first, second] != step_labels([right, wrong], completer(Engine()), (6,))


def test_what_cannot_be_judged_has_no_label():
    (found,) = step_labels([solved(3, 4, 7, 4, 9, 0)], completer(Engine()), (5,))
    assert found.shares[0] is not None and found.shares[1:] == (None, None) and found.hard[1:] == (None, None)


def test_a_prefix_with_less_room_gets_what_there_is():
    engine = Engine()
    (found,) = step_labels([solved(3, 4, 3, 4, 3, 4, 9, 0)], completer(engine, context=14), (5,))
    ((requests, _),) = engine.calls
    assert [request.max_new_tokens for request in requests] == [10] * 4 + [8] * 4 + [6] * 4
    assert len(found.shares) == 4
    (short,) = step_labels([solved(3, 4, 3, 4, 9, 0)], completer(Engine(), context=6), (5,))
    assert short.shares[0] is not None and short.shares[1] is None and short.completions == 4


class Letters:
    """A tokenizer of the pieces."""

    eos_token_id = 0

    def __call__(self, text, **_):
        return {"input_ids": [next(key for key, piece in PIECES.items() if piece == letter) for letter in text]}


def test_given_steps_are_joined_and_completed_to_the_end():
    (row,) = stepped_from([Row({"prompt": "12", "answer": "9", "steps": ["a", "a9"], "labels": [1, 0]}, "x:1")])
    found = given_solution(Letters(), row, ";")
    assert found.prefixes == ((1, 2, 3, 4), (1, 2, 3, 4, 3, 9)) and found.truth == (1.0, 0.0)
    (labels,) = step_labels([found], completer(Engine()), (5,))
    assert labels.completions == 8 and len(labels.shares) == 2


def test_right_is_from_a_score_on():
    (found,) = step_labels([solved(3, 4, 9, 0)], completer(Engine(), right_from=1.5), (5,))
    assert found.shares == (0.0, 0.0)
    (found,) = step_labels([solved(3, 4, 9, 0)], completer(Engine(), right_from=-1.0), (5,))
    assert found.shares == (1.0, 1.0)


def test_agreement_by_hand():
    labels = [StepLabels((1.0, 0.25, 0.0), 0, 0), StepLabels((0.5, None), 0, 0), StepLabels((1.0,), 0, 0)]
    found = agreement(labels, [(1.0, 0.0, 0.0), (1.0, 0.0), ()])
    assert found["steps"] == 4 and found["agreement"] == 0.75
    assert found["right_confirmed"] == 1.0 and found["wrong_found"] == 0.5 and found["area_under_curve"] == 1.0
    assert agreement(labels, [(), (), ()]) == {}


def test_rows_are_read_back_with_hard_and_with_soft_labels():
    provenance = {"model": "m", "rollouts": 4}
    rows = [
        labelled_row(solved(3, 4, 9, 0), StepLabels((0.25, 1.0), 4, 8), ";", provenance),
        labelled_row(solved(3, 4, 8, 0), StepLabels((0.0, 0.0), 4, 8), ";", provenance),
    ]
    read = [Row({**row, "id": str(number)}, f"x:{number}") for number, row in enumerate(rows)]
    hard, soft = stepped_from(read), stepped_from(read, labels_in="shares")
    assert [row.labels for row in hard] == [(1.0, 1.0), (0.0, 0.0)]
    assert [row.labels for row in soft] == [(0.25, 1.0), (0.0, 0.0)]
    assert hard[0].steps == ("a", "9") and hard[0].prompt.text == "12" and hard[0].prompt.answer == "9"
    assert common_separator(hard) == ";" and rows[0]["labelled"] == provenance
    assert rows[0]["cost"] == {"completions": 4, "tokens": 8, "solution_tokens": 4}


def test_completions_are_judged_as_they_end_in_any_order():
    """The reward hears of a completion, whole, while the engine still writes others; the labels stay the same."""
    heard = []

    class Streams(Engine):
        def stream(self, requests, sampling, ended):
            samples = self.generate(requests, sampling)
            for number in reversed(range(len(samples))):
                ended(number, samples[number])
                assert len(heard) == len(samples) - number
            return samples

    class JudgedAhead:
        class ahead:
            @staticmethod
            def begin(prompts):
                return lambda number, rows: heard.append((prompts[number].id, rows[0].completion, id(rows[0])))

        def __call__(self, prompts, samples):
            assert [id(one) for one in samples] == [known for *_, known in reversed(heard)]  # the very same samples
            return score(prompts, samples)

    solution = solved(3, 4, 3, 4, 9, 0)
    expected = step_labels([solution], completer(Engine()), (5,))
    ahead = replace(completer(Streams()), score=JudgedAhead())
    assert step_labels([solution], ahead, (5,)) == expected
    assert {name for name, *_ in heard} == {"q"} and all(text[0] == "a" and text[-1] in "98" for _, text, _ in heard)
