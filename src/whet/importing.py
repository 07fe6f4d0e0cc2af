"""Other people's Python files and modules, imported by name: rewards, environments, tools.

Every failure is one line that names the file, the line and the fix.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from whet.types import WhetError, did_you_mean

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


def positions(frames: Iterable[tuple[FrameType, int]]) -> tuple[tuple[str, int], ...]:
    """(file, line) of each frame. Frames themselves would keep the locals of stopped code alive."""
    return tuple((frame.f_code.co_filename, line) for frame, line in frames)


def place(innermost_first: Sequence[tuple[str, int]], file: str | None) -> str:
    """file:line nearest to the trouble that lies in the user's file; the nearest of all when none does."""
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
            spec.loader.exec_module(module)
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
            return importlib.import_module(source)
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


def _make_importable(folder: Path) -> None:
    # appended: a user's neighbour files are found, and nothing installed is shadowed
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _broken(source: str, error: BaseException, file: str | None) -> WhetError:
    frames = positions(traceback.walk_tb(error.__traceback__))[::-1]
    where = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else place(frames, file)
    return WhetError(f"{source} fails when imported, at {where}: {error_text(error)}; fix that line")
