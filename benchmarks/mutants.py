"""Would the tests notice? Changes one place of the package at a time, runs the tests near it, and counts who noticed.

    python benchmarks/mutants.py --rooms train rollout pipeline --count 100 --seed 1

A mutant is one small change: a comparison turned, a sign, an operator, a constant off by one, a condition negated.
It is killed when a test fails (or hangs), and survives when all pass. The tests near a module are those of its room
(and of FURTHER) and those that import it. The
tree is copied first: nothing of yours is changed. Ctrl-C prints what is known so far.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Pow: "*"}
# rooms whose modules are tested through a front door, from other folders as well
FURTHER = {"objective": ("oracle", "properties")}
NO_TESTS = 5  # pytest's exit code where every test was deselected
SKIPPED = ("kernels", "cuda", "gpu")  # run on a GPU only


@dataclass(frozen=True)
class Mutant:
    """A place in the source and what is put there instead."""

    path: str  # relative to the root
    line: int
    start: int  # offsets in the file's text
    end: int
    new: str
    about: str


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every place of a file that can be changed; texts, annotations and raised errors are left alone."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    relative = path.relative_to(ROOT).as_posix()

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def mutant(node: ast.expr, new: str, about: str) -> Mutant:
        span = offset(node.lineno, node.col_offset), offset(node.end_lineno or 0, node.end_col_offset or 0)
        return Mutant(relative, node.lineno, *span, new, about)

    def source(node: ast.expr) -> str:
        return ast.get_source_segment(text, node) or ""

    def visit(node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            new = COMPARISONS[type(node.ops[0])]
            left, right = source(node.left), source(node.comparators[0])
            yield mutant(node, f"({left}) {new} ({right})", f"{source(node)}  ->  {left} {new} {right}")
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _is_text(node):
            new = OPERATORS[type(node.op)]
            left, right = source(node.left), source(node.right)
            yield mutant(node, f"(({left}) {new} ({right}))", f"{source(node)}  ->  {left} {new} {right}")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            inner = source(node.operand)
            yield mutant(node, f"({inner})", f"{source(node)}  ->  {inner}")
        if isinstance(node, ast.BoolOp):
            word, other = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
            joined = other.join(f"({source(value)})" for value in node.values)
            yield mutant(node, f"({joined})", f"{source(node)}  ->  {word.strip()} becomes {other.strip()}")
        if isinstance(node, ast.IfExp | ast.If) and not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield mutant(node.test, f"(not ({source(node.test)}))", f"if {source(node.test)}  ->  if not ...")
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield mutant(node, repr(node.value + 1), f"{source(node)}  ->  {node.value + 1!r}")
        for field, child in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, ast.AST):
                    yield from visit(part)

    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from visit(node)


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(inner, ast.JoinedStr) or (isinstance(inner, ast.Constant) and isinstance(inner.value, str))
        for inner in ast.walk(node)
    )


def tests_near(module: Path) -> list[str]:
    """The tests of the module's room, and every test file that imports the module."""
    room = module.relative_to(ROOT / "src" / "whet").parts[0].removesuffix(".py")
    dotted = ".".join(module.relative_to(ROOT / "src").with_suffix("").parts)
    package, _, name = dotted.rpartition(".")
    pattern = re.compile(
        rf"(from|import) {re.escape(dotted)}\b|from {re.escape(package)} import [^\n]*\b{re.escape(name)}\b"
    )
    paths = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    paths = [path for path in paths if not path.startswith(("tests/architecture/", "tests/gpu/", "tests/peers/"))]
    importing = [path for path in paths if pattern.search((ROOT / path).read_text("utf-8"))]
    further = tuple(f"tests/{name}/" for name in (room, *FURTHER.get(room, ())))
    importing.sort(key=lambda path: not path.startswith(f"tests/{room}/"))  # the nearest fail first
    return importing + [path for path in paths if path.startswith(further) and path not in importing]


def run_tests(copy: Path, files: list[str], left_out: list[str], seconds: float, *flags: str) -> tuple[str, list[str]]:
    """ "passed", "failed" or "timeout" of these files in a copy of the tree, and the tests that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *flags, *files]
    command += [word for test in left_out for word in ("--deselect", test)]
    paths = os.pathsep.join([str(copy / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    alone = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env={**os.environ, **alone}, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return "timeout", files
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    return "passed" if done.returncode in (0, NO_TESTS) else "failed", failed or files


def outcome(mutant: Mutant, copy: Path, left_out: list[str], seconds: float) -> str:
    """What the tests near a mutant say of it."""
    target, original = copy / mutant.path, ROOT / mutant.path
    text = original.read_text(encoding="utf-8")
    target.write_text(text[: mutant.start] + mutant.new + text[mutant.end :], encoding="utf-8")
    try:
        return run_tests(
            copy, [test for test in tests_near(original) if test not in left_out], left_out, seconds, "-x"
        )[0]
    finally:
        target.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", default=["train", "rollout", "pipeline"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=600.0, help="after which a mutant counts as killed: it hangs")
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    files = [path for room in options.rooms for path in sorted((ROOT / "src" / "whet").glob(f"{room}*/**/*.py"))]
    files = [path for path in files if not any(word in path.stem for word in SKIPPED)]
    known = [mutant for path in files for mutant in mutants_of(path)]
    chosen = random.Random(options.seed).sample(known, min(options.count, len(known)))
    print(f"{len(known)} places in {len(files)} files; {len(chosen)} are tried", flush=True)
    copies: SimpleQueue[Path] = SimpleQueue()
    survivors: list[Mutant] = []
    counts: Counter[str] = Counter()
    started = time.time()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        for number in range(options.jobs):
            copy = Path(scratch) / f"tree{number}"
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__"))
            copies.put(copy)

        def unchanged(file: str) -> list[str]:
            copy = copies.get()
            try:
                state, failed = run_tests(copy, [file], [], options.seconds)
                return failed if state != "passed" else []
            finally:
                copies.put(copy)

        tests = sorted({test for mutant in chosen for test in tests_near(ROOT / mutant.path)})
        left_out = sorted({test for failed in pool.map(unchanged, tests) for test in failed})
        print(
            f"{len(tests)} test files; left out, since they fail without any change: {left_out or 'none'}", flush=True
        )

        def run(mutant: Mutant) -> tuple[Mutant, str]:
            copy = copies.get()
            try:
                return mutant, outcome(mutant, copy, left_out, options.seconds)
            finally:
                copies.put(copy)

        tasks = [pool.submit(run, mutant) for mutant in chosen]
        try:
            for task in as_completed(tasks):
                mutant, state = task.result()
                counts[state] += 1
                if state == "passed":
                    survivors.append(mutant)
                    print(f"survives  {mutant.path}:{mutant.line}  {mutant.about}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True, wait=False)
    tried, killed = counts.total(), counts["failed"] + counts["timeout"]
    print(
        f"{killed} of {tried} mutants killed ({killed / max(tried, 1):.0%}), {counts['timeout']} of them by the time "
        f"limit, in {(time.time() - started) / 60:.0f} minutes"
    )
    if options.out:
        result = {"rooms": options.rooms, "seed": options.seed, "tried": tried, "killed": killed, "left_out": left_out}
        options.out.write_text(
            json.dumps({**result, "survivors": [vars(survivor) for survivor in survivors]}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
