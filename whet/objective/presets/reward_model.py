"""The kinds of reward model by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Learns = Literal["rankings", "outcomes", "steps"]


@dataclass(frozen=True)
class RewardModelPreset:
    """A kind of reward model: what it learns from, and where that comes from."""

    title: str
    paper: str
    learns: Learns
    words: str


# every kind of reward model by the name that the command line takes
REWARD_MODELS: dict[str, RewardModelPreset] = {
    "rm": RewardModelPreset(
        "Reward model", "Bradley and Terry 1952; Ouyang 2022, arXiv 2203.02155", "rankings",
        "the better of two replies gets the higher score",
    ),
    "orm": RewardModelPreset(
        "Outcome reward model", "Cobbe 2021, arXiv 2110.14168", "outcomes",
        "how likely is the reply right, judged at its last token",
    ),
    "prm": RewardModelPreset(
        "Process reward model", "Lightman 2023, arXiv 2305.20050", "steps",
        "how likely is each step right, judged at its last token",
    ),
}  # fmt: skip
