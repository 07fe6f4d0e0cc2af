"""Which interface a class has."""

from __future__ import annotations

import sys

import pytest

from tests.support.for_every import for_every
from whet.envs.adapters import bfcl
from whet.envs.adapters.gym import StepEnvironment
from whet.envs.adapters.skyrl import SkyRLEnvironment
from whet.envs.adapters.trl import TrlEnvironment
from whet.envs.find import as_environment, find_environment
from whet.types import StepResult, WhetError


class Own:
    def __init__(self, goal=1):
        self.goal = goal

    def start(self, prompt): ...

    def step(self, completion):
        return StepResult(done=True)


class Sky:
    def init(self, prompt):
        return prompt, {}

    def step(self, action): ...


class Gym:
    def __init__(self, size=3):
        self.size = size

    def reset(self, seed=None):
        return f"size {self.size}", {}

    def step(self, action): ...


class Trl:
    def reset(self, **row): ...

    def look(self) -> str:
        """Look around."""
        return ""


class TrlWithStep(Trl):
    def step(self, move: str) -> str:
        """Move.

        Args:
            move: Where to.
        """
        return move

    def get_reward(self):
        return 1.0


@for_every(
    [(Own, Own), (Sky, SkyRLEnvironment), (Gym, StepEnvironment), (Trl, TrlEnvironment), (TrlWithStep, TrlEnvironment)]
)
def test_the_methods_say_which(thing, kind):
    make = as_environment(thing)
    assert type(make()) is kind and make() is not make()
    assert type(as_environment(lambda: thing())()) is kind


def test_a_mapping_is_routed():
    assert type(as_environment({"a": Trl, "b": TrlWithStep})()) is TrlEnvironment


def test_settings_reach_the_class():
    assert as_environment(Own, {"goal": 5})().goal == 5
    env = as_environment(Gym, {"size": 7, "names_states": True})()
    from whet.types import Prompt

    assert env.start(Prompt("p", ())).state == "size 7"


class NoReset:
    def look(self) -> str:
        """Look around."""
        return ""


class OnlyStep:
    def step(self, action): ...


@pytest.mark.parametrize(
    ("thing", "complaint"),
    [
        (NoReset, "environment 'NoReset' cannot be used: NoReset has no reset: whet's own has start.*a TRL one reset"),
        (OnlyStep, "environment 'OnlyStep' cannot be used: OnlyStep has no start, init or reset: "),
        (
            Own(),
            "environment 'Own' cannot be used: it is one object .Own., and every episode needs its own; give its class",
        ),
        (lambda: 1 / 0, "cannot be made: ZeroDivisionError: division by zero; check env.settings"),
    ],
)
def test_what_is_none_is_one_line(thing, complaint):
    with pytest.raises(WhetError, match=complaint):
        as_environment(thing)


@pytest.mark.parametrize(
    ("name", "package", "settings", "line"),
    [
        ("textarena", "textarena", {"id": "Sudoku-v0"}, r"run pip install 'whet\[textarena\]'"),
        ("gym", "gymnasium", {"id": "FrozenLake-v1"}, r"run pip install 'whet\[gym\]'"),
        ("gem", "gem", {"id": "game:Sudoku-v0-easy"}, "run pip install --no-deps gem-llm==0.1.0 and pip install nltk"),
        ("skyrl", "skyrl_gym", {"id": "gsm8k"}, r"run pip install 'whet\[skyrl\]'"),
        ("bfcl", "bfcl_eval", {}, "run pip install --no-deps bfcl-eval==2026.3.23 and pip install mpmath"),
    ],
)
def test_a_missing_package_is_one_line_with_the_command(name, package, settings, line, monkeypatch):
    for each in [each for each in sys.modules if each == package or each.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, each)
    monkeypatch.setitem(sys.modules, package, None)
    for cached in (bfcl._call_format, bfcl._tools, bfcl.tasks):
        cached.cache_clear()
    with pytest.raises(WhetError, match=line):
        find_environment(name, settings)
