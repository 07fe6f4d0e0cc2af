"""How a run starts: what the driver of a GPU does meanwhile."""

import ctypes
import threading
from types import SimpleNamespace

import pytest

from whet.api.session import begin_cuda
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
