"""whet against TRL and vLLM on one GPU, in turn and in fresh processes: a GRPO step; supervised fine-tuning, DPO and a
reward model on rows and pairs of real lengths; rollouts of three sizes of model.

    python benchmarks/gpu_duel.py --parts grpo,sft --rows alpaca_en_demo.jsonl.gz --results
    python benchmarks/gpu_duel.py --parts dpo,rm --pairs dpo_en_demo.jsonl.gz --layouts padded,grouped
    python benchmarks/gpu_duel.py --parts rollout,grpo --writing plain,vllm --results
    python benchmarks/gpu_duel.py --peer-path FOLDER ...  # of benchmarks/peer_folder.py: TRL, vLLM, their packages
    python benchmarks/gpu_duel.py --tiny                  # the same code on a CPU in seconds: does it run?

Weights are random, of a real model's shape: float32 masters and bf16 matrix products on both sides. Completions have a
fixed length. Rows keep their real lengths: a token stands for each word, piece of a long word, or mark. TRL pads rows,
or packs them: `packed` keeps them apart by a mask over the whole pass, `flex` by blocks of one, `grouped` pads rows of
like length together. Peak memory is what the process held on the GPU at most, by torch's own count.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench_models import SHAPES, words_of
from duel import (
    HERE,
    add_run_flags,
    case_record,
    name_contended,
    peer_python,
    ratio_table,
    run_side,
    summed_up,
    told,
)
from preference_cpu import pair_job, told_pairs
from results_file import add_results_flag, write_results
from rollout_duel import TINY as TINY_ROLLOUTS
from rollout_duel import Rollouts, duel_rollouts
from sft_cpu import conversations, rate_lines, rows_file

WRITING = ("plain", "static", "paged", "vllm")
WEIGHTS = ("float32", "bfloat16")
PACKING = ("packed", "flex")
LAYOUTS = ("padded", "grouped", *PACKING)
GIVEN = ("batch_rows", "micro_batch_tokens", "pairs_per_step", "pairs_per_pass")  # sizes that have a flag of their own


@dataclass(frozen=True)
class Sizes:
    """What each part works on."""

    model: str = "135m"
    shape: tuple[int, int, int, int] = (32, 8, 128, 512)  # prompts, completions per prompt, tokens of each
    sequences_per_pass: int = 32
    policy_steps: tuple[int, int, int] = (3, 5, 1)  # quiet ones wanted, most, warm-up
    rows: int = 100_000  # of the file, at most
    most_tokens: int = 1024
    rows_per_step: int = 128
    batch_rows: int = 32  # per pass of the peer where it pads
    micro_batch_tokens: int = 16384  # of whet
    pack_tokens: tuple[int, ...] = (4096,)  # per pass of the peer where it packs
    supervised_steps: tuple[int, int, int] = (8, 16, 3)
    pairs_per_step: int = 64
    pairs_per_pass: int = 16  # of the peer


SMALL = Sizes("tiny", (2, 2, 8, 8), 2, (3, 4, 1), 40, 128, 8, 4, 256, (256,), (3, 5, 1), 4, 2)


@dataclass(frozen=True)
class Case:
    """One comparison: the job both sides do, and the peer's own choices for each time it does it."""

    title: str
    job: dict[str, Any]
    peers: dict[str, dict[str, Any]]
    told_after: Callable[[dict[str, Any]], str] | None = None


def policy_case(chosen: Any, sizes: Sizes, work: Path) -> Case:
    """A step of GRPO on rows of fixed length."""
    num_prompts, group_size, prompt_tokens, completion_tokens = sizes.shape
    made = told(
        [
            *(sys.executable, str(HERE / "bench_models.py"), str(chosen.work / "models"), sizes.model),
            *("--prompts", f"{num_prompts}x{prompt_tokens}", "--seed", str(chosen.seed)),
        ]
    )[sizes.model]
    job = {
        "kind": "grpo",
        "model": made["folder"],
        "texts": made["texts"],
        "tokens": made["tokens"],
        "shape": sizes.shape,
        "batch_rows": sizes.sequences_per_pass,
        "micro_batch_tokens": sizes.sequences_per_pass * (prompt_tokens + completion_tokens),
        **step_counts(sizes.policy_steps),
    }
    title = (
        f"grpo, {sizes.model}: {num_prompts} prompts x {group_size}, {prompt_tokens} + {completion_tokens} tokens, "
        f"{sizes.sequences_per_pass} sequences per pass"
    )
    peers = {
        named("trl", {"writing": (writing, "plain"), "weights": (weights, "float32")}): {
            "writing": writing,
            "weights": weights,
        }
        for writing in chosen.writing.split(",")
        for weights in chosen.peer_weights.split(",")
    }
    return Case(title, job, peers)


def supervised_case(chosen: Any, sizes: Sizes, work: Path) -> Case:
    """A step of SFT on real conversations."""
    made = told([sys.executable, str(HERE / "bench_models.py"), str(chosen.work / "models"), sizes.model])[sizes.model]
    rows = conversations(rows_file(chosen.rows))[: sizes.rows]
    source, target = work / "rows.jsonl", work / "encoded.json"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in worded(rows, SHAPES[sizes.model][1]["vocab_size"])))
    options = ["--encode", made["folder"], str(source), str(target), "--most-tokens", str(sizes.most_tokens)]
    facts = told([sys.executable, str(HERE / "sft_cpu.py"), *options])
    job = {
        "kind": "sft",
        "model": made["folder"],
        "rows": facts["kept"],
        "encoded": str(target),
        "batch": {"packed": True},
        "rows_per_step": sizes.rows_per_step,
        "batch_rows": sizes.batch_rows,
        "micro_batch_tokens": sizes.micro_batch_tokens,
        **step_counts(sizes.supervised_steps),
    }
    spread = f"{facts['shortest']} to {facts['longest']}, median {facts['median']:.0f} tokens"
    title = f"sft, {sizes.model}: {facts['rows']} rows of {spread}, {sizes.rows_per_step} per step"
    peers: dict[str, dict[str, Any]] = {}
    for layout in chosen.layouts.split(","):
        for tokens in sizes.pack_tokens if layout in PACKING else (0,):
            peers[f"trl {layout} {tokens}" if tokens else f"trl {layout}"] = {"layout": layout, "pack_tokens": tokens}
    return Case(title, job, peers, lambda sides: rate_lines(sides, facts["tokens_a_trained_token"]))


def pair_case(part: str, chosen: Any, sizes: Sizes, work: Path) -> Case:
    """Preference training or a reward model, on pairs of real lengths."""
    made = told([sys.executable, str(HERE / "bench_models.py"), str(chosen.work / "models"), sizes.model])[sizes.model]
    counts = step_counts(sizes.supervised_steps)
    wanted = argparse.Namespace(
        **{"pairs": chosen.pairs, "seed": chosen.seed, "stored": chosen.stored, "most": counts["most"]},
        **{"most_tokens": sizes.most_tokens, "micro_batch_tokens": sizes.micro_batch_tokens},
        **{"rows_per_step": sizes.pairs_per_step, "batch_rows": sizes.pairs_per_pass},
    )
    job, facts = pair_job(part, made["folder"], wanted, work, SHAPES[sizes.model][1]["vocab_size"])
    title = f"{part}, {sizes.model}: {told_pairs(facts)}, {sizes.pairs_per_step} per step"
    title += ", reference stored" if job["stored"] else ""
    peers = {f"trl {layout}": {"layout": layout} for layout in chosen.layouts.split(",") if layout not in PACKING}
    return Case(title, {**job, **counts}, peers, lambda sides: rate_lines(sides, 1.0))


PARTS: dict[str, Callable[[Any, Sizes, Path], Case]] = {
    "grpo": policy_case,
    "sft": supervised_case,
    "dpo": functools.partial(pair_case, "dpo"),
    "rm": functools.partial(pair_case, "rm"),
}


ALL_PARTS = (*PARTS, "rollout")


def rollouts_of(chosen: Any) -> Rollouts:
    """The rollouts that the command line asks for."""
    wanted = TINY_ROLLOUTS if chosen.tiny else Rollouts()
    job: dict[str, Any] = {}
    if chosen.models:
        job["models"] = tuple(chosen.models.split(","))
        unknown = [model for model in job["models"] if model not in SHAPES]
        if unknown:
            raise SystemExit(f"--models {unknown[0]}: give some of {', '.join(SHAPES)}, with commas between them")
    if chosen.sequences:
        job["sequences"] = tuple(int(count) for count in chosen.sequences.split(","))
    return replace(wanted, **job)


def sizes_of(chosen: Any) -> Sizes:
    """The sizes that the command line asks for."""
    sizes = SMALL if chosen.tiny else Sizes()
    choices = {key: getattr(chosen, key) for key in GIVEN if getattr(chosen, key)}
    if chosen.pack_tokens:
        choices["pack_tokens"] = tuple(int(count) for count in chosen.pack_tokens.split(","))
    return replace(sizes, **choices)


def step_counts(counts: tuple[int, int, int]) -> dict[str, int]:
    """The three counts by name."""
    return dict(zip(("steps", "most", "warm_up"), counts, strict=True))


def named(side: str, choices: dict[str, tuple[str, str]]) -> str:
    """The side and those of its choices that are not the usual ones."""
    return " ".join([side, *(choice for choice, usual in choices.values() if choice != usual)])


def worded(rows: Iterable[dict[str, Any]], vocabulary: int) -> list[dict[str, Any]]:
    """The conversations in the words of the models' tokenizer."""

    def turns(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{**turn, "content": words_of(turn["content"], vocabulary)} for turn in row["messages"]]

    return [{"messages": turns(row)} for row in rows]


def fought(
    case: Case, chosen: Any, job: dict[str, Any], keep: Callable[[dict[str, dict[str, Any]], dict[str, str]], None]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The sides that ran, and what went wrong with those that did not: one choice of the peer may not work here.

    `keep` gets what there is after each of them.
    """
    sides: dict[str, dict[str, Any]] = {} if chosen.only == "trl" else {"whet": {}}
    if chosen.only != "whet":
        sides.update(case.peers)
    runs: dict[str, list[dict[str, Any]]] = {}
    failures: dict[str, str] = {}
    for _ in range(chosen.rounds):
        for name, choices in sides.items():
            start = time.perf_counter()
            try:
                measured = ran(name, {**job, "peer": choices}, chosen)
            except SystemExit as failure:
                failures[name] = str(failure)
                print(f"  {name}: {failure}", file=sys.stderr)
                keep({run_name: summed_up(every) for run_name, every in runs.items()}, failures)
                continue
            runs.setdefault(name, []).append(measured)
            steps = [round(step["seconds"], 3) for step in measured["steps"]]
            print(f"  {name}: {steps} s; {time.perf_counter() - start:.0f} s with its start", file=sys.stderr)
            keep({run_name: summed_up(every) for run_name, every in runs.items()}, failures)
    return {name: summed_up(side_runs) for name, side_runs in runs.items()}, failures


def keep_sides(results: str | None, title: str, sides: dict[str, dict[str, Any]], failures: dict[str, str]) -> None:
    """Write what there is to the results file, if there is one."""
    if results:
        write_results(results, {**case_record(title, sides), "failed": failures})


def ran(name: str, job: dict[str, Any], chosen: Any) -> dict[str, Any]:
    """What one side measured, in a process of its own."""
    if name == "whet":
        return run_side("whet", sys.executable, job, chosen.patience)
    if chosen.peer_path is not None:
        return run_side("trl", sys.executable, job, chosen.patience, chosen.peer_path)
    return run_side("trl", peer_python(chosen.peers or chosen.work / "trl"), job, chosen.patience)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_flags(parser)
    add_results_flag(parser, "gpu_duel")
    parser.add_argument("--parts", default=",".join(ALL_PARTS), help=", ".join(ALL_PARTS))
    parser.add_argument("--models", help="of the rollouts: some of 135m, 1.5b, 7b")
    parser.add_argument("--sequences", help="of the rollouts, e.g. 256 or 256,1024")
    parser.add_argument("--together", action="store_true", help="start vLLM's engines of all models side by side")
    parser.add_argument("--peer-path", type=Path, help="folder of the peer's packages, for this same Python")
    parser.add_argument("--rows", type=Path, help="a .jsonl or .jsonl.gz file with instruction, input, output")
    parser.add_argument("--pairs", type=Path, help="a file of pairs, of any shape that whet reads")
    parser.add_argument("--pairs-per-step", type=int, help="of both sides")
    parser.add_argument("--pairs-per-pass", type=int, help="of the peer")
    parser.add_argument("--stored", action="store_true", help="the reference is asked before the first step")
    parser.add_argument("--writing", default="plain", help=f"how the peer writes completions: {', '.join(WRITING)}")
    parser.add_argument("--peer-weights", default="float32", help=f"the peer's own: {', '.join(WEIGHTS)}")
    parser.add_argument("--layouts", default="padded,packed", help=f"of the peer's rows: {', '.join(LAYOUTS)}")
    parser.add_argument("--batch-rows", type=int, help="rows per pass of the peer where it pads")
    parser.add_argument("--pack-tokens", help="tokens per pass of the peer where it packs, e.g. 4096 or 4096,8192")
    parser.add_argument("--micro-batch-tokens", type=int, help="of whet's passes over rows and pairs")
    parser.add_argument("--tiny", action="store_true", help="small shapes on the CPU, in fp32 unless said otherwise")
    parser.set_defaults(precision=None, patience=10.0)
    chosen = parser.parse_args()
    for option, known in (("parts", ALL_PARTS), ("writing", WRITING), ("peer_weights", WEIGHTS), ("layouts", LAYOUTS)):
        unknown = [name for name in getattr(chosen, option).split(",") if name not in known]
        if unknown:
            flag = option.replace("_", "-")
            raise SystemExit(f"--{flag} {unknown[0]}: give some of {', '.join(known)}, with commas between them")
    parts = chosen.parts.split(",")
    needed = {"vllm" if part == "rollout" else "trl" for part in parts} if chosen.only != "whet" else set()
    for package in sorted(needed) if chosen.peer_path is not None else ():
        if not (chosen.peer_path / package).is_dir():
            raise SystemExit(f"--peer-path {chosen.peer_path}: no {package} is there; unpack its wheels into it")
    chosen.precision = chosen.precision or ("fp32" if chosen.tiny else "bf16")
    sizes = sizes_of(chosen)
    shared = {key: getattr(chosen, key) for key in ("threads", "seed", "precision")}
    shared["device"] = "cpu" if chosen.tiny else "cuda"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception ends the running sides as well
    results: dict[str, Any] = {}
    failed: dict[str, Any] = {}

    def keep_rollouts(rollouts: dict[str, Any], wrong: dict[str, str]) -> None:
        failed.update(wrong)
        if chosen.results:
            write_results(f"{chosen.results}_rollout", {**rollouts, "failed": wrong})

    for part in parts:
        begun = time.perf_counter()
        if part == "rollout":
            with tempfile.TemporaryDirectory(prefix="whet-gpu-duel-") as work:
                duel_rollouts(chosen, rollouts_of(chosen), Path(work), keep_rollouts)
            print(f"  part {part} took {time.perf_counter() - begun:.0f} s", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix="whet-gpu-duel-") as work:
            case = PARTS[part](chosen, sizes, Path(work))
            title = f"{case.title}, {chosen.precision}"
            print(title, file=sys.stderr)
            keep = functools.partial(keep_sides, chosen.results and f"{chosen.results}_{part}", title)
            sides, failures = fought(case, chosen, {**case.job, **shared}, keep)
        results[part] = sides
        failed.update({f"{part}: {name}": why for name, why in failures.items()})
        if sides:
            print(ratio_table(title, sides))
            print(case.told_after(sides) if case.told_after else "", flush=True)
        print(f"  part {part} took {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        keep(sides, failures)
    name_contended(results)
    if failed:
        raise SystemExit(f"did not run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
