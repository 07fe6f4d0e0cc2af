"""What a run of an environment with tasks of its own has unless it is told otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# a row's seed chooses a task; other rows are of no use to them. The turns: enough for a whole game, or a whole task
OWN_TASKS: Mapping[str, Mapping[str, Any]] = {
    "bfcl": {"data": {"source": "seeds:200"}, "env": {"max_turns": 60}},
    "gem": {"data": {"source": "seeds:1000"}, "env": {"max_turns": 30}},
    "gym": {"data": {"source": "seeds:1000"}, "env": {"max_turns": 30}},
    "textarena": {"data": {"source": "seeds:1000"}, "env": {"max_turns": 30}},
}


def env_defaults(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Values below those that were given, by the environment that these name."""
    section = given.get("env")
    name = section.get("name") if isinstance(section, Mapping) else None
    return OWN_TASKS.get(name, {}) if isinstance(name, str) else {}
