"""The tests' end of a unit-test job: what the code's objects may say, and what of the tests the code may use.

Runs inside the sandbox's own processes: only the standard library may be imported here. In one rule: the code does not
decide about a value of the tests. Where one of its objects meets such a value, what the object holds decides, told
before the value is shown; where its own operator says yes against that, the answer is no if it says yes to everything,
and else the job is unscorable (`_doubt`). Where two objects of the code meet, the tests ask the code a question, as
`assert is_prime(7)` does; a yes counts where it is not said to everything (`check_claims`).
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import operator
import os
import sys
import types
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from whet.reward.sandbox import literal, wire
from whet.reward.sandbox.remote import (
    ARITHMETIC,
    AS_NUMBER,
    COLLECTIONS,
    EQUALITY,
    NUMBERS_AND_TEXT,
    ORDER,
    OWN_MODULES,
    SPECIALS,
    VALUES,
    CannotJudge,
    Peer,
    Remote,
    RemoteName,
    RemoteType,
    asked,
    base_of,
    content_of,
)

# of the tests' objects, those whose public attributes the code may use
OPEN_MODULES = frozenset((*OWN_MODULES, "_io", "io", "types", "unittest.mock", "random", "queue", "collections"))
OPERATORS_ONLY = frozenset(("builtins", "functools", "itertools", "operator", "_operator"))
CLOSED = (types.ModuleType, types.FrameType, types.TracebackType, types.CodeType)
NAMES = frozenset(("__name__", "__qualname__", "__doc__"))
PREDICATES = frozenset(("startswith", "endswith", "issubset", "issuperset", "isdisjoint"))
STRANGE = "\u2603 no such thing"
NUM_DOUBTS = 15  # other questions that tell an answer from one that is always the same


class SuitePeer(Peer):
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
    def chance(self) -> Any:
        """What the code cannot foresee, and what is the same in every run."""
        import random  # not above: a worker decides how it is loaded

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
                imported = importlib.import_module(module)
                self.watched.append([imported, attribute, _value_there(imported, attribute), None])
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
        is_open = isinstance(item, (type, BaseException, Remote, *VALUES, *COLLECTIONS))
        is_open = is_open or module in (*OPEN_MODULES, *OPERATORS_ONLY)
        if _is_test_case(item) or isinstance(item, CLOSED) or not is_open:
            raise CannotJudge(f"the tests hand over a {module}.{type(item).__name__}, which cannot be carried")
        return super().export(item)

    def proxy(self, number: int, kind: type, content: Any) -> Any:
        """The stand-in for an object of the code; for a coroutine, a new coroutine each time."""
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
                return any(item == arguments[0] for item in proxy)  # the code is not told what is looked for
            return self._predicate(functools.partial(asked, proxy, "special", name), *arguments)
        base = base_of(type(proxy), NUMBERS_AND_TEXT)
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
        base = base_of(type(proxy), VALUES)
        held = [content_of(proxy, base)] if base else asked(proxy, "state")
        is_held = bool(held) and getattr(type(held[0]), name)(held[0], other) is True
        others = [] if is_held else [self._other_value(other) for _ in range(NUM_DOUBTS)]
        answers = self._answers((proxy, name, operand) for operand in (other, *others))
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
            objects = [proxy, *(operand for operand in combined if isinstance(operand, Remote))]
            self._doubt(self._answers((operand, name, *arguments) for operand in objects))
        raise TypeError("the object would say how far it is from a value of the tests")

    def _predicate(self, method: Any, *arguments: Any, **named: Any) -> Any:
        """`result.startswith("a")` of an object that is no text: believed where it does not hold of everything."""
        result = method(*arguments, **named)
        if not _is_yes(result) or not is_plain(arguments):
            return result
        for others in (
            [self._other_value(argument) for argument in arguments],
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
        answers = {index: self._answer(*call) for index, call in self.chance.sample(asked_for, len(asked_for))}
        return [answers[index] for index in range(len(answers))]

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
        if any(
            _is_yes(self._answer(operand, "__eq__", odd)) for operand in (proxy, other) if isinstance(operand, Remote)
        ):
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
                    self._other_value(argument) if changed_at in (-1, index) else argument
                    for index, argument in enumerate(arguments)
                ]
                changed_named = {key: self._other_value(argument) for key, argument in named.items()}
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
            return type(value)(self._other_value(item) if changed == at else item for at, item in enumerate(value))
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
    return any(name in vars(ancestor) for ancestor in type(proxy).__mro__)


def _value_there(module: Any, name: str) -> Any:
    """What a module holds under a name, as far as it can be put into another process."""
    value: Any = getattr(module, name, None)
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
