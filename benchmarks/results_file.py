"""Results files: what README and docs quote. Each holds the command, date, commit and machine beside the values.

    from results_file import write_results
    write_results("gpu_step_135m", {"step_s": 1.2})  # results/gpu_step_135m.json

A page names a value as {gpu_step_135m/step_s:.2f} (tests/docs/quoted_results.py). Where the tree is not a git checkout,
the environment variable WHET_COMMIT says which commit it is. A file also holds a digest of each room of the package
that was measured, or of the parts that the script names: where one of them has changed since, the pages say so beside
the number.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PACKAGE = ROOT / "src" / "whet"
CORE = ("data", "model", "objective", "record", "reward", "rollout", "settings", "training")
PLANNER = ("tools/planner", "record/speed.py", "rollout/window.py")  # with what it reads
# a change of these does not change what was measured
PAGES = (":!results", ":!docs", ":!*.md")


def child_environment(**variables: str) -> dict[str, str]:
    """The environment of a process that runs this tree's whet, with the packages that this one has."""
    paths = [str(PACKAGE.parent), *filter(None, sys.path[1:])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


def add_results_flag(parser: Any, name: str) -> None:
    """`--results` writes results/NAME.json; the plain flag takes the script's own name, which the pages quote."""
    parser.add_argument(
        "--results", nargs="?", const=name, metavar="NAME", help=f"write results/NAME.json; without NAME: {name}"
    )


def write_results(
    name: str,
    values: Mapping[str, Any],
    folder: Path = RESULTS,
    archived: bool = False,
    measured: Sequence[str] = (),
) -> Path:
    """Write FOLDER/NAME.json from values of this run, measured just now; the file that was there is replaced.

    `archived`: the values are of runs made before; date, commit, code and machine stay those of the file there.
    `measured`: folders and files of the package, where the script knows that the values depend on no others.
    """
    loaded = {module.split(".")[1] for module in sys.modules if module.startswith("whet.")}
    if unknown := [part for part in measured if not (PACKAGE / part).exists()]:
        raise ValueError(f"measured: the package has no {', '.join(unknown)}")
    # what runs in processes of its own is not seen here
    rooms = set(measured) or (loaded if "training" in loaded else {*loaded, *CORE})
    path = Path(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "command": command_line(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        **commit_of(ROOT),
        "code": {room: room_digest(room) for room in sorted(rooms) if (PACKAGE / room).exists()},
        "machine": machine(),
        "values": shortened(values),
    }
    if archived and path.exists():
        before = json.loads(path.read_text("utf-8"))
        record = {key: before[key] for key in before if key not in ("command", "values")} | {
            key: record[key] for key in ("command", "values")
        }
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)
    print(f"wrote {path.name}", file=sys.stderr)
    return path


@cache
def room_digest(room: str) -> str:
    """Of what a folder or file of the package does: its lines without comments and docstrings, on any Python."""
    total = hashlib.sha256()
    for path in [PACKAGE / room] if (PACKAGE / room).is_file() else sorted((PACKAGE / room).rglob("*.py")):
        text = path.read_text("utf-8")
        said = {
            line
            for node in statements(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        code = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in said]
        code = [line for line in code if line and not line.startswith("#")]
        total.update("\n".join([path.relative_to(PACKAGE).as_posix(), *code, ""]).encode())
    return total.hexdigest()[:16]


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Every statement of a file, however deep; `ast.walk` would look at each expression too, and take longer."""
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, name, ())


def has_changed(record: Mapping[str, Any]) -> bool:
    """Whether the code that a results file measured is another one by now; True for a file that does not say."""
    code = record.get("code")
    return not code or any(room_digest(room) != digest for room, digest in code.items())


def command_line() -> str:
    """What was typed, without the folders of this machine."""
    script = Path(sys.argv[0])
    inside = script.resolve().relative_to(ROOT) if script.resolve().is_relative_to(ROOT) else Path(script.name)
    words = ["python", inside.as_posix(), *(bare(argument) for argument in sys.argv[1:])]
    return shlex.join(words)


def bare(word: str) -> str:
    """An absolute path becomes its last name."""
    option, equals, value = word.partition("=")
    if equals and option.startswith("--"):
        return f"{option}={bare(value)}"
    return Path(word).name if Path(word).is_absolute() else word


def commit_of(root: Path) -> dict[str, Any]:
    """{"commit": short hash}, and {"dirty": True} where the code was changed since."""

    def asked(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout

    try:
        # a checkout of its own, not a folder that lies within another one
        if Path(asked("rev-parse", "--show-toplevel").strip()).resolve() == root:
            state: dict[str, Any] = {"commit": asked("rev-parse", "--short", "HEAD").strip()}
            if asked("status", "--porcelain", "--untracked-files=no", "--", ".", *PAGES).strip():
                state["dirty"] = True
            return state
    except (OSError, subprocess.CalledProcessError):
        pass
    if "WHET_COMMIT" not in os.environ:
        print(f"{root.name} is no git checkout and WHET_COMMIT is not set: the commit is unknown", file=sys.stderr)
    return {"commit": os.environ.get("WHET_COMMIT", "unknown")}


def machine() -> dict[str, Any]:
    """What a number has to be read with; no names of hosts or folders."""
    from whet.tools.bench.meter import machine_facts

    facts = machine_facts()
    machine = {key: facts[key] for key in ("processor", "cores", "load")}
    machine["python"] = platform.python_version()
    for package in ("torch", "transformers"):
        try:
            machine[package] = version(package)
        except PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None:
        machine["threads"] = torch.get_num_threads()
    machine["gpu"] = gpu_name()
    return machine


def gpu_name() -> str | None:
    """The name of the GPU, by the driver, since the process that writes may never have touched it; None: hidden."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return None
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout.split("\n")
    except (OSError, subprocess.SubprocessError):
        return None
    return names[0].strip() or None


def shortened(value: Any) -> Any:
    """Six significant digits: more is noise."""
    if isinstance(value, Mapping):
        return {str(key): shortened(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
