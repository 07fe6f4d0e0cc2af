"""`whet.evaluate`: a model or run on held-out prompts, as metrics and as the completions they were measured on."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from whet.api.inputs import (
    check_tokenizer,
    data_source,
    is_stream,
    made_rewards,
    model_name,
    reward_parts,
    reward_section,
    rows_in_memory,
    save_object,
)
from whet.data.source import parse_source
from whet.model.run_models import ABOUT, run_of
from whet.registry import refuse_while_importing
from whet.settings.bounds import MOST_ROWS
from whet.settings.layers import merged
from whet.training.config import EvaluationConfig, resolved_evaluation
from whet.training.saved_config import ROWS, START, read_values, write_rows
from whet.training.sections import EvalSection
from whet.types import WhetError

if TYPE_CHECKING:
    from whet.record.metrics.eval_summary import EvalSummary

COMPLETIONS = "completions.jsonl"


class Metric(float):
    """A number of an evaluation: `interval` is its 95% interval (low, high), None where it has none."""

    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class EvalResult:
    """What a model came to on held-out prompts. `result["accuracy"]` is one of its metrics, with its `interval`."""

    metrics: Mapping[str, float]
    completions: tuple[Mapping[str, Any], ...] = field(repr=False)  # prompt, answer, completion, reward, parts, tokens
    summary: EvalSummary = field(repr=False)  # with intervals
    facts: Mapping[str, str] = field(default_factory=dict, repr=False)  # how completions were written, and why so
    model: str = ""
    task: str = ""  # where the prompts come from
    outcomes: tuple[tuple[float, ...], ...] = field(default=(), repr=False)  # [prompts][samples]: 0 and 1, or rewards
    temperature: float = 0.0  # 0: greedy

    def __getitem__(self, name: str) -> Metric:
        if name not in self.metrics:
            raise KeyError(f"no metric is called {name!r}; there are {', '.join(self.metrics)}")
        metric = Metric(self.metrics[name])
        named = {self.summary.measure: self.summary.value}
        named |= {f"pass@{estimate.n}": estimate for estimate in self.summary.pass_at}
        if name in named:
            metric.interval = (named[name].low, named[name].high)
        return metric


@overload
def evaluate(
    model: list[Any],
    data: Any = None,
    *,
    reward: Any = None,
    tokenizer: Any = None,
    samples: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> list[EvalResult]: ...


@overload
def evaluate(
    model: Any,
    data: Any = None,
    *,
    reward: Any = None,
    tokenizer: Any = None,
    samples: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> EvalResult: ...


def evaluate(
    model: Any,
    data: Any = None,
    *,
    reward: Any = None,
    tokenizer: Any = None,
    samples: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> EvalResult | list[EvalResult]:
    """Measure a model or a run on held-out prompts: greedy, or `samples` drawn completions per prompt with pass@k.

        result = whet.evaluate(run, samples=8)
        print(result["pass@8"], result["pass@8"].interval)
        whet.compare(whet.evaluate(["Qwen/Qwen3-0.6B", run], "test.jsonl", reward="math_answer"))

    `model`, `data` and `reward` are what `whet.train` takes. A run is measured on its own held-out prompts, by its own
    rewards, unless others are given. A list of models gives a list of results, which `whet.compare` compares prompt by
    prompt.
    """
    refuse_while_importing("whet.evaluate")
    values = dict(settings or {})
    if is_stream(data):  # it is read once, for all models
        data = rows_in_memory(data, int(values.get("eval", {}).get("prompts", EvalSection().prompts)))
    if isinstance(model, list):
        return [_measured(source, data, reward, tokenizer, samples, values) for source in model]
    return _measured(model, data, reward, tokenizer, samples, values)


def _measured(model: Any, data: Any, reward: Any, tokenizer: Any, samples: int, values: dict[str, Any]) -> EvalResult:
    """One model on held-out prompts."""
    from whet.tools.evaluation.likelihood import asks_choices, measured_choices
    from whet.tools.evaluation.measure import EvalPlan, measured, prepared

    check_tokenizer(model, tokenizer)
    parts = reward_parts(reward)
    if parts is not None:
        values = merged(values, {"reward": reward_section(parts)})
    with tempfile.TemporaryDirectory(prefix="whet-eval-") as scratch:
        name = model_name(model)
        if name is None:
            name = str(Path(scratch) / START)
            save_object(model, tokenizer, Path(name))
        source, rows = data_source(data), rows_in_memory(data)
        if rows is not None:
            source = str(Path(scratch) / ROWS)
            write_rows(Path(source), rows)
        config = evaluation_config(name, source, values)
        plan = EvalPlan(samples=samples, chunk=MOST_ROWS)  # all prompts at once: nothing is left to go on from
        if asks_choices(config):
            measurement, _ = measured_choices(config, plan)
        else:
            setup = prepared(config, plan, rewards=made_rewards(parts))
            measurement = measured(setup, Path(scratch) / COMPLETIONS, lambda _: None, lambda _: None)
    return EvalResult(
        measurement.metrics,
        measurement.rows,
        measurement.summary,
        measurement.facts,
        model=_shown(model),
        task="rows" if rows is not None else measurement.task,
        outcomes=tuple(map(tuple, measurement.outcomes)),
        temperature=measurement.temperature,
    )


def _shown(model: Any) -> str:
    return model_name(model) or type(model).__name__


def evaluation_config(model: str, data: str | None, settings: Mapping[str, Any] | None) -> EvaluationConfig:
    """The run's own config where `model` is a run folder or its best or final model, the defaults otherwise."""
    folder = Path(model)
    base = read_values(run_of(folder) if (folder / ABOUT).is_file() else folder)
    layer: dict[str, Any] = {"model": {"name": model}}
    if data is not None:
        own = base.pop("data", None)
        layer["data"] = {"source": data}
        if isinstance(own, Mapping) and own.get("system_prompt"):  # the model was trained behind it
            layer["data"]["system_prompt"] = own["system_prompt"]
        layer["eval"] = {"source": "" if parse_source(data).is_generated else data}
    changes = dict(settings or {})
    if isinstance(asked := changes.get("data"), Mapping) and "limit" in asked:
        raise WhetError("data.limit has no effect on an evaluation: it is for rows to train on; give eval.prompts")
    return resolved_evaluation(base, layer, changes)
