"""Plain functions as rewards.

A function that takes `completions` or `completion_ids` is called once on all samples, in TRL's shapes, and may ask for
`trainer_state`, `log_metric`, `log_extra` and `environments` as there. Any other is called sample by sample and its
parameters are filled by name:

    completion            the completion's text
    prompt                the question's text (`Prompt.question()`)
    any name: Prompt      the whole prompt, when the parameter is annotated with `Prompt` itself
    answer                the gold answer
    num_tokens            how many tokens the policy wrote, as the tokenizer counted them
    finished              False where a limit cut the completion or the episode off
    returned              what the environment paid for the episode; None where there is none, or it paid nothing
    trajectory            the turns of the episode (`whet.types.Turn`); empty for a single completion
    num_turns             turns of the policy; 1 for a single completion
    any other name        the column of that name in `Prompt.meta`
    **columns             every column that is not named

verl's `compute_score(data_source, solution_str, ground_truth, extra_info)` and OpenRLHF's
`reward_func(queries, prompts, labels)` are known by these parameters. Any of them may be `async def`.

A parameter with a default keeps it where the data has no such column. A keyword-only parameter with a default is a
setting: it is given when the reward is made (`find_reward(name, settings)`) and never filled from a column.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

from whet.protocols import Reward
from whet.reward.failure import RewardFailure, call_name, sample_name
from whet.threads import in_threads
from whet.types import Prompt, Sample, WhetError

ABOUT = ("num_tokens", "finished", "returned", "trajectory", "num_turns")
OF_TRAINING = frozenset(("trainer_state", "log_metric", "log_extra"))
ENVIRONMENTS = "environments"  # TRL's objects that played the episodes
FROM_SAMPLES = frozenset(("prompts", "completions", "completion_ids", ENVIRONMENTS, *ABOUT, *OF_TRAINING))
SEES_THE_COMPLETION = frozenset(("completion", *ABOUT))
OF_VERL = frozenset(("solution_str", "ground_truth", "data_source", "extra_info"))


@dataclass(frozen=True)
class TrainerState:
    """The state of training while a reward is called, with the fields TRL's functions ask of `trainer_state`."""

    global_step: int = 0  # steps done
    max_steps: int = 0  # of the run; 0: not known


@dataclass
class RewardCall:
    """One call of a function, and what it logs: TRL's `log_metric(name, value)` and `log_extra(column, values)`."""

    trainer_state: TrainerState = TrainerState()
    metrics: list[tuple[str, float]] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def log_metric(self, name: str, value: float) -> None:
        """A number about the call; the step reports the mean over its calls."""
        if not math.isfinite(float(value)):
            raise ValueError(f"log_metric({name!r}, {value}): give a finite number")
        self.metrics.append((str(name), float(value)))

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """A value per sample, which samples.jsonl records."""
        self.columns.setdefault(str(column), []).extend(values)

    def columns_of(self, reward: str, count: int) -> list[dict[str, Any]]:
        """The logged values of each sample, for `count` samples."""
        for name, values in self.columns.items():
            if len(values) != count:
                raise RewardFailure(f"reward {reward!r} logged {len(values)} values of {name!r} for {count} samples")
        return [{name: _plain(values[i]) for name, values in self.columns.items()} for i in range(count)]


@dataclass(frozen=True)
class RewardFunction:
    """A plain function with the name its scores are reported under; the subclasses say how it is called."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[inspect.Parameter, ...]

    @property
    def deterministic(self) -> bool:
        """False where the same completion may score differently."""
        return is_deterministic(self.function)

    @property
    def is_async(self) -> bool:
        """True for an async function, also behind a partial, and for an object whose call is one."""
        asked = (self.function, getattr(self.function, "__call__", None))  # noqa: B004
        return any(map(inspect.iscoroutinefunction, asked))

    @property
    def asks_for_training(self) -> bool:
        """True where it must be called by the trainer: it asks for what is there alone, or logs to it."""
        return any(parameter.name in (*OF_TRAINING, ENVIRONMENTS) for parameter in self.parameters)

    def prepare(self) -> None:
        """Run the function's own preparation."""
        prepare_function(self.function)

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        return self.called(RewardCall(), prompts, samples)

    def called(self, call: RewardCall, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        """The scores; `call` is what the function may ask of the training and log to it."""
        raise NotImplementedError


class PerSample(RewardFunction):
    """A function of one prompt and one completion."""

    def called(self, call: RewardCall, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        values = awaited([self._value(prompt, sample) for prompt, sample in zip(prompts, samples, strict=True)])
        rows = zip(self._scores(values, call), prompts, samples, strict=True)
        return [score_of(value, self.name, prompt, sample) for value, prompt, sample in rows]

    def _value(self, prompt: Prompt, sample: Sample) -> Any:
        arguments = {**columns(prompt), "prompt": prompt.question(), "completion": sample.completion, **about(sample)}
        arguments |= self._foreign(prompt, sample)
        for parameter in self.parameters:
            if _wants_prompt(parameter):
                arguments[parameter.name] = prompt
        positional, named = _arguments(self.parameters, arguments, self.name, sample_name(prompt, sample))
        return self.function(*positional, **named)

    def _foreign(self, prompt: Prompt, sample: Sample) -> dict[str, Any]:
        """Arguments that another trainer's reward functions take."""
        return {}

    def _scores(self, values: list[Any], call: RewardCall) -> list[Any]:
        """The scores in what the function returned."""
        return values


class ComputeScore(PerSample):
    """A reward in verl's form, a function of one completion; it may return a dictionary: `score` and values to log."""

    def _foreign(self, prompt: Prompt, sample: Sample) -> dict[str, Any]:
        extra = prompt.meta.get("extra_info")
        return {
            "solution_str": sample.completion,
            "ground_truth": prompt.answer,
            "data_source": prompt.meta.get("data_source", ""),
            "extra_info": {**(extra if isinstance(extra, Mapping) else {}), "num_turns": about(sample)["num_turns"]},
        }

    def _scores(self, values: list[Any], call: RewardCall) -> list[Any]:
        tables = [value if isinstance(value, Mapping) else {"score": value} for value in values]
        for name in dict.fromkeys(name for table in tables for name in table if name != "score"):
            call.log_extra(name, [table.get(name) for table in tables])
        return [table.get("score") for table in tables]


class Together(RewardFunction):
    """A function of one prompt and one completion that also scores many at once: its `together(prompts, completions)`.

    It keeps its own time, sample by sample.
    """

    limits_itself = True

    def called(self, call: RewardCall, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        settings = self.function.keywords if isinstance(self.function, functools.partial) else {}
        together: Callable[..., Any] = self.function.together  # type: ignore[attr-defined]
        values = together(prompts, [sample.completion for sample in samples], **settings)
        return scores_of(values, self.name, prompts, samples)


class Batched(RewardFunction):
    """A function of all samples at once, in TRL's shapes: every column is a list with one entry per sample."""

    filled: frozenset[str] = frozenset()  # parameters beyond TRL's

    def called(self, call: RewardCall, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        if not samples:
            return []
        arguments = self._columns(prompts, samples)
        arguments["prompts"] = [_trl_prompt(prompt) for prompt in prompts]
        arguments["completions"] = [_trl_completion(*pair) for pair in zip(prompts, samples, strict=True)]
        arguments["completion_ids"] = [sample.tokens[sample.action].tolist() for sample in samples]
        arguments |= {name: [about(sample)[name] for sample in samples] for name in ABOUT}
        arguments |= {name: getattr(call, name) for name in OF_TRAINING}
        if any(parameter.name == ENVIRONMENTS for parameter in self.parameters):
            arguments[ENVIRONMENTS] = [_environment(self.name, *pair) for pair in zip(prompts, samples, strict=True)]
        arguments |= self._foreign(prompts, samples)
        positional, named = _arguments(self.parameters, arguments, self.name, call_name(prompts, samples))
        [values] = awaited([self.function(*positional, **named)])
        return scores_of(self._scores(values, call), self.name, prompts, samples)

    def _foreign(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> dict[str, Any]:
        """Arguments that another trainer's reward functions take."""
        return {}

    def _scores(self, values: Any, call: RewardCall) -> Any:
        """The scores in what the function returned."""
        return values

    def _columns(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> dict[str, Any]:
        rows = [columns(prompt) for prompt in prompts]
        required = {parameter.name for parameter in self.parameters if _is_required(parameter)}
        for prompt, sample, row in zip(prompts, samples, rows, strict=True):
            for name in sorted(required - FROM_SAMPLES - self.filled - set(row)):
                raise _missing_column(name, row, self.name, sample_name(prompt, sample))
        # dict, not set: the order of the columns must not change between runs
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}


class RewardFunc(Batched):
    """OpenRLHF's function of all samples; it may return a dictionary: `rewards`, and `extra_logs` of each sample."""

    filled = frozenset(("queries", "labels"))

    def _foreign(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> dict[str, Any]:
        asked = [prompt.question() for prompt in prompts]
        written = [sample.completion for sample in samples]
        queries = [question + completion for question, completion in zip(asked, written, strict=True)]
        return {"queries": queries, "prompts": asked, "labels": [prompt.answer for prompt in prompts]}

    def _scores(self, values: Any, call: RewardCall) -> Any:
        if not isinstance(values, Mapping):
            return values
        for name, logged in (values.get("extra_logs") or {}).items():
            call.log_extra(name, logged.tolist() if hasattr(logged, "tolist") else logged)
        return values.get("rewards")


def require_columns(reward: RewardFunction, prompt: Prompt) -> None:
    """Raise where the function asks for a column that the prompt's row lacks."""
    row = columns(prompt)
    filled = FROM_SAMPLES | reward.filled if isinstance(reward, Batched) else {"prompt", *SEES_THE_COMPLETION}
    if isinstance(reward, ComputeScore):
        filled = {*filled, *OF_VERL}
    for parameter in reward.parameters:
        known = parameter.name in row or parameter.name in filled or _wants_prompt(parameter)
        if _is_required(parameter) and not known:
            raise _missing_column(parameter.name, row, reward.name, f"prompt {prompt.id!r}")


def as_reward(function: Callable[..., Any] | Reward, name: str | None = None) -> Reward:
    """A `Reward` made of a function (the module's docstring has the accepted forms); a `Reward` as it is."""
    if inspect.isclass(function):
        raise WhetError(f"{function.__name__} is a class, not a reward; give an instance, as in {function.__name__}()")
    if isinstance(function, Reward):
        if name not in (None, function.name):
            if is_dataclass(function) and "name" in function.__dataclass_fields__:
                return replace(function, name=name)
            raise WhetError(f"reward {function.name!r} cannot be called {name!r}: rename it where it is made")
        return function
    if not callable(function):
        raise WhetError(f"{reprlib.repr(function)} is not a reward; give a function such as f(prompt, completion)")
    name = name or _own_name(function)
    parameters = parameters_of(function, name)
    names = {parameter.name for parameter in parameters}
    if {"completions", "completion_ids"} & names:
        return Batched(name, function, parameters)
    if {"queries", "labels"} <= names:
        return RewardFunc(name, function, parameters)
    if "solution_str" in names:
        return ComputeScore(name, function, parameters)
    if callable(getattr(function, "together", None)):
        return Together(name, function, parameters)
    if "reply" in names and "completion" not in names:
        raise WhetError(f"reward {name!r} takes `reply`, which is called `completion` since 0.2; rename the parameter")
    if not SEES_THE_COMPLETION & names and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        listed = ", ".join(str(parameter.name) for parameter in parameters)
        raise WhetError(
            f"reward {name!r} takes ({listed}) and so never sees the completion; "
            "name a parameter `completion`, as in f(prompt, completion), or `completions` for a call on the whole batch"
        )
    return PerSample(name, function, parameters)


def awaited(values: Sequence[Any]) -> list[Any]:
    """The values, those that are awaitable awaited together; whether or not a loop is running, as in a notebook."""
    waiting = [value for value in values if inspect.isawaitable(value)]
    if not waiting:
        return list(values)
    import asyncio

    async def gather() -> list[Any]:
        return await asyncio.gather(*waiting)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        answers = iter(asyncio.run(gather()))
    else:
        (answered,) = in_threads([lambda: asyncio.run(gather())], 1, "whet-async")
        answers = iter(answered.result())
    return [next(answers) if inspect.isawaitable(value) else value for value in values]


def is_deterministic(function: Any) -> bool:
    """False for a reward that says `deterministic = False`: the same completion may score differently."""
    while isinstance(function, functools.partial) and not hasattr(function, "deterministic"):
        function = function.func
    return bool(getattr(function, "deterministic", True))


def prepare_function(function: Callable[..., Any]) -> None:
    """Run the function's own `prepare` attribute, if it has one: slow imports belong outside the time limit."""
    prepare = getattr(function, "prepare", None)
    if callable(prepare):
        prepare()


def about(sample: Sample) -> dict[str, Any]:
    """What a reward may ask by name of how the completion was written."""
    return {
        "num_tokens": sample.num_actions,
        "finished": not sample.stop.is_limit,
        "returned": sample.returned,
        "trajectory": sample.turns,
        "num_turns": sum(turn.role == "assistant" for turn in sample.turns) or 1,
    }


def _environment(reward: str, prompt: Prompt, sample: Sample) -> Any:
    if sample.environment is None:
        raise RewardFailure(
            f"reward {reward!r} takes environments, and {sample_name(prompt, sample)} has none here; give a TRL class "
            "as env.name, played by the process that trains"
        )
    return sample.environment


def columns(prompt: Prompt) -> dict[str, Any]:
    """What a prompt's row offers by name; `answer` only where there is one."""
    return dict(prompt.meta) | ({} if prompt.answer is None else {"answer": prompt.answer})


def score_of(value: Any, name: str, prompt: Prompt, sample: Sample) -> float | None:
    """The finite float a reward returned, or None; anything else is a failure that names the sample."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()  # numpy and torch scalars
    if value is None:
        return None
    if isinstance(value, numbers.Real):
        try:
            score = float(value)
        except OverflowError:
            score = math.inf
        if math.isfinite(score):
            return score
        returned = str(score)
    else:
        returned = f"{reprlib.repr(value)} ({type(value).__name__})"
    raise RewardFailure(
        f"reward {name!r} returned {returned} for {sample_name(prompt, sample)}; "
        "return a finite number, or None for a sample that the reward is not for"
    )


def scores_of(values: Any, name: str, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
    """One checked score per sample, from what a call on several samples returned."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, list | tuple):
        raise RewardFailure(
            f"reward {name!r} returned a {type(values).__name__} for {call_name(prompts, samples)}; "
            "return a list with one number per sample"
        )
    if len(values) != len(samples):
        raise RewardFailure(
            f"reward {name!r} returned {len(values)} scores for {len(samples)} samples "
            f"({call_name(prompts, samples)}); return one number per sample, in order"
        )
    return [score_of(*row) for row in zip(values, [name] * len(samples), prompts, samples, strict=True)]


def _plain(value: Any) -> Any:
    """A logged value as JSON has it."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    is_finite = not isinstance(value, float) or math.isfinite(value)
    return value if isinstance(value, str | int | float | bool | None) and is_finite else str(value)


def _own_name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    if name == "<lambda>":
        raise WhetError("a lambda has no name to report its scores under; give it one: reward={'NAME': (f, 1.0)}")
    return str(name)


def parameters_of(function: Callable[..., Any], name: str) -> tuple[inspect.Parameter, ...]:
    """The parameters, their annotations evaluated where that is possible."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # annotations may name what exists only for the type checker
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise WhetError(
                f"reward {name!r} does not tell its parameters; wrap it: def {name}(prompt, completion): ..."
            ) from None
    return tuple(signature.parameters.values())


def _wants_prompt(parameter: inspect.Parameter) -> bool:
    wanted = parameter.annotation
    return wanted is Prompt or (isinstance(wanted, str) and wanted.split(".")[-1] == "Prompt")


def is_setting(parameter: inspect.Parameter) -> bool:
    """True for a keyword-only parameter with a default, unless its name is one that every sample fills."""
    optional = parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
    filled = {"prompt", *SEES_THE_COMPLETION, *FROM_SAMPLES}
    return optional and parameter.name not in filled and not _wants_prompt(parameter)


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variadic


def _arguments(
    parameters: Sequence[inspect.Parameter], columns: Mapping[str, Any], name: str, where: str
) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            named_elsewhere = {*ABOUT, *(other.name for other in parameters)}
            named |= {column: value for column, value in columns.items() if column not in named_elsewhere}
            continue
        if parameter.name not in columns and _is_required(parameter):
            raise _missing_column(parameter.name, columns, name, where)
        value = parameter.default if is_setting(parameter) else columns.get(parameter.name, parameter.default)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            named[parameter.name] = value
    return positional, named


def _missing_column(column: str, columns: Mapping[str, Any], name: str, where: str) -> WhetError:
    available = ", ".join(sorted(str(key) for key in columns)) or "none"
    return WhetError(
        f"reward {name!r} asks for the column {column!r}, which the data lacks ({where}); "
        f"available: {available}; rename the parameter, give it a default, or add the column"
    )


def _trl_prompt(prompt: Prompt) -> str | list[dict[str, str]]:
    return prompt.text if prompt.text is not None else [dict(message) for message in prompt.messages]


def _trl_completion(prompt: Prompt, sample: Sample) -> str | list[dict[str, str]]:
    if prompt.text is not None:
        return sample.completion
    return [{"role": "assistant", "content": sample.completion}]
