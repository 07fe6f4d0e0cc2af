"""This process among those that a launcher started: torchrun, Ray, or somebody by hand.

All of them say it in the environment, as torchrun does: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and LOCAL_RANK and
LOCAL_WORLD_SIZE for the devices of one machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from whet.types import WhetError

if TYPE_CHECKING:
    import torch


POLL = 0.05


@dataclass(frozen=True)
class ProcessPlace:
    """The address of a process. A pid alone is not enough: machines and containers reuse numbers."""

    machine: str  # boot of the machine and the namespace of process numbers; empty where the system does not say
    number: int
    started: str  # in ticks since the boot

    @classmethod
    def here(cls) -> ProcessPlace:
        """The place of this process."""
        return cls(_machine(), os.getpid(), _started(os.getpid()))

    @classmethod
    def from_words(cls, words: Sequence[str]) -> ProcessPlace:
        """The place that `words` wrote."""
        return cls(words[0], int(words[1]), words[2])

    def words(self) -> list[str]:
        """The place as strings, to be sent to other processes."""
        return [self.machine, str(self.number), self.started]

    def is_running(self) -> bool:
        """False for a process of another machine, too: nothing is known of it."""
        return self._is_here() and _started(self.number) == self.started

    def has_ended(self) -> bool:
        """False for a process of another machine, too."""
        return self._is_here() and not self.is_running()

    def _is_here(self) -> bool:
        return bool(self.machine) and self.machine == _machine()

    def end(self, patience: float) -> bool:
        """Kill it, unless it ends by itself in time; whether that was needed."""
        until = time.monotonic() + patience
        while self.is_running() and time.monotonic() < until:
            time.sleep(POLL)
        if not self.is_running():
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.number, signal.SIGKILL)
            return True
        return False


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(number: int) -> str:
    """Empty for a process that is gone or only waits to be collected by its parent."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


T = TypeVar("T")
AGAIN = "start it with `torchrun --standalone --nproc-per-node N -m whet train ...`"
HIGHEST_PORT = 65535


@dataclass(frozen=True)
class Launch:
    """Which of the processes this one is, and where they meet."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    meets_elsewhere: bool = False  # the launcher keeps the meeting point itself; else the first rank does
    attempt: int = 0  # of a launcher that starts all processes again

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0


def launched(environment: Mapping[str, str] | None = None) -> Launch:
    """The launch that the environment describes; one process where it says nothing."""
    variables = os.environ if environment is None else environment
    size = _number(variables, "WORLD_SIZE", 1)
    rank = _number(variables, "RANK", 0)
    if size == 1 and rank == 0:
        return Launch()
    if "RANK" not in variables:
        raise WhetError(
            f"WORLD_SIZE is {size} and RANK is not set: which of the {size} processes this is, nobody said; {AGAIN}, "
            "or unset WORLD_SIZE"
        )
    if "WORLD_SIZE" not in variables:
        raise WhetError(f"RANK is {rank} and WORLD_SIZE is not set; {AGAIN}, or unset RANK")
    if rank >= size:
        raise WhetError(f"RANK is {rank} and WORLD_SIZE {size}: ranks go from 0 to {size - 1}; {AGAIN}")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not variables.get(name):
            raise WhetError(f"WORLD_SIZE is {size} and {name} is not set: where the ranks meet; {AGAIN}")
    port = _number(variables, "MASTER_PORT", 0)
    if not 0 < port <= HIGHEST_PORT:
        raise WhetError(f"MASTER_PORT is {port}; give a free port from 1 to {HIGHEST_PORT}")
    local_rank = _number(variables, "LOCAL_RANK", 0)
    local_size = _number(variables, "LOCAL_WORLD_SIZE", local_rank + 1)
    if local_rank >= local_size or local_size > size:
        raise WhetError(
            f"LOCAL_RANK {local_rank}, LOCAL_WORLD_SIZE {local_size}, WORLD_SIZE {size} do not fit; {AGAIN}"
        )
    return Launch(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        address=variables["MASTER_ADDR"],
        port=port,
        meets_elsewhere=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=_number(variables, "TORCHELASTIC_RESTART_COUNT", 0),
    )


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, "")
    if text and not text.isdecimal():
        raise WhetError(f"{name} is {text!r} in the environment, not a number; {AGAIN}, or unset it")
    return int(text) if text else default


def rank_environment(
    rank: int, size: int, address: str, port: int, local_rank: int = 0, local_size: int = 1
) -> dict[str, str]:
    """What the environment of a rank has to say, for whoever starts the processes himself."""
    values = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size}
    return {**{name: str(value) for name, value in values.items()}, "MASTER_ADDR": address, "MASTER_PORT": str(port)}


def run_rank(environment: Mapping[str, str], main: Callable[[], T]) -> T:
    """Run `main`, such as a call of `whet.train`, as the rank that `rank_environment` describes.

    In a process of its own, by its main thread: signals and the end of the process are the rank's. What `main` raises
    is raised; the other ranks have been told by then.
    """
    with _set(environment):
        launched()
        return main()


@contextlib.contextmanager
def _set(environment: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def rank_device(launch: Launch, requested: str, default: torch.device) -> torch.device:
    """The device of this rank: each local rank has its own GPU. `default` is what `requested` means for one process.

    The GPU becomes the current one, so that plain `cuda` is this rank's.
    """
    import torch

    if launch.size == 1 or default.type != "cuda":
        return default
    if default.index is not None and launch.local_size > 1:
        raise WhetError(
            f"model.device={requested} names one GPU for {launch.local_size} ranks of this machine; give cuda: each "
            "rank takes the GPU of its local rank"
        )
    count = torch.cuda.device_count()
    if launch.local_size > count:
        have = f"{count} GPU{'s are' if count != 1 else ' is'}"
        raise WhetError(
            f"{launch.local_size} ranks on this machine and {have} here; start {count} (--nproc-per-node {count}), or "
            "train on the CPU with model.device=cpu"
        )
    device = torch.device("cuda", launch.local_rank if default.index is None else default.index)
    torch.cuda.set_device(device)
    return device


def refuse_idle_ranks(size: int, num_rows: int, what: str, fix: str) -> None:
    """Raise where some ranks would have no row of a step."""
    if size > num_rows:
        raise WhetError(
            f"{size} ranks and {num_rows} {what}: {size - num_rows} of them would have nothing to do; start {num_rows} "
            f"or fewer, or raise {fix}"
        )
