"""What docs/rewards.md and docs/config.md show is what happens."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import whet
from tests.docs.generated_tables import DOCS, REFRESH, TABLES, config_table, refreshed, reward_table
from tests.docs.typed_settings import MODULE, module_text
from tests.support.for_every import for_every
from whet.api.settings import RunSettings
from whet.cli import app
from whet.types import WhetError

ROOT = Path(__file__).parents[2]

PAGE = (DOCS / "rewards.md").read_text(encoding="utf-8")
SOLVED = {
    "prompt": "Write add(a, b).",
    "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
    "code": "def add(a, b):\n    return a + b",
}


@for_every([(page, name) for page, tables in TABLES.items() for name in tables])
def test_the_tables_are_fresh(page, name):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert refreshed(text, name, TABLES[page][name]()) == text, f"stale; refresh it:\n{REFRESH}"


def test_the_types_of_train_are_fresh():
    assert MODULE.read_text() == module_text(), f"run {REFRESH}"
    assert {"steps", "batch", "objective"} <= set(RunSettings.__annotations__)


def test_tables_hold_every_reward_and_key():
    table = reward_table()
    assert "`<think>something</think><answer>something</answer>`, white" in table
    assert "`math_answer`" in table and "`tolerance=" in table and "`guessing`" not in table
    keys = config_table()
    assert (
        "| `reward.parts[].gate_least` | `1.0` |" in keys
        and "| `batch.group_size` | `8` | RL: completions per prompt (>= 1) |" in keys
    )
    assert "(one of tolerate, stop, exclude)" in keys and "(>= 0 and <= 1)" in keys


def test_a_page_without_marks_is_an_error():
    with pytest.raises(ValueError, match="rewards: from the code"):
        refreshed("# Rewards", "rewards", "table")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the files that the page's commands name."""
    folder = tmp_path_factory.mktemp("page")
    rows = [{"prompt": f"{n} + {n} = ", "answer": str(2 * n)} for n in range(1, 5)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "code.jsonl").write_text(json.dumps(SOLVED) + "\n")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (folder / "my_rewards.py").write_text(next(block for block in blocks if "my_rewards.py" in block))
    few = {"batch": {"prompts_per_step": 2, "group_size": 4}, "eval": {"prompts": 4}}
    whet.train("grpo", steps=1, folder=str(folder / "runs" / "first"), config=few, console=False)
    return folder


def page_commands() -> list[str]:
    joined = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.S)).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.startswith("whet ")]


@pytest.mark.parametrize("command", page_commands())
def test_the_commands_of_the_page_run(place, monkeypatch, command):
    if "gym:" in command:
        pytest.importorskip("reasoning_gym", reason="needs the extra `tasks`")
    monkeypatch.chdir(place)
    few = "--set batch.prompts_per_step=2 --set eval.prompts=2" if command.startswith("whet train") else ""
    done = CliRunner().invoke(app, shlex.split(f"{command} {few}")[1:])
    assert done.exit_code == 0 and done.output.strip(), (done.output, done.exception)


def test_the_protections_of_the_page_are_told():
    from whet.reward.sandbox.protections import active_protections

    assert "active_protections().summary()" in PAGE
    told = active_protections().summary()
    assert "stopped: " in told and "wall clock limit" in told and "granted by the kernel: " in told


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ('[{reward="exact_answer"},{reward="think_format",weight=-0.2}]', "pays for doing badly"),
        ('[{reward="exact_answer",weight=0},{reward="think_format",weight=0}]', "every reward has weight 0"),
        ('[{reward="exact_answer"},{reward="think_format",gate="exact_anser"}]', "did you mean 'exact_answer'"),
    ],
)
def test_the_refusals_of_the_page_are_word_for_word(place, monkeypatch, parts, said):
    monkeypatch.chdir(place)
    done = CliRunner().invoke(app, ["train", "grpo", "--steps", "1", "--set", f"reward.parts={parts}"])
    assert isinstance(done.exception, WhetError) and said in str(done.exception)
    assert f"whet: {done.exception}\n" in PAGE


def test_the_toml_of_the_page_makes_parts(place, monkeypatch):
    from whet.tools.workbench.workbench import reward_parts

    monkeypatch.chdir(place)
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    found = []
    for number, block in enumerate(each for each in blocks if "models/" not in each):
        (place / f"{number}.toml").write_text(block)
        found.append([part.name for part in reward_parts([f"{number}.toml"])])
    assert found == [["math_answer", "think_format", "efficiency", "short"], ["exact_answer", "judge"]]
