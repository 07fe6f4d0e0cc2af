"""A Python package as parsed text: what the checks read, on the real tree and on deliberately bad ones."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
GENERATED = {"__pycache__", "runs", "node_modules"}
GENERATED_AT_THE_TOP = GENERATED | {"build", "dist"}
# what begins with a # outside a string is a comment; the strings are there to be passed over
STRING_OR_COMMENT = re.compile(
    r""""{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""", re.S
)


@dataclass(frozen=True)
class Import:
    """One imported name, also from inside functions and `if TYPE_CHECKING`."""

    target: str  # the module, or module.name where that is no module of the package
    line: int
    lazy: bool  # inside a function
    typing: bool  # under TYPE_CHECKING


@dataclass(frozen=True)
class Module:
    """One file of a package. Equal text is equal, so that what was found in a file is found once."""

    name: str  # whet.objective.clip; whet.objective for its __init__.py
    path: Path
    place: str  # whet/objective/clip.py
    text: str

    @property
    def tree(self) -> ast.Module:
        return parsed(self.text, self.place)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def at(self, line: int) -> str:
        return f"{self.place}:{line}"


@lru_cache(maxsize=4)  # a tree is large: what is kept of all files is what was found in them
def parsed(text: str, place: str) -> ast.Module:
    return ast.parse(text, place)


def package_modules(package: Path) -> list[Module]:
    """Every Python file of the package folder, named from the package on."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found.append(Module(name, path, path.relative_to(package.parent).as_posix(), text))
    return found


@dataclass(frozen=True)
class Words:
    """What one file names and says, read in one pass over its tree."""

    identifiers: list[tuple[int, str]]  # (line, name) of every name in the file, used or bound
    bound: list[tuple[int, str, str]]  # (line, name, kind) of every name that it gives to a function, class or value
    strings: list[ast.Constant]
    imports: list[tuple[ast.AST, bool, bool]]  # what may import, whether inside a function, whether for types only


NAME_FIELDS = {"id", "attr", "name", "asname", "arg", "module"}
MAY_IMPORT = {ast.Import, ast.ImportFrom, ast.Call}
LATER = {*FUNCTIONS, ast.Lambda}  # what stands in them runs when they are called
NAMING = {ast.Name, ast.Attribute, ast.ClassDef, *FUNCTIONS, ast.arg, ast.alias}


@cache
def words_of(module: Module) -> Words:
    words = Words([], [], [], [])
    stack: list[tuple[ast.AST, bool, bool]] = [(module.tree, False, False)]
    while stack:
        node, lazy, typing = stack.pop()
        kind = type(node)
        if kind is ast.Constant:
            if isinstance(node.value, str):
                words.strings.append(node)
            continue
        if kind in MAY_IMPORT:
            words.imports.append((node, lazy, typing))
        if kind in NAMING and (bound := _bound(node)):
            words.bound.append((node.lineno, *bound))
        lazy = lazy or kind in LATER
        only_types = kind is ast.If and _is_type_checking(node.test)
        for field in kind._fields:
            value = getattr(node, field, None)
            if value is None or field == "ctx":
                continue
            below = typing or (only_types and field == "body")
            if isinstance(value, list):
                stack += [(child, lazy, below) for child in value if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST):
                stack.append((value, lazy, below))
            elif field in NAME_FIELDS and isinstance(value, str):
                words.identifiers.append((getattr(node, "lineno", 1), value))
    return words


def _bound(node: ast.AST) -> tuple[str, str] | None:
    """The name that a node gives to something, and to what."""
    if isinstance(node, ast.Name | ast.Attribute):
        if isinstance(node.ctx, ast.Store):
            return (node.id if isinstance(node, ast.Name) else node.attr), "value"
    elif isinstance(node, ast.ClassDef):
        return node.name, "class"
    elif isinstance(node, FUNCTIONS):
        return node.name, "function"
    elif isinstance(node, ast.arg):
        return node.arg, "value"
    elif isinstance(node, ast.alias) and node.asname:
        return node.asname, "value"
    return None


@cache
def imports(module: Module, known: frozenset[str]) -> list[Import]:
    """All imports of a file. `from a import b` is `a.b` where that is one of the `known` modules of the package."""
    nodes = sorted(words_of(module).imports, key=lambda entry: (entry[0].lineno, entry[0].col_offset))
    return [
        Import(target, node.lineno, lazy, typing)
        for node, lazy, typing in nodes
        for target in _targets(node, module, known)
    ]


def _targets(node: ast.AST, module: Module, known: frozenset[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = module.name.split(".")
            kept = parts[: len(parts) - node.level + module.is_package]
            base = ".".join([*kept, base] if base else kept)
        return list(dict.fromkeys(whole if (whole := f"{base}.{a.name}") in known else base for a in node.names))
    if isinstance(node, ast.Call) and node.args:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = node.args[0]
        if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
            return [str(first.value)]
    return []


def _is_type_checking(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def docstring_nodes(tree: ast.Module) -> set[ast.Constant]:
    """The constants that are docstrings."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(first.value)
    return found


@cache
def comments(text: str) -> list[tuple[int, str, bool]]:
    """(line, text without the #, alone on its line) of every comment."""
    found = []
    line, counted = 1, 0
    for match in STRING_OR_COMMENT.finditer(text):
        if match[0].startswith("#"):
            at = match.start()
            line, counted = line + text.count("\n", counted, at), at
            before = text[text.rfind("\n", 0, at) + 1 : at]
            found.append((line, match[0].lstrip("#").strip(), not before.strip()))
    return found


@cache
def name_words(identifier: str) -> list[str]:
    """`GroupMean_of2` -> group, mean, of2: the words of a snake_case or CamelCase name."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", identifier)
    return [word.lower() for word in spaced.split("_") if word]


def text_files(root: Path) -> Iterator[tuple[str, str]]:
    """(place, text) of every tracked text file; of every file that is not generated where there is no git."""
    for path in _tracked(root) or _walked(root):
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b"\0"
        if b"\0" in content:
            continue
        try:
            yield path.relative_to(root).as_posix(), content.decode("utf-8")
        except UnicodeDecodeError:
            continue


def _tracked(root: Path) -> list[Path]:
    if not (root / ".git").exists():
        return []
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    return [root / name for name in listed.stdout.split("\0") if name]


def _walked(root: Path) -> list[Path]:
    found = []
    for folder, names, files in os.walk(root):
        generated = GENERATED_AT_THE_TOP if Path(folder) == root else GENERATED
        names[:] = sorted(name for name in names if name not in generated and not name.startswith("."))
        found += [Path(folder) / name for name in sorted(files)]
    return found


def write_tree(folder: Path, files: dict[str, str]) -> Path:
    """A small tree on disk: path to text."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
