"""From layers of plain values to a config: TOML and `--set` in, laid over one another, and checked."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from whet.settings.hostile import DEEPEST, refuse_hostile, shown, shown_path
from whet.settings.user_files import readable_file, reading
from whet.types import WhetError, nearest

Validated = TypeVar("Validated", bound=BaseModel)
# arguments of TRL's trainers -> those of whet.train
ARGUMENTS = {"model": "model", "train_dataset": "data", "eval_dataset": "eval_data", "reward_funcs": "reward"}
ARGUMENTS |= {"processing_class": "tokenizer", "tools": "tools", "environment_factory": "env", "callbacks": "callbacks"}


def validated(kind: type[Validated], values: Mapping[str, Any]) -> Validated:
    """A config or section of these values; all unknown keys, or the first other mistake, are an error in one line."""
    refuse_hostile(values)
    error: ValidationError | None = None
    try:
        checked = kind.model_validate(values)
    except ValidationError as mistakes:
        error = mistakes
    if unknown := [*_unknown_keys(error), *_unknown_axes(kind, values)]:
        raise WhetError(_unknown_text(kind, unknown)) from error
    if error is not None:
        raise WhetError(_complaint(error)) from error
    return checked


def _complaint(error: ValidationError) -> str:
    """The first mistake in one line."""
    first, *others = error.errors()
    path = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(others)} more)" if others else ""
    message = first["msg"].removeprefix("Value error, ")
    bound = next((value for key, value in first.get("ctx", {}).items() if key in ("ge", "gt", "le", "lt")), None)
    if isinstance(bound, float) and 0 < bound < 1e-4:  # pydantic writes out all its zeros
        message = f"{message.rpartition(' ')[0]} {bound:g}"
    if first["type"] == "value_error":  # whet's own words: they name the value
        return f"config: {path and path + ': '}{message}{more}"
    return f"config: {shown_path(path)} is {shown(first['input'])}: {message[0].lower()}{message[1:]}{more}"


def _unknown_keys(error: ValidationError | None) -> Iterator[str]:
    """The paths of all keys that were refused; another trainer's section is named by its leaves."""
    for mistake in error.errors() if error is not None else ():
        if mistake["type"] == "extra_forbidden":
            path, value = ".".join(map(str, mistake["loc"])), mistake["input"]
            leaves = flattened(value) if isinstance(value, Mapping) else {}
            yield from [f"{path}.{leaf}" for leaf in leaves] or [path]


def _unknown_axes(kind: type[BaseModel], values: Mapping[str, Any]) -> Iterator[str]:
    objective = values.get("objective") if "objective" in kind.model_fields else None
    if isinstance(objective, Mapping):
        yield from (f"objective.{axis}" for axis in objective if axis not in _axes(kind))


def _unknown_text(kind: type[BaseModel], paths: Sequence[str]) -> str:
    """Every unknown key with what was probably meant by it."""
    if len(paths) == 1:
        return f"config: {_unknown_key(kind, paths[0], alone=True)}"
    return f"config: {len(paths)} unknown keys: " + "; ".join(_unknown_key(kind, path) for path in paths)


def _unknown_key(kind: type[BaseModel], path: str, alone: bool = False) -> str:
    hint = foreign_hint(path, kind) or _near_key(kind, path, alone)
    if alone:
        return f"no key is called {path!r}{hint and f'; {hint}'}"
    return f"{path!r}{hint and f' ({hint})'}"


def foreign_hint(path: str, kind: type[BaseModel]) -> str:
    """What another trainer's setting is in whet; empty for a key that none of them has."""
    from whet.settings.foreign import ROOTS, foreign_name

    entry = foreign_name(path)
    if entry is None:
        return "whet has no counterpart" if path.partition(".")[0] in ROOTS else ""
    key = entry.key_for(getattr(kind, "kind", "policy"))
    if not key:
        return entry.note
    if not has_key(kind, key.partition(" and ")[0]):
        return f"it is whet's {key}, which this kind of run does not have"
    return f"in whet it is {key}" + (f": {entry.note}" if entry.note else "")


def _near_key(kind: type[BaseModel], path: str, alone: bool) -> str:
    """The key that was probably meant: one of that name in another section, or nearly of that name in this one."""
    *sections, name = path.split(".")
    is_axis = sections[:1] == ["objective"]
    section = None if is_axis else _section_at(kind, tuple(sections))
    known = list(_axes(kind)) if is_axis else list((section or kind).model_fields)
    close = nearest(name, known, SLIP) if is_axis or section is not None else None
    here = [".".join([*sections, close])] if close else []
    elsewhere = [f"{other}.{name}" for other, inner in _sections(kind) if name in inner.model_fields]
    from whet.settings.foreign import OWN_MEANING

    if is_axis or (sections and (name in IN_MANY_SECTIONS or sections[0] in OWN_MEANING)):
        # `optimizer.name` is not `model.name`, and `eval.top_p` not `sampling.top_p`
        elsewhere = []
    if not sections and len(elsewhere) > 1:
        return f"did you mean one of {', '.join(elsewhere)}?"
    if best := [*here, *elsewhere] if sections else [*elsewhere, *here]:
        return f"did you mean {best[0]!r}?"
    if not alone:
        return ""
    while section is None and sections and not is_axis:  # the section that is there, where one inside it is not
        sections.pop()
        section = _section_at(kind, tuple(sections))
        known = list((section or kind).model_fields)
    return f"known {f'in {sections[0]}' if sections else 'here'}: {', '.join(known)}"


SLIP = 0.75  # likeness of a slip of the hand; below it lie other words, `temp` and `steps`
IN_MANY_SECTIONS = frozenset(("name", "settings", "source", "start", "timeout", "device", "model", "seconds"))


def has_key(kind: type[BaseModel], path: str) -> bool:
    """True where a config of this kind takes the key; what stands under `objective` is checked by its axis alone."""
    *sections, key = path.split(".")
    if sections and sections[0] == "objective":
        return path.split(".")[1] in _axes(kind)
    section = _section_at(kind, tuple(sections))
    return section is not None and key in section.model_fields


def _axes(kind: type[BaseModel]) -> Mapping[str, Any]:
    axes: Callable[[], Mapping[str, Any]] = getattr(kind, "axes", dict)
    return axes()


def _section_at(kind: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    section: Any = kind
    for part in location:
        section = section.model_fields[part].annotation if part in section.model_fields else None
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return None
    checked: type[BaseModel] = section
    return checked


def _sections(kind: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, field.annotation


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables laid over one another; `high` wins."""
    both = dict(low)
    for key, value in high.items():
        before = both.get(key)
        both[key] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return both


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted paths; `{"clip": {"kind": "on_policy"}}` and `{"clip": "on_policy"}` mean the same."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{path}."))
        else:
            flat[path.removesuffix(".kind")] = value
    return flat


def from_settings(settings: Sequence[str]) -> dict[str, Any]:
    """`["batch.group_size=16", "objective.clip.high=0.28"]` as nested values; values are read as TOML, else as text."""
    nested: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise WhetError(f"--set {shown_path(setting)}: expected path=value, such as batch.group_size=16")
        keys = path.strip().split(".")
        if len(keys) > DEEPEST:
            raise WhetError(f"--set {shown(setting)}: the path has {len(keys)} parts; expected one such as steps=8")
        inner = nested
        for key in keys[:-1]:
            if not isinstance(inner.setdefault(key, {}), dict):
                inner[key] = {"kind": inner[key]}  # objective.kl=k2 and then objective.kl.beta=0.1
            inner = inner[key]
        value = _value(text.strip())
        before = inner.get(keys[-1])
        inner[keys[-1]] = {**before, "kind": value} if isinstance(before, dict) else value
    return nested


def _value(text: str) -> Any:
    try:
        # a line break would begin a second key, which nobody reads
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except RecursionError:
        return text
    except ValueError:  # also an integer of thousands of digits
        return [_value(part) for part in text.split(",")] if "," in text else text


def read_toml(path: Path | str) -> dict[str, Any]:
    """The tables of a TOML file."""
    file = readable_file(str(path), "a TOML config", "give the path of a TOML config")
    with reading(str(path), "correct the path, or the file's permissions"):
        content = file.read_bytes()
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except RecursionError as error:
        raise WhetError(f"{path}: too many tables or lists inside one another; write it flatter") from error
    except ValueError as error:  # also an integer of thousands of digits, and bytes that are no text
        raise WhetError(f"{path}: not valid TOML ({error}); fix that line") from error
