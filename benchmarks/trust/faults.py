"""Faults in a run: rewards that break the process, signals, full disks, read-only folders, few file handles.

Each is tried in a process of its own: one that has imported the package forks, and the child is the command line from
there on. A fault comes from the reward's file, or from a few lines that run before the command and make the fault
happen at a chosen file-system event (`at`), so nothing depends on the clock.

A fault is survived when the exit code is the expected one, standard error holds no traceback and the line that says
what happened, the run folder says what became of the run, and every checkpoint in it is whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds for one run
SETTINGS = (
    *("--steps", "3", "--seed", "1", "--folder", "run"),
    *("--set", "report.save_every=1", "--set", "eval.prompts=4", "--set", "eval.every=0", "--set", "data.count=20"),
    *("--set", "model.threads=1", "--set", "sampling.max_new_tokens=8"),
    *("--set", "batch.prompts_per_step=2", "--set", "batch.group_size=4"),
)
TRAIN = ("train", "grpo", *SETTINGS, "--reward", "mine.py:mine")
PLAIN = "def mine(completion):\n    return float(sum(map(ord, completion)) % 7)\n"

# Runs before the command; `at(test, action)` acts on the first audit event for which test(event, arguments) is true.
PRELUDE = '''
import errno, os, resource, signal, sys, threading
_acts = []
def _hook(event, arguments):
    for act in list(_acts):
        if act[0](event, arguments):
            _acts.remove(act)
            act[1]()
sys.addaudithook(_hook)
def at(test, action):
    _acts.append((test, action))
def opens(name, mode="wa+x"):
    return lambda event, a: (
        event == "open" and str(a[0]).endswith(name) and (not mode or any(c in (a[1] or "") for c in mode))
    )
def imports(name):
    return lambda event, a: event == "import" and a[0] == name
def send(number):
    return lambda: os.kill(os.getpid(), number)
_seen = [0]
WRITES = ("os.rename", "os.mkdir", "os.remove", "os.truncate", "os.rmdir", "shutil.rmtree")
def event_number(wanted):
    """The so-many-th event that changes the run folder."""
    def test(event, a):
        path = str(a[0]) if a else ""
        changes = event in WRITES or (event == "open" and any(c in (a[1] or "") for c in "wa+x"))
        if changes and "run" in path:
            _seen[0] += 1
            return _seen[0] == wanted
        return False
    return test
def mount_small_disk(size):
    """A disk of this size where the run folder will be, seen by this process only."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(0x00020000 | (0 if user == 0 else 0x10000000)):
        raise SystemExit(77)
    if user != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
    os.makedirs("disk", exist_ok=True)
    if libc.mount(b"tmpfs", b"disk", b"tmpfs", 0, size.encode()):
        raise SystemExit(77)
def fill_disk():
    with open("disk/filler", "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            pass
        try:
            while file.write(b"x"):
                pass
        except OSError:
            pass
def use_up_files():
    try:
        for number in range(1 << 20):
            open(f"disk/filler{number}", "wb").close()
    except OSError:
        pass
def heed_permissions():
    """Give up what lets root write into a folder that is read-only."""
    import ctypes, struct
    libc, header, data = ctypes.CDLL(None), struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    libc.capget(header, data)
    words = [word & ~0b110 if place < 2 else word for place, word in enumerate(struct.unpack("6I", data.raw))]
    libc.capset(header, struct.pack("6I", *words))
'''

ZYGOTE = """
import faulthandler, gc, json, os, signal, sys, time
import torch, transformers
import whet.cli, whet.api.training, whet.training.assembly.assembly, whet.training.run, whet.pages.run_report
import whet.tools.workbench.workbench
import whet.training.assembly.rl, whet.training.rl, whet.training.update
import whet.tools.evaluation.evaluation
import whet.tools.bench.benchmark, whet.pages.review, math_verify
from transformers.models.llama import modeling_llama
torch.set_num_threads(1)
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        # a shell that starts this in the background, or nohup, has them ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.chdir(asked["folder"])
        for number, name in ((0, os.devnull), (1, "stdout.txt"), (2, "stderr.txt")):
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout, sys.stderr = (open(n, m) for n, m in ((0, "r"), (1, "w"), (2, "w")))
        sys.path.insert(0, os.getcwd())
        sys.argv = ["whet", *asked["words"]]
        made = {"__name__": "prelude"}
        exec(compile(asked["prelude"], "prelude", "exec"), made)
        try:
            whet.cli.main()
        finally:
            made.get("after", lambda: None)()
    deadline, ended, status = time.monotonic() + asked["patience"], 0, 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.005)
    if not ended:
        os.killpg(child, 9)
        os.waitpid(child, 0)
    print(json.dumps({"code": os.waitstatus_to_exitcode(status) if ended else None}), flush=True)
"""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong in a run, and what must come of it."""

    name: str
    reward: str = PLAIN  # mine.py
    before: str = ""  # runs in the process before the command, after PRELUDE
    words: tuple[str, ...] = TRAIN
    codes: tuple[int, ...] = (1,)
    said: str = ""  # a pattern in standard error
    status: tuple[str, ...] = ("failed",)  # "": no run folder
    leaves: bool = False  # what a run that did no step wrote cannot be removed
    lines: int = 1  # of the command's own in standard error
    check: Callable[[Path], str] | None = None  # more that must hold in the folder: what does not, or ""
    resumes: bool = False  # with the fault gone, `whet resume` must bring the run to its end
    quick: bool = False  # in the quick cut


@dataclass
class Outcome:
    code: int | None
    errors: str
    output: str
    complaints: list[str] = field(default_factory=list)


class Forker:
    """A process with the package imported, which forks one child per fault."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._answer() == "ready"

    def run(self, folder: Path, words: Sequence[str], before: str = "") -> Outcome:
        for name in ("stdout.txt", "stderr.txt"):
            (folder / name).unlink(missing_ok=True)
        asked = {"folder": str(folder), "words": list(words), "prelude": PRELUDE + before, "patience": PATIENCE}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        code = json.loads(self._answer())["code"]
        _await_watcher(folder)
        read = [(folder / name).read_text(errors="replace") for name in ("stderr.txt", "stdout.txt")]
        return Outcome(code, *read)

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


def _await_watcher(folder: Path) -> None:
    """Who watches a process that is gone needs a moment to say so."""
    journal = folder / "run" / "scoring.txt"
    deadline = time.monotonic() + 5
    while journal.exists() and "without a word" not in (folder / "stderr.txt").read_text(errors="replace"):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)


@contextmanager
def forker() -> Iterator[Forker]:
    one = Forker()
    try:
        yield one
    finally:
        one.close()


def survives(one: Forker, fault: Fault, folder: Path) -> Outcome | None:
    """Try a fault in an empty folder; its complaints are what did not hold. None: it cannot be made here."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(fault.reward)
    outcome = one.run(folder, fault.words, fault.before)
    if outcome.code == 77:
        return None
    complaints = outcome.complaints
    if outcome.code not in fault.codes:
        complaints.append(f"exit code {outcome.code}, not {' or '.join(map(str, fault.codes))}")
    if "Traceback" in outcome.errors:
        complaints.append("a traceback")
    if not re.search(fault.said, outcome.errors):
        complaints.append(f"nothing said like {fault.said!r}")
    if outcome.code not in (0, None) and outcome.errors.count("whet: ") != fault.lines:
        complaints.append(f"{outcome.errors.count('whet: ')} lines of the command's own, not {fault.lines}")
    complaints += _folder_complaints(folder, fault)
    if fault.resumes and (folder / "run" / "config.toml").exists():
        again = one.run(folder, ["resume", "run"])
        if again.code != 0 and "nothing to do" not in again.errors:
            complaints.append(f"cannot be resumed: {again.errors[-300:]}")
    return outcome


def _folder_complaints(folder: Path, fault: Fault) -> list[str]:
    from whet.api.run import Run
    from whet.model.checkpoint import damage
    from whet.model.run_models import complete_checkpoints

    run = folder / "run"
    status = Run(run).status if (run / "run.json").exists() else ""
    complaints = [] if status in fault.status else [f"status {status!r}, not {' or '.join(map(repr, fault.status))}"]
    if status == "" and not fault.leaves and run.exists() and any(run.iterdir()):
        complaints.append(f"left behind: {sorted(path.name for path in run.iterdir())}")
    complaints += [
        f"{path.name}: {found}" for path in complete_checkpoints(run / "checkpoints") if (found := damage(path))
    ]
    if fault.check is not None and (found := fault.check(folder)):
        complaints.append(found)
    return complaints


def late(line: str) -> str:
    """A reward that does this in its 20th call."""
    return (
        "import ctypes, os, signal, sys, threading, time, torch\ncalls, HERE = 0, os.path.abspath('elsewhere')\n"
        "def mine(completion):\n    global calls\n"
        f"    calls += 1\n    if calls >= 20:\n        {line}\n    return float(sum(map(ord, completion)) % 7)\n"
    )


def changed_weights(folder: Path) -> str:
    """Training did something: a gradient in every step."""
    steps = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    norms = [step["metrics"]["gradient_norm"] for step in steps if "metrics" in step]
    return "" if norms and all(norms) else f"gradient norms {norms}"


def one_folder(folder: Path) -> str:
    elsewhere = [path.name for path in (folder / "elsewhere").iterdir()] if (folder / "elsewhere").exists() else []
    return f"the run wrote elsewhere: {elsewhere}" if elsewhere else changed_weights(folder)


def has_report(folder: Path) -> str:
    return "" if (folder / "run" / "report.html").stat().st_size > 1000 else "no report"


def has_error_log(folder: Path) -> str:
    log = folder / "run" / "error.log"
    return "" if log.exists() and "Traceback" in log.read_text() else "no traceback in error.log"


JUDGED = r"reward 'mine'.*prompt 'arithmetic/train/\d+', completion '"
GONE = rf"the process is gone without a word.*{JUDGED}.*goes on from step-00000[12]"
FINISHED = {"codes": (0,), "status": ("finished",)}

REWARDS = (
    Fault("set_grad_enabled(False)", f"import torch\ntorch.set_grad_enabled(False)\n{PLAIN}", **FINISHED, quick=True,
          said="changed torch's gradient mode", check=changed_weights),
    Fault("inference mode entered", late("torch.inference_mode().__enter__()"), **FINISHED, check=changed_weights),
    Fault("default dtype", late("torch.set_default_dtype(torch.float16)"), **FINISHED, check=changed_weights),
    Fault("default device", late("torch.set_default_device('meta')"), **FINISHED, check=changed_weights),
    Fault("chdir", late("os.makedirs(HERE, exist_ok=True); os.chdir(HERE)"), **FINISHED, quick=True,
          said="changed the working directory", check=one_folder),
    Fault("closed stdout", late("sys.stdout.close(); os.close(1)"), **FINISHED, check=has_report),
    Fault("closed stderr", late("sys.stderr.close()"), **FINISHED, check=has_report),
    Fault("stdout replaced", late("sys.stdout = None"), **FINISHED, check=has_report),
    Fault("signal handlers", late("signal.signal(signal.SIGINT, signal.SIG_IGN)"), **FINISHED,
          said="changed signal handlers"),
    Fault("warnings as errors", late("import warnings; warnings.simplefilter('error')"), **FINISHED),
    Fault("environment", late("os.environ.clear()"), **FINISHED, said="changed the environment"),
    Fault("umask", late("os.umask(0o777)"), **FINISHED, check=has_report),
    Fault("os._exit(0)", late("os._exit(0)"), codes=(1, 2), said=JUDGED, quick=True),
    Fault("os._exit when imported", f"import os\nos._exit(0)\n{PLAIN}", codes=(2,), said=r"mine\.py:2", status=("",)),
    Fault("sys.exit", late("sys.exit(0)"), codes=(1, 2), said=JUDGED),
    Fault("segmentation fault", late("ctypes.string_at(0)"), codes=(-signal.SIGSEGV,), said=GONE,
          status=("interrupted",), quick=True),
    Fault("abort", late("os.abort()"), codes=(-signal.SIGABRT,), said=GONE, status=("interrupted",)),
    Fault("killed", late("os.kill(os.getpid(), 9)"), codes=(-9,), said=GONE, status=("interrupted",)),
    Fault("a class of its own", "class Own(BaseException): pass\n" + late("raise Own('mine')"), codes=(1, 2),
          said=rf"raised Own: mine at .*mine\.py:\d+ on {JUDGED.partition('.*')[2]}"),
    Fault("an error without a message", "class Own(Exception):\n    def __str__(self): raise ValueError\n"
          + late("raise Own"), codes=(1, 2), said=JUDGED),
    Fault("endless recursion", late("mine(completion)"), codes=(1, 2), said=JUDGED),
    Fault("a thread that never ends", late("threading.Thread(target=time.sleep, args=(999,)).start()"), **FINISHED,
          said="left a thread running.*|ended without waiting for threads"),
    Fault("memory", late("bytearray(1 << 42)"), codes=(1, 2), said=rf"MemoryError.*{JUDGED.partition('.*')[2]}"),
    Fault("leaks 3 GB", "kept = []\n" + late("kept.append(bytearray(b'x') * (3 << 27))").replace(">= 20", "% 8 == 0"),
          **FINISHED, said=r"reward 'mine' has grown the process by \d"),
    Fault("prepare fails", f"{PLAIN}def prepare():\n    raise OSError('no model')\nmine.prepare = prepare\n",
          codes=(2,), said=r"`prepare` raised OSError: no model at .*mine\.py:4", status=("",)),
)  # fmt: skip

WEIGHTS = (
    Fault("weights that are not finite", before="import sys\nrl = sys.modules['whet.training.rl']\n"
          "_real = rl.RLTrainer.step\ndef step(self, number, timer):\n    done = _real(self, number, timer)\n"
          "    if number == 2:\n        next(self.model.parameters()).data[0] = float('nan')\n    return done\n"
          "rl.RLTrainer.step = step\n", quick=True,
          said=r"step 2: the weight model\.\S+ is not finite.*goes on from step-000001"),
    Fault("learning rate 1e30", words=(*TRAIN, "--set", "optimizer.learning_rate=1e30"), said="not finite"),
    Fault("learning rate 1e308", words=(*TRAIN, "--set", "optimizer.learning_rate=1e308"), codes=(1, 2),
          said="not finite|learning_rate", status=("failed", "")),
    Fault("frozen in its own code", before="import sys\nu = sys.modules['whet.training.update']\n_real = u.token_logp\n"
          "def frozen(*a, **k):\n    import dataclasses, torch\n    s = _real(*a, **k)\n"
          "    return dataclasses.replace(s, logp=s.logp.detach())\nu.token_logp = frozen\n",
          said="step 1: the gradient is zero although the advantages are not", status=("",)),
    Fault("an error nobody expects", before="import sys\nrl = sys.modules['whet.training.rl']\n"
          "_real = rl.RLTrainer.step\n"
          "def step(self, number, timer):\n    if number == 3:\n        raise KeyError('surprise')\n"
          "    return _real(self, number, timer)\nrl.RLTrainer.step = step\n",
          said=r"unexpected KeyError: 'surprise' at .*; the traceback is in run/error\.log; "
          r"`whet resume run` goes on from step-000002", check=has_error_log, quick=True),
)  # fmt: skip


def stops(name: str, number: int, where: str, status: tuple[str, ...], said: str, again: bool = False, **more) -> Fault:
    action = f"send({int(number)})"
    before = f"at({where}, {action})\n"
    if again:
        before = f"at({where}, lambda: ({action}(), {action}()))\n"
    return Fault(name, before=before, codes=(128 + number,), status=status, said=said, **more)


NAMES = {number: signal.Signals(number).name for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
STOPPED = "stopped by (Ctrl-C|SIG).*nothing was changed"
SIGNALS = tuple(
    stops(f"{name} {when}", number, where, ("",), STOPPED, quick=quick and name == "SIGTERM")
    for number, name in NAMES.items()
    for when, where, quick in (
        ("in start-up", "opens('lock')", True),
        ("when the config is written", "opens('.config.toml')", False),
        ("before the first step", "opens('scoring.txt', '')", False),
    )
)
GRACEFUL = tuple(
    Fault(f"{name} {when}", before=f"at({where}, send({int(number)}))\n", codes=codes, status=status, lines=0,
          check=has_report, quick=quick and name == "SIGHUP")
    for number, name in NAMES.items()
    for when, where, codes, status, quick in (
        ("in a step", "opens('samples.jsonl')", (130,), ("interrupted",), True),
        ("while saving", "opens('state.json')", (130,), ("interrupted",), False),
        ("in the last writes", "opens('.report.html')", (0,), ("finished",), False),
    )
)  # fmt: skip
TWICE = tuple(
    stops(f"two {signal.Signals(number).name} while saving", number, "opens('state.json')", ("interrupted",),
          "stopped by (Ctrl-C|SIG).*`whet resume run`", again=True, quick=number == signal.SIGINT)
    for number in (signal.SIGINT, signal.SIGTERM)
)  # fmt: skip

NUM_EVENTS = 72  # file-system events of the run, about
SMALL_DISK = """
mount_small_disk({options!r})
def after():
    import glob, shutil
    for path in glob.glob("disk/filler*"):
        os.unlink(path)
    if os.path.exists("disk/run"):
        shutil.copytree("disk/run", "run", dirs_exist_ok=True)
"""
ON_DISK = tuple("disk/run" if word == "run" else word for word in TRAIN)


def full_disk(number: int, full: bool) -> Fault:
    return Fault(
        f"full from event {number} on",
        before=SMALL_DISK.format(options="size=48m") + f"at(event_number({number}), fill_disk)\n",
        words=ON_DISK,
        codes=(0, 1, 2),  # 0 where nothing that came later needed room
        said=r"No space left|cannot write|^\s*$",
        status=("failed", "interrupted", "finished", ""),
        resumes=full,
    )


def no_inodes(number: int, full: bool) -> Fault:
    return Fault(
        f"no inodes from event {number} on",
        before=SMALL_DISK.format(options="size=48m,nr_inodes=300") + f"at(event_number({number}), use_up_files)\n",
        words=ON_DISK,
        codes=(0, 1, 2),
        said=r"No space left|cannot write|^\s*$",
        status=("failed", "interrupted", "finished", ""),
        resumes=full,
    )


def read_only(number: int) -> Fault:
    act = "lambda: [os.chmod(p, 0o555) for p in ('run', 'run/checkpoints') if os.path.exists(p)]"
    return Fault(
        f"read-only from event {number} on",
        before=f"heed_permissions()\nat(event_number({number}), {act})\n"
        "def after():\n    [os.chmod(p, 0o755) for p in ('run', 'run/checkpoints') if os.path.exists(p)]\n",
        codes=(1, 2),
        said=r"Permission denied|cannot write",
        status=("failed", "interrupted", "finished", ""),
        leaves=True,
    )


def few_handles(number: int) -> Fault:
    return Fault(
        f"{number} file handles",
        before=f"resource.setrlimit(resource.RLIMIT_NOFILE, ({number}, {number}))\n",
        codes=(0, 1, 2),
        said=r"ulimit -n|Too many open files|^\s*$",
        status=("finished", "failed", ""),
    )


def disks(full: bool) -> list[Fault]:
    return [full_disk(number, full) for number in (range(1, NUM_EVENTS, 4) if full else (30,))]


def inodes(full: bool) -> list[Fault]:
    return [no_inodes(number, full) for number in (range(2, NUM_EVENTS, 12) if full else (26,))]


def folders(full: bool) -> list[Fault]:
    return [read_only(number) for number in (range(8, NUM_EVENTS - 20, 6) if full else (30,))]


def handles(full: bool) -> list[Fault]:
    return [few_handles(number) for number in ((7, 8, 9, 10, 11, 12, 14, 20) if full else (8,))]


def measure(full: bool) -> list[dict]:
    """Every kind of fault, tried and survived."""
    with tempfile.TemporaryDirectory(prefix="whet-faults-") as scratch, forker() as one:
        return [_row(one, what, faults(full), Path(scratch)) for what, faults in KINDS.items()]


def _row(one: Forker, what: str, faults: Sequence[Fault], scratch: Path) -> dict:
    tried, broken = 0, []
    for number, fault in enumerate(faults):
        folder = scratch / f"{what.replace(' ', '-')}-{number}"
        outcome = survives(one, fault, folder)
        if outcome is not None:
            tried += 1
            if outcome.complaints:
                broken.append(f"{fault.name}: {'; '.join(outcome.complaints)}")
        shutil.rmtree(folder, ignore_errors=True)
    return {"what": what, "tried": tried, "held": tried - len(broken), "note": " | ".join(broken[:3])}


def chosen(faults: Sequence[Fault]) -> Callable[[bool], list[Fault]]:
    return lambda full: [fault for fault in faults if full or fault.quick]


KINDS: dict[str, Callable[[bool], list[Fault]]] = {
    "rewards that break the process": chosen(REWARDS),
    "weights that diverge, and errors nobody expected": chosen(WEIGHTS),
    "signals": chosen((*SIGNALS, *GRACEFUL, *TWICE)),
    "full disks": disks,
    "no inodes left": inodes,
    "read-only folders": folders,
    "few file handles": handles,
}

if __name__ == "__main__":  # one fault by a part of its name, with what it said
    with tempfile.TemporaryDirectory(prefix="whet-faults-") as scratch, forker() as one:
        for what, faults in KINDS.items():
            for number, fault in enumerate(faults(True)):
                if not any(word in f"{what} {fault.name}" for word in sys.argv[1:] or [""]):
                    continue
                folder = Path(scratch) / f"{what.replace(' ', '-')}-{number}"
                began = time.monotonic()
                outcome = survives(one, fault, folder)
                took = time.monotonic() - began
                if outcome is None:
                    print(f"-- {fault.name}: cannot be made here")
                elif outcome.complaints:
                    print(f"NO {fault.name} ({took:.1f} s): {'; '.join(outcome.complaints)}\n{outcome.errors[-1500:]}")
                else:
                    print(f"ok {fault.name} ({took:.1f} s): {outcome.errors.strip().splitlines()[-1:]}", flush=True)
