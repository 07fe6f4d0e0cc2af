"""Calls of other people's code beside the engine."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import CancelledError, wait

import pytest

from whet.rollout import call_pool
from whet.rollout.call_pool import CallBundle, CallPool


def test_an_async_call_that_blocks_does_not_poison_later_ones(monkeypatch, caplog):
    monkeypatch.setattr(call_pool, "PULSE_SECONDS", 0.05)
    pool, released = CallPool(), threading.Event()

    async def blocks() -> None:
        released.wait(20)  # no await: its loop stands still

    async def quick() -> str:
        await asyncio.sleep(0)
        return "fine"

    hanging = pool.submit(blocks)
    assert wait([hanging], timeout=0.1).not_done
    pool.give_up(hanging, "a tool")
    try:
        with caplog.at_level(logging.WARNING):
            assert pool.submit(quick).result(timeout=5) == "fine"
        assert "blocked its event loop" in caplog.text
    finally:
        released.set()


def test_an_async_call_that_only_waits_keeps_its_loop(caplog):
    pool = CallPool()

    async def waits() -> None:
        await asyncio.sleep(20)

    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    before, slow = pool.submit(loop).result(timeout=5), pool.submit(waits)
    time.sleep(0.01)
    pool.give_up(slow, "a tool")
    assert pool.submit(loop).result(timeout=5) is before and not caplog.text


def test_quick_calls_of_a_bundle_are_made_by_one_thread_and_slow_ones_side_by_side():
    pools, released = (CallPool(), CallPool()), threading.Event()
    bundle = CallBundle()
    with bundle.gathering():
        quick = [pool.submit(threading.get_ident) for pool in pools for _ in range(20)]
        assert not any(call.done() for call in quick)  # nobody is woken before all are asked for
    assert len({call.result(timeout=5) for call in quick}) == len(pools)
    bundle = CallBundle()
    with bundle.gathering():
        hanging, behind = pools[0].submit(released.wait, 20), pools[0].submit(threading.get_ident)
    try:
        with pytest.raises(TimeoutError):
            behind.result(timeout=0.1)  # in vain: it waits for the one in front of it
        bundle.spread()
        assert behind.result(timeout=5) and not hanging.done()
        assert pools[0].submit(threading.get_ident).result(timeout=5)  # gathered no more
    finally:
        released.set()


def test_a_call_that_is_given_up_before_it_began_is_never_made():
    pool, bundle, released, made = CallPool(), CallBundle(), threading.Event(), []
    with bundle.gathering():
        hanging, given_up, last = (
            pool.submit(call) for call in (lambda: released.wait(20), lambda: made.append(1), int)
        )
    pool.give_up(given_up, "a tool")
    assert given_up.done() and not hanging.done()
    released.set()
    assert last.result(timeout=5) == 0 and hanging.result() is True and not made
    assert isinstance(given_up.exception(), CancelledError)
