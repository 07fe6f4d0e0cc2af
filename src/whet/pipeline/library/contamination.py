"""A test set inside the train set is refused unless the user says that it may be."""

from __future__ import annotations

from collections.abc import Mapping

from whet.config.config import EvaluationConfig
from whet.config.sections import DataSection
from whet.data.source import parse_source
from whet.pipeline.library.settings import ComposedSettings
from whet.types import WhetError


def refuse_contamination(settings: ComposedSettings, trained_on: Mapping[str, str]) -> None:
    """Raise where a file that a stage learns from holds prompts of the eval set. Tasks keep their splits apart."""
    source = settings.eval.source
    if settings.allow_contamination or not source or not settings.eval.prompts:
        return
    tests = _questions(settings, source)
    known = {_plain(text) for text in tests}
    for trained, stage in trained_on.items():
        if not parse_source(trained).is_stored:
            continue
        inside = [text for text in _questions(settings, trained) if _plain(text) in known]
        if inside:
            shown = " ".join(inside[0].split())[:60]
            raise WhetError(
                f"stage {stage!r} learns from {trained}, and {len(inside)} of its prompts stand in the eval set "
                f"{source} too (such as {shown!r}); leave them out, or give --set allow_contamination=true"
            )


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _questions(settings: ComposedSettings, source: str) -> list[str]:
    from whet.build.prompts import load_prompts

    data = DataSection(**{**settings.data.model_dump(), "source": source, "limit": 0})
    return [prompt.question() for prompt in load_prompts(EvaluationConfig(data=data), evaluation=False)]
