"""The data of recipes/word_problems.py: what is demonstrated, what is trained on, and what is only ever tested.

    python recipes/word_problem_data.py $WHET_DATA build/word_problems

writes demonstrations.jsonl (GSM8K's solutions and, as --demonstrations says, ASDiv's formulas worked step by step),
train.jsonl (ASDiv and MAWPS; with --gsm8k-questions also that many of GSM8K's training side), eval.jsonl (SVAMP,
GSM8K's test side, held-out ASDiv and MAWPS) and about.json; with --general also general.jsonl, instructions of other
kinds with their completions. The folder given holds gsm8k/train.jsonl.gz and test.jsonl.gz, math/asdiv.jsonl.gz,
mawps.jsonl.gz and svamp.jsonl.gz, for --general sft/rasbt_instruction_data.jsonl.gz and
self_instruct_user_oriented.jsonl.gz, each in its authors' columns. MAWPS has answers only, so nothing demonstrates it.

SVAMP was written by changing questions of ASDiv, and both ASDiv and MAWPS ask some questions many times with other
numbers. So two questions count as alike when half of what one says stands in the other, numbers aside: questions that
are alike lie on the same side of the held-out split, and nothing that is like a test question is learned from.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import json
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALIKE = 0.5  # share of a question's runs of three words that stand in the other one
HELD_OUT = 0.12  # share of the groups of questions that are alike
ONES = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
TENS = "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand"
NUMERALS = frozenset(f"{ONES} {TENS}".split())
ANNOTATION = re.compile(r"<<[^>]*>>")  # of GSM8K's calculator
ASDIV_ANSWER = re.compile(r"(-?\d+(?:\.\d+)?)(?: \((.*)\))?")
Runs = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class Question:
    """A word problem with its answer, and its formula and worked solution where the data has one."""

    source: str
    text: str
    answer: str
    solution: str = ""
    expression: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with gsm8k/ and math/")
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--demonstrations", default="gsm8k,asdiv", help="gsm8k, asdiv or both")
    parser.add_argument("--limit", type=int, default=0, help="rows of each file at most, for a trial; 0 is all")
    parser.add_argument("--gsm8k-questions", type=int, default=0, help="of GSM8K's training side, to train on")
    parser.add_argument("--general", action="store_true", help="write general.jsonl too")
    chosen = parser.parse_args()
    shown = chosen.demonstrations.split(",")
    about = write_data(chosen.data, chosen.folder, shown, chosen.limit, chosen.gsm8k_questions)
    if chosen.general:
        rows = general_rows(chosen.data)[: chosen.limit or None]
        write_rows(chosen.folder / "general.jsonl", rows)
        about["general"] = len(rows)
    print(json.dumps(about, indent=1))


def write_data(
    data: Path, folder: Path, sources: Sequence[str], limit: int = 0, gsm8k_questions: int = 0
) -> dict[str, Any]:
    """Write the three files and about.json, the counts, which are returned; `sources` are those of demonstrations."""
    unknown = sorted(set(sources) - {"gsm8k", "asdiv"})
    if unknown:
        raise SystemExit(f"--demonstrations {unknown[0]}: no such source; expected gsm8k, asdiv or gsm8k,asdiv")
    gsm8k, gsm8k_test = read_gsm8k(data, "train"), read_gsm8k(data, "test")
    svamp = read_svamp(data)
    problems, same = without_repeats([*read_asdiv(data), *read_mawps(data)])
    tests = [*svamp, *gsm8k_test]
    train, held_out = split(problems)
    kept, near = without_alike(train, [*tests, *held_out])
    solved, _ = without_alike(gsm8k, [*tests, *held_out])
    demonstrations = [each for each in (*solved, *kept) if each.solution and each.source in sources]
    left_out = len(train) - len(kept)
    kept = [*kept, *mixed(solved)[:gsm8k_questions]]
    sets = {"svamp": svamp, "held_out": held_out, "gsm8k": gsm8k_test}
    learned = {plain_text(each.text) for each in (*kept, *demonstrations)}
    leaked = [each.text for rows in sets.values() for each in rows if plain_text(each.text) in learned]
    assert not leaked, f"a test question is trained on: {leaked[0]}"
    cut = limit or None
    about = {
        "demonstrations": dict(Counter(each.source for each in demonstrations)),
        "train": dict(Counter(each.source for each in kept)),
        "eval": {name: len(rows[:cut]) for name, rows in sets.items()},
        "asdiv_and_mawps": {
            "repeated": same,
            "held_out": len(held_out),
            "like_svamp": len(near["svamp"]),
            "like_gsm8k_test": len(near["gsm8k"]),
            "left_out": left_out,
        },
        "gsm8k_train_left_out": len(gsm8k) - len(solved),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "demonstrations.jsonl", map(demonstration_row, mixed(demonstrations)[:cut]))
    write_rows(folder / "train.jsonl", map(question_row, mixed(kept)[:cut]))
    write_rows(
        folder / "eval.jsonl",
        ({**question_row(each), "set": name} for name, rows in sets.items() for each in mixed(rows)[:cut]),
    )
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return about


def read_gsm8k(data: Path, side: str) -> list[Question]:
    rows = read_json_lines(data / "gsm8k" / f"{side}.jsonl.gz")
    found = []
    for row in rows:
        solution = ANNOTATION.sub("", row["answer"])
        found.append(Question("gsm8k", row["question"], number(solution.rpartition("####")[2]), solution))
    return found


def read_svamp(data: Path) -> list[Question]:
    rows = read_json_lines(data / "math" / "svamp.jsonl.gz")
    return [Question("svamp", sentence(row["Body"]) + row["Question"], number(row["Answer"])) for row in rows]


def read_mawps(data: Path) -> list[Question]:
    rows = read_json_lines(data / "math" / "mawps.jsonl.gz")
    return [Question("mawps", row["input"], number(row["target"])) for row in rows]


def read_asdiv(data: Path) -> list[Question]:
    """Those whose answer is a number, with their formula worked step by step where it is plain arithmetic."""
    found = []
    for row in read_json_lines(data / "math" / "asdiv.jsonl.gz"):
        answer = ASDIV_ANSWER.fullmatch(row["answer"].strip())
        if answer is not None:
            text = sentence(row["body"]) + row["question"].strip()
            solution = worked_solution(row["formula"], number(answer[1]), answer[2] or "")
            expression = row["formula"].partition("=")[0].strip() if solution else ""
            found.append(Question("asdiv", text, number(answer[1]), solution, expression))
    return found


def general_rows(data: Path) -> list[dict[str, Any]]:
    """Instructions of all kinds with a completion each."""
    rows = read_json_lines(data / "sft" / "rasbt_instruction_data.jsonl.gz")
    for task in read_json_lines(data / "sft" / "self_instruct_user_oriented.jsonl.gz"):
        rows += [{"instruction": task["instruction"], **each} for each in task["instances"]]
    found = []
    for row in rows:
        question = "\n\n".join(part for part in (row["instruction"], row["input"]) if part)
        found.append({"prompt": [{"role": "user", "content": question}], "completion": row["output"]})
    return sorted(found, key=lambda row: position(plain_text(row["prompt"][0]["content"])))


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise SystemExit(f"{path}: no such file; give the folder that holds it with --data")
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def sentence(text: str) -> str:
    """With a full stop and a space at its end, for what follows."""
    text = text.strip()
    return f"{text} " if not text or text[-1] in ".?!,;" else f"{text}. "


def number(value: str | float) -> str:
    """3.0 as 3, 1,200 as 1200."""
    return f"{round(float(str(value).replace(',', '')), 4):.10g}"


OPERATIONS: dict[type, tuple[str, Callable[[float, float], float]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
}


def worked_solution(formula: str, answer: str, unit: str) -> str:
    """`(87-33)/6=9` as lines of one operation each and the answer, in the manner of GSM8K; "" where it is not that."""
    left, equals, _ = formula.partition("=")
    if not equals or formula.count("=") > 1 or not re.fullmatch(r"[\d+\-*/(). ]+", left):
        return ""
    lines: list[str] = []
    try:
        value = evaluated(ast.parse(left.strip(), mode="eval").body, lines)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return ""
    if not lines or number(value) != answer:
        return ""
    return "\n".join([*lines[:-1], f"{lines[-1]} {unit}".rstrip(), f"#### {answer}"])


def evaluated(node: ast.expr, lines: list[str]) -> float:
    """The value of an expression; each operation adds a line."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if not isinstance(node, ast.BinOp) or type(node.op) not in OPERATIONS:
        raise ValueError("not plain arithmetic")
    sign, compute = OPERATIONS[type(node.op)]
    first, second = evaluated(node.left, lines), evaluated(node.right, lines)
    value = compute(first, second)
    lines.append(f"{number(first)} {sign} {number(second)} = {number(value)}")
    return value


def spoken_words(text: str) -> list[str]:
    """Lower case, without punctuation; every number is the same word."""
    words = re.findall(r"[a-z]+|\d+(?:\.\d+)?", text.lower())
    return ["#" if word[0].isdigit() or word in NUMERALS else word for word in words]


def plain_text(text: str) -> str:
    return " ".join(re.findall(r"[a-z]+|\d+(?:\.\d+)?", text.lower()))


def word_runs(text: str) -> Runs:
    """Every run of three words."""
    words = spoken_words(text)
    return frozenset(zip(words, words[1:], words[2:], strict=False)) or frozenset({tuple(words)})


def without_repeats(questions: Sequence[Question]) -> tuple[list[Question], int]:
    """The first of each text, one with a solution before one without; and how many were left out."""
    first: dict[str, Question] = {}
    for each in sorted(questions, key=lambda question: not question.solution):
        first.setdefault(plain_text(each.text), each)
    return list(first.values()), len(questions) - len(first)


def alike(questions: Sequence[Question], others: Sequence[Question]) -> Iterator[tuple[int, int]]:
    """Places of a question and another one that are alike: half of the runs of one stand in the other."""
    places: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    sizes = []
    for place, other in enumerate(others):
        runs = word_runs(other.text)
        sizes.append(len(runs))
        for run in runs:
            places[run].append(place)
    for place, question in enumerate(questions):
        runs = word_runs(question.text)
        shared = Counter(other for run in runs for other in places.get(run, ()))
        yield from ((place, other) for other, count in shared.items() if count >= ALIKE * min(len(runs), sizes[other]))


def split(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """Those to train on and those held out; questions that are alike stay together, and their text alone decides."""
    group = list(range(len(questions)))

    def root(place: int) -> int:
        while group[place] != place:
            group[place] = group[group[place]]
            place = group[place]
        return place

    for one, other in alike(questions, questions):
        group[root(one)] = root(other)
    names: dict[int, str] = {}
    for place, question in enumerate(questions):
        text = plain_text(question.text)
        names[root(place)] = min(text, names.get(root(place), text))
    sides: tuple[list[Question], list[Question]] = ([], [])
    for place, question in enumerate(questions):
        sides[position(names[root(place)]) < HELD_OUT].append(question)
    return sides


def without_alike(
    questions: Sequence[Question], tests: Sequence[Question]
) -> tuple[list[Question], dict[str, set[Question]]]:
    """Those that are like no test question; and those that are, by the test's source."""
    near: defaultdict[str, set[Question]] = defaultdict(set)
    for place, test in alike(questions, tests):
        near[tests[test].source].add(questions[place])
    refused = set().union(*near.values()) if near else set()
    return [each for each in questions if each not in refused], near


def position(text: str) -> float:
    """A number in [0, 1) that only the text decides."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "little") / 2**48


def mixed(questions: Sequence[Question]) -> list[Question]:
    """In an order that their texts alone decide."""
    return sorted(questions, key=lambda each: position(plain_text(each.text)))


def question_row(question: Question) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": question.text}], "answer": question.answer}


def demonstration_row(question: Question) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": question.text}], "completion": question.solution}


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
