"""Settings of episodes: `[env]` of a config, and what a run has whose environment brings tasks of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from whet.settings.bounds import MOST_TOKENS
from whet.settings.sections import Listed, Section, Table
from whet.types import WhetError

VERIFIERS = "verifiers:"  # what names of environments begin with that play by themselves
NO_ENVIRONMENT = "none"  # of an evaluation: a completion to each prompt, whatever the run had
PLAYERS = ("name", "settings", "tools", "tool_settings", "sandboxed", "agent")  # keys of env that say who plays

# a row's seed chooses a task; other rows are of no use to them. The turns: enough for a whole game, or a whole task
OWN_TASKS: Mapping[str, Mapping[str, Any]] = {
    "bfcl": {"data": {"source": "seeds:200"}, "env": {"max_turns": 60}},
    "gem": {"data": {"source": "seeds:1000"}, "env": {"max_turns": 30}},
    "gym": {"data": {"source": "seeds:1000"}, "env": {"max_turns": 30}},
    "textarena": {"data": {"source": "seeds:1000"}, "env": {"max_turns": 30}},
}

# settings of branching, and where they have an effect
OF_METHODS = ("branching", "leaves")  # which some methods bring along: a run without an environment refuses them
BRANCH_SETTINGS = {
    ("leaves", "branch_width"): ("turns", "tool_calls", "entropy"),
    ("branch_chance", "branch_entropy"): ("entropy",),
}


class EnvSection(Section):
    """`[env]`: what answers the policy in an episode, and the limits of an episode."""

    name: str = Field(
        "",
        description="environment of an episode: a registered name, verifiers:NAME or file.py:Class; empty: one "
        "completion, or tools",
    )
    settings: Table = Field({}, description="settings of the environment, by name")
    tools: Listed = Field(
        (),
        max_length=1000,
        description="tools to call: calculator, python, search, file.py:function, mcp:COMMAND",
    )
    tool_settings: Table = Field({}, description="settings of tools, by tool and name")
    sandboxed: Listed = Field(
        (), max_length=1000, description="names of tools that run in the sandbox instead of this process"
    )
    call_format: Literal["auto", "template", "loose", "json", "python"] = Field(
        "auto",
        description="how calls are written: as the chat template does; loose: so, as bare JSON or in a fence; JSON in "
        "tags; name(argument=value) in tags",
    )
    instructions: bool = Field(
        True, description="tell the model of its tools in the system message, where its chat template does not"
    )
    agent: str = Field(
        "",
        description="a program that plays the episodes itself and speaks to an OpenAI endpoint, or file.py:name of an "
        "async function(client, row) that does so in this process",
    )
    at_once: int = Field(16, ge=1, le=1024, description="programs of an agent that run side by side")
    history: Literal["template", "sampled"] = Field(
        "template",
        description="earlier turns: a template that rewrites them is refused, or they stay as they were sampled",
    )
    max_turns: int = Field(8, ge=1, le=10000, description="most turns of the policy in an episode")
    max_tokens: int = Field(
        0,
        ge=0,
        le=MOST_TOKENS,
        description="most tokens of an episode behind its prompt; 0: twice its turns' budget",
    )
    branching: Literal["none", "turns", "tool_calls", "entropy"] = Field(
        "none",
        description="several turns are drawn from one state, each with a twin of the environment: behind every turn, "
        "behind turns that call tools, or by chance, the more uncertain a turn was",
    )
    leaves: int = Field(4, ge=2, le=4096, description="most samples of an episode that branches")
    branch_width: int = Field(2, ge=2, le=4096, description="turns drawn from a state that branches")
    branch_chance: float = Field(0.5, ge=0, le=1, description="by entropy: chance of a turn as uncertain as the first")
    branch_entropy: float = Field(
        0.2,
        ge=0,
        le=1000,
        description="by entropy: what the chance gains per nat per token above the first turn, times log(vocabulary)",
    )
    tool_seconds: float = Field(10.0, ge=0.001, le=86400, description="time limit of one tool call, in seconds")
    step_seconds: float = Field(60.0, ge=0.001, le=86400, description="time limit of one answer, in seconds")
    seconds: float = Field(600.0, ge=0.001, le=864000, description="time limit of an episode, in seconds")

    @property
    def player(self) -> str:
        """Who plays whole episodes by itself, behind the endpoint: an agent, or an environment of verifiers."""
        return self.agent or (self.name if self.name.startswith(VERIFIERS) else "")

    @property
    def is_single(self) -> bool:
        """True where an episode is one completion."""
        return not (self.name or self.tools or self.agent)

    def most_tokens(self, budget: int) -> int:
        """Tokens that an episode may grow by after its prompt: turns of so many tokens at most, and answers."""
        return self.max_tokens or 2 * self.max_turns * budget

    def most_actions(self, budget: int) -> int:
        """Tokens that the policy may write in one episode."""
        return budget if self.is_single else min(self.max_turns * budget, self.most_tokens(budget))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.agent and (self.name or self.tools):
            raise ValueError("agent plays the episodes itself; drop name and tools, or agent")
        if self.is_single:
            plain = type(self).model_fields
            changed = [key for key in plain if getattr(self, key) != plain[key].default and key not in OF_METHODS]
            if changed:
                raise ValueError(
                    f"{changed[0]} has no effect without an environment; give env.name, env.tools or env.agent"
                )
        if self.at_once != type(self).model_fields["at_once"].default and not self.player:
            raise ValueError("at_once has no effect without agent; give the command of a program, or drop it")
        if self.player and self.tools:
            raise ValueError(f"{self.name} brings its own tools; drop tools")
        if self.branching != "none" and self.player:
            raise ValueError(f"branching: {self.player} plays by itself; let it ask for several completions, n > 1")
        for keys, of in BRANCH_SETTINGS.items():
            for key in keys if self.branching not in of else ():
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise ValueError(f"{key} has no effect with branching={self.branching}; give branching={of[0]}")
        if self.settings and not self.name:
            raise ValueError("settings has no effect without name; for tools give tool_settings")
        for key in ("tool_settings", "sandboxed"):
            if getattr(self, key) and not self.tools:
                raise ValueError(f"{key} has no effect without tools; name some")
        return self


def evaluated_env(run: Any, section: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """`env` of a run and of an evaluation of it: who is named for the evaluation plays in the place of the run's."""
    of_run = dict(run) if isinstance(run, Mapping) else {}
    chosen = dict(section) if isinstance(section, Mapping) else {}
    if chosen.get("name") == NO_ENVIRONMENT:
        del chosen["name"]
        return {}, chosen
    if any(chosen.get(key) for key in ("name", "tools", "agent")):
        of_run = {key: value for key, value in of_run.items() if key not in PLAYERS}
    return of_run, chosen


def env_defaults(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Values below those that were given, by the environment that these name."""
    section = values.get("env")
    name = section.get("name") if isinstance(section, Mapping) else None
    if isinstance(name, str) and isinstance(section, Mapping) and name.startswith(VERIFIERS):
        from whet.envs.adapters.verifiers import num_tasks

        source = (values.get("data") or {}).get("source") or f"seeds:{num_tasks(name, section.get('settings') or {})}"
        return {"data": {"source": source}, "env": {"max_turns": 30}}
    if isinstance(name, str) and ":" in name and not (values.get("data") or {}).get("source") and _is_gym(name):
        return OWN_TASKS["gym"]
    return OWN_TASKS.get(name, {}) if isinstance(name, str) else {}


def _is_gym(name: str) -> bool:
    """Whether a class has Gymnasium's interface: its tasks are seeds. One that cannot be read is told of later."""
    from whet.envs.find import GIVEN, interface
    from whet.registry import imported

    try:
        thing = GIVEN[name] if name in GIVEN else imported(name, "environment")
    except WhetError:
        return False
    return isinstance(thing, type) and interface(thing) == "gym"
