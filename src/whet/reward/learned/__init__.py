"""Rewards that were learned: reward models and process reward models from transformers folders.

Frozen, with their own tokenizer and chat template, batched by a token budget; one folder or an ensemble of several.
"""

from whet.record.metrics.reward_model import ensemble_score
from whet.reward.learned.outcome import Learned, LearnedSettings, LengthFit, learned, length_fit
from whet.reward.learned.process import LearnedSteps, StepSettings, aggregated, learned_steps, step_ends

__all__ = [
    "Learned",
    "LearnedSettings",
    "LearnedSteps",
    "LengthFit",
    "StepSettings",
    "aggregated",
    "ensemble_score",
    "learned",
    "learned_steps",
    "length_fit",
    "step_ends",
]
