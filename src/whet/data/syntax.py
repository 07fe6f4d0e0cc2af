"""Python's own parser, for texts of a model that are read in several threads.

The parser makes its trees with a counter that all threads share. Where garbage is collected meanwhile and another
thread comes to parse, it ends in a SystemError ("AST constructor recursion depth mismatch", seen with Python 3.11.7).
What the parser warns of is no business of the log.
"""

from __future__ import annotations

import ast
import threading
import warnings

ATTEMPTS = 5  # a tool of somebody else's may be parsing, too
_ONE_AT_A_TIME = threading.RLock()


def statements(text: str) -> list[ast.stmt]:
    """The statements of a program; raises what `ast.parse` does."""
    tree = _parsed(text, "exec")
    assert isinstance(tree, ast.Module)
    return tree.body


def expression(text: str) -> ast.expr:
    """The syntax tree of a text that is one expression; raises what `ast.parse` does."""
    tree = _parsed(text, "eval")
    assert isinstance(tree, ast.Expression)
    return tree.body


def _parsed(text: str, mode: str) -> ast.AST:
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for attempt in range(ATTEMPTS):
            try:
                return ast.parse(text, mode=mode)
            except SystemError:
                if attempt == ATTEMPTS - 1:
                    raise
    raise AssertionError
