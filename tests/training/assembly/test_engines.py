"""Wherever completions are written, the engine is made as the config says."""

from types import SimpleNamespace

import pytest
import torch

from tests.support.local_pool import LocalPool
from whet.rollout.torch_engine import TorchEngine
from whet.training.assembly import engines
from whet.training.assembly.assembly import assemble
from whet.training.config import resolved
from whet.training.distributed.background import ProcessSession

SMALL = {"model": {"device": "cpu", "threads": 1}, "batch": {"prompts_per_step": 2, "group_size": 2}}
SMALL |= {"eval": {"prompts": 0}, "data": {"count": 8}}
OWN = {"rows_per_batch": 3, "fast": False}


class Started(Exception):
    """Raised in the place of a process that is started."""


@pytest.fixture
def made(monkeypatch):
    """The settings of every engine that is made."""
    settings, plain = [], TorchEngine.__init__

    def noting(self, *arguments, **chosen):
        settings.append(chosen)
        plain(self, *arguments, **chosen)

    monkeypatch.setattr(TorchEngine, "__init__", noting)
    return settings


def settings_of(engine_settings):
    return {name: engine_settings[name] for name in OWN}


def test_engine_settings_reach_the_engine_in_the_trainers_process(made):
    assemble(resolved("grpo", {**SMALL, "sampling": {"engine_settings": OWN}}))
    assert [settings_of(each) for each in made] == [OWN] and "owns_weights" not in made[0]


def test_engine_settings_reach_the_engine_that_writes_ahead_of_the_trainer(made, monkeypatch):
    def start(self, make, weights, timeout=0.0):
        raise Started(make)

    monkeypatch.setattr(ProcessSession, "__init__", start)
    ahead = {"scale": {"max_staleness": 1}, "objective": {"mismatch": "truncate"}}
    with pytest.raises(Started) as started:
        assemble(resolved("grpo", {**SMALL, **ahead, "sampling": {"engine_settings": OWN}}))
    made.clear()
    started.value.args[0]()  # what runs in the other process
    assert [settings_of(each) for each in made] == [OWN] and made[0]["owns_weights"]


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0.0), ("cuda", 1.0)])
def test_an_engine_of_its_own_asks_for_a_gpu_where_the_policy_has_one(device, gpus):
    config, pool = resolved("grpo", {**SMALL, "scale": {"engines": 2}}), LocalPool()
    policy, _ = engines.load_for_writing(config, torch.float32)
    elsewhere = SimpleNamespace(device=torch.device(device), model=policy.model, vocabulary=policy.vocabulary)
    engines.remote_engine(config, pool, elsewhere, torch.float32)
    assert [(worker.name, worker.gpus) for worker in pool.workers] == [("engine 0", gpus), ("engine 1", gpus)]


def test_engine_settings_reach_an_engine_in_a_process_of_its_own(made):
    config = resolved("grpo", {**SMALL, "scale": {"engines": 1}, "sampling": {"engine_settings": OWN}})
    engines.engine_host(config, TorchEngine, torch.float32)
    assert [settings_of(each) for each in made] == [OWN] and made[0]["owns_weights"]
