"""The whole config of a run as TOML with a comment on every key: to look at, or to save, edit and train with."""

from __future__ import annotations

import json
import math
import re
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from whet.objective import catalogue, preset_named, with_changes
from whet.settings.layers import flattened, merged
from whet.training.config import Config, config_values, rate_reasons

WIDTH = 120
TINY, HUGE = 1e-4, 2e4  # bounds beyond them are not shown
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
OBJECTIVE = "objective"
FIRST = ("method", "seed", "steps", "folder", "model", "data", "batch")  # what most people change


def annotated_toml(config: Config) -> str:
    """Every key that matters to this run, with what it means; `--config` reads it back as the same run.

    The objective's components are all written out with their numbers, where `config.toml` has the changes only.
    """
    method = catalogue.method(config.method)
    values = config_values(config)
    lines = [f"# {method.title}" + (f": {method.paper}" if method.paper else "")]
    ordered = sorted(values, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    reasons = rate_reasons(config)
    lines += _table(type(config), {key: values[key] for key in ordered if key != OBJECTIVE}, "", reasons)
    lines += _objective(config, method)
    return "\n".join(lines) + "\n"


def _table(kind: type[BaseModel], values: Mapping[str, Any], path: str, reasons: Mapping[str, str]) -> Iterator[str]:
    """The keys of a section, and then the sections in it: TOML wants them in this order.

    `reasons` says why a value is what it is, by its path.
    """
    inner = {
        name: inner_kind
        for name in values
        if (inner_kind := section_of(kind.model_fields[name].annotation)) is not None
    }
    for name, value in values.items():
        if name not in inner:
            why = reasons.get(f"{path}{name}")
            yield _line(name, value, about(kind.model_fields[name]) + (f": {why}" if why else ""))
    for name, section in inner.items():
        title = f"{path}{name}"
        comment = about(kind.model_fields[name])
        yield ""
        yield f"[{title}]" + (f"  # {comment}" if comment else "")
        yield from _table(section, values[name], f"{title}.", reasons)


def _objective(config: Config, method: catalogue.Method) -> Iterator[str]:
    if OBJECTIVE not in type(config).model_fields:
        return
    with_changes(
        preset_named(config.method).objective, flattened(getattr(config, OBJECTIVE))
    )  # refuses what train does
    axes = catalogue.axes(method.kind)
    for axis, component in method.components.items():
        change = getattr(config, OBJECTIVE).get(axis, {})
        change = dict(change) if isinstance(change, Mapping) else {"kind": change}
        name = change.get("kind", component.name)
        components = axes[axis].components
        numbers = (
            component.numbers if name == component.name else components[name].numbers if name in components else {}
        )
        yield ""
        yield f"[{OBJECTIVE}.{axis}]  # {axes[axis].question}"
        yield _line("kind", name, f"one of {', '.join(components)}")
        for number, value in merged(
            numbers, {key: setting for key, setting in change.items() if key != "kind"}
        ).items():
            yield _line(number, value, f"of {name}")


def _line(name: str, value: Any, comment: str) -> str:
    text = f"{name} = {written(value)}"
    if not comment:
        return text
    if len(text) + len(comment) + 4 <= WIDTH:
        return f"{text}  # {comment}"
    return "\n".join([*textwrap.wrap(comment, WIDTH, initial_indent="# ", subsequent_indent="# "), text])


def about(field: FieldInfo) -> str:
    """What a key means, its choices and its bounds, on one line."""
    choices = choices_of(field.annotation)
    bounds = shown_bounds(field)
    limits = [*([f"one of {', '.join(choices)}"] if choices else []), *([" and ".join(bounds)] if bounds else [])]
    return (field.description or "") + (f" ({'; '.join(limits)})" if limits else "")


def shown_bounds(field: FieldInfo) -> list[str]:
    """`>= 0` and `<= 1`; without the bounds that only slips of the hand would meet."""
    return [
        f"{sign} {bound:g}" if not bound or abs(bound) > TINY else "> 0"
        for constraint in field.metadata
        for key, sign in SIGNS.items()
        if (bound := getattr(constraint, key, None)) is not None and abs(bound) < HUGE
    ]


def choices_of(annotation: Any) -> list[str]:
    """The texts that a field takes, where it takes a few only."""
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if get_origin(annotation) in (Union, types.UnionType):
        return [choice for argument in get_args(annotation) for choice in choices_of(argument)]
    return []


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section behind a field; None for a value and for a list of tables."""
    for candidate in (annotation, *(get_args(annotation) if get_origin(annotation) is not tuple else ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def written(value: Any) -> str:
    """A value as TOML has it, tables inline."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        pairs = [f"{key if BARE_KEY.fullmatch(key) else written(key)} = {written(item)}" for key, item in value.items()]
        return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)
