"""What a kind of training is: one value per kind, made in the module of the same name.

`whet.training.assembly.kinds` lists them by the class of their config. A new kind is a config
class, a module like `whet.training.assembly.sft` with a `TrainingKind`, and its line in
`KINDS`; nothing else asks what kind a run is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.reward.combine import RewardPart
from whet.reward.score import Failures
from whet.training.assembly.runtime import Runtime
from whet.training.evaluate import Evaluator
from whet.training.run import Trainer
from whet.types import Prompt


@dataclass(frozen=True)
class BuildInputs:
    """What every kind builds its trainer from, besides its config."""

    runtime: Runtime
    parts: Sequence[RewardPart]  # of the reward; empty where nothing is scored
    failures: Failures
    prompts: Sequence[Prompt]  # to draw completions to; empty where none are drawn
    eval_prompts: Sequence[Prompt]
    evaluator: Evaluator | None


@dataclass(frozen=True)
class Built:
    trainer: Trainer
    facts: Mapping[str, str]  # about the data and the reward, for the run's summary
    lengths: Mapping[str, str]  # of what is trained on, likewise
    eval_rows: int = 0  # rows of the data that it is evaluated on, besides eval prompts
    close: Callable[[], None] = lambda: None  # ends what the trainer started elsewhere


@dataclass(frozen=True)
class TrainingKind:
    """One way of training. All functions take the run's config, an instance of `config`."""

    name: str  # in words
    config: type  # of the run's config
    # title and objective in words and symbols; refuses what cannot work
    describe: Callable[[Any, Sequence[RewardPart]], tuple[str, list[str]]]
    build: Callable[[Any, BuildInputs], Built]
    draws_completions: Callable[[Any], bool]  # in training: prompts and a reward are needed
    scores_eval_prompts: Callable[[Any], bool]  # an evaluation draws completions to eval prompts
    learns_from_reward: Callable[[Any], bool] = lambda config: True  # False: completions that are drawn need none
    try_it: str = "whet sample {run}{prompt}"  # the next command; {prompt} is empty where the run has eval prompts
