"""`whet watch`: a run live in the terminal, from any other process. Heavy imports happen inside the command."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from whet.cli.options import APP_SETTINGS, number

commands = typer.Typer(**APP_SETTINGS)
LEAST_PAUSE, MOST_PAUSE = 0.2, 3600.0
READING_SHARE = 0.1  # at most this share of the time goes into reading a long log


@commands.command()
def watch(
    run: Annotated[str, typer.Argument(help="A run folder, or that of a pipeline.")],
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end, as without a terminal.")] = False,
    every: Annotated[float, number("--every", "Seconds between two looks.", LEAST_PAUSE, MOST_PAUSE)] = 1.0,
) -> None:
    """Follow a run in the terminal: progress, curves, evaluation, health with remedies, speed, best and worst sample.

    It only reads the run's files: start and stop it as you like. It ends when the run does; Ctrl-C ends it sooner.
    """
    import sys
    from pathlib import Path

    from rich.console import Console

    from whet.api.watching import watched_run
    from whet.record.run import verdict
    from whet.record.watch import frame_lines

    terminal = Console(highlight=False, markup=False, emoji=False)
    unicode = "utf" in terminal.encoding.lower()
    folder = Path(run)

    def lines(frame: Any) -> list[Any]:
        height = terminal.height - 2 if live else 200
        return frame_lines(frame, max(20, terminal.width), max(1, height), unicode)

    live = not once and sys.stdout.isatty() and not terminal.is_dumb_terminal
    frame = watched_run(folder)
    if not live:
        for line in lines(frame):
            terminal.print(line, soft_wrap=True)
        if frame.status != "running":
            terminal.print(verdict(frame.run), soft_wrap=True)
        return
    try:
        frame = _followed(terminal, folder, frame, lines, every)
    except KeyboardInterrupt:
        return
    terminal.print(verdict(frame.run))


def _followed(terminal: Any, folder: Any, frame: Any, lines: Any, every: float) -> Any:
    """Draw until the run has ended; its last frame."""
    import time

    from rich.console import Group
    from rich.live import Live

    from whet.api.watching import watched_run

    with Live(Group(*lines(frame)), console=terminal, auto_refresh=False, transient=False) as display:
        while frame.status == "running":
            began = time.monotonic()
            frame = watched_run(folder)
            display.update(Group(*lines(frame)), refresh=True)
            took = time.monotonic() - began
            if frame.status == "running":
                time.sleep(max(every, took / READING_SHARE - took))
    return frame
