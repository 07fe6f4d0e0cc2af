"""The environment of an evaluation: the run's own, another one, or none."""

from __future__ import annotations

from tests.support.for_every import for_every
from whet.training.config import resolved_evaluation

RUN = {"env": {"tools": ["calculator"], "max_turns": 4, "call_format": "json"}}


@for_every(
    [
        ({}, ("calculator",), "", 4),
        ({"env": {"max_turns": 2}}, ("calculator",), "", 2),
        ({"env": {"tools": ["python"]}}, ("python",), "", 4),
        ({"env": {"name": "game.py:Game"}}, (), "game.py:Game", 4),
        ({"env": {"name": "none"}}, (), "", 8),
    ]
)
def test_who_is_named_plays_in_place_of_the_runs_own(given, tools, name, max_turns):
    section = resolved_evaluation(RUN, given).env
    assert (section.tools, section.name, section.max_turns) == (tools, name, max_turns)
    assert section.is_single is (not tools and not name)
