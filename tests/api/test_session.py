"""How a run starts: what the driver of a GPU does meanwhile."""

import ctypes
import gc
import json
import threading
import weakref
from types import SimpleNamespace

import pytest

import whet
from whet.api.training_session import begin_cuda, gc_disabled
from whet.training.config import resolved


@pytest.fixture
def driver(monkeypatch):
    """Stands in for the driver's library; what was called of it."""
    called = []

    def load(name):
        calls = {each: lambda *_, each=each: called.append(each) or 0 for each in CALLS}
        return SimpleNamespace(**calls) if name == "libcuda.so.1" else library(name)

    library = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", load)
    return called


CALLS = ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain")


def begun(settings):
    begin_cuda(resolved("grpo", settings))
    for thread in threading.enumerate():
        if thread.name == "whet-cuda":
            thread.join()


def test_the_context_of_the_gpu_is_made_while_torch_is_imported(driver):
    begun({})
    assert driver == list(CALLS)


def test_no_context_where_others_will_want_the_gpu(driver):
    elsewhere = [{"engines": 1}, {"max_staleness": 1}]
    for settings in (
        {"model": {"device": "cpu"}},
        {"sampling": {"engine": "vllm"}},  # which forks
        *({"scale": scale} for scale in elsewhere),
    ):
        begun(settings)
        assert driver == [], settings


@pytest.fixture
def usual():
    """Python's own thresholds, for the time of a test."""
    here = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*here)


def test_what_was_left_in_a_cycle_while_a_run_was_made_is_given_back(usual):
    class Large:
        def __init__(self):
            self.itself = self

    with gc_disabled():
        left = weakref.ref(Large())
        assert left() is not None
    assert left() is None and gc.isenabled()
    with gc_disabled(looks=False):
        assert not gc.isenabled()
        left = weakref.ref(Large())
    assert left() is not None and gc.isenabled() and gc.get_freeze_count()


def test_a_run_says_what_its_start_took_and_does_not_look_through_what_was_there_before_it(tmp_path, usual):
    seen = []

    class Watch:
        def stepped(self, report, samples):
            seen.append((gc.get_freeze_count(), gc.get_threshold()))

    small = {"batch": {"prompts_per_step": 1, "group_size": 2}, "eval": {"prompts": 0}, "data": {"count": 4}}
    whet.train("grpo", steps=1, config=small, folder=str(tmp_path / "run"), callbacks=[Watch()], console=False)
    ((frozen, threshold),) = seen
    assert frozen > 50_000 and threshold > usual
    summary = json.loads((tmp_path / "run" / "run.json").read_text())
    assert summary["start_up"].keys() == {"imports", "data", "model", "trainer"}
    assert 0 < sum(summary["start_up"].values()) <= summary["seconds"]["start_up"]
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == usual
