"""`whet plan` from Python: what a run would take, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whet.build.planning import UNKNOWN_PROMPT, model_shape, workload
from whet.config.config import resolved
from whet.plan.machines import devices
from whet.plan.plan import Plan, plan_for
from whet.types import WhetError


def plan(
    method: str,
    *,
    model: str,
    gpus: str = "1x80GB",
    prompt_tokens: int = UNKNOWN_PROMPT,
    completion_tokens: int | None = None,
    reward_model: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Plan:
    """Memory of every copy, seconds per step and what to change; `settings` are those of `whet.train`."""
    room, shape = devices(gpus), model_shape(model)
    layer: dict[str, Any] = {} if completion_tokens is None else {"sampling": {"max_new_tokens": completion_tokens}}
    # the run of a large model, whatever it is called: the built-in model's small defaults are not meant
    config = resolved(method, {"model": {"name": "planned/model"}}, settings or {}, layer, width=shape.hidden)
    work = workload(config, shape, prompt_tokens, on_cpu=room.is_cpu, eval_prompts=config.eval.prompts)
    if reward_model:
        from dataclasses import replace

        if not work.draws:
            raise WhetError(f"--reward-model has no effect: {method} draws no completions; drop it")
        work = replace(work, reward_model=model_shape(reward_model))
    return plan_for(work, room)
