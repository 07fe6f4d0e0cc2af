"""Evaluating a model: metrics on held-out prompts, and completions to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from whet.data.usable import without
from whet.record.metrics.pass_at_k import pass_rates
from whet.reward.combine import RewardPart
from whet.rollout.collect import Score
from whet.rollout.episode_runner import tell_failures
from whet.tools.evaluation.prompting import STOP, PromptStyle, examples_for, styled
from whet.training.assembly.forms import form_facts
from whet.training.assembly.prompts import load_prompts
from whet.training.assembly.rewards import bind_judges, build_reward_parts, build_scorer, scorable_prompts
from whet.training.assembly.rows import column_facts, left_out_phrases
from whet.training.assembly.runtime import (
    Runtime,
    build_evaluator,
    decode_facts,
    encode_prompts,
    load_runtime,
    sampling_from,
)
from whet.training.config import EvaluationConfig
from whet.training.evaluate import Evaluator, eval_metrics
from whet.types import Group, Prompt, Sample, WhetError

OnFacts = Callable[[Mapping[str, str]], None]
"""Is given how completions are written, and why not faster, before the first one."""


def evaluate_groups(
    config: EvaluationConfig,
    num_samples: int,
    rewards: Sequence[RewardPart] | None = None,
    on_facts: OnFacts | None = None,
    scored: bool = True,
) -> list[Group]:
    """Completions to the held-out prompts: one greedy completion each, or several drawn ones.

    A reward is needed where they must be `scored`; else they are where one is given, or the task has its own.
    """
    runtime, evaluator = eval_setup(config, rewards, scored)
    if on_facts is not None:
        on_facts(eval_facts(config, runtime, evaluator))
    return run_evaluator(config, num_samples, evaluator)


def run_evaluator(config: EvaluationConfig, num_samples: int, evaluator: Evaluator) -> list[Group]:
    """One greedy completion per prompt, or `num_samples` drawn at the config's temperature."""
    check_samples(num_samples, config.sampling.temperature)
    if num_samples == 1:
        return evaluator.evaluate()
    return evaluator.evaluate(num_samples, config.sampling.temperature, config.seed)


def eval_facts(config: EvaluationConfig, runtime: Runtime, evaluator: Evaluator) -> dict[str, str]:
    """How the prompts were read and put, which are left out, and how completions are written."""
    left_out = left_out_phrases(evaluator.prompts)
    return {
        **form_facts(config, config.eval.source),
        **column_facts(evaluator.prompts),
        **({"left out": left_out[0]} if left_out else {}),
        **decode_facts(runtime, evaluator.sampling, evaluator.prompt_tokens),
    }


def check_samples(num_samples: int, temperature: float) -> None:
    """Refuse a number of samples that cannot be drawn, or that would all be equal."""
    if num_samples < 1:
        raise WhetError(f"samples is {num_samples}; give 1 (greedy) or more")
    if num_samples > 1 and temperature == 0:
        raise WhetError("several samples at temperature 0 are all equal; give sampling.temperature=1.0")


def eval_setup(
    config: EvaluationConfig,
    rewards: Sequence[RewardPart] | None = None,
    scored: bool = True,
    style: PromptStyle | None = None,
    runtime: Runtime | None = None,
) -> tuple[Runtime, Evaluator]:
    """The model, and the held-out prompts with their judge, who sees them without the examples of a `style`.

    `runtime` is that of the same model on another task.
    """
    prompts = load_prompts(config, evaluation=True)
    chosen: Sequence[Prompt] = without(prompts, range(min(len(prompts), config.eval.prompts)), {})
    if prompts and not config.eval.prompts:
        raise WhetError("eval.prompts is 0, as in a run that was trained without evaluation; give eval.prompts=200")
    if not chosen:
        raise WhetError("no held-out prompts: give data: task:NAME, a file or hub:owner/name")
    parts = build_reward_parts(config, wanted=scored, given=rewards)
    chosen = scorable_prompts(chosen, parts, config.data)
    style = style or PromptStyle()
    examples = examples_for(config, style, prompts)
    runtime = runtime or load_runtime(config)
    score: Score = _unscored
    if parts:
        score = build_scorer(config, bind_judges(parts, runtime.engine, runtime.loaded.tokenizer))
    sampling = sampling_from(config.sampling)
    if not examples and not style.plain:
        return runtime, build_evaluator(runtime, chosen, sampling, score, config.data, config.eval.by)
    if examples and any(style.plain or prompt.text is not None for prompt in chosen):
        sampling = replace(sampling, stop=(*sampling.stop, STOP))
    asked = without(styled(chosen, examples, style.plain), range(len(chosen)), getattr(chosen, "left_out", {}))
    evaluator = build_evaluator(runtime, asked, sampling, score, config.data, config.eval.by)
    bare = {prompt.id: prompt for prompt in chosen}
    fitting = without(evaluator.prompts, range(len(evaluator.prompts)), {})
    fitting[:] = [bare[prompt.id] for prompt in fitting]
    return runtime, replace(evaluator, prompts=fitting)


def _unscored(prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[Sample]:
    return list(samples)


def group_metrics(groups: Sequence[Group], num_samples: int, by: str = "") -> dict[str, float]:
    """Metrics of scored groups, with pass@k where there are several samples per prompt."""
    metrics = eval_metrics(groups, by)
    if num_samples > 1 and "accuracy" in metrics:
        metrics.update(pass_rates(groups, num_samples))
    return {"prompts": float(len(groups)), **metrics}


def sample_completions(
    config: EvaluationConfig,
    prompts: Sequence[Prompt],
    num_samples: int,
    scored: bool = False,
    on_facts: OnFacts | None = None,
) -> list[list[Sample]]:
    """Draw completions to the user's own prompts; `scored` by the config's rewards."""
    parts = build_reward_parts(config, wanted=True) if scored else []
    runtime = load_runtime(config)
    sampling = sampling_from(config.sampling)
    tokens = encode_prompts(runtime, prompts, sampling)
    if on_facts is not None:
        on_facts(decode_facts(runtime, sampling, tokens))
    drawn = runtime.runner.play(prompts, tokens, num_samples, sampling, (config.seed,))
    tell_failures(runtime.runner.take_notes())
    if not scored:
        return [list(samples) for samples in drawn]
    score = build_scorer(config, bind_judges(parts, runtime.engine, runtime.loaded.tokenizer))
    return [list(score([prompt] * len(samples), samples)) for prompt, samples in zip(prompts, drawn, strict=True)]
