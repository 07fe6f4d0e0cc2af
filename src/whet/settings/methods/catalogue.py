"""The methods as plain values, without torch: what `algorithms`, `explain`, `advise`, `config` and a typo need to know.

`catalogue.json` beside this file is written from the presets by `python -m whet.pages.methods`; a test fails when it is
stale. Presets that a user registers are described when they are asked for, and that may import torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from whet import registry
from whet.settings.methods.method import AxisSummary, Catalogue, ComponentChoice, Method, MethodKind, from_record
from whet.types import WhetError, did_you_mean

FILE = Path(__file__).with_name("catalogue.json")

__all__ = [
    "AxisSummary",
    "ComponentChoice",
    "Method",
    "MethodKind",
    "axes",
    "left_out",
    "method",
    "method_names",
    "methods",
]


def methods(kind: MethodKind | None = None) -> dict[str, Method]:
    """Every method by name, or those of one kind."""
    everything = {**_built_in().methods, **_own_methods()}
    return {name: each for name, each in everything.items() if kind in (None, each.kind)}


def method_names(kind: MethodKind | None = None) -> list[str]:
    return list(methods(kind))


def method(name: str) -> Method:
    """The method of that name, or an error with the nearest one."""
    found = _built_in().methods.get(name) or _own_methods().get(name)  # plugins are looked at for unknown names only
    if found is not None:
        return found
    if name in left_out():
        raise WhetError(f"{name!r} is not built: {left_out()[name]}; `whet algorithms` lists what is")
    hint = did_you_mean(name, method_names(), cutoff=0.4)
    raise WhetError(f"no method is called {name!r}{hint}; `whet algorithms` lists them")


def axes(kind: MethodKind, own: bool = True) -> Mapping[str, AxisSummary]:
    """The axes of a kind of method, with their components, a user's `own` as well; none for SFT and reward models."""
    built_in = _built_in().axes.get(kind, {})
    if not own or not any(registry.added(axis) for axis in built_in):  # type: ignore[arg-type]
        return built_in
    from whet.settings.methods import describe  # imports torch

    return describe.catalogue().axes[kind]


def left_out() -> Mapping[str, str]:
    """Methods that whet knows and does not build, each with the reason."""
    return _built_in().left_out


def _own_methods() -> dict[str, Method]:
    """The presets that users and plugins have registered."""
    if not (own := registry.added("preset")):
        return {}
    from whet.settings.methods import describe  # imports torch

    return {name: each for name, each in describe.catalogue().methods.items() if name in own}


@cache
def _built_in() -> Catalogue:
    return from_record(json.loads(FILE.read_text(encoding="utf-8")))


def forget() -> None:
    """Read catalogue.json again: it has been written."""
    _built_in.cache_clear()
