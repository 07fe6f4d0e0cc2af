"""One GRPO step on the CPU, whet against TRL: same model folder, prompts, lengths, dtype, threads, work per pass.

    python benchmarks/grpo_step_cpu.py --models byte,words49k,smollm2 --results
    python benchmarks/grpo_step_cpu.py --shape long --models words49k --results grpo_step_cpu_long

Completions have a fixed length on both sides. Each side runs in a fresh process, which gives its peak memory;
timings taken while others used the machine are discarded and repeated, up to --most steps.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from duel import HERE, add_common_flags, duel, name_contended, ratio_table, save_results, told
from results_file import add_results_flag

SHAPES = {
    "short": (4, 8, 40, 64),
    "long": (2, 16, 512, 32),
}  # prompts, completions per prompt, prompt and completion tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_flags(parser)
    add_results_flag(parser, "grpo_step_cpu")
    parser.add_argument(
        "--shape", default="short", help="short, long, or PROMPTSxGROUP,PROMPT+COMPLETION as in 4x8,40+64"
    )
    parser.add_argument("--batch-rows", type=int, help="sequences per pass; default: all of the step, 8 of a long one")
    chosen = parser.parse_args()
    shape = SHAPES.get(chosen.shape) or shape_of(chosen.shape)
    results: dict[str, Any] = {}
    titles: dict[str, str] = {}
    for name in chosen.models.split(","):
        made = told(
            [
                *(sys.executable, str(HERE / "bench_models.py"), str(chosen.work / "models"), name),
                *("--prompts", f"{shape[0]}x{shape[2]}", "--seed", str(chosen.seed)),
            ]
        )[name]
        total = shape[0] * shape[1]
        rows = chosen.batch_rows or (total if shape[2] + shape[3] <= 128 else min(8, total))
        job = {
            "kind": "grpo",
            "model": made["folder"],
            "texts": made["texts"],
            "tokens": made["tokens"],
            "shape": shape,
            "batch_rows": rows,
            "micro_batch_tokens": rows * (shape[2] + shape[3]),
            **{key: getattr(chosen, key) for key in ("steps", "most", "threads", "seed", "precision")},
        }
        title = f"{name}: {shape[0]} prompts x {shape[1]}, {shape[2]} + {shape[3]} tokens, {chosen.precision}"
        titles[name] = f"{title}, {chosen.threads} threads, {rows} sequences per pass"
        results[name] = duel(chosen, job)
        print(ratio_table(titles[name], results[name]), flush=True)
        save_results(chosen.results, results, titles)
    name_contended(results)


def shape_of(text: str) -> tuple[int, ...]:
    """`4x8,40+64` as numbers: prompts, group size, tokens of prompt and completion."""
    try:
        counts, _, tokens = text.partition(",")
        return (*(int(number) for number in counts.split("x")), *(int(number) for number in tokens.split("+")))
    except ValueError:
        raise SystemExit(f"--shape {text}: give short, long, or numbers as in 4x8,40+64") from None


if __name__ == "__main__":
    main()
