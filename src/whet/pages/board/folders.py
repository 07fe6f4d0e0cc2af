"""What lies below the board's folder: runs, pipelines, comparisons and evaluations, each under an opaque id.

An id is a digest of the place. Nobody can make one up: only ids of what was found lead anywhere. Links are not
followed, so nothing outside the folder is ever found.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RUN, PIPELINE, COMPARISON, EVALUATION = "run", "pipeline", "comparison", "evaluation"
# the file that makes a folder what it is
SIGNS = {RUN: "config.toml", PIPELINE: "pipeline.toml", COMPARISON: "compare.json", EVALUATION: "eval.json"}
IN_RUNS = frozenset(("best", "final"))  # folders of a run that hold a model
HIDDEN = ("checkpoints", "start", "replaced", "node_modules", "__pycache__")  # folders that hold no runs
DEEPEST = 32  # folders below the board's
MOST_FOUND = 20_000


@dataclass(frozen=True)
class FoundFolder:
    """Something to look at."""

    id: str
    kind: str
    path: Path
    place: str  # from the board's folder on, with slashes
    parent: str = ""  # id of the pipeline or comparison that it lies in

    @property
    def name(self) -> str:
        """The name of the folder itself."""
        return self.path.name or str(self.path)

    @property
    def group(self) -> str:
        """The folder it lies in, from the board's on; empty for the board's own."""
        return self.place.rpartition("/")[0]


def folder_id(kind: str, place: str) -> str:
    """The opaque id of what lies at a place."""
    return hashlib.sha256(f"{kind}\n{place}".encode("utf-8", "surrogateescape")).hexdigest()[:14]


def found_folders(root: Path) -> dict[str, FoundFolder]:
    """Everything below the root, by id, in the order of its place."""
    found: dict[str, FoundFolder] = {}
    for folder in _walk(root):
        found[folder.id] = folder
        if len(found) >= MOST_FOUND:
            break
    return found


def _walk(root: Path) -> Iterator[FoundFolder]:
    owners: dict[str, str] = {}  # place of a pipeline or comparison -> its id
    start = len(os.path.join(root, ""))
    for place, names, files in os.walk(root):  # links to folders are not followed
        relative = place[start:].replace(os.sep, "/") or "."
        deep = 0 if relative == "." else relative.count("/") + 1
        hidden = IN_RUNS if SIGNS[RUN] in files else frozenset()
        names[:] = (
            sorted(name for name in names if name not in HIDDEN and name not in hidden and not name.startswith("."))
            if deep < DEEPEST
            else []
        )
        present = set(files)
        parent = _owner(owners, relative)
        for kind, sign in SIGNS.items():
            if sign in present:
                each = FoundFolder(folder_id(kind, relative), kind, Path(place), relative, parent)
                if kind in (PIPELINE, COMPARISON):
                    owners[relative] = each.id
                yield each


def _owner(owners: Mapping[str, str], place: str) -> str:
    """The nearest pipeline or comparison around a place."""
    while "/" in place:
        place = place.rpartition("/")[0]
        if place in owners:
            return owners[place]
    return owners.get(".", "")
