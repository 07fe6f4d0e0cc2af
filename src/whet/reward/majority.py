"""The reward of test-time RL: agreeing with the majority of the completions to the same prompt; no label is needed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from whet.reward.answer import final_answer, normal_form
from whet.types import Prompt, Sample

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def voted_answer(completion: str) -> str | None:
    """What a completion votes for: its marked answer, else its last number; None where it says neither."""
    marked = final_answer(completion)
    if marked is not None:
        return normal_form(marked)
    numbers = NUMBER.findall(completion)
    return normal_form(numbers[-1]) if numbers else None


def winner(answers: Sequence[str | None]) -> tuple[str | None, int]:
    """The most frequent answer and its votes; of those with equal votes the one that was given first."""
    votes = Counter(answer for answer in answers if answer is not None)
    return votes.most_common(1)[0] if votes else (None, 0)


def majority_answer(*, least_share: float = 0.0) -> MajorityAnswer:
    """1 for a completion whose answer is the most frequent one among the completions to its prompt, else 0.

    Zuo 2025 (2504.16084): r = 1[answer = majority of the group]. Trap: it rewards agreement, not truth; where the
    majority is wrong the policy grows sure of it. `least_share`: below that share of the votes nobody is paid.
    """
    return MajorityAnswer(least_share)


class MajorityAnswer:
    """Scores the completions of one call together: those to the same prompt vote."""

    name = "majority_answer"
    says_right = False
    deterministic = True

    def __init__(self, least_share: float = 0.0) -> None:
        self.least_share = least_share

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        groups: dict[str, list[int]] = {}
        for row, prompt in enumerate(prompts):
            groups.setdefault(prompt.id, []).append(row)
        scores: list[float | None] = [0.0] * len(samples)
        for places in groups.values():
            answers = [voted_answer(samples[row].completion) for row in places]
            label, votes = winner(answers)
            if label is None or votes < self.least_share * len(places):
                continue
            for row, answer in zip(places, answers, strict=True):
                scores[row] = float(answer == label)
        return scores
