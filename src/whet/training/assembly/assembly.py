"""From a config to a run that is ready to start: model, data, rewards, trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from whet.data.usable import evenly
from whet.protocols import Reward
from whet.record.metrics.timer import PhaseTimer
from whet.reward.combine import RewardPart
from whet.reward.score import Failures, skips_none
from whet.reward.steps import steps_of
from whet.training.assembly.fingerprints import questions_digest
from whet.training.assembly.forms import form_facts
from whet.training.assembly.health import health_settings
from whet.training.assembly.prompts import load_prompts
from whet.training.assembly.rewards import (
    begin_rewards,
    bind_judges,
    build_reward_parts,
    build_scorer,
    check_sources,
    evaluation_parts,
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
    sized_passes,
)
from whet.training.config import Config, PolicyConfig, PreferenceConfig, RewardModelConfig, SFTConfig
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.distributed.workers import WorkerPool
from whet.training.evaluator import Evaluator
from whet.training.run_loop import Stateful, Trainer
from whet.types import Prompt

if TYPE_CHECKING:
    from whet.training.distributed.reward_workers import RewardHost, RewardWorkers


def reward_host(rewards: Mapping[str, Reward], isolation: str | None) -> RewardHost:
    """Runs in the worker's process."""
    if isolation is not None:
        from whet.reward.sandbox.requirement import require_isolation

        require_isolation(isolation)
    from whet.training.distributed.reward_workers import RewardHost

    return RewardHost(rewards)


def scored_elsewhere(
    config: Config, pool: WorkerPool | None, parts: Sequence[RewardPart]
) -> tuple[list[RewardPart], RewardWorkers | None, dict[str, str]]:
    """The parts with rewards that workers score, the workers, and what the run's facts say of them.

    Of several ranks the first one speaks to the workers, and all get the scores; `pool` is None on the others.
    """
    count = config.scale.reward_workers
    if not count or not parts:
        return list(parts), None, {}
    from whet.training.distributed.reward_workers import GIB, RemoteReward, RewardWorkers, stays_here, wants_all

    rewards = {part.name: part.resolved_reward for part in parts}
    sent = {name: reward for name, reward in rewards.items() if not stays_here(reward) and steps_of(reward) is None}
    here = [name for name in rewards if name not in sent]
    fact = f"{count} processes for {', '.join(sent)}" if sent else "none"
    if here:
        fact += f"; in the trainer, since they ask the policy or keep notes: {', '.join(here)}"
    if not sent:
        return list(parts), None, {"reward workers": fact}
    memory = int(config.scale.reward_memory * GIB)
    make = partial(reward_host, sent, config.sandbox.require)

    def start(number: int) -> Any:
        assert pool is not None
        return pool.start(f"reward worker {number}", make, memory=memory)

    workers = None
    if pool is not None:
        workers = RewardWorkers(pool, start, count, memory=memory, timeout=config.scale.timeout)

    def elsewhere(part: RewardPart) -> RewardPart:
        reward = part.resolved_reward
        if part.name not in sent:
            return part
        deterministic = bool(getattr(reward, "deterministic", True))
        remote = RemoteReward(
            part.name, workers, config.reward.timeout, wants_all(reward), deterministic, skips_none(reward)
        )
        return replace(part, reward=remote)

    return [elsewhere(part) for part in parts], workers, {"reward workers": fact}


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
    prompts: Sequence[Prompt] = ()  # to draw completions to, in training or else in evaluation
    also_saved: Mapping[str, Stateful] = field(default_factory=dict)  # with each checkpoint, besides the trainer
    eval_size: int = 0  # prompts behind the eval metrics, or rows where no prompts are answered
    eval_questions: str = ""  # a digest of those prompts, in their order
    close: Callable[[], None] = lambda: None  # ends what the run started elsewhere
    elsewhere: Callable[[], list[dict[str, Any]]] = list  # what each process of the run did so far
    seconds: Mapping[str, float] = field(default_factory=dict)  # of data, model and what is built on them


def assemble(config: Config, rewards: Sequence[RewardPart] | None = None, ranks: Ranks = ALONE) -> Assembly:
    """Build everything; every mistake in the config or the data surfaces here, before the first step.

    What is cheap comes first: rewards, objective and prompts are checked before a model is read.
    """
    draws, evaluates, timer = config.draws_completions(), config.scores_eval_prompts(), PhaseTimer()
    with timer.phase("data"):
        parts = build_reward_parts(config, _needs_reward(config), rewards) if draws or evaluates else []
        title, objective = describe(config, parts)
        loaded = load_prompts(config, evaluation=False) if draws else []
        check_sources(loaded, parts)
        prompts = scorable_prompts(loaded, parts, config.data)
        held_out = load_prompts(config, evaluation=True) if evaluates and config.eval.prompts else []
        eval_prompts = evenly(scorable_prompts(held_out, parts, config.data), config.eval.prompts)
    protection = sandbox_summary(parts)
    if ranks.size == 1 and not config.scale.reward_workers:
        begin_rewards(parts, eval_prompts)
    with timer.phase("model"):
        runtime = load_runtime(config, ranks)
    try:
        with timer.phase("trainer"):
            config = sized_passes(config, runtime.policy)
            parts = bind_judges(parts, runtime.engine, runtime.tokenizer)
            scored, workers, worker_facts = scored_elsewhere(config, runtime.cluster, parts)
            failures = failure_policy(config)
            evaluator, decoding = _evaluator(config, runtime, scored, failures, eval_prompts)
            trainer, facts, eval_rows = build_trainer(
                config, runtime, scored, failures, prompts, eval_prompts, evaluator
            )
    except BaseException:
        runtime.close()
        raise
    lengths = facts.pop("lengths")
    remembering = {f"reward {part.name}": part.reward for part in parts if hasattr(part.reward, "restore")}
    also_saved: dict[str, Any] = {"failures": failures, **remembering} if parts else {}

    def close() -> None:
        trainer.close()
        runtime.close()

    return Assembly(
        trainer=trainer,
        title=title,
        objective=objective,
        facts={
            **runtime.facts,
            **decoding,
            **facts,
            **form_facts(config, config.data.source, config.eval.source),
            **protection(),
            **worker_facts,
            **settings_facts(config),
            "lengths": lengths,
        },
        precision=str(runtime.policy.dtype),
        settings=health_settings(config, parts),
        parts=tuple(parts),
        prompts=prompts or eval_prompts,
        also_saved=also_saved,
        eval_size=(len(evaluator.prompts) if evaluator else 0) or eval_rows,
        eval_questions=questions_digest(evaluator.prompts if evaluator else ()),
        close=close,
        elsewhere=lambda: process_rows(runtime.engine, workers),
        seconds=timer.seconds,
    )


def _needs_reward(config: Config) -> bool:
    """True where a run cannot do without a reward."""
    if isinstance(config, PolicyConfig):
        from whet.training.assembly.rl import learns_from_reward

        return learns_from_reward(config)
    return config.draws_completions()


def describe(config: Config, parts: Sequence[RewardPart]) -> tuple[str, list[str]]:
    """Title and objective, in words and symbols; what cannot work is refused."""
    match config:
        case PolicyConfig():
            from whet.training.assembly.rl import describe_rl

            return describe_rl(config, parts)
        case SFTConfig():
            from whet.training.assembly.sft import describe_sft

            return describe_sft()
        case PreferenceConfig():
            from whet.training.assembly.preference import describe_preference

            return describe_preference(config)
        case RewardModelConfig():
            from whet.training.assembly.reward_model import describe_reward_model

            return describe_reward_model(config)


def build_trainer(
    config: Config,
    runtime: Runtime,
    parts: Sequence[RewardPart],
    failures: Failures,
    prompts: Sequence[Prompt],
    eval_prompts: Sequence[Prompt],
    evaluator: Evaluator | None,
) -> tuple[Trainer, dict[str, str], int]:
    """The trainer, the facts of what it learns from, and the rows it is evaluated on besides eval prompts."""
    match config:
        case PolicyConfig():
            from whet.training.assembly.rl import build_rl

            return *build_rl(config, runtime, parts, failures, prompts, eval_prompts, evaluator), 0
        case SFTConfig():
            from whet.training.assembly.sft import build_sft

            return *build_sft(config, runtime, eval_prompts, evaluator), 0
        case PreferenceConfig() if config.preference.online:
            from whet.training.assembly.preference import build_online_preference

            return *build_online_preference(config, runtime, parts, failures, prompts, eval_prompts, evaluator), 0
        case PreferenceConfig():
            from whet.training.assembly.preference import build_preference

            return build_preference(config, runtime, evaluator)
        case RewardModelConfig():
            from whet.training.assembly.reward_model import build_reward_model_run

            return build_reward_model_run(config, runtime)


def _evaluator(
    config: Config,
    runtime: Runtime,
    parts: Sequence[RewardPart],
    failures: Failures,
    eval_prompts: Sequence[Prompt],
) -> tuple[Evaluator | None, dict[str, str]]:
    """The evaluator of eval prompts, where there are prompts and a reward, and how its completions are written."""
    if not parts or not eval_prompts:
        return None, {}
    score = build_scorer(config, evaluation_parts(parts), failures, runtime.ranks)
    sampling = sampling_from(config.sampling)
    evaluator = build_evaluator(runtime, eval_prompts, sampling, score, config.data, config.eval.by)
    return evaluator, decode_facts(runtime, sampling, evaluator.prompt_tokens)


def process_rows(engine: Any, workers: RewardWorkers | None) -> list[dict[str, Any]]:
    """What each process that the run started did: one row per engine and reward worker."""
    counts = getattr(engine, "counts", None)
    tables: list[Any] = [counts] if isinstance(counts, dict) else []
    return [
        {"process": name, "place": location, **asdict(counts)}
        for table in [*tables, *([workers.counts] if workers is not None else [])]
        for name, (location, counts) in table.items()
    ]
