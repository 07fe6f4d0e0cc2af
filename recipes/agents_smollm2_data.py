"""The data of recipes/agents_smollm2.py: demonstrations with and without calls, questions to train on, tests.

    python recipes/agents_smollm2_data.py $WHET_DATA build/agents_smollm2

writes demonstrations.jsonl, train.jsonl (ASDiv and MAWPS), eval.jsonl (SVAMP, held-out ASDiv and MAWPS) and about.json.
The folder given holds math/asdiv.jsonl.gz, mawps.jsonl.gz and svamp.jsonl.gz. What is tested, or is like it, is not
learned from: recipes/word_problem_data.py says how.

Each question whose formula is known is demonstrated twice. With the tool: the model calls the calculator, reads the
result and states it, in exactly the conversation that a run with `--tool calculator` plays. Without it: the formula
is worked out line by line. ASDiv has formulas. Of MAWPS a formula is taken where the question has two numbers and
only one operation on them gives the answer.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from word_problem_data import (
    OPERATIONS,
    Question,
    mixed,
    number,
    plain_text,
    question_row,
    read_asdiv,
    read_mawps,
    read_svamp,
    split,
    without_alike,
    without_repeats,
    worked_solution,
    write_rows,
)

from whet.envs.tools.calculator import calculator
from whet.envs.tools.find import tool_environment
from whet.envs.tools.tool_environment import ToolEnvironment
from whet.types import Completion, Message, Prompt

NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


async def called_rows(tokenizer: Any, questions: Sequence[Question]) -> list[dict[str, Any]]:
    """Conversations with one call each, played in the environment of a run: instructions and results are its own."""
    make = tool_environment(["calculator"], tokenizer=tokenizer)
    return [await called_row(make(), each) for each in questions]


async def called_row(environment: ToolEnvironment, question: Question) -> dict[str, Any]:
    opening = await environment.start(Prompt("demonstration", ({"role": "user", "content": question.text},)))
    assert opening is not None
    written = f'<tool_call>calculator(expression="{question.expression}")</tool_call>'
    call: Message = {"role": "assistant", "content": written}
    if opening.tools:  # the model's chat template shows tools, and writes calls in its own way
        function = {"name": "calculator", "arguments": {"expression": question.expression}}
        call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        answers: Sequence[Message] = [
            {"role": "tool", "name": "calculator", "content": calculator(question.expression)}
        ]
    else:
        answers = (await environment.step(Completion(written))).messages
    environment.close()
    stated: Message = {"role": "assistant", "content": f"The answer is {question.answer}."}
    row: dict[str, Any] = {"messages": [*opening.messages, call, *answers, stated]}
    return {**row, "tools": list(opening.tools)} if opening.tools else row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with math/")
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--model", default="smollm2", help="whose chat template decides how calls are written")
    parser.add_argument("--limit", type=int, default=0, help="rows of each file at most, for a trial; 0 is all")
    chosen = parser.parse_args()
    print(json.dumps(write_data(chosen.data, chosen.folder, chosen.model, chosen.limit), indent=1))


def write_data(data: Path, folder: Path, model: str, limit: int = 0) -> dict[str, Any]:
    """Write the three files and about.json, the counts, which are returned."""
    from transformers import AutoTokenizer

    from whet.model.load import local_folder

    tokenizer = AutoTokenizer.from_pretrained(str(local_folder(model) or model))
    svamp = read_svamp(data)
    problems, same = without_repeats([*read_asdiv(data), *read_mawps(data)])
    train, held_out = split(problems)
    kept, near = without_alike(train, [*svamp, *held_out])
    shown = [each for each in map(with_formula, kept) if each.expression]
    sets = {"svamp": svamp, "held_out": held_out}
    learned = {plain_text(each.text) for each in kept}
    leaked = [each.text for rows in sets.values() for each in rows if plain_text(each.text) in learned]
    assert not leaked, f"a test question is trained on: {leaked[0]}"
    cut = limit or None
    about = {
        "demonstrated": dict(Counter(each.source for each in mixed(shown)[:cut])),
        "train": dict(Counter(each.source for each in mixed(kept)[:cut])),
        "eval": {name: len(rows[:cut]) for name, rows in sets.items()},
        "asdiv_and_mawps": {
            "repeated": same,
            "held_out": len(held_out),
            "like_svamp": len(near["svamp"]),
            "left_out": len(train) - len(kept),
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    shown = mixed(shown)[:cut]
    called = asyncio.run(called_rows(tokenizer, shown))
    both = (row for pair in zip(called, map(plain_row, shown), strict=True) for row in pair)
    write_rows(folder / "demonstrations.jsonl", both)
    write_rows(folder / "train.jsonl", map(question_row, mixed(kept)[:cut]))
    write_rows(
        folder / "eval.jsonl",
        ({**question_row(each), "set": name} for name, rows in sets.items() for each in mixed(rows)[:cut]),
    )
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return about


def plain_row(question: Question) -> dict[str, Any]:
    messages = [{"role": "user", "content": question.text}, {"role": "assistant", "content": question.solution}]
    return {"messages": messages}


def with_formula(question: Question) -> Question:
    """The question with an expression for the calculator that gives its answer to the digit, or without one."""
    expression = question.expression
    if question.source == "mawps":
        expression = formula_of(question.text, question.answer)
    if not expression:
        return question
    written = ast.unparse(ast.parse(expression, mode="eval"))
    if calculator(written) != question.answer:
        return replace(question, expression="")
    solution = question.solution or worked_solution(f"{written}={question.answer}", question.answer, "")
    return replace(question, expression=written if solution else "", solution=solution)


def formula_of(text: str, answer: str) -> str:
    """The one operation on the two numbers of a text that gives the answer; "" where there is none, or are several."""
    found = [each.replace(",", "") for each in NUMBER.findall(text)]
    if len(found) != 2:
        return ""
    right = []
    for sign, compute in OPERATIONS.values():
        for first, second in (found, found[::-1]):
            if float(second) or sign != "/":
                value = compute(float(first), float(second))
                right += [(sign, f"{number(first)} {sign} {number(second)}")] if number(value) == answer else []
    return right[0][1] if len({sign for sign, _ in right}) == 1 else ""


if __name__ == "__main__":
    main()
