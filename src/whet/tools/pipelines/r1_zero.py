"""R1-Zero (2501.12948): RL straight from the base model, and what becomes of length and re-checks on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from whet.tools.pipelines.library.choices import RLChoice
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import with_evals
from whet.tools.pipelines.library.rechecking import RecheckEntry
from whet.tools.pipelines.library.trainings import RLEntry
from whet.tools.pipelines.r1 import require_reward
from whet.tools.pipelines.settings import Pipeline, PipelineSettings

RECORDED = 65_536  # groups per step: all of them


class R1ZeroSettings(PipelineSettings):
    """RL from the base model."""

    rl: RLChoice = Field(RLChoice(), description="the training")

    small_run: ClassVar[Mapping[str, Any]] = {
        "data": {"count": 512},
        "sampling": {"max_new_tokens": 64},
        "eval": {"samples": 8},
        "rl": {"steps": 40},
    }


def r1_zero_entries(settings: R1ZeroSettings) -> list[StageEntry]:
    """The training, and the completions it learned from read again."""
    reward, values = require_reward(settings), settings.rl.values()
    report = {"samples_per_step": RECORDED, **values["train"].get("report", {})}
    values["train"] = {**values["train"], "report": report}
    entries: list[StageEntry] = [RLEntry(name="rl", reward=reward, **values)]
    return [*with_evals(settings, entries), RecheckEntry(name="re-checks", training="rl")]


R1_ZERO = Pipeline(
    "r1_zero",
    "RL straight from the base model, with the length and the re-checks of its completions along the way",
    R1ZeroSettings,
    r1_zero_entries,
)
