"""Would the tests notice? Changes one place of the package at a time, runs the tests near it, counts who noticed.

    python benchmarks/mutants.py --rooms training rollout --count 20
    python benchmarks/mutants.py --count 150 --seed 1 --draw drawn.json               # keep the sample
    python benchmarks/mutants.py --drawn drawn.json --lines lines.jsonl --results     # run it, or go on with it

A mutant is one small change: a comparison turned, a sign, an operator, a constant off by one, a condition negated. The
tests are collected once; each mutant gets a fork of that process (mutant_forks.py), which runs the tests of the nearest
files (mutant_tests.py): those that import the function, or what comes to it by a few calls. It is killed when a test
fails, hangs or breaks its process, and survives when all pass or `--seconds` of processor time are used up. A test that
fails without a change too is left out, and its mutants are tried again. A drawn mutant is found again after its file
moved or its variables were renamed, or is reported as gone. The tree is copied first: nothing of yours is changed.

A survivor that no test could notice is entered by hand, as the last line of `--lines` about it: {"number": 31,
"state": "equivalent", "note": why}. It is listed with its reason, and is in no share.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mutant_places import Mutant, Tree, all_mutants, drawn, from_record
from mutant_tests import NearTests
from results_file import add_results_flag, write_results

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {".git", ".venv", "runs", ".mypy_cache"}  # of the tree's own folder: benchmarks/runs is read by tests
WAITS = 20  # times its processor time after which a mutant of import time hangs


def environment(tree: Path, scratch: Path) -> dict[str, str]:
    """Of the tests of a tree: its own package, one thread, a home of their own."""
    home = scratch / "home"
    home.mkdir(exist_ok=True)
    paths = [str(tree / "src"), str(tree), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    alone = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    return {**os.environ, **alone, "HOME": str(home)}


def pytest_command(scratch: Path, *words: str) -> list[str]:
    quiet = ["-q", "--tb=no", "-p", "no:cacheprovider", f"--basetemp={scratch / 'temporary'}"]
    return [sys.executable, "-m", "pytest", *quiet, *words]


def run_forks(mutants: dict[int, Mutant], tree: Path, scratch: Path, lines: Path, options: argparse.Namespace) -> None:
    """Those whose code is a function's, by the plugin."""
    asked = [
        {"number": number, "path": each.path, "qualname": each.scope.name, "start": each.start, "end": each.end,
         "new": each.new}
        for number, each in mutants.items()
    ]  # fmt: skip
    file = scratch / "asked.json"
    file.write_text(json.dumps({"mutants": asked, "seconds": options.seconds, "files": options.files}), "utf-8")
    told = {"MUTANTS_TREE": str(tree), "MUTANTS_ASKED": str(file), "MUTANTS_LINES": str(lines)}
    command = pytest_command(scratch, "-p", "mutant_forks", "--capture=no")
    subprocess.run(command, cwd=tree, env={**environment(tree, scratch), **told}, check=False)


def run_fresh(mutant: Mutant, tree: Path, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One whose code runs when its module is imported: in an interpreter of its own, the nearest files."""
    tests = [path.relative_to(tree).as_posix() for path in sorted((tree / "tests").rglob("test_*.py"))]
    near = NearTests(tree).files(mutant.path, mutant.scope.name, tests)[: options.files]
    file = tree / mutant.path
    text = file.read_text("utf-8")
    file.write_text(text[: mutant.start] + mutant.new + text[mutant.end :], "utf-8")
    begun = time.monotonic()
    try:
        done = subprocess.run(
            pytest_command(scratch, "-x", *near), cwd=tree, env=environment(tree, scratch), capture_output=True,
            text=True, timeout=WAITS * options.seconds, check=False,
        )  # fmt: skip
        failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        killed = done.returncode != 0
    except subprocess.TimeoutExpired:
        killed, failed = True, ["it hangs"]
    finally:
        file.write_text(text, "utf-8")
    state = "killed" if killed else "survived"
    return {"state": state, "killer": next(iter(failed), ""), "seconds": round(time.monotonic() - begun, 1)}


def read_lines(path: Path) -> dict[int, dict[str, Any]]:
    """What is known of each mutant: its last line."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    return {line["number"]: line for line in lines}


def summary(mutants: dict[int, Mutant], found: dict[int, dict[str, Any]]) -> str:
    rooms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for number, line in found.items():
        rooms[mutants[number].room][line["state"]] += 1
    states = ("killed", "survived", "equivalent", "gone")
    rows = [("room", *states), *((room, *(rooms[room][state] for state in states)) for room in sorted(rooms))]
    total = sum(rooms.values(), Counter())
    tried = total["killed"] + total["survived"]
    text = "\n".join(f"{room:12}" + "".join(f"{each:>12}" for each in counts) for room, *counts in rows)
    lines = [text, f"{total['killed']} of {tried} mutants killed ({total['killed'] / max(tried, 1):.0%}); survivors:"]
    for number, line in sorted(found.items()):
        if line["state"] == "survived":
            mutant = mutants[number]
            lines.append(f"  {number} {mutant.path}:{mutant.line}  {mutant.about}  {line.get('note', '')}")
    return "\n".join(lines)


def values(mutants: dict[int, Mutant], found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """What results/mutants.json holds."""
    states = Counter(line["state"] for line in found.values())
    noticeable = states["killed"] + states["survived"]

    def listed(state: str) -> dict[str, str]:
        return {
            f"{mutants[number].path.removeprefix('src/whet/')}:{mutants[number].line}": f"{mutants[number].about}"
            + (f": {line['note']}" if state == "equivalent" else "")
            for number, line in sorted(found.items())
            if line["state"] == state
        }

    return {
        "drawn": len(mutants), "tried": noticeable + states["equivalent"], "killed": states["killed"],
        "gone": states["gone"], "share": states["killed"] / max(noticeable, 1),
        "rooms": len({mutants[number].room for number in found}), "survivors": listed("survived"),
        "equivalent": states["equivalent"], "equivalents": listed("equivalent"),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", default=[], help="folders of the package; all by default")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", type=Path, help="write the sample to this file, and run nothing")
    parser.add_argument("--drawn", type=Path, help="run the sample of this file instead of a new one")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the tree to change")
    parser.add_argument("--seconds", type=float, default=30.0, help="of processor time for the tests of one mutant")
    parser.add_argument("--files", type=int, default=10, help="test files for one mutant, the nearest")
    parser.add_argument("--only", type=int, nargs="+", help="these of the sample, by number, tried again")
    parser.add_argument("--lines", type=Path, help="a file for what is known, to go on from: a line for each mutant")
    parser.add_argument("--told", action="store_true", help="run nothing: say what --lines holds")
    add_results_flag(parser, "mutants")
    options = parser.parse_args()
    root = options.tree.resolve()
    if options.drawn:
        samples = [from_record(each) for each in json.loads(options.drawn.read_text("utf-8"))["mutants"]]
    else:
        samples = drawn(all_mutants(root, options.rooms), options.count, options.seed)
    if options.draw:
        records = [each.record() for each in samples]
        options.draw.write_text(json.dumps({"seed": options.seed, "mutants": records}, indent=1) + "\n", "utf-8")
        print(f"{len(samples)} mutants of {len({each.room for each in samples})} rooms are in {options.draw}")
        return
    mutants = dict(enumerate(samples))
    with tempfile.TemporaryDirectory(prefix="mut", ignore_cleanup_errors=True) as scratch:
        lines = options.lines or Path(scratch) / "lines.jsonl"
        if not options.told:
            run(mutants, root, Path(scratch), lines.resolve(), options)
        found = read_lines(lines)
    print(summary(mutants, found))
    if options.results:
        write_results(options.results, values(mutants, found))


def run(samples: dict[int, Mutant], root: Path, scratch: Path, lines: Path, options: argparse.Namespace) -> None:
    known = read_lines(lines)
    wanted = [number for number in samples if (number in options.only if options.only else number not in known)]
    tree = Tree(root)
    places = {number: tree.find(samples[number]) for number in wanted}
    with lines.open("a", encoding="utf-8") as file:
        for number, (place, why) in places.items():
            if place is None:
                file.write(json.dumps({"number": number, "state": "gone", "note": why}) + "\n")
    present = {number: place for number, (place, _) in places.items() if place is not None}
    copy = scratch / "tree"
    shutil.copytree(root, copy, ignore=lambda at, _: LEFT_OUT if Path(at) == root else {"__pycache__"})
    forked = {number: each for number, each in present.items() if not each.at_import}
    if forked:
        run_forks(forked, copy, scratch, lines, options)
    for number in present.keys() - forked.keys():
        line = {"number": number, **run_fresh(present[number], copy, scratch, options)}
        with lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(line["state"], number, line["killer"], flush=True)


if __name__ == "__main__":
    main()
