"""Tools of MCP servers: real server processes over their standard input and output."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from pathlib import Path

import pytest

from tests.support.packages import needs
from whet.envs.tools.find import tool_environment
from whet.types import Completion, InitialObservation, Prompt, StepResult, WhetError

pytestmark = needs("mcp")

SERVER = """
import os, time
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("notes")
notes = []

@server.tool()
def note(text: str) -> int:
    '''Keep a note.'''
    notes.append(text)
    return len(notes)

@server.tool()
def process() -> int:
    '''The number of the process.'''
    return os.getpid()

@server.tool()
def flood(n: int) -> str:
    '''Write a lot.'''
    return "x" * n

@server.tool()
def fail() -> str:
    '''Fail.'''
    raise ToolError("there is no such note")

@server.tool()
async def nap(seconds: float) -> str:
    '''Sleep.'''
    import anyio
    await anyio.sleep(seconds)
    return "rested"

@server.tool()
def die() -> str:
    '''End the process.'''
    os._exit(1)

server.run()
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    file = tmp_path_factory.mktemp("mcp") / "server.py"
    file.write_text(SERVER)
    return f"{sys.executable} {shlex.quote(str(file))}"


@pytest.fixture(scope="module")
def make(command):
    return tool_environment([f"mcp:{command}"], tool_seconds=3, characters=200)


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def opened(environment, *turns: str) -> tuple[InitialObservation, list[StepResult]]:
    async def play() -> tuple[InitialObservation, list[StepResult]]:
        opening = await environment.start(Prompt("p", ({"role": "user", "content": "?"},)))
        return opening, [await environment.step(Completion(turn)) for turn in turns]

    try:
        return asyncio.run(play())
    finally:
        environment.close()


def played(environment, *turns: str) -> list[StepResult]:
    return opened(environment, *turns)[1]


def texts(result: StepResult) -> list[str]:
    return [message["content"] for message in result.messages]


def test_a_real_server_is_called_and_its_state_belongs_to_one_episode(make):
    opening, results = opened(
        make(),
        call("note", text="a") + call("note", text="b"),
        call("note", text=3),
        call("fail"),
        call("flood", n=5000),
        call("process"),
    )
    assert [tool["function"]["name"] for tool in opening.tools] == ["note", "process", "flood", "fail", "nap", "die"]
    assert opening.tools[0]["function"]["parameters"]["properties"]["text"]["type"] == "string"
    assert texts(results[0]) == ["1", "2"]
    assert texts(results[1]) == ["error: note: argument text: expected string, got 3"]
    assert texts(results[2])[0].startswith("error: fail: ") and "no such note" in texts(results[2])[0]
    assert results[2].counts == {"tool_calls": 1, "tool_errors": 1}
    assert results[3].counts == {"tool_calls": 1, "truncated_results": 1} and len(texts(results[3])[0]) < 300
    process = Path(f"/proc/{texts(results[4])[0]}")
    # the next episode has a server without notes; a call that hangs is given up, and one that ends the server is told
    results = played(make(), call("nap", seconds=60), call("note", text="a"), call("die"), call("note", text="b"))
    assert texts(results[0]) == ["error: nap: took longer than 3 s and was given up"]
    assert results[0].counts == {"tool_calls": 1, "tool_timeouts": 1}
    assert texts(results[1]) == ["1"]
    assert texts(results[2]) == ["error: die: its server has ended"]
    assert texts(results[3]) == ["error: note: its server has ended"]
    assert results[3].counts == {"tool_calls": 1, "tool_errors": 1}
    deadline = time.monotonic() + 10
    while process.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not process.exists()  # it ended with its episode


@pytest.mark.slow
def test_a_shared_server_lives_through_the_run_and_is_started_again(command, caplog):
    make = tool_environment([f"mcp-shared:{command}"], tool_seconds=5)
    assert texts(played(make(), call("note", text="a"))[0]) == ["1"]
    results = played(make(), call("note", text="b"), call("die"), call("note", text="c"))
    assert [texts(result)[0] for result in results] == ["2", "error: die: its server has ended", "1"]
    assert "is started again" in caplog.text


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("no-such-program --now", "its server did not start: there is no such program"),
        (f"{sys.executable} -c 1/0", "its last words: ZeroDivisionError"),
        ("'torn", "the command cannot be read"),
    ],
)
def test_a_server_that_does_not_start_gets_one_line(command, line):
    with pytest.raises(WhetError, match=line) as met:
        tool_environment([f"mcp:{command}"])
    assert "\n" not in str(met.value)


@pytest.mark.slow
def test_two_servers_with_tools_of_one_name_are_refused(command):
    with pytest.raises(WhetError, match="two tools are called 'note'"):
        tool_environment([f"mcp:{command}", f"mcp-shared:{command}"])


def test_without_the_package_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(WhetError, match=r"needs the package mcp; run pip install 'whet\[mcp\]'"):
        tool_environment(["mcp:server"])
