"""What ranks compare in every step, and metadata of shards that is read without running anything."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from whet.model.placement import fill, laid_out_like
from whet.training.distributed.agreement import agree_on_step, agree_on_weights, weights_fingerprint
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.distributed.sharded_checkpoint import _reader, gathered
from whet.types import Prompt, Sample, StepReport, StopReason


@dataclass(frozen=True)
class Heard(Ranks):
    """Rank 0 of two, with what rank 1 says, one answer after the other."""

    answers: tuple[Any, ...] = ()

    def gather(self, mine: Any) -> list[Any]:
        return [mine, self.answers[0](mine) if callable(self.answers[0]) else self.answers[0]]


def report(**metrics: float) -> StepReport:
    return StepReport(3, 2, {"samples": 1}, {"total": 0.5}, {"loss": 0.25, **metrics}, seconds={"train": 1.0})


def sampled(token: int = 7, reward: float = 0.5) -> list[tuple[Prompt, Sample]]:
    tokens = torch.tensor([1, 2, token])
    sample = Sample(tokens, tokens > 1, torch.zeros(3), (0, 0), StopReason.END, "x", reward=reward)
    return [(Prompt("p", ()), sample)]


def the_other(model: nn.Module, other: StepReport, samples: Any) -> Any:
    """What a rank with this step would answer to each question."""

    def answer(mine: Any) -> Any:
        said: list[Any] = []

        class Recording(Ranks):
            def gather(self, value: Any) -> list[Any]:
                said.append(value)
                return [value, ("", False) if isinstance(value, tuple) else value]

        agree_on_step(Recording(1, 2), model, other, samples, False)
        return next(each for each in said if isinstance(each, type(mine)))

    return answer


def test_equal_steps_agree_and_one_rank_stops_all():
    model = nn.Linear(2, 2)
    same = the_other(model, replace(report(), seconds={"train": 9.0}), sampled())
    assert agree_on_step(Heard(0, 2, answers=(same,)), model, report(), sampled(), False) == (False, "")
    assert agree_on_step(Heard(0, 2, answers=(same,)), model, report(), sampled(), True) == (True, "")
    assert agree_on_step(ALONE, model, report(), sampled(), True) == (True, "")


@pytest.mark.parametrize(
    ("other", "samples", "named"),
    [
        (report(kl=1.0), sampled(), "loss is 0.25 on rank 0, 0.26 on rank 1"),
        (report(), sampled(token=8), "prompts, completions and rewards is"),
        (report(), sampled(reward=0.75), "prompts, completions and rewards is"),
    ],
)
def test_what_differs_in_a_step_is_named(other, samples, named):
    model = nn.Linear(2, 2)
    if "loss" in named:
        other = replace(other, metrics={"loss": 0.26})
    ranks = Heard(0, 2, answers=(the_other(model, other, samples),))
    stops, line = agree_on_step(ranks, model, report(), sampled(), False)
    assert not stops
    assert line.startswith("step 3: the ranks do not agree: ") and named in line, line
    assert "\n" not in line


def test_weights_that_differ_in_one_bit_are_told_apart():
    model = nn.Linear(3, 5000)
    before = weights_fingerprint(model)
    assert before == weights_fingerprint(model)
    assert agree_on_weights(Heard(0, 2, answers=(before,)), model) == ""
    with torch.no_grad():
        model.weight[4321, 2] = torch.nextafter(model.weight[4321, 2], torch.tensor(9.0))
    assert weights_fingerprint(model) != before
    line = agree_on_weights(Heard(0, 2, answers=(before,)), model)
    assert line.startswith("the ranks do not agree: the model's weights is ")


class _Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


def test_metadata_that_names_code_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(_Runs()))
    with pytest.raises(pickle.UnpicklingError, match="system, which no checkpoint needs"):
        _reader(tmp_path).read_metadata()
    assert not (tmp_path / "ran").exists()


def test_whole_tensors_are_gathered_and_filled_as_they_are():
    one = torch.arange(6.0).reshape(2, 3)
    found = gathered({"a": one, "tied": one, "b": one.clone()}, keep=True)
    assert found["a"] is found["tied"] and torch.equal(found["b"], one)
    assert gathered({"a": one}, keep=False) == {}
    target = torch.zeros(2, 3)
    fill(target, one)
    assert torch.equal(target, one) and torch.equal(laid_out_like(one, target), one)
