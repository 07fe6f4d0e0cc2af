"""The tables of docs/rewards.md, config.md, pipelines.md, doctor.md and claims.md, written from the code; measured
numbers of every page, written from results/ (quoted_results.py); the types of `whet.train` (typed_settings.py).

    python -m tests.docs.generated_tables

puts fresh tables between the marks `<!-- NAME: from the code -->` and `<!-- NAME: end -->` of those pages.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tests.docs import claim_tables, doctor_tables
from tests.docs.quoted_results import write_pages
from tests.docs.typed_settings import write_module
from whet.training.annotated_config import shown_bounds

DOCS = Path(__file__).parents[2] / "docs"
REFRESH = "python -m tests.docs.generated_tables"
KIND_NAMES = {
    "PolicyConfig": "RL",
    "SFTConfig": "SFT",
    "PreferenceConfig": "preferences",
    "RewardModelConfig": "reward models",
}


def reward_table() -> str:
    """Every built-in reward that is no defence: what it says and its settings."""
    from whet.reward.defences import DEFENCES
    from whet.reward.find import BUILTIN

    lines = ["| name | score | settings |", "|---|---|---|"]
    for name, function in sorted(BUILTIN.items()):
        if name not in DEFENCES:
            lines.append(f"| `{name}` | {about(function)} | {settings_text(function)} |")
    return "\n".join(lines)


def defence_table() -> str:
    """Every defence with its settings and both rates on its corpus."""
    from benchmarks.trust.defence_rates import rates
    from whet.reward.defences import DEFENCES

    found = rates()
    lines = ["| name | finds | settings | attacks caught | honest completions punished |", "|---|---|---|---|---|"]
    for name, function in DEFENCES.items():
        said, mine = about(function).removeprefix("A penalty: "), found[name]
        caught = f"{mine.num_attacks - len(mine.missed)} of {mine.num_attacks}"
        alarms = f"{len(mine.alarmed)} of {mine.num_honest}"
        lines.append(f"| `{name}` | {said} | {settings_text(function)} | {caught} | {alarms} |")
    return "\n".join(lines)


def template_table() -> str:
    """The parts of every template and the defences that suit it."""
    from whet.reward.templates import DEFENCES_OF, TEMPLATES

    lines = ["| template | parts | defences that suit it |", "|---|---|---|"]
    for name, specs in TEMPLATES.items():
        parts = ", ".join(f"{spec.schedule.at(1.0):g} `{spec.reward}`" for spec in specs)
        lines.append(f"| `{name}` | {parts} | {', '.join(f'`{each}`' for each in DEFENCES_OF[name])} |")
    return "\n".join(lines)


def config_table() -> str:
    """Every key of every kind of run, with its default, its bounds and what it means."""
    from whet.training.config import Config

    kinds = {KIND_NAMES.get(kind.__name__, kind.__name__): dict(keys_of(kind)) for kind in get_args(Config)}
    known = list(dict.fromkeys(path for keys in kinds.values() for path in keys))
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for path in sorted(known, key=lambda path: section_place(path, known)):
        of = [name for name, keys in kinds.items() if path in keys]
        field = kinds[of[0]][path]
        only = "" if len(of) == len(kinds) else f"{', '.join(of)}: "
        meaning = f"{only}{field.description or ''}{bounds_text(field)}"
        lines.append(f"| `{path}` | {default_text(field)} | {escaped(meaning)} |")
    return "\n".join(lines)


def pipeline_table() -> str:
    """Every key of every pipeline, the sections apart that runs have too."""
    from whet.tools.pipelines.registry import PIPELINES

    shared = ("recipe", "model.", "data.", "sampling.", "marks.", "reward.", "anchor.")
    fields: dict[tuple[str, str], dict[str, FieldInfo]] = {}
    for name, recipe in PIPELINES.items():
        for path, field in keys_of(recipe.settings):
            if not path.startswith(shared):
                fields.setdefault((path, field.description or ""), {})[name] = field
    known = [path for path, _ in fields]
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for path, said in sorted(fields, key=lambda each: section_place(each[0], known)):
        of = fields[path, said]
        field = next(iter(of.values()))
        only = "" if len(of) == len(PIPELINES) else f"{', '.join(of)}: "
        meaning = f"{only}{said}{bounds_text(field)}"
        lines.append(f"| `{path}` | {default_text(field)} | {escaped(meaning)} |")
    return "\n".join(lines)


def health_table() -> str:
    """Every health rule: what it sees, when the same numbers are normal, of which runs, and how early."""
    from whet.record.health.diagnosis import RULES

    kinds = {"rl": "RL", "preference": "preferences", "sft": "SFT", "reward_model": "reward models"}
    lines = ["| rule | sees | silent, or a note, when | runs | from step |", "|---|---|---|---|---|"]
    for rule in RULES.values():
        runs = "all" if len(rule.kinds) == len(kinds) else ", ".join(kinds[kind] for kind in rule.kinds)
        name = f"`{rule.name}`" + (" (note)" if rule.is_note else "")
        lines.append(f"| {name} | {escaped(rule.about)} | {escaped(rule.normal_when)} | {runs} | {rule.earliest} |")
    return "\n".join(lines)


def foreign_table() -> str:
    """Every setting of another trainer: its names, whet's key, and what to know."""
    from whet.settings.foreign import FOREIGN

    names: dict[str, list[str]] = {}
    for name, entry in FOREIGN.items():
        names.setdefault(entry.name, []).append(name)
    lines = ["| elsewhere | whet | note |", "|---|---|---|"]
    for first, several in names.items():
        entry = FOREIGN[first]
        keys = [entry.key] if isinstance(entry.key, str) else dict.fromkeys(entry.key.values())
        whet = ", ".join(f"`{key}`" for joined in keys for key in joined.split(" and ") if key)
        lines.append(f"| {', '.join(f'`{name}`' for name in several)} | {whet} | {escaped(entry.note)} |")
    return "\n".join(lines)


TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "migration.md": {"settings of other trainers": foreign_table},
    "rewards.md": {"rewards": reward_table, "defences": defence_table, "templates": template_table},
    "config.md": {"keys": config_table},
    "pipelines.md": {"pipeline settings": pipeline_table},
    "doctor.md": {
        "health rules": health_table,
        "both halves": doctor_tables.whole_table,
        "planted faults": doctor_tables.fault_table,
        "rates of rules": doctor_tables.rule_table,
        "rules without a fault": doctor_tables.unplanted,
        "advice that was followed": doctor_tables.advice_table,
        "other diagnosers": doctor_tables.rival_table,
    },
    "claims.md": {
        "verdicts": claim_tables.verdict_table,
        "claims about training": claim_tables.training_table,
        "claims about arithmetic": claim_tables.arithmetic_table,
        "claims beyond this project": claim_tables.untested_table,
        "runs of the claims": claim_tables.command_table,
    },
}


def about(function: Callable[..., Any]) -> str:
    """The first paragraph of its docstring, on one line."""
    paragraph = (inspect.getdoc(function) or "").partition("\n\n")[0]
    return escaped(" ".join(paragraph.split()).removesuffix("."))


def settings_text(function: Callable[..., Any]) -> str:
    found = [
        f"`{each.name}`" if each.default is each.empty else f"`{each.name}={shown(each.default)}`"
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    ]
    return ", ".join(found)


def shown(value: Any) -> str:
    """A default as a config file would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace("\n", "\\n") + '"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(shown(each) for each in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {shown(each)}" for key, each in value.items()) + "}"
    return "{}" if not isinstance(value, int | float) else f"{value}"


def keys_of(kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(path, field) of every key; the keys of a list's members as `list[].key`."""
    for name, field in kind.model_fields.items():
        inner = section_of(field.annotation)
        if inner is None or get_origin(field.annotation) is tuple:
            yield f"{prefix}{name}", field
        if inner is not None:
            members = "[]" if get_origin(field.annotation) is tuple else ""
            yield from keys_of(inner, f"{prefix}{name}{members}.")


def section_of(annotation: Any) -> type[BaseModel] | None:
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def section_place(path: str, known: list[str]) -> tuple[int, int]:
    """Keys of one section stand together, in the order of the code; bare keys first."""
    section = path.partition(".")[0] if "." in path else ""
    sections = list(dict.fromkeys(["", *(each.partition(".")[0] for each in known if "." in each)]))
    return sections.index(section), known.index(path)


def default_text(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return f"`{shown(field.default)}`"


def bounds_text(field: FieldInfo) -> str:
    choices = literal_choices(field.annotation)
    bounds = shown_bounds(field)
    said = [f"one of {', '.join(choices)}"] if choices else []
    return f" ({'; '.join([*said, *([' and '.join(bounds)] if bounds else [])])})" if said or bounds else ""


def literal_choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if get_origin(annotation) in (Union, types.UnionType):
        return [choice for each in get_args(annotation) for choice in literal_choices(each)]
    return []


def escaped(text: str) -> str:
    """Safe in a cell: bars escaped, and tags kept from being read as HTML."""
    return re.sub(r"(?<!`)((?:</?\w+>[\w.]*)+)", r"`\1`", text).replace("|", "\\|")


def refreshed(text: str, name: str, table: str) -> str:
    """The page with the table between its marks; an error where the marks are missing."""
    start, end = f"<!-- {name}: from the code -->", f"<!-- {name}: end -->"
    before, opened, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"the page has no {start} ... {end}")
    return f"{before}{start}\n{table}\n{end}{after}"


def main() -> None:
    for page, tables in TABLES.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        for name, table in tables.items():
            text = refreshed(text, name, table())
        (DOCS / page).write_text(text, encoding="utf-8")
    write_pages()
    write_module()


if __name__ == "__main__":
    main()
