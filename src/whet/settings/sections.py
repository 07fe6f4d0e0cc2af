"""What a section of a config is: frozen, without unknown keys, and every number bounded.

Each room has its own sections in its `sections`, beside what they configure. Every number has a least and a most,
both finite: a test walks all sections. The bounds are wide; they are there for slips of the hand, which would otherwise
never end or end in an error that nobody understands.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time
from typing import Annotated, Any, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from whet.settings.bounds import COLDEST, LEAST_NUMBER, MOST_NUMBER, MOST_WEIGHT
from whet.settings.hostile import leaves, shown

Weight = Annotated[float, Field(ge=-MOST_WEIGHT, le=MOST_WEIGHT)]


def listed(value: Any) -> Any:
    """One value without brackets is a list of it."""
    return value if isinstance(value, list | tuple) else (value,)


Listed = Annotated[tuple[str, ...], BeforeValidator(listed)]  # `a` is `["a"]`


def _warm(value: float) -> float:
    if 0 < value < COLDEST:
        raise ValueError(f"give {COLDEST} or more, or 0 for greedy completions")
    return value


Temperature = Annotated[float, Field(ge=0, le=1000), AfterValidator(_warm)]


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """A table of free keys can be written to config.toml, and its numbers are numbers."""
    for path, value in leaves(values):
        if not isinstance(value, bool | int | float | str | date | time):
            raise ValueError(f"{path} is {shown(value)}; give text, a number, true, false, a list or a table")
    return values


def _objective_numbers(values: dict[str, Any]) -> dict[str, Any]:
    for path, value in leaves(_plain(values)):
        if isinstance(value, int | float) and value and not LEAST_NUMBER <= abs(value) <= MOST_NUMBER:
            raise ValueError(f"{path} is {shown(value)}; give 0 or a number from {LEAST_NUMBER:g} to {MOST_NUMBER:g}")
    return values


Table = Annotated[dict[str, Any], AfterValidator(_plain)]  # keys that somebody else reads


ObjectiveChanges = Annotated[dict[str, Any], AfterValidator(_objective_numbers)]


class Section(BaseModel):
    """A part of a config: frozen, and strict: it refuses unknown keys, NaN, infinities and booleans for numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_truths(cls, values: Any) -> Any:
        """`batch.group_size=true` would be read as 1."""
        for name, value in values.items() if isinstance(values, Mapping) else ():
            field = cls.model_fields.get(str(name))
            if field is not None and _holds_truth(value) and is_number(field.annotation):
                raise ValueError(f"{name} is {str(value).lower()}; give a number")
        return values


def _holds_truth(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(_holds_truth, value)))


def is_number(annotation: Any) -> bool:
    """True for a type that is a number, or holds numbers, and nothing that may be true or false."""
    inner = [member for member in get_args(annotation) if member is not Ellipsis]
    if get_origin(annotation) is Annotated:
        return is_number(inner[0])
    return any(map(is_number, inner)) if inner else annotation in (int, float)
