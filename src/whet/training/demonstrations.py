"""Demonstrations beside the policy's own completions: which rows a step has to imitate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whet.types import Demonstration, Encoded, Group, Prompt


@dataclass(frozen=True)
class ShownRow:
    """A demonstration that is trained on together with the samples of a step."""

    prompt: Prompt
    row: Encoded


@dataclass(frozen=True)
class DemonstrationSource:
    """The demonstrations of a run's prompts."""

    text: Callable[[Prompt], str | None]
    encode: Callable[[Demonstration], Encoded]
    longest: int  # tokens that the policy can read
    said: str  # in words

    def rows(self, groups: Sequence[Group]) -> list[ShownRow]:
        """One for each group whose prompt has a demonstration that fits."""
        shown_rows = []
        for group in groups:
            text = self.text(group.prompt)
            row = None if text is None else self.encode(Demonstration(group.prompt, text))
            if row is not None and len(row.tokens) <= self.longest:
                shown_rows.append(ShownRow(group.prompt, row))
        return shown_rows
