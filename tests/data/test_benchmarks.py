"""Benchmark files in their authors' columns: what is asked, what is gold, who judges, and what a bad file says."""

import gzip
import json
from pathlib import Path

import pytest

from tests.support.real_data import data_file
from whet.data.benchmarks import BENCHMARKS, REASON, bare_question
from whet.data.prompts import demonstrations_from, prompts_from
from whet.data.source import parse_source, read_rows
from whet.reward.find import find_reward
from whet.training.assembly.fingerprints import data_digest
from whet.training.assembly.rewards import build_reward_parts
from whet.training.config import resolved_evaluation
from whet.types import WhetError

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'import math\n\ndef area(side):\n    """Area of a square."""\n',
    "entry_point": "area",
    "canonical_solution": "    return math.pow(side, 2)\n",
    "test": "def check(candidate):\n    assert candidate(3) == 9\n",
}
ROWS = {
    "gsm8k": ({"question": "How many?", "answer": "1 + 1,199 = <<1+1199=1200>>1,200\n#### 1,200"}, "How many?", "1200"),
    "math": ({"problem": "Find x.", "solution": "so $x = \\boxed{\\frac12}$."}, "Find x.", "\\frac12"),
    "aime": ({"problem": "Find m + n.", "answer": "060", "year": 1983}, "Find m + n.", "60"),
    "amc": ({"id": 3, "problem": "P", "question": "P", "answer": 27.0}, "P", "27"),
    "olympiadbench": (
        {"question": "All k?", "context": "Let k be odd.", "final_answer": ["$1$", "$3$"], "solution": ["k is 1 or 3"]},
        "Let k be odd.\n\nAll k?",
        "1, 3",
    ),
    "svamp": ({"ID": "c-1", "Body": "He has 2", "Question": "How many?", "Answer": 2.0}, "He has 2. How many?", "2"),
    "asdiv": ({"body": "2 apples.", "question": "How many?", "answer": "2 (apples)"}, "2 apples. How many?", "2"),
    "mawps": ({"input": "How many ?", "target": 43.0}, "How many ?", "43"),
    "gsm_hard": ({"input": "How many?", "target": 2.5, "code": "..."}, "How many?", "2.5"),
    "humaneval": (HUMANEVAL, HUMANEVAL["prompt"], None),
    "humaneval_instruct": (HUMANEVAL, "Complete this Python function.", None),
    "mbpp": (
        {"task_id": 2, "text": "Add.", "code": "def add(a, b):\r\n return a+b", "test_list": ["assert add(1, 2) == 3"]},
        "Add. Write Python code in one ```python block. It must pass these tests:\n\nassert add(1, 2) == 3",
        None,
    ),
    "ifeval": (
        {"key": 7, "prompt": "No, please.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"x": None}]},
        "No, please.",
        None,
    ),
}  # fmt: skip
RIGHT = {
    "olympiadbench": "\\boxed{1, 3}",
    "humaneval": HUMANEVAL["canonical_solution"],
    "ifeval": "Very well then.",
}
WRONG = {
    "ifeval": "Well, no.",
    "humaneval": "    return side\n",
    "humaneval_instruct": "```python\ndef area(s): pass\n```",
}


def written(folder: Path, *rows: object) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_prompt_and_gold_answer(name: str, tmp_path: Path) -> None:
    row, question, answer = ROWS[name]
    (prompt,) = prompts_from(read_rows(f"{name}:{written(tmp_path, row)}"))
    assert prompt.question().startswith(question) if name == "humaneval_instruct" else prompt.question() == question
    assert prompt.answer == answer


@pytest.mark.parametrize("name", BENCHMARKS)
def test_its_own_reward_tells_right_from_wrong(name: str, tmp_path: Path) -> None:
    row, _, answer = ROWS[name]
    source = f"{name}:{written(tmp_path, row)}"
    rows = read_rows(source)
    (prompt,) = prompts_from(rows)
    config = resolved_evaluation({"data": {"source": source}, "eval": {"source": source}}, {})
    (part,) = build_reward_parts(config, wanted=True)
    if name in RIGHT:
        right = RIGHT[name]
    else:
        right = f"It is #### {answer}" if answer else demonstrations_from(rows)[0].completion
    wrong = WRONG.get(name, "#### 77")
    assert scores(part.resolved_reward, prompt, right, wrong) == [1.0, 0.0]


def test_a_chat_model_is_told_the_form_and_paid_for_it(tmp_path: Path) -> None:
    """Of every benchmark: the prompt asks for a form, and the reward pays right answers of that form alone."""
    wrongly = []
    for name, (row, _, answer) in ROWS.items():
        source = f"{name}:{written(tmp_path, row)}"
        rows = read_rows(source, for_chat=True)
        (prompt,) = prompts_from(rows, as_chat=True)
        asked, form = prompt.messages[0]["content"], BENCHMARKS[name].answer_form
        (part,) = build_reward_parts(
            resolved_evaluation({"data": {"source": source}, "eval": {"source": source}}, {}), wanted=True
        )
        solution = rows[0].values.get("solution")
        if "boxed" in form:
            right, wrong, marker = [f"2 + 2 = 5, so\n\\boxed{{{answer}}}"], ["\\boxed{77}", "77"], "within \\boxed{}"
            right += [solution] if solution else []
        else:
            marker = "```python block" if form else row["prompt"]
            right = [solution or RIGHT[name]]
            wrong = [
                WRONG.get("humaneval_instruct" if "humaneval" in name else name, "```python\ndef add(a, b): 0\n```")
            ]
        verdicts = scores(part.resolved_reward, prompt, *right, *wrong)
        if marker not in asked or verdicts != [1.0] * len(right) + [0.0] * len(wrong):
            wrongly.append((name, asked, right, wrong, verdicts))
        plain = prompts_from(read_rows(source))[0]
        if plain.id != prompt.id or plain.answer != prompt.answer:
            wrongly.append((name, "another row", plain, prompt))
    assert wrongly == []


def test_the_sentence_leaves_the_question_as_it_is(tmp_path: Path) -> None:
    source = f"gsm8k:{written(tmp_path, ROWS['gsm8k'][0])}"
    told, bare = (prompts_from(read_rows(source, for_chat=chat))[0].question() for chat in (True, False))
    assert told == f"How many?\n{REASON}" and bare == bare_question(told) == bare_question(bare) == "How many?"


def test_a_file_of_another_benchmark_is_named(tmp_path: Path) -> None:
    for name in ("gsm8k", "mbpp"):
        (tmp_path / name).mkdir()
    gsm8k, mbpp = (written(tmp_path / name, ROWS[name][0]) for name in ("gsm8k", "mbpp"))
    with pytest.raises(WhetError, match=r"a mbpp file has .*'answer', as gsm8k files have"):
        read_rows(f"mbpp:{gsm8k}")
    with pytest.raises(WhetError, match=r"a gsm8k file has .*, as mbpp files have; give the file"):
        read_rows(f"gsm8k:{mbpp}")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(WhetError, match="holds no rows; expected at least one"):
        read_rows(f"gsm8k:{empty}")


def scores(reward, prompt, *completions):
    from whet.tools.workbench.completions import estimated_tokens, sample_of

    return reward([prompt] * len(completions), [sample_of(each, estimated_tokens) for each in completions])


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_missing_column_is_named_with_file_and_line(name: str, tmp_path: Path) -> None:
    row, *_ = ROWS[name]
    for wanted in BENCHMARKS[name].columns:
        lacking = {key: value for key, value in row.items() if key not in wanted.split("|")}
        source = f"{name}:{written(tmp_path, row, lacking)}"
        with pytest.raises(
            WhetError, match=rf"rows\.jsonl:2: .*{wanted.split('|')[0]}.* is missing; a {name} file has"
        ):
            read_rows(source)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("gsm8k", {"answer": "it is 7"}, "answer is 'it is 7'; expected a solution that ends in ####"),
        ("math", {"solution": "no box"}, "solution is 'no box'; expected a solution with its answer in"),
        ("math", {"answer": " "}, "answer is ' '; expected the answer"),
        ("svamp", {"Answer": "many"}, "Answer is 'many'; expected a number"),
        ("mawps", {"target": float("nan")}, "target is nan; expected a number"),
        ("mawps", {"input": ""}, "input is ''; expected some text"),
        ("olympiadbench", {"final_answer": "3"}, "final_answer is '3'; expected a list of texts"),
        ("ifeval", {"kwargs": []}, "kwargs is .*; expected a list with one object per instruction"),
    ],
)
def test_a_wrong_value_is_named(name: str, change: dict[str, object], said: str, tmp_path: Path) -> None:
    row, *_ = ROWS[name]
    with pytest.raises(WhetError, match=rf"rows\.jsonl:2: {said}"):
        read_rows(f"{name}:{written(tmp_path, row, {**row, **change})}")


def test_a_prefix_names_a_benchmark_and_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS["gsm8k"][0])
    parsed = parse_source(f"gsm8k:{path}")
    assert (parsed.name, str(parsed), parsed.is_stored) == (path, f"gsm8k:{path}", True)
    with pytest.raises(WhetError, match=r"no kind of data is called 'gms8k' \(did you mean 'gsm8k'\?\)"):
        read_rows(f"gms8k:{path}")
    with pytest.raises(WhetError, match="names no file"):
        parse_source("gsm8k:")


def test_the_digest_is_of_the_file_and_of_how_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS["gsm8k"][0])
    plain, read = data_digest(path), data_digest(f"gsm8k:{path}")
    assert read == f"gsm8k:{plain}" and plain.startswith("#")


def test_compressed(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(ROWS["mawps"][0]).encode()))
    assert prompts_from(read_rows(f"mawps:{path}"))[0].answer == "43"


def test_rewards_of_formats_exist() -> None:
    for form in BENCHMARKS.values():
        find_reward(form.reward, form.settings)


FILES = {
    "gsm8k/test": ("gsm8k", 1319, 0), "math/math500": ("math", 500, 0), "math/math_train": ("math", 7500, 2),
    "math/aime24": ("aime", 30, 0), "math/aime_1983_2023": ("aime", 975, 0), "math/amc23": ("amc", 40, 0),
    "math/olympiadbench": ("olympiadbench", 675, 0), "math/svamp": ("svamp", 1000, 0),
    "math/asdiv": ("asdiv", 2215, 0), "math/mawps": ("mawps", 2065, 0), "math/gsm_hard": ("gsm_hard", 1319, 0),
    "code/humaneval": ("humaneval", 164, 0), "code/mbpp": ("mbpp", 974, 0), "code/mbpp_sanitized": ("mbpp", 427, 0),
    "ifeval/ifeval_input_data": ("ifeval", 541, 0),
}  # fmt: skip


@pytest.mark.parametrize("path", FILES)
def test_published_files(path: str) -> None:
    name, count, bad = FILES[path]
    file = data_file(f"{path}.jsonl.gz")
    rows = read_rows(f"{name}:{file}", faulty=True)
    assert (len(rows), sum(row.fault is not None for row in rows)) == (count, bad)
    prompts_from([row for row in rows if row.fault is None])


@pytest.mark.parametrize(
    ("path", "name", "count"), [("math/asdiv", "asdiv", 60), ("math/olympiadbench", "olympiadbench", 2)]
)
def test_how_many_gold_answers_no_reward_reads(path: str, name: str, count: int) -> None:
    """docs/data-tools.md says so."""
    from whet.reward.mathematics.math_answer import unread_gold

    file = data_file(f"{path}.jsonl.gz")
    assert sum(each is not None for each in unread_gold(prompts_from(read_rows(f"{name}:{file}")))) == count


def test_which_published_train_sides_hold_test_prompts() -> None:
    """docs/data-tools.md says so."""
    from whet.data.contamination import contamination

    pairs = (("math", "math/math_train", "math/math_test", 3), ("gsm8k", "gsm8k/train", "gsm8k/test", 0))
    for name, train, test, exact in pairs:
        rows = [read_rows(f"{name}:{data_file(f'{each}.jsonl.gz')}", faulty=True) for each in (train, test)]
        sides = [[row.values["prompt"] for row in side if row.fault is None] for side in rows]
        found = contamination(*sides)
        assert len({each.train for each in found if each.kind == "exact"}) == exact
