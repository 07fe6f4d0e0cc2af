"""The ranks of a run before and beside their collectives: meeting, agreeing, and hearing of one another's end.

All of it goes through torch's own key-value store, the one that the ranks meet at. A collective cannot do it: it hangs
as soon as one rank is missing, and with NCCL nothing can interrupt it.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from os import _exit  # kept from here on: while a reward is called, `os._exit` is refused to everybody
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from whet.training.distributed.heartbeat import Heartbeat, Post, interval_of
from whet.training.distributed.launch import Launch
from whet.training.distributed.process import ProcessPlace
from whet.training.distributed.ranks import Ranks
from whet.types import WhetError

PATIENCE = 600.0  # seconds that a rank waits for the others before the config says how long
HEARD = 3.0  # seconds that a rank which fails waits until the first one knows why
POLL = 0.02
MOST_SHOWN = 3  # differences in a message
_meetings: dict[tuple[str, int, int], Any] = {}  # the store of each meeting point, for all runs of this process
_runs = 0


def meet(launch: Launch, patience: float = PATIENCE) -> RankGroup:
    """The other ranks, where they meet; an error where that place cannot be had."""
    global _runs
    store = _meeting_point(launch, patience)
    _runs += 1  # of this process: every rank counts the same
    post = Post(store, f"whet/{launch.attempt}/{_runs}/", launch.rank, launch.size)
    return RankGroup(launch, post, patience)


def _meeting_point(launch: Launch, patience: float) -> Any:
    meeting = (launch.address, launch.port, launch.attempt)
    if meeting in _meetings:
        return _meetings[meeting]
    hosts = launch.is_first and not launch.meets_elsewhere
    try:
        store = distributed.TCPStore(  # type: ignore[attr-defined]
            launch.address,
            launch.port,
            None if launch.meets_elsewhere else launch.size,
            hosts,
            timedelta(seconds=patience),
            wait_for_workers=False,
        )
    except (RuntimeError, ValueError) as error:
        if hosts:
            raise WhetError(
                f"port {launch.port} of {launch.address} is in use or not to be had, and the ranks were to meet there; "
                "give another MASTER_PORT (torchrun --standalone finds one)"
            ) from error
        raise WhetError(
            f"rank {launch.rank} found nobody at {launch.address}:{launch.port} in {patience:g} s; start rank 0 there, "
            "or correct MASTER_ADDR and MASTER_PORT"
        ) from error
    _meetings[meeting] = store
    return store


class RankGroup:
    """This rank and what it knows of the others. Ends with `leave`, however the run ended."""

    def __init__(self, launch: Launch, post: Post, timeout: float) -> None:
        self.launch, self._post, self._timeout = launch, post, timeout
        self._has_group = self._uses_nccl = False
        self.heart = Heartbeat(post.another(), timeout)
        self.heart.host = None if launch.meets_elsewhere else 0
        self.heart.start()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.launch.is_first

    def note(self, doing: str) -> None:
        """What this rank is doing, for the line that says where it was lost."""
        self.heart.doing = doing

    def exchange(self, name: str, mine: str) -> list[str]:
        """The texts of all ranks, in their order."""
        self._post.put(f"{name}/{self.launch.rank}", mine)
        return [self._wait_for(f"{name}/{rank}") for rank in range(self.launch.size)]

    def hand_out(self, name: str, text: str = "") -> str:
        """The first rank's text, everywhere."""
        if self.is_first:
            self._post.put(name, text)
            return text
        return self._wait_for(name)

    def agree(self, name: str, facts: Mapping[str, str], fix: str) -> None:
        """Raise, on every rank and with the same line, unless all ranks give the same facts.

        A rank may leave a fact out: then it does not know.
        """
        self._post.put(f"{name}/{self.launch.rank}", json.dumps(dict(facts)))
        verdict = ""
        if self.is_first:
            facts_by_rank = [json.loads(self._wait_for(f"{name}/{rank}")) for rank in range(self.launch.size)]
            verdict = disagreement(facts_by_rank, fix)
        verdict = self.hand_out(f"{name}/verdict", verdict)
        if verdict:
            raise WhetError(verdict)

    def agree_on_packages(self) -> None:
        """Raise, everywhere, unless all ranks run the same packages."""
        self.agree("versions", package_versions(), "install the same packages everywhere")

    def _wait_for(self, name: str) -> str:
        """A text that another rank is about to give, unless it ends before."""
        until = time.monotonic() + self._timeout
        said = time.monotonic() + 5.0
        while not self._post.has(name):
            cause = self.heart.cause
            if cause is not None:
                raise OtherRankEnded(cause)
            if time.monotonic() > until:
                missing = [rank for rank in range(self.launch.size) if not self._post.has(f"beat/{rank}")]
                who = f"rank{'s' if len(missing) != 1 else ''} {', '.join(map(str, missing)) or 'of the run'}"
                raise WhetError(
                    f"{who} of {self.launch.size} did not come to {self.launch.address}:{self.launch.port} in "
                    f"{self._timeout:g} s; start every rank, with the same MASTER_ADDR and MASTER_PORT"
                )
            time.sleep(POLL if time.monotonic() < said else 10 * POLL)
        return self._post.take(name)

    def connect(self, device: torch.device, timeout: float) -> Ranks:
        """The process group. From here on `timeout` is how long a rank may be silent or keep the others waiting."""
        self._timeout = timeout
        self.heart.timeout = timeout
        places = self.exchange("processes", json.dumps(ProcessPlace.here().words()))
        self.heart.places = {rank: ProcessPlace.from_words(json.loads(words)) for rank, words in enumerate(places)}
        cuda = device.type == "cuda"
        # the heartbeat comes before NCCL's watchdog, which ends a process without a word about the run
        longest = timedelta(seconds=2 * timeout + 60 if cuda else timeout + 2)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=self._post.prefixed("group"),
            rank=self.launch.rank,
            world_size=self.launch.size,
            timeout=longest,
        )
        self._has_group, self._uses_nccl = True, cuda
        return Ranks(self.launch.rank, self.launch.size)

    def fail(self, line: str) -> None:
        """Tell the others why this rank ends; the first failure is the one that counts."""
        self.heart.has_reported = True
        try:
            self._post.fail(self.launch.rank, line)
            until = time.monotonic() + HEARD
            while not self.is_first and not self._post.has("heard/0") and time.monotonic() < until:
                time.sleep(POLL)
        except RuntimeError:  # nobody is left to hear it
            pass

    def cause(self) -> str | None:
        """What ended another rank, as soon as that can be known: its own words, or that it is gone without any."""
        return self.heart.find_cause()

    def finish(self) -> None:
        """All ranks have done their work: wait until the first has written the run's last files."""
        self.hand_out("finished")

    def leave(self, in_order: bool = True) -> None:
        """End heartbeat and process group. The first rank goes last where it keeps the meeting point.

        `in_order`: all ranks are there. Without that NCCL may wait for them for ever: it is left to the process's end.
        """
        if not in_order:
            self.heart.bury()
        self.heart.stop()
        if self._has_group and distributed.is_initialized():
            if in_order or not self._uses_nccl:
                distributed.destroy_process_group()
            else:
                atexit.register(_end_at_once)
        try:
            self._post.put(f"left/{self.launch.rank}", "")
            if self.is_first and not self.launch.meets_elsewhere:
                until = time.monotonic() + HEARD
                while not all(map(self._has_left, range(self.launch.size))) and time.monotonic() < until:
                    time.sleep(POLL)
        except RuntimeError:
            pass

    def _has_left(self, rank: int) -> bool:
        process = self.heart.places.get(rank)
        return self._post.has(f"left/{rank}") or (process is not None and process.has_ended())


def _end_at_once() -> None:
    """Without clearing away what other ranks would have to help with."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _exit(1)


class OtherRankEnded(Exception):
    """Another rank cannot go on, so this one cannot either. The message names it, with its own error."""


def disagreement(found: Sequence[Mapping[str, str]], fix: str) -> str:
    """One line on what differs and on which ranks; empty where nothing does."""
    phrases = []
    for name in dict.fromkeys(name for facts in found for name in facts):
        holders: dict[str, list[int]] = {}
        for rank, facts in enumerate(found):
            if name in facts:
                holders.setdefault(facts[name], []).append(rank)
        if len(holders) > 1:
            holdings = [f"{_shown(value)} on rank{_plural(ranks)} {_listed(ranks)}" for value, ranks in holders.items()]
            phrases.append(f"{name} is {', '.join(holdings)}")
    if not phrases:
        return ""
    more = f" and {len(phrases) - MOST_SHOWN} more" if len(phrases) > MOST_SHOWN else ""
    return f"the ranks do not agree: {'; '.join(phrases[:MOST_SHOWN])}{more}; {fix}"


def _plural(ranks: Sequence[int]) -> str:
    return "s" if len(ranks) > 1 else ""


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:4]))
    return f"{shown} and {len(ranks) - 4} more" if len(ranks) > 4 else shown


def _shown(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}..."


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide what a rank computes, and a digest of the files of whet."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers"):
        versions[name] = importlib.metadata.version(name)
    try:
        whet = importlib.metadata.version("whet")
    except importlib.metadata.PackageNotFoundError:
        whet = "not installed"
    return {**versions, "whet": f"{whet} #{_source_digest(Path(__file__).parents[2])}"}


def _source_digest(package: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(file.relative_to(package).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


__all__ = ["OtherRankEnded", "RankGroup", "disagreement", "interval_of", "meet", "package_versions"]
