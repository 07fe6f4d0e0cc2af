"""Objects of one process, used in another: the code under test and its tests talk to each other's objects by proxies.

Runs inside the sandbox's own processes: only the standard library may be imported here. A plain value travels whole
(`literal`). For any other object a proxy stands on the other side, an instance of a class that mirrors the object's:
its name, its bases, exactly the special methods that it has. So `isinstance`, `except`, `with`, `next`, `sorted`,
`repr` and the rest work as if the object were here, and whatever they do happens where it lives.

`Judge` is the tests' end. It never lets the code decide about a value of the tests (`_against_value`), and gives the
code no more of the tests' objects than their public side (`perform`).
"""

from __future__ import annotations

import _thread
import builtins
import contextlib
import functools
import importlib
import operator
import os
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from whet.reward.sandbox import literal, wire

LARGEST_ANSWER = 1 << 24  # bytes
MOST_TRACKED = 16  # containers whose changes are passed on
OWN_MODULES = ("candidate", "tests", "__main__")
# types whose classes may be derived from here: of the first an instance is a value that never changes
VALUES: tuple[type, ...] = (int, float, complex, str, bytes, tuple, frozenset)
NUMBERS_AND_TEXT = (int, float, complex, str, bytes)
COLLECTIONS: tuple[type, ...] = (list, dict, set, deque)
EQUALITY = ("__eq__", "__ne__")
ORDER = ("__lt__", "__le__", "__gt__", "__ge__")
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or", "xor")
ARITHMETIC = tuple(f"__{start}{name}__" for name in (*BINARY, "lshift", "rshift") for start in ("", "r", "i"))
CONVERSIONS = (
    "abs",
    "neg",
    "pos",
    "invert",
    "round",
    "int",
    "float",
    "complex",
    "index",
    "trunc",
    "floor",
    "ceil",
    "bool",
)
AS_NUMBER = tuple(f"__{name}__" for name in CONVERSIONS)
OTHERS = (
    *("call", "len", "iter", "next", "reversed", "contains", "getitem", "setitem", "delitem", "hash", "bytes"),
    *("str", "repr", "format", "enter", "exit", "aenter", "aexit", "aiter", "anext", "await", "fspath", "length_hint"),
)
SPECIALS = frozenset((*EQUALITY, *ORDER, *ARITHMETIC, *AS_NUMBER, *(f"__{name}__" for name in OTHERS)))
SHOWN = frozenset(("__name__", "__qualname__", "__doc__", "__dict__", "__annotations__", "__wrapped__", "__members__"))
# of the tests' objects, those whose public attributes the code may use
OPEN_MODULES = frozenset((*OWN_MODULES, "_io", "io", "types", "unittest.mock", "random", "queue", "collections"))
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
OPERATORS_ONLY = frozenset(("builtins", "functools", "itertools", "operator", "_operator"))
CLOSED = (types.ModuleType, types.FrameType, types.TracebackType, types.CodeType)
NAMES = frozenset(("__name__", "__qualname__", "__doc__"))
PREDICATES = frozenset(("startswith", "endswith", "issubset", "issuperset", "isdisjoint"))
STRANGE = "\u2603 no such thing"
NUM_DOUBTS = 15  # other questions that tell an answer from one that is always the same


class CannotJudge(BaseException):
    """The tests as they are can judge nothing, whatever the code does. No test may catch it."""


class RemoteType(type):
    """The class of a proxy: itself the proxy of a class."""

    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> Any:
        raise CannotJudge(f"the tests derive a class, {name}, from one of the code's")

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
                **{"do": operation, "target": target, "arguments": [self.nodes(each) for each in arguments]},
                "named": {name: self.nodes(each) for name, each in (named or {}).items()},
            }
            self.send(message)
            while "do" in (answer := self.receive()):
                self.send(self.answer(answer))
            if "raised" in answer:
                raise self.raised(answer)
            for argument, nodes in zip(arguments, answer.get("changed", ()), strict=False):
                if nodes is not None and type(argument) in (list, dict, set):
                    _overwrite(argument, self.value(nodes))
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
            arguments = [self.value(each) for each in message["arguments"]]
            named = {name: self.value(each) for name, each in message["named"].items()}
            result = self.perform(message["do"], target, arguments, named)
            answer: dict[str, Any] = {"value": self.nodes(result)}
            if message["do"] == "call":
                changed = [self.nodes(each) if type(each) in (list, dict, set) else None for each in arguments]
                answer["changed"] = changed if any(changed) else []
            elif self.tracks and message["do"] == "attribute" and type(result) in (list, dict, set):
                answer["track"] = self.number(result)
                self.tracked.append([answer["track"], result, answer["value"]])
            return answer
        except CannotJudge:
            raise
        except BaseException as error:
            return self.failure(error)

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
        """Do one thing with an object of this side."""
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
        elif base := _base_of(kind, (*VALUES, *COLLECTIONS)):
            if kind.__module__ not in OWN_MODULES:
                return None
            content = _content(item, base)
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
        own = [each for each in kind.__mro__ if each.__module__ in OWN_MODULES]
        base = _base_of(kind, (*VALUES, *COLLECTIONS))
        looked_at = own if base in VALUES else kind.__mro__[:-1]
        specials = [name for name in SPECIALS if any(vars(each).get(name) is not None for each in looked_at)]
        specials = [name for name in specials if getattr(kind, name, None) is not None]
        if kind.__hash__ is not None and "__eq__" in specials and "__hash__" not in specials:
            specials.append("__hash__")
        public = [name for name in dir(base) if not name.startswith("_")] if base in COLLECTIONS else []
        known = (BaseException, *VALUES, *COLLECTIONS)
        bases = [each for each in kind.__bases__ if each.__module__ in OWN_MODULES or _base_of(each, known)]
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
        """What stands here for an object of the other side."""
        real = _base_of(kind, (*VALUES, *COLLECTIONS))
        if issubclass(kind, BaseException):
            made = kind.__new__(kind, *content)
            object.__setattr__(made, "args", tuple(content))
            if isinstance(made, SystemExit):
                object.__setattr__(made, "code", content[0] if content else None)
        elif real is not None:
            made = real.__new__(kind, content) if real in VALUES else real.__new__(kind)  # type: ignore[call-overload]
        else:
            made = object.__new__(kind)
        object.__setattr__(made, "_whet_remote", (self, number))
        return made

    def local_class(self, reference: list[Any]) -> Any:
        """The class that stands here for one of the other side."""
        if not reference:
            return RemoteFunction
        if _is_known(reference):
            real = _known_class(*reference)
            return type.__new__(RemoteType, real.__name__, (Remote, real), {"_whet_class": (self, -1)})
        number, *description = reference
        if number not in self.classes:
            name, module, bases, specials, public = description
            parents = [_known_class(*each) if _is_known(each) else self.local_class(each) for each in bases]
            space: dict[str, Any] = {each: FORWARDED[each] for each in specials if each in SPECIALS}
            space.update({each: _method(each) for each in public if not each.startswith("_")})
            if "__eq__" in space:
                space.setdefault("__hash__", None)
            space |= {"__module__": str(module), "__qualname__": str(name), "_whet_class": (self, int(number))}
            self.classes[number] = _derived(str(name), parents, space)
        return self.classes[number]


def _is_known(reference: list[Any]) -> bool:
    """True where a class is referred to by its module and name."""
    return len(reference) == 2 and isinstance(reference[0], str)


def _derived(name: str, parents: Sequence[type], space: dict[str, Any]) -> Any:
    """A mirrored class: a `Remote` before all real ones, so that it asks before they answer."""
    mirrored = tuple(each for each in parents if issubclass(each, Remote))
    real = tuple(each for each in parents if not issubclass(each, Remote))
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
    found = getattr(sys.modules.get(module), name, None)
    is_known = (top in sys.stdlib_module_names and top not in ("unittest", "doctest")) or top in ("numpy", "pandas")
    if is_known and isinstance(found, type):
        if issubclass(found, Exception | SystemExit) or found in (*VALUES, *COLLECTIONS):
            return found
        if base := _base_of(found, (*VALUES, *COLLECTIONS)):
            return base
    return Exception if not isinstance(found, type) or issubclass(found, BaseException) else Remote


def _base_of(kind: type, bases: Iterable[type]) -> type | None:
    return next((base for base in bases if issubclass(kind, base)), None)


def _content(item: Any, base: Any) -> Any:
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
    base = _base_of(type(target), (*VALUES, *COLLECTIONS))
    if base is not None:
        return [_content(target, base)]
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


class Judge(Peer):
    """The end of the tests."""

    tracks = False

    def __init__(self, channel: int, secret: str) -> None:
        super().__init__(channel)
        self.secret = secret
        self.asked = 0  # questions so far
        self.is_closed = False  # there is nobody to answer
        self.watched: list[list[Any]] = []  # [module, name, what it was, what it is on the other side]
        # objects that came of an operation with a value of the tests: the object, the operation, the value
        self.by_value: dict[int, tuple[Any, str, Any]] = {}
        self.named: set[Any] = set()  # classes of the code that the tests use by name
        self.made: dict[int, tuple[Any, Sequence[Any], dict[str, Any]]] = {}  # object: how the tests constructed it
        self.claims: dict[int, tuple[Any, Any]] = {}  # class: two of its objects that the code says are equal

    def ask(
        self, operation: str, target: str | int, arguments: Sequence[Any] = (), named: dict[str, Any] | None = None
    ) -> Any:
        """Have the code do something."""
        self.asked += operation != "find"
        if self.is_closed:
            raise wire.ConnectionClosed("the code does not load")
        for entry in self.watched:
            self._mirror(entry)
        answer = super().ask(operation, target, arguments, named)
        is_predicate = operation == "attribute" and arguments[0] in PREDICATES
        return functools.partial(self._predicate, answer) if is_predicate and isinstance(answer, Remote) else answer

    @functools.cached_property
    def chance(self) -> random.Random:
        """What the code cannot foresee, and what is the same in every run."""
        return random.Random(self.secret)

    def find(self, names: Collection[str], called: Collection[str] = ()) -> dict[str, Any]:
        """What the code has under these names; for one that it has not, what fails when it is used. So too for one that
        the tests call and that is a value: then the tests do call the code.
        """
        known: Any = {}
        if names and not self.is_closed:
            with contextlib.suppress(Exception):  # code that answers nonsense has none of them
                known = self.ask("find", 0, [sorted(names)])
        known = known if type(known) is dict else {}
        values = {name for name, value in known.items() if not isinstance(value, Remote | RemoteType)}
        known = {name: value for name, value in known.items() if name not in values & {*called}}
        self.asked += not values.isdisjoint(known)
        self.named |= {value for value in known.values() if isinstance(value, RemoteType)}
        return {name: known[name] if name in known else RemoteName(self, name) for name in names}

    def watch(self, names: Iterable[str]) -> None:
        """Names of modules that the tests replace: what they put there is put there on the other side too."""
        for name in names:
            with contextlib.suppress(Exception):
                module, _, attribute = name.rpartition(".")
                found = importlib.import_module(module)
                self.watched.append([found, attribute, _value_there(found, attribute), None])
                self.watched[-1][3] = self.watched[-1][2]

    def _mirror(self, entry: list[Any]) -> None:
        module, name, before, there = entry
        value = _value_there(module, name)
        if value is there or (type(value) in (dict, list, str) and value == there):
            return
        entry[3] = value
        replaced = [] if value is before else [value]
        super().ask("replace", 0, [str(module.__name__), name, *replaced])

    def receive(self) -> dict[str, Any]:
        """The next message; what the code has printed, warned of and logged is heard here."""
        message = super().receive()
        for kind, *parts in message.get("heard", ()):
            _hear(str(kind), *map(str, parts))
        return message

    def export(self, item: Any) -> tuple[str, list[Any]] | None:
        """What stands for an object of the tests."""
        module = type(item).__module__
        is_open = isinstance(item, type | BaseException) or _base_of(type(item), (*VALUES, *COLLECTIONS))
        is_open = is_open or isinstance(item, Remote) or module in (*OPEN_MODULES, *OPERATORS_ONLY)
        if _is_test_case(item) or isinstance(item, CLOSED) or not is_open:
            raise CannotJudge(f"the tests hand over a {module}.{type(item).__name__}, which cannot be carried")
        return super().export(item)

    def proxy(self, number: int, kind: type, content: Any) -> Any:
        """What stands here for an object of the code; a coroutine for a coroutine, each time a new one."""
        made = super().proxy(number, kind, content)
        return (lambda: self.awaited(made)) if kind.__name__ == "coroutine" else made

    async def awaited(self, proxy: Any) -> Any:
        """Wait for something of the code, whose other tasks go on meanwhile."""
        import asyncio

        while True:
            is_done, value = asked(proxy, "wait")
            if is_done:
                return value
            await asyncio.sleep(0)

    def failure(self, error: BaseException) -> dict[str, Any]:
        """What a function of the tests raised. A failed assertion may quote what the code may not know."""
        return super().failure(AssertionError() if isinstance(error, AssertionError) else error)

    def perform(self, operation: str, target: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        """What the code may do with an object of the tests: call it, use its operators and its public attributes."""
        if operation in ("attribute", "assign", "delete"):
            name, module = str(arguments[0]), type(target).__module__
            is_closed = name.startswith("_") or isinstance(target, type) or module not in OPEN_MODULES
            is_closed = is_closed and (name not in NAMES or operation != "attribute")
            is_closed = is_closed or (module == "unittest.mock" and hasattr(type(target), name))
            if is_closed or (operation != "attribute" and module not in OWN_MODULES):
                raise AttributeError(name)
        elif operation == "special":
            if arguments[0] not in SPECIALS:
                raise AttributeError(str(arguments[0]))
        elif operation not in ("call", "names"):
            raise TypeError(f"not for the code: {operation}")
        return super().perform(operation, target, arguments, named)

    def construct(self, kind: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Call a class of the code, and remember how."""
        made = super().construct(kind, arguments, named)
        if isinstance(made, Remote):
            self.made[id(made)] = (kind, arguments, named)
        return made

    def special(self, proxy: Any, name: str, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Call a special method of an object of the code, as far as its answer means something."""
        if name == "__await__":
            return self.awaited(proxy).__await__()
        if name in ("__exit__", "__aexit__"):  # without the traceback
            return super().special(proxy, name, (*arguments[:2], None), named)
        if name == "__contains__" and not isinstance(arguments[0], Remote):
            if _has(proxy, "__iter__"):
                return any(each == arguments[0] for each in proxy)  # the code is not told what is looked for
            return self._predicate(functools.partial(asked, proxy, "special", name), *arguments)
        base = _base_of(type(proxy), NUMBERS_AND_TEXT)
        if base and hasattr(base, name) and (name in ARITHMETIC or name in AS_NUMBER or name == "__contains__"):
            return getattr(base, name)(proxy, *arguments)
        if name in AS_NUMBER and id(proxy) in self.by_value:
            return self._number_by_value(proxy, name, arguments)
        is_comparison = name in EQUALITY or name in ORDER
        if not is_comparison and name not in ARITHMETIC:
            return super().special(proxy, name, arguments, named)
        if not isinstance(arguments[0], Remote | RemoteType):
            against = self._compared if is_comparison else self._combined
            return against(proxy, name, arguments[0]) if is_plain(arguments[0]) else self._unlike(proxy, arguments[0])
        result = super().special(proxy, name, arguments, named)
        if name != "__eq__" or result is NotImplemented:
            return result
        return bool(result) and self._is_equal_to_little(proxy, arguments[0])

    def _compared(self, proxy: Any, name: str, other: Any) -> Any:
        """An object of the code compared with a value of the tests. The code is believed where it says no; its yes
        counts where what the object holds, asked for before, says so too.
        """
        if name == "__ne__":
            return not self._compared(proxy, "__eq__", other)
        base = _base_of(type(proxy), VALUES)
        held = [_content(proxy, base)] if base else asked(proxy, "state")
        is_held = bool(held) and getattr(type(held[0]), name)(held[0], other) is True
        others = [] if is_held else [self._other_value(other) for _ in range(NUM_DOUBTS)]
        answers = self._answers((proxy, name, each) for each in (other, *others))
        if isinstance(answers[0], BaseException):
            raise answers[0]
        if answers[0] is NotImplemented or is_held or not answers[0]:
            return answers[0]
        self._doubt(answers)
        return False

    def _combined(self, proxy: Any, name: str, other: Any) -> Any:
        """The sum, say, of an object of the code and a value of the tests: an object of the code."""
        result = super().special(proxy, name, (other,), {})
        if isinstance(result, Remote):
            if result is not proxy:
                self.by_value[id(result)] = (proxy, name, other)
        elif result is not NotImplemented and not self.named.isdisjoint(type(proxy).__mro__):
            self._doubt([result, *self._answers((proxy, name, self._other_value(other)) for _ in range(NUM_DOUBTS))])
        return result if isinstance(result, Remote) else NotImplemented

    def _number_by_value(self, proxy: Any, name: str, arguments: Sequence[Any]) -> Any:
        """`abs(result - 3.5)` of an object: the code would say how far it is from what is expected of it."""
        first, operation, other = self.by_value[id(proxy)]
        if not self.named.isdisjoint(type(proxy).__mro__):
            combined = self._answers((first, operation, self._other_value(other)) for _ in range(NUM_DOUBTS))
            objects = [proxy, *(each for each in combined if isinstance(each, Remote))]
            self._doubt(self._answers((each, name, *arguments) for each in objects))
        raise TypeError("the object would say how far it is from a value of the tests")

    def _predicate(self, method: Any, *arguments: Any, **named: Any) -> Any:
        """`result.startswith("a")` of an object that is no text: believed where it does not hold of everything."""
        result = method(*arguments, **named)
        if not _is_yes(result) or not is_plain(arguments):
            return result
        for others in (
            [self._other_value(each) for each in arguments],
            [10**15] * len(arguments),
            [STRANGE] * len(arguments),
        ):
            with contextlib.suppress(Exception):
                if _is_yes(method(*others, **named)):
                    continue
            return True
        return False

    def _doubt(self, answers: Sequence[Any]) -> None:
        """The code decided about a value of the tests. Where it decides so about all values, it decides nothing; else
        it cannot be told from one that guesses what is expected.
        """
        result = answers[0]
        if not all(type(answer) is type(result) and answer == result for answer in answers):
            raise CannotJudge("an operator of the code's own class would decide about a value of the tests")

    def _answers(self, questions: Iterable[tuple[Any, ...]]) -> list[Any]:
        """What each of (object, special method, arguments) gives, asked in an order that does not tell them apart."""
        asked_for = list(enumerate(questions))
        answers = {place: self._answer(*each) for place, each in self.chance.sample(asked_for, len(asked_for))}
        return [answers[place] for place in range(len(answers))]

    def _answer(self, proxy: Any, name: str, *arguments: Any) -> Any:
        try:
            return super().special(proxy, name, arguments, {})
        except Exception as error:
            return error

    def _unlike(self, proxy: Any, other: Any) -> Any:
        """An object of the code and one of the tests that is no plain value: the latter decides."""
        kinds = [f"{kind.__module__}.{kind.__name__}" for kind in (type(proxy), type(other))]
        is_of_tests = type(other).__module__.split(".")[0] in (*OWN_MODULES, "_pytest", "unittest")
        if kinds[0] == kinds[1] and not is_of_tests:
            raise CannotJudge(f"a {kinds[0]} cannot be carried")
        return NotImplemented

    def _is_equal_to_little(self, proxy: Any, other: Any) -> bool:
        """The code says that two of its objects are equal: believed where not all things are equal to them."""
        odd = types.SimpleNamespace()
        if any(_is_yes(self._answer(each, "__eq__", odd)) for each in (proxy, other) if isinstance(each, Remote)):
            return False
        self.claims.setdefault(id(type(proxy)), (proxy, other))
        return True

    def check_claims(self) -> None:
        """Where the code has said that two of its objects are equal, others of the class must not be, made with other
        arguments than the tests gave. Asked at the end, when no test can be disturbed by it.
        """
        for proxy, other in self.claims.values():
            kind, arguments, named = self.made.get(id(other)) or self.made.get(id(proxy)) or (None, (), {})
            answers = []
            for changed_at in range(-1, len(arguments)) if kind else ():
                changed = [
                    self._other_value(each) if changed_at in (-1, place) else each
                    for place, each in enumerate(arguments)
                ]
                changed_named = {key: self._other_value(each) for key, each in named.items()}
                if all(map(operator.is_, (*changed, *changed_named.values()), (*arguments, *named.values()))):
                    continue
                with contextlib.suppress(Exception):  # arguments that the class does not take
                    made = super().construct(kind, changed, changed_named)
                    answers.append(super().special(proxy, "__eq__", (made,), {}))
            if answers and all(map(_is_yes, answers)):
                raise CannotJudge(f"to the code's own __eq__ all objects of {type(proxy).__name__} are equal")

    def _other_value(self, value: Any) -> Any:
        """A value of the same kind that is another one."""
        chance = self.chance
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float) and abs(value) < literal.WIDEST_PLAIN:
            return value + chance.choice((-1, 1)) * chance.randint(2, 9 + int(abs(value)))
        if isinstance(value, str):
            return value + "".join(map(chance.choice, ("bdgkmpt", "aeiou", "bdgkmpt")))
        if isinstance(value, list | tuple) and value:
            changed = chance.randrange(len(value))
            return type(value)(self._other_value(each) if changed == at else each for at, each in enumerate(value))
        if isinstance(value, dict) and value:
            changed = chance.choice([*value])
            return {key: self._other_value(item) if key == changed else item for key, item in value.items()}
        return chance.randint(2, 1000) if value is None or isinstance(value, list | tuple | dict | set) else value


def _is_yes(answer: Any) -> bool:
    return answer is not NotImplemented and not isinstance(answer, BaseException) and bool(answer)


def is_plain(value: Any) -> bool:
    """True for a value that travels whole."""
    try:
        literal.nodes_of(value)
    except literal.NotPlain:
        return False
    return True


def _has(proxy: Any, name: str) -> bool:
    return any(name in vars(each) for each in type(proxy).__mro__)


def _value_there(module: Any, name: str) -> Any:
    """What a module holds under a name, as far as it can be put into another process."""
    value = getattr(module, name, None)
    if value is os.environ or (module is sys and name == "argv"):
        return value.copy()
    if module is sys and name == "stdin" and hasattr(value, "getvalue"):
        return value.read()
    return value


def _is_test_case(item: Any) -> bool:
    unittest = sys.modules.get("unittest")
    return unittest is not None and isinstance(item, unittest.TestCase)


def _hear(kind: str, *parts: str) -> None:
    """Something the code said, said here again: whoever listens in the tests hears it."""
    if kind in ("stdout", "stderr"):
        with contextlib.suppress(OSError, ValueError):
            getattr(sys, kind).write(parts[0])
    elif kind == "warning":
        import warnings

        category = getattr(builtins, parts[0], UserWarning)
        is_warning = isinstance(category, type) and issubclass(category, Warning)
        warnings.warn(parts[1], category if is_warning else UserWarning, stacklevel=2)
    elif kind == "log":
        import logging

        logging.getLogger(parts[0]).log(int(parts[1]), "%s", parts[2])
