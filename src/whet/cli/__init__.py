"""The command line. Heavy imports happen inside the commands, so that help is instant."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from os import _exit  # kept from here on: while a reward is called, `os._exit` is refused to everybody
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from whet import __version__
from whet.cli import cluster, evaluate, plan, runs, serve, text, train
from whet.cli.data import data_app
from whet.cli.label import label_app
from whet.cli.options import APP_SETTINGS, WholeSummaries
from whet.cli.pipeline import pipeline_app
from whet.cli.reward import reward_app


class Interruption(BaseException):
    """A KeyboardInterrupt in a command, under a name that typer does not turn into a silent exit."""


class _Commands(WholeSummaries):
    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _interruptions():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _interruptions():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] == "study":  # of 0.2
            from whet.types import WhetError

            raise WhetError("whet study overoptimization is called `whet pipeline overoptimization` now")
        return super().resolve_command(ctx, args)


@contextlib.contextmanager
def _interruptions() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interruption from error


app = typer.Typer(
    name="whet",
    help="Sharpen language models with reinforcement learning.\n\n"
    "Try `whet train grpo`: the built-in model learns a built-in task in a minute, without GPU, hub or network.",
    **{**APP_SETTINGS, "cls": _Commands, "add_completion": True},
)
app.add_typer(data_app)
app.add_typer(label_app)
app.add_typer(reward_app)
for _commands in (
    train.commands,
    evaluate.commands,
    runs.commands,
    text.commands,
    plan.commands,
    serve.commands,
    cluster.commands,
    pipeline_app,
):
    app.registered_commands += _commands.registered_commands


PATIENCE = 3.0  # seconds that threads left behind get to end by themselves


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whet {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


class Stopped(KeyboardInterrupt):
    """Raised when a signal other than Ctrl-C's ends the process."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@cache
def _command_line() -> Any:
    """All commands with their options; calling `app` would build them anew each time."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line and end the process: exit code 0, or one line on stderr and another code.

    2 is a mistake of the user's, 1 a run that failed or an error nobody expected, 130 Ctrl-C, 143 a termination.
    """
    _fill_streams()
    heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in heeded:
        signal.signal(number, _stop)
    try:
        code, line = int(_command_line()(standalone_mode=False) or 0), ""
    except SystemExit as error:
        code, line = error.code if isinstance(error.code, int) else int(error.code is not None), ""
    except BaseException as error:
        code, line = _ending(error)
    for number in (signal.SIGINT, *heeded):  # from here on nothing is left to lose
        signal.signal(number, signal.SIG_IGN)
    ranks = sys.modules.get("whet.api.ranks")
    if line and not (ranks and ranks.is_silent()):
        _print_error(f"whet: {_one_line(line)}")
    _leave(code)


def _fill_streams() -> None:
    """Put /dev/null where a standard stream was closed: its number must not be that of the first file of a run."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(nothing, True)
            setattr(sys, name, os.fdopen(nothing, mode))


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _ending(error: BaseException) -> tuple[int, str]:
    """The exit code of a command that ended in an error, and its one line."""
    from whet.types import RunFailed, WhetError

    if isinstance(error, Interruption) and error.__cause__ is not None:
        error = error.__cause__
    notes = list(dict.fromkeys(getattr(error, "__notes__", ())))
    if isinstance(error, KeyboardInterrupt):
        by = f"by {error}" if isinstance(error, Stopped) else "by Ctrl-C"
        return 128 + getattr(error, "number", signal.SIGINT), "; ".join(
            [f"stopped {by}", *(notes or [NOTHING_CHANGED])]
        )
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # of click, or of the copy typer brings
        return _misused(error)
    if isinstance(error, typer.Abort):
        return 1, "aborted"
    if isinstance(error, WhetError):
        return 1 if isinstance(error, RunFailed) else 2, "; ".join([str(error), *notes])
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # whoever came upon the path first
        return 2, f"{error.filename}: the name is too long for this file system; give a shorter one"
    return 1, _unexpected(error, notes)


LONGEST = 1000  # characters of an error line


def _one_line(text: str) -> str:
    """A message without line breaks, cut in the middle: its start names the input and its end the fix."""
    line = " ".join(text.splitlines())
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"


def _misused(error: Any) -> tuple[int, str]:
    """Options and arguments that the command does not take, in one line; a bare command shows its help."""
    if "NoArgs" in type(error).__name__:
        error.show()
        return int(error.exit_code), ""
    context = getattr(error, "ctx", None)
    command = context.command_path.replace("python -m ", "") if context is not None else "whet"
    message = " ".join(error.format_message().split()).rstrip(".")
    taken = {option for parameter in context.command.params for option in parameter.opts} if context else set()
    if hasattr(error, "option_name"):
        return int(error.exit_code), _no_such_options(error.option_name, taken, command)
    return int(error.exit_code), f"{message[:1].lower()}{message[1:]}; `{command} -h` shows what it takes"


def _no_such_options(first: str, taken: set[str], command: str) -> str:
    """Every option that the command does not take, not only the first, and what to give instead."""
    typed = [word.partition("=")[0] for word in sys.argv if word.startswith("--") and len(word) > 2]
    others = [option for option in typed if option not in taken] if first in typed else []
    unknown = list(dict.fromkeys([first, *others]))
    hints = {option: _near_option(option, taken) for option in unknown}
    if {"--set", "--steps"} <= taken:  # a command that trains
        hints = {option: _option_hint(option) or hint for option, hint in hints.items()}
    listed = ", ".join(f"{option} ({hint})" if hint else option for option, hint in hints.items())
    if len(unknown) == 1 and hints[first]:
        return f"no such option: {first}; {hints[first]}"
    return f"no such option{'s' if len(unknown) > 1 else ''}: {listed}; `{command} -h` shows what it takes"


def _near_option(option: str, taken: set[str]) -> str:
    from whet.types import nearest

    close = nearest(option, taken, 0.75)
    return f"did you mean {close}?" if close else ""


FLAGS = {key: f"--{key}" for key in ("steps", "epochs", "hours", "seed", "folder")}
FLAGS |= {"model.name": "--model", "data.source": "--data", "reward.parts": "--reward"}


def _option_hint(option: str) -> str:
    """What to write for an option that is a key of whet's or a setting of another trainer's; else nothing."""
    from whet.settings.foreign import foreign_entry
    from whet.settings.layers import has_key
    from whet.training.config import CONFIG_CLASSES

    name = option.lstrip("-").replace("-", "_")
    entry = foreign_entry(name)
    keys = [name] if any(has_key(kind, name) for kind in CONFIG_CLASSES.values()) else []
    if not keys and entry is not None:
        keys = entry.key_for("policy").split(" and ") if entry.key else []
    note = f" ({entry.note})" if entry is not None and entry.note else ""
    if not keys:
        return entry.note if entry is not None else ""
    return "give " + " ".join(FLAGS.get(key, f"--set {key}=VALUE") for key in keys) + note


NOTHING_CHANGED = "nothing was changed"


def _unexpected(error: BaseException, notes: list[str]) -> str:
    """The traceback goes to a file: that of the run, where one broke, else a temporary one."""
    import tempfile
    from pathlib import Path

    from whet.api.ending import one_line_of, write_traceback

    if not notes and not isinstance(error, OSError):
        path = Path(tempfile.gettempdir()) / f"whet-error-{os.getpid()}.log"
        if write_traceback(path, error):
            notes = [f"the traceback is in {path}"]
    return "; ".join([one_line_of(error), *notes])


def _print_error(text: str) -> None:
    """One line on stderr, whatever it holds and whatever became of the stream."""
    line = " ".join(text.splitlines())
    try:
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        with contextlib.suppress(OSError):
            os.write(2, f"{line}\n".encode("utf-8", "backslashreplace"))


def _leave(code: int) -> NoReturn:
    """End the process, also where somebody left a thread that never ends."""
    main_thread = threading.main_thread()
    left = [thread for thread in threading.enumerate() if thread is not main_thread and not thread.daemon]
    if left:
        from whet.threads import Thread

        Thread(target=_leave_without, args=(left, code), daemon=True).start()
    gc.freeze()  # else the interpreter looks at every object once more before it ends, which takes a second with torch
    raise SystemExit(code)


def _leave_without(threads: list[threading.Thread], code: int) -> None:
    time.sleep(PATIENCE)
    names = [thread.name for thread in threads if thread.is_alive()]
    if not names:  # the process ends by itself
        return
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    _print_error(f"whet: ended without waiting for threads that a reward or callback left running ({shown})")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    _exit(code)
