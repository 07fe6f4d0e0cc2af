"""Real pairs cut into train.jsonl and held_out.jsonl: for recipes/smollm2_dpo.toml and recipes/smollm2_rm.toml.

    python recipes/split_pairs.py pairs.jsonl.gz build/pairs
    python recipes/split_pairs.py pairs.jsonl.gz build/pairs --only source=pandalm --most-characters 400 --train 256

Rows of any shape that whet reads; those it cannot use are left out and counted. All pairs of a prompt lie on one side.
Which side that is, and the order, depend on the prompt's own text alone: a larger split holds the smaller one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from whet.data.pairs import PreferencePair, preferences_from
from whet.data.source import read_rows
from whet.data.usable import left_out_words, usable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a file of pairs")
    parser.add_argument("folder", type=Path, help="where the two files go")
    parser.add_argument("--only", default="", help="COLUMN=VALUE of the rows to take")
    parser.add_argument("--most-characters", type=int, default=0, help="of prompt and longer completion; 0 is no limit")
    parser.add_argument("--most-completion", type=int, default=0, help="characters of the longer completion; 0: any")
    parser.add_argument("--share", type=float, default=0.25, help="of the prompts that are held out")
    parser.add_argument("--train", type=int, default=0, help="pairs at most; 0 is all")
    parser.add_argument("--held-out", type=int, default=0, help="pairs at most; 0 is all")
    chosen = parser.parse_args()
    counts = split_pairs(
        chosen.source,
        chosen.folder,
        only=chosen.only,
        most_characters=chosen.most_characters,
        share=chosen.share,
        most={"train": chosen.train, "held_out": chosen.held_out},
        most_completion=chosen.most_completion,
    )
    for name in ("train", "held_out"):
        print(f"{chosen.folder / name}.jsonl: {counts[name]} pairs")
    print(f"left out: {counts['left_out']}")


def split_pairs(
    source: str,
    folder: Path,
    *,
    only: str,
    most_characters: int,
    share: float,
    most: dict[str, int],
    most_completion: int = 0,
) -> dict[str, Any]:
    """Write train.jsonl and held_out.jsonl; returns how many pairs each has and, in words, what was left out."""
    column, _, value = only.partition("=")
    rows = [each for each in read_rows(source) if not column or str(each.values.get(column)) == value]
    if not rows:
        raise SystemExit(f"no row of {source} has {only}; give --only COLUMN=VALUE of some of its rows")
    pairs = usable(rows, preferences_from, drop=True)
    fitting = [pair for pair in pairs if not most_characters or size(pair) <= most_characters]
    long = len(pairs) - len(fitting)
    short = [pair for pair in fitting if not most_completion or longer_completion(pair) <= most_completion]
    cut, fitting = len(fitting) - len(short), short
    sides: dict[str, list[tuple[float, PreferencePair]]] = {"train": [], "held_out": []}
    for pair in fitting:
        place = position(pair)
        sides["held_out" if place < share else "train"].append((place, pair))
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, Any] = {}
    for name, side in sides.items():
        ordered = [pair for _, pair in sorted(side, key=lambda each: each[0])]
        kept = ordered[: most.get(name) or None]
        text = "".join(f"{json.dumps(row(pair), ensure_ascii=False)}\n" for pair in kept)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
        counts[name] = len(kept)
    told = [
        f"{long} longer than {most_characters} characters" if most_characters else "",
        f"{cut} with a completion longer than {most_completion} characters" if most_completion else "",
        left_out_words(pairs.left_out),
    ]
    return {**counts, "left_out": "; ".join(each for each in told if each) or "none"}


def prompt_of(pair: PreferencePair) -> Any:
    return pair.prompt.text if pair.prompt.text is not None else [dict(each) for each in pair.prompt.messages]


def size(pair: PreferencePair) -> int:
    opening = pair.prompt.text if pair.prompt.text is not None else "".join(m["content"] for m in pair.prompt.messages)
    return len(opening) + longer_completion(pair)


def longer_completion(pair: PreferencePair) -> int:
    return max(len(pair.chosen), len(pair.rejected))


def position(pair: PreferencePair) -> float:
    """A number in [0, 1) that only the prompt decides."""
    text = json.dumps(prompt_of(pair), sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "little") / 2**48


def row(pair: PreferencePair) -> dict[str, Any]:
    found = {"prompt": prompt_of(pair), "chosen": pair.chosen, "rejected": pair.rejected}
    return {**found, "margin": pair.margin} if pair.margin else found


if __name__ == "__main__":
    main()
