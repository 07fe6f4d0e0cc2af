"""From a config to the demonstrations that a method imitates beside the policy's own completions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from whet.data import demonstration_tokens
from whet.data.distillation_target import COLUMNS, column_text
from whet.objective import Objective
from whet.training.assembly.runtime import Runtime
from whet.training.assembly.teacher import task_demonstrations
from whet.training.config import PolicyConfig
from whet.training.demonstrations import DemonstrationSource
from whet.types import Demonstration, Prompt, WhetError

CONTEXT = "demonstration"


def check_demonstrations(config: PolicyConfig, objective: Objective) -> None:
    """Refuse a run whose completions cannot stand beside demonstrations, before anything is read."""
    if "demonstrated" in objective.needs() and not config.env.is_single:
        raise WhetError(
            f"objective.imitate={objective.imitate.name} is for single completions: a demonstration has no turns; give "
            "objective.imitate=none, or drop the environment"
        )


def build_demonstrations(
    config: PolicyConfig, objective: Objective, runtime: Runtime, prompts: Sequence[Prompt]
) -> DemonstrationSource | None:
    """Where the method imitates demonstrations: those of the built-in task, or of a column."""
    if "demonstrated" not in objective.needs():
        return None
    known = task_demonstrations(config)

    def text(prompt: Prompt) -> str | None:
        return known.get(prompt.id) or column_text(prompt, CONTEXT)

    having = [prompt for prompt in prompts if text(prompt)]
    if not having:
        raise WhetError(
            f"objective.imitate={objective.imitate.name}: no row of {config.data.source} has a column "
            f"{' or '.join(COLUMNS[CONTEXT])}; add one, rename yours with data.columns, or give objective.imitate=none"
        )
    encode = partial(demonstration_tokens, runtime.tokenizer)
    first = having[0]
    encode(Demonstration(first, text(first) or ""))  # a template that cannot write one is refused now
    count = "every prompt has one" if len(having) == len(prompts) else f"{len(having)} of {len(prompts)} prompts"
    said = f"{count}; imitated together with the policy's own completions, unless too long for the context"
    return DemonstrationSource(text, encode, runtime.loaded.context, said)
