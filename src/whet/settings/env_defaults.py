"""What a run of an environment with tasks of its own has unless it is told otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_ENVIRONMENT = "none"  # of an evaluation: a completion to each prompt, whatever the run had
PLAYERS = ("name", "settings", "tools", "tool_settings", "sandboxed", "agent")  # keys of env that say who plays

# a row's seed chooses a task; other rows are of no use to them. The turns: enough for a whole game, or a whole task
OWN_TASKS: Mapping[str, Mapping[str, Any]] = {
    "bfcl": {"data": {"source": "seeds:200"}, "env": {"max_turns": 60}},
    "gem": {"data": {"source": "seeds:1000"}, "env": {"max_turns": 30}},
    "gym": {"data": {"source": "seeds:1000"}, "env": {"max_turns": 30}},
    "textarena": {"data": {"source": "seeds:1000"}, "env": {"max_turns": 30}},
}


def evaluated_env(run: Any, given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """`env` of a run and of an evaluation of it: who is named for the evaluation plays in the place of the run's."""
    of_run = dict(run) if isinstance(run, Mapping) else {}
    chosen = dict(given) if isinstance(given, Mapping) else {}
    if chosen.get("name") == NO_ENVIRONMENT:
        del chosen["name"]
        return {}, chosen
    if any(chosen.get(key) for key in ("name", "tools", "agent")):
        of_run = {key: value for key, value in of_run.items() if key not in PLAYERS}
    return of_run, chosen


def env_defaults(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Values below those that were given, by the environment that these name."""
    section = given.get("env")
    name = section.get("name") if isinstance(section, Mapping) else None
    return OWN_TASKS.get(name, {}) if isinstance(name, str) else {}
