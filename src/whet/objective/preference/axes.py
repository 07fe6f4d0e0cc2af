"""The axes of a preference row by name: changing a component, telling a changed row from its preset, saying it in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from whet.objective import reference
from whet.objective.component import departures, with_number
from whet.objective.preference import alone, anchor, contrast, curve, imitate, score, weigh
from whet.objective.preference.objective import PairObjective, check_row
from whet.objective.presets.preference import LEFT_OUT, PAIR_PRESETS
from whet.objective.presets.preference_preset import PairPreset
from whet.types import WhetError, did_you_mean

COMPONENTS: dict[str, tuple[type, ...]] = {
    "score": (
        *(score.LogRatio, score.MeanLogRatio, score.LogLikelihood, score.MeanLogLikelihood, score.LogOdds),
        *(score.PowerReward, score.WeighedEntropy, score.ForwardKL, score.JensenShannon, score.AlphaDivergence),
        score.SharedLength,
    ),
    "curve": (
        *(curve.Logistic, curve.Unflipped, curve.Squared, curve.Hinge, curve.Blend, curve.Lowered, curve.Rivals),
        *(alone.Prospect, alone.Classified, alone.Saturating, alone.Targets, alone.NoiseContrast),
    ),
    "contrast": (contrast.Difference, contrast.Shifted, contrast.Protected),
    "anchor": (anchor.Zero, anchor.Mismatched, anchor.RunningMean),
    "weigh": (weigh.Alike, weigh.OwnWords, weigh.MarginGate),
    "imitate": (imitate.NoImitation, imitate.Summed, imitate.PerCompletion, imitate.PerToken),
    "reference": (reference.Frozen, reference.Reset, reference.MovingAverage),
}
# every axis of a preference row with its components, by the names a config uses
PAIR_AXES: dict[str, dict[str, type]] = {
    axis: {component.name: component for component in kinds}  # type: ignore[attr-defined]
    for axis, kinds in COMPONENTS.items()
}
QUESTIONS = {
    "score": "what is a completion worth?",
    "curve": "what does a pair, or a completion, cost?",
    "contrast": "how are two completions set against each other?",
    "anchor": "what is a single completion compared with?",
    "weigh": "how much does a pair count?",
    "imitate": "are good completions imitated as well?",
    "reference": "which policy is the reference?",
}


def pair_preset_named(name: str) -> PairPreset:
    """The preference row of that name, or an error with the nearest one."""
    if name in LEFT_OUT:
        raise WhetError(f"{name!r} is not built: {LEFT_OUT[name]}")
    if name not in PAIR_PRESETS:
        close = did_you_mean(name, PAIR_PRESETS)
        raise WhetError(f"no preference method is called {name!r}{close}; `whet algorithms` lists them")
    return PAIR_PRESETS[name]


def with_pair_changes(objective: PairObjective, changes: Mapping[str, Any]) -> PairObjective:
    """The row with components exchanged (`curve: "hinge"`) or their numbers set (`curve.beta: 0.5`), exchanges first."""
    for path in sorted(changes, key=lambda each: each.count(".")):
        axis, _, number = path.partition(".")
        if axis not in PAIR_AXES:
            raise WhetError(f"objective.{path}: no axis is called {axis!r}{did_you_mean(axis, PAIR_AXES)}")
        try:
            changed = (
                with_number(axis, getattr(objective, axis), number, changes[path])
                if number
                else _component_named(axis, changes[path])
            )
        except ValueError as error:
            raise WhetError(f"objective.{error}") from error
        objective = replace(objective, **{axis: changed})
    check_row(objective)
    return objective


def _component_named(axis: str, name: Any) -> Any:
    kinds = PAIR_AXES[axis]
    if not isinstance(name, str) or name not in kinds:
        known = ", ".join(kinds)
        raise WhetError(f"objective.{axis} is {name!r}{did_you_mean(str(name), kinds)}; give one of {known}")
    return kinds[name]()


def pair_differences(objective: PairObjective) -> dict[str, str]:
    """Where a row departs from the preset of its name: `{"curve.beta": "0.1 -> 0.5"}`; empty for the preset itself."""
    return departures(pair_preset_named(objective.name).objective, objective, PAIR_AXES)


def pair_title(objective: PairObjective) -> str:
    """The method's title, with a star when the row is not the preset."""
    return pair_preset_named(objective.name).title + ("*" if pair_differences(objective) else "")


def pair_description(objective: PairObjective) -> list[str]:
    """The effective objective in words and symbols: what this run will really minimise."""
    row, preset = objective, pair_preset_named(objective.name)
    lines = [f"{pair_title(row)}  ({preset.paper})"]
    lines += [f"  changed: {path} {change}" for path, change in pair_differences(row).items()]
    against = row.anchor.symbols()
    lines.append(f"  s = {row.score.symbols()}" + (f", less z = {against}" if against else ""))
    cost = row.curve.symbols(row.score.symbols(), row.contrast.symbols())
    inner = f"{cost}{row.imitate.symbols()}"
    lines.append(f"  L = mean {row.weigh.symbols()}[ {inner} ]")
    told: list[Any] = [row.score, row.contrast, row.curve, row.anchor, row.weigh, row.imitate, row.reference]
    return lines + [f"  - {words}" for component in told if (words := component.words())]
