"""Numbers of settings by what they count, which says how large they may be: `rounds: amounts.Repeats`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whet.settings.bounds import MOST_REPEATS, MOST_ROWS, MOST_SAMPLES, MOST_SEED, MOST_STEPS, MOST_TOKENS

Count = Annotated[int, Field(ge=1, le=MOST_ROWS)]  # of rows or prompts
CountOrNone = Annotated[int, Field(ge=0, le=MOST_ROWS)]
Samples = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Repeats = Annotated[int, Field(ge=1, le=MOST_REPEATS)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
StepsOrNone = Annotated[int, Field(ge=0, le=MOST_STEPS)]
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
Epochs = Annotated[float, Field(ge=1e-6, le=1000)]
EpochsOrNone = Annotated[float, Field(ge=0, le=1000)]
Share = Annotated[float, Field(ge=0, le=1)]
