"""Would the tests notice? Changes one place of the package at a time, runs the tests that reach it, counts who noticed.

    python benchmarks/mutants.py --rooms training rollout --count 20
    python benchmarks/mutants.py --count 150 --seed 1 --draw drawn.json            # keep the sample
    python benchmarks/mutants.py --drawn drawn.json --tree . --out after.json      # run it again, later

A mutant is one small change: a comparison turned, a sign, an operator, a constant off by one, a condition negated.
First the tests near any of them (--everywhere: all tests) run once with the places watched: this tells which tests
reach each place, how long they take and which fail anyway. Then each mutant gets the tests that reach it, the nearest
first, and after them the files near its module: those that import it and those of its room. It is killed when a test
fails (or hangs) and survives when all pass. A drawn mutant is found again after its file moved or its variables were
renamed, or is reported as gone. The tree is copied first: nothing of yours is changed. With --out, a run that was
stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mutant_places import PACKAGE, Mutant, Tree, all_mutants, drawn, from_record

ROOT = Path(__file__).resolve().parents[1]
PROBE = Path(__file__).with_name("mutant_probe.py")
# rooms whose modules are tested through a front door, from other folders as well
FURTHER = {"objective": ("oracle", "properties")}
OTHER_TESTS = ("architecture", "gpu", "peers")  # of the text of the tree, of a GPU, of other packages
NEAREST = 8  # files near a module whose tests all run for a mutant that those which reach it let live
NO_TESTS = 5  # pytest's exit code where every test was deselected


@dataclass
class Outcome:
    state: str  # killed, timeout, survived or gone
    killer: str = ""
    note: str = ""
    path: str = ""
    line: int = 0
    tests: int = 0  # that were chosen for it
    reaching: int = 0  # tests that come to the place
    seconds: float = 0.0


@dataclass
class Reach:
    """What the watched run of all tests told."""

    files: list[str] = field(default_factory=list)  # that ran
    seconds: dict[str, float] = field(default_factory=dict)  # of each test that passes
    failing: list[str] = field(default_factory=list)  # without any change
    tests: dict[str, list[str]] = field(default_factory=dict)  # that come to a mutant, by its number


class Copy:
    """A tree of its own to change, and the runs of tests in it."""

    def __init__(self, root: Path, place: Path, home: Path) -> None:
        shutil.copytree(root, place, ignore=shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", ".mutants"))
        shutil.copy(PROBE, place / "src")
        self.root, self.place, self.home = root, place, home
        self.notes = place / ".mutants"

    def run(self, files: list[str], chosen: list[str] | None, limit: float, *flags: str) -> tuple[str, list[Any]]:
        """ "passed", "failed" or "timeout" of these files, or of the chosen tests in them, and pytest's reports."""
        shutil.rmtree(self.notes, ignore_errors=True)
        shutil.rmtree(self.place / ".hypothesis", ignore_errors=True)
        self.notes.mkdir()
        if chosen is not None:
            (self.notes / "chosen").write_text(json.dumps(chosen), "utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", PROBE.stem]
        command += [f"--basetemp={self.place}-temporary", *flags, *files]
        paths = os.pathsep.join([str(self.place / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        alone = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        process = subprocess.Popen(
            command,
            cwd=self.place,
            env={**os.environ, **alone, "HOME": str(self.home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
            state = "passed" if code in (0, NO_TESTS) else "failed"
        except subprocess.TimeoutExpired:
            state = "timeout"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what its tests left behind
            process.wait()
        return state, lines_of(self.notes / "reports")

    @contextlib.contextmanager
    def changed(self, texts: dict[str, str]) -> Iterator[None]:
        for path, text in texts.items():
            (self.place / path).write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            for path in texts:
                shutil.copy(self.root / path, self.place / path)


def lines_of(path: Path) -> list[Any]:
    if not path.exists():
        return []
    lines = path.read_text("utf-8", errors="replace").splitlines()
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # two processes wrote at once, or one was killed
            found.append(json.loads(line))
    return found


def failed_in(reports: list[Any]) -> list[str]:
    return list(dict.fromkeys(test for test, _, result, _ in reports if result == "failed"))


def watched(root: Path, mutants: dict[int, Mutant]) -> dict[str, str]:
    """The files of some mutants, with every place telling that it is reached."""
    inserted: defaultdict[str, list[tuple[int, int, int, str]]] = defaultdict(list)
    for number, mutant in mutants.items():
        text = (root / mutant.path).read_text("utf-8")
        opening, closing = f"(__import__({PROBE.stem!r}).reach({number}) and (", "))"
        with contextlib.suppress(SyntaxError):  # no expression may stand in the pattern of a case
            ast.parse(text[: mutant.start] + opening + text[mutant.start : mutant.end] + closing + text[mutant.end :])
            # the inner of two at one place opens last and closes first
            inserted[mutant.path] += [
                (mutant.start, 1, -mutant.end, opening),
                (mutant.end, 0, -mutant.start, closing),
            ]
    texts = {}
    for path, pieces in inserted.items():
        text, done, parts = (root / path).read_text("utf-8"), 0, []
        for offset, _, _, piece in sorted(pieces):
            parts += [text[done:offset], piece]
            done = offset
        texts[path] = "".join([*parts, text[done:]])
        ast.parse(texts[path])
    return texts


@cache
def test_files(root: Path) -> dict[str, set[str]]:
    """Every test file that may notice something, and the modules and names that it imports."""
    found = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        if path.relative_to(root).parts[1] not in OTHER_TESTS:
            names: set[str] = set()
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Import):
                    names.update(each.name for each in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.update({node.module, *(f"{node.module}.{each.name}" for each in node.names)})
            found[path.relative_to(root).as_posix()] = names
    return found


def tests_near(path: str, root: Path) -> list[str]:
    """The test files that import a module and those of its room, nearest first."""
    inner = Path(path).relative_to(PACKAGE).with_suffix("")
    dotted = ".".join((PACKAGE.name, *inner.parts)).removesuffix(".__init__")
    room = inner.parts[0]
    package = dotted.rpartition(".")[0]
    folders = {*inner.parts[:-1], *FURTHER.get(room, ())} or {room}
    stem = inner.name

    def distance(test: str, imported: set[str]) -> tuple[bool, ...]:
        return (
            dotted not in imported,
            not folders.intersection(Path(test).parts[1:-1]),
            Path(test).stem.removeprefix("test_") not in (stem, f"{room}_{stem}"),
            package not in imported or package == PACKAGE.name,
        )

    tests = {test: distance(test, imported) for test, imported in test_files(root).items()}
    return sorted((test for test, far in tests.items() if not (far[0] and far[1])), key=lambda test: tests[test])


def watch(
    copies: SimpleQueue[Copy],
    pool: ThreadPoolExecutor,
    mutants: dict[int, Mutant],
    reach: Reach,
    options: argparse.Namespace,
) -> Iterator[str]:
    """Run the tests near any mutant, or all, once with the places watched; then the failing ones again, unchanged."""
    root = options.tree
    texts = watched(root, mutants)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    near = {test for mutant in mutants.values() for test in tests_near(mutant.path, root)[:NEAREST]}
    for test in test_files(root):
        if test not in reach.files and (options.everywhere or test in near):
            groups[test if options.jobs > 2 else str(Path(test).parent)].append(test)

    def run(files: list[str]) -> tuple[list[str], list[Any], list[Any], list[str]]:
        with borrowed(copies) as copy:
            with copy.changed(texts):
                _, reports = copy.run(files, None, options.watch)
            reached, failed = lines_of(copy.notes / "reached"), failed_in(reports)
            if failed:
                suspects = sorted({test.partition("::")[0] for test in failed})
                chosen = failed if all("::" in each for each in failed) else None
                failed = failed_in(copy.run(suspects, chosen, options.watch)[1])
            return files, reports, reached, failed

    for task in as_completed([pool.submit(run, files) for files in groups.values()]):
        files, reports, reached, failed = task.result()
        for test, _, _, seconds in reports:
            reach.seconds[test] = reach.seconds.get(test, 0.0) + seconds
        reach.failing += failed
        for place, running in reached:
            when, _, test = running.partition(" ")
            if test:
                # what a fixture made is looked at by other tests of the file as well
                file = test.partition("::")[0]
                others = {each for each, *_ in reports if when == "setup" and each.startswith(f"{file}::")}
                known = reach.tests.setdefault(str(place), [])
                known += sorted({test, *others} - set(known))
        reach.files += files
        yield f"watched {Path(files[0]).parent if len(files) > 1 else files[0]}; fail anyway: {failed or 'none'}"


@contextlib.contextmanager
def borrowed(copies: SimpleQueue[Copy]) -> Iterator[Copy]:
    copy = copies.get()
    try:
        yield copy
    finally:
        copies.put(copy)


def chosen_tests(number: int, mutant: Mutant, reach: Reach, root: Path, most: float) -> list[list[str]]:
    """Two lists of tests, the second for when the first passes: those that reach it, and those of the nearest files.

    Each is of at most `most` seconds; a file's tests stay together, since they share what is slow to make.
    """
    near = tests_near(mutant.path, root)
    place = {file: number for number, file in enumerate(near)}
    reaching = [] if mutant.at_import else [test for test in reach.tests.get(str(number), []) if test in reach.seconds]
    nearest = set(near if mutant.at_import else near[:NEAREST])
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for test in reach.seconds:
        by_file[test.partition("::")[0]].append(test)
    usable = set(reach.seconds) - set(reach.failing)

    def limited(tests: list[str]) -> list[str]:
        files: defaultdict[str, list[str]] = defaultdict(list)
        for test in tests:
            if test in usable:
                files[test.partition("::")[0]].append(test)
        cost = {file: sum(reach.seconds[test] for test in each) for file, each in files.items()}
        taken, spent = [], 0.0
        for file in sorted(files, key=lambda each: (place.get(each, len(near)), cost[each])):
            for test in sorted(files[file], key=lambda each: reach.seconds[each]):
                if spent + reach.seconds[test] <= most:
                    taken.append(test)
                    spent += reach.seconds[test]
        return taken

    first = limited(reaching)
    return [first, [test for test in limited([t for file in nearest for t in by_file[file]]) if test not in set(first)]]


def outcome(number: int, mutant: Mutant, copy: Copy, reach: Reach, options: argparse.Namespace) -> Outcome:
    """What the tests say of a mutant."""
    started = time.time()
    text = (copy.root / mutant.path).read_text("utf-8")
    result = Outcome("survived", path=mutant.path, line=mutant.line, reaching=len(reach.tests.get(str(number), [])))
    with copy.changed({mutant.path: text[: mutant.start] + mutant.new + text[mutant.end :]}):
        for chosen in chosen_tests(number, mutant, reach, copy.root, options.most):
            if not chosen:
                continue
            result.tests += len(chosen)
            files = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
            limit = options.seconds + 4 * sum(reach.seconds[test] for test in chosen)
            state, reports = copy.run(files, chosen, limit, "-x")
            if state != "passed":
                result.state = "killed" if state == "failed" else "timeout"
                result.killer = next(iter(failed_in(reports)), "")
                if not result.killer and reports and state == "timeout":
                    done = {test for test, when, *_ in reports if when == "teardown"}
                    result.killer = next((test for test in chosen if test not in done), "")
                break
    result.seconds = round(time.time() - started, 1)
    return result


def without_flaky(
    copies: SimpleQueue[Copy],
    pool: ThreadPoolExecutor,
    results: dict[int, Outcome],
    reach: Reach,
    options: argparse.Namespace,
) -> list[int]:
    """The mutants whose killer fails without a change too, now that it runs again; it is left out from here on."""
    killers = sorted({result.killer for result in results.values() if result.state == "killed"} - {""})
    killers = [test for test in killers if "::" in test]
    files = sorted({test.partition("::")[0] for test in killers})

    def failing(group: list[str]) -> list[str]:
        with borrowed(copies) as copy:
            return failed_in(copy.run(group, killers, options.watch)[1]) if group else []

    flaky = {
        test for failed in pool.map(failing, [files[n :: options.jobs] for n in range(options.jobs)]) for test in failed
    }
    reach.failing += sorted(flaky)
    return [number for number, result in results.items() if result.killer in flaky]


def summary(mutants: dict[int, Mutant], results: dict[int, Outcome]) -> str:
    rooms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for number, result in results.items():
        rooms[mutants[number].room][result.state] += 1
    states = ("killed", "timeout", "survived", "gone")
    lines = [f"{'room':14}" + "".join(f"{state:>10}" for state in states)]
    lines += [f"{room:14}" + "".join(f"{rooms[room][state]:>10}" for state in states) for room in sorted(rooms)]
    total = sum(rooms.values(), Counter())
    lines.append(f"{'all':14}" + "".join(f"{total[state]:>10}" for state in states))
    tried, killed = total.total() - total["gone"], total["killed"] + total["timeout"]
    return "\n".join([*lines, f"{killed} of {tried} mutants killed ({killed / max(tried, 1):.0%})"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", default=[], help="folders of the package; all by default")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", type=Path, help="write the sample to this file, and run nothing")
    parser.add_argument("--drawn", type=Path, help="run the sample of this file instead of a new one")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the tree to change")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=90.0, help="beyond four times what its tests take, it hangs")
    parser.add_argument("--most", type=float, default=60.0, help="seconds of tests for one mutant, twice")
    parser.add_argument("--everywhere", action="store_true", help="watch all tests, not only those near a mutant")
    parser.add_argument("--watch", type=float, default=7200.0, help="seconds at most for one group of unchanged tests")
    parser.add_argument("--find", action="store_true", help="only tell where the drawn mutants are now")
    parser.add_argument("--out", type=Path, help="a JSON file for the result, written after every mutant")
    options = parser.parse_args()
    root = options.tree = options.tree.resolve()
    if options.drawn:
        samples = [from_record(each) for each in json.loads(options.drawn.read_text("utf-8"))["mutants"]]
    else:
        samples = drawn(all_mutants(root, options.rooms), options.count, options.seed)
    if options.draw:
        records = [each.record() for each in samples]
        options.draw.write_text(json.dumps({"seed": options.seed, "mutants": records}, indent=1) + "\n", "utf-8")
        print(f"{len(samples)} mutants of {len({each.room for each in samples})} rooms are in {options.draw}")
        return
    run(root, dict(enumerate(samples)), options)


def run(root: Path, samples: dict[int, Mutant], options: argparse.Namespace) -> None:
    started = time.time()
    tree = Tree(root)
    places = {number: tree.find(mutant) for number, mutant in samples.items()}
    mutants = {number: found for number, (found, _) in places.items() if found}
    results = {number: Outcome("gone", note=why) for number, (found, why) in places.items() if not found}
    known: dict[str, Any] = {}
    if options.out and options.out.exists():
        known = json.loads(options.out.read_text("utf-8"))
        kept = {each["number"]: {name: each[name] for name in vars(Outcome(""))} for each in known["mutants"]}
        results |= {number: Outcome(**each) for number, each in kept.items() if number in mutants}
    for why, count in Counter(why for _, why in places.values()).most_common():
        print(f"{count} {why}", flush=True)
    if options.find:
        return
    reach = Reach(**known["reach"]) if known else Reach()

    def save() -> None:
        if options.out:
            rows = [
                {
                    "number": number,
                    **asdict(results[number]),
                    "room": samples[number].room,
                    "about": samples[number].about,
                }
                for number in sorted(results)
            ]
            text = json.dumps({"mutants": rows, "reach": asdict(reach)}, indent=1) + "\n"
            options.out.with_suffix(".part").write_text(text, "utf-8")
            options.out.with_suffix(".part").replace(options.out)

    copies: SimpleQueue[Copy] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mut", ignore_cleanup_errors=True) as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        for number in range(options.jobs):
            copies.put(Copy(root, Path(scratch) / str(number), home))
        with ThreadPoolExecutor(options.jobs) as pool:
            for told in watch(copies, pool, mutants, reach, options):
                save()
                print(told, flush=True)
            print(f"tests that fail anyway: {reach.failing or 'none'}", flush=True)

            def one(number: int) -> tuple[int, Outcome]:
                with borrowed(copies) as copy:
                    return number, outcome(number, mutants[number], copy, reach, options)

            # a survivor is tried again where more tests are known to reach it
            known_tests = {number: len(reach.tests.get(str(number), [])) for number in mutants}
            waiting = [
                number
                for number in mutants
                if number not in results
                or (results[number].state == "survived" and results[number].reaching < known_tests[number])
            ]
            while waiting:
                for task in as_completed([pool.submit(one, number) for number in waiting]):
                    number, result = task.result()
                    result.note = places[number][1]
                    results[number] = result
                    save()
                    print(f"{result.state:9} {result.path}:{result.line}  {mutants[number].about}", flush=True)
                waiting = without_flaky(copies, pool, results, reach, options)
    save()
    print(summary(samples, results))
    print(f"{(time.time() - started) / 60:.0f} minutes; survivors:")
    for number, result in sorted(results.items()):
        if result.state == "survived":
            print(f"  {result.path}:{result.line}  {samples[number].about}")


if __name__ == "__main__":
    main()
