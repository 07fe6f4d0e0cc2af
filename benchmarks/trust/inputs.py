"""Malformed files and hostile settings, tried through the command line in one process and without training.

Every case runs the command as a user would type it, with two things replaced: the model is loaded once, and the first
step (or the first completion) is where the case ends well. It holds where the command begins, or ends with exit code 2
and one line that names the file or the setting. It does not where there is a traceback, several lines, a wait, a file
left behind, or a row that is neither read, nor named, nor counted.

    python -m benchmarks.trust inputs          # 300 files and 200 settings
    python -m benchmarks.trust inputs --full   # 10,000 and 2,000
"""

from __future__ import annotations

import contextlib
import csv
import errno
import functools
import gzip
import io
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, get_args
from unittest import mock

from pydantic import BaseModel

ROWS = 6  # of a file before it is spoilt
PATIENCE = 60.0  # seconds that a case may take, on a machine that others use too
LONGEST_LINE = 1200  # characters of an error
NOBODY = 65534

# --- the commands, and the rows that each of them reads ---------------------------------------------------------------


def _prompts(number: int) -> dict[str, Any]:
    return {"prompt": f"What is {number}+{number}?", "answer": str(2 * number)}


def _chats(number: int) -> dict[str, Any]:
    turns = [{"role": "user", "content": f"Say {number}."}, {"role": "assistant", "content": f"{number}"}]
    return {"messages": turns}


def _alpaca(number: int) -> dict[str, Any]:
    return {"instruction": f"Say {number}.", "input": "", "output": f"{number}"}


def _sharegpt(number: int) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": f"Say {number}."}, {"from": "gpt", "value": f"{number}"}]}


def _texts(number: int) -> dict[str, Any]:
    return {"text": f"{number} is followed by {number + 1}."}


def _pairs(number: int) -> dict[str, Any]:
    return {"prompt": f"Say {number}.", "chosen": f"{number}", "rejected": f"{number + 1}", "margin": 0.5}


def _numbered(number: int) -> dict[str, Any]:
    return {"prompt": f"Say {number}.", "response_a": f"{number}", "response_b": "no", "winner": "model_a"}


def _labels(number: int) -> dict[str, Any]:
    return {"prompt": f"Say {number}.", "completion": f"{number}", "label": number % 2 == 0}


def _rankings(number: int) -> dict[str, Any]:
    return {"prompt": f"Say {number}.", "completions": [f"{number}", "no", "so"], "scores": [1.0, 0.5, 0.0]}


def _steps(number: int) -> dict[str, Any]:
    return {"prompt": f"Count to {number + 2}.", "steps": ["one", "two"], "labels": [True, number % 2 == 0]}


def _trees(number: int) -> dict[str, Any]:
    replies = [{"text": f"{each}", "role": "assistant", "rank": each, "replies": []} for each in range(2)]
    return {
        "message_tree_id": f"{number}",
        "prompt": {"text": f"Say {number}.", "role": "prompter", "replies": replies},
    }


def _given(number: int) -> dict[str, Any]:
    return {
        "prompt": f"What is {number}+{number}?",
        "answer": str(2 * number),
        "completion": f"<answer>{number}</answer>",
    }


@dataclass(frozen=True)
class Reader:
    """A command that takes a file of rows."""

    name: str
    words: tuple[str, ...]  # of the command line; FILE stands for the path
    row: Callable[[int], dict[str, Any]]
    drops: bool = True  # takes data.unusable=drop


FILE = "FILE"
FEW = ("--set", "eval.prompts=0")
READERS = (
    Reader("train RL", ("train", "grpo", "--data", FILE, "--reward", "exact_answer", *FEW), _prompts),
    Reader("train RL, chats", ("train", "grpo", "--data", FILE, "--reward", "think_format", *FEW), _chats),
    Reader("train SFT, chats", ("train", "sft", "--data", FILE), _chats),
    Reader("train SFT, Alpaca", ("train", "sft", "--data", FILE), _alpaca),
    Reader("train SFT, ShareGPT", ("train", "sft", "--data", FILE), _sharegpt),
    Reader("train SFT, text", ("train", "sft", "--data", FILE), _texts),
    Reader("train DPO, pairs", ("train", "dpo", "--data", FILE), _pairs),
    Reader("train DPO, numbered", ("train", "dpo", "--data", FILE), _numbered),
    Reader("train KTO, labels", ("train", "kto", "--data", FILE), _labels),
    Reader("train RM, rankings", ("train", "rm", "--data", FILE), _rankings),
    Reader("train RM, trees", ("train", "rm", "--data", FILE), _trees),
    Reader("train ORM, labels", ("train", "orm", "--data", FILE), _labels),
    Reader("train PRM, steps", ("train", "prm", "--data", FILE), _steps),
    Reader("eval", ("eval", "whetstone", "--data", FILE, "--reward", "exact_answer"), _prompts),
    Reader("sample", ("sample", "whetstone", "--data", FILE), _prompts),
    Reader("label", ("label", "steps", "--data", FILE, "--reward", "exact_answer", "--out", "steps.jsonl"), _prompts),
    Reader("label, completions", ("label", "completions", "--data", FILE, "--out", "completions.jsonl"), _prompts),
    Reader("label, solutions", ("label", "steps", "--solutions", FILE, "--reward", "exact_answer", "--out",
    "s.jsonl"), _steps),
    Reader("reward test", ("reward", "test", "exact_answer", "--data", FILE), _prompts),
    Reader("reward test, pairs", ("reward", "test", "think_format", "--data", FILE), _pairs),
    Reader("reward test, completions", ("reward", "test", "exact_answer", "--completions", FILE), _given, drops=False),
)  # fmt: skip

# --- values that nobody expects ---------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    value: Any = "core"
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -0.0, -1, 1, 2, 0.5, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, 2**63,
    -(2**63) - 1,
    10**299, 10**400, "", " ", "\n", "\0", "0", "-1", "nan", "\ud800", "a\udfffb", "\ufeff", "\u2028", "\u0663", "null",
    "x" * 200_000, "\\boxed{", "####", "{}", "[]", "<think>", "</s>", "<|im_end|>", "\U0001f600", "\x1b[31m",
    [], {}, [[]], [None], [{}], [""], ["a"], ["a", "a"], [1, 2, 3], [0, 0, 0], [1.0, "b"], [math.nan, 1.0], {"a": 1},
    {"": ""}, {"role": "user"}, [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": None}],
    [{"role": 5, "content": 5}], [{"role": "assistant", "content": "x"}], [{"from": "human", "value": 5}],
    [{"role": "user", "content": "x", "tool_calls": "y"}], [{"role": "assistant", "tool_calls": [{"function": 3}]}],
    [{"role": "tool", "content": "x"}], {"text": 5, "replies": [3]}, {"text": "x", "replies": "y"}, nested(50),
    nested(90),
)  # fmt: skip
# columns that some reader looks for: a row gets one that does not belong to it
COLUMNS = (
    "prompt", "messages", "answer", "id", "completion", "chosen", "rejected", "label", "labels", "ratings",
    "steps", "scores",
    "ranks", "order", "completions", "replies", "margin", "preference", "text", "instruction", "input", "output",
    "question",
    "solution", "conversations", "tools", "system", "instances", "reward_model", "ground_truth", "first_error",
    "winner",
    "reasoning_steps", "modified_process", "error_steps", "response_a", "response_b", "correct", "right",
    "separator", "",
    "reply", "final_answer_correct", "tests", "choices", "role", "unscorable", "a.b", "x" * 300, "\u0663",
)  # fmt: skip
BYTES = (
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b"\r\n",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"\xed\xa0\x80",
)
SUFFIXES = (".jsonl", ".jsonl", ".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".csv.gz", ".json.gz")


@dataclass(frozen=True)
class FileCase:
    """A file for a command; `make` writes it."""

    reader: Reader
    spoilt: str  # how, in words
    suffix: str
    make: Callable[[Path], None]
    rows: int | None = None  # that it holds, where damage leaves no doubt
    drop: bool = False


def spoilt_rows(stream: random.Random, reader: Reader) -> tuple[str, list[Any]]:
    """Rows of which some have a value, a column or a shape that they should not have."""
    rows: list[Any] = [reader.row(number) for number in range(ROWS)]
    kind = stream.choice(("value", "value", "value", "inner", "missing", "extra", "extra", "shape", "id", "all"))
    places = range(ROWS) if kind == "all" else stream.sample(range(ROWS), stream.choice((1, 1, 2, 4)))
    column = stream.choice([*rows[0]])
    value = stream.choice(HOSTILE)
    for place in places:
        if kind in ("value", "all"):
            rows[place][column] = value
        elif kind == "inner":
            rows[place] = changed_inside(stream, rows[place], value)
        elif kind == "missing":
            rows[place].pop(column)
        elif kind == "extra":
            rows[place][stream.choice(COLUMNS)] = stream.choice(HOSTILE)
        elif kind == "shape":
            rows[place] = stream.choice(HOSTILE)
        else:
            rows[place]["id"] = stream.choice((*HOSTILE, "same", "same"))
    return kind, rows


def changed_inside(stream: random.Random, value: Any, new: Any) -> Any:
    """The value with one of its leaves replaced."""
    if isinstance(value, dict) and value:
        key = stream.choice([*value])
        return {**value, key: changed_inside(stream, value[key], new)}
    if isinstance(value, list) and value:
        place = stream.randrange(len(value))
        return [*value[:place], changed_inside(stream, value[place], new), *value[place + 1 :]]
    return new


def written(rows: Sequence[Any], suffix: str) -> bytes | None:
    """The rows as a file of this kind; None where it cannot hold them."""
    bare = suffix.removesuffix(".gz")
    try:
        if bare == ".jsonl":
            data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        elif bare == ".json":
            data = json.dumps(list(rows)).encode()
        elif bare == ".csv":
            text = io.StringIO()
            names = list(dict.fromkeys(name for row in rows for name in row))
            writer = csv.DictWriter(text, names)
            writer.writeheader()
            for row in rows:
                writer.writerow(
                    {name: each if isinstance(each, str) else json.dumps(each) for name, each in row.items()}
                )
            data = text.getvalue().encode("utf-8", "surrogatepass")
        else:
            import pyarrow
            import pyarrow.parquet

            buffer = io.BytesIO()
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), buffer)
            data = buffer.getvalue()
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError, csv.Error):
        return None
    except Exception as error:  # pyarrow's own kinds: this value has no column type
        if type(error).__module__.startswith("pyarrow"):
            return None
        raise
    return gzip.compress(data) if suffix.endswith(".gz") else data


def damaged(stream: random.Random, data: bytes) -> tuple[str, bytes]:
    """The file with some of its bytes wrong."""
    kind = stream.choice(
        ("cut", "flip", "insert", "delete", "swap", "repeat", "utf16", "latin1", "bom", "crlf", "mixed")
    )
    at = stream.randrange(len(data) + 1)
    if kind == "cut":
        data = data[:at]
    elif kind == "flip":
        spoilt = bytearray(data)
        for _ in range(stream.choice((1, 1, 3, 20))):
            spoilt[stream.randrange(len(spoilt))] = stream.randrange(256)
        data = bytes(spoilt)
    elif kind == "insert":
        data = data[:at] + stream.choice(BYTES) * stream.choice((1, 1, 5, 2000)) + data[at:]
    elif kind == "delete":
        data = data[:at] + data[at + stream.choice((1, 2, 30)) :]
    elif kind == "swap":
        other = stream.randrange(len(data) + 1)
        low, high = sorted((at, other))
        data = data[high:] + data[low:high] + data[:low]
    elif kind == "repeat":
        data = data * stream.choice((2, 3))
    elif kind in ("utf16", "latin1"):
        text = data.decode("utf-8", "replace") + "é"
        data = text.encode("utf-16") if kind == "utf16" else text.encode("latin-1", "replace")
    elif kind == "bom":
        data = b"\xef\xbb\xbf" + data
    elif kind == "crlf":
        data = data.replace(b"\n", b"\r\n")
    else:
        data = data.replace(b"\n", stream.choice((b"\r", b"\n\n", b"\n \n", b"\x0b", b"\x85")))
    return kind, data


RAW: Mapping[str, bytes] = {
    "nothing": b"",
    "blank lines": b"\n\n  \n",
    "a byte order mark": b"\xef\xbb\xbf",
    "deep lists": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "deep objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "5,000 digits": b'{"prompt": "a", "answer": ' + b"9" * 5000 + b"}\n",
    "a huge exponent": b'{"prompt": "a", "answer": 1e99999}\n',
    "half a character": b'{"prompt": "a\\ud800", "answer": "1"}\n',
    "a key twice": b'{"prompt": "a", "prompt": "b", "answer": "1"}\n',
    "NaN": b'{"prompt": "a", "answer": NaN}\n',
    "single quotes": b"{'prompt': 'a'}\n",
    "a trailing comma": b'{"prompt": "a",}\n',
    "an array on a line": b'["a", "b"]\n',
    "two objects on a line": b'{"prompt": "a"} {"prompt": "b"}\n',
    "random bytes": bytes(random.Random(5).randbytes(3000)),
    "HTML": b"<!DOCTYPE html><html><body>404</body></html>",
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00",
    "a Git LFS pointer": b"version git-lfs\noid sha256:00\nsize 1\n",
    "a zip": b"PK\x03\x04" + bytes(60),
    "parquet's magic alone": b"PAR1PAR1",
    "an open quote": b'prompt,answer\n"a,1\nb,2\n',
    "a ragged table": b"prompt,answer\na\nb,2,3\n",
    "a column twice": b"prompt,prompt\na,b\n",
    "a long field": b"prompt,answer\n" + b"x" * 300_000 + b",1\n",
    "a long line": b'{"prompt": "' + b"why " * 100_000 + b'", "answer": "1"}\n',
}


def special(name: str) -> Callable[[Path], None]:
    """A path that leads to no readable file."""

    def make(path: Path) -> None:
        if name == "a folder":
            path.mkdir()
        elif name == "a pipe":
            os.mkfifo(path)
        elif name == "a device":
            path.symlink_to("/dev/zero")
        elif name == "a link to itself":
            path.symlink_to(path)
        elif name == "a link to nothing":
            path.symlink_to(path.parent / "nothing")
        elif name == "not to be read":
            path.write_bytes(b'{"prompt": "a", "answer": "1"}\n')
            path.chmod(0)
        # else: it is not there

    return make


SPECIAL = ("a folder", "a pipe", "a device", "a link to itself", "a link to nothing", "not to be read", "not there")


def files(seed: int, count: int) -> Iterator[FileCase]:
    """`count` files, each spoilt in its own way: what each reader must survive comes first."""
    stream = random.Random(f"files/{seed}")
    made = 0
    sure = [(reader, name) for name in (*RAW, *SPECIAL) for reader in READERS]
    stream.shuffle(sure)
    # at most half: the rest is for values and bytes
    for reader, name in sure[: count // 2]:
        suffix = stream.choice((".jsonl", ".jsonl", *SUFFIXES))
        data = RAW.get(name)
        if data is not None and suffix.endswith(".gz"):
            data = gzip.compress(data)
        make = special(name) if data is None else (lambda path, data=data: path.write_bytes(data))
        yield FileCase(reader, name, suffix, make, drop=stream.random() < 0.3 and reader.drops)
        made += 1
    while made < count:
        reader, suffix = stream.choice(READERS), stream.choice(SUFFIXES)
        kind, rows = (
            spoilt_rows(stream, reader) if stream.random() < 0.7 else ("nothing", [reader.row(n) for n in range(ROWS)])
        )
        content = written(rows, suffix)
        if content is None:
            continue
        known: int | None = len(rows)
        if kind == "nothing" or stream.random() < 0.2:
            damage, content = damaged(stream, content)
            kind, known = f"{kind}, {damage}", None
        yield FileCase(
            reader,
            kind,
            suffix,
            lambda path, content=content: path.write_bytes(content),  # type: ignore[misc]
            known,
            stream.random() < 0.5 and reader.drops,
        )
        made += 1


# --- settings ---------------------------------------------------------------------------------------------------------

VALUES = (
    "nan", "inf", "-inf", "1e308", "-1e308", "1e-320", "5e-324", "-0.0", "0", "-1", "1e22", "18446744073709551616",
    "9223372036854775808", "true", "false", '""', "''", "[]", "{}", "[[]]", "[nan]", "[1,2,3]", '["a","b"]',
    "{a=1}", "{a=nan}",
    "null", "None", "\u0663", "\uff11\uff12", "1_000", "0x10", "1e3", "1.5", "2020-01-01", "[1, true]", "a,b,c",
    ",", "=", "#",
    '"\\u0000"', "\ud800", "x" * 5000, "9" * 5000, "[" * 3000, "{a=" * 500, "../../etc/passwd", "/dev/zero",
    "~nobody/x", "\n1",
    "task:", "task:nope", "gym:", "hub:", "hub:a", ".", "/", "1\nsteps=2", "%s%s%n", "${HOME}", "kind", "-", "--",
    "1 2", "\x1b",
)  # fmt: skip
METHODS = ("grpo", "ppo", "sft", "dpo", "kto", "rm", "prm")


def paths_of(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a config, sections too."""
    for name, info in kind.model_fields.items():
        yield f"{prefix}{name}"
        for each in (info.annotation, *get_args(info.annotation)):
            if isinstance(each, type) and issubclass(each, BaseModel):
                yield from paths_of(each, f"{prefix}{name}.")


def keys(method: str) -> list[str]:
    """Every key that a run of the method may be given, the numbers of its objective too."""
    from whet.objective import catalogue
    from whet.training.config import config_class

    found = catalogue.method(method)
    numbers = [f"objective.{axis}.{name}" for axis, part in found.components.items() for name in part.numbers]
    return [*paths_of(config_class(method)), *numbers, *(f"objective.{axis}" for axis in found.components)]


FREE = ("data.settings.a", "data.columns.a", "objective.nope", "nope", "model.nope", "reward.parts", "a.b.c.d.e.f", "")
FLAGS = (
    ("train", "grpo", "--steps"), ("train", "grpo", "--seed"), ("train", "grpo", "--seeds"), ("train", "grpo",
    "--folder"),
    ("train", "grpo", "--model"), ("train", "grpo", "--reward"), ("train", "grpo", "--data"), ("train", "grpo",
    "--config"),
    ("bench", "--seconds"), ("bench", "--prompts"), ("bench", "--group"), ("bench", "--completion-tokens"),
    ("eval", "whetstone", "--samples"), ("eval", "whetstone", "--rerank"), ("eval",), ("sample", "whetstone", "-n"),
    ("sample", "whetstone", "--count"), ("label", "steps", "--rollouts"), ("label", "steps", "--right-from"),
    ("label", "completions", "--at-least"), ("label", "completions", "--each"),
    ("label", "steps", "--seed"), ("reward", "test", "exact_answer", "--limit"), ("reward", "test"), ("explain",),
    ("config",),
    ("pipeline", "spin", "--show", "--rounds"), ("pipeline", "spin", "--show", "--seed"), ("pipeline",), ("train",),
    ("pipeline", "overoptimization", "--show", "--set"), ("advise", "--signal", "verifiable", "--memory"), ("resume",),
    ("advise", "--signal", "verifiable", "--model-size"), ("advise", "--signal"), ("runs",), ("report",), ("compare",),
    ("reward", "version"), ("reward", "rescore"), ("reward", "review"), ("reward", "history", "--ledger"),
)  # fmt: skip


def settings(seed: int, count: int) -> Iterator[tuple[str, ...]]:
    """`count` command lines with a value that is none of the expected ones."""
    from whet.tools.pipelines.registry import PIPELINES

    stream = random.Random(f"settings/{seed}")
    known = {method: keys(method) for method in METHODS}
    staged = {name: [*paths_of(each.settings)] for name, each in PIPELINES.items()}
    for number in range(count):
        value = stream.choice(VALUES)
        if number % 4 == 0:
            yield (*stream.choice(FLAGS), value)
            continue
        if number % 4 == 1:
            name = stream.choice([*staged])
            yield ("pipeline", name, "--show", "--set", f"{stream.choice(staged[name])}={value}")
            continue
        method = stream.choice(METHODS)
        key = stream.choice((*known[method], *known[method], *FREE))
        more = ("--set", f"{stream.choice(known[method])}={stream.choice(VALUES)}") if stream.random() < 0.3 else ()
        few = () if key.startswith("data") else ("--set", "data.count=64")
        yield ("train", method, *few, "--set", f"{key}={value}", *more)


def tomls(seed: int, count: int) -> Iterator[bytes]:
    """`count` config files."""
    stream = random.Random(f"tomls/{seed}")
    known = keys("grpo")
    for _ in range(count):
        lines = [f"{stream.choice(known)} = {stream.choice(VALUES)}" for _ in range(stream.choice((1, 1, 3)))]
        content = "\n".join(lines).encode("utf-8", "surrogatepass") + b"\n"
        yield damaged(stream, content)[1] if stream.random() < 0.3 else content


# --- running a case ---------------------------------------------------------------------------------------------------


class Began(BaseException):
    """The command came as far as its first step: the case ends well."""


@dataclass
class Outcome:
    """How a command ended."""

    words: tuple[str, ...]
    code: int = 0  # 0: it began
    line: str = ""
    wrong: str = ""  # what should not have been; empty where the case holds
    counted: list[tuple[int, int, int]] = field(default_factory=list)  # (rows, values, left out) of each file read


@contextlib.contextmanager
def without_training() -> Iterator[list[tuple[int, int, int]]]:
    """Commands end where the first step begins, and one model serves them all."""
    assembly, evaluation, label, bench, rows_of, run, workbench, reward_model = (
        import_module(f"whet.{name}")
        for name in (
            *("training.assembly.assembly", "tools.evaluation.evaluation", "tools.labelling.label_files"),
            *("tools.bench.benchmark", "training.assembly.rows", "training.run_loop"),
            *("tools.workbench.workbench", "training.assembly.reward_model"),
        )
    )
    from whet.data.usable import usable
    from whet.rollout.episodes import EnvironmentRunner
    from whet.training.assembly.runtime import load_runtime
    from whet.training.config import resolved_evaluation

    shared = load_runtime(resolved_evaluation({}, {"model": {"name": "whetstone"}}))
    counted: list[tuple[int, int, int]] = []

    def runtime(config: Any, *_: Any) -> Any:
        from whet.model.load import device_choice, local_folder

        device_choice(config.model.device)
        # a hub's name would be asked for over the network; nothing here is one
        if local_folder(config.model.name) is None:
            from whet.types import WhetError

            raise WhetError(f"model {config.model.name}: not asked for here; give another")
        return shared

    def begin(*_: Any, **__: Any) -> Any:
        raise Began

    def counting(rows: Any, read: Any, drop: bool = False) -> Any:
        values = usable(rows, read, drop)
        counted.append((len(rows), len(values), sum(values.left_out.values())))
        return values

    replaced: tuple[tuple[Any, str, Any], ...] = (
        *((module, "load_runtime", runtime) for module in (assembly, evaluation, label, bench)),
        (rows_of, "usable", counting),
        (run, "run_training", begin),
        (evaluation, "run_evaluator", begin),
        (EnvironmentRunner, "play", begin),
        (label, "_open_output", begin),
        (workbench, "score", begin),
        (bench, "matrix_rate", begin),
        (reward_model, "build_reward_model", begin),  # it would change the model that the cases share
    )
    with contextlib.ExitStack() as patches:
        for module, name, instead in replaced:
            patches.enter_context(mock.patch.object(module, name, instead))
        yield counted


class TooSlow(BaseException):
    pass


@functools.cache
def command() -> Any:
    """The command line; typer would make it anew for every call."""
    import typer

    from whet.cli import app

    return typer.main.get_command(app)


def run_command(words: Sequence[str], counted: list[tuple[int, int, int]], named: str = "") -> Outcome:
    """One command, in an empty folder of its own; `named` must stand in the line that it ends with."""
    from whet.cli import _ending, _one_line

    outcome = Outcome(tuple(words))
    counted.clear()
    before = set(os.listdir("."))

    def ring(*_: Any) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            command()(list(words), standalone_mode=False)
    except (Began, SystemExit):
        pass
    except TooSlow:
        outcome.wrong = f"no end after {PATIENCE:g} s"
    except BaseException as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if _is_expected(error):
            with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
                outcome.code, line = _ending(error)
            outcome.line = _one_line(line)
            outcome.wrong = _fault_of_line(outcome, named)
        else:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            places = " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(frames))
            outcome.wrong = f"{type(error).__name__}: {str(error)[:120]!r} at {places}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    outcome.counted = list(counted)
    left = sorted(set(os.listdir(".")) - before - {"runs"})
    left += [f"runs/{each}" for each in (os.listdir("runs") if os.path.isdir("runs") else ())]
    for each in left:
        shutil.rmtree(each, ignore_errors=True) if os.path.isdir(each) else os.unlink(each)
    shutil.rmtree("runs", ignore_errors=True)
    if outcome.code and left and not outcome.wrong:
        outcome.wrong = f"left {', '.join(left)} behind"
    return outcome


def _is_expected(error: BaseException) -> bool:
    from whet.types import WhetError

    misused = hasattr(error, "format_message") and hasattr(error, "exit_code")
    return isinstance(error, WhetError) or misused or getattr(error, "errno", None) == errno.ENAMETOOLONG


def _fault_of_line(outcome: Outcome, named: str) -> str:
    line = outcome.line
    faults = (
        (outcome.code != 2, f"exit code {outcome.code}"),
        (bool(line) and len(line.splitlines()) != 1, "several lines"),
        (len(line) > LONGEST_LINE, f"a line of {len(line)} characters"),
        (bool(line) and named not in line, f"does not name {named}"),
    )
    return next((f"{words}: {line[:200]!r}" for is_so, words in faults if is_so), "")


def lost_rows(case: FileCase, outcome: Outcome) -> str:
    """What is wrong with the count of a file that was taken: each row is read, or counted as left out."""
    if outcome.code or not outcome.counted:
        return ""
    rows, values, left_out = outcome.counted[0]
    if case.rows is not None and rows != case.rows:
        return f"{case.rows} rows in the file, {rows} read"
    # a ranking may become several pairs
    return "" if values + left_out >= rows else f"{rows} rows, {values} used and {left_out} counted as left out"


def try_file(case: FileCase, folder: Path, counted: list[tuple[int, int, int]]) -> Outcome:
    """The command on the file; a row that is lost without a word is a fault too."""
    path = folder / f"data{case.suffix}"
    case.make(path)
    words = [str(path) if word == FILE else word for word in case.reader.words]
    words += ["--set", "data.unusable=drop"] if case.drop else []
    unprivileged = case.spoilt == "not to be read" and os.geteuid() == 0
    try:
        if unprivileged:
            folder.chmod(0o755)
            os.chmod(".", 0o777)
            os.seteuid(NOBODY)
        outcome = run_command(words, counted, named=path.name)
    finally:
        if unprivileged:
            os.seteuid(0)
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    outcome.wrong = outcome.wrong or lost_rows(case, outcome)
    return outcome


@contextlib.contextmanager
def empty_folders() -> Iterator[Path]:
    """A folder for the file; the process stands in another, empty one."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="whet-inputs-") as scratch:
        os.chmod(scratch, 0o755)
        place = Path(scratch) / "work"
        place.mkdir()
        (Path(scratch) / "data").mkdir()
        os.chdir(place)
        try:
            yield Path(scratch) / "data"
        finally:
            os.chdir(here)


def try_files(seed: int, count: int) -> list[tuple[FileCase, Outcome]]:
    with without_training() as counted, empty_folders() as folder:
        return [(case, try_file(case, folder, counted)) for case in files(seed, count)]


def try_settings(seed: int, count: int) -> list[Outcome]:
    with without_training() as counted, empty_folders():
        return [run_command(words, counted) for words in settings(seed, count)]


def try_tomls(seed: int, count: int) -> list[Outcome]:
    found = []
    with without_training() as counted, empty_folders() as folder:
        for content in tomls(seed, count):
            path = folder / "run.toml"
            path.write_bytes(content)
            found.append(run_command(("train", "grpo", "--config", str(path)), counted))
    return found


def try_processes(seed: int, count: int) -> list[Outcome]:
    """Files that must be refused, each by a process of its own."""
    refused = [case for case, outcome in try_files(seed, 4 * count) if outcome.code == 2 and not outcome.wrong][:count]
    found = []
    with empty_folders() as folder:
        for case in refused:
            path = folder / f"data{case.suffix}"
            if case.spoilt == "not to be read":
                continue
            case.make(path)
            words = [str(path) if word == FILE else word for word in case.reader.words]
            words += ["--set", "data.unusable=drop"] if case.drop else []
            done = subprocess.run(
                [sys.executable, "-m", "whet", *words], capture_output=True, text=True, timeout=120, check=False
            )
            outcome = Outcome(tuple(words), done.returncode, done.stderr.strip())
            outcome.wrong = _fault_of_line(outcome, path.name)
            left = os.listdir(".")
            outcome.wrong = outcome.wrong or (f"left {left}" if left else "")
            found.append(outcome)
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    return found


def row_of(what: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    wrong = Counter(outcome.wrong.partition(":")[0] for outcome in outcomes if outcome.wrong)
    note = ", ".join(f"{words} ({count})" for words, count in wrong.most_common(3))
    return {"what": what, "tried": len(outcomes), "held": len(outcomes) - sum(wrong.values()), "note": note}


def measure(full: bool) -> list[dict[str, Any]]:
    tried = try_files(0, 10_000 if full else 300)
    taken = [outcome for _, outcome in tried if not outcome.code]
    counted = [outcome for outcome in taken if outcome.counted]
    lost = [outcome for outcome in counted if "rows" in outcome.wrong]
    return [
        row_of("malformed files: read, or one line and exit 2", [outcome for _, outcome in tried]),
        {"what": "files that were read: every row used or counted", "tried": len(counted),
         "held": len(counted) - len(lost), "note": ""},
        row_of("hostile settings and options", try_settings(0, 2000 if full else 200)),
        row_of("hostile config files", try_tomls(0, 1000 if full else 50)),
        row_of("refused files, each by a process of its own", try_processes(1, 30 if full else 2)),
    ]  # fmt: skip
