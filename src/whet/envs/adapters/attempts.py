"""Several attempts at one question: a reward judges each, and a wrong one is told so.

With data from `gym:NAME` it is reasoning-gym with several attempts; any other reward that judges one completion will
do. The episode ends with the first attempt that gets full marks, or with the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from whet.envs.adapters.shared import number
from whet.types import Completion, Prompt, Sample, StepResult, WhetError

FEEDBACK = "That is not right yet. You have {left} left. Try again."
FULL_MARKS = 1.0


class Attempts:
    """One question. A right answer at the n-th attempt earns `discount ** (n - 1)` times its score.

    `feedback` follows a wrong attempt; {left} in it becomes the number of attempts that are left, in words.
    """

    answers_as = "user"

    def __init__(
        self,
        *,
        attempts: int = 3,
        discount: float = 1.0,
        reward: str = "gym_answer",
        reward_settings: Mapping[str, Any] | None = None,
        feedback: str = FEEDBACK,
    ) -> None:
        if attempts < 1:
            raise WhetError(f"attempts is {attempts}; give at least 1")
        if not 0 < discount <= 1:
            raise WhetError(f"discount is {discount}; give a share in (0, 1], 1 switches it off")
        self._attempts, self._discount, self._feedback = attempts, discount, feedback
        self._judge = _judge(reward, dict(reward_settings or {}))
        self._prompt: Prompt | None = None
        self._made = 0

    def start(self, prompt: Prompt) -> None:
        self._prompt = prompt

    def step(self, completion: Completion) -> StepResult:
        """Score one attempt; the episode ends with full marks or with the last attempt, discounted by their number."""
        assert self._prompt is not None
        self._made += 1
        score = self._judge(self._prompt, completion)
        if score is None:
            raise ValueError(f"prompt {self._prompt.id!r} cannot be judged: its own gold answer gets no full marks")
        score = number(score, "the reward")
        left = self._attempts - self._made
        if score >= FULL_MARKS or not left:
            earned = score * self._discount ** (self._made - 1)
            return StepResult((), reward=earned, done=True, metrics={"attempts": float(self._made)})
        attempts = "1 attempt" if left == 1 else f"{left} attempts"
        return StepResult(({"role": "user", "content": self._feedback.replace("{left}", attempts)},), reward=0.0)


def _judge(name: str, settings: Mapping[str, Any]) -> Callable[[Prompt, Completion], float | None]:
    """A reward by name, as a function of one prompt and one completion."""
    import torch

    from whet.reward.find import find_reward

    reward = find_reward(name, settings)

    def score(prompt: Prompt, completion: Completion) -> float | None:
        tokens = torch.tensor(completion.tokens, dtype=torch.long)
        sample = Sample(
            tokens=tokens,
            action=torch.ones_like(tokens, dtype=torch.bool),
            behavior_logp=torch.zeros(len(tokens)),
            versions=(0, 0),
            stop=completion.stop,
            completion=str(completion),
        )
        return reward([prompt], [sample])[0]

    return score
