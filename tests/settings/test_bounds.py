"""Every number that a user can set has a least and a most, both finite; true and false are no numbers."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import typer
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

import whet
from tests.support.for_every import for_every
from whet.cli import app
from whet.cli.options import finite
from whet.reward.sections import RewardSection
from whet.rollout.sections import SamplingSection
from whet.settings.layers import from_settings, read_toml, validated
from whet.settings.sections import Section, is_number
from whet.training.config import PolicyConfig, resolved
from whet.training.sections import BatchSection, OptimizerSection, RerankSection
from whet.types import WhetError


def every_section() -> list[type[Section]]:
    """All subclasses of `Section` in the package, wherever they are defined."""
    for each in pkgutil.walk_packages(whet.__path__, "whet."):
        if each.name.startswith(("whet.settings", "whet.tools.pipelines", "whet.tools.studies")):
            importlib.import_module(each.name)
    found, open_ = [], [Section]
    while open_:
        below = open_.pop().__subclasses__()
        found += [each for each in below if each.__module__.startswith("whet.")]
        open_ += below
    return found


def bounds(metadata: Any) -> tuple[float, float]:
    """The least and the most that pydantic lets pass; nan where it is not said."""
    flat = [inner for each in metadata for inner in (each.metadata if isinstance(each, FieldInfo) else (each,))]
    low = [getattr(each, key) for each in flat for key in ("ge", "gt") if getattr(each, key, None) is not None]
    high = [getattr(each, key) for each in flat for key in ("le", "lt") if getattr(each, key, None) is not None]
    return (low[0] if low else math.nan), (high[0] if high else math.nan)


def numbers_in(annotation: Any, metadata: Any) -> Iterator[tuple[float, float]]:
    """The bounds of each number in a type: `tuple[Annotated[int, ...], ...]` has one."""
    if get_origin(annotation) is Annotated:
        inner, *own = get_args(annotation)
        yield from numbers_in(inner, own)
    elif get_args(annotation):
        for each in get_args(annotation):
            # `float | tuple[...]` hands its metadata to the parts that have none
            yield from numbers_in(each, metadata if get_origin(annotation) is not tuple else ())
    elif annotation in (int, float):
        yield bounds(metadata)


def unbounded() -> list[str]:
    return [
        f"{section.__name__}.{name}"
        for section in every_section()
        for name, field in section.model_fields.items()
        for low, high in numbers_in(field.annotation, field.metadata)
        if not (math.isfinite(low) and math.isfinite(high))
    ]


def test_every_number_of_every_section_has_finite_bounds() -> None:
    assert len(every_section()) > 20
    assert unbounded() == []


def test_every_default_lies_within_its_bounds() -> None:
    outside = [
        (section.__name__, name, field.default)
        for section in every_section()
        for name, field in section.model_fields.items()
        if isinstance(field.default, int | float) and not isinstance(field.default, bool)
        for low, high in numbers_in(field.annotation, field.metadata)
        if not low <= field.default <= high
    ]
    assert outside == []
    assert validated(RerankSection, {"beams": 1, "branches": 1}).beams == 1  # a greedy search


def test_the_walk_sees_a_number_without_bounds() -> None:
    class Loose(Section):
        bare: int = 3
        nested: tuple[tuple[float, ...], ...] = ()
        fine: Annotated[float, *BatchSection.model_fields["group_size"].metadata] = 1.0

    fields = Loose.model_fields
    found = {name: [*numbers_in(each.annotation, each.metadata)] for name, each in fields.items()}
    assert [math.isfinite(low) for low, _ in found["bare"] + found["nested"]] == [False, False]
    assert found["fine"] == [(1, 65536)]


def options(commands: typer.Typer, path: str = "whet") -> Iterator[tuple[str, Any, Any]]:
    """Name, type and declaration of each option and argument."""
    for command in commands.registered_commands:
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            if get_origin(hint) is Annotated:
                yield f"{path} {command.callback.__name__} {name}", *get_args(hint)[:2]
    for group in commands.registered_groups:
        yield from options(group.typer_instance, f"{path} {group.typer_instance.info.name}")


def test_every_number_of_the_command_line_has_finite_bounds() -> None:
    numbers = [each for each in options(app) if is_number(each[1])]
    assert len(numbers) > 20
    for name, kind, option in numbers:
        assert option.min is not None and option.max is not None, name
        assert math.isfinite(option.min) and math.isfinite(option.max), name
        # a range of older versions lets nan pass
        assert float not in (kind, *get_args(kind)) or option.callback is finite, name


@for_every(
    [
        "sampling.temperature=inf",
        "sampling.temperature=1e-30",
        "sampling.top_p=1e-320",
        "sampling.top_k=1e22",
        "model.threads=1e22",
        "seed=18446744073709551616",
        "batch.group_size=1000000000",
        "batch.epochs_per_batch=100000000",
        "objective.clip.low=1e308",
        "objective.clip.low=nan",
        "reward.timeout=inf",
        "batch.group_size=true",
        "optimizer.learning_rate=1e300",
        "data.difficulty=[3, true]",
        "reward.parts=[{reward='exact_answer', settings={x=inf}}]",
        "reward.parts=[{reward='exact_answer', weight=nan}]",
        f"steps={'9' * 5000}",
        f"objective={'[' * 5000}",
        f"{'a.' * 5000}b=1",
        "model.name=\ud800",
    ]
)
def test_a_number_out_of_bounds_is_one_line(setting: str) -> None:
    with pytest.raises(WhetError) as told:
        resolved("grpo", from_settings([setting]))
    assert len(str(told.value).splitlines()) == 1
    assert len(str(told.value)) < 400


def test_the_samples_of_a_step_are_bounded_together() -> None:
    with pytest.raises(WhetError, match="65536000 completions in every step; give at most 1000000"):
        resolved("grpo", from_settings(["batch.group_size=1000", "batch.prompts_per_step=65536"]))
    with pytest.raises(WhetError, match="completions in every step"):
        resolved("dpo", from_settings(["preference.online=1024", "batch.rows_per_step=100000"]))


@for_every(
    [
        (SamplingSection, {"temperature": math.inf}, "temperature"),
        (BatchSection, {"group_size": True}, "group_size is true; give a number"),
        (RewardSection, {"timeout": math.inf}, "timeout"),
        (OptimizerSection, {"learning_rate": math.nan}, "learning_rate"),
        (PolicyConfig, {"method": "grpo", "data": {"settings": {"a": {"b": [1, math.nan]}}}}, "data.settings.a.b"),
        (PolicyConfig, {"method": "grpo", "data": {"settings": {"a": None}}}, "a is None; give text"),
        (PolicyConfig, {"method": "grpo", "steps": 10**5000}, "steps is a int too long to show"),
    ]
)
def test_what_python_gives_is_bounded_too(section: type[Section], values: dict[str, Any], words: str) -> None:
    with pytest.raises(WhetError, match=words) as told:
        validated(section, values)
    assert len(str(told.value).splitlines()) == 1


def test_a_truth_is_taken_where_a_truth_is_asked_for() -> None:
    assert resolved("grpo", from_settings(["data.as_chat=true", "data.source=x.jsonl"])).data.as_chat is True
    assert not is_number(bool)
    assert is_number(tuple[int, ...])
    assert is_number(Annotated[float, "metadata"])


def test_a_line_break_does_not_hide_a_second_setting() -> None:
    with pytest.raises(WhetError, match="steps"):
        resolved("grpo", from_settings(["steps=3\nseed=4"]))


@pytest.mark.parametrize(
    "content", [b"steps = " + b"9" * 5000, b"a = " + b"[" * 5000, b"\xff\xfe", b"steps = 3\0", b"="]
)
def test_a_config_that_is_no_toml_is_one_line(tmp_path: Any, content: bytes) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    with pytest.raises(WhetError, match=r"config\.toml") as told:
        read_toml(file)
    assert len(str(told.value).splitlines()) == 1


def test_a_config_that_is_a_folder_a_pipe_or_too_long_a_name(tmp_path: Any) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.toml")
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "pipe.toml", "is a pipe"), ("x" * 5000, "not a path")):
        with pytest.raises(WhetError, match=words) as told:
            read_toml(path)
        assert len(str(told.value)) < 400


def test_nan_seconds_of_a_benchmark_are_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "--seconds", "nan"])
    assert result.exit_code == 2
    assert "--seconds" in result.output
