"""What a run leaves on disk: append-only logs and a summary that is replaced whole.

`metrics.jsonl` has one line per step and one per evaluation, `samples.jsonl` one line per recorded sample,
`tokens.jsonl` what became of the tokens of those samples (`whet.record.recorded_tokens`), `run.json` the summary. The
trainer stores `RunRecorder.position()` in each checkpoint and calls `cut_back` when it resumes, so a run that was
killed and resumed leaves the same lines as one that was not, but for `seconds`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from whet.record.recorded_tokens import TokenSettings, token_lines
from whet.record.run_folder import write_atomically
from whet.types import Prompt, Sample, StepReport, Turn, WhetError

logger = logging.getLogger(__name__)

METRICS, SAMPLES, TOKENS, SUMMARY = "metrics.jsonl", "samples.jsonl", "tokens.jsonl", "run.json"
CLOCKED = ("seconds", "machine")  # what no two runs share, and no digest counts
MOST_FINDINGS, LONGEST_FINDING = 50, 4000  # of a step that are read back, and characters of each
LATEST = 4e10  # seconds since 1970: no run began or ended later
# of the summary's fields that readers count on
SUMMARY_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("facts", "seconds", "before", "after", "settings"), dict),
    **dict.fromkeys(("started", "finished", "tokens", "memory"), (int, float)),
    **{"objective": list, "total_steps": int, "status": str, "title": str},
}
MOST_FAILURES = 20  # saves that failed, in the summary: the newest
LOGS = (METRICS, SAMPLES, TOKENS)


@dataclass(frozen=True)
class EvalRecord:
    """One evaluation as it is recorded."""

    step: int  # 0 is before the first step
    name: str  # "eval"
    result: Mapping[str, float]
    seconds: float
    size: int = 0  # prompts or rows behind the metrics; 0: a run of an earlier version
    scores: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of each prompt, by metric; NaN: none


class LogDigest:
    """The number of lines of a log and a digest of them; wall-clock times, which no two runs share, do not count."""

    def __init__(self) -> None:
        self._lines, self._hash = 0, hashlib.sha256()

    def add(self, line: Mapping[str, Any]) -> bytes:
        """Count the line and take it into the digest without its `seconds` and `machine`; the line as it is written."""
        text = _encoded(line)
        timeless = {name: value for name, value in line.items() if name not in CLOCKED}
        self._lines += 1
        self._hash.update(text if len(timeless) == len(line) else _encoded(timeless))
        return text

    def values(self) -> dict[str, Any]:
        """`lines` and `sha256`, as a checkpoint stores them."""
        return {"lines": self._lines, "sha256": self._hash.hexdigest()}


def cut_back(folder: Path | str, position: Mapping[str, Mapping[str, Any]]) -> None:
    """Cut the logs back to a position of `RunRecorder`; nothing is touched unless all of them hold its lines."""
    for path, end in log_ends(folder, position).items():
        if path.exists() and path.stat().st_size > end:
            with path.open("r+b") as log:
                log.truncate(end)
                os.fsync(log.fileno())


def log_ends(folder: Path | str, position: Mapping[str, Mapping[str, Any]]) -> dict[Path, int]:
    """The byte at which a recorded position ends in each log; an error where the lines are not those the run wrote."""
    ends = {}
    for name in LOGS:
        path, wanted = Path(folder) / name, position.get(name) or LogDigest().values()
        digest, end = LogDigest(), 0
        for line, end_of_line in _lines_and_ends(path, int(wanted["lines"])):
            digest.add(line)
            end = end_of_line
        actual = digest.values()
        if actual["lines"] < wanted["lines"]:
            raise WhetError(
                f"{path} has {actual['lines']} lines but the checkpoint was saved at {wanted['lines']}: lines were"
                " lost; restore the file, or start a new run in another folder"
            )
        if actual["sha256"] != wanted["sha256"]:
            raise WhetError(
                f"{path}: its lines are not those that this run wrote before its checkpoint; restore the file, or "
                "start a new run in another folder"
            )
        ends[path] = end
    return ends


class RunRecorder:
    """A callback that writes the run folder."""

    def __init__(
        self,
        folder: Path | str,
        samples_per_step: int = 1,
        reward_hash: str = "",
        tokens: TokenSettings | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        """`samples_per_step`: 0 records none, n those of a step's first n groups, its best and its worst; `tokens`: how
        their tokens are recorded, None: not at all; `beside`: files that others wrote and no run is complete without.
        """
        self._reward_hash, self._tokens, self._beside = reward_hash, tokens, beside
        if samples_per_step < 0:
            raise WhetError(f"samples_per_step is {samples_per_step}; give 0 (none) or a number of groups")
        self.folder = Path(folder)
        self.samples_per_step = samples_per_step
        self._summary: dict[str, Any] = {}
        self._logs: dict[str, BinaryIO] = {}
        self._digests: dict[str, LogDigest] = {}
        self._places: dict[Path, os.stat_result] = {}  # of the folder and the logs, where the run wrote them

    def started(self, summary: Mapping[str, Any]) -> None:
        """Make the folder and write run.json with the status "running"."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._places[self.folder] = self.folder.stat()
        self._summary = {"status": "running", "finished": None, **summary}
        replace_summary(self.folder, self._summary)

    def stepped(self, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> None:
        """Append the step's samples, its tokens and then its metrics."""
        chosen = recorded_samples(samples, self.samples_per_step)
        # metrics last: a step's line then always has its samples and tokens, whenever the process dies
        self._append(
            SAMPLES, [sample_line(report.step, prompt, sample, self._reward_hash) for prompt, sample in chosen]
        )
        if self._tokens is not None:
            self._append(TOKENS, token_lines(report.step, [sample for _, sample in chosen], self._tokens))
        self._append(METRICS, [step_line(report)])

    def evaluated(
        self,
        step: int,
        name: str,
        result: Mapping[str, float],
        seconds: float,
        size: int = 0,
        scores: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """`size` and `scores`: how many prompts there were, and what each scored; evaluations are compared by that."""
        self._append(METRICS, [eval_line(EvalRecord(step, name, result, seconds, size, scores or {}))])

    def save_failed(self, step: int, reason: str) -> None:
        """Note the refused save in the summary: the logs of equal runs must not differ by one run's disk."""
        failures = [*self._summary.get("save_failures", []), f"step {step}: {reason}"]
        self._summary["save_failures"] = failures[-MOST_FAILURES:]
        with contextlib.suppress(OSError):  # the disk is what failed: the end of the run writes it again
            replace_summary(self.folder, self._summary)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Write the summary of a finished run, last of all: whoever reads it finds everything else."""
        self._summary = {**self._summary, "status": "finished", **summary}
        self.sync()
        replace_summary(self.folder, self._summary)
        self.close()

    def sync(self) -> None:
        """Force what was appended onto the disk."""
        for log in self._logs.values():
            log.flush()
            os.fsync(log.fileno())

    def position(self) -> dict[str, dict[str, Any]]:
        """How many lines each log has, all of them on the disk, and their digest."""
        self.sync()
        return {name: self._written(name).values() for name in LOGS}

    def lost(self) -> str | None:
        """What is no longer where the run wrote it: its folder or a log was deleted, moved or replaced; else None."""
        for path, status in self._places.items():
            try:
                if not os.path.samestat(status, path.stat()):
                    return str(path)
            except OSError:
                return str(path)
        return next((str(self.folder / name) for name in self._beside if not (self.folder / name).is_file()), None)

    def close(self) -> None:
        """Close the logs without forcing them to disk (`sync` does); a later write opens them again."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def _append(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        if not lines:
            return
        if name not in self._logs:
            self._logs[name] = _open_log(self.folder / name)
            self._places[self.folder / name] = os.fstat(self._logs[name].fileno())
        digest = self._written(name)
        self._logs[name].write(b"".join([digest.add(line) for line in lines]))
        self._logs[name].flush()

    def _written(self, name: str) -> LogDigest:
        """What the log holds; read from it where another process began it."""
        if name not in self._digests:
            self._digests[name] = LogDigest()
            for line in read_lines(self.folder / name):
                self._digests[name].add(line)
        return self._digests[name]


class SilentRecorder(RunRecorder):
    """The recorder on every rank but the first: it writes nothing."""

    def started(self, summary: Mapping[str, Any]) -> None:
        pass

    def stepped(self, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> None:
        pass

    def evaluated(self, *evaluation: Any) -> None:
        pass

    def finished(self, summary: Mapping[str, Any]) -> None:
        pass

    def position(self) -> dict[str, dict[str, Any]]:
        return {}


def step_line(report: StepReport) -> dict[str, Any]:
    """A step as written to metrics.jsonl. Inner keys are sorted: equal runs write equal bytes."""
    return {
        "step": int(report.step),
        "policy_version": int(report.policy_version),
        "counts": {name: int(report.counts[name]) for name in sorted(report.counts)},
        "reward": _floats(report.reward),
        "metrics": _floats(report.metrics),
        "health": list(report.health),
        "spread": {name: _floats(values) for name, values in sorted(report.spread.items())},
        **({"timeline": [list(span) for span in report.timeline]} if report.timeline else {}),
        **({"machine": _floats(report.machine)} if report.machine else {}),
        "seconds": _floats(report.seconds),
    }


def eval_line(evaluation: EvalRecord) -> dict[str, Any]:
    """An evaluation as written to metrics.jsonl, between the steps; its key `eval` tells it from a step."""
    return {
        "step": int(evaluation.step),
        "eval": evaluation.name,
        "result": _floats(evaluation.result),
        **({"size": int(evaluation.size)} if evaluation.size else {}),
        **({"scores": _scores(evaluation.scores)} if evaluation.scores else {}),
        "seconds": _floats({"evaluate": evaluation.seconds}),
    }


def sample_line(step: int, prompt: Prompt, sample: Sample, reward_hash: str = "") -> dict[str, Any]:
    """A sample as written to samples.jsonl; a reward that is None or not finite becomes null."""
    return {
        "step": int(step),
        "prompt_id": prompt.id,
        "question": prompt.question(),
        "answer": _plain(prompt.answer),
        "completion": sample.completion,
        "stop": str(sample.stop),
        "parts": _floats(sample.parts),
        "reward": None if sample.reward is None else _finite(sample.reward),
        "tokens": sample.num_actions,
        "versions": [int(version) for version in sample.versions],
        "reward_hash": reward_hash,
        **({"extra": dict(sample.extra)} if sample.extra else {}),
        **_episode_fields(sample),
    }


def _episode_fields(sample: Sample) -> dict[str, Any]:
    """What an episode has beyond its last completion. Two equal runs disagree on `seconds` alone."""
    if not sample.turns:
        return {}
    fields: dict[str, Any] = {
        "episode": sample.episode,
        "returned": None if sample.returned is None else _finite(sample.returned),
        "turns": [_turn_fields(turn) for turn in sample.turns],
        "metrics": _floats(sample.metrics),
        "seconds": [round(turn.seconds, 4) for turn in sample.turns],
    }
    return {**fields, "role": sample.role} if sample.role else fields


def _turn_fields(turn: Turn) -> dict[str, Any]:
    """The speaker and text of a turn; other fields only where they say something."""
    fields: dict[str, Any] = {"role": turn.role, "text": turn.text, "tokens": turn.stop - turn.start}
    if turn.reward is not None:
        fields["reward"] = _finite(turn.reward)
    if turn.state is not None:
        fields["state"] = turn.state
    if turn.ended is not None:
        fields["ended"] = str(turn.ended)
    if turn.node is not None:
        fields["node"] = turn.node
    if turn.counts:
        fields["counts"] = dict(turn.counts)
    return {**fields, "errors": list(turn.errors)} if turn.errors else fields


def recorded_samples(samples: Sequence[tuple[Prompt, Sample]], samples_per_step: int) -> list[tuple[Prompt, Sample]]:
    """The samples of a step that go to samples.jsonl, in their own order; see `recorded_places` for which."""
    return [samples[index] for index in recorded_places(samples, samples_per_step)]


def recorded_places(samples: Sequence[tuple[Prompt, Sample]], samples_per_step: int) -> list[int]:
    """The indices of the samples to record: those of the first groups, and the best and the worst wherever they are."""
    if samples_per_step == 0:
        return []
    first = list(dict.fromkeys(prompt.id for prompt, _ in samples))[:samples_per_step]
    chosen = {index for index, (prompt, _) in enumerate(samples) if prompt.id in first}
    scored = [
        (float(sample.reward), -index)
        for index, (_, sample) in enumerate(samples)
        if sample.reward is not None and math.isfinite(sample.reward)
    ]
    if scored:
        chosen |= {-max(scored)[1], -min(scored, key=lambda item: (item[0], -item[1]))[1]}
    return sorted(chosen)


def replace_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write run.json so that a reader finds the old one or the new one, never half of one."""
    text = json.dumps(_plain(summary), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(folder / SUMMARY, text, durable=True)


def is_finished(folder: Path | str) -> bool:
    """Whether a run has come to its end: its summary is written last."""
    try:
        return read_summary(folder).get("status") == "finished"
    except WhetError:
        return False


def read_summary(folder: Path | str) -> dict[str, Any]:
    """run.json; raises where it is missing or damaged."""
    path = Path(folder) / SUMMARY
    try:
        return parsed_summary(path.read_bytes())
    except FileNotFoundError:
        raise WhetError(f"{folder} has no {SUMMARY}; give the folder of a run") from None
    except OSError as error:
        raise WhetError(f"{path} cannot be read ({error.strerror}); restore it, or give another run's folder") from None
    except ValueError as error:
        raise WhetError(f"{path} {error}; restore it, or give another run's folder") from None


def read_metrics(folder: Path | str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, steps and evaluations as they came; no file, no lines."""
    return list(read_lines(Path(folder) / METRICS))


def read_samples(folder: Path | str) -> list[dict[str, Any]]:
    """The lines of samples.jsonl in the order written; no file, no lines."""
    return list(read_lines(Path(folder) / SAMPLES))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a log. A last line without its newline was torn by a kill and is left out."""
    return (line for line, _ in _lines_and_ends(path))


def last_lines(path: Path, key: Callable[[Mapping[str, Any]], Any], block: int = 1 << 18) -> list[dict[str, Any]]:
    """The complete lines at the end of a log that have the same key, read from the end."""
    size = path.stat().st_size if path.exists() else 0
    while size:
        start = max(0, size - block)
        with path.open("rb") as log:
            log.seek(start)
            lines = log.read(size - start).split(b"\n")[:-1]  # after the last newline is nothing, or a torn line
        tail: list[dict[str, Any]] = []
        for text in reversed(lines[1:] if start else lines):
            try:
                line = json.loads(text)
            except (ValueError, AttributeError, RecursionError):
                raise WhetError(f"{path} has a line that is not a JSON object; delete it or restore the file") from None
            if tail and key(line) != key(tail[0]):
                return tail[::-1]
            tail.append(line)
        if start == 0:
            return tail[::-1]
        block *= 4
    return []


def readable_rows(path: Path, row: Callable[[dict[str, Any]], dict[str, Any] | None]) -> list[dict[str, Any]]:
    """What `row` makes of the lines of a log, None left out; a line that is damaged is passed over, with a warning."""
    rows, num_damaged = [], 0
    for where, text in raw_lines(path):
        try:
            made = row(json_object(where, text))
        except (WhetError, KeyError, TypeError, ValueError, AttributeError):
            num_damaged += 1
        else:
            rows += [] if made is None else [made]
    if num_damaged:
        lines = "1 line" if num_damaged == 1 else f"{num_damaged:,} lines"
        logger.warning("%s: %s could not be read and %s left out", path, lines, "is" if num_damaged == 1 else "are")
    return rows


def raw_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """The complete lines of a log as they are, each with its place for an error."""
    if path.exists():
        with path.open("rb") as log:
            for number, text in enumerate(log, start=1):
                if text.endswith(b"\n"):
                    yield f"{path}:{number}", text


def json_object(where: str, text: bytes) -> dict[str, Any]:
    """What a line of a log holds; `where` names it in the error."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise WhetError(f"{where} is not a JSON object; delete the line or restore the file")
    return value


def step_sums(where: str, text: bytes) -> dict[str, Any]:
    """`step`, `counts`, `health` and `seconds` of a step's line: a fifth of the time that reading all of it takes.

    Rewards and metrics, which are most of it, are passed over. A line that is not as `step_line` writes it
    is read whole.
    """
    head, reward, rest = text.partition(b', "reward": {')
    health, spread, _ = rest.rpartition(b', "health": ')[2].partition(b', "spread": {')
    seconds = text[text.rfind(b', "seconds": {') + 1 :]
    try:
        if not (reward and spread and head.startswith(b'{"step": ') and text.endswith(b"}}\n")):
            return json_object(where, text)
        return json.loads(head + b', "health": ' + health + b"," + seconds)  # type: ignore[no-any-return]
    except ValueError:
        return json_object(where, text)


def _lines_and_ends(path: Path, most: int | None = None) -> Iterator[tuple[dict[str, Any], int]]:
    """At most `most` complete lines, each with the byte at which it ends."""
    if most == 0 or not path.exists():
        return
    if not path.is_file():
        raise WhetError(f"{path} is not a file; restore the run's own")
    end = 0
    with path.open("rb") as log:
        for number, line in enumerate(log, start=1):
            if not line.endswith(b"\n"):
                return
            value = json_object(f"{path}:{number}", line)
            end += len(line)
            yield value, end
            if number == most:
                return


def step_reports(lines: Sequence[Mapping[str, Any]]) -> list[StepReport]:
    """The steps among the lines of metrics.jsonl."""
    return [known for line in lines if isinstance(known := recorded(line), StepReport)]


def eval_records(lines: Sequence[Mapping[str, Any]]) -> list[EvalRecord]:
    """The evaluations among the lines of metrics.jsonl."""
    return [known for line in lines if isinstance(known := recorded(line), EvalRecord)]


def recorded_line(text: bytes) -> StepReport | EvalRecord | None:
    """A line of metrics.jsonl as it stands there; None where it is damaged."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return recorded(line) if isinstance(line, dict) else None


def recorded(line: Mapping[str, Any]) -> StepReport | EvalRecord | None:
    """What a line of metrics.jsonl tells, of any version of whet: null comes back as NaN, and what is missing or of
    another type is left out. None where the line is neither a step nor an evaluation."""
    step = line.get("step")
    if not _is_count(step):
        return None
    seconds, spread = _numbers(line.get("seconds")), line.get("spread")
    if "eval" in line:
        name, size, scores = line["eval"], line.get("size"), line.get("scores")
        if not isinstance(name, str):
            return None
        listed = {key: _numbers_in(values) for key, values in scores.items()} if isinstance(scores, dict) else {}
        took = seconds.get("evaluate", 0.0)
        return EvalRecord(step, name, _numbers(line.get("result")), took, size if _is_count(size) else 0, listed)
    counts = {name: int(value) for name, value in _numbers(line.get("counts")).items() if math.isfinite(value)}
    version, health, timeline = line.get("policy_version"), line.get("health"), line.get("timeline")
    findings = health[:MOST_FINDINGS] if isinstance(health, list) else []
    return StepReport(
        step=step,
        policy_version=version if _is_count(version) else 0,
        counts=counts,
        reward=_numbers(line.get("reward")),
        metrics=_numbers(line.get("metrics")),
        health=tuple(str(finding)[:LONGEST_FINDING] for finding in findings),
        seconds=seconds,
        spread={name: _numbers(values) for name, values in spread.items()} if isinstance(spread, dict) else {},
        timeline=tuple(map(tuple, filter(_is_span, timeline))) if isinstance(timeline, list) else (),
        machine=_numbers(line.get("machine")),
    )


def parsed_summary(content: bytes) -> dict[str, Any]:
    """What run.json holds; a field of another type than readers count on is left out. Raises `ValueError` with what is
    wrong where it holds no summary."""
    try:
        summary = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON: it was damaged, or is being written") from None
    if not isinstance(summary, dict):
        raise ValueError("does not hold an object")
    return {name: _checked(name, value) for name, value in summary.items() if _is_expected(name, value)}


def _is_expected(name: str, value: Any) -> bool:
    if value is None or name not in SUMMARY_TYPES:
        return True
    fits = isinstance(value, SUMMARY_TYPES[name])
    return fits and (name not in ("started", "finished") or 0 < value < LATEST)


def _checked(name: str, value: Any) -> Any:
    if name not in ("seconds", "before", "after") or value is None:
        return value
    return {key: _finite(number) for key, number in _numbers(value).items()}


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**53


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def _is_span(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and all(map(_is_number, value[1:]))


def _numbers(values: Any) -> dict[str, float]:
    """The numbers of an object, by name; null is NaN."""
    if not isinstance(values, dict):
        return {}
    if set(map(type, values.values())) == {float}:  # nearly always
        return values
    known = {name: value for name, value in values.items() if value is None or _is_number(value)}
    return {name: math.nan if value is None else value for name, value in known.items()}


def _numbers_in(values: Any) -> list[float]:
    """What each prompt scored, NaN where it could not be scored; empty where these are not scores."""
    if not isinstance(values, list) or not all(value is None or type(value) in (int, float) for value in values):
        return []
    return [value if value is not None and _is_number(value) else math.nan for value in values]


def _open_log(path: Path) -> BinaryIO:
    """Open for appending, first cutting a torn last line so that the next line does not grow onto it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with path.open("r+b") as log:
            log.truncate(complete_bytes(log))
    return path.open("ab")


def complete_bytes(log: BinaryIO, block: int = 1 << 16) -> int:
    """The length up to and with the last newline."""
    end = log.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - block)
        log.seek(start)
        newline = log.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _encoded(line: Mapping[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=False, allow_nan=False)
    # a lone surrogate cannot be UTF-8; its backslash form is the JSON escape of the same character
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _finite(value: float) -> float | None:
    value = float(value)
    return value if math.isfinite(value) else None


def _floats(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _finite(values[name]) for name in sorted(values)}


def _scores(scores: Mapping[str, Sequence[float]]) -> dict[str, list[float | None]]:
    """What each prompt scored. A right or wrong answer is 1 or 0, two characters of the log."""
    return {
        name: [int(score) if score in (0, 1) else _finite(score) for score in scores[name]] for name in sorted(scores)
    }


def _plain(value: Any) -> Any:
    """The value in JSON's own types; what JSON does not know becomes its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return str(value)
