"""What pytest collected in this session, noted before anything is deselected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

COLLECTED = pytest.StashKey[dict[Path, set[str]]]()


def note_collected(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Keep which files have tests, and the markers of these."""
    files: dict[Path, set[str]] = {}
    for item in items:
        files.setdefault(item.path, set()).update(mark.name for mark in item.iter_markers())
    config.stash[COLLECTED] = files


def asked_for(config: pytest.Config) -> list[Path]:
    """The folders and files that pytest was asked to collect."""
    return [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]


def forgotten_files(places: Sequence[Path], collected: Sequence[Path]) -> list[Path]:
    """Test files in the tree from which nothing was collected."""
    files = {file for place in places for file in ([place] if place.is_file() else place.rglob("test_*.py"))}
    return sorted(files - set(collected))
