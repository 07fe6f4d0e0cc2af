"""Every kind of training, by the class of its config."""

from __future__ import annotations

from whet.settings.config import Config
from whet.training.assembly import preference, reward_model, rl, sft
from whet.training.assembly.kind import TrainingKind

KINDS: dict[type, TrainingKind] = {
    kind.config: kind for kind in (rl.KIND, sft.KIND, preference.KIND, reward_model.KIND)
}


def kind_of(config: Config) -> TrainingKind:
    return KINDS[type(config)]
