"""The jobs of docs/jobs.md, run as they stand on the page: lines of code and processor seconds of each.

    python benchmarks/jobs.py --results              # results/jobs.json
    python benchmarks/jobs.py --only 3,7             # two of them, with what they print

A job is a section of the page. A Python block that begins with `# NAME.py` is a file, any other one a script, and a
shell block is for bash; `whet` is this tree's. Every line of its text blocks must be found in what the job prints.
A job that was measured before and is in --folder is not repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from results_file import ROOT, add_results_flag, write_results

PAGE = ROOT / "docs" / "jobs.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)
FILE = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True)
class Job:
    """A section of the page: its number and title, what is run, and what must be printed."""

    number: int
    title: str
    blocks: tuple[tuple[str, str], ...]
    expected: tuple[str, ...]

    @property
    def lines(self) -> int:
        """Lines of code that a user writes, without comments, docstring quotes included."""
        lines = [line.strip() for _, text in self.blocks for line in text.splitlines()]
        return sum(bool(line) and not line.startswith("#") for line in lines)


def jobs(page: str) -> tuple[Job, ...]:
    """The jobs of a page; what stands before the first one makes the files that they read, and is number 0."""
    sections = re.split(r"^## ", page, flags=re.M)
    found = []
    for number, section in enumerate(sections):
        title = section.partition("\n")[0].partition(". ")[2]
        blocks = tuple((language, text) for language, text in BLOCK.findall(section) if language in ("python", "sh"))
        said = [line for language, text in BLOCK.findall(section) if language == "text" for line in text.splitlines()]
        found.append(Job(number, title, blocks, tuple(line.strip() for line in said if line.strip())))
    return tuple(found)


class JobFailed(Exception):
    """A job that ended in an error, or did not print what the page says."""


def run_job(job: Job, folder: Path) -> str:
    """Run the blocks of a job in a folder and return what they print; raises where the page is not true."""
    environment = {**os.environ, "PATH": f"{commands()}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    printed = ""
    for language, text in job.blocks:
        if language == "python" and (name := FILE.match(text)):
            (folder / name[1]).write_text(text)
            continue
        script = folder / ("job.sh" if language == "sh" else "job.py")
        script.write_text(text)
        words = ["bash", "-e", script.name] if language == "sh" else [sys.executable, script.name]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
        printed += done.stdout + done.stderr
        if done.returncode:
            raise JobFailed(f"job {job.number}: {script.name} ended with {done.returncode}:\n{printed[-3000:]}")
    if missing := [line for line in job.expected if line not in printed]:
        raise JobFailed(f"job {job.number} did not print {missing[0]!r}:\n{printed[-3000:]}")
    return printed


def commands() -> Path:
    """A folder with `whet` and `python`, as an activated environment has them."""
    folder = Path(tempfile.gettempdir()) / f"whet-jobs-{os.getpid()}"
    if not folder.is_dir():
        folder.mkdir()
        for name, words in (("whet", "-m whet "), ("python", "")):
            (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
            (folder / name).chmod(0o755)
    return folder


def measure(files: Job, job: Job) -> tuple[dict[str, float], str]:
    """Processor and wall-clock seconds of a job, and what it printed."""
    with tempfile.TemporaryDirectory(prefix="whet-job-") as folder:
        run_job(files, Path(folder))
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        printed = run_job(job, Path(folder))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu, "wall_s": time.monotonic() - started}, printed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="numbers of jobs, with commas")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "jobs")
    add_results_flag(parser, "jobs")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    only = {int(number) for number in chosen.only.split(",") if number}
    files, *all_jobs = jobs(PAGE.read_text(encoding="utf-8"))
    measured, failed = {}, False
    for job in all_jobs:
        if only and job.number not in only:
            continue
        kept = chosen.folder / f"{hashlib.sha256(repr(job).encode()).hexdigest()[:16]}.json"
        try:
            if not kept.is_file():
                seconds, printed = measure(files, job)
                kept.write_text(json.dumps(seconds))
                print(printed if only else "", end="")
        except JobFailed as error:
            failed = True
            print(error, flush=True)
            continue
        row = json.loads(kept.read_text())
        measured[str(job.number)] = {"title": job.title, "lines": job.lines, **row}
        print(f"{job.number:3d}  {job.lines:3d} lines  {row['cpu_s']:6.1f} s  {job.title}", flush=True)
    if failed:
        raise SystemExit(1)
    if chosen.results:
        totals = {key: sum(row[key] for row in measured.values()) for key in ("lines", "cpu_s", "wall_s")}
        write_results(chosen.results, {"jobs": measured, **totals})


if __name__ == "__main__":
    main()
