"""The presets as values of `whet.settings.methods.catalogue`: those of catalogue.json, and a user's own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from whet.objective.axes import FAMILIES, POLICY, Axis, Family, description
from whet.objective.presets.preference import LEFT_OUT
from whet.objective.presets.preset import Preset
from whet.objective.presets.reward_model import REWARD_MODELS, RewardModelObjective
from whet.pages.clip_plots import clip_text
from whet.settings.methods.method import AxisSummary, Catalogue, ComponentChoice, Method, MethodKind

SFT = Method(
    "sft",
    "sft",
    title="Supervised fine-tuning",
    paper="Ouyang et al. 2022, Training language models to follow instructions, arXiv 2203.02155",
    formula="J = 1/M SUM log pi(completion token)",
    fixes="a model that does not answer in the form that is wanted: it imitates demonstrations",
    breaks="it learns what is shown and no more; mistakes in the demonstrations are learned as well",
)


def catalogue() -> Catalogue:
    """Every preset there is, a user's included."""
    found = [described(preset, family) for family in FAMILIES for preset in family.presets.values()]
    found += [_reward_model(preset) for preset in REWARD_MODELS.values()]
    axes = {family.name: {name: summary(axis) for name, axis in family.axes.items()} for family in FAMILIES}
    return Catalogue({method.name: method for method in (*found, SFT)}, axes, LEFT_OUT)


def choice(component: Any) -> ComponentChoice:
    """A component by its name and numbers."""
    return ComponentChoice(component.name, {each.name: getattr(component, each.name) for each in fields(component)})


def summary(axis: Axis) -> AxisSummary:
    return AxisSummary(axis.question, axis.main, {name: choice(kind()) for name, kind in axis.components.items()})


def described(preset: Preset[Any], family: Family[Any]) -> Method:
    """A preset of a family as a reader and a config see it."""
    objective = preset.objective
    return Method(
        objective.name,
        cast(MethodKind, family.name),
        preset.title,
        preset.paper,
        preset.formula,
        preset.fixes,
        preset.breaks,
        preset.deviations,
        preset.unverified,
        {axis: choice(getattr(objective, axis)) for axis in family.axes},
        tuple(sorted(objective.needs())),
        preset.episodes,
        preset.run,
        preset.small_run,
        tuple(description(objective, updates_per_step=2)[1:]),
        clip_text(objective.clip) if family is POLICY else "",
    )


def _reward_model(preset: Preset[RewardModelObjective]) -> Method:
    return Method(
        preset.objective.name,
        "reward_model",
        preset.title,
        preset.paper,
        preset.formula,
        preset.fixes,
        preset.breaks,
        preset.deviations,
        learns=preset.objective.learns,
        words=preset.objective.words,
        columns=preset.objective.columns,
    )
