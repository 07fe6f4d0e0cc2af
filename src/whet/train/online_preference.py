"""Preferences of a scorer on the policy's own completions: each step draws completions, pairs the best with the worst, learns.

The pairs are on policy and new in every step, so the reference is asked live. A prompt whose completions all score the same
teaches nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from whet.data.cursor import Cursor
from whet.protocols import Engine
from whet.report.findings import Check
from whet.report.preference_health import PREFERENCE_CHECKS
from whet.rollout.collect import Score, draw_completions, score_groups
from whet.train.preference import PreferenceRow, PreferenceTrainer
from whet.train.rl import counts, mean_rewards, uniform_share
from whet.train.run import PhaseTimer, RunFailed
from whet.types import Encoded, Group, Prompt, Sample, Sampling, StepReport


@dataclass(frozen=True)
class Asking:
    """Who is asked what, and who judges the completions."""

    prompts: Sequence[Prompt]
    prompt_tokens: Sequence[tuple[int, ...]]
    engine: Engine
    score: Score
    sampling: Sampling
    group_size: int
    prompts_per_step: int
    seed: int


class OnlinePreferenceTrainer:
    """A `PreferenceTrainer` whose rows are written by the policy itself."""

    def __init__(self, trainer: PreferenceTrainer, asking: Asking) -> None:
        self._trainer, self._asking = trainer, asking
        self._cursor = Cursor(len(asking.prompts), asking.seed)

    @property
    def model(self) -> Any:
        return self._trainer.model

    @property
    def tokenizer(self) -> Any:
        return self._trainer.tokenizer

    @property
    def over(self) -> str | None:
        return self._trainer.over

    def step(self, number: int, clock: PhaseTimer) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        asking = self._asking
        rows, self._cursor = self._cursor.take(asking.prompts_per_step)
        with clock.phase("rollout"):
            tokens = [asking.prompt_tokens[row] for row in rows]
            written = draw_completions(asking.engine, tokens, asking.group_size, asking.sampling, (asking.seed, number))
        with clock.phase("reward"):
            groups = score_groups([asking.prompts[row] for row in rows], written, asking.score)
        pairs = [pair for group in groups if (pair := best_and_worst(group)) is not None]
        if not pairs:
            raise RunFailed(
                f"step {number}: all completions to each of {len(groups)} prompts scored the same, so there is no pair to "
                "learn from; look at the reward, change the data's difficulty, or draw more with preference.online"
            )
        report = self._trainer.learn(pairs, number, clock)
        asking.engine.load(self.model.state_dict(), number)
        told = {**report.metrics, "uniform_groups": uniform_share(groups)}
        report = replace(
            report,
            counts={**counts(groups), "rows": len(pairs)},
            reward=mean_rewards(groups),
            metrics=told,
        )
        return report, [(group.prompt, sample) for group in groups for sample in group.samples]

    def evaluate(self) -> dict[str, float]:
        return self._trainer.evaluate()

    @property
    def checks(self) -> tuple[Check, ...]:
        """Its steps report rewards, so they are read as RL: the checks of preference runs come on top."""
        return (*PREFERENCE_CHECKS, *self._trainer.checks)

    def state(self) -> dict[str, Any]:
        return {**self._trainer.state(), "asked": self._cursor.position}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return self._trainer.tensors()

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._cursor = replace(self._cursor, position=state["asked"])
        self._trainer.restore(state, tensors)


def best_and_worst(group: Group) -> PreferenceRow | None:
    """The completion with the highest and the one with the lowest reward, the first of each; None where none differ."""
    scored = [sample for sample in group.samples if sample.reward is not None and bool(sample.action.any())]
    if not scored:
        return None
    best = max(scored, key=lambda sample: sample.reward or 0.0)
    worst = min(scored, key=lambda sample: sample.reward or 0.0)
    if best.reward == worst.reward or best.tokens.tolist() == worst.tokens.tolist():
        return None
    return PreferenceRow((_encoded(best), _encoded(worst)))


def _encoded(sample: Sample) -> Encoded:
    return Encoded(tuple(sample.tokens.tolist()), tuple(sample.action.tolist()))
