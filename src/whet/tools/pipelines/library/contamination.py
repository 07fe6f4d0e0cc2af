"""A test set inside the train set is refused unless the user says that it may be."""

from __future__ import annotations

from collections.abc import Mapping

from whet.data.contamination import require_clean
from whet.data.sections import DataSection
from whet.data.source import parse_source
from whet.tools.pipelines.library.settings import ComposedSettings
from whet.training.config import EvaluationConfig

FIX = "leave them out (`whet data contamination` lists them), or give --set allow_contamination=true"


def refuse_contamination(settings: ComposedSettings, trained_on: Mapping[str, str]) -> None:
    """Raise where a file that a stage learns from holds prompts of the eval set. Tasks keep their splits apart."""
    source = settings.eval.source
    if settings.allow_contamination or not source or not settings.eval.prompts:
        return
    tests = _questions(settings, source)
    for trained, stage in trained_on.items():
        if parse_source(trained).is_stored:
            require_clean((f"stage {stage!r}: {trained}", _questions(settings, trained)), (source, tests), FIX)


def _questions(settings: ComposedSettings, source: str) -> list[str]:
    from whet.training.assembly.prompts import load_prompts

    data = DataSection(**{**settings.data.model_dump(), "source": source, "limit": 0})
    return [prompt.question() for prompt in load_prompts(EvaluationConfig(data=data), evaluation=False)]
