"""The migration page says what the errors say, and names keys that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.for_every import for_every
from whet.settings.foreign import FOREIGN
from whet.training.config import resolved

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "migration.md").read_text()
KEY = re.compile(r"^(?:steps|seed|folder|[a-z_]+(?:\.[a-z_]+)+)$")


def arguments():
    """(TRL's names, whet's keys) of each row of the table."""
    table = PAGE.partition("## Arguments")[2]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == 2:
            keys = [each for each in re.findall(r"`([^`]+)`", cells[1]) if KEY.match(each)]
            yield re.findall(r"`([^`]+)`", cells[0]), keys


@for_every(arguments())
def test_the_page_agrees_with_the_errors(names, keys):
    assert keys
    for name in names:
        key_of = FOREIGN[name].key
        targets = [key_of] if isinstance(key_of, str) else list(key_of.values())
        assert any(key.startswith(each) or each.startswith(key) for key in keys for each in targets), name


def has_key(config, key):
    value = config
    for part in key.split("."):
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


@for_every(arguments())
def test_the_keys_exist(names, keys):
    configs = [resolved(method) for method in ("grpo", "sft", "dpo", "rm")]
    for key in keys:
        assert key.startswith("objective.") or any(has_key(config, key) for config in configs), key


def test_the_table_is_read():
    assert len(list(arguments())) > 20
