"""The peer's end of the line: a process that has one peer on its path, reads questions and writes answers.

Runs beside the peer's package, never beside whet: nothing of whet is imported here or in the `*_side.py` scripts.
"""

import ast
import inspect
import os
import sys
import textwrap
import traceback

import torch


def serve(questions):
    """Answer until the line closes: a path in, the same path with `.answer` out."""
    line = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    sys.stdout = sys.stderr  # whatever the package prints must not look like an answer
    line.write("ready\n")
    for path in map(str.strip, sys.stdin):
        asked = torch.load(path)
        try:
            answer = questions[asked["question"]](**asked["inputs"])
        except Exception:
            answer = {"error": traceback.format_exc()}
        torch.save(answer, path + ".answer")
        line.write("answered\n")


def gradient(leaf, losses):
    """What the optimizer would see: the gradients of all passes of one step added up, and the losses' sum."""
    total = 0.0
    for loss in losses:
        loss.backward()
        total += float(loss.detach())
    return {"gradient": leaf.grad, "loss": total}


def statements(function, first, last, skip=0):
    """A stretch of a method's own source, compiled as it stands: formulas the peer keeps inside a long method.

    It starts with the assignment to `first` (the next one for each `skip`) and ends with the last assignment to
    `last` in the same block. A peer that renames either raises here instead of answering something else.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        for block in (getattr(node, name, None) for name in ("body", "orelse")):
            if not isinstance(block, list):
                continue
            starts = [index for index, each in enumerate(block) if _assigns(each, first)]
            ends = [index for index, each in enumerate(block) if _assigns(each, last)]
            if len(starts) > skip and ends and starts[skip] <= ends[-1]:
                chosen = ast.Module(block[starts[skip] : ends[-1] + 1], type_ignores=[])
                return compile(ast.fix_missing_locations(chosen), f"{function.__qualname__}: {first}..{last}", "exec")
    raise LookupError(f"{function.__qualname__} has no block that assigns {first} and later {last}")


def _assigns(statement, name):
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def executed(code, function, names):
    """The names as they stand after the stretch has run among the globals of its own module."""
    space = {**inspect.unwrap(function).__globals__, **names}
    exec(code, space)
    return space
