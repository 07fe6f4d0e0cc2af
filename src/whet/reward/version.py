"""What a reward is made of, and a short hash of it.

Counted: the source text of the reward and of every function, class and module of the project it reaches (comments
too: the text as it is cannot be wrong about itself), the values of the constants it reads, its settings, the bytes of
the data files it names, and the versions of the packages it uses. Not counted: the standard library, what a package
itself depends on, the name a part is reported under, where the files lie, and `whet.types`.

An object with state that is not part of its meaning (a cache, a process) has an attribute `made_of`: a mapping that
is counted in place of its other attributes.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from whet.protocols import Reward
from whet.reward.call import Batched, PerSample
from whet.reward.reach import (
    code_without_source,
    file_digest,
    global_names,
    imported_names,
    is_local,
    literals,
    module_file,
    named_path,
    package_version,
    source_folder,
)
from whet.reward.score import Part

DIGITS = 12  # of a hash: enough to tell a million versions apart
SHORT = 60  # characters; longer values are told by their digest


@dataclass(frozen=True)
class RewardVersion:
    """The content of a reward: `pieces` maps what it is made of ("code f", "setting k") to a digest or a value."""

    hash: str
    name: str
    pieces: Mapping[str, str]


def reward_hash(reward: Reward | Callable[..., Any]) -> str:
    """12 hexadecimal digits that change with the reward's content, the same in every process and on every machine."""
    return reward_version(reward).hash


def reward_version(reward: Reward | Callable[..., Any]) -> RewardVersion:
    """The reward's hash with the pieces it stands for."""
    collector = _Collector()
    collector.visit_reward(reward)
    own = reward.func if isinstance(reward, functools.partial) else reward
    name = getattr(own, "name", None) or getattr(own, "__name__", None) or type(own).__name__
    return RewardVersion(pieces_hash(collector.pieces), str(name), dict(sorted(collector.pieces.items())))


def reward_parts_hash(parts: Sequence[Part], *also: Any) -> str:
    """The hash of a whole reward: its parts in their order, how each counts, and `also`, whatever else shapes it."""
    return parts_version(parts, *also).hash


def parts_version(parts: Sequence[Part], *also: Any) -> RewardVersion:
    """The version of a whole reward; the pieces of a part begin with its name."""
    pieces: dict[str, str] = {"parts": ", ".join(part.reward.name for part in parts)}
    for part in parts:
        collector = _Collector()
        collector.visit_reward(part.reward)
        for field in dataclasses.fields(part):
            if field.name != "reward":
                collector.note(field.name, getattr(part, field.name))
        pieces |= {f"{part.reward.name}: {piece}": digest for piece, digest in collector.pieces.items()}
    for place, value in enumerate(also):
        collector = _Collector()
        collector.note(f"also {place + 1}", value)
        pieces |= collector.pieces
    return RewardVersion(pieces_hash(pieces), pieces["parts"], dict(sorted(pieces.items())))


def pieces_hash(pieces: Mapping[str, str]) -> str:
    lines = "\n".join(f"{piece}\t{pieces[piece]}" for piece in sorted(pieces))
    return _digest(lines)[:DIGITS]


def version_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What differs between the pieces of two versions, one short phrase each; a part that came or went is one."""

    def parts(pieces: Mapping[str, str]) -> set[str]:
        return {piece.partition(": ")[0] for piece in pieces if ": " in piece}

    said = [f"{part} added" for part in sorted(parts(new) - parts(old))]
    said += [f"{part} removed" for part in sorted(parts(old) - parts(new))]
    both = parts(old) & parts(new)
    for piece in sorted(old.keys() | new.keys()):
        if ": " in piece and piece.partition(": ")[0] not in both:
            continue
        before, after = old.get(piece), new.get(piece)
        if before is None:
            said.append(f"{piece} added")
        elif after is None:
            said.append(f"{piece} removed")
        elif before != after:
            is_text = re.search(r"\b(?:code|module|bytecode|file|folder) ", piece) or "#" in before + after
            said.append(f"{piece} changed" if is_text else f"{piece} {before} -> {after}")
    return said


class _Collector:
    """Walks from a reward to all that it reaches."""

    def __init__(self) -> None:
        self.pieces: dict[str, str] = {}
        self._seen: dict[int, Any] = {}  # by id; holding the values keeps the ids theirs
        self._open: set[int] = set()
        self._modules: set[str] = set()

    def visit_reward(self, reward: Any) -> None:
        """The reward itself: its settings are named as such."""
        if isinstance(reward, PerSample | Batched):
            extra = [field.name for field in dataclasses.fields(reward)]
            bound = {name: getattr(reward, name) for name in extra if name not in ("name", "function", "parameters")}
            self.visit_reward(reward.function)
            self._bind(bound.pop("settings", None) or {})
            for name, value in bound.items():
                if value is not None:
                    self.note(name, value)
        elif isinstance(reward, functools.partial):
            self.visit_reward(reward.func)
            self._bind(reward.keywords)
            for place, value in enumerate(reward.args):
                self.note(f"setting {place + 1}", value)
        elif isinstance(reward, FunctionType):
            self._visit_function(reward, is_root=True)
        elif isinstance(reward, type | MethodType) or hasattr(reward, "__wrapped__"):
            self._text(reward, None)
        else:
            self._visit_class(type(reward))
            self._bind({name: value for name, value in _content(reward).items() if name != "name"})

    def note(self, piece: str, value: Any, folder: Path | None = None) -> None:
        text = self._text(value, folder)
        self._add(piece, text if len(text) <= SHORT else f"#{_digest(text)}")

    def _bind(self, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            self.pieces.pop(f"setting {name}", None)  # the default that the value stands in for
            self.note(f"setting {name}", value)

    def _add(self, piece: str, content: str) -> None:
        name, copies = piece, 1
        while self.pieces.get(name, content) != content:
            copies += 1
            name = f"{piece} ({copies})"
        self.pieces[name] = content

    def _visit_function(self, function: FunctionType, is_root: bool = False) -> None:
        if id(function) in self._seen:
            return
        self._seen[id(function)] = function
        if function.__module__ not in (None, "builtins") and not is_local(function.__module__):
            self._visit_package(function.__module__)
            return
        self._visit_source(function, function.__qualname__, function.__code__)
        folder = source_folder(function)
        for name, value in _defaults(function):
            self.note(f"setting {name}" if is_root else f"value {function.__qualname__}({name})", value, folder)
        self._visit_code(function.__code__, function.__globals__, folder)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if cell.cell_contents is not function:
                self.note(f"value {function.__qualname__}.{name}", cell.cell_contents, folder)
        for name, value in vars(function).items():
            self.note(f"value {function.__qualname__}.{name}", value, folder)

    def _visit_code(self, code: CodeType, names: Mapping[str, Any], folder: Path | None) -> None:
        for name in global_names(code):
            if name in names and not name.startswith("__"):
                self._visit_named(name, names[name], folder)
        for name in imported_names(code, names.get("__package__") or ""):
            self._visit_module(name)
        for text in literals(code):
            path = named_path(text, folder)
            if path is not None and path.is_file():
                self._add(f"file {path.name}", file_digest(path))

    def _visit_named(self, name: str, value: Any, folder: Path | None) -> None:
        if isinstance(value, ModuleType):
            self._visit_module(value.__name__)
        elif getattr(value, "__name__", None) == name:  # code, under its own name
            self._text(value, folder)
        elif not self._text(value, folder).endswith("()"):  # a logger says nothing
            self.note(f"value {name}", value, folder)

    def _visit_class(self, kind: type) -> None:
        if id(kind) in self._seen or not is_local(kind.__module__):
            self._visit_package(kind.__module__)
            return
        self._seen[id(kind)] = kind
        for base in kind.__bases__:
            self._visit_class(base)
        has_source = self._visit_source(kind, kind.__qualname__, None)
        for value in vars(kind).values():
            inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
            inner = getattr(inner, "__wrapped__", inner)
            if isinstance(inner, FunctionType) and inner.__module__ == kind.__module__:
                if not has_source:
                    self._visit_source(inner, inner.__qualname__, inner.__code__)
                self._visit_code(inner.__code__, inner.__globals__, source_folder(inner))

    def _visit_module(self, name: str) -> None:
        if not is_local(name):
            self._visit_package(name)
            return
        file = module_file(name)
        if file is None or name in self._modules:
            return
        self._modules.add(name)
        text = file.read_text(encoding="utf-8", errors="replace")
        self._add(f"module {name.rpartition('.')[2]}", _digest(_plain_source(text)))
        code = compile(text, str(file), "exec", dont_inherit=True)
        for inner in imported_names(code, name if file.name == "__init__.py" else name.rpartition(".")[0]):
            self._visit_module(inner)

    def _visit_package(self, module: str) -> None:
        package = package_version(module)
        if package is not None:
            self._add(f"package {package[0]}", package[1])

    def _visit_source(self, value: Any, name: str, code: CodeType | None) -> bool:
        try:
            self._add(f"code {name}", _digest(_plain_source(inspect.getsource(value))))
        except (OSError, TypeError):
            if code is not None:  # typed at a prompt: its bytecode differs between versions of Python
                self._add(f"bytecode {name}", _digest(code_without_source(code)))
            return False
        return True

    def _text(self, value: Any, folder: Path | None) -> str:
        """A text that is equal for equal values; functions and classes met on the way are visited."""
        if value is None or isinstance(value, bool | bytes):
            return repr(value)
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, int | float):
            return str(int(value)) if value == value and abs(value) < 2**53 and value == int(value) else repr(value)
        if isinstance(value, str | Path):
            path = named_path(str(value), folder)
            return repr(str(value)) if path is None else f"{path.name} #{file_digest(path)}"
        if isinstance(value, re.Pattern):
            return f"re {value.pattern!r} {value.flags}"
        if isinstance(value, type):
            self._visit_class(value)
            return value.__qualname__
        return self._nested_text(value, folder)

    def _nested_text(self, value: Any, folder: Path | None) -> str:
        if id(value) in self._open:
            return "itself"
        self._open.add(id(value))
        try:
            return "".join(self._inner_texts(value, folder))
        finally:
            self._open.discard(id(value))

    def _inner_texts(self, value: Any, folder: Path | None) -> Iterator[str]:
        if isinstance(value, Mapping):
            pairs = [f"{self._text(key, folder)}: {self._text(inner, folder)}" for key, inner in value.items()]
            yield f"{{{', '.join(sorted(pairs))}}}"
        elif isinstance(value, list | tuple):
            yield f"({', '.join(self._text(inner, folder) for inner in value)})"
        elif isinstance(value, set | frozenset):
            yield f"{{{', '.join(sorted(self._text(inner, folder) for inner in value))}}}"
        elif isinstance(value, FunctionType):
            self._visit_function(value)
            yield value.__qualname__
        elif isinstance(value, MethodType):
            self._visit_function(value.__func__)  # type: ignore[arg-type]
            yield f"{value.__func__.__qualname__} of {self._text(value.__self__, folder)}"
        elif isinstance(value, functools.partial):
            yield f"{self._text(value.func, folder)} with {self._text([value.args, value.keywords], folder)}"
        elif hasattr(value, "__wrapped__"):
            yield self._text(value.__wrapped__, folder)
        elif hasattr(value, "dtype") and hasattr(value, "shape"):
            numbers = value.tolist() if hasattr(value, "tolist") else value
            yield f"{value.dtype} {tuple(value.shape)} #{_digest(repr(numbers))}"
        else:
            yield self._object_text(value, folder)

    def _object_text(self, value: Any, folder: Path | None) -> str:
        kind = type(value)
        if isinstance(value, ModuleType):
            self._visit_module(value.__name__)
            return f"module {value.__name__.rpartition('.')[2]}"
        if inspect.isbuiltin(value):
            return str(value.__qualname__)
        if kind in (complex, range, slice) or kind.__module__ in (
            "_decimal",
            "decimal",
            "fractions",
            "datetime",
            "uuid",
        ):
            return repr(value)
        self._visit_class(kind)
        if isinstance(value, PerSample | Batched):
            self.visit_reward(value)
            return str(value.name)
        state = _content(value) if is_local(kind.__module__) else {}
        inner = ", ".join(f"{name}={self._text(state[name], folder)}" for name in sorted(state))
        return f"{kind.__qualname__}({inner})"


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    given = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    yield from zip(names[len(names) - len(given) :], given, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _content(value: Any) -> Mapping[str, Any]:
    """What an object says it is made of, or all its attributes."""
    stated = getattr(value, "made_of", None)
    if isinstance(stated, Mapping):
        return stated
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name)]
    return {name: getattr(value, name) for name in slots} | dict(getattr(value, "__dict__", {}))


def _plain_source(text: str) -> str:
    """Without what an editor or a checkout changes: line endings, the indentation around it, spaces at line ends."""
    return "\n".join(line.rstrip() for line in textwrap.dedent(text.expandtabs(4)).splitlines()).strip()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
