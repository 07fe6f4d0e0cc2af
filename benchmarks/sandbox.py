"""Tests per second: the sandbox's warm workers against a fresh interpreter for every test.

    python benchmarks/sandbox.py                 # all cores
    python benchmarks/sandbox.py --workers 1 --seconds 5 --results

Three sides do the same work, short assertions on a small function, and take turns, so that whatever else the
machine does meets all of them: `naive` starts `python -c` with the code and one assertion, with a timeout and no
protection at all; `programs` is one sandboxed job a test; `exams` is one sandboxed job for the assertions of a
prompt, code and tests apart. The best and the middle round are printed, with the load.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from results_file import add_results_flag, write_results

from whet.reward.sandbox import ProgramJob, Sandbox, UnitTestJob

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


def naive(count: int, workers: int) -> None:
    """Each test in an interpreter of its own; the share of passed tests must be 1."""

    def one(number: int) -> int:
        command = [sys.executable, "-I", "-c", f"{CODE}\n{TESTS[number % len(TESTS)]}"]
        return subprocess.run(command, timeout=20, capture_output=True).returncode

    with ThreadPoolExecutor(workers) as threads:
        assert sum(threads.map(one, range(count))) == 0


def programs(count: int, sandbox: Sandbox) -> None:
    """Run so many programs, each with one test."""
    jobs = [ProgramJob(f"{CODE}\n{TESTS[number % len(TESTS)]}") for number in range(count)]
    assert all(result.exit_code == 0 and not result.ended for result in sandbox.run(jobs))


def exams(count: int, sandbox: Sandbox) -> None:
    """Run as many tests, several for each program."""
    test_spec = {"form": "assertions", "tests": TESTS}
    results = sandbox.run([UnitTestJob((CODE,), test_spec)] * (count // len(TESTS)))
    assert all(result.passed == (True,) * len(TESTS) for result in results)


def rate(side: Callable[[int], None], count: int) -> float:
    """Tests per second."""
    started = time.perf_counter()
    side(count)
    return count / (time.perf_counter() - started)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--workers", type=int, default=0, help="0 is one a core")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=2.0, help="of one round of one side, roughly")
    add_results_flag(options, "sandbox")
    chosen = options.parse_args()
    with Sandbox(chosen.workers) as sandbox:
        started = time.perf_counter()
        sandbox.start()
        print(f"{sandbox.size} workers ready in {time.perf_counter() - started:.2f} s; load {os.getloadavg()[0]:.1f}")
        print("missing protections:", ", ".join(name for name, held in sandbox.holds.items() if not held) or "none")
        sides: dict[str, Callable[[int], None]] = {
            "naive": lambda count: naive(count, sandbox.size),
            "programs": lambda count: programs(count, sandbox),
            "exams": lambda count: exams(count, sandbox),
        }
        counts = {name: 5 * max(1, int(rate(side, 20) * chosen.seconds / 5)) for name, side in sides.items()}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(chosen.rounds):
            for name, side in sides.items():
                rates[name].append(rate(side, counts[name]))
        for name, measured_rates in rates.items():
            middle = statistics.median(measured_rates)
            times = middle / statistics.median(rates["naive"])
            print(
                f"{name:9} {max(measured_rates):8.0f} tests/s best, {middle:8.0f} middle, "
                f"{middle / sandbox.size:7.0f} per worker, {times:5.1f} x naive"
            )
        print(f"load {os.getloadavg()[0]:.1f}")
        if chosen.results:
            middles = {name: statistics.median(measured_rates) for name, measured_rates in rates.items()}
            times = {name: middle / middles["naive"] for name, middle in middles.items()}
            write_results(chosen.results, {"workers": sandbox.size, "tests_per_s": middles, "times_naive": times})


if __name__ == "__main__":
    main()
