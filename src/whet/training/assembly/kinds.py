"""Every kind of training, by the class of its config."""

from __future__ import annotations

from whet.training.assembly import preference, reward_model, rl, sft
from whet.training.assembly.kind import TrainingKind
from whet.training.config import Config

KINDS: dict[type, TrainingKind] = {
    kind.config: kind for kind in (rl.KIND, sft.KIND, preference.KIND, reward_model.KIND)
}


def kind_of(config: Config) -> TrainingKind:
    return KINDS[type(config)]
