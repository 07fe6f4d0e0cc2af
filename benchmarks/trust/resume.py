"""Kills, damaged folders, stolen locks and changed inputs: does a run come to the same bytes, or say why not?

Kills: a run is killed before each of its file-system events, then resumed; every file of the folder must be what the
undisturbed run left. Not compared: wall-clock times (`seconds`, `started`, `finished` and `date` of records), peak
memory, and what is drawn from them (a report must be the one that its own folder gives).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.trust._events import CommandResult, CommandServer

RUN = "run"
SMALL = [
    *("seed=3", "report.save_every=1", "report.keep_checkpoints=2", "eval.every=2", "eval.prompts=2"),
    *("data.count=6", "data.difficulty=1", "model.threads=1", "sampling.max_new_tokens=8"),
]
GROUPS = ["batch.prompts_per_step=2", "batch.group_size=2"]
ROWS = ["batch.rows_per_step=2"]
PIPELINE = [
    *("rounds=1", "epochs=1", "data.count=4", "data.difficulty=1", "eval.prompts=2", "report.save_every=1"),
    *("sampling.max_new_tokens=8", "train.batch.rows_per_step=2", "model.threads=1", "seed=3"),
    *("prompts_per_round=4", "completions=4"),
]


def with_settings(words: Sequence[str], settings: Sequence[str]) -> list[str]:
    return [*words, "--folder", RUN, *(word for each in settings for word in ("--set", each))]


KINDS: Mapping[str, list[str]] = {
    "rl": with_settings(["train", "grpo", "--steps=3"], [*SMALL, *GROUPS]),
    "sft": with_settings(["train", "sft", "--steps=3"], [*SMALL, *ROWS]),
    "dpo": with_settings(["train", "dpo", "--steps=3"], [*SMALL, *ROWS]),
    "online preferences": with_settings(
        ["train", "dpo", "--steps=3"],
        [*SMALL, "batch.rows_per_step=8", "preference.online=8", "sampling.max_new_tokens=16", "data.difficulty=3"],
    ),
    "reward model": with_settings(
        ["train", "bradley_terry", "--steps=3"], [each for each in SMALL if not each.startswith("sampling")] + ROWS
    ),
    "pipeline": with_settings(["pipeline", "iterative_dpo"], PIPELINE),
}


def content(folder: Path) -> dict[str, str]:
    """Everything below a folder by its path: a digest of each file, without wall-clock times."""
    return {
        path.relative_to(folder).as_posix(): "a folder" if path.is_dir() else _digest(path)
        for path in sorted(folder.rglob("*"))
    }


def _digest(path: Path) -> str:
    drop = {"started", "finished", "seconds", "memory", "date"}
    if path.name in ("run.json", "stage.json"):
        values = json.loads(path.read_text())
        data = json.dumps({key: value for key, value in values.items() if key not in drop}).encode()
    elif path.name in ("metrics.jsonl", "rewards.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        data = json.dumps([{key: value for key, value in line.items() if key not in drop} for line in lines]).encode()
    elif path.name == "report.html":
        from whet.report import html_report

        return "as its folder" if path.read_text() == html_report(path.parent) else "not as its folder"
    elif path.name == "pipeline.html":
        return "finished" if "finished" in path.read_text() else "unfinished"
    else:
        data = path.read_bytes()
    return hashlib.sha256(data).hexdigest()[:16]


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


@dataclass(frozen=True)
class Reference:
    """A run that nobody disturbed."""

    words: list[str]
    content: Mapping[str, str]
    events: tuple[str, ...]


class Laboratory:
    """One process that runs whet commands, and one working directory: paths in the files are then the same."""

    def __init__(self, root: Path) -> None:
        self.root, self.work = root, root / "work"
        self._server = CommandServer()
        self._references: dict[str, Reference] = {}

    def whet(self, *words: str, kill_at: int = 0, setup: str = "") -> CommandResult:
        return self._server.run(list(words), self.work, kill_at, setup=setup)

    def fresh(self) -> Path:
        """The working directory, empty."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        return self.work

    def reference(self, kind: str) -> Reference:
        if kind not in self._references:
            self.fresh()
            result = self.whet(*KINDS[kind])
            assert result.code == 0, result.output
            self._references[kind] = Reference(KINDS[kind], content(self.work), result.events)
        return self._references[kind]

    def close(self) -> None:
        self._server.close()


@contextmanager
def laboratory() -> Iterator[Laboratory]:
    with tempfile.TemporaryDirectory() as root:
        lab = Laboratory(Path(root).resolve())
        try:
            yield lab
        finally:
            lab.close()


def begun(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("config.toml", "pipeline.toml"))


def kill_and_resume(lab: Laboratory, kind: str, kill_at: int, then_at: int = 0) -> str:
    """Kill a run before one event (and its resume before another), resume it; what is wrong then, or nothing."""
    reference = lab.reference(kind)
    work = lab.fresh()
    killed = lab.whet(*reference.words, kill_at=kill_at)
    if killed.code != -9:
        return f"not killed: exit {killed.code}"
    for kill in [then_at, 0] if then_at else [0]:
        words = ["resume", RUN] if begun(work / RUN) else reference.words
        resumed = lab.whet(*words, kill_at=kill)
        if resumed.code == -9 and kill:
            continue
        if resumed.code == 2 and "nothing to do" in resumed.output:
            continue
        if resumed.code != 0:
            return f"exit {resumed.code}: {last_line(resumed.output)}"
    if differing := differences(reference.content, content(work)):
        return f"differing: {', '.join(differing[:4])}"
    return ""


def last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def spread(count: int, most: int, seed: int = 0) -> list[int]:
    """`most` numbers from 1 to `count`, one drawn from each of as many equal stretches."""
    if count <= most:
        return list(range(1, count + 1))
    stream = random.Random(seed)
    edges = [count * number // most for number in range(most + 1)]
    return [stream.randint(low + 1, high) for low, high in itertools.pairwise(edges)]


def kill_failures(lab: Laboratory, kind: str, most: int | None = None) -> tuple[int, list[str]]:
    """How many events were tried, and those after which the resumed run was not the undisturbed one."""
    events = lab.reference(kind).events
    chosen = spread(len(events), len(events) if most is None else most)
    failures = []
    for number in chosen:
        wrong = kill_and_resume(lab, kind, number)
        if wrong:
            failures.append(f"{kind} before event {number} ({events[number - 1]}): {wrong}")
    return len(chosen), failures
