"""From a config to the trainers that learn from preferences: policies on pairs or labels, and reward models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from whet.build.adapters import first_policy
from whet.config.config import PreferenceConfig, RewardModelConfig, flattened
from whet.data import Labelled, Row
from whet.data.pairs import Preference, Ranked, judged_from, preferences_from, rankings_from
from whet.data.shapes import holds_pair, holds_ranking, holds_completion, holds_steps
from whet.data.source import EVAL, EVAL_SEED, TRAIN, parse_source
from whet.data.step_rows import LABELS, Stepped, common_separator, outcomes_from, stepped_from
from whet.data.tasks.contrast import STEP, task_judged, task_preferences, task_rankings, task_stepped
from whet.model.causal_lm import CausalLM
from whet.objective.preference import LabelLoss, RankLoss
from whet.objective.axes import description, preset_named, title, with_changes
from whet.objective.preference.objective import PairObjective
from whet.objective.preference.reward_model import AllPairs, PlackettLuce
from whet.objective.presets.preference import PAIR_PRESETS
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.protocols import Engine
from whet.reward.learned.process import EMPTY_LINE, SEPARATOR
from whet.build.rows import Read, left_out_phrases, read_usable
from whet.train.evaluate import Evaluator
from whet.train.optimizer import OptimizerSettings
from whet.train.preference import (
    PreferenceDataset,
    PreferenceTrainer,
    PreferenceSettings,
    PreferenceModels,
    preference_rows,
)
from whet.train.completion_logp import LiveReference, ReferenceLogp, stored_reference
from whet.train.reward_model import (
    RewardModelTrainer,
    RewardModelSettings,
    RewardModelDataset,
    bootstrap_rows,
    build_reward_model,
    reward_model_rows,
)
from whet.types import WhetError


def preference_objective(config: PreferenceConfig) -> PairObjective:
    return with_changes(preset_named(config.method).objective, flattened(config.objective))


def preference_words(config: PreferenceConfig) -> tuple[str, list[str]]:
    """Title and description of what is minimised."""
    row = preference_objective(config)
    return title(row), description(row)


def preference_trainer(
    config: PreferenceConfig, policy: CausalLM, loaded: Any, exam: tuple[Engine, Evaluator] | None
) -> tuple[PreferenceTrainer, str]:
    """The trainer, and its data in words."""
    row, batch, online = preference_objective(config), config.batch, bool(config.preference.online)
    if online and config.preference.reference_logp == "stored":
        raise WhetError(
            "preference.online writes new completions in every step, which a stored reference cannot know; drop it"
        )
    train, held_out = ([], []) if online else _compared(config, row)
    with _naming(config.data.source):
        rows, dropped = preference_rows(loaded.tokenizer, train, loaded.context) if train else ([], 0)
        if dropped and {each.label for each in rows} in ({1}, {-1}):
            raise WhetError(f"all {len(rows)} completions that fit have the same label{_shorter(dropped)}")
    others = preference_rows(loaded.tokenizer, held_out, loaded.context)[0] if held_out else []
    reference: ReferenceLogp | None = None
    if "ref_logp" in row.needs():
        if config.preference.reference_logp == "stored":
            file = Path(config.preference.store) if config.preference.store else None
            families = [each.family for each in (*rows, *others)]
            reference = stored_reference(policy, families, batch.micro_batch_tokens, file, batch.packed)
        else:
            first = first_policy(config, policy, row.reference.name)
            reference = LiveReference(first, batch.micro_batch_tokens, batch.packed)
    elif config.preference.reference_logp == "stored":
        raise WhetError(f"preference.reference_logp has no effect: {config.method} uses no reference; drop it")
    settings = PreferenceSettings(
        config.steps, batch.rows_per_step, batch.micro_batch_tokens, batch.packed, config.seed, online
    )
    trainer = PreferenceTrainer(
        PreferenceModels(policy, loaded.tokenizer, reference),
        row,
        PreferenceDataset(rows, others),
        settings,
        _optimizer(config),
        exam,
    )
    return trainer, _told(config.data.source, len(rows), len(others), dropped, left_out_phrases(train, held_out))


def reward_model_words(config: RewardModelConfig) -> tuple[str, list[str]]:
    preset = REWARD_MODELS[config.method]
    loss = _loss(config)
    if isinstance(loss, RankLoss):
        formula = (
            "  L = mean -log sigma(r_better - r_worse)"
            if config.reward_model.cost == "all_pairs"
            else "  L = Plackett-Luce"
        )
        formula += f" + {config.reward_model.centre:g} (r_better + r_worse)^2" if config.reward_model.centre else ""
    else:
        formula = "  L = -mean [ y log p + (1 - y) log(1 - p) ], p = sigma(r)"
    lines = [f"{preset.title}  ({preset.paper})", formula, f"  - {preset.objective.words}", f"  - {_scored_at(config)}"]
    if config.reward_model.heads > 1:
        draw = "its own draw of the rows" if config.reward_model.bootstrap else "the same rows"
        lines.append(f"  - {config.reward_model.heads} heads on one trunk, each from {draw}; L is the mean of theirs")
    return preset.title, lines


def _scored_at(config: RewardModelConfig) -> str:
    """Which token is scored."""
    if REWARD_MODELS[config.method].objective.learns == "steps":
        return "scored at the last token of each step"
    if config.reward_model.outcome_at == "every_token":
        return "learnt at every token of a completion, scored at the last token of the conversation"
    return "scored at the last token of the conversation"


def reward_model_trainer(config: RewardModelConfig, policy: CausalLM, loaded: Any) -> tuple[RewardModelTrainer, str]:
    """The trainer, and its data in words."""
    learns, batch, tokenizer = REWARD_MODELS[config.method].objective.learns, config.batch, loaded.tokenizer
    train, held_out = _judged(config, learns)
    separator = _separator(config, train)
    heads, everywhere = config.reward_model.heads, config.reward_model.outcome_at == "every_token"
    with _naming(config.data.source):
        rows, dropped = reward_model_rows(tokenizer, train, loaded.context, separator, everywhere)
    others = reward_model_rows(tokenizer, held_out, loaded.context, separator)[0] if held_out else []
    kind = "token" if learns == "steps" else "sequence"
    judge = build_reward_model(policy, tokenizer, [*rows, *others], kind, config.seed, heads)  # type: ignore[arg-type]
    if learns == "steps":
        setattr(judge.model.config, SEPARATOR, separator)
    rows = bootstrap_rows(rows, heads, config.seed) if heads > 1 and config.reward_model.bootstrap else rows
    settings = RewardModelSettings(
        config.steps, batch.rows_per_step, batch.micro_batch_tokens, batch.packed, config.seed
    )
    with _naming(config.data.source, _shorter(dropped) if dropped else ""):
        lessons = RewardModelDataset(rows, others)
        trainer = RewardModelTrainer(judge, tokenizer, _loss(config), lessons, settings, _optimizer(config))
    return trainer, _told(config.data.source, len(rows), len(others), dropped, left_out_phrases(train, held_out))


def _separator(config: RewardModelConfig, rows: Sequence[Any]) -> str:
    """What ends a step: as told, else as the data has it."""
    if config.reward_model.separator or REWARD_MODELS[config.method].objective.learns != "steps":
        return config.reward_model.separator or EMPTY_LINE
    return (STEP if config.data.parsed_source.is_task else common_separator(rows)) or EMPTY_LINE


def _loss(config: RewardModelConfig) -> RankLoss | LabelLoss:
    scorer = config.reward_model
    if REWARD_MODELS[config.method].objective.learns == "rankings":
        return RankLoss(AllPairs() if scorer.cost == "all_pairs" else PlackettLuce(), scorer.centre)
    return LabelLoss(scorer.even_completions, scorer.positive_weight)


def _optimizer(config: PreferenceConfig | RewardModelConfig) -> OptimizerSettings:
    return OptimizerSettings(**config.optimizer.model_dump())


def _compared(
    config: PreferenceConfig, row: PairObjective
) -> tuple[Sequence[Preference | Labelled], Sequence[Preference | Labelled]]:
    """Rows to learn from and rows held out: pairs, or single completions with labels where the method takes them."""
    paired = "pairs" in row.needs()
    if config.data.parsed_source.is_task:
        return _of_task(config, task_preferences if paired or not config.preference.labels else task_judged)

    return _of_file(config, partial(_pair_reader, config.method, paired))


def _pair_reader(method: str, paired: bool, row: Row) -> Read:
    """Who reads rows like this one."""
    if holds_steps(row) and not holds_pair(row):
        raise WhetError(
            f"{row.where}: the row is a solution in steps; {method} learns from completions, 'chosen' and 'rejected'; "
            f"train {_learner('steps')}, or give pairs"
        )
    if not holds_completion(row):
        return preferences_from
    if paired:
        single = [name for name, preset in PAIR_PRESETS.items() if "pairs" not in preset.objective.needs()]
        raise WhetError(
            f"{row.where}: the row is one completion with a label; {method} compares two, 'chosen' and 'rejected'; train by "
            f"a method that learns from labels ({', '.join(single)}), or give pairs"
        )
    return judged_from


def _judged(
    config: RewardModelConfig, learns: str
) -> tuple[Sequence[Preference | Ranked | Labelled | Stepped], Sequence[Preference | Ranked | Labelled | Stepped]]:
    of_task: Any = {"rankings": task_rankings, "outcomes": task_judged, "steps": task_stepped}[learns]
    is_task, labels = config.data.parsed_source.is_task, config.reward_model.labels
    if labels != LABELS and (is_task or learns != "steps"):
        raise WhetError(f"reward_model.labels={labels} has no effect: it names a column of a file with steps; drop it")
    if is_task:
        return _of_task(config, of_task)
    return _of_file(config, partial(_verdict_reader, config.method, learns, labels), of_task)


def _verdict_reader(method: str, learns: str, labels: str, row: Row) -> Read:
    """Who reads rows like this one."""
    if learns == "steps":
        return partial(stepped_from, labels_in=labels)
    if learns == "outcomes":
        if holds_pair(row) or holds_ranking(row):
            raise WhetError(
                f"{row.where}: the row compares completions; {method} learns from single ones, with 'completion' and "
                f"'label'; train {_learner('rankings')}, or give labelled completions"
            )
        return outcomes_from if holds_steps(row) else judged_from
    if holds_steps(row) or holds_completion(row):
        kind, other = (
            ("a solution in steps", "steps") if holds_steps(row) else ("one completion with a label", "outcomes")
        )
        raise WhetError(
            f"{row.where}: the row is {kind}; {method} compares completions to one prompt, 'chosen' and 'rejected' or "
            f"'completions' and 'scores'; train {_learner(other)}, or give comparisons"
        )
    return rankings_from if holds_ranking(row) else preferences_from


def _learner(learns: str) -> str:
    return next(name for name, preset in REWARD_MODELS.items() if preset.objective.learns == learns)


def _of_task(config: PreferenceConfig | RewardModelConfig, write: Read) -> tuple[list[Any], list[Any]]:
    data = config.data

    def rows(split: str, seed: int, count: int) -> list[Any]:
        return data.parsed_source.from_tasks(
            lambda task, share, difficulty: write(task, split, share, seed, difficulty), count, data.difficulty
        )

    return rows(TRAIN, config.seed, data.count), rows(EVAL, EVAL_SEED, config.eval.prompts)


def _of_file(
    config: PreferenceConfig | RewardModelConfig, reader: Callable[[Row], Read], of_task: Read | None = None
) -> tuple[list[Any], list[Any]]:
    """`of_task` writes the rows of a task that a file is measured on."""
    data = config.data
    data.parsed_source.require_completions(config.method)
    train = read_usable(data, data.source, reader, data.limit)
    if of_task is not None and parse_source(config.eval.source).is_task:
        asked = data.model_copy(update={"source": config.eval.source})
        return train, _of_task(config.model_copy(update={"data": asked}), of_task)[1]
    return train, read_usable(data, config.eval.source, reader) if config.eval.source else []


@contextmanager
def _naming(source: str, after: str = "") -> Iterator[None]:
    """Mistakes of the data as a whole are told with its name."""
    try:
        yield
    except WhetError as error:
        raise WhetError(f"{source}: {error}{after}") from error


def _shorter(dropped: int) -> str:
    return f" ({dropped} more rows are too long for the model: shorten them, or use a model with a longer context)"


def _told(source: str, count: int, held_out: int, dropped: int, left_out: list[str]) -> str:
    parts = [f"{count} row{'s' if count != 1 else ''}", *([f"{held_out} held out"] if held_out else [])]
    parts += [f"{dropped} left out: too long for the context"] if dropped else []
    parts += left_out
    return f"{source} ({', '.join(parts)})"
