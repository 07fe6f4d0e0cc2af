"""Preference training (`dpo`) and reward models (`rm`) on real pairs, whet against TRL, on the CPU.

    WHET_DATA=data python benchmarks/preference_cpu.py --results
    WHET_DATA=data python benchmarks/preference_cpu.py --parts rm --layouts padded,grouped

Reads WHET_DATA/preference/dpo_en_demo.jsonl.gz or --pairs FILE. Both sides train on the same tokens, encoded once by
whet, and where the peer keeps the order of its rows, on the same pairs in every step. What counts is useful tokens a
second: a prompt counts with each of its two completions, padding never. Without a store both sides ask a live
reference in every step; `stored` asks it before the first on both sides, which no step's time contains.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from statistics import median
from typing import Any

from bench_models import words_of
from duel import HERE, add_common_flags, duel, name_contended, ratio_table, save_results, told
from results_file import add_results_flag
from sft_cpu import rate_lines

FILE = Path("preference") / "dpo_en_demo.jsonl.gz"
PARTS = ("dpo", "rm")
LAYOUTS = ("padded", "grouped")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_flags(parser)
    add_results_flag(parser, "preference_cpu")
    parser.set_defaults(models="smollm2")
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--pairs", type=Path, help="a file of pairs, of any shape that whet reads")
    parser.add_argument("--most-tokens", type=int, default=1024, help="pairs with a longer row are left out")
    parser.add_argument("--rows-per-step", type=int, default=8, help="pairs per step")
    parser.add_argument("--batch-rows", type=int, default=8, help="pairs per pass of the peer: its own default")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096, help="of whet")
    parser.add_argument("--layouts", default="padded", help=f"of the peer's rows: {', '.join(LAYOUTS)}")
    parser.add_argument("--stored", action="store_true", help="the reference is asked before the first step")
    parser.add_argument("--encode", nargs=2, metavar=("PART", "MODEL"), help=argparse.SUPPRESS)
    parser.add_argument("--target", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--vocabulary", type=int, default=0, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.encode:
        print(json.dumps(encoded(chosen)))
        return
    for option, known in (("parts", PARTS), ("layouts", LAYOUTS)):
        unknown = [name for name in getattr(chosen, option).split(",") if name not in known]
        if unknown:
            raise SystemExit(f"--{option} {unknown[0]}: give some of {', '.join(known)}, with commas between them")
    results: dict[str, Any] = {}
    titles: dict[str, str] = {}
    for name in chosen.models.split(","):
        made = told([sys.executable, str(HERE / "bench_models.py"), str(chosen.work / "models"), name])[name]
        for part in chosen.parts.split(","):
            with tempfile.TemporaryDirectory(prefix="whet-preference-") as work:
                job, facts = pair_job(part, made["folder"], chosen, Path(work))
                job.update({key: getattr(chosen, key) for key in ("steps", "most", "threads", "seed", "precision")})
                sides: dict[str, Any] = {}
                for layout in chosen.layouts.split(","):
                    only = Namespace(**{**vars(chosen), "only": "trl"}) if sides else chosen
                    records = duel(only, {**job, "peer": {"layout": layout}})
                    sides.update(
                        {f"trl {layout}" if side == "trl" else side: record for side, record in records.items()}
                    )
            title = f"{part}, {name}: {told_pairs(facts)}, {chosen.rows_per_step} per step, {chosen.precision}"
            title += ", reference stored" if job["stored"] else ""
            case = f"{part} {name}"
            results[case], titles[case] = sides, f"{title}, {chosen.threads} threads"
            print(ratio_table(titles[case], sides))
            print(rate_lines(sides, 1.0), flush=True)
            save_results(chosen.results, results, titles)
    name_contended(results)


def told_pairs(facts: dict[str, Any]) -> str:
    """The pairs in a line."""
    spread = f"rows of {facts['shortest']} to {facts['longest']}, median {facts['median']:.0f} tokens"
    return f"{facts['pairs']} pairs, {spread}, prompts {facts['prompt_share']:.0%}"


def pair_job(
    part: str, model: str, chosen: Any, work: Path, vocabulary: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The job of both sides, and what is known of the pairs. With a vocabulary, words stand for the real ones."""
    shared = ("most_tokens", "rows_per_step", "seed", "most")
    options = [word for key in shared for word in (f"--{key.replace('_', '-')}", str(getattr(chosen, key)))]
    command = [sys.executable, str(HERE / "preference_cpu.py"), "--encode", part, model, *options]
    files = ["--pairs", str(pairs_file(chosen.pairs)), "--target", str(work / "pairs.json")]
    facts = told([*command, *files, "--vocabulary", str(vocabulary)])
    job = {
        "kind": part,
        "model": model,
        "rows": facts["kept"],
        "encoded": facts["encoded"],
        "step_tokens": facts["step_tokens"],
        "stored": chosen.stored and part == "dpo",
        **{key: getattr(chosen, key) for key in ("rows_per_step", "batch_rows", "micro_batch_tokens")},
    }
    return job, facts


def pairs_file(path: Path | None) -> Path:
    """The file of pairs: as given, or of the folder that WHET_DATA names."""
    if path is not None:
        return path
    folder = os.environ.get("WHET_DATA")
    if not folder or not (Path(folder) / FILE).exists():
        raise SystemExit(f"no pairs: give --pairs FILE, or set WHET_DATA to a folder with {FILE}")
    return Path(folder) / FILE


def encoded(chosen: Any) -> dict[str, Any]:
    """Encode as whet does, in the order in which whet will take the pairs; keep those that fit and are needed."""
    from transformers import AutoTokenizer

    from whet.data.cursor import Cursor
    from whet.data.pairs import preferences_from
    from whet.data.source import read_rows
    from whet.data.usable import usable

    part, model = chosen.encode
    tokenizer = AutoTokenizer.from_pretrained(model)
    pairs, rows = [], []
    wanted = chosen.rows_per_step * chosen.most
    for pair in usable(read_rows(str(chosen.pairs)), preferences_from, drop=True):
        texts = [pair.chosen, pair.rejected]
        prompt = (
            pair.prompt.text if pair.prompt.text is not None else [dict(message) for message in pair.prompt.messages]
        )
        if chosen.vocabulary:
            texts = [words_of(text, chosen.vocabulary) for text in texts]
            prompt = [{"role": "user", "content": words_of(pair.prompt.question(), chosen.vocabulary)}]
        line = {"prompt": prompt, "chosen": texts[0], "rejected": texts[1]}
        row = peer_row(tokenizer, part, line) if texts[0] != texts[1] else None
        if row is not None and max(row["lengths"]) <= chosen.most_tokens and len(rows) < wanted:
            pairs.append(line)
            rows.append(row)
    if not rows:
        raise SystemExit(f"no pair of {chosen.pairs} fits into {chosen.most_tokens} tokens; give --most-tokens")
    source = chosen.target.with_suffix(".rows.jsonl")
    source.write_text("".join(f"{json.dumps(line)}\n" for line in pairs))
    order, _ = Cursor(len(rows), chosen.seed).take(wanted)
    taken = [rows[number] for number in order]
    chosen.target.write_text(json.dumps(taken))
    lengths = [length for row in rows for length in row["lengths"]]
    pair_lengths = [sum(row["lengths"]) for row in taken]
    return {
        "kept": str(source),
        "encoded": str(chosen.target),
        "pairs": len(rows),
        "shortest": min(lengths),
        "longest": max(lengths),
        "median": median(lengths),
        "prompt_share": 2 * sum(row["shared"] for row in rows) / sum(lengths),
        "step_tokens": [
            sum(pair_lengths[at : at + chosen.rows_per_step]) for at in range(0, wanted, chosen.rows_per_step)
        ],
    }


def peer_row(tokenizer: Any, part: str, line: dict[str, Any]) -> dict[str, Any]:
    """The tokens of a pair as the peer's trainers name them."""
    from whet.data.families import classifier_family, completion_family
    from whet.data.pairs import preferences_from
    from whet.data.rows import Row

    (pair,) = preferences_from([Row(line, "pair")])
    completions = (pair.chosen, pair.rejected)
    if part == "rm":
        judged = classifier_family(tokenizer, pair.prompt, completions)
        tokens = {"chosen_ids": judged[0].tokens, "rejected_ids": judged[1].tokens}
        shared, lengths = judged[0].shared, [len(sequence.tokens) for sequence in judged]
    else:
        family = completion_family(tokenizer, pair.prompt, completions)
        shared, lengths = family[0].action.index(True), [len(sequence.tokens) for sequence in family]
        names = ("chosen_ids", "rejected_ids")
        tokens = {name: sequence.tokens[shared:] for name, sequence in zip(names, family, strict=True)}
        tokens["prompt_ids"] = family[0].tokens[:shared]
    return {**tokens, "shared": shared, "lengths": lengths, "length": max(lengths)}


if __name__ == "__main__":
    main()
