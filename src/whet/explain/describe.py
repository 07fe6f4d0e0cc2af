"""The presets as values of `whet.explain.catalogue`: what catalogue.json is written from."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from whet.explain.catalogue import Axis, Catalogue, ComponentChoice, Method, MethodKind
from whet.explain.clip_plots import clip_text
from whet.explain.policy_table import QUESTIONS as POLICY_QUESTIONS
from whet.objective.axes import AXES, MAIN_AXES, description
from whet.objective.preference.axes import PAIR_AXES, QUESTIONS, pair_description
from whet.objective.presets import PRESETS
from whet.objective.presets.preference import LEFT_OUT, PAIR_PRESETS
from whet.objective.presets.reward_model import REWARD_MODELS

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
    """Every preset of the package."""
    found: dict[str, Method] = {}
    for name, preset in PRESETS.items():
        aim = tuple(description(preset.objective, updates_per_step=2)[1:])
        found[name] = _described(name, "policy", preset, AXES, aim, clip_plot=clip_text(preset.objective))
    for name, pair in PAIR_PRESETS.items():
        found[name] = _described(name, "preference", pair, PAIR_AXES, tuple(pair_description(pair.objective)[1:]))
    for name, model in REWARD_MODELS.items():
        extra = {"learns": model.learns, "words": model.words, "columns": model.columns}
        found[name] = _described(name, "reward_model", model, {}, (), **extra)
    found[SFT.name] = SFT
    axes = {
        "policy": _axes(AXES, POLICY_QUESTIONS, MAIN_AXES),
        "preference": _axes(PAIR_AXES, QUESTIONS, ("score", "curve")),
    }
    return Catalogue(found, axes, LEFT_OUT)


def choice(component: Any) -> ComponentChoice:
    """A component by its name and numbers."""
    return ComponentChoice(component.name, {each.name: getattr(component, each.name) for each in fields(component)})


def _described(name: str, kind: MethodKind, preset: Any, axes: Any, aim: tuple[str, ...], **extra: str) -> Method:
    objective = getattr(preset, "objective", None)
    return Method(
        name,
        kind,
        preset.title,
        preset.paper,
        preset.formula,
        preset.fixes,
        preset.breaks,
        tuple(preset.deviations),
        getattr(preset, "unverified", ""),
        {axis: choice(getattr(objective, axis)) for axis in axes},
        tuple(sorted(objective.needs())) if objective is not None else (),
        getattr(preset, "run", {}),
        getattr(preset, "small_run", {}),
        aim,
        **extra,
    )


def _axes(axes: dict[str, dict[str, type]], questions: dict[str, str], main: tuple[str, ...]) -> dict[str, Axis]:
    return {
        axis: Axis(questions[axis], axis in main, {name: choice(kind()) for name, kind in kinds.items()})
        for axis, kinds in axes.items()
    }
