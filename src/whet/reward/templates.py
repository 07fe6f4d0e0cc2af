"""Ready sums of rewards for four kinds of task, as data: which built-in rewards, with which settings and weights.

The weights of a template add up to 1, at every moment of the training; penalties stand outside that sum. The first
part is the one that says whether a completion is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from whet.reward.combine import Gate, RewardPart, Schedule
from whet.types import WhetError, did_you_mean

FORMAT, EXTRA = "agent_format", 0.2  # the part that may come first, and by how much

TEMPLATES: Mapping[str, tuple[RewardPart, ...]] = MappingProxyType(
    {
        "math": (
            RewardPart("math_answer", 0.60, settings={"tolerance": 0.01}),
            RewardPart("agent_format", 0.15),
            RewardPart("efficiency", 0.15, settings={"expected_steps": 3, "max_tokens": 400}),
            RewardPart("safety", 0.10),
        ),
        "code": (
            RewardPart("code_tests", 0.50, settings={"partial": True}),
            RewardPart("agent_format", 0.10),
            RewardPart("efficiency", 0.25, settings={"expected_steps": 3}),
            RewardPart("safety", 0.15),
        ),
        # half of the accuracy is a rule's: a judge alone can be talked into anything
        "retrieval": (
            RewardPart("exact_answer", 0.20, settings={"form": "words", "any_of": True}),
            RewardPart("judge", 0.20),
            RewardPart("citations", 0.20, settings={"at_least": 2}),
            RewardPart("efficiency", 0.20, settings={"expected_steps": 3}),
            RewardPart("safety", 0.20),
        ),
        "agent": (
            RewardPart("tool_calls", 0.50),
            RewardPart("agent_format", 0.20),
            RewardPart("efficiency", 0.15, settings={"expected_steps": 3, "max_tokens": 512}),
            RewardPart("safety", 0.15),
        ),
    }
)

DEFENCES_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "math": ("incoherent_reasoning", "padding", "unsupported_answer", "guessing", "hollow_answer", "hidden_text"),
        "code": ("padding", "redundant_calls", "hidden_text"),
        "retrieval": ("padding", "hidden_text"),
        "agent": ("padding", "redundant_calls", "broken_tags", "hidden_text"),
    }
)


def template(name: str) -> tuple[RewardPart, ...]:
    """The parts of a kind of task."""
    if name not in TEMPLATES:
        templates = ", ".join(sorted(TEMPLATES))
        raise WhetError(f"no reward template is called {name!r}{did_you_mean(name, TEMPLATES)}; there are {templates}")
    return TEMPLATES[name]


def format_first(parts: Sequence[RewardPart], until: float = 0.2) -> tuple[RewardPart, ...]:
    """The parts with the format's weight raised by `EXTRA` at the start and back at its own when the share `until` of
    the training is done; the first part gives what the format takes, so that the sum stays 1."""
    if FORMAT not in [part.name for part in parts[1:]]:
        raise WhetError(f"no part {FORMAT!r} behind the first one; drop reward.format_first, or take another template")
    moved = {parts[0].name: -EXTRA, FORMAT: EXTRA}
    return tuple(
        replace(part, weight=_eased(part, moved[part.name], until)) if part.name in moved else part for part in parts
    )


def defended(
    parts: Sequence[RewardPart], names: Sequence[str], weight: float = 0.5, as_gates: bool = False
) -> tuple[RewardPart, ...]:
    """The parts with defences (names of `whet.reward.defences`) after them: as penalties of `weight` each, or as
    gates, where the first part counts nothing for a completion that one of them finds guilty.

    A part has one gate, so several gates stand in a row: each of them looks at the next.
    """
    taken = {part.name for part in parts} & set(names)
    if taken:
        raise WhetError(f"{sorted(taken)[0]!r} is already a part; name each defence once")
    if not as_gates or not names:
        return (*parts, *(RewardPart(name, weight) for name in names))
    if parts[0].gate is not None:
        raise WhetError(
            f"{parts[0].name!r} has a gate already, on {parts[0].gate.part!r}; add the defences as penalties"
        )
    gates = [Gate(name, least=0.0) for name in names]
    behind = zip(names, [*gates[1:], None], strict=True)
    guards = [RewardPart(name, 0.0, gate=gate) for name, gate in behind]
    return (replace(parts[0], gate=gates[0]), *parts[1:], *guards)


def _eased(part: RewardPart, amount: float, until: float) -> Schedule:
    """The weight changed by `amount` at the start and by nothing from `until` on."""
    assert isinstance(part.weight, int | float)
    return Schedule(((0.0, part.weight + amount), (until, part.weight)))
