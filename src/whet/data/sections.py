"""Settings of the data: `[data]` of a config."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from whet.data.source import DEFAULT_DIFFICULTY, DataSource, parse_source
from whet.settings.bounds import MOST_ROWS
from whet.settings.sections import Section, Table, listed

MOST_PROMPT = 1_000_000  # characters of a system prompt


def _chosen(value: Any) -> Any:
    """Auto, or what reads as true or false; anything else is told in one line."""
    words = {"auto": "auto", "true": True, "false": False, "1": True, "0": False}
    choice = words.get(str(value).lower())
    if choice is None:
        raise ValueError("give auto, true or false")
    return choice


class DataSection(Section):
    """Settings that every kind of training data has; several apply to one kind of source only."""

    source: str = Field(
        "task:arithmetic",
        description="task:NAME (or NAME+NAME), gym:NAME, seeds:COUNT, a file, or hub:owner/name",
    )
    difficulty: Annotated[tuple[Annotated[int, Field(ge=0, le=1000)], ...], BeforeValidator(listed)] = Field(
        DEFAULT_DIFFICULTY, min_length=1, max_length=100, description="difficulty of a task; several are mixed evenly"
    )
    count: int = Field(4096, ge=1, le=MOST_ROWS, description="questions a task generates for training")
    settings: Table = Field({}, description="settings of a gym dataset, and its level")
    limit: int = Field(0, ge=0, le=10**12, description="train on the first rows of a file only; 0: all")
    columns: dict[str, str] = Field({}, description="rename columns: your name = whet's name")
    as_chat: Annotated[bool | Literal["auto"], BeforeValidator(_chosen)] = Field(
        "auto",
        description="send a text prompt as a user message; auto: the prompts of a benchmark, with a sentence on the "
        "form of the answer, where the model has a chat template",
    )
    system_prompt: str = Field(
        "",
        max_length=MOST_PROMPT,
        description="system message put in front of conversations that have none; text prompts become user messages",
    )
    unusable: Literal["stop", "drop"] = Field(
        "stop", description="rows that cannot be used: stop with an error, or drop and count them"
    )

    @model_validator(mode="after")
    def _holds_conversations(self) -> Self:
        if self.system_prompt and self.as_chat is False:
            raise ValueError("system_prompt needs a conversation, and as_chat=false sends plain text; drop one of them")
        return self

    @property
    def parsed_source(self) -> DataSource:
        """The parsed `source`: a task, a gym dataset, a file or a hub dataset."""
        return parse_source(self.source)


class PromptSection(DataSection):
    """The `[data]` section of methods that sample completions."""

    order: Literal["shuffled", "by_difficulty"] = Field(
        "shuffled",
        description="order of the prompts; by_difficulty visits those whose completions all agree less often",
    )


class DemonstrationSection(DataSection):
    """`[data]` of methods that imitate given completions."""

    share_worked: float = Field(1.0, ge=0, le=1, description="share of a task's demonstrations that show their working")
    every_completion: bool = Field(False, description="also learn the earlier assistant turns of a conversation")
