"""Many runs side by side, each a process of its own, and what is kept of them: settings, metrics and evaluations.

    from run_archive import PlannedRun, make_runs, read_archive, write_archive
    records = make_runs([PlannedRun("grpo-1e-6-s0", "grpo", {"steps": 40}, {"rate": 1e-6})], Path("work"), workers=4)
    write_archive(Path("benchmarks/runs/defaults.jsonl.xz"), records)

A run that is there already in the working folder is not repeated, so that an interrupted command goes on, and no run
begins after `seconds`. Neither weights nor texts are archived: a few kilobytes per run, one line of JSON each. Texts
of a run that shows samples stay in the working folder, as NAME.samples.jsonl.
"""

from __future__ import annotations

import json
import lzma
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from results_file import child_environment

ARCHIVES = Path(__file__).resolve().parent / "runs"
DIGITS = 5  # of a number in an archive
WHOLE = {"health": {"on_problem": {"evaluation_falls": "report"}}}  # to its end, whatever it comes to
# of a line of metrics.jsonl: computed anew, or many and read by nobody
UNUSED = ("health", "timeline", "machine", "spread")


@dataclass(frozen=True)
class PlannedRun:
    """A run to be made: `settings` as a config has them, `tags` as a table sorts them.

    `keeps_model`: its run folder stays, as FOLDER/NAME.run, for runs that start from it or are scored by it.
    """

    name: str
    method: str
    settings: Mapping[str, Any]
    tags: Mapping[str, Any] = field(default_factory=dict)
    keeps_model: bool = False


def make_runs(
    plans: Sequence[PlannedRun], folder: Path, workers: int = 1, seconds: float = 0.0, timeout: float = 0.0
) -> list[dict[str, Any]]:
    """The records of the planned runs that were made, in the order of the plans; FOLDER/NAME.json is one record.

    A run that fails is a record with its error. `timeout` ends a run after so many seconds, which is a failure too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [plan for plan in plans if not (folder / f"{plan.name}.json").exists()]
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    began, ended = time.monotonic(), 0
    print(f"{len(plans)} runs, {len(plans) - len(waiting)} are there already", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated; the same command goes on with what is left"))
    try:
        while waiting or running:
            if seconds and waiting and time.monotonic() - began > seconds:
                print(f"{seconds:g} s are over: {len(waiting)} runs are left for the next call", flush=True)
                waiting.clear()
            while waiting and len(running) < workers:
                plan = waiting.pop(0)
                running[plan.name] = (started(plan, folder), time.monotonic())
            time.sleep(0.1)
            for name, (process, since) in list(running.items()):
                if timeout and time.monotonic() - since > timeout:
                    process.kill()
                if process.poll() is None:
                    continue
                del running[name]
                ended += 1
                how = "made" if process.returncode == 0 else f"process ended with {process.returncode}, see {name}.log"
                print(f"{ended:4} {time.monotonic() - began:6.0f} s  {name}: {how}", flush=True)
    finally:
        for process, _ in running.values():
            process.kill()
    files = [folder / f"{plan.name}.json" for plan in plans]
    return [json.loads(file.read_text("utf-8")) for file in files if file.exists()]


def started(plan: PlannedRun, folder: Path) -> subprocess.Popen[bytes]:
    """The process of one run, which writes its own record."""
    (folder / f"{plan.name}.plan").write_text(json.dumps(asdict(plan)), "utf-8")
    environment = child_environment()
    command = [sys.executable, str(Path(__file__).resolve()), str(folder / f"{plan.name}.plan")]
    with (folder / f"{plan.name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def make_one(file: Path) -> None:
    """Train one run in this process; leave its record and no weights."""
    import whet
    from whet.settings.layers import merged
    from whet.types import RunFailed

    plan = json.loads(file.read_text("utf-8"))
    keeps_model = plan.pop("keeps_model")
    folder, error, began = file.with_suffix(".run"), "", time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        whet.train(plan["method"], config=merged(WHOLE, plan["settings"]), folder=str(folder), console=False)
    except (whet.WhetError, RunFailed, RuntimeError) as failure:  # a run that died is a record too
        error = str(failure)[:300]
    record = {
        **plan,
        "settings": without_folders(plan["settings"]),
        "error": without_folders(error),
        "wall_s": time.monotonic() - began,
        **recorded(folder),
    }
    beside = file.with_suffix(".part")
    beside.write_text(json.dumps(shortened(record), separators=(",", ":")), "utf-8")
    beside.replace(file.with_suffix(".json"))
    if (folder / "samples.jsonl").exists():
        shutil.copyfile(folder / "samples.jsonl", file.with_suffix(".samples.jsonl"))
    if not keeps_model:
        shutil.rmtree(folder, ignore_errors=True)


def recorded(folder: Path) -> dict[str, Any]:
    """What a run folder says without its texts and weights."""
    metrics, summary = folder / "metrics.jsonl", folder / "run.json"
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()] if metrics.exists() else []
    said = json.loads(summary.read_text("utf-8")) if summary.exists() else {}
    return {
        "status": said.get("status", "failed"),
        "before": said.get("before"),
        "after": said.get("after"),
        "seconds": said.get("seconds"),
        "facts": without_folders(said.get("facts", {})),
        "lines": [{key: value for key, value in line.items() if key not in UNUSED} for line in lines],
    }


def evaluations(record: Mapping[str, Any], metric: str = "accuracy") -> list[tuple[int, float]]:
    """(step, value) of every evaluation, the one before training first."""
    return [
        (int(line["step"]), float(line["result"][metric]))
        for line in record["lines"]
        if line.get("eval") == "eval" and metric in line["result"]
    ]


def without_folders(value: Any) -> Any:
    """Texts without the folders of the machine that made them."""
    if isinstance(value, Mapping):
        return {key: without_folders(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(member) for member in value]
    if isinstance(value, str) and "/" in value:
        return " ".join(word.rpartition("/")[2] if "/" in word else word for word in value.split(" "))
    return value


def shortened(value: Any) -> Any:
    """Numbers with `DIGITS` significant digits."""
    if isinstance(value, Mapping):
        return {key: shortened(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(member) for member in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def write_archive(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """One line per run, compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wb", preset=9 | lzma.PRESET_EXTREME) as file:
        for record in records:
            file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")


def read_archive(path: Path) -> Iterator[dict[str, Any]]:
    """The records that `write_archive` wrote."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        yield from (json.loads(line) for line in file)


if __name__ == "__main__":
    make_one(Path(sys.argv[1]))
