"""The ledger of a reward: what changed, when, why, what was expected and what came of it.

An append-only file of JSON lines, `rewards.jsonl` beside the runs. A `change` line opens an entry; `reason` lines
give or fix its reason later, `effect` lines tell what a run under that reward came to. Nothing is ever rewritten.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from whet.registry import error_text
from whet.reward.version import RewardVersion, version_changes
from whet.types import WhetError

LEDGER = "rewards.jsonl"
NOT_GIVEN = "not given"
KINDS = ("change", "reason", "effect")


@dataclass(frozen=True)
class Effect:
    """What one run under a reward came to: (at its first steps, at its last), None where nothing was measured."""

    run: str
    steps: int
    parts: Mapping[str, tuple[float | None, float | None]]  # "total" and each part: means
    evaluation: Mapping[str, tuple[float | None, float | None]]  # held-out marks before and after


@dataclass(frozen=True)
class Change:
    """One entry of the ledger, with everything later lines add to it."""

    date: str  # of the change, ISO, UTC
    old: str | None  # hash; None for the first entry
    new: str
    name: str  # the parts
    reason: str
    expected: str
    changed: tuple[str, ...]  # what differs from the entry before
    pieces: Mapping[str, str] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()


_EFFECT, _CHANGE = TypeAdapter(Effect), TypeAdapter(Change)


def ledger_path(beside: Path | str) -> Path:
    """The ledger that a run folder shares with the runs next to it."""
    return Path(beside).resolve().parent / LEDGER


def history(path: Path | str) -> list[Change]:
    """The entries, oldest first; no file, no entries."""
    changes: list[Change] = []
    for position, line in _lines(Path(path)):
        try:
            changes = _with_line(changes, line)
        except (KeyError, TypeError, ValueError) as error:
            raise WhetError(
                f"{position}: not a line of a reward ledger ({error_text(error)}); restore or delete it"
            ) from None
    return changes


def note_change(
    path: Path | str, version: RewardVersion, reason: str, expected: str = "", now: datetime | None = None
) -> Change:
    """Record that `version` is the reward from now on, and why.

    Noted again under the same hash, a reason or an expectation is added to the last entry.
    """
    path = Path(path)
    changes = history(path)
    last = changes[-1] if changes else None
    if last is not None and last.new == version.hash:
        return note_reason(path, reason, expected, now)
    change = Change(
        _stamp(now),
        last.new if last is not None else None,
        version.hash,
        version.name,
        reason or NOT_GIVEN,
        expected,
        tuple(version_changes(last.pieces, version.pieces)) if last is not None else (),
        dict(version.pieces),
    )
    values = asdict(change)
    del values["effects"]  # lines of their own
    _append(path, {"kind": "change", **values})
    return change


def note_reason(path: Path | str, reason: str, expected: str = "", now: datetime | None = None) -> Change:
    """Give the last entry its reason or expectation afterwards; an empty text leaves what is there."""
    changes = history(path)
    if not changes:
        raise WhetError(
            f"{path}: the ledger has no entry to explain yet; name the reward: whet reward note REWARD --reason ..."
        )
    if reason or expected:
        line = {"kind": "reason", "date": _stamp(now), "hash": changes[-1].new, "reason": reason, "expected": expected}
        _append(Path(path), line)
    return history(path)[-1]


def note_run(path: Path | str, version: RewardVersion, now: datetime | None = None) -> Change | None:
    """Called when a run starts: a reward that is not the ledger's last becomes an entry without a reason."""
    changes = history(path)
    if changes and changes[-1].new == version.hash:
        return None
    return note_change(path, version, NOT_GIVEN, now=now)


def note_effect(path: Path | str, reward_hash: str, effect: Effect) -> None:
    """Called when a run has ended: what came of the reward. A resumed run's later line replaces its earlier one."""
    noted = [change for change in history(path) if change.new == reward_hash]
    if not noted:
        raise WhetError(f"{path}: no entry has the hash {reward_hash}; `whet reward history` lists them")
    if effect in noted[-1].effects:  # written before a kill
        return
    _append(Path(path), {"kind": "effect", "date": _stamp(), "hash": reward_hash, **asdict(effect)})


def _with_line(changes: Sequence[Change], line: Mapping[str, Any]) -> list[Change]:
    kind = line["kind"]
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}")
    if kind == "change":
        known = {entry.name: line[entry.name] for entry in fields(Change) if entry.name != "effects"}
        return [*changes, _CHANGE.validate_python(known)]
    index = max(at for at, change in enumerate(changes) if change.new == line["hash"])
    change = changes[index]
    if kind == "reason":
        words = {name: str(line[name]) for name in ("reason", "expected") if line[name]}
        change = replace(change, **words)  # type: ignore[arg-type]
    else:
        effect = _EFFECT.validate_python({entry.name: line[entry.name] for entry in fields(Effect)})
        others = tuple(earlier for earlier in change.effects if earlier.run != effect.run)
        change = replace(change, effects=(*others, effect))
    return [*changes[:index], change, *changes[index + 1 :]]


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    if not path.exists():
        return []
    lines = []
    *texts, last = path.read_text(encoding="utf-8", errors="replace").split("\n")
    # a person may have left no newline at the end; half a line is of a process that was killed
    texts += [last] if _object(last) is not None else []
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        value = _object(text)
        if value is None:
            raise WhetError(f"{path}:{number}: not a JSON object; delete the line or restore the file")
        lines.append((f"{path}:{number}", value))
    return lines


def _object(text: str | bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _append(path: Path, line: Mapping[str, Any]) -> None:
    text = json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            with contextlib.suppress(OSError):  # runs side by side share the file; without locks they still append
                fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            last = file.read().rpartition(b"\n")[2]
            if last and _object(last) is None:
                file.truncate(file.tell() - len(last))
            file.write(b"\n" if last and _object(last) is not None else b"")
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise WhetError(f"{path}: cannot write the reward ledger ({error.strerror}); give another --ledger") from error


def _stamp(now: datetime | None = None) -> str:
    return (now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")
