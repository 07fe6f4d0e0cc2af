"""The reward of prompts from `gym:NAME`: reasoning-gym's own verifier, on the explicit answer of the completion.

Some of its verifiers hand the answer to `eval`, or to sympy's parser, which evaluates Python too: a completion could
run code in the trainer. So a verifier is called here with both replaced: `eval` reads literals only, and the parser
takes nothing but arithmetic of a bounded size. Verifiers that accept anything are told by a nonsense answer.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any, Literal, NamedTuple

from whet.data.gym_prompts import gym_dataset, reasoning_gym_package
from whet.limit import Overrun, limited
from whet.reward.answer import explicit_answers, normal_form
from whet.types import Prompt, WhetError

LONGEST_ANSWER = 20_000  # characters; longer ones are wrong without a look
MOST_ANSWERS = 4  # different ones that are looked at; more are a guess
VERIFYING_SECONDS = 3.0
NONSENSE = "whet: no answer at all"
LARGEST_NUMBER = 4096  # bits of a number in a formula
LARGEST_POWER = 1024
FUNCTIONS = frozenset(
    (
        *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
        *("asinh", "acosh", "atanh", "exp", "log", "ln", "sqrt", "Abs"),
    )
)
CONSTANTS = frozenset(("pi", "E", "C"))


def gym_answer(prompt: Prompt, completion: str, *, partial: bool = True) -> float | None:
    """The dataset's own score of the completion's explicit answer, in [0, 1]; 0 without one.

    Of several different answers the worst counts. `partial=False` makes everything below full marks 0: many
    verifiers give 0.01 for any answer, which is all a group of wrong completions would be told apart by. None where
    the gold answer itself does not get full marks.
    """
    source = _source(prompt)
    kind = _verification(source)
    if kind == "none":
        return None
    answers = list(dict.fromkeys(explicit_answers(completion)))
    if not answers or len(answers) > MOST_ANSWERS or any(len(answer) > LONGEST_ANSWER for answer in answers):
        return 0.0
    entry = _entry(source)
    if kind == "exact":
        return float(all(normal_form(answer) == normal_form(entry["answer"]) for answer in answers))
    worst = min(_verdict(_dataset_of(source), answer, entry) or 0.0 for answer in answers)
    return worst if partial or worst == 1.0 else 0.0


class GymSource(NamedTuple):
    """Everything needed to draw an entry again."""

    name: str
    seed: int
    settings: str  # JSON
    position: int
    literal: str | None  # the entry itself, where it can be written down


@functools.lru_cache(maxsize=4096)
def _verification(source: GymSource) -> Literal["verifier", "exact", "none"]:
    """How completions to the entry are judged. A verifier that accepts nonsense gives way to the gold answer."""
    entry, dataset = _entry(source), _dataset_of(source)
    gold = entry.get("answer")
    if _verdict(dataset, NONSENSE, entry) == 1.0:
        return "none" if gold is None else "exact"
    return "verifier" if gold is None or _verdict(dataset, str(gold), entry) == 1.0 else "none"


def _verdict(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float | None:
    """What the verifier says; None where it raises, 0 where it takes too long."""
    try:
        verifier = _guarded_verifier(type(dataset))  # type: ignore[arg-type]
        score = float(limited(lambda: verifier(dataset, answer, dict(entry)), VERIFYING_SECONDS))
    except Overrun:
        return 0.0
    except Exception:
        return None
    if not math.isfinite(score):
        return None
    stricter = STRICTER.get(_dataset_name(entry))
    return min(max(score, 0.0), 1.0) if stricter is None or stricter(answer, entry) else 0.0


def _uses_given_numbers(answer: str, entry: Mapping[str, Any]) -> bool:
    """The package checks the result and the size of the numbers, not that they are the ones given."""
    used = sorted(int(number) for number in re.findall(r"\d+", answer))
    return used == sorted(entry["metadata"]["numbers"])


STRICTER: Mapping[str, Callable[[str, Mapping[str, Any]], bool]] = {"puzzle24": _uses_given_numbers}


@functools.cache
def _guarded_verifier(kind: type) -> Callable[[Any, str, dict[str, Any]], float]:
    """The class's `score_answer`, with nothing in reach that evaluates a text."""
    verifier: Any = kind.score_answer  # type: ignore[attr-defined]
    names = dict(verifier.__globals__)
    for name, value in names.items():
        if isinstance(value, ModuleType) and value.__name__ == "sympy":
            names[name] = _GuardedModule(value)
        elif getattr(value, "__name__", "") in ("parse_expr", "sympify") and callable(value):
            names[name] = functools.partial(_parsed_formula, value)
    names["eval"] = ast.literal_eval
    names["exec"] = _refused
    return FunctionType(verifier.__code__, names, verifier.__name__, verifier.__defaults__, verifier.__closure__)


class _GuardedModule:
    """sympy, with parsers that look first."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return functools.partial(_parsed_formula, value) if name in ("parse_expr", "sympify", "S") else value


def _refused(*_: Any) -> None:
    raise ValueError("a verifier may not run a completion")


def _parsed_formula(parse: Callable[..., Any], text: Any, *arguments: Any, **settings: Any) -> Any:
    if isinstance(text, str):
        check_formula(text)
    return parse(text, *arguments, **settings)


def check_formula(text: str) -> None:
    """Raise ValueError unless the text is arithmetic over numbers, symbols and known functions, of bounded size."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError("not a formula") from None
    _bits(tree.body)


def _bits(node: ast.expr) -> float:
    """An upper bound on the bits of a constant formula's numerator and denominator; symbols count 1."""
    bits = _bits_of_kind(node)
    if bits > LARGEST_NUMBER:
        raise ValueError("too large")
    return bits


def _bits_of_kind(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return max(1.0, math.log2(abs(number) + 1)) if math.isfinite(number) else math.inf
        case ast.Name(id=name) if re.fullmatch(r"[A-Za-z]\d?", name) or name in CONSTANTS:
            return 1.0
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _bits(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return _bits(left) + _bits(right) + 1
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bits(left) * max(1.0, _magnitude(right))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
            return _bits(argument) + 1
    raise ValueError("not arithmetic")


def _magnitude(exponent: ast.expr) -> float:
    """An upper bound on the size of an exponent; one with a symbol stays as it is and makes no large number."""
    bits = _bits(exponent)
    if any(isinstance(node, ast.Name) for node in ast.walk(exponent)):
        return bits
    size = 2.0 ** min(bits, 64.0)
    if size > LARGEST_POWER:
        raise ValueError("too large a power")
    return size


def _source(prompt: Prompt) -> GymSource:
    origin = prompt.meta.get("gym")
    if not isinstance(origin, Mapping) or not {"name", "seed", "index"} <= set(origin):
        raise WhetError(
            f"reward 'gym_answer' judges prompts of gym:NAME, and prompt {prompt.id!r} has no column `gym` that says "
            "where it comes from; use data.source=gym:NAME, or another reward"
        )
    settings = json.dumps(origin.get("settings") or {}, sort_keys=True)
    return GymSource(str(origin["name"]), int(origin["seed"]), settings, int(origin["index"]), origin.get("entry"))


@functools.lru_cache(maxsize=512)
def _entry(source: GymSource) -> Mapping[str, Any]:
    if source.literal is None:
        return _dataset(*source[:3])[source.position]
    try:
        return ast.literal_eval(source.literal)
    except (ValueError, SyntaxError):
        raise WhetError(f"the entry of a prompt of gym:{source.name} is no Python literal; draw it again") from None


def _dataset_of(source: GymSource) -> Any:
    dataset = _dataset(*source[:3])
    members = getattr(dataset, "datasets", None)  # of the composite one, which only forwards
    return members[_dataset_name(_entry(source))] if isinstance(members, Mapping) else dataset


def _dataset_name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("metadata", {}).get("source_dataset", ""))


@functools.lru_cache(maxsize=64)
def _dataset(name: str, seed: int, settings: str) -> Any:
    """The dataset as it drew the prompt: its settings may matter to its verifier."""
    return gym_dataset(name, seed, json.loads(settings))


gym_answer.prepare = reasoning_gym_package  # type: ignore[attr-defined]
