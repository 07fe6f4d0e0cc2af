"""Jobs per second and what each costs: the sandbox's warm workers against a fresh interpreter for every job.

    python benchmarks/sandbox.py                 # all cores
    python benchmarks/sandbox.py --workers 1 --seconds 5 --results

The sides do the same work, five short assertions on a small function, and take turns, so that whatever else the machine
does meets all of them: `bare` is a loop of `subprocess` over `python -c`, with a timeout and no protection at all, as
many at a time as there are workers; `program` is a sandboxed script; `calls` is a sandboxed job whose tests are calls
with an expected result, as those of MBPP; `tests` is one whose tests are a program, as those of HumanEval, in a process
of their own. Processor time is that of all processes together and hardly depends on what else runs; the dispatcher's is
the trainer's own share of it. Then the same jobs with stragglers among them, each under the limits of a row with a gold
solution: one second of processor time, three on the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from results_file import add_results_flag, write_results

from whet.reward.sandbox.job import Job, Limits, ProgramJob, UnitTestJob
from whet.reward.sandbox.pool import Sandbox

CODE = """
from typing import List

def running_maximum(numbers: List[int]) -> List[int]:
    result, highest = [], None
    for number in numbers:
        highest = number if highest is None else max(highest, number)
        result.append(highest)
    return result
"""
TESTS = [f"assert running_maximum([{n}, 2, {n + 3}, 1]) == [{n}, {n}, {n + 3}, {n + 3}]" for n in range(2, 7)]


LIMITS = Limits(cpu_seconds=1, wall_seconds=3.0)
SCRIPT = "\n".join([CODE, *TESTS])
CHECK = "def check(candidate):\n" + "".join(f"    {test}\n" for test in TESTS).replace("running_maximum", "candidate")
JOBS: dict[str, Job] = {
    "program": ProgramJob(SCRIPT, limits=LIMITS),
    "calls": UnitTestJob((CODE,), {"form": "assertions", "tests": TESTS}, limits=LIMITS),
    "tests": UnitTestJob(
        (CODE,), {"form": "program", "program": CHECK, "entry_point": "running_maximum"}, limits=LIMITS
    ),
}
STRAGGLERS = {
    "none": (),
    "one endless loop in 256": ("while True: pass",) * 2,
    "one sleeping program": ("import time; time.sleep(60)",),
}
BATCH = 512  # jobs, two steps of 32 prompts and 8 completions


def bare(count: int, workers: int) -> None:
    """Each job in an interpreter of its own; all must pass."""

    def one(_: int) -> int:
        return subprocess.run([sys.executable, "-I", "-c", SCRIPT], timeout=20, capture_output=True).returncode

    with ThreadPoolExecutor(workers) as threads:
        assert sum(threads.map(one, range(count))) == 0


def sandboxed(count: int, sandbox: Sandbox, job: Job) -> None:
    """The same job so many times; all must pass."""
    assert all(not result.ended and all(result.passed) for result in sandbox.run([job] * count))


def processor_seconds(sandbox: Sandbox) -> float:
    """Of the workers and all that they started, so far."""
    fields = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields[int(entry.parent.name)] = entry.read_text().rpartition(")")[2].split()
    outer = {worker.process.pid for worker in sandbox.workers}
    inner = {process for process, values in fields.items() if int(values[1]) in outer}
    ticks = sum(int(ticks) for process in outer | inner for ticks in fields[process][11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True)
class Round:
    """One measurement."""

    jobs: int
    seconds: float
    processor: float  # seconds, of all processes
    dispatcher: float  # of it, in this process

    def values(self) -> dict[str, float]:
        return {
            "jobs_per_s": self.jobs / self.seconds,
            "cpu_ms_per_job": 1000 * self.processor / self.jobs,
            "dispatcher_ms_per_job": 1000 * self.dispatcher / self.jobs,
            "cores": self.processor / self.seconds,
            "seconds": self.seconds,
        }


def measured(jobs: int, work: Callable[[], object], processor: Callable[[], float]) -> Round:
    started, own, spent = time.perf_counter(), own_seconds(), processor()
    work()
    seconds, dispatcher = time.perf_counter() - started, own_seconds() - own
    return Round(jobs, seconds, processor() - spent + dispatcher, dispatcher)


def reaped_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--workers", type=int, default=0, help="0 is one a core")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=2.0, help="of one round of one side, roughly")
    add_results_flag(options, "sandbox")
    chosen = options.parse_args()
    values: dict[str, Any] = {"sides": {}, "stragglers": {}}
    with Sandbox(chosen.workers) as sandbox:
        sandbox.start()
        print(f"{sandbox.size} workers; load {os.getloadavg()[0]:.1f}; missing protections:", end=" ")
        print(", ".join(name for name, held in sandbox.holds.items() if not held) or "none")
        spent = functools.partial(processor_seconds, sandbox)
        sides: dict[str, tuple[Callable[[int], None], Callable[[], float]]] = {
            "bare": (lambda count: bare(count, sandbox.size), reaped_seconds),
            **{name: (functools.partial(sandboxed, sandbox=sandbox, job=job), spent) for name, job in JOBS.items()},
        }
        rounds: dict[str, list[Round]] = {name: [] for name in sides}
        for _ in range(chosen.rounds):
            for name, (side, processor) in sides.items():
                rate = rounds[name][0].jobs / rounds[name][0].seconds if rounds[name] else 20.0
                count = max(20, int(rate * chosen.seconds))
                rounds[name].append(measured(count, functools.partial(side, count), processor))
        for name, measurements in rounds.items():
            middle = {key: statistics.median(one.values()[key] for one in measurements[1:]) for key in KEYS}
            values["sides"][name] = middle
            print(f"{name:8}", "  ".join(f"{key} {value:8.2f}" for key, value in middle.items()))
        for name, programs in STRAGGLERS.items():
            jobs = [JOBS["calls"]] * BATCH
            for number, source in enumerate(programs):
                jobs[number * BATCH // max(1, len(programs)) + 100] = ProgramJob(source, limits=LIMITS)
            one = measured(BATCH, functools.partial(sandbox.run, jobs), spent)
            values["stragglers"][name] = one.values()
            print(f"{name:24} {one.seconds:6.2f} s for {BATCH} jobs, {one.processor / one.seconds:.2f} cores used")
        values |= {"workers": sandbox.size, "times_bare": {}}
        for name in JOBS:
            values["times_bare"][name] = values["sides"][name]["jobs_per_s"] / values["sides"]["bare"]["jobs_per_s"]
        print(f"load {os.getloadavg()[0]:.1f}")
        if chosen.results:
            write_results(chosen.results, values, measured=("reward/sandbox",))


KEYS = ("jobs_per_s", "cpu_ms_per_job", "dispatcher_ms_per_job", "cores")


if __name__ == "__main__":
    main()
