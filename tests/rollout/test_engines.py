"""An engine of one's own: registered, chosen with `sampling.engine`, and given the weights whenever they change."""

import copy
import json
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import whet
from whet import cli, registry
from whet.model.causal_lm import causal_lm
from whet.rollout.engines import ENGINES
from whet.rollout.torch_engine import TorchEngine
from whet.types import WhetError

SMALL = {
    "steps": 2,
    "model": {"device": "cpu", "threads": 1},
    "sampling": {"max_new_tokens": 32, "engine": "copying"},
    "data": {"count": 64},
    "eval": {"prompts": 4, "every": 1},
}
BATCH = {"prompts_per_step": 2, "group_size": 4}


class CopyingEngine(TorchEngine):
    """Samples with weights of its own, as an engine in another process does."""

    made: ClassVar[list["CopyingEngine"]] = []

    def __init__(self, policy, tokenizer, end_tokens, *, context):
        self._own = copy.deepcopy(policy.model)
        super().__init__(causal_lm(self._own, policy.dtype), tokenizer, end_tokens, context=context)
        self.versions: list[int] = []
        self.num_written = 0
        self.made.append(self)

    def load(self, weights, version):
        self._own.load_state_dict(weights)
        self.versions.append(version)
        super().load(weights, version)

    def generate(self, requests, sampling):
        self.num_written += len(requests)
        return super().generate(requests, sampling)


@pytest.fixture(autouse=True)
def copying():
    whet.register("engine", CopyingEngine, name="copying")
    CopyingEngine.made.clear()
    yield
    (shelf,) = registry._REGISTRIES["engine"]
    del ENGINES["copying"], shelf.registered["copying"]


def run_files(run):
    lines = [json.loads(line) for line in (Path(run.folder) / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "timeline", "machine")} for line in lines
    ]


def train(method, folder, engine, **settings):
    values = {**SMALL, "sampling": {**SMALL["sampling"], "engine": engine}, **settings}
    return whet.train(method, config=values, folder=str(folder), console=False)


def test_an_engine_with_its_own_weights_trains_as_the_built_in_one_does(tmp_path):
    ours = train("grpo", tmp_path / "ours", "copying", batch=BATCH, optimizer={"learning_rate": 1e-2})
    (engine,) = CopyingEngine.made
    assert engine.versions == [1, 2] and engine.num_written == 2 * 8 + 3 * 4  # two steps, and three evaluations
    theirs = train("grpo", tmp_path / "theirs", "torch", batch=BATCH, optimizer={"learning_rate": 1e-2})
    assert len(CopyingEngine.made) == 1
    mine, built_in = (
        [(line.get("reward"), line.get("counts"), line.get("result")) for line in run_files(run)]
        for run in (ours, theirs)
    )
    assert mine == built_in
    assert all(line["metrics"]["sampler_gap"] < 1e-4 for line in run_files(ours) if "metrics" in line)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("sft", {"batch": {"rows_per_step": 8}, "optimizer": {"learning_rate": 1e-2}}),
        ("dpo", {"preference": {"online": 8}, "batch": {"rows_per_step": 4}, "optimizer": {"learning_rate": 3e-3}}),
    ],
)
def test_evaluations_of_other_kinds_of_training_see_the_trained_weights(method, settings, tmp_path):
    ours, theirs = (train(method, tmp_path / name, name, **settings) for name in ("copying", "torch"))
    mine, built_in = ([line["result"] for line in run_files(run) if "eval" in line] for run in (ours, theirs))
    assert mine == built_in and mine[0] != mine[-1]


def test_eval_uses_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["eval", "whetstone", "--set", "sampling.engine=copying", "--set", "eval.prompts=3"]
    monkeypatch.setattr(sys, "argv", ["whet", *words, "--set", "sampling.max_new_tokens=4"])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    assert not leaving.value.code, capsys.readouterr()
    (engine,) = CopyingEngine.made
    assert engine.num_written == 3


def test_an_unknown_engine_is_refused_with_the_nearest_before_anything_is_written(tmp_path):
    with pytest.raises(WhetError, match=r"no engine is called 'copyin' \(did you mean 'copying'\?\); there are: torch"):
        train("grpo", tmp_path / "run", "copyin")
    assert not (tmp_path / "run").exists()


def test_what_a_maker_returns_must_be_an_engine(tmp_path):
    whet.register("engine", lambda policy, tokenizer, end_tokens, context: torch.nn.Identity(), name="copying_not")
    try:
        with pytest.raises(WhetError, match=r"the engine 'copying_not' made Identity\(\); it must have generate"):
            train("grpo", tmp_path / "run", "copying_not")
    finally:
        (shelf,) = registry._REGISTRIES["engine"]
        del ENGINES["copying_not"], shelf.registered["copying_not"]
