"""The ranks of a run before and beside their collectives: meeting, agreeing, and hearing of one another's end.

All of it goes through torch's own key-value store, the one that the ranks meet at. A collective cannot do it: it hangs
as soon as one rank is missing, and with NCCL nothing can interrupt it.

A thread of each rank writes a beat into the store and reads those of the others: the first rank everybody's, the others
the first's. A rank that says nothing for `timeout` seconds is lost; so is one that keeps another waiting inside a
collective for as long. Whoever finds it writes the cause into the store; everybody reads it there. A second thread
talks to nobody, since a store whose process is stopped never answers: it sees how long the first has been waiting. Once
there is a cause it gives the main thread a moment to come out of its collective by itself. If that cannot, because NCCL
or a reward cannot be interrupted, it says the run's last words and ends the process.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from os import _exit  # kept from here on: while a reward is called, `os._exit` is refused to everybody
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import distributed

from whet.model.pretrained import first_line
from whet.threads import Thread
from whet.training.distributed.launch import Launch, ProcessPlace
from whet.training.distributed.ranks import Ranks
from whet.types import WhetError

logger = logging.getLogger(__name__)

GRACE = 4.0  # seconds that the main thread has to come out of what it is in; gloo's own limit is 2 after ours
LAST_WORDS = 5.0  # seconds for status, report and line of a run whose process is ended
CLEARING = 60.0  # seconds that a main thread which came out has until the process group is left
BURIAL = 2.0  # seconds after its grace in which a lost rank must have ended, before others end it
LEFT = "left"
TORCH = str(Path(torch.__file__).parent)
PACKAGE = Path(__file__).parents[2]
# a main thread that stands still there waits for other ranks or for a device, not for a reward or an environment
WAITING = (TORCH, *(str(PACKAGE / room) for room in ("training", "model")))
NOTICE_AFTER = 5.0  # seconds that a rank looks for the first one before it says so
HEARD = 3.0  # seconds that a rank which fails waits until the first one knows why
POLL = 0.02
MOST_SHOWN = 3  # differences in a message
_meetings: dict[tuple[str, int, int], Any] = {}  # the store of each meeting point, for all runs of this process
_runs = 0


def interval_of(timeout: float) -> float:
    """Seconds between two beats."""
    return min(1.0, timeout / 10)


class Post:
    """Texts in the store under the names of one run. One per thread: a call that waits keeps its connection busy."""

    def __init__(self, store: Any, prefix: str, rank: int, size: int) -> None:
        self._store, self._prefix = store, prefix
        self.rank, self.size = rank, size

    def another(self) -> Post:
        """The same with a connection of its own."""
        return Post(self._store.clone(), self._prefix, self.rank, self.size)

    def prefixed(self, name: str) -> Any:
        """A store for others, apart from these texts."""
        return distributed.PrefixStore(f"{self._prefix}{name}", self._store)  # type: ignore[attr-defined]

    def put(self, name: str, text: str) -> None:
        """Publish a text under a name."""
        self._store.set(self._prefix + name, text)

    def has(self, name: str) -> bool:
        """Whether a text was published under this name."""
        return bool(self._store.check([self._prefix + name]))

    def take(self, name: str) -> str:
        """A text that is there."""
        return bytes(self._store.get(self._prefix + name)).decode()

    def take_all(self, names: list[str]) -> list[str]:
        """The texts published under these names, in order."""
        return [bytes(value).decode() for value in self._store.multi_get([self._prefix + name for name in names])]

    def fail(self, rank: int, line: str) -> None:
        """The first failure stays."""
        self._store.compare_set(self._prefix + "failed", "", json.dumps({"rank": rank, "line": line}))

    def failure(self) -> tuple[int, str] | None:
        """The rank that failed first and its error line; None while none has failed."""
        if not self.has("failed"):
            return None
        report = json.loads(self.take("failed"))
        return int(report["rank"]), str(report["line"])


class Heartbeat(Thread):
    """Beats, watches, and ends the process where the main thread cannot."""

    def __init__(self, post: Post, timeout: float) -> None:
        super().__init__(name="whet heartbeat", daemon=True)
        self.timeout = timeout
        self.cause: str | None = None  # why the run cannot go on: another rank's end
        self.doing = "starting"  # in words, for the others
        self.has_reported = False  # this rank has said itself why it ends
        self.last_words: Callable[[str], object] | None = None  # called with the cause before the process is ended
        self.places: dict[int, ProcessPlace] = {}  # the ranks' processes, as far as they are known
        self.host: int | None = None  # the rank that keeps the store; None: the launcher
        self.host_is_lost = False  # nobody answers where the ranks met
        self._post, self._stopped = post, threading.Event()
        self._spared = threading.Event()  # the main thread has come out by itself
        self._main, self._pulse = threading.current_thread(), 0  # the thread that trains
        self._rounds = 0  # beats for which the store has answered everything
        self._lost: tuple[int, float] | None = None  # a rank that this one found lost, and when
        self._stood: tuple[tuple[int, int], ...] = ()  # where the main thread was seen, and since when
        self._stood_since = time.monotonic()
        self._seen: dict[int, tuple[str, float]] = {}  # the last beat of each rank, and when it came
        self._beat()
        self._talker = Thread(target=self._talk, name="whet beats", daemon=True)

    def stop(self) -> None:
        """End in good order: no rank is to wait for this one's beats any more."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._spared.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout=2 * interval_of(self.timeout) + 1)
            self._talker.join(timeout=2 * interval_of(self.timeout) + 1)
        if not self._talker.is_alive():  # else it still waits for an answer, and so would this
            with contextlib.suppress(RuntimeError):
                self._post.put(f"beat/{self._post.rank}", LEFT)

    def bury(self) -> None:
        """End the process of a rank that this one found lost, if it is on this machine and cannot end itself."""
        if self._lost is None or self._lost[0] not in self.places or self._lost[0] == self._post.rank:
            return
        rank, noticed = self._lost
        self.places[rank].end(noticed + GRACE + BURIAL - time.monotonic())

    def find_cause(self) -> str | None:
        """The cause, after a wait in which a rank that is gone cannot have been only slow. For the main thread."""
        self._spared.set()
        interval = interval_of(self.timeout)
        # the last beat of a rank that is gone may be read one interval after its end
        until = time.monotonic() + 6 * interval + 0.2
        while time.monotonic() < until and self.cause is None:
            for rank, (beat, since) in list(self._seen.items()):
                if beat != LEFT and time.monotonic() - since > 4 * interval:
                    return gone(rank, beat)
            time.sleep(interval / 4)
        return self.cause

    def run(self) -> None:
        """Watch the other ranks until one fails or the run ends."""
        self._talker.start()
        interval = interval_of(self.timeout)
        silence, rounds, last = 0.0, self._rounds, time.monotonic()
        while self.cause is None and not self._stopped.wait(interval):
            now = time.monotonic()
            # where this process was stopped itself, that is nobody's silence
            silence = silence + min(now - last, 2 * interval) if self._rounds == rounds else 0.0
            rounds, last, interval = self._rounds, now, interval_of(self.timeout)
            if silence > self.timeout:
                self.host_is_lost = True
                self._lost = (self.host, now) if self.host is not None else None
                self.cause = f"nobody answers where the ranks met, for {self.timeout:g} s: {_keeper(self.host)} hangs"
        if self.cause is None:
            return
        came_out = self._spared.wait(GRACE)
        if self._stopped.wait(CLEARING if came_out else 0.0):
            return
        self._end(silently=came_out)

    def _talk(self) -> None:
        try:
            while not self._stopped.wait(interval_of(self.timeout)):
                self._beat()
                self._listen()
                self._rounds += 1
                if self.cause is not None:
                    break
        except RuntimeError as error:  # of the store
            if not self._stopped.is_set() and self.cause is None:
                self.host_is_lost = True
                self.cause = f"nobody answers where the ranks met ({first_line(error)}): {_keeper(self.host)} is gone"

    def _beat(self) -> None:
        self._pulse += 1
        stood, source_line, waits = self._main_thread()
        if stood != self._stood:
            self._stood, self._stood_since = stood, time.monotonic()
        waited = time.monotonic() - self._stood_since if waits else 0.0
        beat = {"pulse": self._pulse, "doing": self.doing, "place": source_line, "waited": round(waited, 2)}
        self._post.put(f"beat/{self._post.rank}", json.dumps(beat))

    def _main_thread(self) -> tuple[tuple[tuple[int, int], ...], str, bool]:
        """The main thread's stack: every frame, its place in words, and whether it waits for other ranks there."""
        frame: FrameType | None = sys._current_frames().get(self._main.ident or 0)
        if frame is None:
            return (), "its end", False
        waits = frame.f_code.co_filename.startswith(WAITING)
        frames: list[tuple[int, int]] = []
        source_line = ""
        while frame is not None:
            frames.append((id(frame.f_code), frame.f_lasti))
            file = frame.f_code.co_filename
            if not source_line and "site-packages" not in file and os.path.dirname(os.__file__) not in file:
                source_line = f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return tuple(frames), source_line, waits

    def _listen(self) -> None:
        post = self._post
        failure = post.failure()
        if failure is None:
            lost = self._lost_rank()
            if lost is None:
                return
            self._lost = (lost[0], time.monotonic())
            post.fail(*lost)
            failure = post.failure() or lost
        rank, line = failure
        if rank == post.rank and self.has_reported:  # the main thread is on its way out
            return
        post.put(f"heard/{post.rank}", "")
        self.cause = f"rank {rank}: {line}"

    def _lost_rank(self) -> tuple[int, str] | None:
        """A rank that is silent or holds the others up, and that in words."""
        post = self._post
        watched = [rank for rank in range(post.size) if rank != post.rank] if post.rank == 0 else [0]
        if any(rank not in self._seen for rank in watched):
            watched = [rank for rank in watched if rank in self._seen or post.has(f"beat/{rank}")]
        now = time.monotonic()
        for rank, beat in zip(watched, post.take_all([f"beat/{rank}" for rank in watched]), strict=True):
            if self._seen.get(rank, ("", 0.0))[0] != beat:
                self._seen[rank] = (beat, now)
        for rank in watched:
            beat, since = self._seen[rank]
            if beat != LEFT and now - since > self.timeout:
                return rank, (
                    f"no sign of life for {self.timeout:g} s (stopped, or its machine is gone), last while "
                    f"{_doing(beat)}"
                )
        return self._idler(watched) if post.rank == 0 else None

    def _idler(self, watched: list[int]) -> tuple[int, str] | None:
        """The rank that others wait for inside a collective for longer than they may."""
        beats = {rank: json.loads(self._seen[rank][0]) for rank in watched if self._seen[rank][0] != LEFT}
        beats[self._post.rank] = json.loads(self._post.take(f"beat/{self._post.rank}"))
        waited = {rank: float(beat["waited"]) for rank, beat in beats.items()}
        if max(waited.values()) <= self.timeout:
            return None
        late = min(waited, key=lambda rank: (waited[rank], rank))
        beat = beats[late]
        return late, f"it kept the others waiting for {self.timeout:g} s, while {beat['doing']} at {beat['place']}"

    def _end(self, silently: bool) -> None:
        """The last resort: the main thread is inside a call that nothing interrupts."""
        if self.last_words is not None and not silently:
            # the main thread may hold a lock that they need
            words = Thread(target=self.last_words, args=(self.cause or "",), daemon=True)
            words.start()
            words.join(LAST_WORDS)
        with contextlib.suppress(Exception):
            self.bury()
        flushing = Thread(target=_flush, daemon=True)
        flushing.start()
        flushing.join(1.0)
        _exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _keeper(host: int | None) -> str:
    return "the launcher" if host is None else f"rank {host}"


def gone(rank: int, beat: str) -> str:
    """The error line of a rank whose process ended without a report."""
    how = "killed, crashed in C code, or out of memory"
    return f"rank {rank}: it is gone without a word ({how}), last while {_doing(beat)}"


def _doing(beat: str) -> str:
    try:
        report = json.loads(beat)
        return f"{report['doing']} at {report['place']}" if report["place"] else str(report["doing"])
    except (ValueError, KeyError, TypeError):
        return "starting"


def meet(launch: Launch, patience: float) -> RankGroup:
    """Meet the other ranks at their address; an error where it cannot be opened."""
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
    if not hosts:
        _await_keeper(launch, patience)
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
            f"what answers rank {launch.rank} at {launch.address}:{launch.port} is not rank 0 ({first_line(error)}); "
            "correct MASTER_ADDR and MASTER_PORT"
        ) from error
    _meetings[meeting] = store
    return store


def _await_keeper(launch: Launch, patience: float) -> None:
    """Wait until somebody answers at the meeting point. torch's own store waits more than twice as long as it is told,
    and then prints its stack."""
    start, waited, has_spoken = time.monotonic(), 0.0, False
    while True:
        try:
            socket.create_connection((launch.address, launch.port), timeout=max(POLL, patience - waited)).close()
            return
        except OSError as error:  # also a name that no server knows yet
            waited = time.monotonic() - start
            if waited > patience:
                raise WhetError(
                    f"rank {launch.rank} found nobody at {launch.address}:{launch.port} in {patience:g} s; start rank "
                    "0 there, or correct MASTER_ADDR and MASTER_PORT"
                ) from error
        if waited > NOTICE_AFTER and not has_spoken:
            has_spoken = True
            logger.warning("rank %s waits for rank 0 at %s:%s", launch.rank, launch.address, launch.port)
        time.sleep(10 * POLL if has_spoken else POLL)


class RankGroup:
    """This rank and what it knows of the others. Must be left with `leave`, however the run ended."""

    def __init__(self, launch: Launch, post: Post, timeout: float) -> None:
        self.launch, self._post, self._timeout = launch, post, timeout
        self._has_group = self._uses_nccl = False
        self.is_first_watched = False  # should the first rank be ended, its crash reporter says so
        self.heart = Heartbeat(post.another(), timeout)
        self.heart.host = None if launch.meets_elsewhere else 0
        self.heart.start()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.launch.is_first

    def note(self, doing: str) -> None:
        """Note what this rank is doing, for the message about a lost rank."""
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
        slow_from = time.monotonic() + 5.0
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
            time.sleep(POLL if time.monotonic() < slow_from else 10 * POLL)
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

    def share_watch(self) -> None:
        """Tell the other ranks that the first one has a crash reporter, so that they need not speak for it."""
        self.hand_out("watched", "yes")
        self.is_first_watched = True

    @property
    def is_first_unheard(self) -> bool:
        """Whether the first rank is lost without having said so."""
        return self.heart.host_is_lost and self.heart.host is not None and not self.is_first_watched

    def cause(self) -> str | None:
        """What ended another rank, as soon as that can be known: its own words, or that it is gone without any."""
        return self.heart.find_cause()

    def finish(self) -> None:
        """Wait, after all ranks have done their work, until the first has written the run's last files."""
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
    """End this process without the cleanup that other ranks would have to help with."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _exit(1)


class OtherRankEnded(Exception):
    """Another rank cannot go on, so this one cannot either. The message names it, with its own error."""


def disagreement(by_rank: Sequence[Mapping[str, str]], fix: str) -> str:
    """One line on what differs and on which ranks; empty where nothing does."""
    phrases = []
    for name in dict.fromkeys(name for facts in by_rank for name in facts):
        holders: dict[str, list[int]] = {}
        for rank, facts in enumerate(by_rank):
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
