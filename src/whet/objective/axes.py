"""The axes of a row by name: changing a component, telling a changed row from its preset, refusing what has no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from whet.objective import (
    advantage,
    aggregate,
    clip,
    control,
    credit,
    gates,
    keep,
    kl,
    mismatch,
    pass_at_k,
    ratio,
    reference,
    scale,
    select,
    shape,
    steps,
    terms,
)
from whet.objective.component import departures, with_number
from whet.objective.policy import Objective
from whet.objective.presets import PRESETS, Preset
from whet.types import WhetError, did_you_mean

COMPONENTS: dict[str, tuple[type, ...]] = {
    "baseline": (
        *(advantage.GroupMean, advantage.LeaveOneOut, advantage.LengthWeightedMean, advantage.RunningMean),
        *(advantage.MixedMean, advantage.Greedy, advantage.DrawnMean, advantage.PromptTracker, advantage.PartwiseGroup),
        *(pass_at_k.PassAtK, pass_at_k.PassAtKMarginal, pass_at_k.BestMinusSecond),
        *(credit.ReturnToGo, credit.GroupMeanToGo, credit.GAE, credit.DecoupledGAE, credit.VTrace, credit.Trace),
        *(steps.StepSum, steps.StepMean, steps.StepDelta, steps.TurnReturn, steps.AnchoredSteps),
    ),
    "scale": (
        *(scale.NoScale, scale.GroupStd, scale.GroupMeanScale, scale.DrawnStd),
        *(scale.TokenStd, scale.WhitenTokens, scale.WhitenCompletions),
    ),
    "ratio": (
        *(ratio.TokenRatio, ratio.SequenceRatio, ratio.SequenceProduct, ratio.SegmentRatio),
        *(ratio.SamplerTokenRatio, ratio.SamplerProduct),
    ),
    "clip": (
        *(clip.OnPolicy, clip.PPOClip, clip.DualClip, clip.Cap, clip.Unclipped, gates.SoftGate, gates.GeometricMean),
        *(gates.GammaGate, gates.VariationMask, gates.DivergenceMask),
    ),
    "aggregate": (
        *(aggregate.TokenMean, aggregate.SequenceMean, aggregate.FixedLength, aggregate.SequenceSum),
        aggregate.LearnedLength,
    ),
    "kl": (
        *(kl.NoKL, kl.K2, kl.K3, kl.K3Corrected, kl.Absolute, kl.Full, kl.K1Reward, kl.K2Reward, kl.K3Reward),
        *(kl.AbsoluteReward, kl.K1Immediate, kl.K3Old, kl.AbsoluteOld),
    ),
    "shape": (shape.AsScored, shape.SoftOverlong, shape.LengthCost, shape.ClipReward),
    "keep": (keep.Everything, keep.MixedOutcome, keep.Balanced, keep.Fresh),
    "mismatch": (
        *(mismatch.NoMismatch, mismatch.Truncate, mismatch.TruncateCompletion, mismatch.MaskTokens),
        *(mismatch.MaskCompletions, mismatch.MaskStale),
    ),
    "select": (select.AllTokens, select.Finished, select.TopEntropy, select.ClipCovariance, select.TieCovariance),
    "smooth": (terms.NoSmoothing, terms.TopK),
    "imitate": (terms.NoImitation, terms.ImitateRight),
    "entropy": (terms.NoBonus, terms.Bonus, terms.BonusToTarget),
    "value": (terms.NoCritic, terms.SquaredError, terms.ClippedError),
    "control": (control.Fixed, control.Proportional, control.Doubling, control.Budget, control.EndUpdates),
    "reference": (reference.Frozen, reference.Reset, reference.MovingAverage),
}
# every axis of a row with its components, by the names a config uses
AXES: dict[str, dict[str, type]] = {
    axis: {component.name: component for component in kinds}  # type: ignore[attr-defined]
    for axis, kinds in COMPONENTS.items()
}
MAIN_AXES = ("baseline", "scale", "ratio", "clip", "aggregate", "kl")


def preset_named(name: str) -> Preset:
    """The row of that name, or an error with the nearest one."""
    if name not in PRESETS:
        raise WhetError(f"no method is called {name!r}{did_you_mean(name, PRESETS)}; `whet algorithms` lists them")
    return PRESETS[name]


def with_changes(objective: Objective, changes: Mapping[str, Any]) -> Objective:
    """The row with components exchanged (`clip: "on_policy"`) or their numbers set (`clip.high: 0.28`).

    Components are exchanged first, so `{"kl": "k2", "kl.beta": 0.1}` sets the beta of the new component.
    """
    for path in sorted(changes, key=lambda each: each.count(".")):
        axis, _, number = path.partition(".")
        if axis not in AXES:
            raise WhetError(f"objective.{path}: no axis is called {axis!r}{did_you_mean(axis, AXES)}")
        component = getattr(objective, axis)
        try:
            changed = (
                with_number(axis, component, number, changes[path]) if number else _component_named(axis, changes[path])
            )
        except ValueError as error:
            raise WhetError(f"objective.{error}") from error
        objective = replace(objective, **{axis: changed})
    return objective


def _component_named(axis: str, name: Any) -> Any:
    kinds = AXES[axis]
    if axis == "kl" and name == "k1":
        raise WhetError(
            "objective.kl=k1: in the loss its expected gradient is 0, it ties to nothing; give k1_reward, k2 or k3"
        )
    if not isinstance(name, str) or name not in kinds:
        known = ", ".join(kinds)
        raise WhetError(f"objective.{axis} is {name!r}{did_you_mean(str(name), kinds)}; give one of {known}")
    return kinds[name]()


def differences(objective: Objective) -> dict[str, str]:
    """Where a row departs from the preset of its name: `{"clip.high": "0.2 -> 0.28"}`; empty for the preset itself."""
    return departures(preset_named(objective.name).objective, objective, AXES)


def title(objective: Objective) -> str:
    """The method's title, with a star when the row is not the preset."""
    return preset_named(objective.name).title + ("*" if differences(objective) else "")


def description(objective: Objective, updates_per_step: int = 1) -> list[str]:
    """The effective objective in words and symbols: what this run will really maximise."""
    row, preset = objective, preset_named(objective.name)
    lines = [f"{title(row)}  ({preset.paper})"]
    lines += [f"  changed: {path} {change}" for path, change in differences(row).items()]
    if row.shape.symbols():
        lines.append(f"  {row.shape.symbols()}")
    inner = f"{row.mismatch.symbols()}{row.clip.symbols()}{row.kl.symbols()}{row.entropy.symbols()}"
    lines += [
        f"  A = {row.scale.symbols(row.baseline.symbols())}",
        f"  J = {row.aggregate.symbols()} [ {inner} ]{row.imitate.symbols()}",
    ]
    sampler = row.ratio.against == "behavior_logp"
    if row.clip.uses_ratio:
        note = "  (always 1 here: one update a batch)" if updates_per_step == 1 and not sampler else ""
        lines.append(f"  {row.ratio.symbols()}{note}")
    told: list[Any] = [row.keep, row.shape, row.baseline, row.scale]
    if row.clip.uses_ratio and (updates_per_step > 1 or sampler):
        told.append(row.ratio)
    told += [row.clip, row.mismatch, row.select, row.smooth, row.aggregate, row.kl, row.control]
    told += [row.reference, row.entropy, row.imitate, row.value]
    lines += [f"  - {words}" for component in told if (words := component.words())]
    return lines
