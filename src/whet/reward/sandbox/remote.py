"""Objects of one process, used in another: the code under test and its tests talk to each other's objects by proxies.

Runs inside the sandbox's own processes: only the standard library may be imported here. A plain value travels whole
(`literal`). For any other object a proxy stands on the other side, an instance of a class that mirrors the object's:
its name, its bases, exactly the special methods that it has. So `isinstance`, `except`, `with`, `next`, `sorted`,
`repr` and the rest work as if the object were here, and whatever they do happens where it lives.

`Peer` is either end. The tests' one is a `SuitePeer` (`suite_peer`), the code's a `CandidateServer` (`candidate`).
"""

from __future__ import annotations

import _thread
import importlib
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from whet.reward.sandbox import literal, wire

LARGEST_ANSWER = 1 << 24  # bytes
MOST_TRACKED = 16  # containers whose changes are passed on
LONGEST_TRACKED = 10_000  # members of an argument that is kept in step: it is compared with every message
HELD_HERE = 3  # references to an argument that nobody keeps: in the list of them, by its name, by who counts
OWN_MODULES = ("candidate", "tests", "__main__")
# types whose classes may be derived from here: of the first an instance is a value that never changes
VALUES: tuple[type, ...] = (int, float, complex, str, bytes, tuple, frozenset)
NUMBERS_AND_TEXT = (int, float, complex, str, bytes)
COLLECTIONS: tuple[type, ...] = (list, dict, set, deque)
EQUALITY = ("__eq__", "__ne__")
ORDER = ("__lt__", "__le__", "__gt__", "__ge__")
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or", "xor")
ARITHMETIC = tuple(f"__{start}{name}__" for name in (*BINARY, "lshift", "rshift") for start in ("", "r", "i"))
CONVERSIONS = ("abs", "neg", "pos", "invert", "round", "int", "float", "complex", "index", "trunc", "floor", "ceil")
AS_NUMBER = tuple(f"__{name}__" for name in (*CONVERSIONS, "bool"))
OTHERS = (
    *("call", "len", "iter", "next", "reversed", "contains", "getitem", "setitem", "delitem", "hash", "bytes"),
    *("str", "repr", "format", "enter", "exit", "aenter", "aexit", "aiter", "anext", "await", "fspath", "length_hint"),
)
SPECIALS = frozenset((*EQUALITY, *ORDER, *ARITHMETIC, *AS_NUMBER, *(f"__{name}__" for name in OTHERS)))
SHOWN = frozenset(("__name__", "__qualname__", "__doc__", "__dict__", "__annotations__", "__wrapped__", "__members__"))
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


class CannotJudge(BaseException):
    """The tests as they are can judge nothing, whatever the code does. No test may catch it."""


class RemoteType(type):
    """The class of a proxy: itself the proxy of a class."""

    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> Any:
        raise CannotJudge(f"the tests derive a class, {name}, from one of the code's")

    @property
    def __doc__(cls) -> Any:  # type: ignore[override]
        return cls._ask("attribute", "__doc__")

    def _ask(cls, operation: str, *arguments: Any, **named: Any) -> Any:
        peer, number = vars(cls)["_whet_class"]
        return peer.ask(operation, number, arguments, named)

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return vars(cls)["_whet_class"][0].construct(cls, arguments, named)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name not in SHOWN:
            raise AttributeError(name)
        return cls._ask("attribute", name)

    def __setattr__(cls, name: str, value: Any) -> None:
        cls._ask("assign", name, value)

    def __delattr__(cls, name: str) -> None:
        cls._ask("delete", name)

    def __iter__(cls) -> Any:
        return cls._ask("special", "__iter__")

    def __len__(cls) -> int:
        return int(cls._ask("special", "__len__"))

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        return cls._ask("special", "__getitem__", key)

    def __contains__(cls, item: Any) -> bool:
        return bool(cls._ask("special", "__contains__", item))

    def __dir__(cls) -> list[str]:
        return list(cls._ask("names"))


class Remote:
    """A proxy of an object that lives on the other side."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return asked(self, "attribute", "__dict__")

    @property
    def __cause__(self) -> Any:
        """The cause of an exception; None where nobody is left to ask."""
        try:
            return asked(self, "attribute", "__cause__")
        except Exception:
            return None

    @__cause__.setter
    def __cause__(self, cause: Any) -> None:
        BaseException.__cause__.__set__(self, cause)  # type: ignore[union-attr]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in SHOWN:
            raise AttributeError(name)
        return asked(self, "attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):  # such as the traceback of an exception
            object.__setattr__(self, name, value)
        else:
            asked(self, "assign", name, value)

    def __delattr__(self, name: str) -> None:
        asked(self, "delete", name)

    def __dir__(self) -> list[str]:
        return list(asked(self, "names"))

    def __copy__(self) -> Any:
        return asked(self, "copy", False)

    def __deepcopy__(self, memo: Any) -> Any:
        return asked(self, "copy", True)


class RemoteFunction(Remote):
    """A function or method of the other side."""

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return asked(self, "call", *arguments, **named)


class RemoteName(RemoteFunction):
    """A name that the tests expect of the code, which does not have it, or the one function that can be meant."""

    def __init__(self, peer: Peer, name: str) -> None:
        object.__setattr__(self, "_whet_remote", (peer, name))


def asked(proxy: Remote, operation: str, /, *arguments: Any, **named: Any) -> Any:
    """Have the other side do something with a proxy's object."""
    peer, target = object.__getattribute__(proxy, "_whet_remote")
    return peer.ask(operation, target, arguments, named)


# the object's own text, not this module's; in every mirrored class anew, since a class has one of its own
DOC = property(lambda self: asked(self, "attribute", "__doc__"))
RemoteFunction.__doc__ = DOC  # type: ignore[assignment]


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Any, /, *arguments: Any, **named: Any) -> Any:
        return object.__getattribute__(self, "_whet_remote")[0].special(self, name, arguments, named)

    method.__name__ = name
    return method


def _method(name: str) -> Callable[..., Any]:
    return lambda self, /, *arguments, **named: asked(self, "attribute", name)(*arguments, **named)


FORWARDED = {name: _forwarded(name) for name in SPECIALS}


class Peer:
    """One end of the connection: it asks, and it answers what the other end asks."""

    tracks = True  # the containers of its objects that the other end reads are kept in step

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.shared: dict[str, type] = {}  # classes that both sides have
        self.objects: list[Any] = []  # of this side that the other one knows, by number
        self.numbers: dict[int, int] = {}
        self.described: set[int] = set()
        self.proxies: dict[int, Any] = {}
        self.classes: dict[int, Any] = {}
        self.tracked: deque[list[Any]] = deque(maxlen=MOST_TRACKED)  # [number, container, nodes when last in step]
        self.lock = _thread.RLock()

    def ask(
        self, operation: str, target: str | int, arguments: Sequence[Any] = (), named: dict[str, Any] | None = None
    ) -> Any:
        """Have the other side do something with one of its objects; what came of it."""
        with self.lock:
            message: dict[str, Any] = {
                **{"do": operation, "target": target, "arguments": [self.nodes(argument) for argument in arguments]},
                "named": {name: self.nodes(value) for name, value in (named or {}).items()},
            }
            self.send(message)
            while "do" in (answer := self.receive()):
                self.send(self.answer(answer))
            if "raised" in answer:
                raise self.raised(answer)
            for argument, nodes in zip(arguments, answer.get("changed", ()), strict=False):
                if nodes is not None and type(argument) in (list, dict, set):
                    _overwrite(argument, self.value(nodes))
            for argument, number, nodes in zip(arguments, answer.get("kept", ()), message["arguments"], strict=False):
                if number is not None:
                    self.tracked.append([number, argument, nodes])
            if (same := next((entry[1] for entry in self.tracked if entry[0] == answer.get("same")), None)) is not None:
                return same
            value = self.value(answer["value"])
            if "track" in answer and type(value) in (list, dict, set):
                self.tracked.append([answer["track"], value, answer["value"]])
            return value

    def special(self, proxy: Any, name: str, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Call a special method of a proxy's object."""
        if name == "__call__":
            return asked(proxy, "call", *arguments, **named)
        return asked(proxy, "special", name, *arguments, **named)

    def construct(self, kind: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Call a class of the other side."""
        return kind._ask("call", *arguments, **named)

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what a message asks, and say what came of it."""
        try:
            target = self.target(message["target"])
            arguments = [self.value(node) for node in message["arguments"]]
            named = {name: self.value(node) for name, node in message["named"].items()}
            result = self.perform(message["do"], target, arguments, named)
            answer: dict[str, Any] = {"value": self.nodes(result)}
            if same := [number for number, container, _ in self.tracked if container is result]:
                answer["same"] = same[-1]
            if message["do"] == "call":
                changed = [
                    self.nodes(argument) if type(argument) in (list, dict, set) else None for argument in arguments
                ]
                answer["changed"] = changed if any(changed) else []
                del result
                if self.tracks and any(changed):
                    answer["kept"] = [self._kept(arguments, index, changed[index]) for index in range(len(changed))]
            elif self.tracks and message["do"] == "attribute" and type(result) in (list, dict, set):
                answer["track"] = self.number(result)
                self.tracked.append([answer["track"], result, answer["value"]])
            return answer
        except CannotJudge:
            raise
        except BaseException as error:
            return self.failure(error)

    def _kept(self, arguments: list[Any], index: int, nodes: Any) -> int | None:
        """The number of a container of the other side that somebody here still holds: it is kept in step."""
        argument = arguments[index]
        if nodes is None or sys.getrefcount(argument) <= HELD_HERE or len(argument) > LONGEST_TRACKED:
            return None
        number = self.number(argument)
        self.tracked.append([number, argument, nodes])
        return number

    def failure(self, error: BaseException) -> dict[str, Any]:
        """The answer for what was raised."""
        kinds = [kind.__name__ for kind in type(error).__mro__]
        try:
            return {"error": kinds, "raised": self.nodes(error)}
        except Exception:
            return {"error": kinds, "raised": literal.nodes_of(RuntimeError(kinds[0]))}

    def target(self, target: str | int) -> Any:
        """The object that a message is about."""
        return self.objects[int(target)]

    def perform(self, operation: str, target: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Perform one operation on an object of this side."""
        return OPERATIONS[operation](target, *arguments, **named)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, with what has changed here since the last one."""
        if self.tracked:
            message["updates"] = updates = []
            for entry in self.tracked:
                number, container, before = entry
                entry[2] = nodes = self.nodes(container)
                if nodes != before:
                    updates.append([number, nodes])
        wire.send(self.channel, message)

    def receive(self) -> dict[str, Any]:
        """The next message; what has changed on the other side changes here too."""
        message = wire.receive(self.channel, LARGEST_ANSWER)
        if not isinstance(message, dict):
            raise wire.ConnectionClosed("not an answer")
        for number, nodes in message.get("updates", ()):
            for entry in self.tracked:
                if entry[0] == number:
                    _overwrite(entry[1], self.value(nodes))
                    entry[2] = nodes
        return message

    def raised(self, answer: dict[str, Any]) -> BaseException:
        """The exception that an answer brings; of those that no test framework means anything by."""
        error = self.value(answer["raised"])
        return error if isinstance(error, Exception | SystemExit) else RuntimeError("what was raised is no exception")

    def nodes(self, value: Any) -> list[Any]:
        """A value of this side as it travels."""
        return literal.nodes_of(value, self.export, self.shared)

    def value(self, nodes: Any) -> Any:
        """A value that has travelled."""
        return literal.value_of(nodes, self.load, self.shared)

    def number(self, item: Any) -> int:
        """The number of an object of this side: the same whenever it travels."""
        if id(item) not in self.numbers:
            self.objects.append(item)
            self.numbers[id(item)] = len(self.objects) - 1
        return self.numbers[id(item)]

    def export(self, item: Any) -> tuple[str, list[Any]] | None:
        """What stands for an object that is no plain value."""
        kind = type(item)
        if isinstance(item, Remote):
            return "m", [object.__getattribute__(item, "_whet_remote")[1]]
        if isinstance(item, RemoteType):
            return "m", [vars(item)["_whet_class"][1]]
        if isinstance(item, type):
            return "k", [self.reference(item)]
        content: Any = None
        if issubclass(kind, BaseException):
            content = tuple(item.args)
        elif base := base_of(kind, (*VALUES, *COLLECTIONS)):
            if kind.__module__ not in OWN_MODULES:
                return None
            content = content_of(item, base)
        return "h", [self.number(item), self.reference(kind), content]

    def reference(self, kind: type) -> list[Any]:
        """A class of this side: its number, and what it is where the other side does not know it yet."""
        if kind in FUNCTIONS:
            return []
        if kind.__module__ not in OWN_MODULES and issubclass(kind, (BaseException, *VALUES, *COLLECTIONS)):
            return [kind.__module__, kind.__qualname__]
        number = self.number(kind)
        if number in self.described:
            return [number]
        self.described.add(number)
        own = [ancestor for ancestor in kind.__mro__ if ancestor.__module__ in OWN_MODULES]
        base = base_of(kind, (*VALUES, *COLLECTIONS))
        looked_at = own if base in VALUES else kind.__mro__[:-1]
        specials = [name for name in SPECIALS if any(vars(ancestor).get(name) is not None for ancestor in looked_at)]
        specials = [name for name in specials if getattr(kind, name, None) is not None]
        if kind.__hash__ is not None and "__eq__" in specials and "__hash__" not in specials:
            specials.append("__hash__")
        public = [name for name in dir(base) if not name.startswith("_")] if base in COLLECTIONS else []
        known = (BaseException, *VALUES, *COLLECTIONS)
        bases = [base for base in kind.__bases__ if base.__module__ in OWN_MODULES or base_of(base, known)]
        return [number, kind.__name__, kind.__module__, [*map(self.reference, bases)], specials, public]

    def load(self, tag: str, parts: list[Any]) -> Any:
        """The value of a node that `export` made."""
        if tag == "m":
            return self.objects[parts[0]]
        if tag == "k":
            return _known_class(*parts[0]) if _is_known(parts[0]) else self.local_class(parts[0])
        if tag == "h":
            number, reference, content = parts
            if number not in self.proxies:
                self.proxies[number] = self.proxy(number, self.local_class(reference), content)
            known = self.proxies[number]
            return known() if isinstance(known, types.FunctionType) else known
        return literal.of_library(tag, parts)

    def proxy(self, number: int, kind: type, content: Any) -> Any:
        """The stand-in, on this side, for an object of the other side."""
        made: Any
        real: Any = base_of(kind, (*VALUES, *COLLECTIONS))
        if issubclass(kind, BaseException):
            made = kind.__new__(kind, *content)
            object.__setattr__(made, "args", tuple(content))
            if isinstance(made, SystemExit):
                object.__setattr__(made, "code", content[0] if content else None)
        elif real is not None:
            made = real.__new__(kind, content) if real in VALUES else real.__new__(kind)
        else:
            made = object.__new__(kind)
        object.__setattr__(made, "_whet_remote", (self, number))
        return made

    def local_class(self, reference: list[Any]) -> Any:
        """The class that stands in for one of the other side."""
        if not reference:
            return RemoteFunction
        if _is_known(reference):
            real = _known_class(*reference)
            return type.__new__(RemoteType, real.__name__, (Remote, real), {"_whet_class": (self, -1)})
        number, *description = reference
        if number not in self.classes:
            name, module, bases, specials, public = description
            parents = [_known_class(*base) if _is_known(base) else self.local_class(base) for base in bases]
            space: dict[str, Any] = {special: FORWARDED[special] for special in specials if special in SPECIALS}
            space.update({method: _method(method) for method in public if not method.startswith("_")})
            if "__eq__" in space:
                space.setdefault("__hash__", None)
            space |= {
                "__doc__": DOC,
                "__module__": str(module),
                "__qualname__": str(name),
                "_whet_class": (self, int(number)),
            }
            self.classes[number] = _derived(str(name), parents, space)
        return self.classes[number]


def _is_known(reference: list[Any]) -> bool:
    """True where a class is referred to by its module and name."""
    return len(reference) == 2 and isinstance(reference[0], str)


def _derived(name: str, parents: Sequence[type], space: dict[str, Any]) -> Any:
    """A mirrored class: a `Remote` before all real ones, so that it asks before they answer."""
    mirrored = tuple(parent for parent in parents if issubclass(parent, Remote))
    real = tuple(parent for parent in parents if not issubclass(parent, Remote))
    bases = (*(mirrored or (Remote,)), *real)
    for chosen in (bases, mirrored[:1] or (Remote,)):
        try:
            return type.__new__(RemoteType, name, chosen, space)
        except TypeError:  # bases that only the other side can join
            continue
    raise literal.NotPlain(f"a class {name} cannot be mirrored")


def _known_class(module: str, name: str) -> type:
    """A class of the standard library, or numpy's or pandas', that both sides have: an exception that means nothing to
    a test framework, or a type of plain values."""
    top = module.split(".")[0]
    candidate = getattr(sys.modules.get(module), name, None)
    is_known = (top in sys.stdlib_module_names and top not in ("unittest", "doctest")) or top in ("numpy", "pandas")
    if is_known and isinstance(candidate, type):
        if issubclass(candidate, Exception | SystemExit) or candidate in (*VALUES, *COLLECTIONS):
            return candidate
        if base := base_of(candidate, (*VALUES, *COLLECTIONS)):
            return base
    return Exception if not isinstance(candidate, type) or issubclass(candidate, BaseException) else Remote


def base_of(kind: type, bases: Iterable[type]) -> type | None:
    """The first of these that a class is derived from."""
    return next((base for base in bases if issubclass(kind, base)), None)


def content_of(item: Any, base: Any) -> Any:
    """The plain value that an object is, by its base's own methods: a subclass may say anything."""
    if base is int:
        return int.__index__(item)
    if base is complex:
        return complex(item.real, item.imag)
    if base in (float, str):
        return base.__float__(item) if base is float else base.__str__(item)
    if base is bytes:
        return bytes.__getitem__(item, slice(None))
    return base(dict.items(item) if base is dict else base.__iter__(item))


def _overwrite(container: Any, value: Any) -> None:
    """Give a list, dict or set the content it has on the other side."""
    if type(container) is type(value):
        container.clear()
        (container.extend if isinstance(container, list) else container.update)(value)


def _special(target: Any, name: str, /, *arguments: Any, **named: Any) -> Any:
    return getattr(type(target), name)(target, *arguments, **named)


def _copied(target: Any, deep: bool) -> Any:
    import copy

    return copy.deepcopy(target) if deep else copy.copy(target)


def _state(target: Any) -> list[Any]:
    """What an object holds that may stand for it in a comparison: the content of a list, dict, set and their like, or
    the only attribute of an object that says itself what it equals."""
    base = base_of(type(target), (*VALUES, *COLLECTIONS))
    if base is not None:
        return [content_of(target, base)]
    held = getattr(target, "__dict__", {})
    return [*held.values()] if len(held) == 1 else []


def _applied(target: Any, module: str, name: str, /, *arguments: Any, **named: Any) -> Any:
    return getattr(importlib.import_module(module), name)(target, *arguments, **named)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, /, *arguments, **named: target(*arguments, **named),
    "value": lambda target, /, *arguments, **named: target(*arguments, **named),
    "attribute": lambda target, name: getattr(target, name),
    "assign": lambda target, name, value: setattr(target, name, value),
    "delete": lambda target, name: delattr(target, name),
    "names": lambda target: [name for name in dir(target) if isinstance(name, str)],
    "special": _special,
    "state": _state,
    "copy": _copied,
    "apply": _applied,
}
