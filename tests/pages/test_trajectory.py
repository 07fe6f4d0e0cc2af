"""Trajectories on pages and in the terminal, and what the numbers of episodes say about a run."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.support.for_every import for_every
from whet.pages.run_report import opening_text, sample_card, trajectory_text, turn_cards
from whet.record.health.diagnosis import diagnosis, findings
from whet.record.log import sample_line
from whet.types import Prompt, Sample, StepReport, StopReason, Turn

TURNS = (
    Turn("assistant", "call", 3, 7, 0.5, "s0", StopReason.LENGTH, {"tool_calls": 2}, ("bad <b>argument</b>",), 0.25),
    Turn("tool", "42", 7, 12),
    Turn("assistant", "done", 12, 14, ended=StopReason.END),
    Turn("user", "well done", 14, 14),
)
SAMPLE = Sample(
    torch.arange(14), torch.arange(14) > 2, torch.zeros(14), (0, 0), StopReason.TURNS, "done",
    parts={"environment": 0.5}, reward=0.5, turns=TURNS, returned=0.5, episode="p#0",
)  # fmt: skip


def test_every_turn_says_who_spoke_what_learned_and_what_it_cost() -> None:
    first, second, third, fourth = turn_cards(sample_line(1, Prompt("p", ()), SAMPLE))
    assert (first.who, first.learns, first.errors) == ("assistant", True, ("bad <b>argument</b>",))
    assert first.notes == (
        *("4 tokens, learned", "reward 0.500", "state s0", "tool calls 2"),
        *("cut off by the turn's token budget", "answered in 0.250 s"),
    )
    assert (second.who, second.learns, second.notes) == ("tool", False, ("5 tokens, not learned",))
    assert third.notes == ("2 tokens, learned",)
    assert fourth.notes == ("never read by the policy",)


def test_a_card_shows_the_turns_instead_of_the_completion() -> None:
    card = sample_card("Best", sample_line(1, Prompt("p", ({"role": "user", "content": "ask"},), answer="4"), SAMPLE))
    assert [name for name, _ in card.texts] == ["Prompt", "Gold answer"] and len(card.turns) == 4
    assert "ran out of turns" in card.foot and card.foot.endswith("prompt p")
    played = sample_card("Best", sample_line(1, Prompt("p", ()), replace(SAMPLE, role="dealer")))
    assert played.foot.endswith("prompt p, as dealer")


def test_a_trajectory_in_a_terminal() -> None:
    assert trajectory_text(TURNS).splitlines() == [
        *("assistant (reward 0.500): call", "  ! bad <b>argument</b>", "tool: 42"),
        *("assistant: done", "user: well done"),
    ]


def test_how_an_episode_began_is_shown_by_its_end() -> None:
    long = "a" * 5000 + " Enter your guess."
    assert opening_text([Turn("prompt", " Guess. ", 0, 3), *TURNS]) == "Guess." and opening_text(TURNS) == ""
    shown = opening_text([Turn("prompt", long, 0, 3)])
    assert shown.startswith("... a") and shown.endswith("Enter your guess.") and len(shown) == 804


def steps(**counts: int) -> list[StepReport]:
    every = {"samples": 100, "prompts": 10, "tokens": 1000, **counts}
    return [StepReport(number, number, every, {"total": 0.3 + 0.01 * (number % 2)}, {}) for number in range(1, 12)]


@for_every(
    [
        ({"tool_calls": 60, "malformed_calls": 40}, "malformed calls"),
        ({"tool_calls": 100, "tool_errors": 20, "tool_timeouts": 15}, "failing tools"),
        ({"failed_episodes": 6}, "failing environment"),
        ({"ended_by_turns": 40}, "episodes cut off"),
        ({"ended_by_step_seconds": 40}, "episodes cut off"),
    ]
)
def test_what_goes_wrong_in_episodes_is_found(counts: dict[str, int], name: str) -> None:
    assert any(text.startswith(f"{name}: ") for text in diagnosis(steps(**counts)))


def test_healthy_episodes_are_left_in_peace() -> None:
    counts = {"tool_calls": 100, "malformed_calls": 5, "tool_errors": 10, "ended_by_turns": 10, "failed_episodes": 1}
    assert not any("call" in text or "tool" in text or "episode" in text for text in diagnosis(steps(**counts)))
    (note,) = [found for found in findings(steps(slow_environments=1)) if found.name == "slow environment"]
    assert not note.is_problem


def test_a_run_that_waits_for_its_environment_is_told_so() -> None:
    course = steps(slow_environments=1)
    for share, said in ((0.5, "50.0% of the time"), (0.1, "too long to be waited for")):
        seconds = {"environment": share, "rollout": 1 - share}
        assert any(said in found.text for found in findings([replace(step, seconds=seconds) for step in course]))
