"""The axes of a row by name: changing a piece, telling a changed row from its preset, refusing what has no effect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from whet.objective import advantage, aggregate, clip, kl, ratio
from whet.objective.policy import Objective
from whet.objective.presets import PRESETS, Preset
from whet.types import WhetError, did_you_mean

PIECES: tuple[tuple[str, tuple[type, ...]], ...] = (
    (
        "baseline",
        (advantage.GroupMean, advantage.LeaveOneOut, advantage.LengthWeightedMean, advantage.RunningMean),
    ),
    ("scale", (advantage.NoScale, advantage.GroupStd, advantage.GroupMeanScale)),
    ("ratio", (ratio.TokenRatio, ratio.SequenceRatio, ratio.SequenceProduct)),
    ("clip", (clip.OnPolicy, clip.PPOClip, clip.DualClip, clip.Cap, clip.SoftGate, clip.GeometricMean)),
    (
        "aggregate",
        (aggregate.TokenMean, aggregate.SequenceMean, aggregate.FixedLength, aggregate.SequenceSum),
    ),
    ("kl", (kl.NoKL, kl.K2, kl.K3, kl.K1Reward)),
)
# every axis of a row with its pieces, by the names a config uses
AXES: dict[str, dict[str, type]] = {axis: {piece.name: piece for piece in kinds} for axis, kinds in PIECES}  # type: ignore[attr-defined]


def preset_named(name: str) -> Preset:
    """The row of that name, or an error with the nearest one."""
    if name not in PRESETS:
        raise WhetError(f"no method is called {name!r}{did_you_mean(name, PRESETS)}; `whet algorithms` lists them")
    return PRESETS[name]


def with_changes(objective: Objective, changes: Mapping[str, Any]) -> Objective:
    """The row with pieces exchanged (`clip: "on_policy"`) or their numbers set (`clip.high: 0.28`).

    Pieces are exchanged first, so `{"kl": "k2", "kl.beta": 0.1}` sets the beta of the new piece.
    """
    for path in sorted(changes, key=lambda each: each.count(".")):
        axis, _, number = path.partition(".")
        if axis not in AXES:
            raise WhetError(f"objective.{path}: no axis is called {axis!r}{did_you_mean(axis, AXES)}")
        piece = getattr(objective, axis)
        try:
            changed = _with_number(axis, piece, number, changes[path]) if number else _piece_named(axis, changes[path])
        except ValueError as error:
            raise WhetError(f"objective.{error}") from error
        objective = replace(objective, **{axis: changed})
    return objective


def _piece_named(axis: str, name: Any) -> Any:
    kinds = AXES[axis]
    if not isinstance(name, str) or name not in kinds:
        known = ", ".join(kinds)
        raise WhetError(f"objective.{axis} is {name!r}{did_you_mean(str(name), kinds)}; give one of {known}")
    return kinds[name]()


def _with_number(axis: str, piece: Any, name: str, value: Any) -> Any:
    settable = {field.name: field for field in fields(piece)}
    if name not in settable:
        known = ", ".join(settable) or "nothing"
        raise WhetError(
            f"objective.{axis}.{name}: {piece.name} has no such number{did_you_mean(name, settable)}; it has {known}"
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise WhetError(f"objective.{axis}.{name} is {value!r}; give a number")
    return replace(piece, **{name: float(value)})


def differences(objective: Objective) -> dict[str, str]:
    """Where a row departs from the preset of its name: `{"clip.high": "0.2 -> 0.28"}`; empty for the preset itself."""
    original = preset_named(objective.name).objective
    found: dict[str, str] = {}
    for axis in AXES:
        before, after = getattr(original, axis), getattr(objective, axis)
        if type(before) is not type(after):
            found[axis] = f"{before.name} -> {after.name}"
            continue
        for field in fields(after):
            old, new = getattr(before, field.name), getattr(after, field.name)
            if old != new:
                found[f"{axis}.{field.name}"] = f"{old:g} -> {new:g}"
    return found


def check_setting(objective: Objective, *, group_size: int, updates_per_step: int, changed: Mapping[str, Any]) -> None:
    """Refuse a row that cannot work in this run, and every number the user set that would have no effect in it."""
    smallest = objective.baseline.smallest_group
    if group_size < smallest:
        raise WhetError(
            f"group_size is {group_size} but the baseline {objective.baseline.name} compares replies of one prompt; "
            f"give group_size >= {smallest}, or objective.baseline=running_mean"
        )
    if updates_per_step > 1 and not objective.clip.uses_ratio:
        raise WhetError(
            f"updates_per_step is {updates_per_step} but objective.clip={objective.clip.name} ignores how far the "
            "policy has moved; give updates_per_step=1, or objective.clip=ppo_clip"
        )
    if group_size == 1 and isinstance(objective.scale, advantage.GroupStd):
        raise WhetError(
            "objective.scale=group_std has no spread to divide by with group_size 1; give objective.scale=none"
        )
    whole_reply = objective.ratio.name.startswith("sequence") and objective.clip.uses_ratio
    if whole_reply and objective.aggregate.name in ("token_mean", "fixed_length") and differences(objective):
        raise WhetError(
            f"objective.ratio={objective.ratio.name} weighs whole replies but objective.aggregate="
            f"{objective.aggregate.name} counts tokens: long replies dominate; give objective.aggregate=sequence_mean"
        )
    for path in changed:
        if path.partition(".")[0] in ("clip", "ratio") and updates_per_step == 1:
            raise WhetError(
                f"objective.{path} has no effect with updates_per_step=1: the ratio is exactly 1 on the only update; "
                "set updates_per_step above 1, or drop it"
            )


def title(objective: Objective) -> str:
    """The method's title, with a star when the row is not the preset."""
    return preset_named(objective.name).title + ("*" if differences(objective) else "")


def description(objective: Objective, updates_per_step: int = 1) -> list[str]:
    """The effective objective in words and symbols: what this run will really maximise."""
    preset = preset_named(objective.name)
    centred = f"R - {objective.baseline.symbols()}"
    lines = [f"{title(objective)}  ({preset.paper})"]
    lines += [f"  changed: {path} {change}" for path, change in differences(objective).items()]
    lines += [
        f"  A = {objective.scale.symbols(centred)}",
        f"  J = {objective.aggregate.symbols()} [ {objective.clip.symbols()}{objective.kl.symbols()} ]",
    ]
    if objective.clip.uses_ratio:
        note = "  (always 1 here: one update a batch)" if updates_per_step == 1 else ""
        lines.append(f"  {objective.ratio.symbols()}{note}")
    words = [objective.baseline.words(), objective.scale.words()]
    if objective.clip.uses_ratio and updates_per_step > 1:
        words.append(objective.ratio.words())
    words += [objective.clip.words(), objective.aggregate.words(), objective.kl.words()]
    lines += [f"  - {each}" for each in words]
    return lines
