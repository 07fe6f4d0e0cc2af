"""What the commands share: their options, and how they print and end."""

from __future__ import annotations

import math
import shlex
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from whet.settings.bounds import MOST_WEIGHT


class WholeSummaries(TyperGroup):
    """Commands whose list says the first sentence of each whole; typer cuts it to a line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(1000)) for name, each in commands.items() if each])


APP_SETTINGS: dict[str, Any] = {
    "cls": WholeSummaries,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "add_completion": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Set any config value, e.g. batch.group_size=16. Repeatable."),
]
Model = Annotated[
    str | None, typer.Option("--model", help="whetstone, smollm2, a model or run folder, a .gguf file, or a hub id.")
]
Rewards = Annotated[
    list[str] | None,
    typer.Option(
        "--reward", help="Built-in name, file.py:function, module:function or a reward model's run. Repeatable."
    ),
]
DATA_HELP = "task:arithmetic (countdown, lists), a file, gsm8k:FILE and such, or hub:owner/name."
Data = Annotated[
    str | None,
    typer.Option("--data", help=DATA_HELP),
]
Environment = Annotated[
    str | None,
    typer.Option(
        "--env",
        help="Environment: a registered name or file.py:Class; none switches the run's own off.",
    ),
]
Tools = Annotated[
    list[str] | None,
    typer.Option("--tool", help="calculator, python, search, file.py:function or mcp:COMMAND. Repeatable."),
]
Agent = Annotated[
    str | None,
    typer.Option("--agent", help="Agent program that plays the episodes, through an OpenAI endpoint."),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", help="Python file or module that registers your components. Repeatable."),
]
Config = Annotated[str | None, typer.Option("--config", help="TOML file; --set and other options override it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def environment_settings(env: str | None, tools: list[str] | None, agent: str | None = None) -> dict[str, Any]:
    """The flags as config values; nothing where none was given."""
    flags = {"name": env, "tools": list(tools) if tools else None, "agent": agent}
    chosen = {key: value for key, value in flags.items() if value is not None}
    return {"env": chosen} if chosen else {}


def finite(value: float | None) -> float | None:
    """Refuse nan and infinity, which pass the range check of options with `min` and `max`."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def number(flag: str, help: str, low: float = -MOST_WEIGHT, high: float = MOST_WEIGHT) -> Any:
    """An option that takes a finite number between two bounds."""
    return typer.Option(flag, min=low, max=high, callback=finite, help=help)


def command_line() -> str:
    """The command as it was typed, for the record of a run."""
    return shlex.join(["whet", *sys.argv[1:]])


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    import json

    typer.echo(json.dumps(value, indent=2))


def print_result(as_json: bool, record: Any, text: str) -> None:
    """Print the record as JSON where it was asked for, else the text for people."""
    print_json(record) if as_json else typer.echo(text)


def exit_if_interrupted(run: Any) -> None:
    """End with exit code 130, as after Ctrl-C, where the run was interrupted."""
    if run.status == "interrupted":
        raise typer.Exit(130)
