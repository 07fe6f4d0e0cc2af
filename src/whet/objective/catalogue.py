"""The methods as a config and a reader see them: presets of every kind by name, a user's own included.

Nothing here runs torch: the presets are values, and the loss layer imports torch at its first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast, get_args

from whet import registry
from whet.objective.axes import FAMILIES, family_of
from whet.objective.presets.preset import LEFT_OUT, Preset
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.types import WhetError, did_you_mean

MethodKind = Literal["policy", "preference", "reward_model", "sft"]
KINDS: tuple[MethodKind, ...] = get_args(MethodKind)


@dataclass(frozen=True)
class ComponentChoice:
    """A component by the name that a config takes, with its numbers."""

    name: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        numbers = ", ".join(f"{name}={number:g}" for name, number in self.numbers.items())
        return f"{self.name}({numbers})" if numbers else self.name


@dataclass(frozen=True)
class AxisSummary:
    """One question that every method of a kind answers, and the components that answer it; the first is the usual."""

    question: str
    main: bool  # shown for every method, whatever its answer
    components: Mapping[str, ComponentChoice]


@dataclass(frozen=True)
class Method:
    """A preset with its components and needs by name."""

    name: str
    kind: MethodKind
    title: str
    paper: str
    formula: str
    fixes: str
    breaks: str
    deviations: tuple[str, ...] = ()  # what the paper does not state and whet chose
    unverified: str = ""  # what could not be read in the paper or its authors' code
    components: Mapping[str, ComponentChoice] = field(default_factory=dict)  # by axis; none for SFT and reward models
    needs: tuple[str, ...] = ()  # what the training loop provides beyond rewards or pairs
    is_taught: bool = False  # a teacher grades every token, and no reward is learned from
    episodes: bool = False  # a run needs an environment, tools or an agent
    run: Mapping[str, Any] = field(default_factory=dict)  # settings of a run that the method is nothing without
    small_run: Mapping[str, Any] = field(default_factory=dict)  # and for the built-in model
    learns: str = ""  # of a reward model: rankings, outcomes or steps
    words: str = ""  # of a reward model: what its score says
    columns: str = ""  # of a reward model: what its data has


SFT = Method(
    "sft",
    "sft",
    title="Supervised fine-tuning",
    paper="Ouyang et al. 2022, Training language models to follow instructions, arXiv 2203.02155",
    formula="J = 1/M SUM log pi(completion token)",
    fixes="a model that does not answer in the form that is wanted: it imitates demonstrations",
    breaks="it learns what is shown and no more; mistakes in the demonstrations are learned as well",
)


_DESCRIPTIONS: dict[int, tuple[Preset[Any], Method]] = {}


def methods(kind: MethodKind | None = None) -> dict[str, Method]:
    """Every method by name, or those of one kind."""
    registry.load_plugins()
    wanted = KINDS if kind is None else (kind,)
    described = {name: _described(preset, own) for name, (own, preset) in _presets().items() if own in wanted}
    return {**described, SFT.name: SFT} if SFT.kind in wanted else described


def method_names(kind: MethodKind | None = None) -> list[str]:
    """The names that `whet train` takes."""
    return list(methods(kind))


def method(name: str) -> Method:
    """The method of that name, or an error with the nearest one. Plugins are loaded for unknown names only."""
    if name == SFT.name:
        return SFT
    if name not in _presets():
        registry.load_plugins()
    if name in (known := _presets()):
        kind, preset = known[name]
        return _described(preset, kind)
    if name in LEFT_OUT:
        raise WhetError(f"{name!r} is not built: {LEFT_OUT[name]}; `whet algorithms` lists what is")
    hint = did_you_mean(name, method_names(), cutoff=0.4)
    raise WhetError(f"no method is called {name!r}{hint}; `whet algorithms` lists them")


def axes(kind: MethodKind) -> dict[str, AxisSummary]:
    """The axes of a kind of method, with their components, a user's own as well; none for SFT and reward models."""
    registry.load_plugins()
    return {
        name: AxisSummary(
            axis.question, axis.main, {known: component_choice(kind_of()) for known, kind_of in axis.components.items()}
        )
        for family in FAMILIES
        if family.name == kind
        for name, axis in family.axes.items()
    }


def component_choice(component: Any) -> ComponentChoice:
    """A component by its name and numbers."""
    return ComponentChoice(
        component.name, {number.name: getattr(component, number.name) for number in fields(component)}
    )


def _presets() -> dict[str, tuple[MethodKind, Preset[Any]]]:
    """Every preset by name with its kind; a user's own stand in the same tables as the built-in ones."""
    by_kind = {**{cast(MethodKind, family.name): family.presets for family in FAMILIES}, "reward_model": REWARD_MODELS}
    return {name: (kind, preset) for kind, presets in by_kind.items() for name, preset in presets.items()}


def _described(preset: Preset[Any], kind: MethodKind) -> Method:
    """The method of a preset, described once: by identity, since a preset's hash costs more than its description."""
    known, described = _DESCRIPTIONS.get(id(preset), (None, None))
    if described is None or known is not preset:
        described = _description(preset, kind)
        _DESCRIPTIONS[id(preset)] = preset, described
    return described


def _description(preset: Preset[Any], kind: MethodKind) -> Method:
    objective = preset.objective
    shared = {part.name: getattr(preset, part.name) for part in fields(preset) if part.name != "objective"}
    if kind == "reward_model":
        return Method(
            objective.name, kind, **shared, learns=objective.learns, words=objective.words, columns=objective.columns
        )
    components = {axis: component_choice(getattr(objective, axis)) for axis in family_of(objective).axes}
    return Method(
        objective.name,
        kind,
        **shared,
        components=components,
        needs=tuple(sorted(objective.needs())),
        is_taught=kind == "policy" and objective.is_taught,
    )
