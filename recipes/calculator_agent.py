"""The built-in model learns that its calculator pays: sums it cannot work out, on a CPU.

    python recipes/calculator_agent.py                 # under runs/calculator_agent
    python recipes/calculator_agent.py --efficient     # another one, which calls too often, learns to call once

1. `whet train sft` shows the format of calls (recipes/calculator_sft.toml). Most demonstrations state the answer at
   once, which a model of this size cannot learn. The others call the calculator, for the whole sum, or for the product
   first, which takes two calls. All of them are right.
2. `whet train grpo` plays episodes with the calculator (recipes/calculator_rl.toml). Reward: the answer is right.

With --efficient, stage 1 goes on with demonstrations that all call, most of them twice, and in stage 2 calls after the
first one cost something where the answer is right. The same command again keeps what is finished.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import whet
from whet.settings.layers import merged, read_toml

HERE = Path(__file__).resolve().parent
COUNTS = {"demonstrations": 12000, "train": 2000, "eval": 100}
SHARE_CALLING, SHARE_WHOLE = 0.15, 0.5  # of the demonstrations, and of those that call
WASTEFUL_COUNT, WASTEFUL_ONCE = 2000, 0.15  # demonstrations that all call, most of them twice
WASTEFUL = {"steps": 40, "optimizer": {"learning_rate": 1e-3}, "report": {"save_every": 40}}
# drawn at 1, a model this small makes mistakes with every letter: shorter episodes are then more often right
WASTEFUL_TEMPERATURE = 0.5
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


def wasteful_rows() -> Iterator[dict[str, Any]]:
    """Conversations that call for the whole sum, and most of them then for the same again."""
    stream, drawn = random.Random("wasteful"), numbers("demonstrations")
    for _ in range(WASTEFUL_COUNT):
        first, second, third = next(drawn)
        total = first * second + third
        calls = called(f"{first}*{second}+{third}", total) * (1 if stream.random() < WASTEFUL_ONCE else 2)
        answer = {"role": "assistant", "content": f"<answer>{total}</answer>"}
        yield {"messages": [question(first, second, third), *calls, answer]}


def write_data(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in {**{name: rows(name) for name in COUNTS}, "wasteful": wasteful_rows()}.items():
        text = "".join(f"{json.dumps(row)}\n" for row in found)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def imitation(folder: Path, console: bool = True) -> Any:
    """The run of stage 1."""
    write_data(folder / "data")
    return _trained("sft", "calculator_sft.toml", folder / "sft", folder / "data" / "demonstrations.jsonl", {}, console)


def wasteful_imitation(folder: Path, console: bool = True) -> Any:
    """Stage 1, and more of it: a model that always calls, and mostly twice."""
    imitation(folder, console)
    settings = merged(WASTEFUL, {"model": {"name": str(folder / "sft")}})
    data = folder / "data" / "wasteful.jsonl"
    return _trained("sft", "calculator_sft.toml", folder / "wasteful_sft", data, settings, console)


def reinforcement(folder: Path, seed: int, kind: str = "plain", console: bool = True) -> Any:
    """A run of stage 2: `plain`, without a `tool`, or from the wasteful model, which `efficient` pays to waste less."""
    start = "wasteful_sft" if kind in ("wasteful", "efficient") else "sft"
    settings: dict[str, Any] = {
        "seed": seed,
        "model": {"name": str(folder / start)},
        "eval": {"source": str(folder / "data" / "eval.jsonl")},
    }
    if start == "wasteful_sft":
        settings["sampling"] = {"temperature": WASTEFUL_TEMPERATURE}
    if kind == "efficient":
        settings["reward"] = {"parts": [RIGHT, EFFICIENT]}
    place, data = folder / f"{kind}-seed{seed}", folder / "data" / "train.jsonl"
    drop = ("env",) if kind == "no_tool" else ()
    return _trained("grpo", "calculator_rl.toml", place, data, settings, console, drop)


def _trained(
    method: str,
    recipe: str,
    place: Path,
    data: Path,
    settings: Mapping[str, Any],
    console: bool,
    drop: tuple[str, ...] = (),
) -> Any:
    if (place / "run.json").is_file():
        run = whet.load(place)
        return run if run.status == "finished" else whet.resume(place, console=console)
    values = {key: value for key, value in read_toml(HERE / recipe).items() if key not in drop}
    return whet.train(method, data=str(data), config=merged(values, settings), folder=str(place), console=console)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/calculator_agent"), help="of everything")
    parser.add_argument("--seed", type=int, default=0, help="of stage 2")
    parser.add_argument("--efficient", action="store_true", help="learn to call once instead of twice")
    chosen = parser.parse_args()
    if chosen.efficient:
        wasteful_imitation(chosen.folder)
        reinforcement(chosen.folder, chosen.seed, "efficient")
    else:
        imitation(chosen.folder)
        reinforcement(chosen.folder, chosen.seed)


if __name__ == "__main__":
    main()
