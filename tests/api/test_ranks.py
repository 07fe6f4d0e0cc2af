"""A run whose ranks are started on Ray, as its caller sees it; tests/cluster starts real ones."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

import whet
from whet.api.ranks import run_on_ray
from whet.training.config import resolved


@pytest.mark.parametrize("stops", [True, False])
def test_a_callback_that_asks_to_stop_is_told_that_nobody_hears_it(monkeypatch, caplog, stops):
    class Watcher(whet.Callback):
        def stepped(self, report):
            return "stop" if stops else None

    def run_ranks(pool, main, count, *, hear, **_):
        hear(("stepped", (SimpleNamespace(step=1),)))
        return "runs/a"

    monkeypatch.setattr("whet.training.distributed.rank_workers.run_ranks", run_ranks)
    pool = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr("whet.training.distributed.ray_cluster.open_cluster", lambda *_, **__: pool)
    with caplog.at_level(logging.WARNING):
        folder = run_on_ray(resolved("grpo", {"scale": {"workers": 2}}), print, {}, [Watcher()], None)
    assert Path(folder) == Path("runs/a")
    assert ("Watcher asked to stop, which ranks that Ray started do not hear" in caplog.text) == stops
