"""Supervised fine-tuning on real rows with their natural spread of lengths, whet against TRL, on the CPU.

    WHET_DATA=data python benchmarks/sft_cpu.py --models smollm2 --results

Reads WHET_DATA/sft/alpaca_en_demo.jsonl.gz (instruction, input, output), or --rows FILE of the same columns. Both sides
train on the same tokens, encoded once by whet; what counts is useful tokens per second, padding left out. TRL pads rows
of a batch to the longest, as it does unless told otherwise.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from duel import HERE, add_common_flags, duel, name_contended, ratio_names, ratio_table, save_results, told
from results_file import add_results_flag

FILE = Path("sft") / "alpaca_en_demo.jsonl.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_flags(parser)
    add_results_flag(parser, "sft_cpu")
    parser.set_defaults(models="smollm2")
    parser.add_argument("--rows", type=Path, help="a .jsonl or .jsonl.gz file with instruction, input, output")
    parser.add_argument("--most-tokens", type=int, default=1024, help="longer rows are left out on both sides")
    parser.add_argument("--rows-per-step", type=int, default=32)
    parser.add_argument("--batch-rows", type=int, default=8, help="rows per pass of the peer: its own default")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096, help="of whet")
    parser.add_argument("--padded", action="store_true", help="whet pads as well instead of packing")
    parser.add_argument("--encode", nargs=3, metavar=("MODEL", "ROWS", "TARGET"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.encode:
        print(json.dumps(encoded(*chosen.encode, chosen.most_tokens)))
        return
    results: dict[str, Any] = {}
    titles: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="whet-sft-") as work:
        source = Path(work) / "rows.jsonl"
        source.write_text("".join(f"{json.dumps(row)}\n" for row in conversations(rows_file(chosen.rows))))
        for name in chosen.models.split(","):
            made = told([sys.executable, str(HERE / "bench_models.py"), str(chosen.work / "models"), name])[name]
            target = Path(work) / "encoded.json"
            options = ["--encode", made["folder"], str(source), str(target), "--most-tokens", str(chosen.most_tokens)]
            facts = told([sys.executable, __file__, *options])
            job = {
                "kind": "sft",
                "model": made["folder"],
                "rows": facts["kept"],
                "encoded": str(target),
                "batch": {} if chosen.padded else {"packed": True},
                **{key: getattr(chosen, key) for key in ("rows_per_step", "batch_rows", "micro_batch_tokens")},
                **{key: getattr(chosen, key) for key in ("steps", "most", "threads", "seed", "precision")},
            }
            sides = duel(chosen, job)
            spread = f"{facts['shortest']} to {facts['longest']}, median {facts['median']:.0f} tokens"
            title = f"{name}: {facts['rows']} rows of {spread}, {chosen.rows_per_step} per step, {chosen.precision}"
            results[name], titles[name] = sides, f"{title}, {chosen.threads} threads"
            print(ratio_table(titles[name], sides))
            print(rate_lines(sides, facts["tokens_a_trained_token"]), flush=True)
            save_results(chosen.results, results, titles)
    name_contended(results)


def rate_lines(sides: dict[str, dict[str, Any]], tokens_a_trained_token: float) -> str:
    """Useful tokens per second, prompts included: rows differ between the sides' steps, so rates are compared."""
    rates = {name: side["trained_per_second"] * tokens_a_trained_token for name, side in sides.items()}
    for name, rate in rates.items():
        sides[name]["useful_tokens_per_second"] = rate
    names = ratio_names(rates)
    width = max(8, *(len(label) + 2 for label in (*rates, *names.values())))
    lines = [f"{name:{width}}{rate:13,.0f} useful tokens/s" for name, rate in rates.items()]
    lines += [f"{label:{width}}{rates['whet'] / rates[name]:12.2f}x" for name, label in names.items()]
    return "\n".join(lines)


def rows_file(path: Path | None) -> Path:
    """The file of conversations: as given, or of the folder that WHET_DATA names."""
    if path is not None:
        return path
    folder = os.environ.get("WHET_DATA")
    if not folder or not (Path(folder) / FILE).exists():
        raise SystemExit(f"no rows: give --rows FILE, or set WHET_DATA to a folder with {FILE}")
    return Path(folder) / FILE


def conversations(path: Path) -> list[dict[str, Any]]:
    """Instructions and outputs as conversations."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    written = []
    for row in rows:
        question = "\n\n".join(part for part in (row["instruction"], row.get("input", "")) if part)
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}]
        written.append({"messages": turns})
    return written


def encoded(model: str, rows: str, target: str, most_tokens: int) -> dict[str, Any]:
    """Encode as whet does, for the peer; keep the rows that fit, for both."""
    from transformers import AutoTokenizer

    from whet.data.chat import demonstration_tokens
    from whet.data.prompts import demonstrations_from
    from whet.data.source import read_rows

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenized = [
        demonstration_tokens(tokenizer, demonstration) for demonstration in demonstrations_from(read_rows(rows))
    ]
    fitting = [index for index, row in enumerate(tokenized) if len(row.tokens) <= most_tokens]
    lines = Path(rows).read_text().splitlines(keepends=True)
    fitting_file = Path(target).with_suffix(".rows.jsonl")
    fitting_file.write_text("".join(lines[index] for index in fitting))
    chosen = [tokenized[index] for index in fitting]
    Path(target).write_text(
        json.dumps(
            [
                {"input_ids": row.tokens, "completion_mask": [int(is_action) for is_action in row.action]}
                for row in chosen
            ]
        )
    )
    lengths = [len(row.tokens) for row in chosen]
    trained = [sum(row.action) for row in chosen]
    return {
        "kept": str(fitting_file),
        "rows": len(chosen),
        "shortest": min(lengths),
        "longest": max(lengths),
        "median": median(lengths),
        "tokens_a_trained_token": fmean(lengths) / fmean(trained),
    }


if __name__ == "__main__":
    main()
