"""What a service is told of a run, and what it must be able to do. Pure, but for the services themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from whet.record.flat_rows import sample_reward, step_row
from whet.record.text import memory_text
from whet.types import is_finite_number

LONGEST_TEXT = 20_000  # characters of one message: services are no archive, samples.jsonl is
LONGEST_VALUE = 500  # characters of one setting; MLflow takes no more
QUANTILES = ("min", "q1", "median", "q3", "max")
COLUMNS = ("step", "prompt_id", "question", "answer", "completion", "reward", "parts", "stop", "tokens")


@dataclass(frozen=True)
class TrackedRun:
    """The run as a service should know it."""

    name: str  # of its folder
    title: str
    folder: Path
    settings: Mapping[str, Any]  # its config by dotted path
    facts: Mapping[str, str]
    lines: int  # of metrics.jsonl that are there already: a run that goes on
    last_step: int  # of those lines


@dataclass(frozen=True)
class TrackedStep:
    """One step as every service gets it: the names are those of `run.metrics()`."""

    step: int
    scalars: Mapping[str, float]  # what is finite
    spread: Mapping[str, Mapping[str, float]]  # of the reward and its parts: quartiles
    findings: Sequence[str]  # those that no earlier step had, as "name: sentence"
    samples: Sequence[Mapping[str, Any]]  # lines of samples.jsonl


class Tracker(Protocol):
    """A service. `maker(**settings)` makes one without touching anything; the rest may fail, and is then left out."""

    def open(self, run: TrackedRun, saved: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Begin, or go on with what `saved` names: what to keep in the run folder, and how many of the run's lines
        the service has already. Whatever it holds beyond `run.lines` must be gone, or be marked."""
        ...

    def step(self, step: TrackedStep) -> None:
        """Send one training step; steps come in order, after `open`."""
        ...

    def evaluation(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send the metrics of an evaluation made after `step`; 0 is before the first step."""
        ...

    def close(self, status: str, summary: Mapping[str, str]) -> None:
        """End; everything must have arrived when this returns."""
        ...

    @property
    def place(self) -> str:
        """The URL, path or command at which people find the run."""
        ...


def tracked_step(line: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], seen: set[str]) -> TrackedStep:
    """A line of metrics.jsonl; `seen` are the names of earlier findings, and those of this step are added."""
    row = step_row(line)
    scalars = {name: float(value) for name, value in row.items() if name != "step" and is_finite_number(value)}
    new = [text for text in line["health"] if text.partition(":")[0] not in seen]
    seen.update(text.partition(":")[0] for text in new)
    spread = {
        "reward" if name == "total" else f"reward/{name}": values
        for name, values in line.get("spread", {}).items()
        if all(is_finite_number(values.get(quantile)) for quantile in QUANTILES)
    }
    return TrackedStep(line["step"], scalars, spread, new, samples)


def eval_scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """An evaluation of metrics.jsonl: `eval/accuracy`, `eval/seconds`."""
    scalars = {f"{line['eval']}/{name}": value for name, value in line["result"].items()}
    scalars[f"{line['eval']}/seconds"] = line["seconds"].get("evaluate")
    return {name: float(value) for name, value in scalars.items() if is_finite_number(value)}


def histogram(quantiles: Mapping[str, float], count: int) -> tuple[list[float], list[float]]:
    """Counts and edges of four bins with a quarter of the values each; a bin without width joins the next one.

    The counts of values that are all the same stand in one bin around them.
    """
    edges, counts = [float(quantiles["min"])], []
    waiting = 0.0
    for name in QUANTILES[1:]:
        waiting += count / 4
        if quantiles[name] > edges[-1]:
            edges.append(float(quantiles[name]))
            counts.append(waiting)
            waiting = 0.0
    if not counts:
        width = 1e-6 * max(1.0, abs(edges[0]))
        return [float(count)], [edges[0] - width, edges[0] + width]
    counts[-1] += waiting
    return counts, edges


def messages(sample: Mapping[str, Any]) -> list[dict[str, str]]:
    """A sample as a conversation: its question, then each turn, tools' too, or the one completion."""
    opening = [{"role": "user", "content": shortened(sample["question"])}]
    turns = sample.get("turns")
    if not turns:
        return [*opening, {"role": "assistant", "content": shortened(sample["completion"])}]
    return [*opening, *({"role": turn["role"], "content": shortened(turn["text"])} for turn in turns)]


def sample_facts(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The known facts about a sample, without its text."""
    facts = {name: sample.get(name) for name in ("step", "prompt_id", "answer", "reward", "stop", "tokens")}
    facts |= {f"reward/{name}": value for name, value in (sample.get("parts") or {}).items()}
    facts |= {name: sample[name] for name in ("episode", "role", "returned") if sample.get(name) is not None}
    return facts


def sample_cells(sample: Mapping[str, Any]) -> list[Any]:
    """A sample as a row of a table with `COLUMNS`; a column has one type, or nothing."""
    turns = messages(sample)[1:]
    completion = turns[0]["content"] if len(turns) == 1 else "\n\n".join(f"[{m['role']}] {m['content']}" for m in turns)
    parts = ", ".join(f"{name} {value}" for name, value in (sample.get("parts") or {}).items())
    answer = "" if sample.get("answer") is None else shortened(str(sample["answer"]))
    return [
        int(sample["step"]),
        str(sample["prompt_id"]),
        shortened(sample["question"]),
        answer,
        shortened(completion),
        sample_reward(sample),
        parts,
        str(sample["stop"]),
        int(sample["tokens"]),
    ]


def shortened(text: Any, longest: int = LONGEST_TEXT) -> str:
    """The text without what no service stores (NUL, lone surrogates), cut in the middle where it is too long."""
    clean = str(text).replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    if len(clean) <= longest:
        return clean
    half = longest // 2
    return f"{clean[:half]}\n... {len(clean) - longest:,} characters left out ...\n{clean[-half:]}"


def summary_texts(summary: Mapping[str, Any]) -> dict[str, str]:
    """What a run came to, flat and as text: status, the headline before and after, time and tokens."""
    texts = {name: str(summary[name]) for name in ("status", "ended", "error", "command") if summary.get(name)}
    for moment in ("before", "after"):
        for name, value in (summary.get(moment) or {}).items():
            if is_finite_number(value):
                texts[f"{moment}/{name}"] = f"{value:.6g}"
    for phase, took in (summary.get("seconds") or {}).items():
        if is_finite_number(took):
            texts[f"seconds/{phase}"] = f"{took:.3f}"
    if summary.get("tokens"):
        texts["tokens"] = str(summary["tokens"])
    if summary.get("memory"):
        texts["peak memory"] = memory_text(summary["memory"])
    return texts


def flat_settings(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """A config by dotted path; lists are text."""
    for name, value in values.items():
        path = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping):
            yield from flat_settings(value, path)
        elif isinstance(value, bool | int | float | str):
            yield path, value
        elif value is not None:
            yield path, shortened(value, LONGEST_VALUE)
