"""One place for what has a name: components, presets, rewards, environments, engines, trackers, pipelines; built in or
your own.

    import whet

    @whet.register("clip")
    @dataclass(frozen=True)
    class HardStop(Component):
        name: ClassVar[str] = "hard_stop"
        ...

A package adds things without being imported by hand: an entry point of the group `whet.plugins` names a module that
registers when it is imported, or a function that is called. Plugins are loaded when a name is not known, or when names
are listed. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import re
import signal
import sys
import traceback
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Literal, TypeVar, get_args, overload

from whet.limit import (
    LONGEST_SECONDS,
    Overrun,
    Positions,
    end_process,
    limited,
    positions,
    until_second_signal,
    watchdog,
)
from whet.types import WhetError, did_you_mean

Registered = TypeVar("Registered")
Loaded = TypeVar("Loaded")
# every axis of a policy method, every axis of a preference method, and what else a user may add
Kind = Literal[
    "baseline",
    "scale",
    "ratio",
    "clip",
    "aggregate",
    "kl",
    "shape",
    "keep",
    "mismatch",
    "select",
    "smooth",
    "imitate",
    "entropy",
    "value",
    "control",
    "reference",
    "teacher",
    "score",
    "curve",
    "contrast",
    "anchor",
    "weigh",
    "preset",
    "reward",
    "environment",
    "engine",
    "tracker",
    "pipeline",
]
KINDS: tuple[str, ...] = get_args(Kind)
GROUP = "whet.plugins"
NAME = re.compile(r"[a-z][a-z0-9_]*")
# where the built-in entries of a kind are: importing the module registers them. An axis has the objective's.
HOMES = {
    "reward": "whet.reward.find",
    "environment": "whet.envs.find",
    "engine": "whet.rollout.engines",
    "tracker": "whet.record.trackers.find",
    "pipeline": "whet.tools.pipelines.registry",
}
# what may be registered under another name than its own
NAMED_FREELY = ("preset", "reward", "environment", "engine", "tracker")
OBJECTIVE = "whet.objective"
TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", dict: "a table"}


class LazyEntries(UserDict[str, Any]):
    """Entries by name; one that is a text, "module:attribute", is imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        entry = self.data[name]
        if not isinstance(entry, str):
            return entry
        module, _, attribute = entry.partition(":")
        return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class Registry:
    """Entries of one kind by name. `refusal` says what is wrong with a thing and how to fix it, or nothing."""

    entries: MutableMapping[str, Any]
    refusal: Callable[[Any], str]
    adapted: Callable[[Any], Any]  # a plain function as what the axis takes
    registered: dict[str, str] = field(default_factory=dict)  # what is not built in, and the module that added it


# several where two families of methods have an axis of the same name: a component goes where it fits
_REGISTRIES: dict[str, list[Registry]] = {}
_LOADED: set[EntryPoint] = set()
_SEARCHED: set[tuple[str, ...]] = set()  # states of sys.path: reading the metadata of every package takes time


def unchanged(thing: Any) -> Any:
    """Return the thing itself: for kinds that need no conversion."""
    return thing


def register_builtins(
    kind: str,
    entries: MutableMapping[str, Any],
    refusal: Callable[[Any], str],
    adapted: Callable[[Any], Any] = unchanged,
) -> None:
    """Make the built-in entries of a kind known; what a user registers is `adapted` and added to the same mapping."""
    _REGISTRIES.setdefault(kind, []).append(Registry(entries, refusal, adapted))


@overload
def register(kind: Kind, thing: Registered, *, name: str | None = None, replace: bool = False) -> Registered:
    """Register the thing and return it."""


@overload
def register(kind: Kind, *, name: str | None = None, replace: bool = False) -> Callable[[Registered], Registered]:
    """A decorator that adds what it is put on."""


def register(kind: Kind, thing: Any = None, *, name: str | None = None, replace: bool = False) -> Any:
    """Add a component of an axis, a preset, a reward, an environment, an engine, a tracker or a pipeline.

    Also a decorator.

        @whet.register("reward")
        def right(completion: str, answer: str) -> float:
            return float(completion.endswith(answer))

        @whet.register("baseline")
        def median(rewards):  # of a group, [G]
            return rewards.median()

        whet.train(method, reward="right", objective={"baseline": "median"})

    Rewards and baselines may be plain functions; `whet.register("clip", MyClip)` adds a class, and
    `whet.register("preset", Preset(...))` a method made of such parts. Its name is its own: the `name` of a component,
    of a preset's objective, of a function; `name` is for what has none. A thing
    of the wrong shape is refused, and so is a name that is taken: a notebook's cell that is run again replaces what it
    registered before, `replace=True` replaces anything that was registered, and nothing replaces what is built in.
    """
    if kind not in KINDS:
        raise WhetError(f"nothing of kind {kind!r} can be registered{did_you_mean(kind, KINDS)}; {_listed(KINDS)}")
    if thing is None:
        return lambda decorated: register(kind, decorated, name=name, replace=replace)
    chosen = name or _own_name(kind, thing)
    if not NAME.fullmatch(chosen):
        raise WhetError(f"the name of the {kind} is {chosen!r}; give one like my_{kind}: small letters, digits and _")
    own = getattr(thing, "name", None) or getattr(thing, "__name__", None)
    if kind not in NAMED_FREELY and name is not None and name != own:
        raise WhetError(f"the {kind} is called {own!r} where it is defined and {name!r} here; name it there alone")
    registries = _registries(kind)
    things = [registry.adapted(thing) for registry in registries]
    refusals = [registry.refusal(own) for registry, own in zip(registries, things, strict=True)]
    fitting = [registry for registry, refusal in zip(registries, refusals, strict=True) if not refusal]
    if not fitting:
        raise WhetError(f"{kind} {chosen!r} cannot be registered: {refusals[0]}")
    # a method's name is free among all methods, a component's on its own axis
    module = _calling_module()
    for registry in registries if kind == "preset" else fitting:
        if chosen in registry.entries and not _same(taken := registry.entries[chosen], thing):
            is_built_in = chosen not in registry.registered
            if is_built_in or not (replace or registry.registered[chosen] == module == "__main__"):
                raise WhetError(
                    f"a {kind} called {chosen!r} exists already{_source(taken)}; give yours another name"
                    f"{'' if is_built_in else ', or replace=True'}"
                )
    for registry in fitting:
        # a built-in that is given again stays built in
        if chosen not in registry.entries or chosen in registry.registered:
            registry.entries[chosen] = registry.adapted(thing)
            registry.registered[chosen] = module
    return thing


def lookup(kind: Kind, name: str) -> Any:
    """The thing of that name; plugins are loaded where it is not known. An unknown name is an error with the
    nearest."""
    for attempt in (False, True):
        if attempt:
            load_plugins()
        for registry in _registries(kind):
            if name in registry.entries:
                return registry.entries[name]
    known = names(kind)
    listed = ", ".join(known) or "none is registered"
    raise WhetError(f"no {kind} is called {name!r}{did_you_mean(name, known)}; there are: {listed}")


def names(kind: Kind) -> list[str]:
    """Every name of a kind, the plugins' included."""
    load_plugins()
    return list(dict.fromkeys(name for registry in _registries(kind) for name in registry.entries))


def added(kind: Kind) -> dict[str, Any]:
    """What users and plugins have registered; nothing that is built in, and nothing of it imported."""
    load_plugins()
    return {name: registry.entries[name] for registry in _REGISTRIES.get(kind, []) for name in registry.registered}


def check_settings(kind: Kind, name: str, maker: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise where what makes the thing takes no setting of that name, or one of another type than its default."""
    parameters = inspect.signature(maker).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    named = [parameter for parameter in parameters.values() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    known = [parameter.name for parameter in named if parameter.name != "context"]
    for key, value in settings.items():
        if key in known and parameters[key].default is not inspect.Parameter.empty:
            wanted = type(parameters[key].default)
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                raise WhetError(
                    f"{key} of the {kind} {name!r} is {value!r}; give {TYPE_NAMES.get(wanted, wanted.__name__)}"
                )
        if key not in known:
            fix = f"give one of {', '.join(known)}" if known else "it has none; drop it"
            raise WhetError(f"the {kind} {name!r} has no setting {key!r}{did_you_mean(key, known)}; {fix}")


def load_plugins() -> None:
    """Load every entry point of the group `whet.plugins` once. A broken one is one line of warning."""
    if (path := tuple(sys.path)) in _SEARCHED:
        return
    _SEARCHED.add(path)
    for point in entry_points(group=GROUP):
        if point in _LOADED:
            continue
        _LOADED.add(point)
        try:
            plugin = point.load()
            if callable(plugin):
                plugin()
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            package = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
            sys.stderr.write(f"warning: the whet plugin {point.name!r}{package} was not loaded: {what}\n")


def _registries(kind: str) -> list[Registry]:
    importlib.import_module(HOMES.get(kind, OBJECTIVE))
    return _REGISTRIES.get(kind, [])


def _own_name(kind: str, thing: Any) -> str:
    held = thing.objective if kind == "preset" and hasattr(thing, "objective") else thing
    name = getattr(held, "name", None) or getattr(thing, "__name__", None)
    if not isinstance(name, str):
        raise WhetError(
            f"the {kind} {thing!r} has no name; give it one: whet.register({kind!r}, ..., name='my_{kind}')"
        )
    return name


def _calling_module() -> str:
    """The name of the module that registers: `__main__` for a script, a console or a notebook."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def _same(taken: Any, thing: Any) -> bool:
    """True for the same class or function, also where its module was loaded again."""
    if hasattr(taken, "__qualname__") and hasattr(thing, "__qualname__"):
        return (taken.__module__, taken.__qualname__) == (thing.__module__, thing.__qualname__)
    return bool(taken == thing)


def _source(thing: Any) -> str:
    return f", in {thing.__module__}" if hasattr(thing, "__qualname__") else ""


def _listed(kinds: Iterable[str]) -> str:
    return f"give one of {', '.join(kinds)}"


# Other people's Python files and modules, imported by name: rewards, environments, tools.
# Every failure is one line that names the file, the line and the fix.

Guard = Callable[[str], AbstractContextManager[Any]]
"""Around the import of a source: puts back what it changed in the process."""

OF_A_FILE = "whet_reward:"  # begins the names of modules that are files given by their path
DOT = "\u2024"  # stands for a dot there: pickle takes what is before a dot for a package
_importing: list[str] = []  # files being imported, the innermost last


def refuse_while_importing(what: str) -> None:
    """Raise where a file that is imported for its reward begins to train: a script without a guard would run again."""
    if _importing:
        raise WhetError(
            f"{_importing[-1]}: importing it for its reward calls {what} again; put the code that trains under "
            '`if __name__ == "__main__":`, or the reward in a file of its own'
        )


def imported(name_or_path: str, what: str, guard: Guard = nullcontext) -> Any:
    """The thing that `file.py:name` or `module:name` names; its code runs. `what` it is stands in the errors."""
    source, _, attribute = name_or_path.rpartition(":")
    if not source or not attribute:
        raise WhetError(
            f"{what} {name_or_path!r} names no file and no module; give path/to/file.py:name or module:name"
        )
    module = (
        _file_module(source, what, guard)
        if source.endswith(".py")
        else _named_module(source, name_or_path, what, guard)
    )
    if not hasattr(module, attribute):
        raise WhetError(
            f"{source} has no {attribute!r}{did_you_mean(attribute, _defined(module, what))}; "
            f"it has: {', '.join(_defined(module, what)) or 'no functions'}"
        )
    return getattr(module, attribute)


def import_file(path: str) -> None:
    """Import a file under the name that another process of this run knows it by."""
    _file_module(path, "reward", nullcontext)


def import_sources(sources: Iterable[str]) -> None:
    """Import files and modules for what they register."""
    for source in sources:
        if source.endswith(".py"):
            _file_module(source, "import", nullcontext)
        else:
            _named_module(source, source, "import", nullcontext)


def file_of_module(name: str) -> str | None:
    """The path of a module that is a file given by its path; None for all others."""
    return name.removeprefix(OF_A_FILE).replace(DOT, ".") if name.startswith(OF_A_FILE) else None


def module_file(thing: Any) -> str | None:
    """The file of the module that a thing was found in."""
    return getattr(sys.modules.get(getattr(thing, "__module__", "")), "__file__", None)


def error_text(error: BaseException, length: int = 200) -> str:
    """The class and message in one line, also of an error whose own `__str__` fails."""
    try:
        message = " ".join(str(error)[: 4 * length].split())[:length]
    except Exception:
        message = "(its message cannot be read)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def place(innermost_first: Positions, file: str | None) -> str:
    """The innermost file:line in the user's file, else the innermost of all."""
    mine = [position for position in innermost_first if position[0] == file]
    path, line = (mine or list(innermost_first) or [("an unknown place", 0)])[0]
    return f"{path}:{line}"


def _defined(module: ModuleType, what: str) -> list[str]:
    """What a user could have meant: the callables the module itself defines."""
    return sorted(
        name
        for name, value in vars(module).items()
        if callable(value) and (what != "reward" or not inspect.isclass(value)) and not name.startswith("_")
        if getattr(value, "__module__", None) == module.__name__
    )


def _file_module(source: str, what: str, guard: Guard) -> ModuleType:
    path = Path(source).resolve()
    if not path.is_file():
        near = sorted(str(other.name) for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
        there = f"{path.parent} has: {', '.join(near)}" if near else f"{path.parent} has no .py files"
        raise WhetError(f"there is no {what} file {source}{did_you_mean(path.name, near)}; {there}; correct the path")
    main = sys.modules.get("__main__")
    if main is not None and Path(getattr(main, "__file__", None) or "/").resolve() == path:
        return main  # the running script: imported a second time it would train again
    name = OF_A_FILE + str(path).replace(".", DOT)
    if name in sys.modules:  # two parts may come from one file
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WhetError(f"{source} cannot be imported as Python; give a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    _make_importable(path.parent)
    _importing.append(source)
    try:
        with guard(source):
            _in_time(functools.partial(spec.loader.exec_module, module), source, str(path))
    except (WhetError, KeyboardInterrupt):
        del sys.modules[name]
        raise
    except BaseException as error:  # SystemExit of a script without a guard, classes of its own
        del sys.modules[name]
        raise _broken(source, error, str(path)) from error
    finally:
        _importing.pop()
    return module


def _named_module(source: str, name_or_path: str, what: str, guard: Guard) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        with guard(source):
            return _in_time(functools.partial(importlib.import_module, source), source, None)
    except ModuleNotFoundError as error:
        if error.name is not None and (source == error.name or source.startswith(error.name + ".")):
            raise WhetError(
                f"{what} {name_or_path!r}: there is no module {source!r} here or among the installed packages; "
                "correct the name, or give the file: path/to/file.py:function"
            ) from None
        raise _broken(source, error, None) from error
    except (WhetError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _broken(source, error, None) from error


IMPORT_SECONDS = 300.0  # that importing one file or module may take; WHET_IMPORT_SECONDS sets another limit


def _in_time(load: Callable[[], Loaded], source: str, file: str | None) -> Loaded:
    """What importing a source gives. Code that never ends, or that a second Ctrl-C finds still running, is ended."""
    try:
        seconds = float(os.environ.get("WHET_IMPORT_SECONDS", IMPORT_SECONDS))
        if not 0 < seconds <= LONGEST_SECONDS:
            raise ValueError
    except ValueError:
        raise WhetError(
            f"WHET_IMPORT_SECONDS is {os.environ['WHET_IMPORT_SECONDS']!r}; give seconds, more than 0 and at most a day"
        ) from None

    def too_long(innermost_first: Positions) -> str:
        return (
            f"{source} is still being imported after {seconds:g} s, at {place(innermost_first, file)}; correct that "
            "line, or allow more time: WHET_IMPORT_SECONDS=SECONDS"
        )

    def end_deaf(innermost_first: Positions) -> None:
        end_process(too_long(innermost_first), 2)

    def end_stopped(number: int, innermost_first: Positions) -> None:
        line = f"stopped by {signal.Signals(number).name} while importing {source}, at {place(innermost_first, file)}"
        end_process(f"{line}, which goes on when it is interrupted; correct that line", 128 + number)

    try:
        with until_second_signal(end_stopped), watchdog(seconds):
            return limited(load, seconds, end_deaf)
    except Overrun as overrun:
        raise WhetError(too_long(overrun.innermost_first)) from None


def _make_importable(folder: Path) -> None:
    # appended: a user's neighbour files are found, and nothing installed is shadowed
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _broken(source: str, error: BaseException, file: str | None) -> WhetError:
    frames = positions(traceback.walk_tb(error.__traceback__))[::-1]
    where = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else place(frames, file)
    return WhetError(f"{source} fails when imported, at {where}: {error_text(error)}; fix that line")
