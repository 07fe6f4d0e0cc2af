"""The version of a reward: a short hash of what it is, so that every score can be traced to the reward that gave it.

Counted: the text of the file the reward is written in, its settings (a setting that names a file or folder counts with
the bytes found there), and the versions of the packages that file imports, whet's own among them. Not counted: other
files of the project that the reward's file imports, data files it opens by itself, environment variables, the standard
library, where the files lie, and the name a part is reported under.

An object with state that is not part of its meaning (a cache, a process) has an attribute `made_of`: a mapping of what
counts as its settings.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import itertools
import marshal
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.protocols import Reward
from whet.reward.call import RewardFunction, parameters_of
from whet.reward.combine import RewardPart

DIGITS = 12  # of a hash: enough to tell a million versions apart
INSTALLED = {"site-packages", "dist-packages"}  # folders of installed packages
SHORT = 60  # characters; longer values are shown by their digest
WHOLE_FILE = 256 * 2**20  # bytes; of larger files (weights) the size and pieces all over the file are read
PIECE, PIECES = 2**16, 512


@dataclass(frozen=True)
class RewardVersion:
    """The content of a reward: `pieces` maps what it is made of ("file f.py", "setting k") to a digest or a value."""

    hash: str
    name: str
    pieces: Mapping[str, str]


def reward_hash(reward: Reward | Callable[..., Any]) -> str:
    """12 hexadecimal digits that change with the reward's content, the same in every process and on every machine."""
    return reward_version(reward).hash


def reward_version(reward: Reward | Callable[..., Any]) -> RewardVersion:
    """The reward's hash with the pieces it stands for."""
    pieces = _pieces(reward)
    own = reward.func if isinstance(reward, functools.partial) else reward
    name = getattr(own, "name", None) or getattr(own, "__name__", None) or type(own).__name__
    return RewardVersion(pieces_hash(pieces), str(name), dict(sorted(pieces.items())))


def parts_version(parts: Sequence[RewardPart]) -> RewardVersion:
    """The version of a whole reward; the pieces of a part begin with its name."""
    pieces: dict[str, str] = {"parts": ", ".join(part.name for part in parts)}
    for part in parts:
        inner = _pieces(part.resolved_reward)
        for field in dataclasses.fields(part):
            if field.name not in ("reward", "settings"):
                inner[field.name] = _value_text(getattr(part, field.name))
        pieces |= {f"{part.name}: {piece}": content for piece, content in inner.items()}
    return RewardVersion(pieces_hash(pieces), pieces["parts"], dict(sorted(pieces.items())))


def pieces_hash(pieces: Mapping[str, str]) -> str:
    """The hash of a version, from its pieces."""
    return _digest("\n".join(f"{piece}\t{pieces[piece]}" for piece in sorted(pieces)))[:DIGITS]


def version_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What differs between the pieces of two versions, one short phrase each; a part that came or went is one."""

    def parts(pieces: Mapping[str, str]) -> set[str]:
        return {piece.partition(": ")[0] for piece in pieces if ": " in piece}

    changes = [f"{part} added" for part in sorted(parts(new) - parts(old))]
    changes += [f"{part} removed" for part in sorted(parts(old) - parts(new))]
    both = parts(old) & parts(new)
    for piece in sorted(old.keys() | new.keys()):
        if ": " in piece and piece.partition(": ")[0] not in both:
            continue
        before, after = old.get(piece), new.get(piece)
        if before is None:
            changes.append(f"{piece} added")
        elif after is None:
            changes.append(f"{piece} removed")
        elif before != after:
            is_digest = re.search(r"\b(?:file|code) ", piece) or "#" in before + after
            changes.append(f"{piece} changed" if is_digest else f"{piece} {before} -> {after}")
    return changes


def _pieces(reward: Any) -> dict[str, str]:
    code = _code_of(reward)
    written = {"name in its file": str(getattr(code, "__qualname__", type(code).__name__))}
    return {**written, **_source(code), **{f"setting {name}": _value_text(value) for name, value in _settings(reward)}}


def _code_of(reward: Any) -> Any:
    """The function or class the reward is written as, seen through wrappers."""
    if isinstance(reward, RewardFunction):
        return _code_of(reward.function)
    if isinstance(reward, functools.partial):
        return _code_of(reward.func)
    if inspect.isfunction(reward) or inspect.ismethod(reward) or inspect.isclass(reward):
        return inspect.unwrap(reward)
    return _code_of(reward.__wrapped__) if hasattr(reward, "__wrapped__") else type(reward)


def _settings(reward: Any) -> Iterator[tuple[str, Any]]:
    """The settings by name: defaults of a function's parameters, bound or not; what an object holds."""
    if isinstance(reward, RewardFunction):
        yield from _settings(reward.function)
    elif isinstance(reward, functools.partial) or inspect.isroutine(reward):
        if isinstance(reward, functools.partial):
            yield from ((str(number), value) for number, value in enumerate(reward.args, start=1))
        for parameter in parameters_of(reward, "reward"):
            if parameter.default is not parameter.empty:
                yield parameter.name, parameter.default
    else:
        yield from ((name, value) for name, value in _content(reward).items() if name != "name")


def _content(value: Any) -> Mapping[str, Any]:
    """What an object says it is made of, or all its public attributes."""
    stated = getattr(value, "made_of", None)
    if isinstance(stated, Mapping):
        return stated
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name)]
    state = {name: getattr(value, name) for name in slots} | dict(getattr(value, "__dict__", {}))
    return {name: content for name, content in state.items() if not name.startswith("_")}


def _source(code: Any) -> dict[str, str]:
    """The file of a function or class, and the packages that file imports."""
    name = getattr(code, "__qualname__", type(code).__name__)
    try:
        file = inspect.getsourcefile(code)
        if file and Path(file).is_file():
            text = Path(file).read_text(encoding="utf-8", errors="replace")
            # what its helpers import counts where it says so
            further = filter(None, map(_package, getattr(code, "packages", ())))
            packages = {**_packages(text, Path(file)), **{f"package {name}": version for name, version in further}}
            return {f"file {Path(file).name}": _digest(_plain(text)), **packages}
        return {f"code {name}": _digest(_plain(inspect.getsource(code)))}  # a cell of a notebook
    except (OSError, TypeError):
        # typed at a prompt
        compiled = getattr(code, "__code__", None)
        return {f"code {name}": _digest(marshal.dumps(compiled).hex()) if compiled else name}


def _packages(text: str, file: Path) -> dict[str, str]:
    versions = {}
    for module in _imported(text):
        if (file.parent / f"{module}.py").exists() or (file.parent / module).is_dir():
            continue  # a neighbour, whatever is installed under that name
        package = _package(module)
        if package is not None:
            versions[f"package {package[0]}"] = package[1]
    return versions


@functools.lru_cache(maxsize=64)  # a run asks for its rewards' versions three times
def _imported(text: str) -> frozenset[str]:
    """The modules outside the standard library that a file imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # whatever is wrong with the file is told by who runs it
        return frozenset()
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            imported.add(node.module.partition(".")[0])
    return frozenset(imported - sys.stdlib_module_names)


@functools.cache
def _package(module: str) -> tuple[str, str] | None:
    """(name, version) of the installed package a module comes from, without the local part of a version: 2.11.0+cpu
    and 2.11.0+cu128 are the same release.
    """
    own_name = module.replace("_", "-")
    # most packages are called like their module; a list of all that is installed takes seconds
    for name in itertools.chain([own_name], _packages_with(module)):
        try:
            return name, str(importlib.metadata.version(name)).partition("+")[0]
        except (importlib.metadata.PackageNotFoundError, OSError, ValueError, KeyError):
            continue  # not installed, or its metadata is damaged
    return None


def _packages_with(module: str) -> Iterator[str]:
    with contextlib.suppress(ImportError, ValueError, AttributeError):  # a module that is not there, or is none
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin and not INSTALLED & set(Path(spec.origin).parts):
            return  # a source folder on the path: no package has it
    yield from _installed_packages().get(module, [])


@functools.cache
def _installed_packages() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _value_text(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= SHORT else f"#{_digest(text)}"


def _text(value: Any) -> str:
    """A text that is equal for equal values, in every process."""
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, int | float):
        return str(int(value)) if value == value and abs(value) < 2**53 and value == int(value) else repr(value)
    if isinstance(value, str | Path):
        path = _named_path(str(value))
        return repr(str(value)) if path is None else f"{path.name} #{file_digest(path)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{_text(key)}: {_text(inner)}' for key, inner in value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(_text(inner) for inner in value)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_text(inner) for inner in value))}}}"
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return f"{value.dtype} {_text(value.tolist())}"
    if inspect.isroutine(value) or inspect.isclass(value) or isinstance(value, functools.partial | RewardFunction):
        name = getattr(value, "__qualname__", None) or getattr(value, "name", type(value).__name__)
        return f"{name} {_text(_pieces(value))}"
    content = _content(value)
    inner = ", ".join(f"{name}={_text(content[name])}" for name in sorted(content))
    # no attributes at all: a value of the standard library, say, that is described by its repr
    return f"{type(value).__qualname__}({inner})" if content else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _named_path(text: str) -> Path | None:
    """The file or folder that a setting names; None for any other text."""
    if not 0 < len(text) <= 260 or "\n" in text or "\0" in text or not ("." in text or "/" in text):
        return None
    path = Path(text)
    try:
        return path if path.is_file() or (path.is_dir() and path.name not in ("", ".", "..")) else None
    except OSError:
        return None


def file_digest(path: Path) -> str:
    """The digest of a file's bytes, or of all files of a folder by their names."""
    return files_digest(sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path], path)


def files_digest(files: Sequence[Path], path: Path) -> str:
    """The digest of the files' bytes, and of their names below the folder `path`."""
    whole = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        name = file.relative_to(path).as_posix() if path.is_dir() else ""
        whole.update(f"{name} {size}\n".encode())
        with file.open("rb") as stream:
            if size <= WHOLE_FILE:
                while piece := stream.read(2**20):
                    whole.update(piece)
            else:
                for number in range(PIECES):
                    stream.seek(number * (size - PIECE) // (PIECES - 1))
                    whole.update(stream.read(PIECE))
    return whole.hexdigest()[:16]


def _plain(text: str) -> str:
    """The source without what an editor or a checkout changes: line endings, and spaces at line ends."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
