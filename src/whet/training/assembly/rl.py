"""Reinforcement learning: from a config to its objective, collector and trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from whet.data.chat import demonstration_tokens
from whet.data.distillation_target import COLUMNS, column_text
from whet.data.reference_rewards import reference_rewards
from whet.model.causal_lm import CausalLM
from whet.model.critic import critic_on
from whet.model.experts import routing_refusal
from whet.objective import Objective, RunSetting, check_setting, description, preset_named, title, with_changes
from whet.reward.combine import RewardPart
from whet.reward.score import Failures
from whet.reward.steps import StepScorer, step_scorer, with_steps
from whet.rollout.collect import Collector, PromptDataset, RewardContext, RolloutCollector, RolloutSpec, Score
from whet.rollout.prompt_order import PromptOrder
from whet.rollout.weight_sync_check import PolicyWatch, shares_weights
from whet.rollout.window import GroupWindow
from whet.settings.layers import flattened
from whet.training.assembly.engines import async_writer
from whet.training.assembly.prompts import data_summary
from whet.training.assembly.references import build_reference, check_reference
from whet.training.assembly.rewards import (
    build_checks,
    build_scorer_at,
    check_rewards,
    part_weights_at,
    reward_summary,
    score_and_check,
    take_notes,
)
from whet.training.assembly.rows import column_facts, overlap_facts
from whet.training.assembly.runtime import (
    Runtime,
    decode_facts,
    fitting_prompts,
    sampling_fact,
    sampling_from,
)
from whet.training.assembly.teacher import (
    READ_FIRST,
    SELF,
    build_teacher,
    check_teacher,
    distillation_settings,
    needs_verdicts,
    task_demonstrations,
    with_reading,
)
from whet.training.config import OF_TEACHER, PolicyConfig
from whet.training.demonstrations import DemonstrationSource
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.distributed.shard import sharded, sharded_critic, sharded_reference
from whet.training.evaluator import Evaluator
from whet.training.rl_trainer import RLModels, RLTrainer
from whet.training.teacher import ModelTeacher
from whet.types import Demonstration, Prompt, Sample, StopReason, WhetError

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
    """The demonstrations that the method imitates: those of the built-in task, or of a column."""
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
    description = f"{count}; imitated together with the policy's own completions, unless too long for the context"
    return DemonstrationSource(text, encode, runtime.loaded.context, description)


def build_plain_objective(config: PolicyConfig) -> Objective:
    """The method with the config's changes."""
    return with_changes(preset_named(config.method).objective, flattened(config.objective))


def build_objective(config: PolicyConfig, parts: Sequence[RewardPart] = ()) -> Objective:
    """The method's objective with the config's changes, checked against the rest of the config and its rewards."""
    changes, objective = flattened(config.objective), build_plain_objective(config)
    batch = config.batch
    setting = RunSetting(
        group_size=batch.group_size,
        updates=batch.updates_per_step * batch.epochs_per_batch,
        num_parts=len(parts),
        staleness=batch.staleness or config.scale.max_staleness,
        has_steps=step_scorer(parts) is not None,
        steps=config.steps,
        has_turns=not config.env.is_single,
        has_trees=config.env.branching != "none",
        stale_by="scale.max_staleness" if config.scale.max_staleness else "batch.staleness",
    )
    check_setting(objective, setting, changes)
    check_teacher(config, objective)
    check_demonstrations(config, objective)
    check_reference(config, objective.reference.name)
    return objective


def learns_from_reward(config: PolicyConfig) -> bool:
    """False where completions that are drawn need no reward."""
    return build_plain_objective(config).needs_reward or needs_verdicts(config)


def describe_rl(config: PolicyConfig, parts: Sequence[RewardPart]) -> tuple[str, list[str]]:
    """Title and objective, in words and symbols; what cannot work is refused."""
    objective = build_objective(config, parts)
    return title(objective), description(objective, config.batch.updates_per_step * config.batch.epochs_per_batch)


def build_rl(
    config: PolicyConfig,
    runtime: Runtime,
    parts: Sequence[RewardPart],
    failures: Failures,
    prompts: Sequence[Prompt],
    eval_prompts: Sequence[Prompt],
    evaluator: Evaluator | None,
) -> tuple[RLTrainer, dict[str, str]]:
    """The trainer, and the facts of its prompts and its reward."""
    objective = build_objective(config, parts)
    check_rewards(objective, parts)
    sampling = sampling_from(config.sampling)
    prompts, tokens = fitting_prompts(runtime, prompts, sampling, config.data)
    if "reference_rewards" in objective.needs():
        for prompt in prompts:
            reference_rewards(prompt)  # refused now, not in the step that meets it
    dataset = PromptDataset(prompts, tokens)
    reward_at = build_reward_at(config, runtime, objective, parts, failures)
    trainer = build_rl_trainer(config, objective, runtime, dataset, reward_at, evaluator)
    return trainer, {
        **decode_facts(runtime, sampling, tokens),
        "data": data_summary(config, prompts, eval_prompts),
        **column_facts(prompts, eval_prompts),
        **overlap_facts(prompts, eval_prompts),
        **({"teacher": trainer.taught_by} if trainer.taught_by else {}),
        **({"demonstrations": trainer.shown} if trainer.shown else {}),
        "reward": reward_fact(objective, parts),
        **({"asynchrony": async_fact(config)} if config.scale.max_staleness else {}),
        **sampling_fact(sampling, tokens),
    }


def reward_fact(objective: Objective, parts: Sequence[RewardPart]) -> str:
    """The reward in words, and whether anything is learned from it."""
    if not parts:
        return f"none: {objective.name} learns without one"
    return reward_summary(parts) + ("" if objective.needs_reward else " (measured only: nothing is learned from it)")


def build_reward_at(
    config: PolicyConfig, runtime: Runtime, objective: Objective, parts: Sequence[RewardPart], failures: Failures
) -> Callable[[float], RewardContext]:
    """How completions are scored, by the share of the training that is done."""
    if not parts:
        return lambda progress: RewardContext(without_reward)
    steps_scorer, ranks, tokenizer = step_scorer(parts), runtime.ranks, runtime.tokenizer
    scorer_at = build_scorer_at(config, parts, failures, ranks)
    checks = build_checks(config, parts)

    def reward_at(progress: float) -> RewardContext:
        scorer = scorer_at(progress)
        score: Score = scorer
        if checks is not None:
            score = partial(score_and_check, score=score, checks=checks, ranks=ranks)
        if steps_scorer is not None and "step_reward" in objective.needs():
            score = partial(score_with_steps, score=score, scorer=steps_scorer, tokenizer=tokenizer, ranks=ranks)
        noted = partial(take_notes, parts, checks, ranks, failures)
        return RewardContext(score, part_weights_at(config, parts, progress), noted, scorer.ahead)

    return reward_at


def without_reward(prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[Sample]:
    """Scores for a method that looks at no reward: every completion earns nothing, and counts."""
    return [sample.scored({}, None if sample.stop is StopReason.FAILED else 0.0) for sample in samples]


def score_with_steps(
    prompts: Sequence[Prompt],
    samples: Sequence[Sample],
    *,
    score: Score,
    scorer: StepScorer,
    tokenizer: Any,
    ranks: Ranks = ALONE,
) -> list[Sample]:
    """Scored samples, with the scores of their steps on the tokens that end them."""
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    scored = score(prompts, samples)
    return ranks.first(lambda: with_steps(prompts, scored, scorer, decode))


def build_rl_trainer(
    config: PolicyConfig,
    objective: Objective,
    runtime: Runtime,
    dataset: PromptDataset,
    reward_at: Callable[[float], RewardContext],
    evaluator: Evaluator | None,
) -> RLTrainer:
    """Put together the trainer of an RL run from its config and the objects it needs."""
    batch, needs = config.batch, objective.needs()
    sampling = replace(sampling_from(config.sampling), keeps_support=True)
    critic = None
    if "value" in needs:
        shared, start = config.critic.trunk == "shared", config.critic.start
        critic = critic_on(
            runtime.policy,
            shared=shared,
            start=start,
            tokenizer=runtime.tokenizer,
            shares_weights=runtime.shards is not None,
        )
    check_replay(config, runtime)
    asked = "ref_logp" in needs or (config.teacher.name == SELF and bool(OF_TEACHER & needs))
    reference = None
    if asked:
        if config.model.reference_model and config.teacher.name == SELF:
            raise WhetError("teacher.name=self is the policy as it began, not model.reference_model; drop one of them")
        reference = build_reference(config, runtime, objective.reference.name, needs)
    elif config.model.reference_model:
        raise WhetError(f"model.reference_model has no effect: {config.method} uses no reference; drop it")
    follows = not config.scale.max_staleness and shares_weights(runtime.engine)
    policy, shards = replace(runtime.policy, follows_sampler=follows), runtime.shards
    if shards is not None:
        policy = sharded(policy, shards)
        critic = None if critic is None else sharded_critic(critic, shards)
        reference = None if reference is None else sharded_reference(reference, policy, shards)
    target = distillation_settings(config, runtime, dataset.prompts)
    teacher = build_teacher(config, runtime, objective, sampling, dataset.prompt_tokens, reference)
    if isinstance(teacher, ModelTeacher) and target.section.context == "demonstration":
        teacher = with_reading(teacher, target, runtime.tokenizer, dataset.prompts[:READ_FIRST])
    models = RLModels(
        policy,
        runtime.tokenizer,
        reference=reference,
        critic=critic,
        critic_rate=config.critic.learning_rate,
        teacher=teacher,
        target=target,
        demonstrations=build_demonstrations(config, objective, runtime, dataset.prompts),
    )
    spec = RolloutSpec(
        batch.prompts_per_step, batch.group_size, sampling, greedy="greedy_reward" in needs, keep=objective.keep
    )
    order = PromptOrder(len(dataset.prompts), config.seed, config.data.order == "by_difficulty")
    collector = build_collector(config, runtime, policy, dataset, reward_at, spec, order)
    return RLTrainer(
        models,
        objective,
        collector,
        batch=batch,
        optimizer=config.optimizer,
        sampling=sampling,
        steps=config.steps,
        seed=config.seed,
        most_actions=config.env.most_actions(config.sampling.max_new_tokens),
        staleness=batch.staleness or config.scale.max_staleness,
        traced=config.report.samples_per_step if config.report.tokens else 0,
        evaluator=evaluator,
        ranks=runtime.ranks,
    )


def check_replay(config: PolicyConfig, runtime: Runtime) -> None:
    """Refuse a replay of experts where there are none to replay, or none that anybody notes."""
    source = config.batch.routing_replay
    if source == "none":
        return
    if refusal := routing_refusal(runtime.policy):
        raise WhetError(f"batch.routing_replay={source}: {refusal}; drop it")
    unrecorded = getattr(runtime.engine, "unrecorded_experts", None)  # an engine of one's own need not have it
    if source == "sampler" and unrecorded is not None and (reason := unrecorded()):
        raise WhetError(f"batch.routing_replay=sampler: {reason}; give batch.routing_replay=trainer, or drop it")


def build_collector(
    config: PolicyConfig,
    runtime: Runtime,
    policy: CausalLM,  # as it is trained: in shards, on several ranks
    dataset: PromptDataset,
    reward_at: Callable[[float], RewardContext],
    spec: RolloutSpec,
    order: PromptOrder,
) -> Collector:
    """The collector: each step waits for its own completions, or they are written while the trainer trains."""
    scale, engine = config.scale, runtime.engine
    temperature, name = spec.sampling.temperature, config.sampling.engine
    if not scale.max_staleness:
        watch = None if shares_weights(engine) else PolicyWatch(policy, engine, temperature, name)
        return RolloutCollector(
            engine,
            dataset,
            reward_at,
            spec,
            order,
            staleness=config.batch.staleness,
            runner=runtime.runner,
            watch=watch,
        )
    from whet.rollout.async_rollout import AsyncCollector, check_async_rollout

    check_async_rollout(spec)
    if runtime.ranks.size > 1:
        raise WhetError(
            f"scale.max_staleness: each of {runtime.ranks.size} ranks would take the groups that were finished first "
            "for itself, and they must train on the same ones; start one process, or give scale.max_staleness=0"
        )
    window = GroupWindow(spec.num_prompts, scale.max_staleness, scale.window)
    writer = async_writer(config, runtime.loaded, runtime.engine, policy, dataset, spec, window.capacity)
    watch = PolicyWatch(policy, writer, temperature, name, scale.max_staleness)
    return AsyncCollector(
        writer,
        dataset,
        reward_at,
        spec,
        order,
        window=window,
        weights=policy.model.state_dict,
        engine=engine,
        watch=watch,
    )


def async_fact(config: PolicyConfig) -> str:
    """What is written while the trainer trains, in words."""
    batch, scale = config.batch, config.scale
    window = GroupWindow(batch.prompts_per_step, scale.max_staleness, scale.window)
    passed = f"a slow one may be passed {window.passes} times" if window.passes else "in strict order"
    return f"at most {scale.max_staleness} versions behind; {window.capacity} groups in flight, {passed}"
