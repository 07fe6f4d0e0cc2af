"""How a pipeline evaluates the policies it makes: greedy completions to held-out prompts, scored by a reward."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.data.sections import DataSection
from whet.record.text import count_of, headline, metric_text
from whet.reward.sections import RewardSection
from whet.tools.pipelines.settings import PipelineSettings
from whet.tools.pipelines.stages import FinishedStage, Stage, stage_result
from whet.tools.pipelines.training import stage_settings, trained_model
from whet.training.config import EvaluationConfig
from whet.training.sections import EvalSection

POLICY = "the policy"


def evaluation_config(settings: PipelineSettings, model: str, reward: RewardSection | None = None) -> EvaluationConfig:
    """How a model is sampled and scored: the pipeline's prompts, sampling and rewards."""
    data = {name: getattr(settings.data, name) for name in DataSection.model_fields}
    return EvaluationConfig(
        seed=settings.seed,
        model=settings.model.model_copy(update={"name": model}),
        data=DataSection(**data),
        sampling=settings.sampling,
        reward=settings.eval.reward if reward is None else reward,
        sandbox=settings.sandbox,
        eval=EvalSection(source=settings.eval.source, prompts=settings.eval.prompts),
    )


def has_eval(settings: PipelineSettings) -> bool:
    """True where there are held-out prompts and a reward to score their completions."""
    has_reward = bool(settings.eval.reward.parts or settings.eval.reward.template)
    has_prompts = settings.data.parsed_source.is_generated or (bool(settings.eval.source) and has_reward)
    return settings.eval.prompts > 0 and has_prompts


def evaluate_model(settings: PipelineSettings, model: str) -> dict[str, Any]:
    """Greedy completions of a model to the held-out prompts, scored."""
    from whet.tools.evaluation.evaluation import evaluate_metrics

    metrics = evaluate_metrics(evaluation_config(settings, model), 1)
    num_prompts = int(metrics.pop("prompts"))
    main = headline(metrics) or ""
    summary = (
        f"{main.replace('_', ' ')} {metric_text(main, metrics.get(main))} on {count_of(num_prompts, 'held-out prompt')}"
    )
    return stage_result(summary, metrics, eval_prompts=num_prompts)


def eval_stage(settings: PipelineSettings, who: str, number: int, after: str | None, name: str = "") -> Stage:
    """Evaluates the model that the stage `after` trained, or the first one."""

    def work(folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
        return evaluate_model(settings, settings.model.name if after is None else trained_model(done[after]))

    about = f"evaluate {who} after {after}" if number else "evaluate the first policy"
    return Stage(name or f"eval{number}", about, work, stage_settings(settings), (who, number))
