"""The rules as values: what they name exists, and a finding has all that a person needs to act on it."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import whet.record.health
from tests.support.for_every import for_every
from whet.objective.axes import POLICY, PREFERENCE
from whet.record.health.diagnosis import RULES, findings
from whet.record.health.history import SETTINGS, history_of
from whet.training.assembly.health import health_settings
from whet.training.config import CONFIG_CLASSES, resolved
from whet.types import StepReport

SETTING = re.compile(r"\b(?:batch|critic|env|objective|optimizer|reward|sampling|scale|model)\.[a-z_]+(?:\.[a-z_]+)?\b")


def config_names() -> set[str]:
    """Every setting of every kind of config, and every component's numbers."""
    names: set[str] = set()

    def collect(fields_of: Any, prefix: str) -> None:
        for name, field in fields_of.items():
            names.add(f"{prefix}{name}")
            collect(getattr(field.annotation, "model_fields", {}), f"{prefix}{name}.")

    for kind in CONFIG_CLASSES.values():
        collect(kind.model_fields, "")
    for family in (POLICY, PREFERENCE):
        for axis, of in family.axes.items():
            names.add(f"objective.{axis}")
            for component in of.components.values():
                names |= {f"objective.{axis}.{field.name}" for field in fields(component)}
    return names


def test_every_setting_that_a_rule_looks_at_or_names_exists() -> None:
    known = config_names()
    assert set(SETTINGS) <= known
    for file in Path(whet.record.health.__file__).parent.glob("*.py"):
        named = {name for text in _strings(file) for name in SETTING.findall(text)}
        assert named <= known, (file.name, named - known)


def _strings(file: Path) -> list[str]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@for_every(["grpo", "ppo", "gspo", "dpo", "sft", "rm"])
def test_the_settings_of_a_run_are_those_of_its_config_and_its_method(method: str) -> None:
    config = resolved(method, {"optimizer": {"learning_rate": 3e-4}})
    settings = health_settings(config)
    assert settings["optimizer.learning_rate"] == 3e-4 and set(settings) <= set(SETTINGS)
    assert ("objective.clip.high" in settings) == (method in ("grpo", "ppo", "gspo"))


def test_advice_names_the_value_that_a_run_has_and_the_one_to_give() -> None:
    history = history_of([], settings={"optimizer.learning_rate": 1e-4, "batch.group_size": 8, "objective.kl": "none"})
    rate = history.lower("optimizer.learning_rate")
    assert rate.words == "lower optimizer.learning_rate from 0.0001 to 3e-05" and rate.value == "3e-05"
    assert history.higher("batch.group_size").value == "16"
    assert history.higher("sampling.temperature") is None  # this run has none
    assert history.tie().setting == "objective.kl" and history.give("objective.kl", "none") is None
    unknown = history_of([]).lower("optimizer.learning_rate")
    assert unknown.words == "lower optimizer.learning_rate" and not unknown.is_exact
    assert history_of([]).tie().setting == "objective.kl.beta"
    with pytest.raises(ValueError, match="add it there"):
        history.lower("optimizer.speed")


def test_a_finding_has_evidence_cause_remedy_settings_and_when_it_is_normal() -> None:
    steps = [StepReport(n, n, {"samples": 4}, {"total": 0.0}, {"uniform_groups": 1.0}) for n in range(1, 6)]
    (found,) = findings(steps, settings={"batch.group_size": 8, "sampling.temperature": 1.0})
    assert found.name == "no reward signal" and found.is_problem
    assert found.text == f"no reward signal: {found.evidence}: {found.cause}; {found.remedy}."
    assert found.settings == (("batch.group_size", "16"), ("sampling.temperature", "1.2"))
    assert found.changes == ("batch.group_size=16", "sampling.temperature=1.2")
    assert "give easier data, or raise batch.group_size from 8 to 16" in found.remedy
    assert found.normal_when == RULES["no reward signal"].normal_when


def test_rules_are_told_apart_and_say_what_they_are_about() -> None:
    for name, rule in RULES.items():
        assert name == rule.name and rule.about and rule.normal_when and rule.kinds and rule.earliest >= 1
        assert set(rule.hides) <= set(RULES)


def rows_of(page: str) -> list[str]:
    """The lines of the table of symptoms."""
    return page.partition("failure lists of the field")[2].partition("\n## ")[0].splitlines()


def test_every_rule_covers_a_row_of_the_failure_lists_and_the_page_names_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
    rows = [line.split("|") for line in rows_of(page) if "`" in line]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row[2])}
    assert len(rows) > 25 and named == set(RULES)
