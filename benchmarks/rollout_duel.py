"""Rollouts of whet beside vLLM's on one GPU: same shapes, each model and side in a process of its own.

A part of benchmarks/gpu_duel.py. A side that fails leaves what it had measured and the others' numbers in place; what
went wrong is told under its name.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_models import SHAPES, tokenizer_of
from duel import HERE, environment_of, peer_python

VLLM = "vllm==0.24.0"
KINDS = ("with_logp", "tokens_only")
ENDING = 1.5  # over the longest completion, the chance that a token is a completion's last
STARTS, MEASURES = 300.0, 300.0  # seconds a side may take to stand, and to measure


@dataclass(frozen=True)
class Rollouts:
    """What is written, for each model."""

    models: tuple[str, ...] = ("135m", "1.5b", "7b")
    sequences: tuple[int, ...] = (256, 1024)
    group_size: int = 8
    prompt_tokens: int = 128
    completion_tokens: int = 512
    ragged: tuple[str, ...] = ("135m", "1.5b")  # models that also write completions which end where they like


TINY = Rollouts(("tiny",), (4, 8), 2, 8, 8, ("tiny",))


def cases_of(wanted: Rollouts, model: str, seed: int) -> list[dict[str, Any]]:
    """Fixed lengths at each number of sequences, and at the last one lengths that differ."""
    vocabulary = SHAPES[model][1]["vocab_size"]
    shared = {
        "group_size": wanted.group_size,
        "prompt_tokens": wanted.prompt_tokens,
        "completion_tokens": wanted.completion_tokens,
        "vocabulary": vocabulary,
        "kinds": KINDS,
    }
    cases: list[dict[str, Any]] = [{**shared, "name": str(count), "sequences": count} for count in wanted.sequences]
    if model in wanted.ragged:
        last = cases[-1]
        lengths = ragged_lengths(last["sequences"], wanted.completion_tokens, seed)
        # as many tokens of the vocabulary end a completion on the side that asks the model
        ends = max(1, round(ENDING / wanted.completion_tokens * vocabulary))
        cases.append({**last, "name": f"{last['name']} ragged", "lengths": lengths, "ends": ends, "kinds": KINDS[:1]})
    return cases


def ragged_lengths(count: int, longest: int, seed: int) -> list[int]:
    """Lengths of completions whose every token is the last with the same chance."""
    draw, chance = random.Random(seed), ENDING / longest
    return [next((length for length in range(1, longest) if draw.random() < chance), longest) for _ in range(count)]


def config_folder(model: str, root: Path) -> Path:
    """Config and tokenizer of the model without weights: the sides make random ones of their own."""
    from transformers import LlamaConfig, Qwen2Config

    folder = root / f"{model}-config"
    if not (folder / "tokenizer_config.json").exists():
        family, settings = SHAPES[model]
        kind = {"llama": LlamaConfig, "qwen2": Qwen2Config}[family]
        tokenizer = tokenizer_of(settings["vocab_size"])
        values = {"max_position_embeddings": 8192, "tie_word_embeddings": True, **settings}
        config = kind(**values, architectures=[{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[family]])
        config.eos_token_id, config.bos_token_id = tokenizer.eos_token_id, tokenizer.bos_token_id
        config.dtype = "bfloat16"
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def cache_bytes(model: str) -> int:
    """Bytes of one token's keys and values in bf16."""
    settings = SHAPES[model][1]
    head = settings["hidden_size"] // settings["num_attention_heads"]
    return 2 * 2 * settings["num_hidden_layers"] * settings["num_key_value_heads"] * head


class Side:
    """A side that runs: started at once, let onto the GPU when it is its turn."""

    def __init__(self, name: str, python: str, job: dict[str, Any], folder: Path, packages: Path | None) -> None:
        folder.mkdir(parents=True)
        self.name = name
        self._answer, self._errors = folder / "answer.json", folder / "stderr"
        self._ready, self._turn = folder / "ready", folder / "turn"
        asked = folder / "job.json"
        asked.write_text(json.dumps({**job, "ready": str(self._ready), "turn": str(self._turn)}))
        command = [python, str(HERE / "sides" / f"{name}_side.py"), str(asked), str(self._answer)]
        folders = [str(packages)] if packages else []
        with self._errors.open("wb") as stream:
            # a session of its own: the engine's processes end with it
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                env=environment_of(job["threads"], folders, python),
                start_new_session=True,
            )

    def wait_until_ready(self, seconds: float) -> None:
        """Until the side stands, has ended or has had its time."""
        until = time.monotonic() + seconds
        while not self._ready.exists() and self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)

    def measured(self, seconds: float) -> tuple[dict[str, Any], str | None]:
        """What it measured in its turn, and what went wrong."""
        problem = None
        if self._ready.exists():
            self._turn.touch()
        elif self._process.poll() is None:
            problem = "was not ready in time"
        if problem is None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                problem = f"took more than {seconds:.0f} s"
        self.end()
        if problem is None and self._process.returncode:
            problem = f"ended with {self._process.returncode}"
        if problem:
            problem += f": {said_last(self._errors)}"
        return (json.loads(self._answer.read_text()) if self._answer.exists() else {"cases": {}}), problem

    def end(self) -> None:
        """Kill the side's processes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def said_last(file: Path, characters: int = 1500) -> str:
    """The end of what a side complained about; the line that names the error first."""
    lines = file.read_text(errors="replace").strip().splitlines()
    named = [line for line in lines if "Error" in line and not line.startswith(" ")]
    return "\n".join([*named[-1:], "...", "\n".join(lines)[-characters:]])


@contextlib.contextmanager
def all_ended(sides: list[Side]) -> Iterator[None]:
    """End every side when the block ends."""
    try:
        yield
    finally:
        for side in sides:
            side.end()


def duel_rollouts(
    chosen: Any, wanted: Rollouts, work: Path, keep: Callable[[dict[str, Any], dict[str, str]], None]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Each side on each model; `keep` gets everything measured so far after each."""
    jobs = {model: rollout_job(chosen, wanted, model) for model in wanted.models}
    records: dict[str, Any] = {model: {"shapes": shapes_of(job)} for model, job in jobs.items()}
    failed: dict[str, str] = {}

    def take(side: Side, model: str) -> None:
        begun = time.perf_counter()
        answer, problem = side.measured(MEASURES)
        records[model][side.name] = answer
        if problem:
            failed[f"rollout {model}: {side.name}"] = problem
        failed.update({f"rollout {model}: {side.name}, {case}": why for case, why in case_errors(answer).items()})
        print(f"  {model}, {side.name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        print("\n".join(rollout_lines(model, records[model], problem and f"{side.name} {problem}")), flush=True)
        keep(records, failed)

    # vLLM compiles and captures for a minute before it can write: its engines may do so side by side
    batches = [list(jobs)] if chosen.together else [[model] for model in jobs]
    for batch in batches if chosen.only != "whet" else []:
        python, packages = vllm_python(chosen)
        begun = time.perf_counter()
        sides = {model: Side("vllm", python, jobs[model], work / f"vllm-{model}", packages) for model in batch}
        with all_ended(list(sides.values())):
            for side in sides.values():
                side.wait_until_ready(max(0.0, STARTS - (time.perf_counter() - begun)))
            print(f"  vllm: {time.perf_counter() - begun:.0f} s to start {', '.join(batch)}", file=sys.stderr)
            for model, side in sides.items():
                take(side, model)
    for model, job in jobs.items() if chosen.only in (None, "whet") else ():
        side = Side("whet", sys.executable, job, work / f"whet-{model}", None)
        with all_ended([side]):
            side.wait_until_ready(STARTS)
            take(side, model)
    for record in records.values():
        record["whet over vllm"] = rate_ratios(record)
    keep(records, failed)
    return records, failed


def vllm_python(chosen: Any) -> tuple[str, Path | None]:
    """The Python that has vLLM, and a folder of packages beside it."""
    if chosen.peer_path is not None:
        return sys.executable, chosen.peer_path
    return peer_python(chosen.work / "vllm", (VLLM,)), None


def rollout_job(chosen: Any, wanted: Rollouts, model: str) -> dict[str, Any]:
    """What both sides are told to do."""
    return {
        "kind": "rollout",
        "model": str(config_folder(model, chosen.work / "models")),
        "shape_of": model,
        "cases": cases_of(wanted, model, chosen.seed),
        "cache_bytes_per_token": cache_bytes(model),
        "rounds": chosen.rounds,
        "device": "cpu" if chosen.tiny else "cuda",
        **{key: getattr(chosen, key) for key in ("threads", "seed", "precision")},
    }


def shapes_of(job: dict[str, Any]) -> dict[str, str]:
    """The sizes of each case in words."""
    return {
        case["name"]: f"{case['sequences'] // case['group_size']} prompts x {case['group_size']} completions, "
        f"{case['prompt_tokens']} + {'up to ' if 'lengths' in case else ''}{case['completion_tokens']} tokens"
        for case in job["cases"]
    }


def case_errors(answer: dict[str, Any]) -> dict[str, str]:
    """The cases that failed, and why."""
    return {
        f"{case} {kind}": record["error"]
        for case, kinds in answer["cases"].items()
        for kind, record in kinds.items()
        if "error" in record
    }


def rate(side: dict[str, Any], case: str, kind: str) -> float | None:
    """Tokens per second of one side in one case; None where it failed."""
    record = side.get("cases", {}).get(case, {}).get(kind, {})
    return record.get("tokens_per_s")


def rate_ratios(record: dict[str, Any]) -> dict[str, dict[str, float]]:
    """How many times as fast whet is: it tells log-probs with its tokens, which vLLM can leave out."""
    ratios: dict[str, dict[str, float]] = {}
    for case in record["shapes"]:
        ours = rate(record.get("whet", {}), case, "with_logp")
        theirs = {kind: rate(record.get("vllm", {}), case, kind) for kind in KINDS}
        if ours:
            ratios[case] = {kind: ours / rate for kind, rate in theirs.items() if rate}
    return ratios


def rollout_lines(model: str, record: dict[str, Any], problem: str | None) -> list[str]:
    """The results of one model as lines."""
    lines = [f"rollout, {model}: tokens per second"]
    for case, shape in record["shapes"].items():
        rates = {
            f"{name} {kind}": rate(record[name], case, kind)
            for name in ("whet", "vllm")
            if name in record
            for kind in KINDS
        }
        told = "; ".join(f"{name} {rate:,.0f}" for name, rate in rates.items() if rate)
        lines.append(f"  {case:12} {told}   ({shape})")
    return [*lines, *([f"  {problem}"] if problem else [])]
