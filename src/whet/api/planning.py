"""`whet plan` from Python: what a run would take, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from whet.tools.planner.cluster_simulation import ClusterOptions, ClusterPlan, cluster_plan
from whet.tools.planner.from_config import UNKNOWN_PROMPT, model_shape, workload
from whet.tools.planner.plan import Plan, plan_for
from whet.tools.planner.workload import Devices, Workload, devices
from whet.training.config import is_small, resolved
from whet.training.sections import ScaleSection
from whet.types import WhetError


def plan(
    method: str,
    *,
    model: str,
    gpus: str = "1x80GB",
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
    reward_model: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Plan:
    """Memory of every copy, seconds per step and what to change; `settings` are those of `whet.train`.

    Without `prompt_tokens`, prompts have 512, or what the model's context leaves beside a completion.
    """
    room, work, _ = _asked(method, model, gpus, prompt_tokens, completion_tokens, settings)
    if reward_model:
        if not work.draws:
            raise WhetError(f"--reward-model has no effect: {method} draws no completions; drop it")
        work = replace(work, reward_model=model_shape(reward_model))
    return plan_for(work, room)


def simulation(
    method: str,
    *,
    model: str,
    gpus: str,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
    mean_length: float | None = None,
    reward_seconds: float = 0.0,
    settings: Mapping[str, Any] | None = None,
) -> ClusterPlan:
    """The same run on many devices, by events in time: throughput, idle shares, staleness, what limits."""
    room, work, scale = _asked(method, model, gpus, prompt_tokens, completion_tokens, settings)
    if mean_length is not None and mean_length > work.completion_tokens:
        raise WhetError(
            f"--mean-length is {mean_length:g} and the longest completion {work.completion_tokens} tokens; give less"
        )
    options = ClusterOptions(
        mean_length, reward_seconds, scale.reward_workers, scale.max_staleness, scale.window, scale.engines
    )
    return cluster_plan(work, room, options)


def _asked(
    method: str,
    model: str,
    gpus: str,
    prompt_tokens: int | None,
    completion_tokens: int | None,
    settings: Mapping[str, Any] | None,
) -> tuple[Devices, Workload, ScaleSection]:
    """The devices, and the run on them; lengths that nobody gave are cut to what the model's context holds."""
    room, shape = devices(gpus), model_shape(model)
    # the run of a large model, whatever it is called, unless the built-in one itself is meant
    name = model if is_small(model) else "planned/model"
    config = resolved(method, {"model": {"name": name}}, settings or {}, width=shape.hidden)
    longest = config.sampling.max_new_tokens
    if completion_tokens is None and not config.samples() and shape.context:  # rows are given, not sampled
        completion_tokens = min(longest, shape.context // 2)
    if completion_tokens is not None:
        longest = completion_tokens
        sampling = config.sampling.model_copy(update={"max_new_tokens": longest})
        config = config.model_copy(update={"sampling": sampling})
        config.check()
    if prompt_tokens is None:
        left = shape.context - longest
        prompt_tokens = min(UNKNOWN_PROMPT, left) if left > 0 else UNKNOWN_PROMPT
    evals = config.eval.prompts
    work = workload(config, shape, prompt_tokens, on_cpu=room.is_cpu, memory=room.memory, eval_prompts=evals)
    return room, work, config.scale
