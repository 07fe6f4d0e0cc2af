"""Two sides, one machine, one run: what the comparisons share. Standard library only, so that the sides start lean."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "benchmarks"
sys.path.insert(0, str(ROOT / "src"))

from results_file import write_results  # noqa: E402

from whet.tools.bench.meter import QUIET, reading_record, wait_for_quiet  # noqa: E402

TRL = "trl==1.16.0"
PHASES = ("step", "rollout", "forward", "backward", "optimizer")
# of a side, what a results file keeps: `cpu` is processor seconds of a step, `others` the share of the machine that
# others used, `shares` the useful operations per second over the matrix rate
RATES = ("useful_tokens_per_second",)  # more is better
COUNTED = (*PHASES, "cpu", *RATES, "contended", "quiet_steps", "others", "shares")


def add_common_flags(parser: Any) -> None:
    """Options that every duel takes."""
    parser.add_argument("--models", default="byte,words49k,smollm2", help="of bench_models.py, or folders")
    parser.add_argument("--steps", type=int, default=3, help="quiet steps per side")
    parser.add_argument("--most", type=int, default=8, help="steps per side, contended and warm-up ones included")
    add_run_flags(parser)


def add_run_flags(parser: Any) -> None:
    """How the sides are run, whatever they do."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "whet-bench", help="models and the peer")
    parser.add_argument("--peers", type=Path, help="the peer's virtual environment; made where it is not there")
    parser.add_argument("--rounds", type=int, default=1, help="times both sides are run, in turn")
    parser.add_argument("--threads", type=int, default=cores)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"), help="of the matrix products")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for an idle machine")
    parser.add_argument("--only", choices=("whet", "trl"), help="one side alone, without a ratio")


# torch and transformers of the same versions as whet's, so that only the frameworks differ
TRL_PACKAGES = ("-c", str(ROOT / "constraints.txt"), TRL, "torch")


def peer_python(folder: Path, packages: Sequence[str] = TRL_PACKAGES) -> str:
    """The Python of the peer's own environment, made through pip where it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making an environment in {folder}: {' '.join(packages)}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)


def told(command: Sequence[str]) -> Any:
    """The JSON on the last line of what a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment_of(0, [], sys.executable))
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _inherited() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def environment_of(threads: int, folders: Sequence[str], python: str) -> dict[str, str]:
    """The environment of a side: these folders of packages come first."""
    # another Python has packages of its own, which those of this one must not hide
    folders = [*folders, *(_inherited() if python == sys.executable else [])]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    paths = {"PYTHONPATH": os.pathsep.join([*folders, str(ROOT / "src")])}
    return {**os.environ, **quiet, **paths, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}


def run_side(
    name: str, python: str, job: dict[str, Any], patience: float, packages: Path | None = None
) -> dict[str, Any]:
    """One side in a fresh process, once the machine is idle or patience has run out. Its `packages` come first."""
    before = wait_for_quiet(patience)
    folders = [str(packages)] if packages else []
    with tempfile.TemporaryDirectory(prefix="whet-duel-") as work:
        asked, answer = Path(work) / "job.json", Path(work) / "answer.json"
        asked.write_text(json.dumps(job))
        command = [python, str(HERE / "sides" / f"{name}_side.py"), str(asked), str(answer)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment_of(job["threads"], folders, python)
        )
        if done.returncode:
            raise SystemExit(f"the side of {name} failed:\n{done.stderr[-3000:]}")
        return {**json.loads(answer.read_text()), "load_before": reading_record(before)}


def duel(chosen: Any, job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Both sides, in turn, `rounds` times; their steps pooled and summed up."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception ends the running side as well
    pythons = {"whet": sys.executable}
    if chosen.only != "whet":
        pythons["trl"] = peer_python(chosen.peers or chosen.work / "trl")
    if chosen.only == "trl":
        pythons.pop("whet")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    for _ in range(chosen.rounds):
        for name, python in pythons.items():
            runs[name].append(run_side(name, python, job, chosen.patience))
            print(f"  {name}: {[round(step['seconds'], 2) for step in runs[name][-1]['steps']]} s", file=sys.stderr)
    return {name: summed_up(side_runs) for name, side_runs in runs.items()}


def summed_up(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the quiet steps of all rounds; over all steps, marked as contended, where none was quiet."""
    steps = [step for run in runs for step in run["steps"]]
    quiet = [step for step in steps if step["others"] is None or step["others"] < QUIET]
    counted = quiet or steps
    phases = sorted({phase for step in counted for phase in step["phases"]})
    summary: dict[str, Any] = {phase: median(step["phases"].get(phase, 0.0) for step in counted) for phase in phases}
    if "train" in summary:  # whet tells its phases itself; what is neither backward nor optimizer is forward
        passes = summary["train"] + summary.get("reference", 0.0)
        summary["forward"] = max(0.0, passes - summary.get("backward", 0.0) - summary.get("optimizer", 0.0))
    step_seconds, cpu_seconds = (median(step[key] for step in counted) for key in ("seconds", "own"))
    ceiling = runs[-1].get("ceiling")
    if ceiling:
        rate, threads = ceiling["matrix_rate"], runs[-1]["threads"]
        training, rollout = ceiling["training_operations"], ceiling["rollout_operations"]
        summary["shares"] = {
            "matrix_GFLOP_per_s": rate / 1e9,
            "training": training / summary["train"] / rate,
            "rollout": rollout / summary["rollout"] / rate,
            "step": (training + rollout) / step_seconds / rate,
            "cpu": (training + rollout) / cpu_seconds / (rate / threads),
        }
    return {
        "step": step_seconds,
        **{phase: summary.get(phase, 0.0) for phase in PHASES[1:]},
        "cpu": cpu_seconds,
        **({"shares": summary["shares"]} if ceiling else {}),
        "trained_per_second": median(step["counts"]["trained"] / step["seconds"] for step in counted),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
        "contended": not quiet,
        "quiet_steps": len(quiet),
        "others": [step["others"] for step in steps],
        "runs": runs,
    }


def ratio_table(title: str, sides: dict[str, dict[str, Any]]) -> str:
    """The sides below one another and how many times better whet is than each of the others."""
    names = ratio_names(sides)
    width = max(8, *(len(label) + 2 for label in (*sides, *names.values())))
    lines = [f"\n{title}", " " * width + "".join(f"{phase + ' s':>13}" for phase in PHASES) + f"{'peak GB':>10}"]
    for name, side in sides.items():
        row = "".join(f"{side[phase]:13.3f}" for phase in PHASES) + f"{side['peak_bytes'] / 1e9:10.2f}"
        lines.append(f"{name:{width}}{row}{'  contended' if side['contended'] else ''}")
    for name, label in names.items():
        ours, theirs = sides["whet"], sides[name]
        row = "".join(f"{theirs[phase] / ours[phase]:12.2f}x" if ours[phase] else f"{'-':>13}" for phase in PHASES)
        lines.append(f"{label:{width}}{row}{theirs['peak_bytes'] / ours['peak_bytes']:9.2f}x")
    return "\n".join(lines)


def ratio_names(sides: Iterable[str]) -> dict[str, str]:
    """The sides that whet is compared with, and what each comparison is called."""
    order = list(sides)
    others = [name for name in order if name != "whet"] if "whet" in order else []
    return {name: "ratio" if len(others) == 1 else f"ratio, {name}" for name in others}


def save_results(name: str | None, results: dict[str, Any], titles: dict[str, str]) -> None:
    """Everything measured so far; called after each case, so that an interrupted run keeps what it has."""
    if name is not None:
        write_results(name, {case: case_record(titles[case], sides) for case, sides in results.items()})


def case_record(title: str, sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What a page may quote of one case: seconds and memory of each side, and `times`: whet's advantage over it."""
    records: dict[str, dict[str, Any]] = {}
    for name, side in sides.items():
        records[name] = {key: side[key] for key in COUNTED if key in side}
        records[name]["peak_GB"] = side["peak_bytes"] / 1e9
    ours = records.get("whet", {})
    for theirs in records.values():
        less = [key for key in (*PHASES, "cpu", "peak_GB") if ours.get(key) and key in theirs]
        theirs["times"] = {key: theirs[key] / ours[key] for key in less}
        for key in set(RATES) & set(ours) & set(theirs):
            theirs["times"][key] = ours[key] / theirs[key]
    return {"title": title, "sides": records}


def name_contended(results: dict[str, Any]) -> None:
    """Say which measurements others disturbed."""
    contended = [name for name, sides in results.items() if any(side["contended"] for side in sides.values())]
    if contended:
        print(f"\ncontended, to be repeated on an idle machine: {', '.join(contended)}")
