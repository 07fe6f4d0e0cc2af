"""What people say of a run as a whole: `notes.json` in its folder, with tags and a note. It is replaced whole."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.types import WhetError

NOTES = "notes.json"
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 20, 40, 10_000  # tags, and characters


@dataclass(frozen=True)
class RunNotes:
    """Tags to find and group runs by, and a note."""

    tags: tuple[str, ...] = ()
    note: str = ""


def checked_notes(values: Mapping[str, Any]) -> RunNotes:
    """Notes from plain values; an error that says what is wrong with them. A tag counts once, without its margins."""
    tags, note = values.get("tags", []), values.get("note", "")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise WhetError('tags is not a list of texts; give for example ["baseline", "seed study"]')
    tidy = tuple(dict.fromkeys(text for tag in tags if (text := " ".join(tag.split()))))
    if len(tidy) > MOST_TAGS or any(len(tag) > LONGEST_TAG or "," in tag for tag in tidy):
        raise WhetError(f"give at most {MOST_TAGS} tags of at most {LONGEST_TAG} characters each, without commas")
    if not isinstance(note, str) or len(note) > LONGEST_NOTE:
        raise WhetError(f"note is not a text of at most {LONGEST_NOTE:,} characters; shorten it")
    return RunNotes(tidy, note)


def notes_from(content: bytes | None) -> RunNotes:
    """What notes.json holds; nothing where it is missing, or not as `write_notes` writes it."""
    try:
        values = json.loads(content or b"{}")
        return checked_notes(values) if isinstance(values, dict) else RunNotes()
    except (ValueError, RecursionError, WhetError):
        return RunNotes()


def write_notes(folder: Path, notes: RunNotes) -> None:
    """Replace the notes of a run; a reader finds the old ones or the new ones."""
    text = json.dumps({"tags": list(notes.tags), "note": notes.note}, indent=1, ensure_ascii=False) + "\n"
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{NOTES}", dir=folder)  # never through a link that lies there
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, folder / NOTES)
    except OSError as error:
        raise WhetError(f"{folder / NOTES} cannot be written ({error.strerror}); let this user write there") from None
