"""Values as text: how arguments and results travel between the two sides of a unit-test job. Never pickle.

Runs inside the sandbox's own processes: only the standard library may be imported here. Only plain values are
rebuilt, and a value of a subclass arrives as its base: an object that claims to equal everything cannot pass for a
number. What is no plain value becomes a `handle` that stays where the object lives.

A value is a list of nodes, children before parents, the last one the value itself. A child is an atom (null, true,
a number, a string) or [k], the k-th node; so neither depth nor shared parts cost anything.
"""

from __future__ import annotations

import builtins
import datetime
import decimal
import fractions
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

MOST_NODES = 200_000
WIDEST_PLAIN = 1 << 53  # beyond it an integer travels in hexadecimal, which has no limit on digits

CONTAINERS: tuple[tuple[type, str], ...] = (
    *((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "f"), (deque, "q")),
    *((Counter, "C"), (dict, "d")),
)
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
)
READERS = {tag: read for _, tag, _, read in SCALARS}


class NotPlain(Exception):
    """A value that cannot travel, and for which no handle may stand."""


Export = Callable[[Any], list[Any]]
"""The node that stands for an object that is no plain value, or `NotPlain`."""
Load = Callable[[str, Any], Any]
"""The value of a node with a tag this module does not know."""


def refuse(value: Any) -> list[Any]:
    """An `Export` without handles: what is no plain value cannot travel."""
    raise NotPlain(f"a {type(value).__name__} cannot be carried")


def nodes_of(value: Any, export: Export = refuse, shared: Mapping[str, type] | None = None) -> list[Any]:
    """The value as nodes. Objects of a `shared` class travel by their attributes."""
    nodes: list[Any] = []
    places: dict[int, Any] = {}  # of containers by identity: a finished one is [k], an open one None
    kept: list[Any] = []  # temporary objects must live as long as their identity is used
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
                kept.append(item)
                continue
            places[id(item)] = None
            kept.append(item)
            stack.append((item, children, tag))
            stack.extend((child, None, "") for child in reversed(children) if not _is_atom(child))
            continue
        if tag == "=":
            places[id(item)] = _reference(children[0], places)
            kept.append(children)
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
    place = places[id(child)]
    if place is None:
        raise NotPlain("a value that contains itself cannot be carried")
    return place


def _is_atom(value: Any) -> bool:
    kind = type(value)
    if kind is int:
        return -WIDEST_PLAIN < value < WIDEST_PLAIN
    return value is None or kind in (bool, float, str)


def _opened(item: Any, export: Export, shared: Mapping[str, type] | None) -> tuple[str, list[Any]]:
    """(tag, children) of a container; ("x", node) of a finished node; ("", [atom]) of a subclass of an atom;
    ("=", [other]) of an object that travels as another one."""
    for kind, tag in CONTAINERS:
        if isinstance(item, kind):
            # the base's own methods: a subclass may say anything
            base: Any = kind
            if issubclass(kind, dict):
                return tag, [each for pair in base.items(item) for each in pair]
            return tag, list(base.__iter__(item))
    if isinstance(item, str):
        return "", [str.__str__(item)]
    if isinstance(item, float):
        return "", [float.__float__(item)]
    if isinstance(item, int) and _is_atom(int.__index__(item)):
        return "", [int.__index__(item)]
    for kind, tag, write, _ in SCALARS:
        if isinstance(item, kind):
            return "x", [tag, write(item)]
    if isinstance(item, type):
        name = str(item.__name__)
        return "x", (["y", name] if getattr(builtins, name, None) is item else export(item))
    kind = type(item)
    if shared is not None and shared.get(kind.__name__) is kind:
        return f"o{kind.__name__}", [each for pair in vars(item).items() for each in pair]
    if (getattr(kind, "__module__", "") or "").split(".")[0] == "numpy" and hasattr(item, "tolist"):
        return "=", [item.tolist()]
    return "x", export(item)


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
        return BUILDERS[tag](child(each) for each in content)
    if tag in ("d", "C"):
        pairs = {child(key): child(value) for key, value in zip(content[::2], content[1::2], strict=True)}
        return pairs if tag == "d" else Counter(pairs)
    if tag in READERS:
        return READERS[tag](content)
    if tag == "y" and isinstance(getattr(builtins, content), type):
        return getattr(builtins, content)
    if shared is not None and tag[:1] == "o" and tag[1:] in shared:
        made: Any = object.__new__(shared[tag[1:]])
        vars(made).update({child(key): child(value) for key, value in zip(content[::2], content[1::2], strict=True)})
        return made
    if load is None:
        raise NotPlain(f"unknown tag {tag!r}")
    return load(tag, content)
