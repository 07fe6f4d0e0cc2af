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
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trust._events import CommandResult, CommandServer

RUN = "run"
SMALL = [
    *("seed=3", "report.save_every=1", "report.keep_checkpoints=2", "eval.every=2", "eval.prompts=2"),
    *("data.count=6", "data.difficulty=1", "model.threads=1", "sampling.max_new_tokens=8"),
]
GROUPS = ["batch.prompts_per_step=2", "batch.group_size=2"]
ROWS = ["batch.rows_per_step=2"]
PIPELINE = [
    *("rounds=1", "epochs=1", "data.count=8", "data.difficulty=2", "eval.prompts=2", "report.save_every=1"),
    *("sampling.max_new_tokens=64", "train.batch.rows_per_step=4", "model.threads=1", "seed=3"),
    *("prompts_per_round=8", "completions=6"),
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
        ["train", "rm", "--steps=3"], [each for each in SMALL if not each.startswith("sampling")] + ROWS
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
    elif path.name in ("metrics.jsonl", "rewards.jsonl", "samples.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        data = json.dumps([{key: value for key, value in line.items() if key not in drop} for line in lines]).encode()
    elif path.name == "report.html":
        from whet.pages.run_report import html_report

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
        self._looks: dict[int, str] = {}

    def whet(self, *words: str, kill_at: int = 0, setup: str = "") -> CommandResult:
        return self._server.run(list(words), self.work, kill_at, setup=setup)

    def run_in(self, folder: Path, *words: str) -> CommandResult:
        return self._server.run(list(words), folder)

    def look(self, number: int) -> str:
        """What a command says of the killed run before it is damaged."""
        if number not in self._looks:
            partial_run(self)
            self._looks[number] = shown(self.whet(*LOOKS[number]).output)
        return self._looks[number]

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


# --- inputs that changed between a kill and the resume

REWARD = "def right(completion, answer):\n    return float(answer in completion) + 0.01 * len(completion)\n"
EDITED = [
    *("seed=3", "report.save_every=1", "report.keep_checkpoints=2", "eval.prompts=2", "model.threads=1"),
    *("sampling.max_new_tokens=8", "eval.source=eval.jsonl", "optimizer.learning_rate=0.0001", *GROUPS),
]
FILES = ["train", "grpo", "--steps=3", "--data=rows.jsonl", "--model=model", "--reward=mine.py:right"]
SECOND = "rename run/checkpoints/step-000002"  # the event after which a killed run has one checkpoint


def write_inputs(work: Path) -> None:
    """Rows, eval rows, a model folder and a reward file that a run reads."""
    import whet.model.load as models

    for name, first in (("rows.jsonl", 1), ("eval.jsonl", 11)):
        rows = [{"prompt": f"{number}+{number}=", "answer": str(2 * number)} for number in range(first, first + 6)]
        (work / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / "mine.py").write_text(REWARD)
    shutil.copytree(models.BUILTIN / "whetstone", work / "model")


def _replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(work: Path) -> None:
        text = (work / name).read_text()
        assert old in text, (name, old)
        (work / name).write_text(text.replace(old, new, 1))

    return change


def _turn_a_weight(work: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = work / "model" / "model.safetensors"
    weights = load_file(str(file))
    first = sorted(weights)[0]
    weights[first].view(-1)[0] += 0.5
    save_file(weights, str(file), {"format": "pt"})


# what is changed -> (how, what the refusal must name)
CHANGES: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "an answer of the data": (_replace("rows.jsonl", '"answer": "2"', '"answer": "3"'), "data rows.jsonl"),
    "a prompt of the data": (_replace("rows.jsonl", "2+2=", "2+3="), "data rows.jsonl"),
    "a row more": (lambda work: _append(work / "rows.jsonl", '{"prompt": "1+2=", "answer": "3"}\n'), "data rows.jsonl"),
    "a row less": (lambda work: _cut_last_line(work / "rows.jsonl"), "data rows.jsonl"),
    "the order of the rows": (lambda work: _turn_lines(work / "rows.jsonl"), "data rows.jsonl"),
    "the eval rows": (_replace("eval.jsonl", "11+11=", "11+12="), "eval data eval.jsonl"),
    "a weight of the model": (_turn_a_weight, "model model"),
    "the model's config": (
        _replace("model/config.json", '"rms_norm_eps": 1e-0', '"rms_norm_eps": 2e-0'),
        "model model",
    ),
    "the model's tokenizer": (lambda work: _append(work / "model/tokenizer.json", "\n"), "model model"),
    "the reward's file": (_replace("mine.py", "0.01", "0.02"), "mine.py"),
    "the learning rate": (
        _replace("run/config.toml", "learning_rate = 0.0001", "learning_rate = 0.001"),
        "learning_rate",
    ),
    "the seed": (_replace("run/config.toml", "seed = 3", "seed = 4"), "seed"),
    "the group size": (_replace("run/config.toml", "group_size = 2", "group_size = 4"), "group_size"),
    "the temperature": (_replace("run/config.toml", "temperature = 1.0", "temperature = 0.5"), "temperature"),
    "the reward's weight": (_replace("run/config.toml", "weight = 1.0", "weight = 2.0"), "reward"),
}


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def _cut_last_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(True)[:-1]))


def _turn_lines(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(True)[::-1]))


def partial_run(lab: Laboratory) -> Path:
    """A run on files of its own that was killed after its first checkpoint, and what it would have come to."""
    kept = lab.root / "partial"
    if not kept.exists():
        words = with_settings(FILES, EDITED)
        write_inputs(lab.fresh())
        whole = lab.whet(*words)
        assert whole.code == 0, whole.output
        shutil.copytree(lab.work, lab.root / "whole")
        write_inputs(lab.fresh())
        killed = lab.whet(*words, kill_at=whole.events.index(SECOND) + 1)
        assert killed.code == -9, killed.output
        shutil.copytree(lab.work, kept)
    shutil.rmtree(lab.work, ignore_errors=True)
    shutil.copytree(kept, lab.work)
    return lab.work


def is_one_line(result: CommandResult) -> bool:
    """A mistake in one line of whet's own, whatever was printed before."""
    lines = [line for line in result.output.splitlines() if line.strip()]
    return "Traceback" not in result.output and bool(lines) and lines[-1].startswith("whet: ")


def changed_input(lab: Laboratory, name: str) -> str:
    """Change one input of a killed run; what is wrong with how the resume takes it, or nothing."""
    change, named = CHANGES[name]
    change(partial_run(lab))
    before = content(lab.work)
    refused = lab.whet("resume", RUN)
    if refused.code != 2 or not is_one_line(refused):
        return f"exit {refused.code}: {last_line(refused.output)}"
    if named not in last_line(refused.output) or "--accept-changes" not in last_line(refused.output):
        return f"does not name {named}: {last_line(refused.output)}"
    if content(lab.work) != before:
        return f"a refused resume changed {differences(before, content(lab.work))[:3]}"
    accepted = lab.whet("resume", RUN, "--accept-changes")
    noted = json.loads((lab.work / RUN / "inputs.json").read_text())["changes"]
    if accepted.code != 0 or not any(named.split()[0] in each for change in noted for each in change["what"]):
        return f"not accepted, or not noted: exit {accepted.code}, {noted}, {last_line(accepted.output)}"
    return ""


def free_setting(lab: Laboratory, setting: str) -> str:
    """Resume with another value of a setting that does not decide what is trained."""
    partial_run(lab)
    resumed = lab.whet("resume", RUN, "--set", setting)
    if resumed.code != 0:
        return f"exit {resumed.code}: {last_line(resumed.output)}"
    whole = content(lab.root / "whole")
    trained = {name for name in whole if name.endswith(".safetensors") or name.endswith("samples.jsonl")}
    there = content(lab.work)
    differing = sorted(name for name in trained if name in there and whole[name] != there[name])
    return f"{setting} changed {differing[:3]}" if differing else ""


FREE = ("report.keep_checkpoints=3", "eval.every=1", "report.save_every=3", "batch.micro_batch_tokens=999")


def other_directory(lab: Laboratory) -> str:
    """Resume from another working directory: relative paths start where the run was started."""
    partial_run(lab)
    elsewhere = lab.work / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "rows.jsonl").write_text('{"prompt": "another file of the same name", "answer": "0"}\n')
    resumed = lab.run_in(elsewhere, "resume", "../run")
    shutil.rmtree(elsewhere)
    if resumed.code != 0:
        return f"exit {resumed.code}: {last_line(resumed.output)}"
    differing = [name for name in differences(content(lab.root / "whole"), content(lab.work)) if "report" not in name]
    return f"differing: {differing[:4]}" if differing and differing != ["run/run.json"] else ""


# --- a folder that is taken away from under a run

TAKE_AWAY = """
import shutil, os
import whet.record.log as record
plain = record.RunRecorder.stepped
def stepped(self, report, samples):
    plain(self, report, samples)
    if report.step == 2:
        {how}
record.RunRecorder.stepped = stepped
"""
WAYS = {
    "the folder is deleted": "shutil.rmtree('run')",
    "the folder is moved": "os.rename('run', 'moved')",
    "the folder is replaced by an empty one": "os.rename('run', 'moved'); os.mkdir('run')",
    "all files are deleted": "[shutil.rmtree(p) if p.is_dir() else p.unlink() for p in list(self.folder.iterdir())]",
    "a log is deleted": "os.unlink('run/metrics.jsonl')",
    "a log is replaced": "os.rename('run/samples.jsonl', 'other'); shutil.copy('other', 'run/samples.jsonl')",
}


def taken_away(lab: Laboratory, way: str) -> str:
    lab.fresh()
    result = lab.whet(*KINDS["rl"], setup=TAKE_AWAY.format(how=WAYS[way]))
    if result.code != 1 or not is_one_line(result) or "finished" in result.output:
        return f"exit {result.code}: {last_line(result.output)}"
    summary = lab.work / RUN / "run.json"
    if summary.exists() and json.loads(summary.read_text())["status"] == "finished":
        return "ends as finished"
    is_gone = "folder" in way or "all" in way
    return "wrote into the place" if is_gone and (lab.work / RUN).exists() and list((lab.work / RUN).iterdir()) else ""


# --- damaged run folders

DAMAGES: Mapping[str, Callable[[Path, Path], None]] = {
    "cut in half": lambda file, other: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "a byte changed": lambda file, other: _turn_byte(file),
    "deleted": lambda file, other: file.unlink(),
    "emptied": lambda file, other: file.write_bytes(b""),
    "of another run": lambda file, other: shutil.copy(other, file),
    "a folder in its place": lambda file, other: (file.unlink(), file.mkdir()),
    "random bytes": lambda file, other: file.write_bytes(random.Random(str(file.name)).randbytes(500)),
    "deep JSON": lambda file, other: file.write_bytes(b"[" * 100_000 + b"\n"),
}
LOOKS = (["report", RUN], ["eval", RUN, "--set", "eval.prompts=2"], ["sample", RUN, "1+1="])


def _turn_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    if data:
        place = random.Random(file.name).randrange(len(data))
        data[place] ^= 1 << random.Random(file.name + "bit").randrange(7)
    file.write_bytes(bytes(data))


def other_run(lab: Laboratory) -> Path:
    """Another run of the same shape, with another seed."""
    kept = lab.root / "other"
    if not kept.exists():
        write_inputs(lab.fresh())
        settings = [each for each in EDITED if not each.startswith("seed")]
        words = with_settings(FILES, [*settings, "seed=5"])
        whole = lab.whet(*words, "--set", "optimizer.learning_rate=0.01")
        assert whole.code == 0, whole.output
        shutil.copytree(lab.work, kept)
    return kept


def damage_cases(lab: Laboratory) -> list[tuple[str, str]]:
    """(file, damage) of every file of a killed run but the inputs outside of its folder."""
    run = partial_run(lab) / RUN
    files = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
    return [(file, damage) for file in files for damage in DAMAGES]


def damaged(lab: Laboratory, file: str, damage: str, look: int) -> str:
    """Damage one file of a killed run, look at the run and resume it; what is wrong then, or nothing.

    Right is: the result of a run that was not damaged, or one line that says what is wrong.
    """
    undamaged = lab.look(look)
    other = other_run(lab) / RUN / file.replace("step-000001", "step-000003")
    run = partial_run(lab) / RUN
    if damage == "of another run" and not other.exists():
        return ""
    DAMAGES[damage](run / file, other)
    for words in (LOOKS[look], ["resume", RUN]):
        result = lab.whet(*words)
        if result.code not in (0, 2) or "Traceback" in result.output:
            return f"{words[0]} exit {result.code}: {last_line(result.output)}"
        if result.code == 2:
            if not is_one_line(result):
                return f"{words[0]}: more than one line: {result.output[:200]}"
            if words[0] == "resume":
                return ""
        elif words[0] in ("eval", "sample") and shown(result.output) != undamaged and "whet: " not in result.output:
            return f"{words[0]} silently gives another result"
    shutil.rmtree(lab.work / RUN / "evals", ignore_errors=True)
    differing = differences(content(lab.root / "whole"), content(lab.work))
    harmless = {f"{RUN}/lock", f"{RUN}/report.html", "rewards.jsonl"}
    if file == "inputs.json" and "unknown" in result.output:  # said so
        harmless |= {f"{RUN}/inputs.json", f"{RUN}/run.json"}
    silent = [name for name in differing if name not in harmless]
    return f"resumed to other bytes without a word: {silent[:4]}" if silent else ""


def shown(output: str) -> str:
    """What a command says about the model, without times."""
    return re.sub(r"[\d.,]+ (?:s|ms|min|tokens/s|per second)\b", "TIME", output)


# --- the figures


def tally(what: str, wrong: Sequence[str]) -> dict[str, Any]:
    found = [each for each in wrong if each]
    return {"what": what, "tried": len(wrong), "held": len(wrong) - len(found), "note": "; ".join(found[:2])}


def measure(full: bool) -> list[dict[str, Any]]:
    rows = []
    with laboratory() as lab:
        for kind in KINDS if full else ["rl"]:
            # every event of one run; of the other kinds a spread (every event of them in the slow tests: an hour)
            tried, failures = kill_failures(lab, kind, None if full and kind == "rl" else 20 if full else 12)
            what = f"kills before a file-system event, {kind}: the same bytes after a resume"
            rows.append(tally(what, [*failures, *[""] * (tried - len(failures))]))
        chosen = list(CHANGES) if full else list(CHANGES)[::5]
        what = "inputs changed before a resume: refused by name, accepted and noted when told"
        rows.append(tally(what, [_named(each, changed_input(lab, each)) for each in chosen]))
        what = "settings that do not decide the training, changed by a resume"
        rows.append(tally(what, [free_setting(lab, each) for each in FREE[: len(FREE) if full else 1]]))
        rows.append(tally("resumed from another working directory", [other_directory(lab)]))
        ways = list(WAYS) if full else list(WAYS)[:2]
        rows.append(
            tally(
                "folders and logs taken away from under a run", [_named(each, taken_away(lab, each)) for each in ways]
            )
        )
        cases = damage_cases(lab)
        picked = range(len(cases)) if full else [number - 1 for number in spread(len(cases), 8)]
        what = "damaged run folders: one line, or the right result"
        rows.append(
            tally(what, [_named(" ".join(cases[at]), damaged(lab, *cases[at], at % len(LOOKS))) for at in picked])
        )
    return rows


def _named(case: str, wrong: str) -> str:
    return f"{case}: {wrong}" if wrong else ""
