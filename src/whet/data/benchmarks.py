"""Public benchmarks as their authors publish them: `gsm8k:FILE` reads such a file, in its authors' columns.

Each format says which columns a row must have, what the model is asked, what the gold answer is, and which reward
judges it where the user names none. A chat model is also told which form the answer has; a base model gets the bare
text. The files are the user's own; nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from whet.data.gold import HASHES, after_hashes, boxed
from whet.data.rows import BadRow, Row, value_text

Values = dict[str, Any]
Change = Callable[[Values], Values]
UNIT = re.compile(r"(-?\d+(?:,\d{3})*(?:\.\d+)?)\s*(?:\((.*)\))?")
WRITE_FUNCTION = (
    "Complete this Python function. Reply with the whole function, its imports included, in one ```python block."
)
REASON = "Please reason step by step, and put your final answer within \\boxed{}."
SEVERAL = f"{REASON[:-1]}; separate several answers by commas."
IN_BOX, IN_BLOCK = "the answer in \\boxed{}", "code in one ```python block"


@dataclass(frozen=True)
class BenchmarkFormat:
    """How the rows of one benchmark are read."""

    name: str
    about: str  # what it holds, for the list of formats
    columns: tuple[str, ...]  # a row must have them; "a|b": one of them
    read: Change  # columns of the row -> prompt, answer, id, solution and whatever its reward reads
    reward: str  # judges where the user names none
    settings: Mapping[str, Any] = field(default_factory=dict)  # of that reward
    for_chat: Change = dict  # what was read -> the same, as a chat model is asked
    answer_form: str = ""  # that the prompt of a chat model asks for, in words


class _WrongValue(ValueError):
    """A column that does not hold what the format says: (column, expected)."""


def benchmark_row(row: Row, form: BenchmarkFormat, for_chat: bool = False) -> Row:
    """The row in whet's own columns; a fault names the column that is missing or wrong, and what is expected.

    `for_chat` says in the prompt which form the answer has, and gives a gold solution that form.
    """
    if row.fault is not None:
        return row
    for wanted in form.columns:
        if not _has(row, wanted):
            names = " or ".join(map(repr, wanted.split("|")))
            expected = ", ".join(column.replace("|", " or ") for column in form.columns)
            message = (
                f"{row.where}: {names} is missing; a {form.name} file has {expected}, and this row has "
                f"{', '.join(map(repr, row.values)) or 'nothing'}{_likely(row)}; give the file as its authors publish "
                "it, or read it as a plain file, without the prefix"
            )
            return Row({}, row.where, fault=BadRow(message, f"{names} is missing"))
    try:
        values = form.read(dict(row.values))
    except _WrongValue as error:
        column, expected = error.args
        shown_value = value_text(row.values.get(column))
        message = (
            f"{row.where}: {column} is {shown_value}; expected {expected} ({form.name}); correct the row, or drop it"
        )
        return Row({}, row.where, fault=BadRow(message, f"{column} is not {expected}"))
    return row.changed(form.for_chat(values) if for_chat else values)


def _likely(row: Row) -> str:
    """The benchmark whose columns the row has, in words; nothing where there is none."""
    matching = [form for form in BENCHMARKS.values() if all(_has(row, wanted) for wanted in form.columns)]
    return f", as {max(matching, key=lambda form: len(form.columns)).name} files have" if matching else ""


def _has(row: Row, wanted: str) -> bool:
    return any(row.values.get(name) is not None for name in wanted.split("|"))


def bare_question(prompt: str) -> str:
    """A maths prompt without the sentence on the form of its answer."""
    return prompt.removesuffix(f"\n{REASON}").removesuffix(f"\n{SEVERAL}")


def _text(values: Values, *names: str) -> str:
    """The first of the columns that is there, which must be text."""
    name = next(name for name in names if values.get(name) is not None)
    value = values.pop(name)
    if not isinstance(value, str) or not value.strip():
        raise _WrongValue(name, "some text")
    return value


def _number(values: Values, name: str) -> str:
    """A number as people write it: 145.0 is 145."""
    value = values[name]
    text = str(value).strip().replace(",", "")
    try:
        number = float(text)
    except ValueError:
        raise _WrongValue(name, "a number") from None
    if isinstance(value, bool) or number != number or number in (float("inf"), float("-inf")):
        raise _WrongValue(name, "a number")
    return str(int(number)) if number.is_integer() else text


def _list(values: Values, name: str, of: type) -> list[Any]:
    value = values[name]
    if not isinstance(value, list) or not value or not all(isinstance(member, of) for member in value):
        raise _WrongValue(name, f"a list of {'texts' if of is str else 'objects'}")
    return value


def _sentence(text: str) -> str:
    """The text with a full stop and a space at its end, so that another sentence can follow."""
    text = text.strip()
    return f"{text} " if not text or text[-1] in ".?!,;:" else f"{text}. "


def _boxed(values: Values, sentence: str = REASON) -> Values:
    """Asks for the answer in a box, and puts that of the gold solution into one."""
    changed = {**values, "prompt": f"{values['prompt'].rstrip()}\n{sentence}"}
    solution = values.get("solution")
    if isinstance(solution, str) and not boxed(solution):
        worked = HASHES.split(solution)
        shown = "".join(worked[:-1]) if len(worked) > 1 else solution
        changed["solution"] = f"{shown.rstrip()}\n\\boxed{{{values['answer']}}}"
    return changed


def _gsm8k(values: Values) -> Values:
    solution = _text(values, "answer")
    marks = after_hashes(solution)
    if not marks:
        raise _WrongValue("answer", "a solution that ends in #### and the answer")
    return {**values, "prompt": _text(values, "question"), "answer": marks[-1].replace(",", ""), "solution": solution}


def _math(values: Values) -> Values:
    prompt = _text(values, "problem")
    answer = values.get("answer")
    if answer is None:
        solution = values.get("solution")
        marks = boxed(solution) if isinstance(solution, str) else []
        if not marks or not marks[-1]:
            raise _WrongValue("solution", "a solution with its answer in \\boxed{}")
        answer = marks[-1]
    if not str(answer).strip():
        raise _WrongValue("answer", "the answer")
    converted = {"prompt": prompt, "answer": str(answer)}
    if "unique_id" in values:
        converted["id"] = str(values.pop("unique_id"))
    return {**values, **converted}


def _aime(values: Values) -> Values:
    prompt = _text(values, "problem", "question")
    values.pop("question", None)  # the same text again
    return {**values, "prompt": prompt, "answer": _number(values, "answer")}


def _olympiad(values: Values) -> Values:
    answers = [answer.strip().strip("$").strip() for answer in _list(values, "final_answer", str)]
    context, question = values.pop("context", None), _text(values, "question")
    prompt = f"{context.strip()}\n\n{question}" if isinstance(context, str) and context.strip() else question
    solution = values.get("solution")
    converted: Values = {"prompt": prompt, "answer": ", ".join(answers).replace("$", "")}
    if isinstance(solution, list) and solution and isinstance(solution[0], str):
        converted["solution"] = solution[0]
    return {**values, **converted}


def _svamp(values: Values) -> Values:
    body = "Body" if values.get("Body") is not None else "body"
    asked = "Question" if values.get("Question") is not None else "question"
    name = "Answer" if values.get("Answer") is not None else "answer"
    answer = _number(values, name)
    prompt = _sentence(_text(values, body)) + _text(values, asked).strip()
    converted = {"prompt": prompt, "answer": answer}
    if values.get("ID") is not None:
        converted["id"] = str(values.pop("ID"))
    return {**values, **converted}


def _asdiv(values: Values) -> Values:
    prompt = _sentence(_text(values, "body")) + _text(values, "question").strip()
    answer = _text(values, "answer").strip()
    stated = UNIT.fullmatch(answer)
    converted: Values = {"prompt": prompt, "answer": stated[1].replace(",", "") if stated else answer}
    if stated and stated[2]:
        converted["unit"] = stated[2]
    return {**values, **converted}


def _mawps(values: Values) -> Values:
    asked = next(name for name in ("input", "question", "sQuestion") if values.get(name) is not None)
    name = next(name for name in ("target", "answer", "lSolutions") if values.get(name) is not None)
    if isinstance(values[name], list) and len(values[name]) == 1:
        values[name] = values[name][0]
    return {**values, "answer": _number(values, name), "prompt": _text(values, asked)}


def _humaneval(values: Values) -> Values:
    prompt = _text(values, "prompt")
    converted = {"prompt": prompt, "starter_code": prompt, "id": str(values.pop("task_id"))}
    if isinstance(values.get("canonical_solution"), str):
        converted["solution"] = values["canonical_solution"]
    return {**values, **converted}


def _whole_function(values: Values) -> Values:
    """Asks in words for the whole function, and gives the gold solution with its beginning."""
    beginning = values["prompt"]
    changed = {**values, "prompt": f"{WRITE_FUNCTION}\n\n```python\n{beginning.rstrip()}\n```"}
    if "solution" in values:
        changed["solution"] = f"```python\n{beginning}{values['solution'].rstrip()}\n```"
    return changed


def _humaneval_instruct(values: Values) -> Values:
    return _whole_function(_humaneval(values))


def _mbpp(values: Values) -> Values:
    tests = _list(values, "test_list", str)
    task = _text(values, "text", "prompt").strip()
    shown = "\n".join(tests)
    converted = {
        "prompt": f"{task} Write Python code in one ```python block. It must pass these tests:\n\n{shown}",
        "id": f"mbpp/{values.pop('task_id')}",
    }
    if isinstance(values.get("code"), str):
        code = values["code"].replace("\r\n", "\n").strip()
        converted["solution"] = f"```python\n{code}\n```"
    return {**values, **converted}


def _ifeval(values: Values) -> Values:
    names = _list(values, "instruction_id_list", str)
    settings = values["kwargs"]
    if not isinstance(settings, list) or len(settings) != len(names):
        raise _WrongValue("kwargs", "a list with one object per instruction")
    # tables fill absent keys with null
    listed = [
        {"name": name, **{key: value for key, value in (arguments or {}).items() if value is not None}}
        for name, arguments in zip(names, settings, strict=True)
    ]
    values.pop("instruction_id_list"), values.pop("kwargs")
    converted: Values = {"prompt": _text(values, "prompt"), "instructions": listed}
    if values.get("key") is not None:
        converted["id"] = f"ifeval/{values.pop('key')}"
    return {**values, **converted}


def _maths(name: str, about: str, columns: tuple[str, ...], read: Change, **more: Any) -> BenchmarkFormat:
    return BenchmarkFormat(
        name, about, columns, read, "math_answer", **{"for_chat": _boxed, "answer_form": IN_BOX, **more}
    )


def _code(name: str, about: str, columns: tuple[str, ...], read: Change, **more: Any) -> BenchmarkFormat:
    return BenchmarkFormat(
        name, about, columns, read, "code_tests", settings={"partial": False}, answer_form=IN_BLOCK, **more
    )


BENCHMARKS: Mapping[str, BenchmarkFormat] = {
    benchmark.name: benchmark
    for benchmark in (
        _maths("gsm8k", "grade-school word problems; the answer follows ####", ("question", "answer"), _gsm8k),
        _maths(
            "math", "MATH and MATH-500: competition problems by subject and level",
            ("problem", "answer|solution"), _math,
        ),
        _maths("aime", "AIME, any year: integers from 0 to 999", ("problem|question", "answer"), _aime),
        _maths("amc", "AMC with a number as the answer", ("problem|question", "answer"), _aime),
        _maths(
            "olympiadbench", "OlympiadBench, open-ended maths; several answers count together",
            ("question", "final_answer"), _olympiad, for_chat=partial(_boxed, sentence=SEVERAL),
        ),
        _maths(
            "svamp", "word problems, changed so that a pattern does not solve them",
            ("Body|body", "Question|question", "Answer|answer"), _svamp,
        ),
        _maths(
            "asdiv", "word problems; some answers are a time, a ratio or a name", ("body", "question", "answer"), _asdiv
        ),
        _maths(
            "mawps", "word problems of one or more operations",
            ("input|question|sQuestion", "target|answer|lSolutions"), _mawps,
        ),
        _maths(
            "gsm_hard", "GSM8K with large numbers", ("input|question", "target|answer"), _mawps,
            settings={"tolerance": 1e-9},
        ),
        _code(
            "humaneval", "a function's beginning: base models continue it, chat models are asked in words",
            ("task_id", "prompt", "entry_point", "test"), _humaneval, for_chat=_whole_function,
        ),
        _code(
            "humaneval_instruct", "the same, asked in words of every model",
            ("task_id", "prompt", "entry_point", "test"), _humaneval_instruct,
        ),
        _code(
            "mbpp", "MBPP, also sanitized: a task and three tests that the prompt shows",
            ("task_id", "text|prompt", "test_list"), _mbpp,
        ),
        BenchmarkFormat(
            "ifeval", "instructions that a program can check", ("prompt", "instruction_id_list", "kwargs"), _ifeval,
            "instructions",
        ),
    )
}  # fmt: skip
