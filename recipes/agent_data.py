"""The data of recipes/agent_*.toml: questions behind one worked example, so that a small model knows the format.

    python recipes/agent_data.py DATA FOLDER

DATA holds gsm8k/{train,test}.jsonl.gz and math/asdiv.jsonl.gz. FOLDER gets NAME_train.jsonl and NAME_test.jsonl of:

calculator, python   GSM8K's questions
search               questions of ASDiv without their stories, which are corpus.jsonl: those whose own words find their
                     story first of all; no story is asked about in both files
bfcl                 the even and the odd ones of the leaderboard's 200 multi-turn tasks, by name
game                 numbers that a game is made from, other ones to test on
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

PARTS = ("train", "test")
HELD_OUT = 4  # of so many stories one is held out
BEGIN = {"prompt": [{"role": "user", "content": "Begin."}]}  # the environment says what there is to do
SHORTEST = 5  # words of a story
NUMBER = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)\s*(?:\(.*\))?")
PENS = "Tom has 12 red and 3 blue boxes with 4 pens each. How many pens does he have?"
# what was asked, the call, its result, the answer
EXAMPLES = {
    "calculator": (PENS, "```calculator\n(12 + 3) * 4\n```", "60", "\\boxed{60}"),
    "python": (PENS, "```python\nboxes = 12 + 3\nprint(boxes * 4)\n```", "60", "\\boxed{60}"),
    "search": (
        "How many pens does Tom have now?",
        "```search\nTom pens now\n```",
        "[7] Tom had 15 pens. He gave away 3 of them.\n\n[90] There are 4 pens in each of the 6 boxes.",
        "15 - 3 = 12, so the answer is \\boxed{12}.",
    ),
}


def asked(tool: str, question: str, answer: str) -> dict[str, Any]:
    """A row: the worked example, then the question."""
    roles = ("user", "assistant", "tool", "assistant", "user")
    texts = (*EXAMPLES[tool], question)
    return {
        "prompt": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)],
        "answer": answer,
    }


def gsm8k_rows(data: Path, part: str, tool: str) -> Iterator[dict[str, Any]]:
    """GSM8K's questions with the number that their solution ends in."""
    for row in _read(data / "gsm8k" / f"{part}.jsonl.gz"):
        yield asked(tool, row["question"].strip(), row["answer"].rpartition("####")[2].strip().replace(",", ""))


def story_rows(data: Path) -> tuple[list[str], dict[str, list[dict[str, Any]]]]:
    """The stories, and the questions on them by part."""
    from whet.envs.tools.search import CorpusDocument, searcher

    numbers: dict[str, int] = {}  # of a story, as the tool shows it
    questions = []
    for row in _read(data / "math" / "asdiv.jsonl.gz"):
        story, answer = " ".join(row["body"].split()), NUMBER.fullmatch(row["answer"].strip())
        if answer is not None and len(story.split()) >= SHORTEST:
            number = numbers.setdefault(story, len(numbers) + 1)
            questions.append((number, row["question"].strip(), answer[1].replace(",", "")))
    search = searcher([CorpusDocument(story) for story in numbers], 1)
    rows: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS}
    for number, question, answer in questions:
        if search(question).startswith(f"[{number}] "):
            rows["train" if number % HELD_OUT else "test"].append(asked("search", question, answer))
    return list(numbers), rows


def write_data(
    data: Path, folder: Path, runs: Iterable[str] = ("calculator", "python", "search", "bfcl", "game")
) -> None:
    """The files of these runs."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        if run == "search":
            stories, questions = story_rows(data)
            _write(folder / "corpus.jsonl", ({"text": story} for story in stories))
            for part, rows in questions.items():
                _write(folder / f"search_{part}.jsonl", rows)
            continue
        for first, part in enumerate(PARTS):
            file = folder / f"{run}_{part}.jsonl"
            if run == "bfcl":
                _write(file, (BEGIN | {"task": f"multi_turn_base_{number}"} for number in range(first, 200, 2)))
            elif run == "game":
                _write(file, (BEGIN | {"seed": number} for number in range(first, 2000, 2)))
            else:
                _write(file, gsm8k_rows(data, part, run))


def _read(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def _write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("give two folders: python recipes/agent_data.py DATA FOLDER")
    write_data(Path(sys.argv[1]), Path(sys.argv[2]))
