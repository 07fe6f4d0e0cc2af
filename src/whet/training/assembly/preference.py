"""Learning from preferences: from a config to pairs or labels, the reference and the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from whet.data.foreign_rows import holds_completion, holds_pair, holds_steps
from whet.data.pairs import labelled_completions_from, preferences_from
from whet.data.prompts import LabelledCompletion, PreferencePair
from whet.data.rows import Row
from whet.data.tasks.contrast import task_labelled, task_preferences
from whet.data.usable import count_words
from whet.objective.axes import description, preset_named, title, with_changes
from whet.objective.keep import Everything
from whet.objective.preference.objective import PairObjective
from whet.objective.presets.preference import PAIR_PRESETS
from whet.reward.combine import RewardPart
from whet.reward.score import Failures
from whet.rollout.collect import PromptDataset, RewardContext, RolloutCollector, RolloutSpec
from whet.rollout.episodes import EnvironmentRunner
from whet.rollout.prompt_order import PromptOrder
from whet.settings.layers import flattened
from whet.training.assembly.prompts import data_summary
from whet.training.assembly.references import build_reference, check_reference, load_reference
from whet.training.assembly.rewards import build_scorer, reward_summary, take_notes
from whet.training.assembly.rows import (
    Read,
    column_facts,
    encodable,
    file_rows,
    left_out_phrases,
    method_for,
    naming_source,
    overlap_facts,
    refuse_too_long,
    row_training,
    rows_summary,
    task_rows,
    too_long_note,
)
from whet.training.assembly.runtime import (
    Runtime,
    decode_facts,
    fitting_prompts,
    rows_fact,
    sampling_fact,
    sampling_from,
)
from whet.training.completion_logp import LiveReference, ReferenceLogp, stored_reference
from whet.training.config import PreferenceConfig
from whet.training.distributed.shard import sharded, sharded_reference
from whet.training.distributed.shared_rollout import SharedRunner
from whet.training.evaluator import Evaluator
from whet.training.online_preference import OnlinePreferenceTrainer
from whet.training.preference_trainer import (
    PreferenceDataset,
    PreferenceModels,
    PreferenceRow,
    PreferenceTrainer,
    preference_rows,
)
from whet.types import Prompt, WhetError


def preference_objective(config: PreferenceConfig) -> PairObjective:
    """The method with the config's changes."""
    return with_changes(preset_named(config.method).objective, flattened(config.objective))


def describe_preference(config: PreferenceConfig) -> tuple[str, list[str]]:
    """Title and objective, in words and symbols; what cannot work is refused."""
    objective = preference_objective(config)
    if config.preference.online == 1:
        raise WhetError(
            "preference.online is 1: a pair needs two completions; give 2 or more, or 0 to learn from the data"
        )
    if config.preference.online and config.preference.reference_logp == "stored":
        raise WhetError(
            "preference.online writes new completions in every step, which a stored reference cannot know; drop it"
        )
    check_reference(config, objective.reference.name)
    return title(objective), description(objective)


def build_preference(
    config: PreferenceConfig, runtime: Runtime, evaluator: Evaluator | None
) -> tuple[PreferenceTrainer, dict[str, str], int]:
    """The trainer on rows of data, the facts of these, and on how many rows it is evaluated."""
    objective, loaded, source = preference_objective(config), runtime.loaded, config.data.source
    train, evaluation = _load_rows(config, objective)
    encode = partial(preference_rows, loaded.tokenizer, context=loaded.context)
    with naming_source(source):
        train, (rows, dropped) = encodable(train, encode, config.data)
        refuse_too_long(config.data, dropped, loaded.context)
        if dropped and {row.label for row in rows} in ({1}, {-1}):
            raise WhetError(f"all {len(rows)} completions that fit have the same label{too_long_note(dropped)}")
    with naming_source(config.eval.source):
        evaluation, (eval_rows, too_long) = encodable(evaluation, encode, config.data)
        refuse_too_long(config.data, too_long, loaded.context)
    models = _models(config, runtime, objective, [*rows, *eval_rows])
    with naming_source(source):  # labels of one kind only
        dataset = PreferenceDataset(rows, eval_rows)
        trainer = PreferenceTrainer(models, objective, dataset, evaluator, **row_training(config, runtime.ranks))
    left_out = left_out_phrases(train, evaluation)
    held_out = count_words(evaluation, len(eval_rows)) if eval_rows else ""
    data = rows_summary(source, len(rows), held_out, dropped + too_long, left_out)
    lengths = rows_fact([completion.tokens for row in rows for completion in row.family])
    facts = {**column_facts(train, evaluation), **overlap_facts(train, evaluation)}
    return trainer, {"data": data, **facts, **lengths}, len(eval_rows)


def build_online_preference(
    config: PreferenceConfig,
    runtime: Runtime,
    parts: Sequence[RewardPart],
    failures: Failures,
    prompts: Sequence[Prompt],
    eval_prompts: Sequence[Prompt],
    evaluator: Evaluator | None,
) -> tuple[OnlinePreferenceTrainer, dict[str, str]]:
    """The trainer on completions of the policy's own, and the facts of its prompts."""
    objective, sampling, ranks = preference_objective(config), sampling_from(config.sampling), runtime.ranks
    score = build_scorer(config, parts, failures, ranks)
    reward = RewardContext(score, {}, partial(take_notes, parts, None, ranks), score.ahead)
    columns = column_facts(prompts)
    prompts, tokens = fitting_prompts(runtime, prompts, sampling, config.data)
    collector = RolloutCollector(
        runtime.engine,
        PromptDataset(prompts, tokens),
        lambda progress: reward,
        RolloutSpec(config.batch.rows_per_step, config.preference.online, sampling, greedy=False, keep=Everything()),
        PromptOrder(len(prompts), config.seed),
        runner=None if ranks.size == 1 else SharedRunner(EnvironmentRunner(runtime.engine), ranks),
    )
    models = _models(config, runtime, objective, ())
    trainer = OnlinePreferenceTrainer(models, objective, collector, evaluator, **row_training(config, ranks))
    return trainer, {
        **decode_facts(runtime, sampling, tokens),
        "data": data_summary(config, prompts, eval_prompts),
        **columns,
        **overlap_facts(prompts, eval_prompts),
        "reward": reward_summary(parts),
        **sampling_fact(sampling, tokens),
    }


def _models(
    config: PreferenceConfig, runtime: Runtime, objective: PairObjective, rows: Sequence[PreferenceRow]
) -> PreferenceModels:
    policy, batch, section, ranks = runtime.policy, config.batch, config.preference, runtime.ranks
    reference: ReferenceLogp | None = None
    if "ref_logp" not in objective.needs():
        if section.reference_logp == "stored":
            raise WhetError(f"preference.reference_logp has no effect: {config.method} uses no reference; drop it")
        if config.model.reference_model:
            raise WhetError(f"model.reference_model has no effect: {config.method} uses no reference; drop it")
    elif section.reference_logp == "stored":
        held = load_reference(config, runtime) if config.model.reference_model else policy
        file = Path(section.store) if section.store else None
        families = [row.family for row in rows]
        reference = stored_reference(held, families, batch.micro_batch_tokens, file, batch.packed, ranks)
    else:
        first = build_reference(config, runtime, objective.reference.name)
        reference = LiveReference(first, batch.micro_batch_tokens, batch.packed, ranks)
    shards = runtime.shards
    if shards is not None:
        policy = sharded(policy, shards)
        if isinstance(reference, LiveReference):
            reference = replace(reference, reference=sharded_reference(reference.reference, policy, shards))
    return PreferenceModels(policy, runtime.tokenizer, reference)


def _load_rows(
    config: PreferenceConfig, objective: PairObjective
) -> tuple[Sequence[PreferencePair | LabelledCompletion], Sequence[PreferencePair | LabelledCompletion]]:
    """Training and eval rows: pairs, or single completions with labels where the method takes them."""
    paired = "pairs" in objective.needs()
    if config.data.parsed_source.is_task:
        return task_rows(config, task_preferences if paired or not config.preference.labels else task_labelled)

    return file_rows(config, partial(_pair_reader, config.method, paired))


def _pair_reader(method: str, paired: bool, row: Row) -> Read:
    """The reader for rows like this one."""
    if holds_steps(row) and not holds_pair(row):
        raise WhetError(
            f"{row.where}: the row is a solution in steps; {method} learns from completions, 'chosen' and 'rejected'; "
            f"train {method_for('steps')}, or give pairs"
        )
    if not holds_completion(row):
        return preferences_from
    if paired:
        single = [name for name, preset in PAIR_PRESETS.items() if "pairs" not in preset.objective.needs()]
        raise WhetError(
            f"{row.where}: the row is one completion with a label; {method} compares two, 'chosen' and 'rejected'; "
            f"train by a method that learns from labels ({', '.join(single)}), or give pairs"
        )
    return labelled_completions_from
