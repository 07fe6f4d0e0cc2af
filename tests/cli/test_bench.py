"""`whet bench` measures what it says, and its instruments measure at all."""

import json
import sys
import time

import pytest
import torch

from whet import cli
from whet.record.metrics.timer import PhaseTimer
from whet.record.speed import RolloutShape
from whet.rollout.episode_runner import EpisodePlan
from whet.tools.bench import benchmark, meter
from whet.tools.bench.benchmark import bench_config, bench_trainer, model_anatomy, random_prompts, unending
from whet.tools.bench.meter import Meter, Reading, others_share, quiet_indices
from whet.training.assembly.runtime import load_runtime
from whet.types import Prompt, Request, Sampling, WhetError

SHAPE = RolloutShape(2, 2, 6, 5)
SETTINGS = {"model": {"device": "cpu", "threads": 1, "precision": "fp32"}}


@pytest.fixture(scope="module")
def machine():
    return unending(load_runtime(bench_config("whetstone", SHAPE, SETTINGS)))


@pytest.fixture(scope="module")
def speed():
    settings = {**SETTINGS, "batch": {"group_size": 3}, "sampling": {"max_new_tokens": 4}}
    return benchmark.benchmark("whetstone", SHAPE, seconds=0.1, settings=settings)


def test_nothing_stops_a_completion_of_the_engine_or_the_player(machine):
    sampling = Sampling(40, temperature=0.2)  # whetstone ends its answers long before
    prompts = random_prompts(machine, SHAPE, 0)
    drawn = machine.runner.play(
        EpisodePlan([Prompt(str(number), (), "") for number in range(2)], prompts, 4, sampling, (0,))
    )
    written = [sample for group in drawn for sample in group]
    written += machine.engine.generate([Request(tokens, 1) for tokens in prompts], sampling)
    assert {sample.num_actions for sample in written} == {40}


def test_everything_is_measured(speed):
    assert all(rate > 1e7 for rate in speed.rates.values()) and speed.bytes_rate > 1e7
    # each is measured by itself, so that on so small a model noise may put any of them first
    assert all(speed.rollout[name] > 0 for name in ("total", "prefill", "sampling"))
    assert 0 < speed.train_share < 1
    # a process that was larger before shows no growth
    assert speed.peak > 1e7 and speed.bytes_per_token >= 0


def test_settings_of_the_batch_are_the_shape(speed):
    assert speed.shape == RolloutShape(2, 3, 6, 4)


def test_the_record_is_json(speed):
    record = json.loads(json.dumps(benchmark.speed_record(speed)))
    assert record["training_tokens_per_second"] == pytest.approx((2 * 6 + 6 * 4) / speed.train)
    assert record["machine"]["cores"] >= 1


@pytest.mark.parametrize(("more", "marks"), [([], ("ceiling ", "rollout ")), (["--json"], ('"train"', '"rates"'))])
def test_the_command_prints_a_table_or_json(monkeypatch, capsys, speed, more, marks):
    asked = []
    monkeypatch.setattr(benchmark, "benchmark", lambda *given, **named: asked.append((given, named)) or speed)
    flags = ["--prompts", "2", "--group", "3", "--prompt-tokens", "6", "--completion-tokens", "4", "--seconds", "0.1"]
    monkeypatch.setattr(sys, "argv", ["whet", "bench", *flags, "--set", "model.threads=1", *more])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert all(mark in printed for mark in marks)
    assert asked == [(("whetstone", speed.shape), {"seconds": 0.1, "settings": {"model": {"threads": 1}}})]


def test_every_step_is_the_same_work(machine):
    config = bench_config("whetstone", SHAPE, SETTINGS)
    trainer = bench_trainer(config, machine, random_prompts(machine, SHAPE, 0))
    for number in (1, 2):
        report, samples = trainer.step(number, PhaseTimer())
        assert [sample.num_actions for _, sample in samples] == [5] * 4
        assert {len(sample.tokens) for _, sample in samples} == {11}
        assert report.metrics["gradient_norm"] > 0


def test_random_prompts_are_reproducible_and_fit(machine):
    assert random_prompts(machine, SHAPE, 0) == random_prompts(machine, SHAPE, 0) != random_prompts(machine, SHAPE, 1)
    assert {len(each) for each in random_prompts(machine, SHAPE, 0)} == {6}
    with pytest.raises(WhetError, match="exceed the model's context of 512"):
        random_prompts(machine, RolloutShape(1, 1, 500, 13), 0)


def test_the_weights_that_a_token_meets(machine):
    found = model_anatomy(machine.policy.model)
    # three layers: q, k, v, o of 96 x 96 and three matrices of 96 x 256; a vocabulary of 359; three heads of 32
    assert found.trunk_weights == 3 * (4 * 96 * 96 + 3 * 96 * 256)
    assert found.head_weights == 359 * 96
    assert found.attention_width == 3 * 96 and found.cache_width == 2 * 3 * 96


def test_only_the_experts_that_a_token_is_sent_to_count():
    from transformers import MixtralConfig, MixtralForCausalLM

    size = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = MixtralForCausalLM(MixtralConfig(**size, **heads, num_local_experts=4, num_experts_per_tok=2))
    attention = 16 * 16 + 2 * 16 * 8 + 16 * 16
    router, experts = 4 * 16, 2 * 3 * 16 * 8
    assert model_anatomy(model).trunk_weights == attention + router + experts


def test_a_meter_tells_own_work_from_waiting():
    watch = Meter()
    time.sleep(0.05)
    idle = watch.read()
    watch = Meter()
    while watch.read().own < 0.1:
        torch.ones(2000).sum()
    busy = watch.read()
    assert idle.seconds >= 0.05 and idle.own < 0.05 <= busy.own <= 1.2 * busy.seconds


def test_the_share_of_others():
    assert others_share(busy=3.0, own=1.0, seconds=2.0, cores=2) == 0.5
    assert others_share(busy=1.0, own=1.5, seconds=2.0, cores=2) == 0.0


def test_contended_readings_are_left_out_while_there_are_quiet_ones():
    quiet, busy, unknown = Reading(1.0, 1.0, 0.01), Reading(9.0, 1.0, 0.5), Reading(2.0, 1.0, None)
    assert quiet_indices([busy, quiet, unknown]) == ([1, 2], True)
    assert quiet_indices([busy, busy]) == ([0, 1], False)
    assert meter.typical([9.0, 1.0, 2.0, 3.0], [1, 2, 3]) == 2.0


def test_memory_is_seen(monkeypatch):
    before = meter.peak_bytes()
    held = torch.ones(30_000_000)
    assert meter.peak_bytes() - before > 1e8 or meter.resident_bytes() > 1e8
    assert held.sum() == 3e7
    monkeypatch.setattr(meter, "_status", lambda name: 0)  # no /proc: what getrusage counts, in its own unit
    assert 1e8 < meter.peak_bytes() < 1e12
