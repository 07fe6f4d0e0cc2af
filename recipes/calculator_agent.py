"""The built-in model learns that its calculator pays: sums it cannot work out, on a CPU.

    python recipes/calculator_agent.py                 # under runs/calculator_agent
    python recipes/calculator_agent.py --efficient     # and that one call is enough

1. `whet train sft` shows the format of calls (recipes/calculator_sft.toml). Most demonstrations state the answer at
   once, which a model of this size cannot learn. The others call the calculator: mostly for the product first, which
   takes two calls, and now and then for the whole sum. All of them are right.
2. `whet train grpo` plays episodes with the calculator (recipes/calculator_rl.toml). Reward: the answer is right;
   with --efficient, calls after the first one cost something where it is.

The same command again keeps what is finished.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import whet
from whet.config.config import merged, read_toml

HERE = Path(__file__).resolve().parent
COUNTS = {"demonstrations": 12000, "train": 2000, "eval": 100}
SHARE_CALLING = 0.22  # of the demonstrations
SHARE_WHOLE = 0.15  # of those that call
RIGHT = {"reward": "exact_answer"}
EFFICIENT = {"reward": "efficiency", "gate": "exact_answer", "settings": {"expected_steps": 1}}


def numbers(name: str) -> Iterator[tuple[int, int, int]]:
    """Those of the questions of a file; no question is in two files."""
    stream, place = random.Random(name), list(COUNTS).index(name)
    while True:
        first, second, third = stream.randint(100, 999), stream.randint(12, 99), stream.randint(1000, 9999)
        if (first + second + third) % len(COUNTS) == place:
            yield first, second, third


def question(first: int, second: int, third: int) -> dict[str, str]:
    return {"role": "user", "content": f"Work out {first}*{second}+{third}"}


def called(expression: str, result: int) -> list[dict[str, str]]:
    """A call, and what the calculator answers."""
    call = f'<tool_call>calculator("{expression}")</tool_call>'
    return [{"role": "assistant", "content": call}, {"role": "tool", "content": str(result)}]


def demonstration(stream: random.Random, first: int, second: int, third: int) -> list[dict[str, str]]:
    """A right conversation: without a call, with one, or with two."""
    product, total = first * second, first * second + third
    turns = [question(first, second, third)]
    if stream.random() < SHARE_CALLING:
        if stream.random() < SHARE_WHOLE:
            turns += called(f"{first}*{second}+{third}", total)
        else:
            turns += called(f"{first}*{second}", product) + called(f"{product}+{third}", total)
    return [*turns, {"role": "assistant", "content": f"<answer>{total}</answer>"}]


def rows(name: str) -> Iterator[dict[str, Any]]:
    stream, drawn = random.Random(f"{name}/calls"), numbers(name)
    for _ in range(COUNTS[name]):
        first, second, third = next(drawn)
        if name == "demonstrations":
            yield {"messages": demonstration(stream, first, second, third)}
        else:
            yield {"prompt": [question(first, second, third)], "answer": str(first * second + third)}


def write_data(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in COUNTS:
        text = "".join(f"{json.dumps(row)}\n" for row in rows(name))
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def imitation(folder: Path, console: bool = True) -> Any:
    """The run of stage 1."""
    write_data(folder / "data")
    return _trained("sft", "calculator_sft.toml", folder / "sft", folder / "data" / "demonstrations.jsonl", {}, console)


def reinforcement(folder: Path, seed: int, *, efficient: bool = False, tool: bool = True, console: bool = True) -> Any:
    """A run of stage 2; without the tool every episode is one completion."""
    settings: dict[str, Any] = {
        "seed": seed,
        "model": {"name": str(folder / "sft")},
        "eval": {"source": str(folder / "data" / "eval.jsonl")},
    }
    if efficient:
        settings["reward"] = {"parts": [RIGHT, EFFICIENT]}
    name = "efficient" if efficient else "plain" if tool else "no_tool"
    place = folder / f"{name}-seed{seed}"
    return _trained(
        "grpo",
        "calculator_rl.toml",
        place,
        folder / "data" / "train.jsonl",
        settings,
        console,
        drop=() if tool else ("env",),
    )


def _trained(
    method: str,
    recipe: str,
    place: Path,
    data: Path,
    settings: Mapping[str, Any],
    console: bool,
    drop: tuple[str, ...] = (),
) -> Any:
    if not (place / "run.json").is_file():
        values = {key: value for key, value in read_toml(str(HERE / recipe)).items() if key not in drop}
        whet.train(method, data=str(data), config=merged(values, settings), folder=str(place), console=console)
    return whet.load(place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/calculator_agent"), help="of everything")
    parser.add_argument("--seed", type=int, default=0, help="of stage 2")
    parser.add_argument("--efficient", action="store_true", help="reward fewer calls too")
    chosen = parser.parse_args()
    imitation(chosen.folder)
    reinforcement(chosen.folder, chosen.seed, efficient=chosen.efficient)


if __name__ == "__main__":
    main()
