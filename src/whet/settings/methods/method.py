"""A method, its components and its axes as plain values, and their JSON. Needs neither torch nor the presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

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
    """A preset as a reader and a config see it."""

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
    episodes: bool = False  # a run needs an environment, tools or an agent
    run: Mapping[str, Any] = field(default_factory=dict)  # settings of a run that the method is nothing without
    small_run: Mapping[str, Any] = field(default_factory=dict)  # and for the built-in model
    aim: tuple[str, ...] = ()  # the effective objective in words and symbols, a line each
    clip_plot: str = ""  # of a policy method: weight against ratio, in characters
    learns: str = ""  # of a reward model: rankings, outcomes or steps
    words: str = ""  # of a reward model: what its score says
    columns: str = ""  # of a reward model: what its data has


@dataclass(frozen=True)
class Catalogue:
    methods: Mapping[str, Method]
    axes: Mapping[str, Mapping[str, AxisSummary]]  # by kind of method, then by axis
    left_out: Mapping[str, str]  # methods that are known and not built, with the reason


def from_record(record: Mapping[str, Any]) -> Catalogue:
    """The catalogue of a parsed catalogue.json."""
    return Catalogue(
        {name: _method(name, each) for name, each in record["methods"].items()},
        {kind: {axis: _axis(each) for axis, each in kinds.items()} for kind, kinds in record["axes"].items()},
        record["left_out"],
    )


def to_record(catalogue: Catalogue) -> dict[str, Any]:
    """What catalogue.json holds; defaults are left out."""

    def plain(value: Any) -> Any:
        if isinstance(value, ComponentChoice):
            return {value.name: dict(value.numbers)}
        if isinstance(value, Mapping):
            return {key: plain(each) for key, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, tuple | list) else value

    described = {
        name: {each.name: plain(value) for each in fields(method)[1:] if (value := getattr(method, each.name))}
        for name, method in catalogue.methods.items()
    }
    by_kind = {
        kind: {
            name: {
                "question": axis.question,
                "main": axis.main,
                "components": {each.name: dict(each.numbers) for each in axis.components.values()},
            }
            for name, axis in each_kind.items()
        }
        for kind, each_kind in catalogue.axes.items()
    }
    return {"methods": described, "axes": by_kind, "left_out": dict(catalogue.left_out)}


def _axis(record: Mapping[str, Any]) -> AxisSummary:
    choices = {name: ComponentChoice(name, numbers) for name, numbers in record["components"].items()}
    return AxisSummary(record["question"], record["main"], choices)


def _method(name: str, record: Mapping[str, Any]) -> Method:
    listed: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
    chosen = {
        axis: ComponentChoice(each, numbers)
        for axis, component in record.get("components", {}).items()
        for each, numbers in component.items()
    }
    listed["components"] = chosen
    return Method(name, **listed)
