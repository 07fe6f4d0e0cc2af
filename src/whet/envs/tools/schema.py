"""The JSON schema of a function, and arguments checked against a schema.

The schema is transformers' own (`get_json_schema`), which chat templates are written for: type hints, and a docstring
with an `Args:` section.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from whet.settings.hostile import shown
from whet.types import WhetError, did_you_mean

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
SHOWN = 60  # characters of a wrong argument in an error
DEEPEST = 32  # levels of an argument that are checked
EXAMPLE = '"""What it does.\\n\\nArgs:\\n    NAME: what it is.\\n"""'
PLAIN_TYPES = (str, int, float, bool, list, tuple, dict, type(None), Any)
HINTS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict"}


@functools.lru_cache(maxsize=1024)
def json_schema(function: Callable[..., Any]) -> Mapping[str, Any]:
    """{"type": "function", "function": {"name", "description", "parameters"}}; one line of error where it cannot be."""
    name = getattr(function, "__name__", None)
    if not inspect.isroutine(function) or name is None:
        raise WhetError(f"{function!r} cannot be a tool; give a function with type hints and a docstring, or a class")
    location = _place(function)
    if not NAME.fullmatch(name):
        raise WhetError(f"a tool{location} is called {name!r}; define it with def and a name of letters, digits and _")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise WhetError(
            f"tool {name!r} has no signature that Python can read; wrap it in a function of your own"
        ) from None
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise WhetError(
                f"tool {name!r}{location}: parameter {str(parameter).split(':')[0]!r} cannot be named in a call; "
                "give it parameters with names"
            )
        hint = parameter.annotation
        if hint is parameter.empty and parameter.name not in ("self", "cls"):
            raise WhetError(
                f"tool {name!r}{location}: parameter {parameter.name!r} has no type hint; "
                f"write one, such as {parameter.name}: str"
            )
    return _derived(function, name, location)


def _derived(function: Callable[..., Any], name: str, where: str) -> Mapping[str, Any]:
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        bare = _without_return(function)
        schema = get_json_schema(bare)
        odd = [kind for hint in typing.get_type_hints(bare).values() for kind in _odd(hint)]
        if odd:  # it would be shown as an object, and the function would get a dict
            raise TypeError(f"a call cannot hold a {getattr(odd[0], '__name__', odd[0])}{_literal(odd[0])}")
    except Exception as error:  # of three kinds, and whatever an odd type hint raises
        text = " ".join(" ".join(str(part) for part in error.args).split()) or type(error).__name__
        if "no docstring" in text:
            raise WhetError(
                f"tool {name!r}{where} has no docstring; say what it does, and under Args: what each argument is"
            ) from None
        if "no description for the argument" in text:
            argument = text.rsplit("'", 2)[1]
            raise WhetError(
                f"tool {name!r}{where}: its docstring does not describe the argument {argument!r}; add the line "
                f"'{argument}: what it is' under Args:"
            ) from None
        raise WhetError(
            f"tool {name!r}{where}: no JSON schema for its type hints ({text}); use str, int, float, bool, list, dict, "
            "Literal, or unions of them"
        ) from None
    if not schema["function"]["description"]:
        raise WhetError(f"tool {name!r}{where}: its docstring does not begin with what it does; add a sentence")
    return schema  # type: ignore[no-any-return]


def _literal(kind: Any) -> str:
    """What to write in place of an enumeration."""
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    return f"; write Literal[{', '.join(repr(member.value) for member in kind)}]" if is_enum else ""


def _odd(hint: Any) -> list[Any]:
    """The types in a hint, at any depth, that JSON has no form for."""
    if typing.get_origin(hint) is typing.Literal:
        return []
    if typing.get_origin(hint) is not None:
        return [kind for part in typing.get_args(hint) for kind in _odd(part)]
    is_plain = hint in PLAIN_TYPES or (isinstance(hint, type) and issubclass(hint, dict))
    return [] if is_plain else [hint]


def _without_return(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without the hint of its result: the model calls it, and any type can be shown as text."""
    bare = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(bare, types.FunctionType) or "return" not in bare.__annotations__:
        return function
    copy = types.FunctionType(bare.__code__, bare.__globals__, bare.__name__, bare.__defaults__, bare.__closure__)
    copy.__kwdefaults__, copy.__doc__ = bare.__kwdefaults__, inspect.getdoc(function)
    copy.__annotations__ = {key: hint for key, hint in bare.__annotations__.items() if key != "return"}
    return copy


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"


def fitting(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The arguments as the tool takes them, and what is wrong with them in words for the model; "" where they fit."""
    parameters = schema["function"].get("parameters") or {}
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    required = [str(name) for name in parameters.get("required") or ()]
    is_open = parameters.get("additionalProperties", "properties" not in parameters)
    if unknown := [str(name) for name in arguments if name not in properties and not is_open]:
        known = ", ".join(properties) or "none"
        return {}, f"unknown argument {unknown[0][:SHOWN]!r}{did_you_mean(unknown[0], properties)}; it has: {known}"
    if missing := [name for name in required if name not in arguments]:
        return {}, f"missing {'argument' if len(missing) == 1 else 'arguments'} {', '.join(missing)}"
    taken = {name: _as_integer(value, properties.get(name)) for name, value in arguments.items()}
    for name, value in taken.items():
        if complaint := mismatch(value, properties.get(name)):
            return {}, f"argument {name}: {complaint}"
    return taken, ""


def mismatch(value: Any, schema: Any, level: int = 0) -> str:
    """What is wrong with a value, as far as the common keywords of a schema say it; "" where nothing is."""
    if not isinstance(schema, Mapping) or level > DEEPEST:
        return ""
    if value is None and (schema.get("nullable") or not {"type", "enum", "anyOf", "oneOf"} & schema.keys()):
        return ""
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list) and options:
            complaints = [mismatch(value, option, level + 1) for option in options]
            return "" if "" in complaints else complaints[0]
    if isinstance(enum := schema.get("enum"), list) and not any(_equal(value, allowed) for allowed in enum):
        return f"expected one of {', '.join(map(str, enum))}, got {shown(value)}"
    kinds = schema.get("type")
    wanted = [kinds] if isinstance(kinds, str) else [str(kind) for kind in kinds or ()]
    known = [kind for kind in wanted if kind in CHECKS]
    if known and len(known) == len(wanted) and not any(CHECKS[kind](value) for kind in known):
        return f"expected {' or '.join(known)}, got {shown(value)}"
    return _inner_mismatch(value, schema, level)


def _inner_mismatch(value: Any, schema: Mapping[str, Any], level: int) -> str:
    if isinstance(value, list | tuple):
        first = schema["prefixItems"] if isinstance(schema.get("prefixItems"), list) else []  # of a tuple
        if first and "items" not in schema and len(value) != len(first):
            return f"expected {len(first)} items, got {len(value)}"
        for position, item in enumerate(value):
            of_item = first[position] if position < len(first) else schema.get("items")
            if complaint := mismatch(item, of_item, level + 1):
                return f"item {position}: {complaint}"
    if isinstance(value, Mapping):
        properties = schema.get("properties") if isinstance(schema.get("properties"), Mapping) else {}
        for name, item in value.items():
            of = properties.get(name, schema.get("additionalProperties"))  # type: ignore[union-attr]
            if complaint := mismatch(item, of, level + 1):
                return f"{str(name)[:SHOWN]}: {complaint}"
        missing = [str(name) for name in schema.get("required") or () if name not in value]
        if missing:
            return f"missing {', '.join(missing)}"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list | tuple),
    "object": lambda value: isinstance(value, Mapping),
    "null": lambda value: value is None,
}


def _equal(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _as_integer(value: Any, schema: Any) -> Any:
    """3.0 where an integer is wanted: the same number in JSON."""
    wants = isinstance(schema, Mapping) and schema.get("type") == "integer"
    is_whole = isinstance(value, float) and math.isfinite(value) and value.is_integer()
    return int(value) if wants and is_whole else value
