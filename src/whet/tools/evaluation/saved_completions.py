"""Completions of an evaluation on disk, chunk by chunk: an interrupted one goes on where it stopped.

The first line names what was asked of whom (`Fingerprint`); each line after it is one chunk of prompts, written whole
before the next begins. A line that was cut off by the interruption is dropped and its chunk is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from whet.types import Sample, StopReason, Turn, WhetError

PARTIAL = ".part"  # behind the name of the file that the completions will have
VERSION = 1


@dataclass(frozen=True)
class Fingerprint:
    """What decides the completions of an evaluation, by name."""

    pieces: Mapping[str, str]

    @property
    def digest(self) -> str:
        """One short text for all pieces."""
        return text_digest(json.dumps([VERSION, dict(sorted(self.pieces.items()))]))

    def changes(self, before: Mapping[str, str]) -> list[str]:
        """The names of what differs."""
        return [name for name in {**before, **self.pieces} if before.get(name) != self.pieces.get(name)]


def text_digest(text: str) -> str:
    """The first 16 hex digits of the text's sha256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class CompletionFile:
    """The chunks of one model on one task. Opened by one process at a time."""

    def __init__(self, out: Path, fingerprint: Fingerprint) -> None:
        """Reads what is there; chunks of another fingerprint are left out, and `restarted` says why."""
        self.path = out.with_name(out.name + PARTIAL)
        self.restarted = ""
        self._chunks: list[list[dict[str, Any]]] = []
        head = {"digest": fingerprint.digest, "pieces": dict(fingerprint.pieces)}
        before, chunks, end = _read(self.path)
        if before is not None and before.get("digest") == fingerprint.digest:
            self._chunks = chunks
        elif chunks:
            assert before is not None
            changed = [name.partition(" ")[2] or name for name in fingerprint.changes(before.get("pieces", {}))]
            self.restarted = (
                f"{self.path} holds {sum(map(len, chunks))} prompts of an interrupted evaluation that differs in "
                f"{', '.join(changed) or 'the version of whet'}: it is started anew"
            )
        elif before is not None and "digest" not in before:
            self.restarted = f"{self.path} is no record of an evaluation: it is started anew"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self._chunks:
                os.truncate(self.path, end)
            else:
                self.path.write_text(json.dumps(head) + "\n", encoding="utf-8")
        except OSError as error:
            raise WhetError(
                f"{out}: cannot write the completions there ({error.strerror}); give another --out"
            ) from error

    @property
    def chunks(self) -> Sequence[Sequence[Mapping[str, Any]]]:
        """The chunks on disk, oldest first."""
        return self._chunks

    def add(self, chunk: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Write a chunk to the end of the file; it comes back as a later reader will find it."""
        line = json.dumps(list(chunk))
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise WhetError(f"{self.path}: cannot be written ({error.strerror}); make room, or give --out") from error
        self._chunks.append(json.loads(line))
        return self._chunks[-1]

    @staticmethod
    def discard(out: Path) -> None:
        """The evaluation is over, and its results stand elsewhere."""
        out.with_name(out.name + PARTIAL).unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Any] | None, list[list[dict[str, Any]]], int]:
    """The head, the whole chunks, and the byte where they end; no head where the file is none of ours."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None, [], 0
    except OSError as error:
        raise WhetError(f"{path}: cannot be read ({error.strerror}); delete it, or give another --out") from error
    head: dict[str, Any] | None = None
    chunks: list[list[dict[str, Any]]] = []
    end = 0
    value: Any
    for line in content.splitlines(keepends=True):
        try:
            value = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            value = None
        if head is None and isinstance(value, dict):
            head = value
        elif head is not None and isinstance(value, list):
            chunks.append(value)
        else:
            break
        end += len(line)
    return (head if head is not None else {}), chunks, end


def sample_record(sample: Sample) -> dict[str, Any]:
    """A sample as JSON; what is left out has its default."""
    record: dict[str, Any] = {
        "completion": sample.completion,
        "stop": str(sample.stop),
        "tokens": sample.tokens.tolist(),
        "action": _runs(sample.action.tolist()),
        "logp": sample.behavior_logp[sample.action].tolist(),
        "parts": dict(sample.parts),
        "reward": sample.reward,
    }
    others = {
        "turns": [_turn_record(turn) for turn in sample.turns],
        "returned": sample.returned,
        "episode": sample.episode,
        "role": sample.role,
        "metrics": dict(sample.metrics),
        "steps": [list(step) for step in sample.steps],
    }
    return record | {name: value for name, value in others.items() if value not in (None, "", [], {})}


def sample_from(record: Mapping[str, Any]) -> Sample:
    """The inverse of `sample_record`."""
    action = torch.tensor(list(_flags(record["action"])), dtype=torch.bool)
    logp = torch.zeros(len(action), dtype=torch.float32)
    logp[action] = torch.tensor(record["logp"], dtype=torch.float32)
    return Sample(
        tokens=torch.tensor(record["tokens"], dtype=torch.long),
        action=action,
        behavior_logp=logp,
        versions=(0, 0),
        stop=StopReason(record["stop"]),
        completion=record["completion"],
        parts=record["parts"],
        reward=record["reward"],
        turns=tuple(_turn_from(turn) for turn in record.get("turns", ())),
        returned=record.get("returned"),
        episode=record.get("episode", ""),
        role=record.get("role", ""),
        metrics=record.get("metrics", {}),
        steps=tuple((int(position), float(score)) for position, score in record.get("steps", ())),
    )


def _runs(flags: Sequence[bool]) -> list[int]:
    """Lengths of the stretches of equal flags, the first of False."""
    runs, last = [0], False
    for flag in flags:
        if flag != last:
            runs.append(0)
            last = flag
        runs[-1] += 1
    return runs


def _flags(runs: Sequence[int]) -> Iterator[bool]:
    for number, length in enumerate(runs):
        yield from [bool(number % 2)] * length


def _turn_record(turn: Turn) -> dict[str, Any]:
    # seconds differ between equal runs
    return {
        **{name: getattr(turn, name) for name in ("role", "text", "start", "stop", "reward", "state")},
        "ended": None if turn.ended is None else str(turn.ended),
        "counts": dict(turn.counts),
        "errors": list(turn.errors),
    }


def _turn_from(record: Mapping[str, Any]) -> Turn:
    ended = record["ended"]
    fields = {name: record[name] for name in ("role", "text", "start", "stop", "reward", "state", "counts")}
    return Turn(**fields, ended=None if ended is None else StopReason(ended), errors=tuple(record["errors"]))
