"""What a field of a stage may name: the type says it, as in `model: takes.Model`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

# what a stage leaves behind for others; a model is a run folder
Output = Literal["model", "reward_model", "rows", "completions", "pairs", "metrics"]


@dataclass(frozen=True)
class InputRule:
    """What a field of an entry may name: an earlier stage that leaves one of these, or something of the user's."""

    outputs: tuple[Output, ...]
    is_needed: bool = True  # or the field may be empty
    key: str = ""  # the input's name; empty: the field's
    own: Literal["", "model", "data"] = ""  # what of the pipeline's own an empty field stands for


Model = Annotated[str, InputRule(("model",), own="model")]
Prompts = Annotated[str, InputRule(("rows", "completions"), own="data")]
Completions = Annotated[str, InputRule(("completions",))]
Rows = Annotated[str, InputRule(("rows",))]
OptionalRows = Annotated[str, InputRule(("rows",), is_needed=False)]
OptionalPairs = Annotated[str, InputRule(("pairs",), is_needed=False)]
OptionalModel = Annotated[str, InputRule(("model",), is_needed=False)]
RewardModel = Annotated[str, InputRule(("reward_model",))]
OptionalRewardModel = Annotated[str, InputRule(("reward_model",), is_needed=False)]
RESULT = InputRule(
    ("metrics", "model", "completions", "rows", "pairs")
)  # whatever the stage leaves: its result is read
Result = Annotated[str, RESULT]
OptionalResult = Annotated[str, replace(RESULT, is_needed=False)]
