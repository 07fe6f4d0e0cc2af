"""Values as text: how arguments and results travel between the two sides of a unit-test job. Never pickle.

Runs inside the sandbox's own processes: only the standard library may be imported here. Only plain values are
rebuilt, and a value of a subclass arrives as its base: an object that claims to equal everything cannot pass for a
number. Arrays and frames are rebuilt where their library is loaded. What is no plain value is left to an `Export`.

A value is a list of nodes, children before parents, the last one the value itself. A child is an atom (null, true,
a number, a string) or [k], the k-th node; so neither depth nor shared parts cost anything.
"""

from __future__ import annotations

import builtins
import datetime
import decimal
import fractions
import re
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

MOST_NODES = 200_000
WIDEST_PLAIN = 1 << 53  # beyond it an integer travels in hexadecimal, which has no limit on digits

CONTAINERS: tuple[tuple[type, str], ...] = (
    *((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "f"), (deque, "q")),
    *((Counter, "C"), (OrderedDict, "O"), (dict, "d")),
)
MAPPINGS: dict[str, type] = {"d": dict, "C": Counter, "O": OrderedDict}
BUILDERS: dict[str, Callable[[Iterable[Any]], Any]] = {"l": list, "t": tuple, "s": set, "f": frozenset, "q": deque}


def _in_hexadecimal(*numbers: int) -> list[str]:
    return [hex(number) for number in numbers]


def _ratio(value: fractions.Fraction) -> list[str]:
    return _in_hexadecimal(value.numerator, value.denominator)


def _from_hexadecimal(texts: Iterable[str]) -> list[int]:
    return [int(text, 16) for text in texts]


# values without parts: the type, its tag, how it is written and read; a subclass travels as its base
SCALARS: tuple[tuple[type, str, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (int, "i", lambda value: hex(int.__index__(value)), lambda text: int(text, 16)),
    (bytes, "b", bytes.hex, bytes.fromhex),
    (bytearray, "B", bytearray.hex, bytearray.fromhex),
    (complex, "c", lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    (range, "r", lambda it: _in_hexadecimal(it.start, it.stop, it.step), lambda ends: range(*_from_hexadecimal(ends))),
    (decimal.Decimal, "D", decimal.Decimal.__str__, decimal.Decimal),
    (fractions.Fraction, "F", _ratio, lambda parts: fractions.Fraction(*_from_hexadecimal(parts))),
    (datetime.datetime, "T", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    (datetime.date, "A", datetime.date.isoformat, datetime.date.fromisoformat),
    (datetime.time, "H", datetime.time.isoformat, datetime.time.fromisoformat),
    (datetime.timedelta, "E", lambda it: [it.days, it.seconds, it.microseconds], lambda it: datetime.timedelta(*it)),
    (type(...), "1", lambda _: None, lambda _: ...),
    (type(NotImplemented), "0", lambda _: None, lambda _: NotImplemented),
)
READERS = {tag: read for _, tag, _, read in SCALARS}
EXACT = frozenset((*(kind for kind, _ in CONTAINERS), *(kind for kind, *_ in SCALARS), str, float, bool, type(None)))
VIEWS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (type({}.keys()), lambda items: dict.fromkeys(items).keys()),
    (type({}.values()), lambda items: dict(enumerate(items)).values()),
    (type({}.items()), lambda items: dict(items).items()),
)
NUMBERS = re.compile(r"[<|]?[biufc]\d{1,2}")  # the dtypes of arrays that are rebuilt


class NotPlain(Exception):
    """A value that cannot travel, and for which no handle may stand."""


Export = Callable[[Any], tuple[str, list[Any]] | None]
"""The tag and the parts that stand for an object whose type is none of the plain ones; None where it may travel as the
plain value that its class is derived from; or `NotPlain`."""
Load = Callable[[str, list[Any]], Any]
"""The value of a node with a tag this module does not know, from its parts."""


def refuse(value: Any) -> tuple[str, list[Any]] | None:
    """An `Export` without handles: what is no plain value cannot travel."""
    if isinstance(value, tuple(EXACT)):
        return None
    raise NotPlain(f"a {type(value).__name__} cannot be carried")


def nodes_of(value: Any, export: Export = refuse, shared: Mapping[str, type] | None = None) -> list[Any]:
    """The value as nodes. Objects of a `shared` class travel by their attributes."""
    nodes: list[Any] = []
    places: dict[int, Any] = {}  # of containers by identity: a finished one is [k], an open one None
    alive: list[Any] = []  # temporary objects must live as long as their identity is used
    stack: list[tuple[Any, list[Any] | None, str]] = [(value, None, "")]
    while stack:
        item, children, tag = stack.pop()
        if children is None:
            if id(item) in places or _is_atom(item):
                continue
            tag, children = _opened(item, export, shared)
            if tag in ("", "x"):
                nodes.append(children if tag == "x" else children[0])
                places[id(item)] = [len(nodes) - 1]
                alive.append(item)
                continue
            places[id(item)] = None
            alive += (item, children)
            stack.append((item, children, tag))
            stack.extend((child, None, "") for child in reversed(children) if not _is_atom(child))
            continue
        nodes.append([tag, [_reference(child, places) for child in children]])
        places[id(item)] = [len(nodes) - 1]
        if len(nodes) > MOST_NODES:
            raise NotPlain("the value is too large")
    nodes.append(_reference(value, places))
    return nodes


def _reference(child: Any, places: Mapping[int, Any]) -> Any:
    if _is_atom(child):
        return child
    number = places[id(child)]
    if number is None:
        raise NotPlain("a value that contains itself cannot be carried")
    return number


def _is_atom(value: Any) -> bool:
    kind = type(value)
    if kind is int:
        return -WIDEST_PLAIN < value < WIDEST_PLAIN
    return value is None or kind in (bool, float, str)


def _opened(item: Any, export: Export, shared: Mapping[str, type] | None) -> tuple[str, list[Any]]:
    """(tag, children) of a container; ("x", node) of a finished node; ("", [atom]) of a subclass of an atom."""
    kind = type(item)
    if kind not in EXACT:
        if shared is not None and shared.get(kind.__name__) is kind:
            return f"o{kind.__name__}", [part for pair in vars(item).items() for part in pair]
        if (opened := _opened_of_library(item, kind)) or (opened := export(item)):
            return opened
    for base, tag in CONTAINERS:
        if isinstance(item, base):
            # the base's own methods: a subclass may say anything
            plain: Any = base
            return tag, list(chain(*plain.items(item)) if tag in MAPPINGS else plain.__iter__(item))
    if isinstance(item, str):
        return "", [str.__str__(item)]
    if isinstance(item, float):
        return "", [float.__float__(item)]
    if isinstance(item, int) and _is_atom(int.__index__(item)):
        return "", [int.__index__(item)]
    for scalar, tag, write, _ in SCALARS:
        if isinstance(item, scalar):
            return "x", [tag, write(item)]
    raise NotPlain(f"a {kind.__name__} cannot be carried")


def _opened_of_library(item: Any, kind: type) -> tuple[str, list[Any]] | None:
    """A value of a built-in kind or of a library that both sides have, by its parts."""
    if isinstance(item, type):
        name = str(item.__name__)
        return ("x", ["y", name]) if getattr(builtins, name, None) is item else None
    for number, (view, _) in enumerate(VIEWS):
        if kind is view:
            return "v", [number, list(item)]
    library = (getattr(kind, "__module__", "") or "").split(".")[0]
    if library == "builtins" and getattr(builtins, kind.__name__, None) is kind and issubclass(kind, Exception):
        return f"e{kind.__name__}", [*item.args]
    if library == "numpy" and hasattr(item, "tolist"):
        return "n", [str(item.dtype.str), list(item.shape), item.tolist()]
    if library == "pandas" and kind.__name__ == "Series":
        return "p", [[item.name], item.index.tolist(), [item.tolist()], [str(item.dtype)]]
    if library == "pandas" and kind.__name__ == "DataFrame":
        columns = [item.iloc[:, column] for column in range(item.shape[1])]
        types = [str(column.dtype) for column in columns]
        return "P", [item.columns.tolist(), item.index.tolist(), [column.tolist() for column in columns], types]
    if library == "pathlib" and hasattr(item, "as_posix"):
        return "/", [str(item)]
    return None


def value_of(nodes: Sequence[Any], load: Load | None = None, shared: Mapping[str, type] | None = None) -> Any:
    """The value of `nodes`; anything malformed is a `NotPlain`. The text may come from hostile code."""
    built: list[Any] = []

    def child(reference: Any) -> Any:
        return built[reference[0]] if isinstance(reference, list) else reference

    try:
        for node in nodes[:-1]:
            built.append(_built(node, child, load, shared) if isinstance(node, list) else node)
        return child(nodes[-1])
    except NotPlain:
        raise
    except Exception as error:
        raise NotPlain(f"not a value: {type(error).__name__}") from None


def _built(node: list[Any], child: Callable[[Any], Any], load: Load | None, shared: Mapping[str, type] | None) -> Any:
    tag, content = node[0], node[1]
    if tag in BUILDERS:
        return BUILDERS[tag](child(node) for node in content)
    if tag in READERS:
        return READERS[tag](content)
    if tag == "y" and isinstance(getattr(builtins, content), type):
        return getattr(builtins, content)
    parts = [child(node) for node in content]
    if tag in MAPPINGS:
        return MAPPINGS[tag](dict(zip(parts[::2], parts[1::2], strict=True)))
    if shared is not None and tag[:1] == "o" and tag[1:] in shared:
        made: Any = object.__new__(shared[tag[1:]])
        vars(made).update(zip(parts[::2], parts[1::2], strict=True))
        return made
    if tag[:1] == "e" and len(tag) > 1 and issubclass(kind := getattr(builtins, tag[1:]), Exception):
        return kind(*parts)
    return (load or of_library)(tag, parts)


def of_library(tag: str, parts: list[Any]) -> Any:
    """A `Load` without handles: a view, an array, a frame or a path."""
    if tag not in LIBRARY:
        raise NotPlain(f"unknown tag {tag!r}")
    return LIBRARY[tag](*parts)


def _view(number: int, items: list[Any]) -> Any:
    return VIEWS[number][1](items)


def _array(dtype: str, shape: list[int], items: Any) -> Any:
    """An array where numpy is loaded and the type is one of numbers; else the lists that it holds."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not shape:
        return items
    made = numpy.array(items, dtype=dtype if NUMBERS.fullmatch(dtype) else None)
    return made if list(made.shape) == shape else made.reshape(shape)


def _frame(columns: list[Any], index: list[Any], values: list[list[Any]], dtypes: list[str]) -> Any:
    if "pandas" not in sys.modules:
        raise NotPlain("pandas is not loaded here")
    pandas: Any = sys.modules["pandas"]
    series = [pandas.Series(items, index=index, dtype=kind) for items, kind in zip(values, dtypes, strict=True)]
    made = pandas.DataFrame(dict(enumerate(series)), index=index)
    made.columns = columns
    return made


def _series(names: list[Any], index: list[Any], values: list[list[Any]], dtypes: list[str]) -> Any:
    return _frame([0], index, values, dtypes).iloc[:, 0].rename(names[0])


def _path(text: str) -> Any:
    import pathlib

    return pathlib.Path(text)


LIBRARY: dict[str, Callable[..., Any]] = {"v": _view, "n": _array, "p": _series, "P": _frame, "/": _path}
