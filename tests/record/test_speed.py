"""The arithmetic of `whet bench`, against numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch

from tests.support.for_every import for_every
from whet.record.speed import (
    Anatomy,
    Ceilings,
    RolloutShape,
    Speed,
    rate_text,
    rollout_bytes,
    rollout_limit,
    rollout_operations,
    speed_advice,
    speed_text,
    tokens_that_fit,
    training_operations,
)
from whet.record.text import memory_text
from whet.tools.bench import benchmark
from whet.types import WhetError

SHAPE = RolloutShape(num_prompts=2, group_size=3, prompt_tokens=4, completion_tokens=5)
ANATOMY = Anatomy(trunk_weights=1000, head_weights=100, attention_width=10, cache_width=20)
SPEED = Speed(
    title="a model",
    shape=SHAPE,
    dtype="float32",
    rates={"float32": 1e9, "bfloat16": 5e8},
    bytes_rate=1e9,
    rollout={"total": 2.0, "prefill": 0.5, "sampling": 0.25},
    rollout_ceiling=(60.0, "operations"),
    train=4.0,
    operations=1e9,
    peak=3e9,
    bytes_per_token=1e5,
    free=1e10,
    micro_batch_tokens=16384,
    threads=2,
    by_threads={2: 1.0, 1: 0.99},
    others=0.01,
)


def test_tokens_of_a_shape():
    assert (SHAPE.num_sequences, SHAPE.written, SHAPE.shared, SHAPE.separate) == (6, 30, 38, 54)
    # a prompt's tokens see 1 + 2 + 3 + 4, each of 3 completions 5 * 4 of the prompt and 1 + ... + 5 of itself
    assert SHAPE.pairs == 2 * (10 + 3 * (20 + 15))
    with pytest.raises(WhetError, match="group_size is 0; give 1 or more"):
        RolloutShape(group_size=0)


def test_useful_operations_count_a_prompt_once_and_the_head_on_completions():
    assert training_operations(ANATOMY, SHAPE) == 6 * (1000 * 38 + 100 * 30) + 12 * 10 * 230
    assert rollout_operations(ANATOMY, SHAPE) == 2 * (1000 * 38 + 100 * 30) + 4 * 10 * 230


def test_one_completion_a_prompt_is_a_plain_sequence():
    shape = RolloutShape(1, 1, 4, 5)
    assert training_operations(ANATOMY, shape) == 6 * (1000 * 9 + 100 * 5) + 12 * 10 * 45


def test_a_rollout_reads_all_weights_for_every_position():
    # 5 positions: 1,100 weights each; keys and values of 2 * 4 prompt tokens and on average 6 * 3 completion tokens
    assert rollout_bytes(ANATOMY, SHAPE, 4) == 4 * (5 * 1100 + 20 * (8 + 18) * 5)


def test_the_slower_of_operations_and_bytes_sets_the_limit():
    operations, moved = rollout_operations(ANATOMY, SHAPE), rollout_bytes(ANATOMY, SHAPE, 4)
    fast_memory = rollout_limit(ANATOMY, SHAPE, Ceilings(operations, 10 * moved), 4)
    fast_products = rollout_limit(ANATOMY, SHAPE, Ceilings(10 * operations, moved / 2), 4)
    assert fast_memory == (30.0, "operations")
    assert fast_products == (15.0, "bytes read")


def test_a_pass_takes_half_of_what_is_free():
    assert tokens_that_fit(1e9, 1e5) == 4096  # 5,000 would fit
    assert tokens_that_fit(1e9, 1e5, share=1.0) == 8192
    assert tokens_that_fit(1.0, 1e9) == 256


def test_products_grow_to_the_largest_and_stop_early_where_time_is_short(monkeypatch):
    sizes = []
    monkeypatch.setattr(benchmark, "best_seconds", lambda work, *_: sizes.append(len(work())) or 1e-9)
    monkeypatch.setitem(benchmark.LARGEST, "cpu", 256)
    assert benchmark.matrix_rate(torch.device("cpu"), torch.float32, 60.0) == 2 * 256**3 / 1e-9
    benchmark.matrix_rate(torch.device("cpu"), torch.float32, 0.0)
    assert sizes == [128, 256, 128]


def test_the_share_of_the_matrix_rate():
    assert SPEED.train_share == 0.25


@for_every(
    [
        ({"others": 0.4}, "others used 40.0% of the machine"),
        ({"rates": {"float32": 1e9, "bfloat16": 7e9}}, "model.precision=bf16: its matrix products are 7.00 times"),
        ({"dtype": "bfloat16"}, "model.precision=fp32: its matrix products are 2.00 times"),
        ({"by_threads": {2: 3.0, 1: 1.0}}, "model.threads=1: a step is 3.00 times as fast as with 2"),
        (
            {"free": 1e9},
            "batch.micro_batch_tokens=4096: 16384 tokens of a pass would take 1.64 GB and 1.00 GB are free",
        ),
        ({"micro_batch_tokens": 32}, "batch.micro_batch_tokens=32768 fits as well"),
    ]
)
def test_advice_follows_from_the_numbers(change, said):
    assert speed_advice(SPEED) == []
    (told,) = speed_advice(replace(SPEED, **change))
    assert told.startswith(said)


def test_the_table_tells_where_the_time_goes():
    text = speed_text(SPEED)
    for part in (
        "2 prompts x 3 completions, 4 + 5 tokens",
        "15.0 tokens/s",  # 30 tokens in 2 s
        "prefill 25.0%, decoding 62.5%, sampling 12.5%",
        "25.0% of the ceiling      60.0, set by operations",
        "9.50 tokens/s",  # 38 tokens in 4 s
        "0.250 GFLOP/s useful",
        "nothing to gain",
    ):
        assert part in text


def test_units():
    assert [rate_text(each) for each in (7.9e14, 4.5e10)] == ["790 TFLOP/s", "45.0 GFLOP/s"]
    assert [memory_text(each) for each in (4.3e12, 2.5e9, 3e6, 1500, 12)] == [
        *("4.30 TB", "2.50 GB", "3.00 MB", "1.50 kB", "12 bytes"),
    ]
