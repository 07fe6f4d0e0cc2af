"""Tools: plain functions, classes with a state per episode, a calculator, Python, search, MCP servers.

`tool_environment(["calculator", "my_tools.py:weather"])` checks them once and gives a function that makes the
environment of one episode.
"""

from whet.envs.tools.environment import ToolEnvironment
from whet.envs.tools.find import find_tools, tool_environment
from whet.envs.tools.tool import Tool, ToolFailed, ToolLimits, as_tool

__all__ = ["Tool", "ToolEnvironment", "ToolFailed", "ToolLimits", "as_tool", "find_tools", "tool_environment"]
