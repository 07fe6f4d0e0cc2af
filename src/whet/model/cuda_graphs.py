"""Work on a CUDA device that is recorded once and launched as one from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def captured(work: Callable[[], object], stream: torch.cuda.Stream | None = None) -> torch.cuda.CUDAGraph:
    """The kernels of `work` as a graph, on the memory that they use now; their compiling must lie behind them."""
    graph = torch.cuda.CUDAGraph()
    # on a stream of its own, and minding this thread alone: another one may train, or write an evaluation
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph


class Recording:
    """Hundreds of small kernels on the same tensors, time and again, launched as one; on a CPU just called.

    The first time compiles them, the second records them. Where one of `tensors` lies elsewhere by then, it begins
    anew.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = list(tensors)
        self._places: tuple[int, ...] = ()
        self._graph: torch.cuda.CUDAGraph | None = None

    def play(self, work: Callable[[], object]) -> None:
        """Do the work, which is always the same."""
        if not self._tensors or not self._tensors[0].is_cuda:
            work()
            return
        places = tuple(tensor.data_ptr() for tensor in self._tensors)
        if places != self._places:
            self._graph, self._places = None, places
            work()
            return
        if self._graph is None:
            self._graph = captured(work)
        self._graph.replay()
