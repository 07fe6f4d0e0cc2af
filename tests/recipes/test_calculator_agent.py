"""recipes/calculator_agent.py: its data is right, its calls are those that the run reads, and the model does learn."""

from __future__ import annotations

import asyncio
import re
from itertools import islice, pairwise
from pathlib import Path

import calculator_agent
import pytest

from whet.envs.tools.find import tool_environment
from whet.model.load import load_model
from whet.settings.layers import merged, read_toml
from whet.training.config import resolved
from whet.types import Completion, Prompt

RECIPES = Path(calculator_agent.__file__).parent
QUESTION = re.compile(r"Work out (\d+)\*(\d+)\+(\d+)")


def asked(row):
    return (row.get("prompt") or row["messages"])[0]["content"]


def right(question):
    first, second, third = map(int, QUESTION.fullmatch(question).groups())
    return str(first * second + third)


@pytest.fixture(scope="module")
def rows():
    return {name: list(islice(calculator_agent.rows(name), 1000)) for name in calculator_agent.COUNTS}


def test_no_question_is_in_two_files(rows):
    sets = [{asked(row) for row in each} for each in rows.values()]
    assert sum(map(len, sets)) == len(set().union(*sets))
    assert list(calculator_agent.rows("train"))[:1000] == rows["train"]


def test_answers_are_right_and_calls_are_shown_in_few_demonstrations(rows):
    for row in rows["train"] + rows["eval"]:
        assert row["answer"] == right(asked(row))
    calls = []
    for row in rows["demonstrations"]:
        *_, last = row["messages"]
        assert last == {"role": "assistant", "content": f"<answer>{right(asked(row))}</answer>"}
        calls.append(sum(turn["role"] == "tool" for turn in row["messages"]))
    shares = {number: calls.count(number) / len(calls) for number in range(3)}
    assert sum(shares.values()) == 1.0
    assert 0.8 < shares[0] < 0.9 and 0.05 < shares[1] < 0.1 and 0.05 < shares[2] < 0.1
    wasteful = [sum(turn["role"] == "tool" for turn in row["messages"]) for row in calculator_agent.wasteful_rows()]
    assert 0.8 < wasteful.count(2) / len(wasteful) < 0.9 and 0 not in wasteful


def test_the_calculator_answers_as_in_the_demonstrations(rows):
    tokenizer = load_model("whetstone", device="cpu").tokenizer
    settings = read_toml(RECIPES / "calculator_rl.toml")["env"]
    make = tool_environment(
        settings["tools"], call_format=settings["call_format"], instructions=False, tokenizer=tokenizer
    )

    async def played(messages):
        environment = make()
        await environment.start(Prompt("p", (messages[0],)))
        for turn, following in pairwise(messages):
            if turn["role"] == "assistant":
                result = await environment.step(Completion(turn["content"]))
                assert [(each["role"], each["content"]) for each in result.messages] == [("tool", following["content"])]
        assert (await environment.step(Completion(messages[-1]["content"]))).done

    calling = [row["messages"] for row in rows["demonstrations"] if len(row["messages"]) > 2]
    for messages in calling[:20]:
        asyncio.run(played(messages))


def test_the_configs_are_read(tmp_path):
    sft = read_toml(RECIPES / "calculator_sft.toml")
    assert resolved("sft", sft, {"data": {"source": "demonstrations.jsonl"}}).data.every_completion
    efficient = {"reward": {"parts": [calculator_agent.RIGHT, calculator_agent.EFFICIENT]}}
    rl = merged(read_toml(RECIPES / "calculator_rl.toml"), efficient)
    config = resolved("grpo", rl, {"data": {"source": "train.jsonl"}})
    assert [part.reward for part in config.reward.parts] == ["exact_answer", "efficiency"]
    assert config.env.tools == ("calculator",) and not config.env.instructions


@pytest.mark.slow
def test_the_tool_is_learned(tmp_path):
    calculator_agent.imitation(tmp_path, console=False)
    run = calculator_agent.reinforcement(tmp_path, 0, console=False)
    assert run.before["accuracy"] < 0.2 and run.after["accuracy"] > 0.8
    assert calculator_agent.reinforcement(tmp_path, 0, "no_tool", console=False).after["accuracy"] < 0.2
