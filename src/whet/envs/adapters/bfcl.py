"""The multi-turn tasks of the Berkeley function-calling leaderboard, with the simulators in its package.

A task is a list of requests by one user. The policy answers each with calls on simulated systems (files, messages,
tickets, trading, travel, a vehicle, arithmetic), as many turns as it needs, and then with a turn without a call; then
comes the next request. After each request the systems must be in the state that the gold calls lead to, and what
those calls answered must be among the answers that the policy got: the leaderboard's own rule, judged by its own
functions. Its way to run a call, `eval` of the policy's text on objects that all episodes share, is not used: calls
are read as literals and run on simulators of the episode's own.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import decimal
import functools
import importlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.data.call_formats import Calls
from whet.data.tool_syntax import BROKEN, ToolCall, expression, named
from whet.envs.adapters.shared import optional, seed_of
from whet.envs.tools.formats import Calling, call_format_of
from whet.envs.tools.tool_environment import CallFormat
from whet.types import Completion, InitialObservation, Message, Prompt, StepResult, WhetError, did_you_mean

INSTALL = "pip install --no-deps bfcl-eval==2026.3.23 and pip install mpmath"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
TASK = "task"  # the column with a task's id, such as multi_turn_base_0
STEPS = 20  # turns for one request; the leaderboard ends the task there, as not solved
NEW_TOOLS = "I have updated some more functions you can choose from. What about now?"  # the leaderboard's words
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
LARGEST: Mapping[str, float] = {"precision": 1000, "exponent": 1000}  # of arguments with these names
LARGEST_NUMBER = 1e15  # of all others: the simulators would compute with anything, for as long as it takes

# arithmetic sets mpmath's precision for the whole process; all vehicles of long contexts share one weather report
SHARING = ("MathAPI", "VehicleControlAPI")
_SHARED = threading.Lock()


@functools.lru_cache(maxsize=8)
def _call_format(name: str, tokenizer: Any, history: str, instructions: bool) -> CallFormat:
    """One for all episodes of a run; any tool shows how a template writes calls."""
    return call_format_of(name, list(_tools("MathAPI").values())[:1], tokenizer, history, instructions)


class FunctionCalling:
    """One task. `partial` rewards the share of requests that were met before the first that was not."""

    def __init__(self, *, category: str = "base", partial: bool = False, calling: Calling | None = None) -> None:
        if category not in CATEGORIES:
            raise WhetError(
                f"bfcl has no category {category!r}{did_you_mean(category, CATEGORIES)}; give {', '.join(CATEGORIES)}"
            )
        self._category, self._partial = category, partial
        calling = calling or Calling()
        self._format = _call_format(calling.call_format, calling.tokenizer, calling.history, calling.instructions)
        self.stops = self._format.stops
        tasks(category)  # the package is there

    def start(self, prompt: Prompt) -> InitialObservation:
        """Load the task of the row, with its first request; tools that the task reveals later are left out."""
        task = _task_of(prompt, self._category)
        self._requests: list[list[Message]] = task["question"]
        self._gold: list[list[str]] = task["ground_truth"]
        self._late_tools: Mapping[str, list[str]] = task.get("missed_function", {})
        self._tools = {name: tool for owner in task["involved_classes"] for name, tool in _tools(owner).items()}
        late = {name for names in self._late_tools.values() for name in names}
        self._simulators = _simulators(task)
        self._gold_simulators = _simulators(task)
        self._request = 0
        self._steps = 0
        self._called = False  # for the present request
        self._answers: list[str] = []  # to every call so far
        self._met = 0
        schemas = tuple(tool for name, tool in self._tools.items() if name not in late)
        instructions = [message for message in prompt.messages if message["role"] == "system"]
        self._read = _reader(self._format, tuple(task["involved_classes"]))
        return InitialObservation(*self._format.conversation((*instructions, *self._requests[0]), schemas))

    def step(self, completion: Completion) -> StepResult:
        """Run the calls on the simulators; a turn without a call asks for the next request."""
        calls = self._read(completion).announced
        self._steps += 1
        if not calls:
            return self._next_request()
        self._called = True
        answers, counts, errors = [], {"tool_calls": len(calls)}, []
        for call in calls:
            if call == BROKEN:
                count, answer = "malformed_calls", "Error during execution: the call cannot be read"
            elif call.name not in self._tools:
                count, answer = "unknown_tools", f"Error during execution: no function is called {call.name!r}"
            else:
                count, answer = "", self._answer(call)
                self._answers.append(answer)
            if count:
                counts[count] = counts.get(count, 0) + 1
                errors.append(answer)
            answers.append(self._format.result(call.name or "unknown", answer))
        if self._steps >= STEPS:
            return self._over(counts, [*errors, f"the request was not done after {STEPS} turns"])
        return StepResult(tuple(answers), reward=0.0, counts=counts, errors=tuple(errors))

    def _answer(self, call: ToolCall) -> str:
        arguments = named(call, [self._tools[call.name]]).arguments
        for name, value in _numbers(arguments):
            if abs(value) > LARGEST.get(name, LARGEST_NUMBER):
                return f"Error during execution: {name}={str(value)[:20]} is too large"
        return _run(self._simulators, call.name, (), arguments)

    def _next_request(self) -> StepResult:
        if not self._is_met():
            return self._over({}, [f"request {self._request + 1} was not met"])
        self._met += 1
        self._request += 1
        self._steps, self._called = 0, False
        if self._request == len(self._requests):
            return self._over({}, [])
        messages = self._requests[self._request]
        late = self._late_tools.get(str(self._request), [])
        if late:
            shown = json.dumps([self._tools[name] for name in late])
            messages = [{"role": "user", "content": f"{shown}\n{NEW_TOOLS}"}]
        return StepResult(tuple(messages), reward=0.0)

    def _is_met(self) -> bool:
        """The leaderboard's rule for one request; nothing is asked of one that cannot be met yet."""
        state_checker, response_checker = _checkers()
        gold = self._gold[self._request]
        expected = [_run(self._gold_simulators, *_gold_call(call)) for call in gold]
        if not gold:
            return True
        if not self._called:
            return False
        if not state_checker(self._simulators, self._gold_simulators)["valid"]:
            return False
        return bool(response_checker(self._answers, expected, self._request)["valid"])

    def _over(self, counts: Mapping[str, int], errors: Sequence[str]) -> StepResult:
        share = self._met / len(self._requests)
        reward = share if self._partial else float(share == 1)
        metrics = {"requests_met": share}
        return StepResult((), reward=reward, done=True, counts=counts, errors=tuple(errors), metrics=metrics)


@functools.cache
def tasks(category: str) -> Mapping[str, Mapping[str, Any]]:
    """The category's tasks with their gold calls, by id."""
    file = f"BFCL_v4_multi_turn_{category}.json"
    gold = {row["id"]: row["ground_truth"] for row in _rows(_folder() / "possible_answer" / file)}
    return {row["id"]: {**row, "ground_truth": gold[row["id"]]} for row in _rows(_folder() / file)}


def _task_of(prompt: Prompt, category: str) -> Mapping[str, Any]:
    """The one that the column `task` names, or the one that the seed falls on."""
    known = tasks(category)
    name = prompt.meta.get(TASK)
    if name is None:
        return list(known.values())[seed_of(prompt) % len(known)]
    if name not in known:
        raise ValueError(f"prompt {prompt.id!r}: bfcl's {category} has no task {name!r}")
    return known[name]


def _simulators(task: Mapping[str, Any]) -> dict[str, Any]:
    simulators = {}
    for name in task["involved_classes"]:
        kind, has_state = _simulator_class(name)
        simulators[name] = simulator = kind()
        if has_state:
            config = copy.deepcopy(task["initial_config"].get(name, {}))
            simulator._load_scenario(config, long_context="long_context" in task["id"])
    return simulators


@functools.cache
def _simulator_class(name: str) -> tuple[Callable[[], Any], bool]:
    """The class, and whether its objects have a state to load."""
    with optional("bfcl", INSTALL):
        from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES

        return getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name), name not in STATELESS_CLASSES


@functools.cache
def _checkers() -> tuple[Callable[..., Mapping[str, Any]], Callable[..., Mapping[str, Any]]]:
    """The leaderboard's own, of states and of answers."""
    with optional("bfcl", INSTALL):
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import response_checker, state_checker
    return state_checker, response_checker


def _run(simulators: Mapping[str, Any], name: str, positional: Sequence[Any], arguments: Mapping[str, Any]) -> str:
    """What the call answers, as the leaderboard writes it."""
    simulator = next(candidate for candidate in simulators.values() if callable(getattr(candidate, name, None)))
    try:
        with _own_context(simulator):
            answer = getattr(simulator, name)(*positional, **arguments)
    except Exception as error:
        return f"Error during execution: {error}"
    if isinstance(answer, dict):
        try:
            return json.dumps(answer)
        except (TypeError, ValueError):
            return str(answer)
    return str(answer)


@contextlib.contextmanager
def _own_context(simulator: Any) -> Iterator[None]:
    """What a call sets for the process is put back; calls that would meet there run one after the other."""
    if type(simulator).__name__ not in SHARING:
        yield
        return
    import mpmath

    with _SHARED, decimal.localcontext():
        precision = mpmath.mp.prec
        try:
            yield
        finally:
            mpmath.mp.prec = precision


def _gold_call(written: str) -> tuple[str, list[Any], dict[str, Any]]:
    node = expression(written.strip())
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name), written
    arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return node.func.id, [ast.literal_eval(argument) for argument in node.args], arguments


@functools.cache
def _tools(simulator: str) -> Mapping[str, Mapping[str, Any]]:
    """The simulator's functions by name, as chat templates take them."""
    with optional("bfcl", INSTALL):
        from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING
    documents = _rows(_folder() / "multi_turn_func_doc" / MULTI_TURN_FUNC_DOC_FILE_MAPPING[simulator])
    return {document["name"]: _schema(document) for document in documents}


@functools.lru_cache(maxsize=64)
def _reader(call_format: CallFormat, simulators: tuple[str, ...]) -> Callable[[Completion], Calls]:
    """Reads calls of these simulators' functions."""
    return call_format.reader([tool for simulator in simulators for tool in _tools(simulator).values()])


def _schema(document: Mapping[str, Any]) -> dict[str, Any]:
    """The package's description of a function as the JSON schema that chat templates take."""
    function = {key: document[key] for key in ("name", "description")}
    return {"type": "function", "function": {**function, "parameters": _json_types(document["parameters"])}}


def _json_types(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_types(member) for member in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: JSON_TYPES.get(member, member) if key == "type" and isinstance(member, str) else _json_types(member)
        for key, member in value.items()
    }


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number in the arguments, with the name of the argument it stands in."""
    if isinstance(value, int | float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _numbers(member, name or str(key))
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _numbers(member, name)


def _folder() -> Path:
    with optional("bfcl", INSTALL):
        import bfcl_eval
    return Path(next(iter(bfcl_eval.__path__))) / "data"


def _rows(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        raise WhetError(f"the package bfcl-eval has no {file.name}; run {INSTALL}")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
