"""Ready sums of rewards for four kinds of task, as data: which built-in rewards, with which settings and weights.

The weights of a template add up to 1, at every moment of the training; penalties stand outside that sum. The first
part is the one that says whether a completion is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from whet.protocols import Reward
from whet.reward.combine import Gate, Normalise, Part, Schedule
from whet.types import WhetError, did_you_mean

WEIGHT_ERROR = 1e-6  # how far from 1 the weights may add up, for rounding
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class PartSpec:
    """A part before its reward is found: plain data, as a config file has it."""

    reward: str  # the name of a built-in reward
    weight: float | Schedule = 1.0
    settings: Mapping[str, Any] = field(default_factory=lambda: NO_SETTINGS)
    gate: Gate | None = None
    cap: tuple[float, float] | None = None
    normalise: Normalise = "off"
    penalty: bool = False
    adds_up: bool = True  # False: a penalty or a mere report, outside the sum of 1

    def part(self, reward: Reward) -> Part:
        """The part with the reward that `find_reward(self.reward, self.settings)` gave."""
        return Part(reward, self.weight, self.gate, self.cap, self.normalise, self.penalty)

    @property
    def schedule(self) -> Schedule:
        return self.weight if isinstance(self.weight, Schedule) else Schedule(((0.0, self.weight),))


TEMPLATES: Mapping[str, tuple[PartSpec, ...]] = MappingProxyType(
    {
        "math": (
            PartSpec("math_answer", 0.60, {"tolerance": 0.01}),
            PartSpec("agent_format", 0.15),
            PartSpec("efficiency", 0.15, {"expected_steps": 3, "max_tokens": 400}),
            PartSpec("safety", 0.10),
        ),
        "code": (
            PartSpec("code_tests", 0.50, {"partial": True}),
            PartSpec("agent_format", 0.10),
            PartSpec("efficiency", 0.25, {"expected_steps": 3}),
            PartSpec("safety", 0.15),
        ),
        # half of the accuracy is a rule's: a judge alone can be talked into anything
        "retrieval": (
            PartSpec("exact_answer", 0.20, {"form": "words", "any_of": True}),
            PartSpec("judge", 0.20),
            PartSpec("citations", 0.20, {"at_least": 2}),
            PartSpec("efficiency", 0.20, {"expected_steps": 3}),
            PartSpec("safety", 0.20),
        ),
        "agent": (
            PartSpec("tool_calls", 0.50),
            PartSpec("agent_format", 0.20),
            PartSpec("efficiency", 0.15, {"expected_steps": 3, "max_tokens": 512}),
            PartSpec("safety", 0.15),
        ),
    }
)

DEFENCES_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "math": ("incoherent_reasoning", "padding", "unsupported_answer", "guessing", "hollow_answer", "hidden_text"),
        "code": ("padding", "redundant_calls", "hidden_text"),
        "retrieval": ("padding", "hidden_text", "judge_injection", "self_grading"),
        "agent": ("padding", "redundant_calls", "broken_tags", "hidden_text"),
    }
)


def template(name: str, weights: Mapping[str, float] | None = None) -> tuple[PartSpec, ...]:
    """The parts of a kind of task; `weights` puts others in the place of its own, by the reward's name."""
    if name not in TEMPLATES:
        known = ", ".join(sorted(TEMPLATES))
        raise WhetError(f"no reward template is called {name!r}{did_you_mean(name, TEMPLATES)}; there are {known}")
    specs = TEMPLATES[name]
    names = [spec.reward for spec in specs]
    for given in weights or {}:
        if given not in names:
            raise WhetError(
                f"template {name!r} has no part {given!r}{did_you_mean(given, names)}; it has {', '.join(names)}"
            )
    changed = tuple(replace(spec, weight=(weights or {}).get(spec.reward, spec.weight)) for spec in specs)
    check_sum(changed)
    return changed


def format_first(
    specs: Sequence[PartSpec], extra: float = 0.2, until: float = 0.2, form: str = "agent_format"
) -> tuple[PartSpec, ...]:
    """The parts with the format's weight raised by `extra` at the start and back at its own when the share `until` of
    the training is done; the first part gives what the format takes, so that the sum stays 1."""
    if form not in [spec.reward for spec in specs[1:]]:
        raise WhetError(f"no part {form!r} behind the first one; name the part that rewards the format")
    if not 0 < until <= 1:
        raise WhetError(f"the format comes first until {until} of the training; give a share in (0, 1]")
    if not 0 <= extra <= specs[0].schedule.at(0.0):
        raise WhetError(
            f"the format would get {extra:g} more, and {specs[0].reward!r} has {specs[0].schedule.at(0.0):g} to give; "
            "give less"
        )
    moved = {specs[0].reward: -extra, form: extra}
    changed = tuple(
        replace(spec, weight=_eased(spec, moved[spec.reward], until)) if spec.reward in moved else spec
        for spec in specs
    )
    check_sum(changed)
    return changed


def defended(
    specs: Sequence[PartSpec], names: Sequence[str], weight: float = 0.5, as_gates: bool = False
) -> tuple[PartSpec, ...]:
    """The parts with defences (names of `whet.reward.defences`) behind them: as penalties of `weight` each, or as
    gates, where the first part counts nothing for a completion that one of them finds guilty.

    A part has one gate, so several gates stand in a row: each of them looks at the next.
    """
    taken = {spec.reward for spec in specs} & set(names)
    if taken:
        raise WhetError(f"{sorted(taken)[0]!r} is already a part; name each defence once")
    if not as_gates or not names:
        return (*specs, *(PartSpec(name, weight, adds_up=False) for name in names))
    if specs[0].gate is not None:
        raise WhetError(
            f"{specs[0].reward!r} has a gate already, on {specs[0].gate.part!r}; add the defences as penalties"
        )
    gates = [Gate(name, least=0.0) for name in names]
    guards = [
        PartSpec(name, 0.0, gate=behind, adds_up=False) for name, behind in zip(names, [*gates[1:], None], strict=True)
    ]
    return (replace(specs[0], gate=gates[0]), *specs[1:], *guards)


def check_sum(specs: Sequence[PartSpec]) -> None:
    """Refuse weights that do not add up to 1 at some moment of the training."""
    counted = [spec for spec in specs if spec.adds_up]
    for corner in sorted({position for spec in counted for position, _ in spec.schedule.points} | {0.0, 1.0}):
        total = math.fsum(spec.schedule.at(corner) for spec in counted)
        if abs(total - 1) > WEIGHT_ERROR:
            said = " + ".join(f"{spec.reward} {spec.schedule.at(corner):g}" for spec in counted)
            raise WhetError(
                f"the weights of a template must add up to 1, and at {corner:g} of the training they are "
                f"{said} = {total:.4g}; change another weight too"
            )


def _eased(spec: PartSpec, amount: float, until: float) -> Schedule:
    """The weight changed by `amount` at the start and by nothing from `until` on."""
    if isinstance(spec.weight, Schedule):
        raise WhetError(f"the weight of {spec.reward!r} has a schedule already; give it a plain weight")
    return Schedule(((0.0, spec.weight + amount), (until, spec.weight)))
