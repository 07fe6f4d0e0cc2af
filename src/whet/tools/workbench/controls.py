"""Wrong completions that no reward may pay: an empty one, one without an answer, code that does nothing.

A reward that gives one of them full marks on every prompt cannot tell right from wrong: most often its tests never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from whet.reward.code_tests import CodeTests, PromptTests, code_of, tests_of
from whet.tools.workbench.completions import SOLUTION_COLUMNS, Encode, TrialCompletion, estimated_tokens, sample_of
from whet.types import Prompt

MOST_PROMPTS = 50  # controls show a reward's fault on few prompts or on none
BODIES = {"pass": "pass", "return None": "return None"}
PROGRAMS = {"pass": "pass", "print()": "print()"}
TEXTS = {"empty": "", "no answer": "I do not know.", "None": "<answer>None</answer>"}


def wrong_controls(
    items: Sequence[TrialCompletion], reward: Any, encode: Encode = estimated_tokens
) -> list[TrialCompletion]:
    """Wrong completions for the prompts of `items`, in the form that the reward reads."""
    by_prompt = {item.prompt.id: item for item in items}
    chosen = list(by_prompt.values())
    if len(chosen) > MOST_PROMPTS:
        chosen = [chosen[index * len(chosen) // MOST_PROMPTS] for index in range(MOST_PROMPTS)]
    return [
        replace(item, sample=sample_of(completion, encode), kind=kind, parts={}, reward=None)
        for item in chosen
        for kind, completion in _wrong_completions(item.prompt, reward)
    ]


def _wrong_completions(prompt: Prompt, reward: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(reward, CodeTests):
        yield from TEXTS.items()
        return
    tests = tests_of(prompt, reward.prelude, reward.tolerance)
    yield "empty", ""
    for kind, code in _wrong_codes(prompt, tests):
        yield kind, f"```python\n{code}\n```"


def _wrong_codes(prompt: Prompt, tests: PromptTests) -> Iterator[tuple[str, str]]:
    if tests.test_spec is None:
        yield from PROGRAMS.items()
        return
    known = _definitions(prompt)
    for kind, body in BODIES.items():
        yield kind, "\n\n".join(_stub(name, known.get(name), body) for name in sorted(tests.names or {"solution"}))


def _definitions(prompt: Prompt) -> dict[str, ast.stmt]:
    """The functions and classes that the prompt or its solution defines, by name."""
    definitions: dict[str, ast.stmt] = {}
    columns = ("starter_code", "prompt", "solutions", *SOLUTION_COLUMNS)
    for text in (prompt.question(), *(prompt.meta.get(column) for column in columns)):
        if isinstance(text, str):
            # the beginning of a function has no body yet
            for code in (code_of(text) or "", f"{(code_of(text) or '').rstrip()}\n        pass\n"):
                for node in _parsed(code):
                    if isinstance(node, ast.FunctionDef | ast.ClassDef):
                        definitions.setdefault(node.name, node)
    return definitions


def _parsed(code: str) -> list[ast.stmt]:
    try:
        return ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _stub(name: str, known: ast.stmt | None, body: str) -> str:
    """A function or class of this name whose functions have the same parameters and do nothing."""
    if isinstance(known, ast.ClassDef):
        methods = [_function(node.name, node.args, body) for node in known.body if isinstance(node, ast.FunctionDef)]
        inner = "\n".join(methods or ["pass"]).replace("\n", "\n    ")
        return f"class {name}:\n    {inner}"
    if isinstance(known, ast.FunctionDef):
        return _function(name, known.args, body)
    if name[:1].isupper():
        return f"class {name}:\n    def __getattr__(self, name):\n        return lambda *given, **named: None"
    return f"def {name}(*given, **named):\n    {body}"


def _function(name: str, parameters: ast.arguments, body: str) -> str:
    """Its parameters by name alone: annotations and defaults may need names that are not there."""
    plain = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
    first_optional = len(plain) - len(parameters.defaults)
    signature = [argument if index < first_optional else f"{argument}=None" for index, argument in enumerate(plain)]
    star = f"*{parameters.vararg.arg}" if parameters.vararg else "*" if parameters.kwonlyargs else ""
    named = [f"{parameter.arg}=None" for parameter in parameters.kwonlyargs]
    rest = f"**{parameters.kwarg.arg}" if parameters.kwarg else ""
    body = "pass" if name == "__init__" else body
    return f"def {name}({', '.join(filter(None, [*signature, star, *named, rest]))}):\n    {body}"
