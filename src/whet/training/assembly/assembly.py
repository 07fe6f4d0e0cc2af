"""From a config to a run that is ready to start: model, data, rewards, trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from whet.model.load import device_choice
from whet.reward.combine import RewardPart
from whet.tools.planner.from_config import memory_facts, refuse_too_large, this_device
from whet.training.assembly.health import health_settings
from whet.training.assembly.kind import BuildInputs, TrainingKind
from whet.training.assembly.kinds import kind_of
from whet.training.assembly.prompts import load_prompts
from whet.training.assembly.reward_workers import scored_elsewhere
from whet.training.assembly.rewards import (
    bind_judges,
    build_reward_parts,
    build_scorer,
    failure_policy,
    sandbox_summary,
    scorable_prompts,
)
from whet.training.assembly.runtime import (
    Runtime,
    build_evaluator,
    decode_facts,
    load_runtime,
    sampling_from,
    settings_facts,
)
from whet.training.config import Config
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.distributed.reward_workers import RewardWorkers
from whet.training.run import Stateful, Trainer
from whet.types import Prompt


@dataclass(frozen=True)
class Assembly:
    """A run ready to start."""

    trainer: Trainer
    title: str
    objective: list[str]  # in words and symbols
    facts: Mapping[str, str]
    precision: str
    settings: Mapping[str, Any]  # that health rules look at
    parts: tuple[RewardPart, ...] = ()
    also_saved: Mapping[str, Stateful] = field(default_factory=dict)  # with each checkpoint, besides the trainer
    eval_size: int = 0  # prompts behind the eval metrics, or rows where no prompts are answered
    close: Callable[[], None] = lambda: None  # ends what the run started elsewhere
    elsewhere: Callable[[], list[dict[str, Any]]] = list  # what each process of the run did so far


def assemble(config: Config, rewards: Sequence[RewardPart] | None = None, ranks: Ranks = ALONE) -> Assembly:
    """Build everything; every mistake in the config or the data surfaces here, before the first step."""
    kind = kind_of(config)
    draws, evaluates = kind.draws_completions(config), kind.scores_eval_prompts(config)
    wanted = draws and kind.learns_from_reward(config)
    parts = build_reward_parts(config, wanted, rewards) if draws or evaluates else []
    title, objective = kind.describe(config, parts)
    prompts = scorable_prompts(load_prompts(config, evaluation=False) if draws else [], parts, config.data)
    held_out = load_prompts(config, evaluation=True) if evaluates and config.eval.prompts else []
    eval_prompts = scorable_prompts(held_out, parts, config.data)
    room = this_device(device_choice(config.model.device))
    refuse_too_large(config, room, ranks.size)
    runtime = load_runtime(config, ranks)
    try:
        found = _assembled(config, kind, runtime, parts, prompts, eval_prompts, title, objective)
        return replace(found, facts={**found.facts, **memory_facts(config, room, prompts or eval_prompts, ranks.size)})
    except BaseException:
        runtime.close()
        raise


def _assembled(
    config: Config,
    kind: TrainingKind,
    runtime: Runtime,
    parts: Sequence[RewardPart],
    prompts: Sequence[Prompt],
    eval_prompts: Sequence[Prompt],
    title: str,
    objective: list[str],
) -> Assembly:
    parts = bind_judges(parts, runtime.engine, runtime.tokenizer)
    scored, workers, scorers = scored_elsewhere(config, runtime.cluster, parts)
    failures = failure_policy(config)
    evaluator, evaluated = None, eval_prompts[: config.eval.prompts] if parts else []
    decoding: dict[str, str] = {}
    if evaluated:
        score = build_scorer(config, scored, failures, runtime.ranks)
        sampling = sampling_from(config.sampling)
        evaluator = build_evaluator(runtime, evaluated, sampling, score, config.data, config.eval.by)
        decoding = decode_facts(runtime, sampling, evaluator.prompt_tokens)
    built = kind.build(config, BuildInputs(runtime, scored, failures, prompts, eval_prompts, evaluator))
    facts = {
        **runtime.facts,
        **decoding,
        **built.facts,
        **sandbox_summary(parts),
        **scorers,
        **settings_facts(config),
        **built.lengths,
    }
    eval_size = (len(evaluator.prompts) if evaluator else 0) or built.eval_rows
    remembering = {f"reward {part.name}": part.reward for part in parts if hasattr(part.reward, "restore")}
    also_saved: dict[str, Any] = {"failures": failures, **remembering} if parts else {}
    precision = str(runtime.policy.dtype)

    def close() -> None:
        built.close()
        runtime.close()

    return Assembly(
        built.trainer,
        title,
        objective,
        facts,
        precision,
        health_settings(config, parts),
        tuple(parts),
        also_saved,
        eval_size,
        close,
        lambda: process_rows(runtime.engine, workers),
    )


def process_rows(engine: Any, workers: RewardWorkers | None) -> list[dict[str, Any]]:
    """What each process that the run started did: one row per engine and reward worker."""
    counts = getattr(engine, "counts", None)
    found: list[Any] = [counts] if isinstance(counts, dict) else []
    return [
        {"process": name, "place": place, **asdict(counts)}
        for each in [*found, *([workers.counts] if workers is not None else [])]
        for name, (place, counts) in each.items()
    ]
