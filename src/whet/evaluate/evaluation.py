"""Evaluating a model: metrics on held-out prompts, and completions to look at."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import fmean

from whet.build.prompts import load_prompts
from whet.build.rewards import bind_judges, build_reward_parts, build_scorer
from whet.build.runtime import Runtime, build_evaluator, encode_prompts, load_runtime, sampling_from
from whet.config.config import EvaluationConfig
from whet.reward import RewardPart
from whet.rollout.collect import draw_completions
from whet.train.evaluate import Evaluator, eval_metrics
from whet.types import Group, Prompt, Sample, WhetError


def evaluate_groups(
    config: EvaluationConfig, num_samples: int, rewards: Sequence[RewardPart] | None = None
) -> list[Group]:
    """Scored completions to the held-out prompts: one greedy completion each, or several drawn ones."""
    return run_evaluator(config, num_samples, *eval_setup(config, rewards))


def eval_setup(config: EvaluationConfig, rewards: Sequence[RewardPart] | None = None) -> tuple[Runtime, Evaluator]:
    """The model, and the held-out prompts with their judge."""
    chosen = load_prompts(config, evaluation=True)[: config.eval.prompts]
    if not chosen:
        raise WhetError("no held-out prompts: give --data task:NAME, a file or hub:owner/name")
    parts = build_reward_parts(config, wanted=True, given=rewards)
    runtime = load_runtime(config)
    score = build_scorer(config, bind_judges(parts, runtime.engine, runtime.loaded.tokenizer))
    return runtime, build_evaluator(runtime, chosen, sampling_from(config.sampling), score)


def run_evaluator(config: EvaluationConfig, num_samples: int, runtime: Runtime, evaluator: Evaluator) -> list[Group]:
    if num_samples < 1:
        raise WhetError(f"samples is {num_samples}; give 1 (greedy) or more")
    if num_samples == 1:
        return evaluator.evaluate()
    if config.sampling.temperature == 0:
        raise WhetError("several samples at temperature 0 are all equal; give --set sampling.temperature=1.0")
    return evaluator.evaluate(num_samples, config.sampling.temperature, config.seed)


def evaluate_metrics(config: EvaluationConfig, num_samples: int) -> dict[str, float]:
    return group_metrics(evaluate_groups(config, num_samples), num_samples)


def group_metrics(groups: Sequence[Group], num_samples: int) -> dict[str, float]:
    found = eval_metrics(groups)
    if num_samples > 1 and "accuracy" in found:
        found.update(pass_at(groups, num_samples))
    return {"prompts": float(len(groups)), **found}


def pass_at(groups: Sequence[Group], num_samples: int) -> dict[str, float]:
    """pass@k = mean of 1 - C(n - c, k) / C(n, k), unbiased. Chen 2021 (2107.03374), eq. 1. k: powers of two up to n."""
    found = {}
    for k in sorted({2**power for power in range(num_samples.bit_length()) if 2**power <= num_samples} | {num_samples}):
        missed = []
        for group in groups:
            right = sum(sample.outcome == 1.0 for sample in group.samples)
            missed.append(comb(num_samples - right, k) / comb(num_samples, k))
        found[f"pass@{k}"] = 1.0 - fmean(missed)
    return found


def written_samples(
    config: EvaluationConfig, prompts: Sequence[Prompt], num_samples: int, scored: bool = False
) -> list[list[Sample]]:
    """Completions to prompts of the user's own; `scored` by the config's rewards."""
    runtime = load_runtime(config)
    sampling = sampling_from(config.sampling)
    tokens = encode_prompts(runtime, prompts, sampling)
    written = draw_completions(runtime.engine, tokens, num_samples, sampling, (config.seed,))
    if not scored:
        return [list(samples) for samples in written]
    parts = bind_judges(build_reward_parts(config, wanted=True), runtime.engine, runtime.loaded.tokenizer)
    score = build_scorer(config, parts)
    return [list(score([prompt] * len(samples), samples)) for prompt, samples in zip(prompts, written, strict=True)]
