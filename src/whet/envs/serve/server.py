"""A model behind the endpoint for whoever has the token: no episodes, no rewards, every completion with its tokens."""

from __future__ import annotations

import threading

from whet.envs.serve.call_tree import CallRecord
from whet.envs.serve.endpoint import HttpEndpoint
from whet.envs.serve.request_queue import RequestQueue
from whet.envs.serve.web import LOOPBACK
from whet.types import Sampling, WhetError

REMEMBERED = 4096  # completions that a conversation can go on from, token for token
TICK = 0.5  # seconds between two looks at whether to stop


class ModelServer:
    """Serves one engine. `run` writes completions in the calling thread until `stop` is called."""

    def __init__(
        self,
        queue: RequestQueue,
        sampling: Sampling,
        token: str,
        *,
        model: str,
        host: str = LOOPBACK,
        port: int = 0,
        seed: int = 0,
    ) -> None:
        if not token:
            raise WhetError("the server's token is empty; give one, or leave it away to have one drawn")
        self._queue = queue
        self._endpoint = HttpEndpoint(self._queue, model, host=host, port=port)
        self._endpoint.allow(token, CallRecord(seed=("serve", seed), keeps=REMEMBERED))
        self._sampling = sampling
        self._stopping = threading.Event()

    @property
    def address(self) -> str:
        """The base URL that a client calls, with host and port."""
        return self._endpoint.address

    def start(self) -> None:
        """Open the endpoint; completions are written once `run` is called."""
        self._queue.open(self._sampling, fixed=False)
        self._endpoint.start()

    def run(self) -> None:
        """Write completions until `stop` is called, from another thread or by an interruption."""
        try:
            while not self._stopping.is_set():
                if self._queue.is_idle and not self._queue.waiting:
                    self._queue.wait(TICK)
                self._queue.work()
        finally:
            self._queue.close()
            self._endpoint.stop()

    def stop(self) -> None:
        """Make `run` return, after the work it is doing; may be called from any thread."""
        self._stopping.set()
        self._queue.wake()
