"""Tools: plain functions, classes with a state per episode, a calculator, Python, search, MCP servers.

`tool_environment(["calculator", "my_tools.py:weather"])` checks them once and gives a function that makes the
environment of one episode.
"""
