"""A run of 100,000 steps and 50,000 samples, and 2,000 small runs, and how soon the board shows them.

    python benchmarks/board.py make FOLDER
    python benchmarks/board.py measure FOLDER --results
    python benchmarks/board.py make-list FOLDER
    python benchmarks/board.py measure-list FOLDER --results board_list

`make` writes the long run. `measure` starts `whet board` anew for each repeat and opens the run in Chromium: the time
until the first byte of the page, until the first chart is drawn, and until all of the log was read. `make-list` writes
the small runs, and `measure-list` times the list of them over a fresh server: all of the first page, all of the page
once every run was read, and the first live event after a step was appended to one run, both while the board is still
reading and afterwards. The page cache of the system is warm or, where it may be dropped (root), cold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from results_file import add_results_flag, write_results

from whet.pages.board.files import folder_id

STEPS, SAMPLES = 100_000, 50_000
RUNS, STEPS_OF_EACH = 2000, 200
METRICS = (
    *("entropy", "gradient_norm", "kl", "kl_completion", "kl_old", "learning_rate", "loss", "ratio"),
    *("reward_length_correlation", "reward_reference_correlation", "reweighted", "sampler_gap", "sampler_gap_max"),
    *("surrogate", "uniform_groups", "updates"),
)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
REPEATS = 3


def make(folder: Path, steps: int = STEPS, samples: int = SAMPLES, seed: int = 0) -> None:
    """A finished run folder of that size, with the fields that a policy run records."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'method = "grpo"\nsteps = {steps}\n[model]\nname = "whetstone"\n')
    with (folder / "metrics.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            log.write(json.dumps(step_line(step, steps, draw)) + "\n")
            if step % 1000 == 0:
                result = {"accuracy": rise(step, steps), "reward": rise(step, steps)}
                log.write(
                    json.dumps({"step": step, "eval": "eval", "result": result, "seconds": {"evaluate": 1.0}}) + "\n"
                )
    words = ("so", "the", "sum", "of", "both", "numbers", "is", "and", "we", "carry", "one", "to", "next", "place")
    with (folder / "samples.jsonl").open("w") as log:
        for number in range(samples):
            step = 1 + number * steps // samples
            text = " ".join(draw.choice(words) for _ in range(150))
            right = draw.random() < rise(step, steps)
            line = {"step": step, "prompt_id": f"prompt-{draw.randrange(1024)}", "question": "What is 17 + 25?"}
            line |= {"answer": "42", "completion": text, "stop": "end", "parts": {"exact_answer": float(right)}}
            line |= {"reward": float(right), "tokens": 150, "versions": [step - 1, step - 1], "reward_hash": "0" * 12}
            log.write(json.dumps(line) + "\n")
    summary = {"status": "finished", "title": "GRPO", "method": "grpo", "total_steps": steps, "started": 1.7e9}
    summary |= {"finished": 1.7e9 + 4.0 * steps, "objective": ["GRPO"], "facts": {"model": "made by a script"}}
    (folder / "run.json").write_text(json.dumps(summary))


def rise(step: int, steps: int) -> float:
    """The mean reward of a made-up run at a step."""
    return 0.1 + 0.8 * (1 - math.exp(-4 * step / steps))


def step_line(step: int, steps: int, draw: random.Random) -> dict[str, Any]:
    """A line of metrics.jsonl of a made-up run."""
    reward = min(1.0, max(0.0, draw.gauss(rise(step, steps), 0.05)))
    if step == steps // 3:
        reward = 0.0  # one bad step that no downsampling may lose
    ends = {"at_max": 0.4, "at_min": 0.6, "flat": 0.0, "max": 1.0, "mean": reward, "median": 0.0, "min": 0.0}
    ends |= {"q1": 0.0, "q3": 1.0}
    return {
        "step": step,
        "policy_version": step - 1,
        "counts": {
            "prompts": 16,
            "samples": 128,
            "tokens": draw.randrange(1800, 5000),
            "truncated": 0,
            "unscorable": 0,
        },
        "reward": {"exact_answer": reward, "total": reward},
        "metrics": {name: draw.random() for name in METRICS},
        "health": ["entropy collapse: the entropy fell: all the same; raise it."] if step > 0.9 * steps else [],
        "spread": {"exact_answer": ends, "total": ends},
        "seconds": {phase: draw.random() for phase in ("reference", "reward", "rollout", "train")},
    }


def measure(folder: Path, repeats: int = REPEATS) -> dict[str, Any]:
    """Times in seconds, the median over fresh servers; `cold` is whether the system's page cache was dropped."""
    from playwright.sync_api import sync_playwright

    chromium = next(path for name in CHROMIUM if (path := shutil.which(name)))
    timings: dict[str, list[float]] = {}
    is_cold = True
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(repeats):
            is_cold = drop_cache() and is_cold
            for name, seconds in opened(browser, folder).items():
                timings.setdefault(name, []).append(seconds)
        browser.close()
    times = {name: {"median": round(statistics.median(v), 3), "most": round(max(v), 3)} for name, v in timings.items()}
    sizes = {name: (folder / name).stat().st_size for name in ("metrics.jsonl", "samples.jsonl")}
    return {"seconds": times, "repeats": repeats, "cold": is_cold, "bytes": sizes}


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a fresh server over a folder."""
    command = [sys.executable, "-m", "whet", "board", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield next(line.split()[1] for line in server.stdout if line.startswith("read"))
        finally:
            server.terminate()
            server.wait(20)


def opened(browser: Any, folder: Path) -> dict[str, float]:
    """One fresh server: the list, the run's page, a zoomed chart, its samples, and when all of it was read."""
    with served(folder.parent) as address:
        time.sleep(1.0)
        run = next(run["id"] for run in asked(f"{address}api/runs")["runs"] if run["place"].endswith(folder.name))
        page = browser.new_page()
        times = {}
        for name, path in (("run", f"run/{run}"), ("samples", f"run/{run}/samples")):
            began = time.monotonic()
            response = page.goto(f"{address}{path}", wait_until="commit")
            times[f"{name}, first byte"] = time.monotonic() - began
            if response is None or not response.ok:
                continue
            page.wait_for_selector("canvas" if name == "run" else "main article, main li, main tr")
            times[f"{name}, first {'chart' if name == 'run' else 'sample'}"] = time.monotonic() - began
        while not asked(f"{address}api/run/{run}/series?names=reward")["complete"]:
            time.sleep(0.1)
        times["run, all of the log read, after it was opened"] = time.monotonic() - began
        middle = f"{address}api/run/{run}/series?names=reward&from={STEPS // 3 - 300}&to={STEPS // 3 + 300}"
        began = time.monotonic()
        zoomed = asked(middle)["series"]["reward"]
        times["a zoom to 600 steps"] = time.monotonic() - began
        assert min(zoomed["low"]) == 0.0, "the one bad step was lost"
        page.close()
        return times


def make_list(folder: Path, runs: int = RUNS, steps: int = STEPS_OF_EACH) -> None:
    """So many small finished runs below a folder, an hour apart: the config and the log of one, copied."""
    first = folder / "run-00001"
    make(first, steps, samples=steps // 10)
    full = [f"setting_{number} = {number}" for number in range(100)]  # as long as the config of a real run
    (first / "config.toml").write_text("\n".join([*(first / "config.toml").read_text().splitlines(), "[more]", *full]))
    summary = json.loads((first / "run.json").read_text())
    for number in range(1, runs + 1):
        copy = folder / f"run-{number:05d}"
        if copy != first:
            shutil.copytree(first, copy)
        started = summary["started"] + 3600 * number
        (copy / "run.json").write_text(json.dumps({**summary, "started": started, "finished": started + 600}))


def measure_list(folder: Path, repeats: int = REPEATS) -> dict[str, Any]:
    """Times in seconds, the median over fresh servers."""
    timings: dict[str, list[float]] = {}
    is_cold = True
    for _ in range(repeats):
        is_cold = drop_cache() and is_cold
        for name, seconds in listed(folder).items():
            timings.setdefault(name, []).append(seconds)
    times = {name: {"median": round(statistics.median(v), 3), "most": round(max(v), 3)} for name, v in timings.items()}
    return {"seconds": times, "repeats": repeats, "cold": is_cold, "runs": len(list(folder.glob("*/run.json")))}


def listed(folder: Path) -> dict[str, float]:
    """One fresh server: the first page, the first event, and both again once every run was read."""
    newest, oldest = f"run-{RUNS:05d}", "run-00001"
    times = {}
    with served(folder) as address:
        began = time.monotonic()
        page = urllib.request.urlopen(address, timeout=600).read()
        times["first page"] = time.monotonic() - began
        assert b"data-run=" in page, "a page without a run"
        times["first event, the board just started"] = event_after(address, folder / newest)
        assert len(asked(f"{address}api/runs")["runs"]) == RUNS
        times["every run read"] = time.monotonic() - began
        began = time.monotonic()
        urllib.request.urlopen(address, timeout=600).read()
        times["page, every run read"] = time.monotonic() - began
        times["first event, every run read"] = event_after(address, folder / oldest)
    return times


def event_after(address: str, run: Path) -> float:
    """Seconds from a step that is appended to a run to its event on the stream."""
    with urllib.request.urlopen(f"{address}events", timeout=600) as stream:
        next(line for line in stream if line == b"event: hello\n")
        began: list[float] = []

        def step() -> None:
            append_step(run / "metrics.jsonl")
            began.append(time.monotonic())

        threading.Timer(0.5, step).start()
        data = f'data: {{"id": "{folder_id("run", run.name)}"'.encode()
        next(line for line in stream if line.startswith(data) and began)
    return time.monotonic() - began[0]


def append_step(log: Path) -> None:
    """One more step of a made-up run."""
    with log.open("a") as lines:
        lines.write(json.dumps(step_line(STEPS_OF_EACH + 1, STEPS_OF_EACH + 1, random.Random(1))) + "\n")


def asked(address: str) -> Any:
    """The JSON at an address."""
    with urllib.request.urlopen(address, timeout=60) as response:
        return json.load(response)


def drop_cache() -> bool:
    """Whether the system's page cache could be dropped."""
    try:
        subprocess.run(["sync"], check=True)
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "measure", "make-list", "measure-list"))
    parser.add_argument("folder", type=Path)
    add_results_flag(parser, "board")
    arguments = parser.parse_args()
    if arguments.what == "make":
        make(arguments.folder)
    elif arguments.what == "make-list":
        make_list(arguments.folder)
    else:
        long_run = arguments.what == "measure"
        values = measure(arguments.folder) if long_run else measure_list(arguments.folder)
        values |= {"steps": STEPS, "samples": SAMPLES} if long_run else {"steps": STEPS_OF_EACH}
        print(json.dumps(values, indent=2))
        if arguments.results:
            write_results(arguments.results, values)


if __name__ == "__main__":
    main()
