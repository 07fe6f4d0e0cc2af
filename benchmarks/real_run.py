"""Where the time of a whole run goes: two runs of a real model from the command to its end, as shares of the wall time.

    python benchmarks/real_run.py --model qwen2.5-coder-0.5b.gguf --data DATA --results
    python benchmarks/real_run.py --model FILE --data DATA --runs code --tree ../whet-0.2    # another version
    python benchmarks/real_run.py --model FILE --data DATA --runs maths --peer plain --results   # TRL's steps beside it
    python benchmarks/real_run.py --picture                     # from the results file
    python benchmarks/real_run.py --tiny                        # the built-in model on a CPU in a minute: does it run?

`code` is GRPO on MBPP, `maths` is Dr. GRPO on GSM8K, 32 prompts x 8 completions, all other settings as they come.
DATA holds code/mbpp.jsonl.gz and gsm8k/{train,test}.jsonl.gz; FILE may be cut into pieces, named in their order with
commas. A run is a process of its own, so that its start counts: `other` is what no phase of the run counts, such as
starting Python, packing rows and writing logs. A model that was converted before starts faster: give --cold to convert
it anew. `--peer` then gives the same model, prompts, reward, rate and completions per step to TRL for some steps, and
evaluates what TRL makes of it after as many steps as whet does: seconds of a step, and seconds to the accuracy that TRL
ends with, where that is more than it began with. Whet's evaluations and saves are in its seconds, TRL's are not. With
--results the accuracy of both runs is drawn against the clock (docs/images/real-run.svg); `--picture` draws it again,
and whet beside TRL from results/real_duel_peer.json (docs/images/real-run-peer.svg):

    python benchmarks/real_run.py --model FILE --data DATA --runs maths --steps 40 --set optimizer.learning_rate=3e-6
        --set eval.every=10 --set eval.prompts=1319 --peer vllm --peer-steps 40 --peer-seconds 170
        --peer-path peers/site-packages --results real_duel
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from results_file import ROOT, add_results_flag, write_results

from whet.record.metrics.intervals import share_interval

WORK = ("rollout", "train")  # what a run is for
STEPS = {"code": 60, "maths": 150}
PICTURE = ROOT / "docs" / "images" / "real-run.svg"
RUN_RESULTS = ROOT / "results" / "real_run.json"
PEER_PICTURE, PEER_RESULTS = PICTURE.with_name("real-run-peer.svg"), ROOT / "results" / "real_duel_peer.json"
TITLES = {"code": "MBPP, GRPO", "maths": "GSM8K, Dr. GRPO"}
TASKS = {"code": "lists", "maths": "arithmetic"}  # what --tiny trains on


def mbpp_split(data: Path, folder: Path) -> tuple[Path, Path]:
    """MBPP's validation and training tasks (511 to 974) to learn from, its test tasks (11 to 510) to evaluate on."""
    with gzip.open(data / "code" / "mbpp.jsonl.gz", "rt", encoding="utf-8") as stream:
        by_task = {int(json.loads(row)["task_id"]): row for row in stream.read().splitlines()}
    parts = {"train": range(511, 975), "test": range(11, 511)}
    files = {part: folder / f"mbpp_{part}.jsonl" for part in parts}
    for part, tasks in parts.items():
        files[part].write_text("".join(f"{by_task[task]}\n" for task in tasks if task in by_task), "utf-8")
    return files["train"], files["test"]


def settings_of(run: str, data: Path, folder: Path, tiny: bool) -> list[str]:
    """The command line behind `whet train`, without model, steps and folder."""
    if tiny:
        return ["grpo" if run == "code" else "dr_grpo", "--data", f"task:{TASKS[run]}", "--set", "eval.prompts=16"]
    size = ["--set", "batch.prompts_per_step=32"]
    if run == "code":
        train, test = mbpp_split(data, folder)
        return ["grpo", "--data", f"mbpp:{train}", *size, "--set", f"eval.source=mbpp:{test}", "--set", "eval.every=20"]
    train, test = data / "gsm8k" / "train.jsonl.gz", data / "gsm8k" / "test.jsonl.gz"
    return [
        "dr_grpo",
        "--data",
        f"gsm8k:{train}",
        *size,
        "--set",
        f"eval.source=gsm8k:{test}",
        "--set",
        "eval.every=25",
    ]


def measured(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """One run: its wall time, the seconds of its phases, its evaluations."""
    began, log = time.monotonic(), folder / "metrics.jsonl"
    process = subprocess.Popen(command, env=dict(environment))
    written: list[float] = []  # seconds after which each line of the log was there
    while process.poll() is None:
        time.sleep(0.05)
        count = log.read_bytes().count(b"\n") if log.exists() else 0
        written += [time.monotonic() - began] * (count - len(written))
    wall = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"the run ended with {process.returncode}; its folder is {folder}")
    summary = json.loads((folder / "run.json").read_text("utf-8"))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    seconds = {phase: float(took) for phase, took in summary["seconds"].items()}
    seconds["other"] = max(0.0, wall - sum(seconds.values()))
    steps = [line for line in lines if "counts" in line]
    tokens = sum(line["counts"].get("tokens", 0) for line in steps)
    return {
        "wall_s": wall,
        "seconds": seconds,
        "shares": {phase: took / wall for phase, took in seconds.items()},
        "work_share": sum(seconds.get(phase, 0.0) for phase in WORK) / wall,
        "steps": len(steps),
        "step_s": median(sum(line["seconds"].values()) for line in steps) if steps else 0.0,
        "tokens": tokens,
        "rollout_tokens_per_s": tokens / seconds["rollout"] if seconds.get("rollout") else 0.0,
        "before": summary.get("before"),
        "after": summary.get("after"),
        "end_s": wall - written[-1],  # behind the last evaluation: the last save, the report, the end of Python
        "saving": summary.get("saving"),
        "start_up": summary.get("start_up"),
        "evaluations": evaluations(lines, written),
    }


def evaluations(lines: Sequence[Mapping[str, Any]], written: Sequence[float]) -> list[dict[str, float]]:
    """Held-out accuracy with its interval, against the seconds since the command was given."""
    measured = []
    for line, elapsed in zip(lines, written, strict=False):
        if "eval" in line and line["result"].get("accuracy") is not None:
            measured.append(evaluation(line["step"], elapsed, line["result"]["accuracy"], line["size"]))
    return measured


def evaluation(step: int, elapsed: float, accuracy: float, prompts: int) -> dict[str, float]:
    """One point of a curve with its 95% interval."""
    low, high = share_interval(accuracy, prompts)
    return {"step": step, "s": elapsed, "accuracy": accuracy, "low": low, "high": high, "prompts": prompts}


def picture(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Both runs: held-out accuracy against minutes, with 95% intervals."""
    from whet.pages.chart_svg import figure_file

    panels = [
        against_the_clock({title: records[run]["evaluations"]}, 0.6, tone)
        for tone, (run, title) in enumerate(TITLES.items())
    ]
    prompts = records["code"]["evaluations"][0]["prompts"]
    about = f"Qwen2.5-Coder-0.5B-Instruct on one H200, default settings, one seed; {prompts:.0f} prompts, 95% intervals"
    return figure_file(panels, "Accuracy against the clock, the start of the program included", about, size=(400, 220))


def peer_picture(record: Mapping[str, Any]) -> str:
    """Whet's run and TRL's, from the command on."""
    from whet.pages.chart_svg import figure_file

    both = {"whet": record["whet"], f"TRL {record['trl']} with vLLM": record}
    curves = {f"{name}, {side['evaluations'][-1]['step']} steps": side["evaluations"] for name, side in both.items()}
    about = (
        f"Dr. GRPO on GSM8K, 0.5B, rate {record['learning_rate']:g}, one H200, one seed; "
        f"{record['evaluations'][0]['prompts']:,} prompts, 95% intervals"
    )
    title = "Whet and TRL: accuracy against the clock, the start of the program included"
    return figure_file([against_the_clock(curves, 0.4)], title, about, size=(640, 240))


def against_the_clock(curves: Mapping[str, Sequence[Mapping[str, float]]], most: float, tone: int = 0) -> Any:
    """Held-out accuracy of runs against minutes, with 95% intervals."""
    from whet.pages.chart_specs import chart, line

    series = []
    for number, (name, rows) in enumerate(curves.items(), tone):
        points = [(row["s"] / 60, row["accuracy"]) for row in rows]
        band = {edge: [row[edge] for row in rows] for edge in ("low", "high")}
        series.append(line(name, points, number, marked=True, **band))
    longest = max(row["s"] for rows in curves.values() for row in rows) / 60
    across = {"label": "minutes since the command", "min": 0.0, "max": longest}
    up = {"label": "held-out accuracy", "min": 0.0, "max": most, "percent": True}
    return chart(series, x=across, y=up, smooth=False)


def table(records: Mapping[str, Mapping[str, Any]]) -> str:
    """One column a run, one row a phase, the largest first."""
    phases = sorted(
        {phase for record in records.values() for phase in record["shares"]},
        key=lambda phase: -max(record["shares"].get(phase, 0.0) for record in records.values()),
    )
    rows = [["share of the wall time", *records]]
    rows += [[phase, *(f"{r['shares'].get(phase, 0.0):.1%}" for r in records.values())] for phase in phases]
    rows.append([" + ".join(WORK), *(f"{record['work_share']:.1%}" for record in records.values())])
    rows.append(["the end", *(f"{record['end_s']:.1f} s" for record in records.values())])
    rows.append(["wall", *(f"{record['wall_s']:.0f} s" for record in records.values())])
    rows.append(["a step", *(f"{record['wall_s'] / max(1, record['steps']):.2f} s" for record in records.values())])
    rows.append(["rollout tokens/s", *(f"{record['rollout_tokens_per_s']:,.0f}" for record in records.values())])
    return "\n".join("".join(f"{cell:>14}" if column else f"{cell:24}" for column, cell in enumerate(r)) for r in rows)


def peer_steps(
    run: Path, writing: str, steps: int, seconds: float, scratch: Path, peer_path: Path | None
) -> dict[str, Any]:
    """TRL's steps on what the run trained on; `writing` as benchmarks/sides/trl_side.py names it."""
    from whet.model.gguf import converted_folder
    from whet.settings.layers import read_toml
    from whet.training.assembly.prompts import load_prompts
    from whet.training.config import resolved

    stored = read_toml(run / "config.toml")
    config: Any = resolved(stored.pop("method"), stored)
    name = config.model.name
    prompts = load_prompts(config, evaluation=False)
    job = {
        "model": str(converted_folder(Path(name))) if name.endswith(".gguf") else name,
        "rows": [{"prompt": list(prompt.messages), "gold": prompt.answer} for prompt in prompts],
        "prompts": config.batch.prompts_per_step,
        "group_size": config.batch.group_size,
        "rows_per_pass": 32,
        "most_tokens": config.sampling.max_new_tokens,
        "learning_rate": config.optimizer.learning_rate,
        "warmup_steps": config.optimizer.warmup_steps,
        "writing": writing,
        "steps": steps,
        "seconds": seconds,
        "save_every": config.eval.every,
        "folder": str(scratch / "peer"),
        "began": time.time(),
    }
    (scratch / "job.json").write_text(json.dumps(job), "utf-8")
    side = Path(__file__).resolve().parent / "sides" / "trl_real.py"
    command = [sys.executable, str(side), str(scratch / "job.json"), str(scratch / "peer.json")]
    packages = [str(peer_path)] if peer_path else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*packages, *sys.path[1:]])}
    subprocess.run(command, check=True, env=environment)
    record = dict(json.loads((scratch / "peer.json").read_text("utf-8")))
    # the models that it saved, and when it had made them
    models = [(0, job["model"]), *((step, f"{job['folder']}/{step}") for step in record.pop("saved"))]
    command = [sys.executable, "-m", "whet", "eval", *(str(model) for _, model in models), "--json"]
    command += ["--data", config.eval.source, "--out", str(scratch / "evals")]
    command += [
        "--set",
        f"sampling.max_new_tokens={job['most_tokens']}",
        "--set",
        f"eval.prompts={config.eval.prompts}",
    ]
    answered = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["evals"]
    curve = [
        evaluation(
            step,
            record["start_s"] + sum(record["steps_s"][:step]),
            entry["metrics"]["accuracy"],
            int(entry["metrics"]["prompts"]),
        )
        for (step, _), entry in zip(models, answered, strict=True)
    ]
    return {**record, "learning_rate": config.optimizer.learning_rate, "evaluations": curve}


def seconds_to(accuracy: float, record: Mapping[str, Any]) -> float | None:
    """When a run first measured at least this accuracy, its start included; None where it never did."""
    return next((row["s"] for row in record["evaluations"] if row["accuracy"] >= accuracy), None)


def model_file(pieces: str, folder: Path) -> str:
    """The model's file, joined where it is given in pieces."""
    files = pieces.split(",")
    if len(files) == 1:
        return files[0]
    joined = folder / "model.gguf"
    with joined.open("wb") as whole:
        for file in files:
            with Path(file).open("rb") as piece:
                shutil.copyfileobj(piece, whole, 1 << 24)
    return str(joined)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a .gguf file, or its pieces with commas between them, or a model folder")
    parser.add_argument("--data", type=Path, help="the folder with code/ and gsm8k/")
    parser.add_argument("--runs", default="code,maths", help="code, maths or both")
    parser.add_argument("--steps", type=int, help="of each run; default: 60 of code, 150 of maths")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting more, of both runs")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the version of whet that runs")
    parser.add_argument("--folder", type=Path, help="where the runs are kept; default: nowhere")
    parser.add_argument("--cold", action="store_true", help="convert the model within the first run")
    parser.add_argument("--tiny", action="store_true", help="the built-in model on built-in tasks")
    parser.add_argument("--picture", action="store_true", help="draw what the results files hold, and end")
    parser.add_argument("--peer", choices=("plain", "static", "paged", "vllm"), help="TRL's steps too: how it writes")
    parser.add_argument("--peer-steps", type=int, default=6)
    parser.add_argument("--peer-seconds", type=float, default=120.0, help="no step of TRL begins after so long")
    parser.add_argument("--peer-path", type=Path, help="a folder of TRL's packages, of benchmarks/peer_folder.py")
    add_results_flag(parser, "real_run")
    chosen = parser.parse_args()
    if chosen.picture:
        runs, peer = (json.loads(file.read_text("utf-8"))["values"] for file in (RUN_RESULTS, PEER_RESULTS))
        PICTURE.write_text(picture(runs), "utf-8")
        PEER_PICTURE.write_text(peer_picture(peer), "utf-8")
        return
    if not chosen.tiny and (chosen.model is None or chosen.data is None):
        parser.error("--model FILE and --data DATA, or --tiny")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(chosen.tree / "src"), *sys.path[1:]])}
        if chosen.cold:
            environment["WHET_CACHE"] = str(folder / "cache")
        model = "whetstone" if chosen.tiny else model_file(chosen.model, Path(temporary))
        records: dict[str, Any] = {}
        for run in chosen.runs.split(","):
            steps = chosen.steps or (5 if chosen.tiny else STEPS[run])
            command = [sys.executable, "-m", "whet", "train", *settings_of(run, chosen.data, folder, chosen.tiny)]
            command += ["--model", model, "--steps", str(steps), "--folder", str(folder / run)]
            command += [word for setting in chosen.set for word in ("--set", setting)]
            records[run] = measured(command, folder / run, environment)
            print(table(records), flush=True)
            if chosen.peer and run == "maths":
                limits = chosen.peer_steps, chosen.peer_seconds
                peer = peer_steps(folder / run, chosen.peer, *limits, Path(temporary), chosen.peer_path)
                mine = records[run]["step_s"]
                first, last = peer["evaluations"][0], peer["evaluations"][-1]
                gained = last["accuracy"] > first["accuracy"]
                reached = seconds_to(last["accuracy"], records[run]) if gained else None
                peer |= {
                    "whet": {key: records[run][key] for key in ("step_s", "wall_s", "evaluations")},
                    "times": peer["step_s"] / mine,
                    "whet_seconds": reached,
                    **({"sooner": last["s"] / reached} if reached else {}),
                }
                records["peer"] = peer
                print(f"TRL's step: {peer['step_s']:.1f} s, whet's {mine:.2f} s, {peer['times']:.1f} times")
                print(f"TRL: {last['accuracy']:.1%} after {last['s']:.0f} s; whet: after {reached} s")
                if chosen.results:
                    write_results(f"{chosen.results}_peer", records.pop("peer"))
            if chosen.results:
                write_results(chosen.results, records)
        if chosen.results and records.keys() >= TITLES.keys():
            PICTURE.write_text(picture(records), "utf-8")


if __name__ == "__main__":
    main()
