"""`src/whet/api/settings.py`, written from the sections of the configs: what an editor completes in `whet.train`."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from whet.training.config import CONFIG_CLASSES

MODULE = Path(__file__).parents[2] / "src" / "whet" / "api" / "settings.py"
ARGUMENTS = ("method", "model", "data", "reward", "env")  # of `whet.train` itself: their sections go through `config`
HEAD = '''"""Types of the settings that `whet.train` takes by name, written by tests/docs/generated_tables.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict
'''


def module_text() -> str:
    """The whole module."""
    fields = {name: field for kind in CONFIG_CLASSES.values() for name, field in kind.model_fields.items()}
    top, classes = [], []
    for name, field in fields.items():
        if name in ARGUMENTS:
            continue
        kinds = [kind.model_fields[name].annotation for kind in CONFIG_CLASSES.values() if name in kind.model_fields]
        if not is_section(field.annotation):
            top.append(f"    {name}: {type_text(field.annotation)}")
            continue
        keys = {key: inner for kind in kinds for key, inner in kind.model_fields.items()}
        title = f"{''.join(word.title() for word in name.split('_'))}Settings"
        rows = [f"    {key}: {type_text(inner.annotation)}" for key, inner in keys.items()]
        classes.append(f'class {title}(TypedDict, total=False):\n    """`[{name}]`"""\n\n' + "\n".join(rows))
        top.append(f"    {name}: {title}")
    whole = 'class RunSettings(TypedDict, total=False):\n    """Top-level keys of a run."""\n\n' + "\n".join(top)
    return "\n\n\n".join([HEAD.rstrip(), *classes, whole]) + "\n"


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def type_text(annotation: Any) -> str:
    """A field's type as a caller writes it: a sequence for a tuple, a mapping for a table."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(inner[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(_quoted, inner))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(type_text(member) for member in inner)
    if origin in (tuple, list):
        return f"Sequence[{type_text(inner[0])}] | {type_text(inner[0])}" if inner[0] in (str, int) else "Sequence[Any]"
    if origin is dict or is_section(annotation):
        return "Mapping[str, Any]"
    return {int: "int", float: "float", str: "str", bool: "bool", type(None): "None"}.get(annotation, "Any")


def _quoted(choice: Any) -> str:
    return f'"{choice}"' if isinstance(choice, str) else repr(choice)


def write_module() -> None:
    """Write the module anew."""
    MODULE.write_text(module_text(), encoding="utf-8")
