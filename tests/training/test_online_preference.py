"""Pairs of the policy's own completions: the best against the worst, learned from, and resumed to the same bytes."""

import hashlib
import shutil

import pytest
import torch

import whet
from whet.record.log import read_metrics
from whet.training.online_preference import best_and_worst
from whet.types import Group, Prompt, Sample, StopReason, WhetError

SMALL = {
    "model": {"threads": 1},
    "preference": {"online": 8},
    "batch": {"rows_per_step": 8},
    "eval": {"prompts": 40},
    "report": {"save_every": 2},
}


def sample(tokens, reward):
    action = torch.tensor([False, *[True] * (len(tokens) - 1)])
    return Sample(
        torch.tensor(tokens), action, torch.zeros(len(tokens)), (0, 0), StopReason.END, "", reward=reward, parts={}
    )


def test_the_best_and_the_worst_are_a_pair():
    samples = [sample([1, 2], 0.5), sample([1, 3], 1.0), sample([1, 4], None), sample([1, 5], 0.0), sample([1, 6], 1.0)]
    pair = best_and_worst(Group(Prompt("p", ()), tuple(samples)))
    assert [completion.tokens for completion in pair.family] == [(1, 3), (1, 5)]
    assert pair.family[0].action == (False, True)
    assert best_and_worst(Group(Prompt("p", ()), (sample([1, 2], 1.0), sample([1, 3], 1.0)))) is None
    assert best_and_worst(Group(Prompt("p", ()), (sample([1, 2], None),))) is None


@pytest.mark.slow
def test_it_learns_the_task(tmp_path):
    run = whet.train("dpo", config=SMALL, steps=12, folder=str(tmp_path / "run"), console=False)
    steps = [line for line in read_metrics(run.folder) if "eval" not in line]
    assert run.before["accuracy"] < 0.3 and run.after["accuracy"] > 0.8
    assert steps[-1]["reward"]["total"] > steps[0]["reward"]["total"] and 0 < steps[0]["counts"]["rows"] <= 8
    assert steps[0]["metrics"]["accuracy"] == 0.5 and "uniform_groups" in steps[0]["metrics"]


def test_resume_gives_the_same_bytes(tmp_path):
    def weights(folder):
        return hashlib.sha256((whet.Run(folder).model / "model.safetensors").read_bytes())

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    small = {**SMALL, "eval": {"prompts": 4}, "data": {"count": 64}, "report": {"save_every": 2, "keep_checkpoints": 9}}
    small["batch"] = {"rows_per_step": 4}
    whet.train("dpo", config=small, steps=4, folder=str(whole), console=False)
    shutil.copytree(whole, parts)
    whet.resume(parts, steps=4, checkpoint="step-000002", console=False)
    assert weights(whole).hexdigest() == weights(parts).hexdigest()
    # also who wrote each sample: the engine knows the version of the weights it was given
    assert (whole / "samples.jsonl").read_bytes() == (parts / "samples.jsonl").read_bytes()
    assert {tuple(sample["versions"]) for sample in whet.Run(parts).samples(step=4)} == {(3, 3)}


@pytest.mark.parametrize(
    ("preference", "told"),
    [({"online": 1}, "give 2 or more"), ({"online": 4, "reference_logp": "stored"}, "drop it")],
)
def test_what_cannot_work_is_refused(tmp_path, preference, told):
    with pytest.raises(WhetError, match=told):
        whet.train("dpo", preference=preference, steps=1, folder=str(tmp_path / "run"), console=False)
