"""From a config to the courses that learn from preferences: policies on pairs or labels, and reward models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from whet.config import PreferenceConfig, RewardModelConfig, flattened
from whet.data import Labelled, Row, read_rows
from whet.data.pairs import Preference, Ranked, judged_from, preferences_from, rankings_from
from whet.data.step_rows import Stepped, stepped_from
from whet.data.tasks.contrast import task_judged, task_preferences, task_rankings, task_stepped
from whet.model.reference import HeldReference
from whet.model.split import SplitModel
from whet.objective.preference import LabelLoss, RankLoss
from whet.objective.preference.axes import pair_description, pair_preset_named, pair_title, with_pair_changes
from whet.objective.preference.objective import PairObjective
from whet.objective.preference.reward_model import AllPairs, PlackettLuce
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.protocols import Engine
from whet.reward_parts import tasks_of
from whet.train.evaluate import Exam
from whet.train.optimizer import OptimizerSettings
from whet.train.preference import Lessons, PreferenceCourse, PreferenceSettings, Pupil, contrasted
from whet.train.reply_logp import LiveReference, ReferenceLogp, stored_reference
from whet.train.reward_model import (
    RewardModelCourse,
    RewardModelSettings,
    Verdicts,
    reward_model_on,
    verdicts,
)
from whet.types import WhetError

HELD_OUT_SEED = 1
Read = Callable[..., list[Any]]


def preference_row(config: PreferenceConfig) -> PairObjective:
    return with_pair_changes(pair_preset_named(config.method).objective, flattened(config.objective))


def preference_words(config: PreferenceConfig) -> tuple[str, list[str]]:
    """Title and description of what is minimised."""
    row = preference_row(config)
    return pair_title(row), pair_description(row)


def preference_course(
    config: PreferenceConfig, policy: SplitModel, loaded: Any, exam: tuple[Engine, Exam] | None
) -> tuple[PreferenceCourse, str]:
    """The course, and its data in words."""
    row, batch, online = preference_row(config), config.batch, bool(config.preference.online)
    if online and config.preference.reference_logp == "stored":
        raise WhetError(
            "preference.online writes new replies in every step, which a stored reference cannot know; drop it"
        )
    train, held_out = ([], []) if online else _compared(config, row)
    rows, dropped = contrasted(loaded.tokenizer, train, loaded.context) if train else ([], 0)
    others = contrasted(loaded.tokenizer, held_out, loaded.context)[0] if held_out else []
    reference: ReferenceLogp | None = None
    if "ref_logp" in row.needs():
        if config.preference.reference_logp == "stored":
            file = Path(config.preference.store) if config.preference.store else None
            families = [each.family for each in (*rows, *others)]
            reference = stored_reference(policy, families, batch.tokens_per_pass, file, batch.packed)
        else:
            reference = LiveReference(HeldReference(policy), batch.tokens_per_pass, batch.packed)
    elif config.preference.reference_logp == "stored":
        raise WhetError(f"preference.reference_logp has no effect: {config.method} uses no reference; drop it")
    settings = PreferenceSettings(
        config.steps, batch.rows_per_step, batch.tokens_per_pass, batch.packed, config.seed, online
    )
    course = PreferenceCourse(
        Pupil(policy, loaded.tokenizer, reference), row, Lessons(rows, others), settings, _optimizer(config), exam
    )
    return course, _told(config.data.source, len(rows), len(others), dropped)


def reward_model_words(config: RewardModelConfig) -> tuple[str, list[str]]:
    preset = REWARD_MODELS[config.method]
    loss = _loss(config)
    if isinstance(loss, RankLoss):
        formula = (
            "  L = mean -log sigma(r_better - r_worse)" if config.scorer.cost == "all_pairs" else "  L = Plackett-Luce"
        )
        formula += f" + {config.scorer.centre:g} (r_better + r_worse)^2" if config.scorer.centre else ""
    else:
        formula = "  L = -mean [ y log p + (1 - y) log(1 - p) ], p = sigma(r)"
    return preset.title, [f"{preset.title}  ({preset.paper})", formula, f"  - {preset.words}"]


def reward_model_course(config: RewardModelConfig, policy: SplitModel, loaded: Any) -> tuple[RewardModelCourse, str]:
    """The course, and its data in words."""
    learns, batch, tokenizer = REWARD_MODELS[config.method].learns, config.batch, loaded.tokenizer
    train, held_out = _judged(config, learns)
    separator = config.scorer.separator
    rows, dropped = verdicts(tokenizer, train, loaded.context, separator)
    others = verdicts(tokenizer, held_out, loaded.context, separator)[0] if held_out else []
    kind = "token" if learns == "steps" else "sequence"
    judge = reward_model_on(policy, tokenizer, [*rows, *others], kind, config.seed)  # type: ignore[arg-type]
    settings = RewardModelSettings(config.steps, batch.rows_per_step, batch.tokens_per_pass, batch.packed, config.seed)
    course = RewardModelCourse(judge, tokenizer, _loss(config), Verdicts(rows, others), settings, _optimizer(config))
    return course, _told(config.data.source, len(rows), len(others), dropped)


def _loss(config: RewardModelConfig) -> RankLoss | LabelLoss:
    scorer = config.scorer
    if REWARD_MODELS[config.method].learns == "rankings":
        return RankLoss(AllPairs() if scorer.cost == "all_pairs" else PlackettLuce(), scorer.centre)
    return LabelLoss(scorer.even_replies, scorer.positive_weight)


def _optimizer(config: PreferenceConfig | RewardModelConfig) -> OptimizerSettings:
    return OptimizerSettings(**config.optimizer.model_dump())


def _compared(
    config: PreferenceConfig, row: PairObjective
) -> tuple[Sequence[Preference | Labelled], Sequence[Preference | Labelled]]:
    """Rows to learn from and rows held out: pairs, or single replies with labels where the method takes them."""
    paired = "pairs" in row.needs()
    if config.data.source.startswith("task:"):
        return _of_task(config, task_preferences if paired or not config.preference.labels else task_judged)

    def read(rows: Sequence[Row], **how: Any) -> list[Any]:
        return (
            judged_from(rows, **how) if not paired and _has(rows, "label", "right") else preferences_from(rows, **how)
        )

    return _of_file(config, read)


def _has(rows: Sequence[Row], *names: str) -> bool:
    return bool(rows) and any(name in rows[0].values for name in names)


def _judged(
    config: RewardModelConfig, learns: str
) -> tuple[Sequence[Preference | Ranked | Labelled | Stepped], Sequence[Preference | Ranked | Labelled | Stepped]]:
    of_task: Any = {"rankings": task_rankings, "outcomes": task_judged, "steps": task_stepped}[learns]
    if config.data.source.startswith("task:"):
        return _of_task(config, of_task)
    if learns == "rankings":

        def read(rows: Sequence[Row], **how: Any) -> list[Any]:
            return rankings_from(rows, **how) if _has(rows, "replies") else preferences_from(rows, **how)

        return _of_file(config, read)
    return _of_file(config, judged_from if learns == "outcomes" else stepped_from)


def _of_task(config: PreferenceConfig | RewardModelConfig, write: Read) -> tuple[list[Any], list[Any]]:
    data = config.data
    kinds = [(task, difficulty) for task in tasks_of(data.source) for difficulty in data.difficulty]
    found = []
    for split, seed, total in (
        ("train", config.seed, data.count),
        ("held_out", HELD_OUT_SEED, config.report.evaluate_prompts),
    ):
        count = -(-total // len(kinds)) if total else 0
        rows = (
            [row for task, difficulty in kinds for row in write(task, split, count, seed, difficulty)] if count else []
        )
        found.append(rows)
    return found[0], found[1]


def _of_file(config: PreferenceConfig | RewardModelConfig, read: Read) -> tuple[list[Any], list[Any]]:
    data = config.data
    how: dict[str, Any] = {"columns": data.columns, "as_chat": data.as_chat}
    rows = read(read_rows(data.source, data.limit or None), **how)
    held_out = read(read_rows(data.held_out), **how) if data.held_out else []
    return rows, held_out


def _told(source: str, count: int, held_out: int, dropped: int) -> str:
    parts = [f"{count} rows", *([f"{held_out} held out"] if held_out else [])]
    parts += [f"{dropped} left out: too long for the context"] if dropped else []
    return f"{source} ({', '.join(parts)})"
