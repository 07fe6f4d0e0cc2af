"""From prompts to a file of completions, to imitate: written by a model, or by a server that is a better one.

The file's rows are demonstrations: `whet train sft` reads it. With `at_least` only completions of that score are kept,
which is how a teacher's mistakes stay out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.rollout.collect import Score, draw_completions
from whet.tools.labelling.run import CHUNK_SIZE, LabelProgress, model_facts, open_output
from whet.training.assembly.prompts import load_prompts
from whet.training.assembly.rewards import bind_judges, build_reward_parts, build_scorer, reward_summary
from whet.training.assembly.runtime import Runtime, encode_prompts, load_runtime, sampling_from
from whet.training.config import EvaluationConfig
from whet.types import Prompt, Sample, StopReason, WhetError


@dataclass(frozen=True)
class CompletionSpec:
    """What to write, and how much of it to keep."""

    out: Path
    count: int = 200  # prompts
    each: int = 1  # completions per prompt
    at_least: float | None = None  # the score of a completion that is kept; None: all are, scored or not


@dataclass(frozen=True)
class CompletionReport:
    """What the file holds; only `seconds` is of this call."""

    out: Path
    written: int
    rows: tuple[Mapping[str, Any], ...]
    seconds: float

    def record(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "file": str(self.out),
            "completions": len(self.rows),
            "left_out": self.written - len(self.rows),
            "tokens": sum(row["tokens"] for row in self.rows),
            "seconds": self.seconds,
        }


def write_completions(
    config: EvaluationConfig, spec: CompletionSpec, show: Callable[[LabelProgress], None]
) -> CompletionReport:
    """Completions to training prompts, into `spec.out`; a file that was started is continued."""
    if spec.out.suffix != ".jsonl" or not spec.out.parent.is_dir():
        raise WhetError(f"--out {spec.out}: give a file that ends in .jsonl, in a folder that exists")
    if spec.each > 1 and config.sampling.temperature == 0:
        raise WhetError("several completions at temperature 0 are all equal; give --set sampling.temperature=1.0")
    changed = {"count": spec.count, "limit": spec.count}
    config = config.model_copy(update={"data": config.data.model_copy(update=changed)})
    parts = build_reward_parts(config, wanted=True) if spec.at_least is not None else []
    prompts = load_prompts(config, evaluation=False)[: spec.count]
    runtime = load_runtime(config)
    score: Score | None = None
    if parts:
        score = build_scorer(config, bind_judges(parts, runtime.engine, runtime.loaded.tokenizer))
    provenance = {
        **model_facts(config, runtime),
        **{"each": spec.each, "source": config.data.source, "at_least": spec.at_least},
        "reward": reward_summary(parts) if parts else "",
    }
    chunks = [prompts[start : start + CHUNK_SIZE] for start in range(0, len(prompts), CHUNK_SIZE)]
    started, completions, tokens = time.monotonic(), 0, 0
    with open_output(spec.out, provenance, "whet label completions") as (file, first):
        for number in range(first, len(chunks)):
            drawn = _drawn(config, spec, runtime, chunks[number], number)
            completions += sum(map(len, drawn))
            tokens += sum(sample.num_actions for samples in drawn for sample in samples)
            rows = _rows(chunks[number], drawn, score, spec.at_least)
            lines = [json.dumps({**row, "chunk": number, "labelled": provenance}, ensure_ascii=False) for row in rows]
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            seconds, now = time.monotonic() - started, number + 1
            show(LabelProgress(now, len(chunks), now - first, completions, tokens, seconds))
    rows_written = tuple(json.loads(line) for line in spec.out.read_bytes().split(b"\n") if line)
    return CompletionReport(spec.out, len(prompts) * spec.each, rows_written, time.monotonic() - started)


def _drawn(
    config: EvaluationConfig, spec: CompletionSpec, runtime: Runtime, prompts: Sequence[Prompt], number: int
) -> list[list[Sample]]:
    sampling = sampling_from(config.sampling)
    tokens = encode_prompts(runtime, prompts, sampling)
    return draw_completions(runtime.engine, tokens, spec.each, sampling, (config.seed, number))


def _rows(
    prompts: Sequence[Prompt], drawn: Sequence[Sequence[Sample]], score: Score | None, at_least: float | None
) -> list[dict[str, Any]]:
    """One row per completion worth keeping; one that its budget cut off teaches nobody how to end."""
    rows = []
    for prompt, samples in zip(prompts, drawn, strict=True):
        scored = samples if score is None else score([prompt] * len(samples), samples)
        for number, sample in enumerate(scored):
            if sample.stop is StopReason.LENGTH or not sample.completion.strip():
                continue
            if at_least is not None and (sample.reward is None or sample.reward < at_least):
                continue
            asked: Any = prompt.text if prompt.text is not None else [dict(message) for message in prompt.messages]
            rows.append(
                {
                    "id": prompt.id if len(scored) == 1 else f"{prompt.id}/{number}",
                    "prompt": asked,
                    "completion": sample.completion,
                    "tokens": sample.num_actions,
                    **({} if sample.reward is None else {"score": sample.reward}),
                }
            )
    return rows
