"""Is the engine's policy the trainer's? Engines that are broken in every way we have read of, and sound ones."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import whet
from whet import registry
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.rollout.engines import ENGINES
from whet.rollout.torch_engine import TorchEngine
from whet.rollout.weight_sync_check import (
    PolicyMismatch,
    PolicyWatch,
    check_arrival,
    combined,
    fingerprint,
    replay,
    shares_weights,
)
from whet.types import Request, Sampling

PROMPTS = [(5, 6, 7, 8, 9, 10 + number) for number in range(4)]
DRAWN = Sampling(max_new_tokens=24)
FEW = Sampling(max_new_tokens=8)  # where a processor is slow at bfloat16


class CarefulEngine(TorchEngine):
    """Weights of its own, taken over whole."""

    shares_weights = False
    says_arrival = False

    def __init__(self, policy, tokenizer, end_tokens, *, context, half=False):
        self._own = copy.deepcopy(policy.model)
        self.dtype = torch.bfloat16 if half else policy.dtype
        self.arrived = None
        super().__init__(causal_lm(self._own, self.dtype), tokenizer, end_tokens, context=context)

    def load(self, weights, version):
        taken = self.take(weights, version)
        self._own.load_state_dict(taken, strict=False)
        if self.says_arrival:
            self.arrived = fingerprint(taken, self.dtype)
        super().load(weights, version)

    def take(self, weights, version):
        return weights


class Deaf(CarefulEngine):
    """Never takes a weight over."""

    def take(self, weights, version):
        return {}


class HalfDeaf(CarefulEngine):
    """Takes over the first layers."""

    def take(self, weights, version):
        names = list(weights)
        return {name: weights[name] for name in names[: len(names) // 2]}


class StaleHead(CarefulEngine):
    """Keeps a head of its own, as a CPU build of vLLM does where only the embeddings of a tied model are sent."""

    def __init__(self, policy, *arguments, **settings):
        super().__init__(policy, *arguments, **settings)
        head = self._own.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        self._own.config.tie_word_embeddings = False

    def take(self, weights, version):
        return {name: value for name, value in weights.items() if not name.startswith("lm_head")}


class OneBehind(CarefulEngine):
    """Writes with the weights that it was given the last time but one."""

    def take(self, weights, version):
        before = getattr(self, "_before", None)
        self._before = {name: value.clone() for name, value in weights.items()}
        return before or {}


class AnotherModel(CarefulEngine):
    """Was started from another checkpoint."""

    def __init__(self, policy, *arguments, **settings):
        super().__init__(policy, *arguments, **settings)
        torch.manual_seed(3)
        self._own.init_weights()
        with torch.no_grad():
            for weight in self._own.parameters():
                weight.add_(0.05 * torch.randn_like(weight))

    def take(self, weights, version):
        return {}


BROKEN = {"deaf": Deaf, "half_deaf": HalfDeaf, "stale_head": StaleHead, "one_behind": OneBehind}


@pytest.fixture
def engines():
    chosen = {"careful": CarefulEngine, "another_model": AnotherModel, **BROKEN}
    for name, engine in chosen.items():
        whet.register("engine", engine, name=name)
    yield
    (shelf,) = registry._REGISTRIES["engine"]
    for name in chosen:
        del ENGINES[name], shelf.registered[name]


@pytest.fixture(scope="module")
def loaded():
    return load_model("whetstone")


def made(loaded, kind, dtype=torch.float32, **settings):
    """A policy of its own, an engine beside it, and the watch over the two."""
    policy = causal_lm(copy.deepcopy(loaded.model), dtype)
    if dtype == torch.bfloat16:  # in which most processors multiply slowly: one layer will do
        del policy.model.model.layers[1:]
        policy.model.config.num_hidden_layers = 1
    engine = kind(policy, loaded.tokenizer, loaded.end_tokens, context=loaded.context, **settings)
    return policy, engine, PolicyWatch(policy, engine, 1.0, "broken")


def moved(policy, scale=1e-4, seed=0):
    """One step of an optimizer, as far as an engine can tell."""
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(scale * torch.randn(weight.shape, generator=stream).sign())
    return policy.model.state_dict()


def written(engine, seed=0, sampling=DRAWN):
    return engine.generate([Request(tokens, 100 * seed + number) for number, tokens in enumerate(PROMPTS)], sampling)


def test_a_sound_engine_passes_at_every_version_and_says_by_how_much(loaded):
    policy, engine, watch = made(loaded, CarefulEngine)
    found = watch.check(written(engine))
    assert found["replayed_tokens"] > 0 and found["replay_gap"] < found["replay_limit"] < 1e-3
    for version in (1, 2):
        watch.load(moved(policy, seed=version), version)
        assert watch.check(written(engine, version))["replay_gap"] < 1e-5


@pytest.mark.parametrize("half", [pytest.param(False, marks=pytest.mark.slow), True])
def test_false_alarms_do_not_happen_in_coarse_arithmetic(loaded, half):
    policy, engine, watch = made(loaded, CarefulEngine, torch.bfloat16, half=half)
    ratios = []
    for version in (1, 2):
        watch.load(moved(policy, seed=version), version)
        found = watch.check(written(engine, version, FEW))
        ratios.append(found["replay_gap"] / found["replay_limit"])
    assert max(ratios) < 0.5


@pytest.mark.parametrize("kind", [Deaf, HalfDeaf, StaleHead, OneBehind])
def test_a_policy_that_did_not_arrive_is_an_error_that_names_its_version(loaded, kind):
    policy, engine, watch = made(loaded, kind)
    watch.check(written(engine))
    watch.load(moved(policy), 1)
    with pytest.raises(PolicyMismatch, match=r"policy version 1 is not what the engine broken writes with.*0\.0") as no:
        watch.check(written(engine, 1))
    assert "\n" not in str(no.value) and "tied to the embeddings" in str(no.value)


def test_another_model_is_noticed_before_the_first_update(loaded):
    _, engine, watch = made(loaded, AnotherModel)
    with pytest.raises(PolicyMismatch, match="policy version 0 is not what"):
        watch.check(written(engine))


def test_a_stale_head_is_noticed_in_bfloat16_too(loaded):
    policy, engine, watch = made(loaded, StaleHead, torch.bfloat16)
    watch.check(written(engine, 0, FEW))
    watch.load(moved(policy, 5e-2), 1)  # a head that is stale by less hides behind the rounding
    with pytest.raises(PolicyMismatch, match="version 1"):
        watch.check(written(engine, 1, FEW))


def test_an_engine_that_says_what_arrived_is_caught_at_the_load_however_small_the_step(loaded):
    policy, engine, watch = made(loaded, HalfDeaf)
    engine.says_arrival = True
    with pytest.raises(PolicyMismatch, match=r"policy version 1: \d+ of \d+ tensors did not arrive in the engine"):
        watch.load(moved(policy, 1e-7), 1)


def test_an_engine_that_admits_an_old_version_is_caught_without_a_replay(loaded):
    policy, engine, watch = made(loaded, CarefulEngine)
    samples = written(engine)
    watch.load(moved(policy), 1)
    with pytest.raises(PolicyMismatch, match="version 1 was loaded and the engine broken still writes with version 0"):
        watch.check(samples)


def test_completions_that_may_be_older_are_not_replayed_and_that_is_counted(loaded):
    policy, engine, _ = made(loaded, CarefulEngine)
    watch = PolicyWatch(policy, engine, 1.0, "late", max_staleness=1)
    samples = written(engine)
    watch.load(moved(policy), 1)
    assert watch.check(samples) == {"replayed_tokens": 0.0}


def test_log_probabilities_that_are_no_numbers_never_pass(loaded):
    _, engine, watch = made(loaded, CarefulEngine)
    samples = [replace(each, behavior_logp=each.behavior_logp * float("nan")) for each in written(engine)]
    with pytest.raises(PolicyMismatch, match="nan nats"):
        watch.check(samples)


def test_one_broken_engine_of_several_is_not_averaged_away(loaded):
    policy, engine, watch = made(loaded, CarefulEngine)
    other = AnotherModel(policy, loaded.tokenizer, loaded.end_tokens, context=loaded.context)
    samples = written(engine) + written(engine, 1) + written(other)[:1]
    with pytest.raises(PolicyMismatch):
        watch.check(samples)


def test_the_replay_leaves_the_model_as_it_was(loaded):
    policy, engine, _ = made(loaded, CarefulEngine)
    samples = written(engine)
    policy.model.train()
    found = replay(policy, samples, 0, 1.0)
    assert policy.model.training and found.passes
    assert found.tokens == sum(int(sample.action.sum()) for sample in samples)


def test_a_fingerprint_tells_tensors_apart_by_bits_and_by_place():
    weights = {"a": torch.randn(3, 1500), "b": torch.arange(5)}
    first = fingerprint(weights)
    assert fingerprint({name: value.clone() for name, value in weights.items()}) == first
    nudged = weights["a"].clone()
    nudged[2, 7] = torch.nextafter(nudged[2, 7], torch.tensor(9.0))
    swapped = weights["a"].flatten().roll(1024).view(3, 1500)
    for other in (nudged, swapped, weights["a"][:2], weights["a"].bfloat16()):
        assert fingerprint({"a": other})["a"] != first["a"]
    assert combined(first) != combined({**first, "b": 0}) and len(combined(first)) == 12
    assert fingerprint(weights, torch.bfloat16)["a"] == fingerprint({"a": weights["a"].bfloat16()})["a"]


def test_tensors_that_changed_on_the_way_are_named():
    sent = {"first": 1, "second": 2}
    check_arrival(sent, {**sent, "more": 3}, 4, "mine")
    with pytest.raises(PolicyMismatch, match=r"version 4: 1 of 2 tensors arrived otherwise.*mine \(second\)"):
        check_arrival(sent, {"first": 1, "second": 3}, 4, "mine")


def run(engine, folder, **settings):
    values = {
        "steps": 3,
        "model": {"device": "cpu", "threads": 1},
        "sampling": {"max_new_tokens": 32, "engine": engine},
        "eval": {"prompts": 0},
        "batch": {"prompts_per_step": 2, "group_size": 4},
        "optimizer": {"learning_rate": 1e-3},
        **settings,
    }
    return whet.train("grpo", config=values, folder=str(folder), console=False)


@pytest.mark.parametrize("name", ["half_deaf", "stale_head"])
def test_a_run_with_a_broken_engine_stops_within_one_step_of_the_first_update(engines, tmp_path, name):
    with pytest.raises(PolicyMismatch, match="policy version 1"):
        run(name, tmp_path / "run")
    lines = [json.loads(line) for line in (Path(tmp_path) / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "metrics" in line] == [1]


def test_a_run_with_a_sound_engine_notes_the_replay_and_the_built_in_one_has_none(engines, tmp_path):
    for name, watched in (("careful", True), ("torch", False)):
        run(name, tmp_path / name)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        steps = [line["metrics"] for line in lines if "metrics" in line]
        assert len(steps) == 3 and all(("replay_gap" in each) is watched for each in steps)


def test_a_stale_run_is_watched_when_its_completions_are_drawn(engines, tmp_path):
    late = {
        "batch": {"prompts_per_step": 2, "group_size": 4, "staleness": 1},
        "objective": {"mismatch": "truncate"},
    }
    run("careful", tmp_path / "sound", **late)
    with pytest.raises(PolicyMismatch, match="policy version 1"):
        run("deaf", tmp_path / "deaf", **late)


def test_only_an_engine_that_says_so_shares_the_trainers_weights(loaded):
    _, engine, _ = made(loaded, CarefulEngine)
    assert not shares_weights(engine)
    policy = causal_lm(loaded.model)
    assert shares_weights(TorchEngine(policy, loaded.tokenizer, loaded.end_tokens, context=loaded.context))
