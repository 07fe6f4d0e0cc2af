"""Seconds and peak memory of every `whet data` tool on one file of many rows.

    python benchmarks/data_tools.py                     # 100,000 rows
    python benchmarks/data_tools.py --rows 2000         # a trial
    python benchmarks/data_tools.py --results

The rows are word problems that a seed writes: 60 words each, with an answer, a pass rate, a solution; one row in ten
repeats an earlier one, one in ten with a few words changed. Each tool runs in a process of its own, by its command,
start of the interpreter included. Memory is the largest resident set of that process. Beside it stands the memory of
`whet data stats` on ten rows: what the interpreter and numpy take by themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results_file import add_results_flag, child_environment, write_results

NAMES = ("Ana", "Ben", "Chen", "Dora", "Eli", "Fatma", "Gus", "Hana", "Ivo", "Jun", "Kofi", "Lena", "Milo", "Nora")
THINGS = ("apples", "books", "coins", "pencils", "stamps", "shells", "ropes", "cards", "tiles", "candles", "ribbons")
PLACES = ("market", "school", "library", "garden", "station", "harbour", "bakery", "museum", "forest", "workshop")
VERBS = ("buys", "finds", "sells", "carries", "counts", "gives", "borrows", "paints", "packs", "trades", "loses")
STORY = (
    "on the way home the road was long and the rain had just stopped when a friend came by with a cart full of old "
    "boxes that nobody had opened for years and everyone wanted to know what might be inside of them before night"
)
FILLER = STORY.split()


def problem(draw: random.Random) -> tuple[str, int]:
    """A question of about 60 words, and its answer."""
    first, second = draw.randint(2, 900), draw.randint(2, 900)
    name, thing = draw.choice(NAMES), draw.choice(THINGS)
    filler = " ".join(draw.sample(FILLER, 25))
    text = (
        f"{name} {draw.choice(VERBS)} {first} {thing} at the {draw.choice(PLACES)} and {draw.choice(VERBS)} {second} "
        f"more at the {draw.choice(PLACES)}. {filler.capitalize()}. How many {thing} does {name} have after that day?"
    )
    return text, first + second


def write_rows(path: Path, rows: int, seed: int) -> None:
    """Write made-up rows, some of them duplicates."""
    draw = random.Random(seed)
    recent: list[tuple[str, int]] = []
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(rows):
            kind = draw.random()
            if recent and kind < 0.2:
                text, answer = draw.choice(recent)
                text = text if kind < 0.1 else text.replace("the rain", "some rain").replace("after that", "on this")
            else:
                text, answer = problem(draw)
                recent = [*recent[-999:], (text, answer)]
            row = {"prompt": text, "answer": str(answer), "pass_rate": draw.randint(0, 8) / 8}
            stream.write(json.dumps({**row, "solution": f"Adding both gives {answer}.\n\n#### {answer}"}) + "\n")


def write_labels(path: Path, rows: int, seed: int) -> None:
    """Two completions per prompt, one right."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(rows // 2):
            text, answer = problem(draw)
            for right in (True, False):
                completion = f"It is {answer + (not right)}."
                stream.write(json.dumps({"prompt": text, "completion": completion, "label": right}) + "\n")


def measured(command: list[str], folder: Path) -> dict[str, Any]:
    """Wall seconds and peak memory of one command."""
    environment = child_environment(OMP_NUM_THREADS="1")
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "whet", "data", *command, "--json"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    said, failed = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"whet data {' '.join(command)}: {failed.decode()[-500:]}")
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "memory_mb": round(usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)),
        "summary": json.loads(said),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--tests", type=int, default=1319, help="rows of the test file of `contamination`")
    add_results_flag(parser, "data_tools")
    chosen = parser.parse_args()
    commands = {
        "stats": ["stats", "rows.jsonl"],
        "dedup": ["dedup", "rows.jsonl", "--by", "prompt", "-o", "near.jsonl"],
        "contamination": ["contamination", "rows.jsonl", "--test", "test.jsonl", "-o", "clean.jsonl"],
        "filter": ["filter", "rows.jsonl", "--least", "0.1", "--most", "0.9", "-o", "filtered.jsonl"],
        "curriculum": ["curriculum", "rows.jsonl", "--stages", "4", "-o", "ordered.jsonl"],
        "mix": ["mix", "rows.jsonl=3", "labels.jsonl=1", "-o", "mixed.jsonl"],
        "split": ["split", "rows.jsonl", "train.jsonl=0.9", "held_out.jsonl=0.1", "--near", "0.8"],
        "convert_labels_to_pairs": ["convert", "labels.jsonl", "--to", "pairs", "-o", "pairs.jsonl"],
        "convert_pairs_to_labels": ["convert", "pairs.jsonl", "--to", "labels", "-o", "labels2.jsonl"],
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_rows(folder / "rows.jsonl", chosen.rows, 0)
        write_labels(folder / "labels.jsonl", chosen.rows, 1)
        write_rows(folder / "test.jsonl", chosen.tests, 2)
        write_rows(folder / "ten.jsonl", 10, 3)
        tools: dict[str, Any] = {}
        for name, command in {"nothing": ["stats", "ten.jsonl"], **commands}.items():
            tools[name] = measured(command, folder)
            tool = tools[name]
            print(f"{name:26} {tool['seconds']:7.2f} s  {tool['cpu_seconds']:7.2f} s cpu  {tool['memory_mb']:6} MB")
        size = (folder / "rows.jsonl").stat().st_size
    if chosen.results:
        for tool in tools.values():
            summary = tool.pop("summary")
            tool["kept"] = summary.get("kept", summary.get("rows"))
        write_results(chosen.results, {"rows": chosen.rows, "megabytes": round(size / 1e6, 1), "tools": tools})


if __name__ == "__main__":
    main()
