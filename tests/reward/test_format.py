"""Both shapes of an agent's completion can reach 1, and every fault costs what it should."""

from __future__ import annotations

import pytest

from tests.support.for_every import for_every
from whet.reward.format import agent_format, think_format
from whet.types import WhetError

THOUGHT = "<think>The area of the circle is pi times the square of 5.</think>"
CALL = "<tool_call>calculator(expression='3.14159 * 5**2')</tool_call>"


@for_every(
    [
        (THOUGHT + CALL, 1.0),
        (f"{THOUGHT}\nI will compute it.\n{CALL}\n", 1.0),
        (THOUGHT + '<tool_call>{"name": "c", "arguments": {"x": 1}}</tool_call>', 1.0),
        (f"{THOUGHT} 78.54", 1.0),
        (THOUGHT + "<tool_call>what is it</tool_call>", 0.8),
        ("<think>short</think> 78.54", 0.8),
        (f"so {THOUGHT} 78.54", 0.8),
        (f"{THOUGHT}{CALL}{CALL}", 0.8),
        (f"{THOUGHT}{THOUGHT} 78.54", 0.4),
        (f"<think>{THOUGHT}</think> 78.54", 0.4),
        (f"<think>I wonder, and call a tool: {CALL}</think> 78.54", 0.8),
        (THOUGHT, 0.6),
        (CALL, 0.4),
        (f"{THOUGHT}<tool_call>f(1)", 0.2),
        ("<think>never closed, 78.54", 0.0),
        ("78.54", 0.0),
        ("", 0.0),
        ("<think>\u200b</think> \u200b", 0.4),
    ]
)
def test_agent_format(completion: str, expected: float) -> None:
    assert agent_format(completion) == pytest.approx(expected)


def test_settings_of_the_format() -> None:
    assert agent_format(f"{THOUGHT}{CALL}{CALL}", max_calls=2) == 1.0
    assert agent_format(f"{THOUGHT} 78.54", answer_tag="answer") == pytest.approx(0.6)
    assert agent_format(f"{THOUGHT}<answer>78.54</answer>", answer_tag="answer") == 1.0
    assert agent_format("<plan>First this, then that, then the end.</plan> 7", think_tag="plan") == 1.0
    assert agent_format(f"{THOUGHT}<call>f(x=1)</call>", call_tag="call") == 1.0
    assert agent_format("<think>short</think> 7", shortest_thought=5) == 1.0
    assert think_format("<r>a</r><a>b</a>", think_tag="r", answer_tag="a") == 1.0
    assert think_format("<think>a</think><answer>b</answer>", think_tag="r", answer_tag="a") == 0.0
    with pytest.raises(WhetError, match="max_calls 0"):
        agent_format("x", max_calls=0)
