"""Workers in this process, which can be told to break: what the tests of dispatch need of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from whet.training.distributed.workers import WorkerLost


class LocalCall:
    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self.hangs = False

    def result(self) -> Any:
        return self._run()


class LocalWorker:
    def __init__(self, pool: LocalPool, name: str, make: Callable[[], Any], gpus: float) -> None:
        self.name, self.place, self._pool, self._make, self._held = name, "here", pool, make, None
        self.gpus, self.is_ended = gpus, False

    def call(self, method: str, *arguments: Any) -> LocalCall:
        def run() -> Any:
            if self.is_ended:
                raise WorkerLost("it was ended")
            if method == "begin":
                self._held = self._make()
                return "begun"
            self._pool.calls.append((self.name, method, arguments))
            return getattr(self._held, method)(*arguments)

        call = LocalCall(run)
        call.hangs = self._pool.hangs(self.name, method)
        return call

    ask = call

    def end(self) -> None:
        self.is_ended = True


class LocalPool:
    def __init__(self, hangs: Callable[[str, str], bool] = lambda name, method: False) -> None:
        self.hangs = hangs
        self.calls: list[tuple[str, str, tuple[Any, ...]]] = []
        self.workers: list[LocalWorker] = []
        self.stored: list[Any] = []

    def start(self, name: str, make: Callable[[], Any], *, gpus: float = 0.0, memory: int = 0) -> LocalWorker:
        self.workers.append(LocalWorker(self, name, make, gpus))
        return self.workers[-1]

    def store(self, value: Any) -> Any:
        self.stored.append(value)
        return value

    def finished(self, calls: Sequence[LocalCall], seconds: float) -> list[LocalCall]:
        return [each for each in calls if not each.hangs]

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
