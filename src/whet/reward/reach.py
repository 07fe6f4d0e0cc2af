"""What a piece of Python code reaches: names, imports, files and packages. Nothing is run or imported for it."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

OUR_PACKAGE = __name__.partition(".")[0]
FRAME = (f"{OUR_PACKAGE}.types", f"{OUR_PACKAGE}.protocols")  # what every reward is held by, and no reward's content
WHOLE_FILE = 32 * 2**20  # bytes; of larger files (weights) the size and both ends are read
END = 2**20


def is_local(module: str | None) -> bool:
    """True for the project's own code: neither the standard library nor an installed package."""
    if not module or module in FRAME:
        return False
    top = module.partition(".")[0]
    if top == OUR_PACKAGE or module == "__main__":
        return True
    if top in sys.stdlib_module_names:
        return False
    origin = _origin(module)
    return origin is None or not {"site-packages", "dist-packages"} & set(Path(origin).parts)


def module_file(module: str) -> Path | None:
    """The source of a module, loaded or not; None for one without any."""
    origin = _origin(module)
    return Path(origin) if origin and origin.endswith(".py") and Path(origin).is_file() else None


def _origin(module: str) -> str | None:
    loaded = sys.modules.get(module)
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):
            spec = None
        origin = spec.origin if spec is not None else None
    return origin


def source_folder(function: Any) -> Path | None:
    """Where data files named by the function's code may lie, besides the working directory."""
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        return None
    return Path(file).parent if file and Path(file).is_file() else None


@functools.cache
def package_version(module: str | None) -> tuple[str, str] | None:
    """(name, version) of the installed package a module comes from; None for the standard library and local code."""
    top = (module or "").partition(".")[0]
    if not top or top in sys.stdlib_module_names or is_local(module) or top == OUR_PACKAGE:
        return None
    try:
        return top.replace("_", "-"), _public(importlib.metadata.version(top))
    except importlib.metadata.PackageNotFoundError:
        pass
    names = importlib.metadata.packages_distributions().get(top)
    return (names[0], _public(importlib.metadata.version(names[0]))) if names else None


def _public(version: str) -> str:
    """Without the local part: 2.11.0+cpu and 2.11.0+cu128 are the same release."""
    return version.partition("+")[0]


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code and all that is defined inside it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from codes(value)


def global_names(code: CodeType) -> list[str]:
    """The names of its module that the code reads."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME")
    found = {each.argval for inner in codes(code) for each in dis.get_instructions(inner) if each.opname in loads}
    return sorted(found)


def imported_names(code: CodeType, package: str) -> list[str]:
    """The modules that the code imports, wherever in it; `package` is what relative imports start from."""
    found: set[str] = set()
    for inner in codes(code):
        level: Any = 0  # an import takes the two values that were loaded last
        names: Any = None
        for each in dis.get_instructions(inner):
            if each.opname == "IMPORT_NAME":
                found.update(_modules(each.argval, level, names, package))
            elif each.opname.startswith("LOAD_"):
                level, names = names, each.argval
    return sorted(found)


def _modules(name: str, level: int, names: Any, package: str) -> Iterator[str]:
    if level:
        base = ".".join(package.split(".")[: len(package.split(".")) - level + 1])
        name = f"{base}.{name}" if name else base
    yield name
    for inner in names or ():
        if is_local(name) and module_file(f"{name}.{inner}") is not None:
            yield f"{name}.{inner}"


def literals(code: CodeType) -> list[str]:
    """The texts written in the code, those inside constant tuples and sets too."""
    found: set[str] = set()
    waiting: list[Any] = [value for inner in codes(code) for value in inner.co_consts]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, tuple | frozenset):
            waiting += value
    return sorted(found)


def named_path(text: str, folder: Path | None) -> Path | None:
    """The file or folder a text names: as it is, or beside the source; None for any other text."""
    if not 0 < len(text) <= 260 or "\n" in text or "\0" in text or not ("." in text or "/" in text):
        return None
    path = Path(text)
    for place in (path, *((folder / path,) if folder is not None else ())):
        try:
            if place.is_file() or (place.is_dir() and path.name not in ("", ".", "..")):
                return place
        except OSError:
            return None
    return None


def file_digest(path: Path) -> str:
    """Of a file's bytes, or of all files of a folder by their names."""
    whole = hashlib.sha256()
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    for file in files:
        size = file.stat().st_size
        name = file.relative_to(path).as_posix() if path.is_dir() else ""
        whole.update(f"{name} {size}\n".encode())
        with file.open("rb") as stream:
            if size <= WHOLE_FILE:
                whole.update(stream.read())
            else:
                whole.update(stream.read(END))
                stream.seek(size - END)
                whole.update(stream.read(END))
    return whole.hexdigest()[:16]


def code_without_source(code: CodeType) -> str:
    """What the code does, as text; for functions typed at a prompt."""
    told: list[Any] = []
    for inner in codes(code):
        constants = [value for value in inner.co_consts if not isinstance(value, CodeType)]
        told.append((inner.co_name, inner.co_code.hex(), inner.co_names, [_constant(value) for value in constants]))
    return repr(told)


def _constant(value: Any) -> str:
    if isinstance(value, frozenset | set):
        return f"set {sorted(map(_constant, value))}"
    if isinstance(value, Sequence | Mapping | int | float | complex | bytes | None):
        return repr(value)
    return type(value).__name__
