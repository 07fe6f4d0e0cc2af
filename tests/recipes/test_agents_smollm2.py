"""recipes/agents_smollm2.py from its command line to its summary, on a tiny model and tiny data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

Recipe = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model's tokenizer and shape with room for the instructions, and random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from whet.model.load import BUILTIN

    folder = tmp_path_factory.mktemp("tiny")
    config = AutoConfig.from_pretrained(BUILTIN / "whetstone")
    config.max_position_embeddings = 2048
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(BUILTIN / "whetstone").save_pretrained(folder)
    return folder


def test_a_call_states_nothing(recipe: Recipe) -> None:
    stated = recipe("last_number").stated_number
    assert stated("The answer is 7.", "7") == 1.0
    assert stated('<tool_call>calculator(expression="3 + 7")</tool_call>', "7") == 0.0


@pytest.mark.parametrize(
    ("text", "answer", "formula"),
    [
        ("Sam had 70 shells and has 27 left. How many are gone?", "43", "70 - 27"),
        ("27 of 70 shells are broken. How many are whole?", "43", "70 - 27"),
        ("6 boxes hold 1,200 pens. How many does each hold?", "200", "1200 / 6"),
        ("2 and 2 pens. How many?", "4", ""),  # a sum or a product
        ("3 boys, 4 girls, 5 cats. How many?", "12", ""),
        ("3 boys and 4 girls. How many ears?", "14", ""),
        ("0 boys and 4 girls. How many?", "4", ""),  # 4 + 0 or 4 - 0
    ],
)
def test_a_formula_is_taken_where_only_one_fits(recipe: Recipe, text: str, answer: str, formula: str) -> None:
    assert recipe("agents_smollm2_data").formula_of(text, answer) == formula


def test_a_demonstration_is_the_conversation_of_a_run(recipe: Recipe, tiny: Path) -> None:
    """Its tokens are those of an episode that says the same, and what the tool answers carries no loss."""
    from transformers import AutoTokenizer

    from whet.data.chat import demonstration_tokens, prompt_tokens, text_tokens
    from whet.data.prompts import demonstrations_from
    from whet.data.rows import Row
    from whet.data.turns import turn_renderer
    from whet.types import Prompt

    tokenizer: Any = AutoTokenizer.from_pretrained(tiny)
    data = recipe("agents_smollm2_data")
    question = data.Question("asdiv", "4 pens and 3 caps, each for 3. What is the price?", "21", "", "(4 + 3) * 3")
    (row,) = asyncio.run(data.called_rows(tokenizer, [question]))
    *asked, call, result, stated = row["messages"]
    assert call["content"] == '<tool_call>calculator(expression="(4 + 3) * 3")</tool_call>'
    assert "21" in result["content"] and stated["content"] == "The answer is 21."
    (demonstration,) = demonstrations_from([Row(row, "row 1")])
    encoded = demonstration_tokens(tokenizer, demonstration, every_completion=True)
    opening = prompt_tokens(tokenizer, Prompt("episode", tuple(asked)))
    answer = turn_renderer(tokenizer, chat=True).answer([*asked, call], [result], ended=False)
    called, ending = text_tokens(tokenizer, call["content"]), text_tokens(tokenizer, stated["content"])
    assert encoded.tokens[:-1] == (*opening, *called, *answer.tokens, *ending)
    learned = [token for token, action in zip(encoded.tokens, encoded.action, strict=True) if action]
    end = encoded.tokens[-1]
    assert learned == [*called, end, *ending, end]


def arguments(data: Path, model: Path, folder: Path, *more: str) -> list[str]:
    words = ["agents_smollm2.py", "--data", str(data), "--model", str(model), "--folder", str(folder), "--seeds", "2"]
    words += ["--sft-steps", "1", "--sft-rows", "2", "--prompts-per-step", "4", "--limit", "4"]
    return [*words, "--set", "batch.group_size=2", "--set", "sampling.max_new_tokens=8", *more]


@pytest.mark.slow
def test_one_command_runs_both_arms_and_measures_both_ways(
    recipe: Recipe,
    word_problems: Path,
    tiny: Path,
    tmp_path: Path,
    commands: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, folder = recipe("agents_smollm2"), tmp_path / "runs"
    monkeypatch.setattr("sys.argv", arguments(word_problems, tiny, folder))
    module.main()
    started = [" ".join(words[:2]) for words in commands]
    assert started.count("train sft") == 2 and started.count("train grpo") == 4
    assert sum(words[0] == "eval" for words in commands) == 2 + 4  # before, and the other way after each run
    values = json.loads((folder / "summary.json").read_text())
    assert values["unfinished"] == [] and values["epochs"] == 2
    for stage in ("after SFT", "calculator", "control"):
        for way in ("with", "without"):
            assert values["stages"][stage][way]["seeds"] == 2
            assert len(values["stages"][stage][way]["svamp"]["values"]) == 2
    assert all(cell for cells in values["table"].values() for cell in cells.values())
    called = [run for run in values["runs"] if run["arm"] == "calculator"]
    assert all(run["stages"][-1]["turns_per_episode"] >= 1 for run in called)
    assert "| after GRPO with the calculator | " in (folder / "summary.md").read_text()

    done = len(commands)
    module.main()
    assert len(commands) == done  # nothing is run twice

    monkeypatch.setattr("sys.argv", arguments(word_problems, tiny, folder, "--learning-rate", "1e-3"))
    with pytest.raises(SystemExit, match="--learning-rate was 1e-05"):
        module.main()
