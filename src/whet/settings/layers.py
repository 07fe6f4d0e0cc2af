"""From layers of plain values to a config: TOML and `--set` in, laid over one another, and checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from whet.settings.files import readable_file, reading
from whet.settings.hostile import DEEPEST, refuse_hostile, shown, shown_path
from whet.settings.names import NOT_A_KEY, SINCE, foreign_target, old_name
from whet.types import WhetError, did_you_mean, nearest

Validated = TypeVar("Validated", bound=BaseModel)


def validated(kind: type[Validated], values: Mapping[str, Any]) -> Validated:
    """A config or section of these values; the first mistake in them is an error in one line."""
    refuse_hostile(values)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise WhetError(_complaint(kind, error)) from error


def _complaint(kind: type[BaseModel], error: ValidationError) -> str:
    """The first mistake in one line; a name of 0.1 comes before all others, since it explains the rest."""
    mistakes = error.errors()
    paths = [".".join(str(part) for part in mistake["loc"]) for mistake in mistakes]
    unknown = [mistake["type"] == "extra_forbidden" for mistake in mistakes]
    old = [(path, new) for path, extra in zip(paths, unknown, strict=True) if extra and (new := old_name(path))]
    more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
    if old:
        return f"config: {old[0][0]} is called {old[0][1]} since {SINCE}{more}"
    if unknown[0]:
        return f"config: no key is called {paths[0]!r}{_near_key(kind, mistakes[0]['loc'])}{more}"
    first = mistakes[0]
    message = first["msg"].removeprefix("Value error, ")
    bound = next((value for key, value in first.get("ctx", {}).items() if key in ("ge", "gt", "le", "lt")), None)
    if isinstance(bound, float) and 0 < bound < 1e-4:  # pydantic writes out all its zeros
        message = f"{message.rpartition(' ')[0]} {bound:g}"
    if first["type"] == "value_error":  # whet's own words: they name the value
        return f"config: {paths[0] and paths[0] + ': '}{message}{more}"
    return f"config: {shown_path(paths[0])} is {shown(first['input'])}: {message[0].lower()}{message[1:]}{more}"


def _near_key(kind: type[BaseModel], location: tuple[Any, ...]) -> str:
    """What was probably meant by an unknown key: another trainer's name, a key of another section, a typing error."""
    name = str(location[-1])
    section = _section_at(kind, location[:-1])
    if section is None:
        return ""
    elsewhere = [f"{other}.{name}" for other, inner in _sections(kind) if name in inner.model_fields]
    if name in NOT_A_KEY:
        return f"; {NOT_A_KEY[name]}"
    target = foreign_target(name, getattr(kind, "kind", "policy"))
    is_ours = target is not None and has_key(kind, target.partition(" and ")[0])
    if is_ours:
        return f"; in whet it is {target}"
    if target is not None and not elsewhere:
        return f"; it is whet's {target}, which this kind of run does not have"
    keys = list(section.model_fields)
    close = nearest(name, keys)
    best = elsewhere or ([".".join([*map(str, location[:-1]), close])] if close else [])
    return f"; did you mean {best[0]!r}?" if best else f"; known here: {', '.join(keys)}"


def has_key(kind: type[BaseModel], path: str) -> bool:
    """True where a config of this kind takes the key; what stands under `objective` is checked by its axis alone."""
    *sections, key = path.split(".")
    if sections and sections[0] == "objective":
        axes = getattr(kind, "axes", None)
        return axes is not None and path.split(".")[1] in axes()
    section = _section_at(kind, tuple(sections))
    return section is not None and key in section.model_fields


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


def foreign_hint(name: str, kind: str, names: Iterable[str]) -> str:
    """`; in whet it is ...` for the name of another trainer, else the nearest of the known ones."""
    target = foreign_target(name, kind)
    if target is not None:
        return f"; in whet it is {target}"
    return did_you_mean(name, names) or f"; known here: {', '.join(names)}"


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
