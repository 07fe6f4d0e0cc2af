"""A thousand random faults over every kind of run: the same bytes as undisturbed, or one clear line.

    python -m benchmarks.trust.chaos --seconds 1500 --results   # go on where the last call stopped, for so long
    python -m benchmarks.trust.chaos --jobs 16 --results        # all that are left, on a machine with 16 cores
    python -m benchmarks.trust.chaos --fault 317                # one alone, with all that it said

Fault N is a value: its number decides the kind of run, the kind of fault and the moment. Each goes the same way. A run
in an empty folder meets with the fault. It must end in time, without a traceback; where it does not end well, in one
line of its own; and no process may be left. Then the fault is undone and the run resumed. Every file must then be the
one that the undisturbed run left, apart from wall-clock times and peak memory. Where a resume is refused, in one line
and without a change to the folder (a pipeline notes which stage failed), what made it refuse is undone and the same
must hold.

Runs are forks of this process, which has whet imported. Their folder is a small disk of its own, in a mount namespace
that only they see, so that it can be full.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:  # run as a script
    sys.path[0] = str(ROOT)

from benchmarks.trust import _moments  # noqa: E402
from benchmarks.trust._moments import ARMED, FILLER, processes_below  # noqa: E402

NUM_FAULTS = 1000
SCRATCH = Path(tempfile.gettempdir()) / "whet-chaos"
LINES = ROOT / "benchmarks" / "runs" / "trust_chaos.jsonl"
FOLDERS = re.compile(r"(?<![\w/])/(?:[\w.@~+-]+/)+")  # of the machine, in front of a file
PATIENCE = 240.0  # seconds for one command
STOPPED = 1.5  # seconds until a stopped process may go on
FEW = 24  # faults in the quick cut

# --- the kinds of runs

SMALL = ("seed=3", "report.save_every=1", "report.keep_checkpoints=2", "eval.every=2", "eval.prompts=2")
SMALL += ("data.count=6", "data.difficulty=1", "model.threads=1", "sampling.max_new_tokens=8")
GROUPS = ("batch.prompts_per_step=2", "batch.group_size=2", "reward.on_error=stop", "reward.timeout=8")
ROWS = ("batch.rows_per_step=2",)
SCORED = ("--reward", "mine.py:mine")
ARMING = '''
import ctypes, os, signal, sys, threading, time
HERE = os.path.dirname(os.path.abspath(__file__))
def meet_fault():
    """Do what was left here for this process, once."""
    if os.path.exists(HERE + "/armed.py"):
        os.rename(HERE + "/armed.py", HERE + "/fired.py")
        with open(HERE + "/fired.py") as file:  # closed: warnings may be errors by now
            code = file.read()
        exec(code, globals())
'''
REWARDS = f"""{ARMING}
def mine(completion):
    meet_fault()
    return float(sum(map(ord, completion)) % 7)
def coded(completion):
    from whet.reward.sandbox.job import ProgramJob
    from whet.reward.sandbox.pool import shared_sandbox
    meet_fault()
    (result,) = shared_sandbox(1).run([ProgramJob(f"print(sum(map(ord, {{completion!r}})) % 7)")])
    return float(result.stdout)
meet_fault()
"""
ENVIRONMENT = f'''{ARMING}
class Echo:
    """Two turns."""
    def start(self, prompt):
        self.turn = 0
    def step(self, completion):
        meet_fault()
        self.turn += 1
        if self.turn == 2:
            return float(len(completion) % 3)
        return [{{"role": "user", "content": completion[:5] + " and on"}}]
'''
PROGRAM = f"""{ARMING}
import json, urllib.request
messages = [{{"role": "user", "content": "1+1"}}]
for turn in range(2):
    meet_fault()
    body = json.dumps({{"model": "any", "messages": messages}}).encode()
    headers = {{"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        messages += [json.loads(answer.read())["choices"][0]["message"], {{"role": "user", "content": "and on"}}]
print(json.dumps({{"reward": sum(len(message["content"]) for message in messages) % 5}}))
"""


@dataclass(frozen=True)
class RunKind:
    """A run that is disturbed."""

    words: tuple[str, ...]
    settings: tuple[str, ...]
    weight: float = 1.0  # how often it is drawn
    num_ranks: int = 1
    calls: bool = False  # a reward, an environment or a program of the user is called
    engine: str = ""  # the process that writes completions, where it is another
    is_exact: bool = True  # two undisturbed runs are the same bytes
    grace: float = 20.0  # seconds that its processes may take to end after it
    setup: str = ""

    @property
    def command(self) -> list[str]:
        return [*self.words, "--folder", "run", *(word for value in self.settings for word in ("--set", value))]


def own_files(*settings: str) -> tuple[str, ...]:
    return (*(value for value in settings if not value.startswith("data.")), "eval.source=eval.jsonl")


SLOW_SAVES = """
import time
from whet.model import tensor_files
plain = tensor_files._write
def slowly(parts, file, wanted):
    time.sleep(0.15)
    return plain(parts, file, wanted)
tensor_files._write = slowly
"""
# completions are asked for when all engines are there; what one writes after a restart is noted
RESTARTS = """
from whet.training.distributed.remote_engine import RemoteEngine
plain_generate, plain_take = RemoteEngine._generate, RemoteEngine._take
def generate(self, *arguments):
    self._await(lambda: any(engine.doing == "start" and engine.call is not None for engine in self.usable()))
    return plain_generate(self, *arguments)
def take(self, engine, piece, *arguments):
    wrong = plain_take(self, engine, piece, *arguments)
    if engine.counts.restarts and not wrong:
        with open("../written_after_restart", "a") as file:
            file.write(f"{len(piece)} by {engine.name}\\n")
    return wrong
RemoteEngine._generate, RemoteEngine._take = generate, take
"""
FILES = ("train", "grpo", "--steps=3", "--data=rows.jsonl", "--model=model", *SCORED)
ONLINE = ("batch.rows_per_step=8", "preference.online=8", "data.difficulty=3", "sampling.max_new_tokens=16")
PIPELINE = ("rounds=1", "epochs=1", "data.count=8", "data.difficulty=2", "eval.prompts=2", "report.save_every=1")
PIPELINE += ("sampling.max_new_tokens=64", "train.batch.rows_per_step=4", "model.threads=1", "seed=3")
PIPELINE += ("prompts_per_round=8", "completions=6")
ASYNCHRONOUS = ("scale.max_staleness=1", "objective.mismatch=truncate", "report.samples_per_step=4")
RUNS: Mapping[str, RunKind] = {
    "GRPO": RunKind(FILES, own_files(*SMALL, *GROUPS), 2.0, calls=True),
    "PPO": RunKind(("train", "ppo", "--steps=3", *SCORED), (*SMALL, *GROUPS), calls=True),
    "sandbox": RunKind(("train", "grpo", "--steps=3", "--reward", "mine.py:coded"), (*SMALL, *GROUPS), calls=True),
    "SFT": RunKind(("train", "sft", "--steps=3"), (*SMALL, *ROWS)),
    "DPO": RunKind(("train", "dpo", "--steps=3"), (*SMALL, *ROWS)),
    "online DPO": RunKind(("train", "dpo", "--steps=3"), (*SMALL, *ONLINE)),
    "reward model": RunKind(
        ("train", "rm", "--steps=3"), (*(value for value in SMALL if not value.startswith("sampling")), *ROWS)
    ),
    "environment": RunKind(
        ("train", "grpo", "--steps=3", "--env", "echo.py:Echo"), (*SMALL, *GROUPS, "env.step_seconds=8"), calls=True
    ),
    "agent program": RunKind(
        ("train", "grpo", "--steps=3", "--agent", f"{sys.executable} program.py"),
        (*SMALL, *GROUPS, "env.seconds=20"),
        calls=True,
    ),
    "pipeline": RunKind(("pipeline", "iterative_dpo"), PIPELINE),
    "two ranks": RunKind(
        ("train", "grpo", "--steps=3", *SCORED), (*SMALL, *GROUPS, "scale.timeout=40"), num_ranks=2, calls=True
    ),
    "asynchronous": RunKind(
        ("train", "grpo", "--steps=3", *SCORED), (*SMALL, *GROUPS, *ASYNCHRONOUS), 0.5,
        calls=True, engine="writer", is_exact=False,
    ),
    "background saves": RunKind(
        ("train", "grpo", "--steps=4", *SCORED), (*SMALL, *GROUPS), calls=True, setup=SLOW_SAVES
    ),
    "Ray": RunKind(
        ("train", "grpo", "--steps=4", *SCORED), (*SMALL, *GROUPS, "scale.engines=2", "scale.timeout=60"), 0.15,
        calls=True, engine="engine", grace=150.0, setup=RESTARTS,
    ),
}  # fmt: skip


def write_inputs(kind: RunKind, work: Path) -> None:
    """Rows, eval rows, a model folder, a reward, an environment and a program."""
    import whet.model.load as models

    for name, first in (("rows.jsonl", 1), ("eval.jsonl", 11)):
        rows = [{"prompt": f"{number}+{number}=", "answer": str(2 * number)} for number in range(first, first + 6)]
        (work / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("mine.py", REWARDS), ("echo.py", ENVIRONMENT), ("program.py", PROGRAM)):
        (work / name).write_text(text)
    if "--model=model" in kind.words:
        shutil.copytree(models.BUILTIN / "whetstone", work / "model")


# --- the kinds of faults

# what a call of the user's code does
MISDEEDS = (
    "import torch; torch.set_grad_enabled(False)",
    "import torch; torch.inference_mode().__enter__()",
    "import torch; torch.set_default_dtype(torch.float16)",
    "import torch; torch.set_default_device('meta')",
    "os.chdir('/')",
    "sys.stdout.close(); os.close(1)",
    "sys.stderr.close()",
    "sys.stdout = None",
    "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "import warnings; warnings.simplefilter('error')",
    "os.environ.clear()",
    "os.umask(0o777)",
    "import random; random.seed(1)",
    "import torch; torch.manual_seed(1)",
    "os._exit(0)",
    "sys.exit(0)",
    "ctypes.string_at(0)",
    "os.abort()",
    "raise type('Own', (BaseException,), {})('mine')",
    "raise type('Own', (Exception,), {'__str__': None})",
    "f = lambda: f(); f()",
    "threading.Thread(target=time.sleep, args=(999,)).start()",
    "bytearray(1 << 42)",
    "raise KeyboardInterrupt",
    "import gc, torch; [p.data.fill_(float('nan')) for m in gc.get_objects() if isinstance(m, torch.nn.Linear)"
    " for p in m.parameters()]",
)
HANGS = (
    "time.sleep(10**6)",
    "while True: pass",
    "threading.Event().wait()",
    "ctypes.CDLL(None).sleep(10**6)",  # in compiled code, where nothing interrupts it
    "ctypes.PyDLL(None).sleep(10**6)",  # the same, and no other thread may run
    "while True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass",
)
AHEAD = (-10 * 365 * 86400, -86400, -3600, 3600, 86400, 10 * 365 * 86400)
MEMORY_ERRORS = ("MemoryError", "torch out of memory", "allocator")


def damage_bit(file: Path, stream: random.Random) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[stream.randrange(len(data))] ^= 1 << stream.randrange(7)
    file.write_bytes(bytes(data))


def damage_type(file: Path, stream: random.Random) -> None:
    file.unlink()
    file.mkdir()


DAMAGES: Mapping[str, Callable[[Path, random.Random], Any]] = {
    "a bit flipped": damage_bit,
    "cut": lambda file, stream: file.write_bytes(file.read_bytes()[: stream.randrange(file.stat().st_size + 1)]),
    "deleted": lambda file, stream: file.unlink(),
    "emptied": lambda file, stream: file.write_bytes(b""),
    "a folder instead": damage_type,
    "random bytes": lambda file, stream: file.write_bytes(stream.randbytes(500)),
    "deep JSON": lambda file, stream: file.write_bytes(b"[" * 100_000 + b"\n"),
}


def _replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(work: Path) -> None:
        text = (work / name).read_text()
        assert old in text, (name, old)
        (work / name).write_text(text.replace(old, new, 1))

    return change


def _turn_a_weight(work: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = work / "model" / "model.safetensors"
    weights = load_file(str(file))
    weights[sorted(weights)[0]].view(-1)[0] += 0.5
    save_file(weights, str(file), {"format": "pt"})


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def _turn_lines(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(True)[::-1]))


# what is changed before a resume -> (how, what the refusal must name)
CHANGES: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "an answer of the data": (_replaced("rows.jsonl", '"answer": "2"', '"answer": "3"'), "data rows.jsonl"),
    "a prompt of the data": (_replaced("rows.jsonl", "2+2=", "2+3="), "data rows.jsonl"),
    "a row more": (lambda work: _append(work / "rows.jsonl", '{"prompt": "1+2=", "answer": "3"}\n'), "data rows.jsonl"),
    "the order of the rows": (lambda work: _turn_lines(work / "rows.jsonl"), "data rows.jsonl"),
    "the eval rows": (_replaced("eval.jsonl", "11+11=", "11+12="), "eval data eval.jsonl"),
    "a weight of the model": (_turn_a_weight, "model model"),
    "the model's config": (_replaced("model/config.json", '_eps": 1e-0', '_eps": 2e-0'), "model model"),
    "the model's tokenizer": (lambda work: _append(work / "model/tokenizer.json", "\n"), "model model"),
    "the reward's file": (_replaced("mine.py", "% 7", "% 5"), "mine.py"),
    "the seed": (_replaced("run/config.toml", "seed = 3", "seed = 4"), "seed"),
    "the group size": (_replaced("run/config.toml", "group_size = 2", "group_size = 4"), "group_size"),
    "the temperature": (_replaced("run/config.toml", "temperature = 1.0", "temperature = 0.5"), "temperature"),
    "the reward's weight": (_replaced("run/config.toml", "weight = 1.0", "weight = 2.0"), "reward"),
}

Options = dict[str, Any]


def _kill(stream: random.Random, run: RunKind) -> Options:
    return {"how": "kill", "who": stream.choice(("trainer", "any"))}


def _stop(stream: random.Random, run: RunKind) -> Options:
    return {"how": "stop", "who": stream.choice(("trainer", "any", "all"))}


def _signals(stream: random.Random, run: RunKind) -> Options:
    numbers = [int(stream.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))] * stream.choice((1, 1, 2))
    return {"how": "signal", "who": stream.choice(("trainer", "trainer", "all")), "signals": numbers}


def _hang(stream: random.Random, run: RunKind) -> Options:
    return {"how": "arm", "code": stream.choice(HANGS)}


def _misdeed(stream: random.Random, run: RunKind) -> Options:
    return {"how": "arm", "code": stream.choice(MISDEEDS), "early": stream.random() < 0.1}


def _memory(stream: random.Random, run: RunKind) -> Options:
    if stream.random() < 0.5:
        return {"how": "error", "error": stream.choice(MEMORY_ERRORS)}
    return {"how": "little memory", "bytes": stream.choice((0, 1 << 16, 1 << 20, 1 << 24))}


def _damage(stream: random.Random, run: RunKind) -> Options:
    options = {"how": "kill", "who": "trainer", "damage": stream.choice(list(DAMAGES))}
    return {**options, "in_checkpoint": stream.random() < 0.6, "least_share": 0.3}


def _change(stream: random.Random, run: RunKind) -> Options:
    return {"how": "kill", "who": "trainer", "change": stream.choice(list(CHANGES)), "least_share": 0.5}


def _lost_engine(stream: random.Random, run: RunKind) -> Options:
    return {"how": "kill", "who": run.engine}


@dataclass(frozen=True)
class FaultKind:
    """How a fault of a kind is drawn, and in which runs there can be one."""

    draw: Callable[[random.Random, RunKind], Options]
    weight: float = 1.0
    can_be: Callable[[RunKind], bool] = lambda run: True


FAULTS: Mapping[str, FaultKind] = {
    "kill -9 of any process": FaultKind(_kill, 2.0),
    "stop and continue": FaultKind(_stop),
    "signals": FaultKind(_signals),
    "a hung call of the user's code": FaultKind(_hang, can_be=lambda run: run.calls),
    "the user's code breaks its process": FaultKind(_misdeed, can_be=lambda run: run.calls),
    "a full disk": FaultKind(lambda stream, run: {"how": "full disk"}),
    "a read-only folder": FaultKind(lambda stream, run: {"how": "read-only"}),
    "a damaged file, after a kill": FaultKind(_damage, 1.5),
    "a changed input, after a kill": FaultKind(_change, can_be=lambda run: run is RUNS["GRPO"]),
    "a lost engine": FaultKind(_lost_engine, 6.0, can_be=lambda run: bool(run.engine)),
    "a jump of the clock": FaultKind(lambda stream, run: {"how": "clock jump", "ahead": stream.choice(AHEAD)}, 0.5),
    "out of memory": FaultKind(_memory),
    "few file handles": FaultKind(lambda stream, run: {"how": "few handles", "handles": stream.randrange(3)}, 0.5),
    "an error nobody expects": FaultKind(
        lambda stream, run: {"how": "error", "error": stream.choice(("input/output error", "nobody expects"))}, 0.5
    ),
    "the folder is taken away": FaultKind(
        lambda stream, run: {"how": "take away", "way": stream.choice(("moved", "replaced", "files", "log"))}, 0.5
    ),
}


@dataclass(frozen=True)
class Fault:
    """One fault, as its number decides it."""

    number: int
    run: str
    kind: str
    clock: str  # "file" or "processor"
    share: float  # of that clock's time in an undisturbed run
    drawn: float  # which process, how full, ...
    rank: int
    killed_again: float  # the resume is killed too, at this share of its time; 0: it is not
    options: Options = field(default_factory=dict)

    def order(self, whole: Mapping[str, float]) -> Options:
        """What `_moments.begin` takes."""
        moment = self.share * whole[self.clock] + (self.clock == "file")
        return {**self.options, "clock": self.clock, "moment": moment, "drawn": self.drawn}


def numbered_fault(number: int) -> Fault:
    stream = random.Random(f"whet fault {number}")
    (name,) = stream.choices(list(RUNS), [run.weight for run in RUNS.values()])
    run = RUNS[name]
    kinds = {title: fault for title, fault in FAULTS.items() if fault.can_be(run)}
    (title,) = stream.choices(list(kinds), [fault.weight for fault in kinds.values()])
    options = kinds[title].draw(stream, run)
    least = options.pop("least_share", 0.0)
    share = least + (1 - least) * stream.random()
    if options["how"] == "arm" or title == "a lost engine":
        share *= 0.5  # there must be a call after it
    again = stream.uniform(0.01, 0.9) if stream.random() < 0.15 else 0.0
    clock = stream.choice(("file", "processor"))
    if options["how"] == "error":
        clock = "file"  # no error is raised between any two instructions
    elif title == "a lost engine":
        clock = "processor"
    return Fault(number, name, title, clock, share, stream.random(), stream.randrange(run.num_ranks), again, options)


# --- what a run leaves

# wall-clock times, peak memory, and digests of records that hold such
DROPPED = {
    "started",
    "finished",
    "seconds",
    "start_up",
    "memory",
    "date",
    "timeline",
    "machine",
    "processes",
    "saving",
    "checkpoints",
}
DROPPED |= {"sha256", "size"}
RECORDS = ("run.json", "stage.json", "pipeline.json", "state.json", "manifest.json")
LOGS = ("metrics.jsonl", "samples.jsonl", "review.jsonl")
# what went wrong, the diary of rewards beside the run, and a file with a number that torch draws for every save
NOT_COMPARED = {"error.log", "rank-1.log", "rewards.jsonl", "__pycache__", ".metadata"}


def content(folder: Path, is_exact: bool = True) -> dict[str, str]:
    """Everything below a folder by its path: a digest of each file, without wall-clock times."""
    return {
        path.relative_to(folder).as_posix(): "a folder" if path.is_dir() else _digest(path, is_exact)
        for path in sorted(folder.rglob("*"))
        if not NOT_COMPARED & set(path.relative_to(folder).parts)
    }


def _digest(path: Path, is_exact: bool) -> str:
    if path.name == "report.html":
        from whet.pages.run_report import html_report
        from whet.types import WhetError

        try:
            return "as its folder" if path.read_text() == html_report(path.parent) else "not as its folder"
        except WhetError:  # a log of it is damaged
            return "of a damaged folder"
    if path.name == "pipeline.html":
        return "finished" if "finished" in path.read_text() else "unfinished"
    if path.name == "review.html":
        return "a page"
    if path.name == "samples.jsonl" and not is_exact:  # no prompt is lost or trained on twice
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return json.dumps(sorted((line["step"], line["prompt_id"]) for line in lines))
    if not is_exact:
        return "a file"
    try:
        if path.name in RECORDS:
            data = json.dumps(_timeless(json.loads(path.read_text())), sort_keys=True).encode()
        elif path.name in LOGS:
            data = json.dumps([_timeless(json.loads(line)) for line in path.read_text().splitlines()]).encode()
        else:
            data = path.read_bytes()
    except (ValueError, RecursionError):  # damaged, or being written
        data = path.read_bytes()
    return hashlib.sha256(data).hexdigest()[:16]


def _timeless(record: Any) -> Any:
    if isinstance(record, list):
        return [_timeless(part) for part in record]
    if not isinstance(record, dict):
        return record
    return {key: _timeless(value) for key, value in record.items() if key not in DROPPED}


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


# --- the laboratory


class CannotMount(Exception):
    """This machine lets nobody have a disk of his own."""


# joblib is imported by transformers where scikit-learn is installed. Its resource tracker, killed and started again, is
# told to forget a semaphore that only its predecessor knew
FORGOTTEN = re.compile(r"Traceback \(most recent call last\):\n(?:[ ].*\n)+KeyError: '/loky-[\w-]+'\n")


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    codes: tuple[int | None, ...]  # of every rank; None: it did not end in time
    output: str
    moments: tuple[Mapping[str, float], ...]  # how long it was by both clocks, for every rank
    victims: str
    struck: bool
    left: tuple[str, ...]  # processes that were still there
    cpu: float

    @property
    def code(self) -> int | None:
        if None in self.codes:
            return None
        return next((code for code in self.codes if code not in (0, -9)), self.codes[0] or self.codes[-1])

    @property
    def last_line(self) -> str:
        return next((line for line in reversed(self.output.splitlines()) if line.strip()), "")

    @property
    def wrong(self) -> str:
        """Why this is no way to end, whatever happened; or nothing."""
        if self.code is None:
            return f"does not end; last: {self.last_line[-300:]}"
        output = FORGOTTEN.sub("", self.output) if "resource tracker" in self.victims else self.output
        if "Traceback (most recent" in output:
            return f"a traceback: {self.last_line[-300:]}"
        if self.left:
            return f"left behind: {', '.join(self.left)}"
        if self.code > 0 and self.code not in (129, 130, 143) and not self.last_line.startswith("whet: "):
            return f"exit {self.code} without a line of its own: {self.last_line[-300:]}"
        return ""


@dataclass(frozen=True)
class Reference:
    content: Mapping[str, str]
    moments: tuple[Mapping[str, float], ...]


class Laboratory:
    """This process, with whet imported, forks commands; their folder is a small disk."""

    def __init__(self) -> None:
        _mount_small_disk(SCRATCH)
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans of its children become its own
        os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "300", "WHET_IMPORT_SECONDS": "5"}
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        importlib.import_module("tests.support.warm_start")
        for name in (
            "training.preference_trainer",
            "training.reward_model_trainer",
            "training.online_preference",
            "envs.serve.agent",
        ):
            importlib.import_module(f"whet.{name}")
        self.work = SCRATCH / "work"
        gc.freeze()

    def fresh(self, kind: RunKind) -> None:
        for path in SCRATCH.iterdir():
            path.unlink() if path.is_file() else shutil.rmtree(path)
        self.work.mkdir()
        write_inputs(kind, self.work)

    @functools.cache  # noqa: B019  (one laboratory)
    def reference(self, name: str) -> Reference:
        """What the undisturbed run leaves."""
        kind = RUNS[name]
        self.fresh(kind)
        result = self.whet(kind, kind.command)
        assert result.code == 0 and not result.wrong, (name, result.wrong, result.output)
        return Reference(content(self.work, kind.is_exact), result.moments)

    def whet(self, kind: RunKind, words: Sequence[str], fault: Options | None = None, rank: int = 0) -> Result:
        """Run `whet WORDS` in the folder, on all ranks; one of them meets with a fault."""
        notes = [Path(tempfile.mkdtemp(prefix="whet-chaos-notes-")) for _ in range(kind.num_ranks)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        port = _free_port() if kind.num_ranks > 1 else 0
        sys.stdout.flush()
        children = {}
        for number in range(kind.num_ranks):
            child = os.fork()
            if not child:
                self._obey(kind, words, fault if number == rank else None, number, port, notes[number])
            children[child] = number
        codes = self._wait(children, notes[rank])
        left = self._leftovers(kind.grace)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        texts = [(folder / "output").read_text(errors="replace") for folder in notes]
        moments = [json.loads(_text_of(folder / "moments") or "{}") for folder in notes]
        struck, victims = (notes[rank] / "struck").exists(), _text_of(notes[rank] / "victims")
        for folder in notes:
            shutil.rmtree(folder)
        own = [texts[rank], *(text for number, text in enumerate(texts) if number != rank)]
        return Result(codes, "\n".join(own[::-1]), tuple(moments), victims, struck, left, cpu)

    def _obey(
        self, kind: RunKind, words: Sequence[str], fault: Options | None, rank: int, port: int, notes: Path
    ) -> None:
        """Be the command; never returns."""
        os.setpgid(0, 0)
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, 0), (signal.SIGHUP, 0)):
            signal.signal(number, handler)
        if kind.num_ranks > 1:
            from whet.training.distributed.launch import rank_environment

            os.environ.update(rank_environment(rank, kind.num_ranks, "127.0.0.1", port, rank, kind.num_ranks))
        os.chdir(self.work)
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(notes / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number, file in ((0, nothing), (1, output), (2, output)):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = ["whet", *words]
        code: Any = 70
        try:
            from whet.cli import main

            exec(kind.setup, {})
            _moments.begin(fault, self.work, notes)
            main()
            code = 0
        except SystemExit as end:
            code = end.code
        raise _End(code)

    def _wait(self, children: Mapping[int, int], notes: Path) -> tuple[int | None, ...]:
        """The exit codes; who was stopped goes on after a while, and who does not end is ended."""
        codes: dict[int, int | None] = {}
        go_on, stopwatch = 0.0, Stopwatch()
        while len(codes) < len(children):
            for child in children.keys() - codes.keys():
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    codes[child] = os.waitstatus_to_exitcode(status)
            if not go_on and (notes / "stopped").exists():
                go_on = time.monotonic() + STOPPED
            if go_on and time.monotonic() > go_on:
                for process in map(int, _text_of(notes / "stopped").split()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGCONT)
                (notes / "stopped").unlink()
                go_on = 0.0
            if stopwatch.seconds() > PATIENCE:
                codes |= dict.fromkeys(children.keys() - codes.keys())
                _end_all()
            time.sleep(0.01)
        return tuple(codes[child] for child in children)

    def _leftovers(self, grace: float) -> tuple[str, ...]:
        """Processes of a run that outlive it by more than a moment; they are ended."""
        deadline = time.monotonic() + grace
        while (alive := _alive()) and time.monotonic() < deadline:
            time.sleep(0.02)
        _end_all()
        return tuple(alive.values())


class Stopwatch:
    """The seconds that the processes below this one slept or computed: not those in which others had the processor."""

    def __init__(self) -> None:
        self._looked, self._computed, self._total = time.monotonic(), 0.0, 0.0

    def seconds(self) -> float:
        now = time.monotonic()
        if now - self._looked > 1.0:
            states, computed = set[str](), 0.0
            for process in processes_below(os.getpid()):
                words = _text_of(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()
                if words:
                    states.add(words[0])
                    computed += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
            elapsed, self._looked = now - self._looked, now
            self._total += min(elapsed, max(0.0, computed - self._computed)) if "R" in states else elapsed
            self._computed = computed
        return self._total


class _End(BaseException):
    """A forked command is over: it unwinds to where this program began, and ends there as any program does."""

    def __init__(self, code: Any) -> None:
        self.code = code


def _alive() -> dict[int, str]:
    """The processes below this one; those that have ended are taken leave of."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return processes_below(os.getpid())


def _end_all() -> None:
    while alive := _alive():
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _mount_small_disk(folder: Path) -> None:
    """A disk of 64 MB that only this process and its children see."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(0x00020000 | (0 if user == 0 else 0x10000000)):
        raise CannotMount("no mount namespace for this user")
    if user != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
    folder.mkdir(exist_ok=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=64m,nr_inodes=3000"):
        raise CannotMount("a tmpfs cannot be mounted")


# --- one fault


@dataclass
class Outcome:
    """What came of a fault."""

    fault: Fault
    came: str = "wrong"  # "went on", "resumed", "refused", "stated" or "wrong"
    wrong: str = ""
    said: str = ""  # the last line of the run that met with it
    victims: str = ""
    struck: bool = True
    after_restart: int = 0  # completions that a lost engine wrote when it was back
    cpu: float = 0.0
    log: str = ""

    def line(self) -> str:
        """All that the number does not say by itself, and enough to read it."""
        own = {"number": self.fault.number, "run": self.fault.run, "kind": self.fault.kind, "came": self.came}
        said, victims = (FOLDERS.sub("", text) for text in (self.said, self.victims))
        own |= {"wrong": self.wrong, "said": said[:160], "victims": victims, "struck": self.struck}
        own |= {"file": self.fault.options.get("file", ""), "after_restart": self.after_restart}
        return json.dumps({**own, "cpu": round(self.cpu, 2)})


def begun(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("config.toml", "pipeline.toml"))


def met(lab: Laboratory, fault: Fault) -> Outcome:
    """Let a run meet with a fault, undo it, resume, and compare."""
    kind, reference, outcome = RUNS[fault.run], lab.reference(fault.run), Outcome(fault)
    lab.fresh(kind)
    if fault.options.get("early"):
        (lab.work / ARMED).write_text(fault.options["code"])

    def whet(words: Sequence[str], order: Options | None = None) -> Result:
        result = lab.whet(kind, words, order, fault.rank)
        outcome.cpu += result.cpu
        outcome.log += f"$ whet {' '.join(words)}\n{result.output}\nexit {result.codes}\n"
        outcome.wrong = outcome.wrong or result.wrong
        return result

    first = whet(kind.command, fault.order(reference.moments[fault.rank]))
    outcome.said, outcome.struck = first.last_line, first.struck
    outcome.victims = ", ".join(line.partition(" ")[2] for line in first.victims.splitlines())
    if outcome.wrong:
        return outcome
    if fault.options.get("who") == "engine" and first.code == 0:  # a restarted engine that does nothing is none
        notes = _text_of(SCRATCH / "written_after_restart").split()
        outcome.after_restart = sum(map(int, notes[::4]))
        outcome.wrong = "" if outcome.after_restart else "the engine wrote nothing after its restart"
    undo(lab.work)
    restore = hurt(lab.work, fault) if first.code != 0 else None
    came = "went on" if first.code == 0 else "resumed"
    if first.code != 0 or restore is not None:
        came = resumed(lab, fault, whet, restore, outcome) or came
    if outcome.wrong:
        return outcome
    differing = differences(reference.content, content(lab.work, kind.is_exact))
    if differing == [f"run/{fault.options.get('file')}"]:  # of an older checkpoint, which nobody needed: is it known?
        from whet.model.checkpoint import damage

        differing = [] if damage((lab.work / differing[0]).parent) else differing
    if differing and (statement := stated(lab.work, fault, outcome.log, differing)):
        outcome.came, outcome.said = "stated", statement
    elif differing:
        outcome.wrong = f"{came}, differing: {', '.join(differing[:6])}"
    else:
        outcome.came = came
    return outcome


# other bytes are no fault where the run says, in words or in its metrics, why they are others
LOST = "deleted, moved or replaced while the run was writing there, and what it held is lost"
STATEMENTS = re.compile(
    f"begins again from step 1, not as it began: .*|config changed since the run began is unknown|{LOST}"
)
COUNTED = ("failed_episodes", "ended_by_seconds", "ended_by_step_seconds", "ended_by_failed")
COUNTED += ("slow_programs", "slow_environments", "slow_starts")
REFUSED_SAVE = re.compile(r"not saved \(.*\): the run continues and tries again")
SAVES = re.compile("(.*/)?run/(checkpoints|best|run.json)")  # what a save that the system refused may cost, and no more


def stated(work: Path, fault: Fault, output: str, differing: Sequence[str]) -> str:
    """What is said of a result that is not the undisturbed one, or nothing."""
    records = "".join(path.read_text(errors="replace") for path in work.rglob("run.json") if path.is_file())
    if (statement := REFUSED_SAVE.search(output + records)) and all(map(SAVES.match, differing)):
        return statement[0]
    if statement := STATEMENTS.search(output):
        return statement[0]
    if RUNS[fault.run].words[-2] not in ("--env", "--agent"):
        return ""
    metrics = _text_of(work / "run" / "metrics.jsonl")
    return ", ".join(f"{name} is counted" for name in COUNTED if re.search(f'"{name}": [1-9]', metrics))


def resumed(
    lab: Laboratory, fault: Fault, whet: Callable[..., Result], restore: Callable[[], None] | None, outcome: Outcome
) -> str:
    """Resume a run until it is finished; "refused" where that first took an undoing."""
    kind, came, kill = RUNS[fault.run], "", fault.killed_again
    for _ in range(4):
        words = ["resume", "run"] if begun(lab.work / "run") else kind.command
        before = content(lab.work, kind.is_exact) if restore is not None and words[0] == "resume" else {}
        order = replace(fault, share=kill, options={"how": "kill", "who": "trainer"}) if kill else None
        result = whet(words, order and order.order(lab.reference(fault.run).moments[fault.rank]))
        kill = 0.0
        if outcome.wrong or result.code == 0 or (result.code == 2 and "nothing to do" in result.output):
            return came
        if order and -9 in result.codes:  # of several ranks, the others end in a line
            continue
        if result.code == 2 and LOST in outcome.log:
            return came
        if restore is None or result.code != 2:
            outcome.wrong = f"cannot be resumed: exit {result.code}: {result.last_line[-300:]}"
            return came
        changed = differences(before, content(lab.work, kind.is_exact)) if before else []
        if changed := [name for name in changed if name != "run/pipeline.json"]:
            outcome.wrong = f"a refused resume changed {', '.join(changed[:3])}"
        named = CHANGES[fault.options["change"]][1] if "change" in fault.options else ""
        if named not in result.last_line:
            outcome.wrong = f"does not name {named}: {result.last_line[-300:]}"
        restore()
        came, restore, outcome.said = "refused", None, result.last_line
    outcome.wrong = "cannot be resumed in four goes"
    return came


def undo(work: Path) -> None:
    """The machine is well again."""
    for path in [work, *work.rglob("*")]:
        if path.is_dir() or path.parent != work:
            os.chmod(path, 0o755 if path.is_dir() else 0o644)
    for path in (*work.glob(f"{FILLER}*"), *(work / name for name in (ARMED, "fired.py", "arming"))):
        path.unlink(missing_ok=True)
    moved = work.parent / "moved"
    if moved.exists():
        shutil.rmtree(work / "run", ignore_errors=True)
        shutil.move(moved, work / "run")


def hurt(work: Path, fault: Fault) -> Callable[[], None] | None:
    """What happens to the folder of a killed run; how to undo it."""
    run, options, stream = work / "run", fault.options, random.Random(f"whet damage {fault.number}")
    if not begun(run):
        return None
    saved = SCRATCH / "saved"

    def restore() -> None:
        shutil.rmtree(work)
        shutil.move(saved, work)

    if "change" in options:
        shutil.copytree(work, saved)
        CHANGES[options["change"]][0](work)
        return restore
    below = run / "checkpoints" if options.get("in_checkpoint") else run
    files = sorted(path for path in below.rglob("*") if path.is_file() and path.name != "lock")
    if "damage" not in options or not files:
        return None
    shutil.copytree(work, saved)
    file = stream.choice(files)
    options["file"] = file.relative_to(run).as_posix()
    DAMAGES[options["damage"]](file, stream)
    return restore


# --- the figures


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _text_of(path).splitlines()]


def rows(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per kind of fault and per kind of run: how many were tried, how many held, and how."""
    struck = [line for line in lines if line["struck"]]
    groups = [(kind, [line for line in struck if line["kind"] == kind]) for kind in FAULTS]
    groups += [(f"in runs of {run}", [line for line in struck if line["run"] == run]) for run in RUNS]
    return [_row(what, some) for what, some in [*groups, ("all", struck)] if some]


def _row(what: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    came = collections.Counter(line["came"] for line in lines)
    words = {"went on": "went on", "resumed": "after a resume", "refused": "refused until undone", "stated": "stated"}
    note = ", ".join(f"{came[name]} {text}" for name, text in words.items() if came[name])
    return {"what": what, "tried": len(lines), "held": len(lines) - came["wrong"], "note": note}


def measure(full: bool) -> list[dict[str, Any]]:
    """The first faults, in a process of their own; all of them take hours, which `--seconds` cuts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.jsonl"
        command = [sys.executable, "-m", "benchmarks.trust.chaos", "--lines", str(file)]
        subprocess.run([*command, "--faults", str(NUM_FAULTS if full else FEW)], cwd=ROOT, check=True)
        return rows(read_lines(file))


def run_shares(jobs: int) -> None:
    """This command in several processes, each with its share of the faults and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        shares = []
        for share in range(jobs):
            own = Path(folder, str(share))
            own.mkdir()
            command = [sys.executable, "-m", "benchmarks.trust.chaos", *sys.argv[1:], "--jobs", "1"]
            command = [word for word in command if word != "--results"] + ["--share", str(share), str(jobs)]
            shares.append(subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(own)}))
        if failed := [share.args for share in shares if share.wait()]:
            raise SystemExit(f"{len(failed)} of {jobs} processes ended in an error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", type=int, action="append", metavar="N", help="this one alone; may be repeated")
    parser.add_argument("--faults", type=int, default=NUM_FAULTS, help=f"how many in all ({NUM_FAULTS})")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no other fault after so long")
    parser.add_argument("--jobs", type=int, default=1, help="so many at once, each in a process of its own (1)")
    parser.add_argument("--share", type=int, nargs=2, default=(0, 1), help=argparse.SUPPRESS)  # of --jobs
    parser.add_argument("--lines", type=Path, default=LINES, help="where each fault appends its line")
    parser.add_argument("--results", action="store_true", help="write results/trust_chaos.json")
    chosen = parser.parse_args()
    began = time.monotonic()
    done = {line["number"] for line in read_lines(chosen.lines)}
    numbers = chosen.fault or [number for number in range(1, chosen.faults + 1) if number not in done]
    share, jobs = chosen.share
    lab: Laboratory | None = None
    if chosen.jobs > 1:
        run_shares(chosen.jobs)
        numbers = []
    for number in (number for number in numbers if number % jobs == share):
        if time.monotonic() - began > chosen.seconds:
            break
        lab = lab or Laboratory()
        fault = numbered_fault(number)
        started = time.monotonic()
        outcome = met(lab, fault)
        took = time.monotonic() - started
        if chosen.fault:
            print(outcome.log, end="")
        if not chosen.fault or chosen.lines != LINES:
            with chosen.lines.open("a") as file:
                file.write(outcome.line() + "\n")
        print(f"{number} {fault.run}, {fault.kind}: {outcome.came} {outcome.wrong} ({took:.1f} s)", flush=True)
    if chosen.results:
        from benchmarks.results_file import write_results

        lines = read_lines(chosen.lines)
        cpu = sum(line["cpu"] for line in lines) / max(1, len(lines))
        by_name = {row.pop("what"): row for row in rows(lines)}
        back = [line["after_restart"] for line in lines if line["after_restart"]]
        engines = {"restarts": len(back), "completions": sum(back)}
        values = {"tried": len(lines), "of": NUM_FAULTS, "cpu_seconds": cpu, "engines": engines, "rows": by_name}
        write_results("trust_chaos", values)


if __name__ == "__main__":
    try:
        main()
    except _End as end:  # a forked command, which ends as it would alone
        sys.exit(end.code)
