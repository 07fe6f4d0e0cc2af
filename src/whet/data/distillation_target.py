"""What a teacher reads besides the prompt: the same question with a solution, a demonstration or feedback beside it.

Pure: from a prompt and a text to another prompt. The tokens of a completion are never written again, they are only put
after other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from whet.types import Group, Prompt, Sample

TeacherContext = Literal["none", "sibling", "demonstration", "feedback"]
TEMPLATES: Mapping[str, str] = {
    "sibling": "{prompt}\n\nCorrect solution:\n\n{text}\n\nCorrectly solve the original question.",
    "demonstration": "{prompt}\n\nThis is an example of a response to the question:\n\n{text}\n\n"
    "Now answer with a response of your own, including the thinking process.",
    "feedback": "{prompt}\n\nThe following is feedback from an earlier attempt:\n\n{text}\n\n"
    "Correctly solve the original question.",
}
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "demonstration": ("demonstration", "completion", "solution"),
    "feedback": ("feedback", "privileged_context"),
}


def with_text(prompt: Prompt, text: str, template: str) -> Prompt:
    """The prompt with a text added to its last message, or to its plain text."""

    def written(question: str) -> str:
        return template.replace("{prompt}", question, 1).replace("{text}", text, 1)

    if prompt.text is not None:
        return replace(prompt, text=written(prompt.text))
    *before, last = prompt.messages
    return replace(prompt, messages=(*before, {**last, "content": written(str(last.get("content", "")))}))


def column_text(prompt: Prompt, context: str) -> str | None:
    """The text of a row: that of the first of the context's columns that it has."""
    candidates = (prompt.meta.get(name) for name in COLUMNS[context])
    return next((candidate for candidate in candidates if isinstance(candidate, str) and candidate.strip()), None)


def right_siblings(samples: Sequence[Sample]) -> list[Sample | None]:
    """For each sample the next right one of its group, in a circle, that is another: its outcome is 1."""
    right = [index for index, sample in enumerate(samples) if sample.outcome == 1]
    siblings: list[Sample | None] = []
    for position in range(len(samples)):
        others = [other for other in right if other != position]
        chosen = next((other for other in others if other > position), others[0] if others else None)
        siblings.append(None if chosen is None else samples[chosen])
    return siblings


def teacher_texts(group: Group, context: TeacherContext, known: Mapping[str, str]) -> list[str | None]:
    """What the teacher reads about each sample of a group; None where there is nothing, and nothing to learn.

    `known` are texts by prompt, for data that holds them elsewhere than in a column.
    """
    if context == "sibling":
        return [None if sibling is None else sibling.completion for sibling in right_siblings(group.samples)]
    text = known.get(group.prompt.id) or column_text(group.prompt, context)
    return [text] * len(group.samples)


def behind(prompt: Sequence[int], sample: Sample) -> tuple[Tensor, Tensor, int]:
    """Tokens and actions of a sample whose first tokens, up to its first action, are replaced; and by how much each
    action moved."""
    first = int(sample.action.int().argmax())
    tokens = torch.cat([torch.tensor(list(prompt), dtype=sample.tokens.dtype), sample.tokens[first:]])
    action = torch.cat([torch.zeros(len(prompt), dtype=torch.bool), sample.action[first:]])
    return tokens, action, len(prompt) - first
