"""A trajectory as it is shown: who spoke, which tokens learned, what each turn earned, cost and got wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whet.pages.render import TurnCard
from whet.record.text import number, words
from whet.types import Turn

POLICY = "assistant"
LONGEST_OPENING = 800  # characters that a terminal shows; the tools of a task alone can be thousands of them
LIMITS = {"length": "cut off by the turn's token budget", "text": "ended at a stop string"}


def turn_cards(sample: Mapping[str, Any]) -> tuple[TurnCard, ...]:
    """The turns of a line of samples.jsonl; empty for a single completion."""
    turns: Sequence[Mapping[str, Any]] = sample.get("turns") or ()
    seconds: Sequence[float] = sample.get("seconds") or [0.0] * len(turns)
    return tuple(_card(turn, spent) for turn, spent in zip(turns, seconds, strict=False))


def _card(turn: Mapping[str, Any], seconds: float) -> TurnCard:
    is_policy = turn.get("role") == POLICY
    tokens = int(turn.get("tokens") or 0)
    learned = "learned" if is_policy else "not learned" if tokens else "never read by the policy"
    notes = [f"{tokens} tokens, {learned}" if tokens else learned]
    if turn.get("reward") is not None:
        notes.append(f"reward {number(turn['reward'])}")
    if turn.get("state") is not None:
        notes.append(f"state {str(turn['state'])[:40]}")
    notes += [f"{words(name)} {count}" for name, count in (turn.get("counts") or {}).items() if count]
    if turn.get("ended") in LIMITS:
        notes.append(LIMITS[str(turn["ended"])])
    if is_policy and seconds:
        notes.append(f"answered in {number(seconds)} s")
    errors = tuple(str(each) for each in turn.get("errors") or ())
    return TurnCard(str(turn.get("role")), str(turn.get("text") or ""), tuple(notes), errors, is_policy)


def trajectory_text(turns: Sequence[Turn]) -> str:
    """The turns of an episode for a terminal, one after the other."""
    lines = []
    for turn in turns:
        if turn.role == "prompt":
            continue
        reward = "" if turn.reward is None else f" (reward {number(turn.reward)})"
        lines.append(f"{turn.role}{reward}: {turn.text.strip()}")
        lines += [f"  ! {error}" for error in turn.errors]
    return "\n".join(lines)


def opening_text(turns: Sequence[Turn]) -> str:
    """What the policy was shown first, as an environment of its own tasks began; its end, where it is long."""
    text = next((turn.text.strip() for turn in turns if turn.role == "prompt"), "")
    return text if len(text) <= LONGEST_OPENING else f"... {text[-LONGEST_OPENING:]}"
